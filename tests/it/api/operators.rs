//! What operators do to tenants: change, suspend, delete.

use std::sync::Arc;
use std::time::{Duration, Instant};

use apportion::domain::charge::TenantRef;
use apportion::ledger::{Group, Ledger, UserQuery};
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::events::Events;
use crate::harness::sheets::Sheet;
use crate::harness::{Client, Reply, Tenant};

fn path(t: &Tenant) -> String {
    format!("/v1/operator/tenants/{}", t.id)
}

async fn delete(client: &Client, path: &str) -> Reply {
    client.send(client.request(Method::DELETE, path)).await
}

#[tokio::test]
async fn a_tenant_is_shown_changed_and_listed() {
    let t = Tenant::with(Sheet::new().dr(1)).await;
    let (operator, path) = (t.operator(), path(&t));
    let shown = operator.get(&path).await.ok();
    assert_eq!(shown, json!({"id": t.id, "zone": "UTC", "test": true, "suspended": false}));
    let changed = operator.put(&path, &json!({"zone": "Asia/Tokyo"})).await.ok();
    assert_eq!(changed, json!({"id": t.id, "zone": "Asia/Tokyo", "test": true, "suspended": false}));
    assert_eq!(t.get("/v1/admin/settings").await.ok()["zone"], "Asia/Tokyo");
    // A reply can be sent back, with a reason.
    let mut again = changed.clone();
    again["reason"] = json!("as it was");
    let version = t.get("/v1/admin/settings").await.ok()["version"].clone();
    assert_eq!(operator.put(&path, &again).await.ok(), changed);
    assert_eq!(t.get("/v1/admin/settings").await.ok()["version"], version, "nothing new was written");
    let rows = operator.get("/v1/operator/tenants?limit=500").await.ok()["data"].clone();
    assert!(rows.as_array().unwrap().contains(&changed));
}

#[tokio::test]
async fn what_cannot_be_is_refused_field_by_field_and_changes_nothing() {
    let t = Tenant::with(Sheet::new().dr(1)).await;
    let (operator, path) = (t.operator(), path(&t));
    let before = operator.get(&path).await.ok();
    for (body, fields) in [
        (json!({"zone": "+09:00", "suspended": "yes"}), vec!["/zone", "/suspended", "/reason"]),
        (json!({"zone": "Asia/Tokyo", "suspended": true}), vec!["/reason"]),
        (json!({"zone": "Asia/Tokyo", "id": "else", "test": false}), vec!["/id", "/test"]),
        (json!({"zone": "Asia/Tokyo", "colour": "red"}), vec!["/colour"]),
        (json!([]), vec![""]),
    ] {
        let refused = operator.put(&path, &body).await.refused(400, "invalid_request");
        let mut pointers: Vec<&str> = refused.body["errors"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| e["pointer"].as_str().unwrap())
            .collect();
        pointers.sort_unstable();
        let mut fields = fields;
        fields.sort_unstable();
        assert_eq!(pointers, fields, "{body}: {}", refused.text);
    }
    assert_eq!(operator.get(&path).await.ok(), before);
    for nobody in ["no-such-tenant", "Not%20an%20id", "%FF"] {
        let path = format!("/v1/operator/tenants/{nobody}");
        let reply = operator.put(&path, &json!({"suspended": true, "reason": "x"})).await;
        assert!([400, 404].contains(&reply.status), "{nobody}: {}", reply.text);
        let reply = delete(&operator, &path).await;
        assert!([400, 404].contains(&reply.status), "{nobody}: {}", reply.text);
    }
}

#[tokio::test]
async fn a_suspended_tenant_is_refused_at_once_and_goes_on_where_it_was() {
    let t = Tenant::with(Sheet::new().dr(5)).await;
    let (operator, path) = (t.operator(), path(&t));
    let user = t.with_token(&t.token(&["--user", "u"]));
    let hold = t.ask_for("u", 10, 10, 60).await.hold_id();
    let before = t.quota("u").await.ok();
    let mut stream = Events::open(&user).await.expect("a stream");
    stream.quota().await;
    operator.put(&path, &json!({"suspended": true, "reason": "unpaid"})).await.ok();
    assert_eq!(stream.end().await, 0, "it ends");
    assert_eq!(operator.get(&path).await.ok()["suspended"], true);
    t.ask("u", 1, 1).await.refused(403, "tenant_suspended");
    t.finish(&hold, 1, 1).await.refused(403, "tenant_suspended");
    t.put_clock("2026-03-10T13:00:00.000Z").await.refused(403, "tenant_suspended");
    t.get("/v1/nowhere").await.refused(403, "tenant_suspended");
    user.get("/v1/me/quota").await.refused(403, "tenant_suspended");
    for probe in ["/livez", "/readyz", "/metrics", "/openapi.json"] {
        assert_eq!(t.get(probe).await.status, 200, "{probe}");
    }
    operator.put(&path, &json!({"suspended": false, "reason": "paid"})).await.ok();
    assert_eq!(t.quota("u").await.ok(), before);
    t.finish(&hold, 1, 1).await.ok();
    user.get("/v1/me/quota").await.ok();
}

