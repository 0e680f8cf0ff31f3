//! `If-Match` on every PUT: only the version meant is replaced.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::Tenant;
use crate::harness::sheets::{PoolSheet, Sheet};

/// Every PUT of a record: where it is put, where its version is read, and two bodies.
fn records() -> Vec<(&'static str, &'static str, [Value; 2])> {
    let plan = |limit: u64| Sheet::named("p").mt(limit).but("scope", json!("org")).dr(limit).json();
    let pool = |places: u64| PoolSheet::new("extra", &["m*"]).places(places).json();
    let models = |price: u64| json!({"models": [{"id": "m", "input": price, "output": price}]});
    let numbers = |name: &str, limit: u64| json!({"overrides": {name: {"limit": limit}}});
    vec![
        ("plans/p", "plans/p", [plan(5), plan(6)]),
        ("pools/extra", "pools/extra", [pool(5), pool(6)]),
        ("models", "models", [models(5), models(6)]),
        ("settings", "settings", [json!({"denial_status": 402}), json!({"denial_status": 403})]),
        ("users/u", "users/u", [json!({"verified": true}), json!({"verified": false})]),
        ("users/u/overrides", "users/u", [numbers("requests_per_day", 5), numbers("requests_per_day", 6)]),
        ("orgs/o", "orgs/o", [json!({"zone": "UTC"}), json!({"zone": "Asia/Tokyo"})]),
        ("orgs/o/overrides", "orgs/o", [numbers("tokens_per_month", 5), numbers("tokens_per_month", 6)]),
    ]
}

#[tokio::test]
async fn every_put_replaces_the_version_meant_and_no_other() {
    let t = Tenant::with(Sheet::named("p").mt(1).but("scope", json!("org")).dr(1)).await;
    for (path, shown, [one, other]) in records() {
        let (path, shown) = (format!("/v1/admin/{path}"), format!("/v1/admin/{shown}"));
        let mut body = one.clone();
        body["reason"] = json!("test");
        let put = t.put(&path, &body).await;
        let tag = put.header("etag").unwrap_or_else(|| panic!("{path}: {}", put.text)).to_owned();
        assert_eq!(tag, format!("\"{}\"", put.body["version"]), "{path}");
        let before = t.get(&shown).await;
        assert_eq!(before.header("etag"), Some(tag.as_str()), "{path}");
        for wrong in ["\"99\"", "\"0\"", "\"never given\"", "W/\"x\"", "-1", ""] {
            t.put_if(&path, wrong, other.clone()).await.refused(412, "changed_meanwhile");
        }
        assert_eq!(t.get(&shown).await.body, before.body, "{path}");
        let next = t.put_if(&path, &tag, other.clone()).await;
        let replaced = next.header("etag").unwrap_or_else(|| panic!("{path}: {}", next.text)).to_owned();
        assert_ne!(replaced, tag, "{path}");
        // What was read is not what is there any more.
        t.put_if(&path, &tag, one.clone()).await.refused(412, "changed_meanwhile");
        assert_eq!(t.get(&shown).await.header("etag"), Some(replaced.as_str()), "{path}");
        // Whatever is there, and a version without its quotes.
        t.put_if(&path, "*", one.clone()).await.ok();
        let now = t.get(&shown).await.body["version"].to_string();
        t.put_if(&path, &now, other.clone()).await.ok();
        // A bad body is a bad body, whichever version it is for.
        let mut bad = one.clone();
        bad["colour"] = json!("red");
        t.put_if(&path, "\"99\"", bad).await.refused(400, "invalid_request");
    }
}

#[tokio::test]
async fn of_many_who_replace_the_same_version_one_does() {
    let t = Tenant::with(Sheet::named("p").mt(1).but("scope", json!("org")).dr(1)).await;
    for (path, _, [one, other]) in records() {
        let path = format!("/v1/admin/{path}");
        let mut body = one;
        body["reason"] = json!("test");
        let put = t.put(&path, &body).await;
        let tag = put.header("etag").unwrap_or_else(|| panic!("{path}: {}", put.text)).to_owned();
        let many = join_all((0..8).map(|_| t.put_if(&path, &tag, other.clone()))).await;
        let done: Vec<u16> = many.iter().map(|reply| reply.status).filter(|status| *status == 200).collect();
        assert_eq!(done.len(), 1, "{path}: {:?}", many.iter().map(|reply| reply.status).collect::<Vec<_>>());
        assert!(
            many.iter().all(|reply| reply.status == 200 || reply.code() == "changed_meanwhile"),
            "{path}"
        );
    }
}

#[tokio::test]
async fn a_record_that_is_not_there_has_no_version_to_be_replaced() {
    let t = Tenant::with(Sheet::named("p").mt(1).but("scope", json!("org")).dr(1)).await;
    for (path, body) in [
        ("plans/new", Sheet::named("new").json()),
        ("pools/new", PoolSheet::new("new", &["x"]).json()),
        ("users/new", json!({"verified": true})),
        ("users/new/overrides", json!({"overrides": {}})),
        ("orgs/new", json!({"zone": "UTC"})),
        ("orgs/new/overrides", json!({"overrides": {}})),
    ] {
        let path = format!("/v1/admin/{path}");
        t.put_if(&path, "\"1\"", body).await.refused(412, "changed_meanwhile");
        let shown = path.trim_end_matches("/overrides").to_owned();
        assert_eq!(t.send(t.request(Method::GET, &shown)).await.status, 404, "{path}");
    }
}
