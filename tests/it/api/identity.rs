//! Tokens: who may do what, and what is no token.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::sheets::Sheet;
use crate::harness::{Client, Tenant};

const CHECK: [(&str, &str); 8] = [
    ("POST", "/v1/check"),
    ("POST", "/v1/check/batch"),
    ("POST", "/v1/holds/hold_x/settle"),
    ("POST", "/v1/holds/settle/batch"),
    ("POST", "/v1/holds/hold_x/release"),
    ("POST", "/v1/holds/hold_x/extend"),
    ("POST", "/v1/usage"),
    ("GET", "/v1/holds/hold_x"),
];
const QUOTA: [(&str, &str); 2] = [("GET", "/v1/users/u/quota"), ("GET", "/v1/holds/hold_x")];
const READ: [(&str, &str); 6] = [
    ("GET", "/v1/admin/settings"),
    ("GET", "/v1/admin/plans"),
    ("GET", "/v1/admin/plans/p"),
    ("GET", "/v1/admin/users"),
    ("GET", "/v1/admin/pools/default"),
    ("GET", "/v1/admin/clock"),
];
const WRITE: [(&str, &str); 6] = [
    ("PUT", "/v1/admin/settings"),
    ("PUT", "/v1/admin/plans/p"),
    ("PUT", "/v1/admin/users/u"),
    ("POST", "/v1/admin/users/u/plan"),
    ("PUT", "/v1/admin/clock"),
    ("PUT", "/v1/admin/models"),
];

async fn call(client: &Client, (method, path): (&str, &str)) -> crate::harness::Reply {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let request = client.request(method.clone(), path);
    client.send(if method == Method::GET { request } else { request.json(&json!({})) }).await
}

#[tokio::test]
async fn each_scope_opens_its_routes_and_no_others() {
    let t = Tenant::with(Sheet::new().dr(5)).await;
    for (scope, open) in [
        ("check", CHECK.to_vec()),
        ("quota", QUOTA.to_vec()),
        ("admin:read", READ.to_vec()),
        ("admin:write", [READ.as_slice(), &WRITE].concat()),
        ("me", vec![]),
    ] {
        let mut arguments = vec!["--scope", scope];
        if scope == "me" {
            arguments.extend(["--user", "u"]);
        }
        let client = t.with_token(&t.token(&arguments));
        for route in [CHECK.as_slice(), &QUOTA, &READ, &WRITE].concat() {
            let reply = call(&client, route).await;
            let forbidden = reply.status == 403 && reply.code() == "forbidden";
            assert_eq!(
                forbidden,
                !open.contains(&route),
                "{scope}: {route:?} {} {}",
                reply.status,
                reply.text
            );
            assert!(reply.status != 401 && reply.status < 500, "{scope}: {route:?} {}", reply.text);
        }
    }
}

