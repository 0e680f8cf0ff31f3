//! Everybody who might come to the door.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::signer::{ALGORITHMS, Signer, unix_now};
use crate::harness::{Client, Tenant};

/// How a caller is met, wherever credentials are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// 401 `unauthenticated`
    Stranger,
    /// 403 `tenant_suspended`
    Suspended,
    /// What these scopes open, and 403 `forbidden` for the rest.
    Known(String),
}

#[derive(Debug, Clone)]
pub struct Caller {
    pub name: String,
    pub token: Option<String>,
    pub standing: Standing,
}

fn caller(name: impl Into<String>, token: impl Into<String>, standing: Standing) -> Caller {
    Caller { name: name.into(), token: Some(token.into()), standing }
}

fn known(name: impl Into<String>, token: impl Into<String>, scopes: &str) -> Caller {
    caller(name, token, Standing::Known(scopes.to_owned()))
}

/// What a tenant's key may grant.
pub const GRANTABLE: [&str; 5] = ["check", "quota", "admin:read", "admin:write", "me"];

pub async fn api_key(t: &Client, scopes: &[&str]) -> (String, String) {
    let made = t.post("/v1/admin/keys", &json!({"kind": "api", "scopes": scopes})).await.ok();
    let text = |name: &str| made[name].as_str().unwrap_or_else(|| panic!("no {name}")).to_owned();
    (text("kid"), text("secret"))
}

pub async fn remove_key(t: &Client, kid: &str) {
    let removed = t.send(t.request(Method::DELETE, &format!("/v1/admin/keys/{kid}"))).await;
    assert_eq!(removed.status, 204, "{}", removed.text);
}

/// Everybody, as far as `t` is concerned; `other` is another tenant.
pub async fn everybody(t: &Tenant, other: &Tenant) -> Vec<Caller> {
    let mut all = strangers(t, other).await;
    for algorithm in ALGORITHMS {
        let signer = Signer::registered(algorithm, t, &GRANTABLE).await;
        for scope in GRANTABLE {
            // Of one user's streams only a few may be open.
            let sub = if scope == "me" { json!(format!("u-{algorithm}")) } else { Value::Null };
            let token = signer.token_with(json!({}), json!({"scope": scope, "sub": sub}));
            all.push(known(format!("a token of {algorithm} with {scope}"), token, scope));
        }
        let token = signer.token("operator");
        all.push(known(format!("a token of {algorithm} that asks for operator"), token, ""));
    }
    let ed = Signer::registered("EdDSA", t, &GRANTABLE).await;
    all.push(known("a token without a scope", ed.token_with(json!({}), json!({})), ""));
    let all_at_once = ed.token_with(json!({}), json!({"scope": GRANTABLE.join(" "), "sub": "u"}));
    all.push(known("a user's token that asks for everything", all_at_once, "me"));
    let narrow = Signer::registered("ES256", t, &["quota"]).await;
    let token = narrow.token("check quota admin:write");
    all.push(known("a token that asks for more than its key grants", token, "quota"));
    for scope in ["check", "quota", "admin:read", "admin:write"] {
        let (_, secret) = api_key(t, &[scope]).await;
        all.push(known(format!("an API key with {scope}"), secret, scope));
    }
    all.push(known("an operator", t.operator().token, "operator"));
    let minted = t.token(&["--scope", "check quota admin:read admin:write"]);
    all.push(known("a backend that may do everything", minted, "check quota admin:read admin:write"));
    all.extend(suspended(t).await);
    all
}

/// Those whose credentials are nobody's.
async fn strangers(t: &Tenant, other: &Tenant) -> Vec<Caller> {
    let stranger = |name: &str, token: &str| caller(name, token, Standing::Stranger);
    let ed = Signer::registered("EdDSA", t, &GRANTABLE).await;
    let removed = Signer::registered("EdDSA", t, &GRANTABLE).await;
    let removed_token = removed.token("check quota admin:write");
    // Once it was good: what is remembered of it must end, too.
    t.with_token(&removed_token).get("/v1/admin/keys").await.ok();
    remove_key(t, &removed.kid).await;
    let (removed_kid, removed_secret) = api_key(t, &["check", "quota", "admin:write"]).await;
    t.with_token(&removed_secret).get("/v1/admin/keys").await.ok();
    remove_key(t, &removed_kid).await;
    let expired =
        ed.token_with(json!({}), json!({"scope": "check quota admin:write", "exp": unix_now() - 1}));
    let theirs = json!({"scope": "check quota admin:write", "tenant": other.id});
    vec![
        Caller { name: "nobody".into(), token: None, standing: Standing::Stranger },
        stranger("garbage", "garbage"),
        stranger("an API key that never was", &format!("ap_abcdefghijkmnpqrstuv_{}", "A".repeat(43))),
        stranger("a token that has expired", &expired),
        stranger("a token of a removed key", &removed_token),
        stranger("a removed API key", &removed_secret),
        stranger("a token of no key", &Signer::new("EdDSA").named("nokey").token("admin:write")),
        stranger("a token that names another tenant", &ed.token_with(json!({}), theirs)),
        stranger("a user's token without its user", &ed.token("me")),
        stranger("a token of a deleted tenant", &of_deleted_tenant(t).await),
    ]
}

async fn new_tenant(t: &Tenant, id: &str) -> Client {
    let made = t.operator().post("/v1/operator/tenants", &json!({"id": id, "test": true})).await;
    assert_eq!(made.status, 201, "{}", made.text);
    t.with_token(&t.server.office().mint(id, &["--scope", "check quota admin:write"]))
}

async fn of_deleted_tenant(t: &Tenant) -> String {
    let id = format!("{}-deleted", t.id);
    let theirs = new_tenant(t, &id).await;
    theirs.get("/v1/admin/settings").await.ok();
    let operator = t.operator();
    let request = operator.request(Method::DELETE, &format!("/v1/operator/tenants/{id}"));
    assert_eq!(operator.send(request).await.status, 204);
    theirs.token
}

async fn suspended(t: &Tenant) -> Vec<Caller> {
    let id = format!("{}-suspended", t.id);
    let theirs = new_tenant(t, &id).await;
    let (_, secret) = api_key(&theirs, &["check", "quota", "admin:write"]).await;
    let user = t.server.office().mint(&id, &["--user", "u"]);
    let body = json!({"suspended": true, "reason": "unpaid"});
    t.operator().put(&format!("/v1/operator/tenants/{id}"), &body).await.ok();
    vec![
        caller("a token of a suspended tenant", theirs.token, Standing::Suspended),
        caller("an API key of a suspended tenant", secret, Standing::Suspended),
        caller("a user of a suspended tenant", user, Standing::Suspended),
    ]
}
