//! The store does not answer: every door is closed, and what was refused left nothing behind.

use std::sync::OnceLock;

use futures_util::future::join_all;
use serde_json::json;
use sqlx::ConnectOptions as _;
use sqlx::sqlite::SqliteConnectOptions;

use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;
use crate::harness::{Client, Server, Tenant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_store_takes_no_writes_nothing_is_admitted_and_nothing_is_counted() {
    static SERVER: OnceLock<Server> = OnceLock::new();
    let server = SERVER.get_or_init(|| Server::start(&[]));
    let t = Tenant::on(server, "UTC", "2026-03-10T12:00:00.000Z").await;
    t.plan(&Sheet::new().dr(3).mt(10_000)).await;
    let open = t.check(json!({"user": "u", "input_tokens": 100, "request_id": "before"})).await.hold_id();

    let options = SqliteConnectOptions::new().filename(server.data.join("apportion.db"));
    let mut other = options.connect().await.expect("the database opens beside the service");
    sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.expect("nobody writes at this moment");
    let replies = join_all((0..100).map(|n| t.ask(if n % 2 == 0 { "u" } else { "v" }, 1, 1))).await;
    let settled = t.finish(&open, 100, 0).await;
    assert_eq!(t.http.get(format!("{}/livez", server.url)).send().await.unwrap().status(), 200);
    sqlx::query("ROLLBACK").execute(&mut other).await.expect("the lock goes");

    for reply in replies {
        let reply = reply.refused(503, "store_unavailable");
        assert!(reply.header("retry-after").is_some(), "{:?}", reply.headers);
        assert_eq!(reply.body["retryable"], true);
    }
    settled.refused(503, "store_unavailable");
    // Once it answers again: as if nothing had been asked, and the settle is taken.
    while t.finish(&open, 100, 0).await.status == 503 {}
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 100, "held": 0}));
    assert_has(&t.left("u", "requests_per_day").await, &json!({"used": 1}));
    assert_has(&t.left("v", "requests_per_day").await, &json!({"used": 0}));
    for _ in 0..2 {
        Client::check(&t, json!({"user": "u"})).await.ok();
    }
    t.ask("u", 0, 0).await.refused(429, "daily_quota_exhausted");
}
