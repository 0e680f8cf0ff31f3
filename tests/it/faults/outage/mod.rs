//! The store is away, and a tenant lets each node admit a few calls of each user meanwhile.

mod apart;
mod half_done;
mod restart;

use std::sync::OnceLock;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;
use crate::harness::{Away, Client, Reply, Server, Tenant};

const DAY: &str = "2026-03-10T12:00:00.000Z";

async fn tenant(sheet: Sheet) -> Tenant {
    static SERVER: OnceLock<Server> = OnceLock::new();
    let t = Tenant::on(SERVER.get_or_init(|| Server::start(&[])), "UTC", DAY).await;
    t.plan(&sheet).await;
    t
}

/// One test at a time: the store is everybody's.
async fn alone() -> tokio::sync::MutexGuard<'static, ()> {
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    ALONE.lock().await
}

async fn ready(client: &Client) -> u16 {
    client.http.get(format!("{}/readyz", client.url)).send().await.expect("it answers").status().as_u16()
}

/// Until the store was seen again: then all is booked.
async fn until_over(client: &Client) {
    while metric(client, "apportion_degraded").await != 0.0 {}
}

async fn metric(client: &Client, name: &str) -> f64 {
    let text = client.http.get(format!("{}/metrics", client.url)).send().await.unwrap().text().await.unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().expect("a number")
}

/// The ids of what was admitted; everything else was refused as it must be.
fn admitted(replies: Vec<Reply>) -> Vec<String> {
    let (allowed, refused): (Vec<_>, Vec<_>) = replies.into_iter().partition(|reply| reply.status == 200);
    for reply in refused {
        let reply = reply.refused(503, "store_unavailable");
        assert!(reply.header("retry-after").is_some(), "{:?}", reply.headers);
    }
    for reply in &allowed {
        assert_eq!(reply.body["degraded"], true, "{}", reply.text);
        assert_eq!(reply.body["hold"]["state"], "held", "{}", reply.text);
    }
    allowed.iter().map(Reply::hold_id).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_few_calls_of_each_user_are_admitted_and_booked_when_the_store_is_back() {
    let _alone = alone().await;
    let t = tenant(Sheet::new().dr(2).mt(10_000).cc(50)).await;
    t.put_settings(json!({"on_outage": "bounded"})).await.ok();
    let away = Away::take(&t.server.data).await;
    let replies = join_all((0..100).map(|n| t.ask(if n % 2 == 0 { "u" } else { "v" }, 100, 50))).await;
    let mut holds = admitted(replies);
    assert!((1..=6).contains(&holds.len()), "{} of 100", holds.len());
    // The minute does not pass on this tenant's clock.
    for n in 0..8 {
        holds.extend(admitted(vec![t.ask(if n % 2 == 0 { "u" } else { "v" }, 100, 50).await]));
    }
    assert_eq!(holds.len(), 6, "three of each user");
    assert_eq!(ready(&t).await, 503);
    assert_eq!(metric(&t, "apportion_degraded").await, 1.0);
    assert_eq!(metric(&t, "apportion_degraded_admissions_total").await, 6.0);
    assert!(metric(&t, "apportion_store_errors_total{op=\"check\"}").await >= 94.0);
    assert_eq!(t.hold(&holds[0]).await.ok()["hold"]["state"], "held");

    away.give_back().await;
    until_over(&t).await;
    for user in ["u", "v"] {
        // Charged although it does not fit any more.
        assert_has(
            &t.left(user, "requests_per_day").await,
            &json!({"used": 3, "remaining": 0, "over_by": 1}),
        );
        assert_has(&t.left(user, "tokens_per_month").await, &json!({"used": 0, "held": 450}));
        assert_has(&t.left(user, "concurrency").await, &json!({"in_use": 3}));
        t.ask(user, 1, 1).await.refused(429, "daily_quota_exhausted");
    }
    for hold in &holds {
        let ended = t.finish(hold, 10, 5).await;
        assert_eq!(ended.header("idempotency-replayed"), None);
        assert_eq!(ended.ok()["hold"]["state"], "settled");
        assert_eq!(t.finish(hold, 10, 5).await.header("idempotency-replayed"), Some("true"));
    }
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 45, "held": 0}));
    assert_has(&t.left("u", "concurrency").await, &json!({"in_use": 0}));
    assert_eq!((settled(&t, "u").await, settled(&t, "v").await), ((3, 45), (3, 45)));
    assert_eq!(metric(&t, "apportion_degraded").await, 0.0);
    assert!(!t.server.data.join("outage/journal").exists(), "it is booked");
    let told = loop {
        let audit = t.get("/v1/admin/audit?target=").await.ok();
        let rows = audit["data"].as_array().unwrap().clone();
        if let Some(row) = rows.into_iter().find(|row| row["action"] == "node.degraded") {
            break row;
        }
    };
    assert_has(&told, &json!({"by": "outage", "at": DAY}));
    assert_has(&told["after"], &json!({"from": DAY, "until": DAY, "admitted": 6, "refused": 102}));
}