/// The database as another process sees it, and the numbers of tenants in it.
async fn beside(t: &Tenant) -> (Arc<dyn Ledger>, TenantRef) {
    let ledger = t.server.ledger().await;
    let rows = ledger.tenants().await.unwrap();
    let number = rows.iter().find(|row| row.id.as_str() == t.id).expect("on record").number;
    (ledger, number)
}

/// Users, days of usage, records.
async fn left(ledger: &dyn Ledger, tenant: TenantRef) -> usize {
    let users = ledger.users(tenant, UserQuery { limit: 1000, ..UserQuery::default() }).await.unwrap().len();
    let usage = ledger.usage(tenant, Group::User, i32::MIN..i32::MAX).await.unwrap().len();
    users + usage + ledger.records(Some(tenant)).await.unwrap().len()
}

fn private_keys(t: &Tenant) -> Vec<String> {
    let entries = std::fs::read_dir(t.server.data.join("keys")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test]
async fn a_deleted_tenant_leaves_nothing_and_its_id_is_free() {
    let t = Tenant::with(Sheet::named("theirs").dr(5)).await;
    let (operator, path) = (t.operator(), path(&t));
    let user = t.with_token(&t.token(&["--user", "u"]));
    let open = t.ask("u", 10, 10).await.hold_id();
    t.spend("v", 10, 10).await;
    t.put_user("w", json!({"plan": "theirs"})).await.ok();
    let listed = t.get("/v1/admin/keys").await.ok()["data"].clone();
    let kids: Vec<String> =
        listed.as_array().unwrap().iter().map(|key| key["kid"].as_str().unwrap().to_owned()).collect();
    let has_private_key = || private_keys(&t).iter().any(|file| kids.iter().any(|kid| file.contains(kid)));
    assert!(has_private_key(), "its tokens were minted here");
    let (ledger, number) = beside(&t).await;
    assert!(left(&*ledger, number).await > 10);
    let mut stream = Events::open(&user).await.expect("a stream");
    stream.quota().await;

    let gone = delete(&operator, &path).await;
    assert_eq!((gone.status, gone.text.as_str()), (204, ""));
    assert_eq!(stream.end().await, 0, "it ends");
    for refused in [t.ask("u", 1, 1).await, t.finish(&open, 1, 1).await, user.get("/v1/me/quota").await] {
        refused.refused(401, "unauthenticated");
    }
    operator.get(&path).await.refused(404, "not_found");
    operator.put(&path, &json!({"zone": "UTC"})).await.refused(404, "not_found");
    delete(&operator, &path).await.refused(404, "not_found");
    let rows = operator.get("/v1/operator/tenants").await.ok()["data"].clone();
    assert!(rows.as_array().unwrap().iter().all(|row| row["id"] != t.id.as_str()));

    // Its id is free, while its rows are still on their way out.
    let made = operator.post("/v1/operator/tenants", &json!({"id": t.id, "test": false})).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let fresh = t.with_token(&t.token(&["--scope", "check quota admin:read"]));
    t.ask("u", 1, 1).await.refused(401, "unauthenticated");
    fresh.hold(&open).await.refused(404, "not_found");
    fresh.get("/v1/admin/plans/theirs").await.refused(404, "unknown_plan");
    assert_eq!(fresh.get("/v1/admin/users").await.ok()["data"], json!([]));
    assert_eq!(fresh.get("/v1/admin/plans/free").await.ok()["version"], 1);

    let begun = Instant::now();
    while left(&*ledger, number).await > 0 || has_private_key() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} rows stay", left(&*ledger, number).await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    fresh.get("/v1/admin/settings").await.ok();
    ledger.close().await;
}

#[tokio::test]
async fn nothing_that_was_under_way_comes_back_after_a_deletion() {
    let t = Tenant::with(Sheet::new().dr(1_000_000)).await;
    let (operator, path) = (t.operator(), path(&t));
    let (ledger, number) = beside(&t).await;
    let busy = (0..8).map(|caller| {
        let client = t.client.clone();
        tokio::spawn(async move {
            let mut admitted = 0;
            loop {
                let body = json!({"user": format!("u{}", caller % 3), "input_tokens": 1});
                let reply = client.check(body).await;
                match reply.status {
                    200 => admitted += 1,
                    // Or its account was forgotten under it: that call never happened.
                    503 => {}
                    401 => return admitted,
                    _ => panic!("{} {}", reply.status, reply.text),
                }
            }
        })
    });
    let busy: Vec<_> = busy.collect();
    while left(&*ledger, number).await < 10 {
        tokio::task::yield_now().await;
    }
    let before: Value = operator.get(&path).await.ok();
    assert_eq!(before["suspended"], false);
    assert_eq!(delete(&operator, &path).await.status, 204);
    let mut admitted = 0;
    for caller in busy {
        admitted += caller.await.unwrap();
    }
    assert!(admitted > 0, "nobody was under way");
    let begun = Instant::now();
    while left(&*ledger, number).await > 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} rows stay", left(&*ledger, number).await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!ledger.ever_taken(number).await.unwrap());
    ledger.close().await;
}
