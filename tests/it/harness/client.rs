//! One method for each endpoint; bodies are JSON as it stands in the contract.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::Reply;

/// Speaks for one token. Connections belong to the runtime of the test that made it.
#[derive(Clone)]
pub struct Client {
    pub http: reqwest::Client,
    pub url: String,
    pub token: String,
}

impl Client {
    pub fn new(url: &str, token: &str) -> Self {
        let http =
            reqwest::Client::builder().timeout(Duration::from_secs(60)).no_proxy().build().expect("a client");
        Self { http, url: url.to_owned(), token: token.to_owned() }
    }

    /// The same connections with another token.
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: token.to_owned(), ..self.clone() }
    }

    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token)
    }

    pub async fn send(&self, request: reqwest::RequestBuilder) -> Reply {
        Reply::read(request.send().await.expect("the service answers")).await
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send(self.request(Method::GET, path)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send(self.request(Method::POST, path).json(body)).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Reply {
        self.send(self.request(Method::PUT, path).json(body)).await
    }

    /// A body of any bytes, said to be JSON.
    pub async fn post_raw(&self, path: &str, body: impl Into<reqwest::Body>) -> Reply {
        self.send(self.request(Method::POST, path).header("content-type", "application/json").body(body))
            .await
    }

    pub async fn check(&self, body: Value) -> Reply {
        self.post("/v1/check", &body).await
    }

    pub async fn check_with_key(&self, key: &str, body: Value) -> Reply {
        self.send(self.request(Method::POST, "/v1/check").header("idempotency-key", key).json(&body)).await
    }

    pub async fn check_batch(&self, checks: &[Value]) -> Reply {
        self.post("/v1/check/batch", &json!({"checks": checks})).await
    }

    pub async fn settle(&self, hold: &str, body: Value) -> Reply {
        self.post(&format!("/v1/holds/{hold}/settle"), &body).await
    }

    pub async fn settle_batch(&self, settles: &[Value]) -> Reply {
        self.post("/v1/holds/settle/batch", &json!({"settles": settles})).await
    }

    pub async fn release(&self, hold: &str) -> Reply {
        self.post(&format!("/v1/holds/{hold}/release"), &json!({})).await
    }

    pub async fn extend(&self, hold: &str, body: Value) -> Reply {
        self.post(&format!("/v1/holds/{hold}/extend"), &body).await
    }

    pub async fn extend_with_key(&self, hold: &str, key: &str, body: Value) -> Reply {
        let path = format!("/v1/holds/{hold}/extend");
        self.send(self.request(Method::POST, &path).header("idempotency-key", key).json(&body)).await
    }

    pub async fn hold(&self, hold: &str) -> Reply {
        self.get(&format!("/v1/holds/{hold}")).await
    }

    pub async fn hold_by_request(&self, user: &str, request_id: &str) -> Reply {
        let path = format!("/v1/holds?user={}&request_id={}", percent(user), percent(request_id));
        self.get(&path).await
    }

    pub async fn usage(&self, body: &Value) -> Reply {
        self.post("/v1/usage", body).await
    }

    pub async fn quota(&self, user: &str) -> Reply {
        self.get(&format!("/v1/users/{}/quota", percent(user))).await
    }

    pub async fn put_clock(&self, now: &str) -> Reply {
        self.put("/v1/admin/clock", &json!({"now": now})).await
    }

    pub async fn put_plan(&self, sheet: &Value) -> Reply {
        let mut body = sheet.clone();
        for (name, value) in [("applies", "now"), ("reason", "test")] {
            if body.get(name).is_none() {
                body[name] = json!(value);
            }
        }
        self.put(&format!("/v1/admin/plans/{}", percent(sheet["id"].as_str().unwrap_or("p"))), &body).await
    }

    pub async fn put_pool(&self, pool: &Value) -> Reply {
        let mut body = pool.clone();
        body["reason"] = json!("test");
        self.put(&format!("/v1/admin/pools/{}", percent(pool["id"].as_str().unwrap_or("p"))), &body).await
    }

    pub async fn put_models(&self, models: &Value) -> Reply {
        self.put("/v1/admin/models", &json!({"models": models, "reason": "test"})).await
    }

    pub async fn put_settings(&self, mut settings: Value) -> Reply {
        settings["reason"] = json!("test");
        self.put("/v1/admin/settings", &settings).await
    }

    pub async fn put_user(&self, user: &str, mut body: Value) -> Reply {
        body["reason"] = json!("test");
        self.put(&format!("/v1/admin/users/{}", percent(user)), &body).await
    }

    /// Erases a user's identity.
    pub async fn erase(&self, user: &str) -> Reply {
        self.send(self.request(Method::DELETE, &format!("/v1/admin/users/{}", percent(user)))).await
    }

    pub async fn set_plan(&self, user: &str, plan: &str) -> Reply {
        let body = json!({"plan": plan, "effective": "now", "reason": "test"});
        self.post(&format!("/v1/admin/users/{}/plan", percent(user)), &body).await
    }

    /// `POST users/{user}/plan`; says why if `body` does not.
    pub async fn move_user(&self, user: &str, body: Value) -> Reply {
        self.post(&format!("/v1/admin/users/{}/plan", percent(user)), &with_reason(body)).await
    }

    /// `PUT {of}/overrides`, where `of` is such as `users/u` or `orgs/acme`.
    pub async fn put_overrides(&self, of: &str, body: Value) -> Reply {
        self.put(&format!("/v1/admin/{of}/overrides"), &with_reason(body)).await
    }

    /// `POST {of}/grants`.
    pub async fn give(&self, of: &str, body: Value) -> Reply {
        self.post(&format!("/v1/admin/{of}/grants"), &with_reason(body)).await
    }

    pub async fn add_webhook(&self, url: &str, events: &[&str]) -> Value {
        let reply = self.post("/v1/admin/webhooks", &json!({"url": url, "events": events})).await;
        assert_eq!(reply.status, 201, "{}", reply.text);
        reply.ok()
    }

    /// Of a webhook, the newest first.
    pub async fn deliveries(&self, webhook: &Value) -> Vec<Value> {
        let id = webhook["id"].as_str().expect("a webhook");
        let page = self.get(&format!("/v1/admin/webhooks/{id}/deliveries?limit=500")).await.ok();
        page["data"].as_array().expect("a list").clone()
    }

    pub async fn put_org(&self, org: &str, body: Value) -> Reply {
        self.put(&format!("/v1/admin/orgs/{}", percent(org)), &with_reason(body)).await
    }

    /// A user or an org on record.
    pub async fn on_record(&self, of: &str) -> Reply {
        self.get(&format!("/v1/admin/{of}")).await
    }

    /// A PUT that only replaces this version.
    pub async fn put_if(&self, path: &str, version: &str, body: Value) -> Reply {
        let request = self.request(Method::PUT, path).header("if-match", version);
        self.send(request.json(&with_reason(body))).await
    }

    pub async fn capacity(&self, body: &Value) -> Reply {
        self.post("/v1/admin/capacity/check", body).await
    }
}

fn with_reason(mut body: Value) -> Value {
    if body.get("reason").is_none() {
        body["reason"] = json!("test");
    }
    body
}

/// Percent-encodes everything that is not plain.
pub fn percent(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