/// What the ledger has of a user's holds that are settled: how many, and their tokens.
async fn settled(t: &Tenant, user: &str) -> (usize, i64) {
    let rows = t.get(&format!("/v1/admin/users/{user}/ledger?limit=100")).await.ok();
    let rows = rows["data"].as_array().unwrap();
    let settled: Vec<_> = rows.iter().filter(|row| row["kind"] == "settled").collect();
    let tokens = |row: &&Value| row["amounts"]["total_tokens"].as_i64().unwrap();
    (settled.len(), settled.iter().map(tokens).sum())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_at_hand_of_user_and_plan_is_still_judged() {
    let _alone = alone().await;
    let sheet = Sheet::new().dr(9).field("per_call", json!({"max_input_tokens": 1000}));
    let t = tenant(sheet.field("requires_verified", json!(true))).await;
    t.put_settings(json!({"on_outage": "bounded", "outage_share": 1})).await.ok();
    for (user, verified, suspended) in [("good", true, false), ("bad", true, true), ("new", false, false)] {
        t.put_user(user, json!({"plan": "p", "verified": verified, "suspended": suspended})).await.ok();
    }
    t.ask("good", 1, 1).await.ok();
    let away = Away::take(&t.server.data).await;
    t.ask("bad", 1, 1).await.refused(403, "user_suspended");
    t.ask("new", 1, 1).await.refused(403, "user_unverified");
    t.ask("good", 1001, 1).await.refused(413, "input_too_large");
    let dry = t.check(json!({"user": "good", "dry_run": true})).await.ok();
    assert_eq!((&dry["degraded"], &dry["hold"]), (&Value::Null, &Value::Null), "a dry run takes nothing");
    assert_eq!(admitted(vec![t.ask("good", 1, 1).await, t.ask("good", 1, 1).await]).len(), 1);
    away.give_back().await;
    until_over(&t).await;
    assert_has(&t.left("good", "requests_per_day").await, &json!({"used": 2}));
    // The next minute of the tenant's clock has a share of its own.
    t.pass(59_999).await;
    let away = Away::take(&t.server.data).await;
    assert_eq!(admitted(vec![t.ask("good", 1, 1).await]).len(), 0);
    away.give_back().await;
    until_over(&t).await;
    t.pass(1).await;
    let away = Away::take(&t.server.data).await;
    assert_eq!(admitted(vec![t.ask("good", 1, 1).await]).len(), 1);
    away.give_back().await;
    until_over(&t).await;
    assert_has(&t.left("good", "requests_per_day").await, &json!({"used": 3}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_admitted_alone_is_ended_and_repeated_alone() {
    let _alone = alone().await;
    let t = tenant(Sheet::new().dr(9).mt(10_000).cc(9)).await;
    t.put_settings(json!({"on_outage": "bounded", "outage_share": 5})).await.ok();
    let before = t.check(json!({"user": "u", "input_tokens": 7, "request_id": "before"})).await.hold_id();
    let away = Away::take(&t.server.data).await;
    let body = json!({"user": "u", "input_tokens": 100, "max_output_tokens": 20, "request_id": "a"});
    let settled = t.check(body.clone()).await.hold_id();
    let again = t.check(body.clone()).await;
    assert_eq!((again.hold_id(), again.header("idempotency-replayed")), (settled.clone(), Some("true")));
    assert_eq!(again.body["degraded"], true);
    let other = json!({"user": "u", "input_tokens": 101, "request_id": "a"});
    t.check(other).await.refused(422, "request_id_reused");
    let holds = admitted(join_all((0..3).map(|_| t.ask("u", 100, 20))).await);
    let [released, doubtful, open] = &holds[..] else { panic!("{holds:?}") };

    let done = t.finish(&settled, 40, 10).await.ok();
    assert_has(&done["hold"], &json!({"state": "settled", "counted": {"total_tokens": 50}}));
    assert_eq!(t.finish(&settled, 40, 10).await.header("idempotency-replayed"), Some("true"));
    t.finish(&settled, 41, 10).await.refused(409, "already_finished");
    t.check(body.clone()).await.refused(409, "already_finished");
    assert_eq!(t.release(released).await.ok()["hold"]["state"], "released");
    t.settle(doubtful, json!({"usage": "unknown"})).await.ok();
    t.extend(open, json!({"lease_seconds": 60})).await.refused(503, "store_unavailable");
    // Of others nobody knows how they stand.
    t.finish(&before, 7, 0).await.refused(503, "store_unavailable");

    away.give_back().await;
    until_over(&t).await;
    for (hold, state) in
        [(&settled, "settled"), (released, "released"), (doubtful, "in_doubt"), (open, "held")]
    {
        assert_eq!(t.hold(hold).await.ok()["hold"]["state"], state);
    }
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 50, "held": 7 + 240}));
    assert_has(&t.left("u", "requests_per_day").await, &json!({"used": 4}));
    assert_has(&t.left("u", "concurrency").await, &json!({"in_use": 2}));
    assert_eq!(t.finish(&settled, 40, 10).await.header("idempotency-replayed"), Some("true"));
    t.finish(&settled, 41, 10).await.refused(409, "already_finished");
    t.check(body).await.refused(409, "already_finished");
    assert_eq!(t.hold_by_request("u", "a").await.ok()["hold"]["id"], settled.as_str());
    t.extend(open, json!({"lease_seconds": 60})).await.ok();
    t.finish(doubtful, 1, 1).await.ok();
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 52, "held": 7 + 120}));
    t.finish(&before, 7, 0).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nothing_can_be_noted_nothing_is_admitted() {
    let _alone = alone().await;
    let t = tenant(Sheet::new().dr(9)).await;
    t.put_settings(json!({"on_outage": "bounded"})).await.ok();
    let place = t.server.data.join("outage");
    // It may be there, empty, from before.
    let _ = std::fs::remove_dir(&place);
    std::fs::write(&place, "in the way").unwrap();
    let away = Away::take(&t.server.data).await;
    t.ask("u", 1, 1).await.refused(503, "store_unavailable");
    std::fs::remove_file(&place).unwrap();
    assert_eq!(admitted(join_all((0..9).map(|_| t.ask("u", 1, 1))).await).len(), 3);
    away.give_back().await;
    until_over(&t).await;
    assert_has(&t.left("u", "requests_per_day").await, &json!({"used": 3}));
}
