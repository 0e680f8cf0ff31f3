//! Who pays: the user in the body, the tenant of the token, byte for byte.

use serde_json::json;

use crate::harness::Tenant;
use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;

#[tokio::test]
async fn the_users_id_comes_from_the_body_and_nowhere_else() {
    let t = Tenant::with(Sheet::new().dr(1)).await;
    let ask = |body: serde_json::Value| {
        t.request(reqwest::Method::POST, "/v1/check?user=carol").header("x-user-id", "bob").json(&body)
    };
    t.send(ask(json!({"user": "alice"}))).await.ok();
    t.send(ask(json!({"user": "alice"}))).await.refused(429, "daily_quota_exhausted");
    t.send(ask(json!({"user": "alice", "metadata": {"user": "dave"}}))).await.refused(400, "invalid_request");
    t.post_raw("/v1/check", r#"{"user":"alice","user":"bob"}"#).await.refused(400, "invalid_request");
    t.send(ask(json!({"user": "bob", "tenant": "other"}))).await.refused(400, "invalid_request");
    for user in ["bob", "carol", "dave"] {
        assert_eq!(t.remaining(user, "requests_per_day").await, 1, "{user}");
    }
}

#[tokio::test]
async fn every_spelling_is_a_user_of_its_own() {
    let t = Tenant::with(Sheet::new().dr(1)).await;
    let composed = "Jos\u{e9}";
    let decomposed = "Jose\u{301}";
    let long = "x".repeat(256);
    let users = [
        "Alice@X.com",
        "alice@x.com",
        composed,
        decomposed,
        "bob",
        "BOB",
        "a b",
        "a/b",
        "a:b",
        "{}",
        "{a}",
        "a%2Fb",
        "日本語",
        "ключ",
        "عربي",
        "a?b=c&d",
        "a#b",
        "...",
        "-",
        "'; drop table users; --",
        "🦀",
        &long,
        "a\u{1F3FD}",
    ];
    for user in users {
        t.ask(user, 0, 0).await.ok();
    }
    for user in users {
        t.ask(user, 0, 0).await.refused(429, "daily_quota_exhausted");
        let view = t.quota(user).await.ok();
        assert_eq!(view["user"], user);
        assert_has(&view["limits"][0], &json!({"used": 1}));
        let admin = t.get(&format!("/v1/admin/users/{}", percent(user))).await.ok();
        assert_eq!(admin["user"], user);
    }
}

#[tokio::test]
async fn ids_that_could_be_mistaken_for_others_are_refused() {
    let t = Tenant::with(Sheet::new().dr(1)).await;
    let long = "x".repeat(300);
    for user in [
        "",
        "bob ",
        " bob",
        "\tbob",
        "bob\n",
        "zero\u{200b}width",
        "a\u{0}b",
        "\u{feff}a",
        "a\u{2029}",
        ".",
        "..",
        &long,
    ] {
        t.ask(user, 0, 0).await.refused(400, "invalid_request");
        if !user.is_empty() && user != "." && user != ".." {
            t.quota(user).await.refused(400, "invalid_request");
        }
    }
    for path in
        ["/v1/users/%2E/quota", "/v1/users/%2E%2E/quota", "/v1/users/a%FFb/quota", "/v1/users/%20a/quota"]
    {
        let reply = t.get(path).await;
        assert!([400, 404].contains(&reply.status), "{path}: {} {}", reply.status, reply.text);
        reply.assert_problem();
    }
}

fn percent(text: &str) -> String {
    text.bytes().map(|b| format!("%{b:02X}")).collect()
}