#[tokio::test]
async fn what_is_no_token_is_refused_alike() {
    let t = Tenant::with(Sheet::new().dr(5)).await;
    let good = t.token.clone();
    let parts: Vec<&str> = good.split('.').collect();
    assert_eq!(parts.len(), 3, "a token of three parts");
    let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(parts[1]).unwrap()).unwrap();
    let header: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(parts[0]).unwrap()).unwrap();
    let encode = |v: &Value| URL_SAFE_NO_PAD.encode(v.to_string());
    let with = |part: &Value, name: &str, value: Value| {
        let mut changed = part.clone();
        changed[name] = value;
        encode(&changed)
    };
    let mut tokens = vec![
        "x".to_owned(),
        "..".to_owned(),
        "a.b.c".to_owned(),
        "ap_".to_owned(),
        format!("ap_{}", "A".repeat(43)),
        "x".repeat(6000),
        good[..good.len() - 4].to_owned(),
        format!("{good}x"),
        format!("{good}.x"),
        format!("{}.{}.", parts[0], parts[1]),
        format!("{}.{}.{}", parts[0], parts[1], "A".repeat(parts[2].len())),
    ];
    for algorithm in ["none", "None", "HS256", "HS384", "RS256", "ES256", "EdDSA", "hs256"] {
        if header["alg"] != *algorithm {
            tokens.push(format!("{}.{}.{}", with(&header, "alg", json!(algorithm)), parts[1], parts[2]));
            tokens.push(format!("{}.{}.", with(&header, "alg", json!(algorithm)), parts[1]));
        }
    }
    for (name, value) in [
        ("kid", json!("none")),
        ("kid", Value::Null),
        ("jku", json!("http://127.0.0.1:9/keys")),
        ("crit", json!(["x"])),
    ] {
        tokens.push(format!("{}.{}.{}", with(&header, name, value), parts[1], parts[2]));
    }
    for (name, value) in [
        ("exp", json!(4_102_444_800_u64)),
        ("scope", json!("operator")),
        ("tenant", json!("demo")),
        ("aud", json!("else")),
    ] {
        tokens.push(format!("{}.{}.{}", parts[0], with(&claims, name, value), parts[2]));
    }
    let mut shapes = Vec::new();
    for token in &tokens {
        let reply = t.with_token(token).quota("u").await.refused(401, "unauthenticated");
        assert!(!reply.text.contains(token.as_str()) || token.len() < 4, "the reply repeats the token");
        shapes.push(reply.body["detail"].clone());
    }
    shapes.dedup();
    assert!(shapes.len() <= 2, "all look alike from outside: {shapes:?}");
    for request in [
        t.http.get(format!("{}/v1/users/u/quota", t.url)),
        t.http.get(format!("{}/v1/users/u/quota", t.url)).header("authorization", "Bearer"),
        t.http.get(format!("{}/v1/users/u/quota", t.url)).header("authorization", "Basic eDp5"),
        t.http.get(format!("{}/v1/users/u/quota", t.url)).header("authorization", good.as_str()),
        t.http.get(format!("{}/v1/users/u/quota?access_token={good}", t.url)),
    ] {
        t.send(request).await.refused(401, "unauthenticated");
    }
    t.with_token(&good).quota("u").await.ok();
}

#[tokio::test]
async fn a_token_is_over_when_its_time_is_up() {
    let t = Tenant::with(Sheet::new().dr(5)).await;
    let short = t.with_token(&t.token(&["--scope", "quota", "--ttl", "1s"]));
    let started = std::time::Instant::now();
    // Tokens live in real time; a cached one must end with them.
    while short.quota("u").await.status == 200 {
        assert!(started.elapsed().as_secs() < 10, "a token of one second still works");
        tokio::task::yield_now().await;
    }
    short.quota("u").await.refused(401, "unauthenticated");
}

#[tokio::test]
async fn nothing_crosses_tenants() {
    let a = Tenant::with(Sheet::new().dr(5)).await;
    let b = Tenant::with(Sheet::named("secret").dr(7)).await;
    let hold = b.check(json!({"user": "u", "request_id": "r"})).await.hold_id();
    b.put_user("v", json!({"anchor_day": 5})).await.ok();
    let before = b.quota("u").await.ok();
    a.hold(&hold).await.refused(404, "not_found");
    a.release(&hold).await.refused(404, "not_found");
    a.finish(&hold, 1, 1).await.refused(404, "not_found");
    a.hold_by_request("u", "r").await.refused(404, "not_found");
    a.get("/v1/admin/plans/secret").await.refused(404, "unknown_plan");
    a.put_user("u", json!({"suspended": true})).await.ok();
    a.put_clock("2026-04-01T00:00:00.000Z").await.ok();
    a.put_settings(json!({"denial_status": 402})).await.ok();
    let users = a.get("/v1/admin/users").await.ok();
    assert_eq!(users["data"].as_array().map(Vec::len), Some(1));
    assert_eq!(b.quota("u").await.ok(), before);
    b.ask("u", 0, 0).await.ok();
}

#[tokio::test]
async fn an_opaque_key_works_until_it_is_removed() {
    let t = Tenant::with(Sheet::new().dr(5)).await;
    let made =
        t.post("/v1/admin/keys", &json!({"kind": "api", "scopes": ["check"], "name": "backend"})).await.ok();
    let secret = made["secret"].as_str().expect("shown once").to_owned();
    assert!(secret.starts_with("ap_"), "{made}");
    let backend = t.with_token(&secret);
    Client::check(&backend, json!({"user": "u"})).await.ok();
    backend.quota("u").await.refused(403, "forbidden");
    let listed = t.get("/v1/admin/keys").await;
    assert!(!listed.text.contains(&secret), "a key is shown once");
    let kid = made["kid"].as_str().unwrap();
    assert_eq!(t.send(t.request(Method::DELETE, &format!("/v1/admin/keys/{kid}"))).await.status, 204);
    Client::check(&backend, json!({"user": "u"})).await.refused(401, "unauthenticated");
}
