//! Two nodes on the same stores: what one of them decided or wrote, the other one knows.

use std::time::{Duration, Instant};

use serde_json::json;

use super::authorization::callers::{api_key, remove_key};
use crate::harness::compare::assert_has;
use crate::harness::sheets::{PoolSheet, Sheet};
use crate::harness::{Client, Events, Pair, Tenant, row};

/// A tenant of the first node, and a client of the second one. `None`: there are no servers for
/// them here.
pub async fn pair() -> Option<(Tenant, Client)> {
    static NODES: Pair = Pair::new();
    NODES.tenant().await
}

/// Longer than the bound, on a machine that is crowded.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks until it is so.
async fn soon(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let from = Instant::now();
    while !holds().await {
        assert!(from.elapsed() < PATIENCE, "{what} is not known to the other node");
    }
}

#[tokio::test]
async fn a_call_begins_at_one_node_and_ends_at_another() {
    let Some((t, other)) = pair().await else { return };
    t.plan(&Sheet::new().cc(1).dr(5)).await;
    let ask = json!({"user": "u", "input_tokens": 10, "max_output_tokens": 10, "request_id": "r"});
    let hold = t.check(ask.clone()).await.hold_id();
    assert_eq!(other.check(ask).await.hold_id(), hold, "the same request is the same hold");
    let refused = other.check(json!({"user": "u", "input_tokens": 1})).await;
    refused.refused(429, "concurrency_exceeded");
    other.settle(&hold, json!({"input_tokens": 10, "output_tokens": 4})).await.ok();
    t.settle(&hold, json!({"input_tokens": 10, "output_tokens": 4})).await.ok();
    other
        .settle(&hold, json!({"input_tokens": 10, "output_tokens": 5}))
        .await
        .refused(409, "already_finished");
    assert_eq!(t.quota("u").await.ok()["limits"], other.quota("u").await.ok()["limits"]);
    assert_eq!(other.hold_by_request("u", "r").await.hold_id(), hold);
}

#[tokio::test]
async fn a_test_clock_holds_everywhere_at_once() {
    let Some((t, other)) = pair().await else { return };
    t.plan(&Sheet::new().dr(1)).await;
    // Whoever a node meets before it knows of the plan is put on the one before.
    let of_day = async || row(&other.quota("u").await.ok(), "requests_per_day")["limit"].clone();
    soon("the plan", async || of_day().await == 1).await;
    for day in 11..15 {
        t.set_clock(&format!("2026-03-{day}T00:00:00.000Z")).await;
        let made = other.check(json!({"user": "u", "input_tokens": 1})).await.ok();
        assert_eq!(made["hold"]["created_at"], format!("2026-03-{day}T00:00:00.000Z"));
        t.check(json!({"user": "u"})).await.refused(429, "daily_quota_exhausted");
        other.put_clock(&format!("2026-03-{day}T12:00:00.000Z")).await.ok();
        t.check(json!({"user": "u"})).await.refused(429, "daily_quota_exhausted");
        assert_eq!(t.get("/v1/admin/clock").await.ok()["now"], format!("2026-03-{day}T12:00:00.000Z"));
    }
}

#[tokio::test]
async fn changes_of_plans_users_settings_and_pools_reach_the_other_node() {
    let Some((t, other)) = pair().await else { return };
    t.plan(&Sheet::new().dr(1).cc(50)).await;
    soon("the plan", async || row(&other.quota("u").await.ok(), "requests_per_day")["limit"] == 1).await;
    other.check(json!({"user": "u"})).await.ok();
    other.check(json!({"user": "u"})).await.refused(429, "daily_quota_exhausted");
    t.plan(&Sheet::new().dr(3).cc(50)).await;
    soon("the new version", async || other.check(json!({"user": "u"})).await.status == 200).await;
    t.put_user("u", json!({"suspended": true})).await.ok();
    soon("the suspension", async || other.check(json!({"user": "u"})).await.status == 403).await;
    t.put_user("u", json!({"suspended": false})).await.ok();
    let override_ = json!({"overrides": {"requests_per_day": {"limit": 9}}, "reason": "test"});
    t.put_overrides("users/u", override_).await.ok();
    soon("the override", async || row(&other.quota("u").await.ok(), "requests_per_day")["limit"] == 9).await;
    let (kid, secret) = api_key(&t, &["check"]).await;
    let by_key = other.with_token(&secret);
    by_key.check(json!({"user": "v"})).await.ok();
    remove_key(&t, &kid).await;
    soon("the removal of a key", async || by_key.check(json!({"user": "v"})).await.status == 401).await;
}

#[tokio::test]
async fn a_stream_tells_what_happened_at_the_other_node() {
    let Some((t, other)) = pair().await else { return };
    t.plan(&Sheet::new().dr(5).cc(5)).await;
    t.ask("u", 1, 0).await.ok();
    let mut events =
        Events::open(&other.with_token(&t.token(&["--scope", "me", "--user", "u"]))).await.unwrap();
    assert_has(&row(&events.quota().await, "requests_per_day"), &json!({"used": 1}));
    t.ask("u", 1, 0).await.ok();
    events.until(|quota| row(quota, "requests_per_day")["used"] == 2).await;
}

#[tokio::test]
async fn what_admins_read_has_what_was_decided_before_at_any_node() {
    let Some((t, other)) = pair().await else { return };
    t.plan(&Sheet::new().dr(50).cc(50)).await;
    for n in 0..20 {
        let (user, asked, reader) = (format!("u{n}"), [&t.client, &other][n % 2], [&other, &t.client][n % 2]);
        let hold = asked.check(json!({"user": user, "lease_seconds": 5})).await.hold_id();
        reader.get(&format!("/v1/admin/users/{user}")).await.ok();
        let ledger = reader.get(&format!("/v1/admin/users/{user}/ledger")).await;
        assert!(ledger.text.contains(&hold), "{}", ledger.text);
    }
    t.pass(10_000).await;
    assert_eq!(other.get("/v1/admin/holds?state=in_doubt").await.ok()["data"].as_array().unwrap().len(), 20);
}

/// Whoever reads the user first must know the plan as well.
#[tokio::test]
async fn a_plan_and_a_user_on_it_are_known_to_the_other_node_together() {
    let Some((t, other)) = pair().await else { return };
    for n in 0..20 {
        let (plan, user) = (format!("p{n}"), format!("u{n}"));
        t.put_plan(&Sheet::named(&plan).dr(2).json()).await.ok();
        t.put_user(&user, json!({"plan": plan})).await.ok();
        let made = other.check(json!({"user": user})).await.ok();
        assert_has(&made["plan"], &json!({"id": plan}));
        other.check(json!({"user": user})).await.ok();
        other.check(json!({"user": user})).await.refused(429, "daily_quota_exhausted");
    }
}

#[tokio::test]
async fn what_a_vendor_said_to_one_node_holds_calls_back_at_the_other() {
    let Some((t, other)) = pair().await else { return };
    t.plan(&Sheet::new().dr(1000)).await;
    t.pool(&PoolSheet::new("default", &["*"]).output_tokens(1000, 600)).await;
    let row = async |client: &Client| {
        let reply = client.check(json!({"user": "u", "dry_run": true})).await;
        reply.body["limits"]
            .as_array()
            .and_then(|rows| rows.iter().find(|row| row["name"] == "pool_output").cloned())
    };
    soon("the pool", async || row(&other).await.is_some()).await;
    let refused = json!({"status": 429, "headers": {"retry-after": "1"}});
    let paused = async |client: &Client| client.check(json!({"user": "u"})).await.code() == "upstream_paused";
    t.post("/v1/pools/default/feedback", &refused).await.ok();
    soon("a pause", async || paused(&other).await).await;
    t.pass(2000).await;
    // Another refusal, told to the other one: it follows the pause that it did not write.
    other.post("/v1/pools/default/feedback", &refused).await.ok();
    soon("another pause", async || paused(&t).await).await;
    t.pass(1000).await;
    for client in [&*t, &other] {
        assert_has(&row(client).await.unwrap(), &json!({"limit": 800, "refill_per_minute": 480}));
    }
    // Both tell what the vendor has left: it is gone once.
    let left = json!({"status": 200, "headers": {"anthropic-ratelimit-output-tokens-remaining": "300"}});
    let tell = async |client: &Client| client.post("/v1/pools/default/feedback", &left).await.ok();
    tokio::join!(tell(&t), tell(&other), tell(&t), tell(&other));
    assert_eq!(row(&other).await.unwrap()["remaining"], 300);
    let spent = json!({"status": 402});
    other.post("/v1/pools/default/feedback", &spent).await.ok();
    soon("a closure", async || paused(&t).await).await;
    t.post("/v1/admin/pools/default/open", &json!({"reason": "paid"})).await.ok();
    soon("an opening", async || !paused(&other).await).await;
}

#[tokio::test]
async fn how_busy_a_pool_was_is_known_to_a_node_that_saw_none_of_it() {
    let Some((t, other)) = pair().await else { return };
    t.plan(&Sheet::new().dr(1000)).await;
    t.pool(&PoolSheet::new("default", &["*"]).field("ramp", json!({"floor": 1000}))).await;
    t.ask("u", 1000, 0).await.ok();
    let allowed = async |node: &Client| {
        node.get("/v1/admin/pools/default").await.body["condition"]["ramp"].as_u64().unwrap_or(0)
    };
    t.pass(16 * 60_000).await;
    assert_eq!(allowed(&t).await, 1470);
    // It is put on record every five seconds.
    let from = Instant::now();
    while allowed(&other).await != 1470 {
        assert!(from.elapsed() < 4 * PATIENCE, "the other node does not know how busy it was");
    }
    let call = |input: i64| json!({"user": "v", "input_tokens": input});
    other.check(call(1400)).await.ok();
    t.check(call(71)).await.refused(429, "upstream_capacity_exceeded");
    other.check(call(70)).await.ok();
}
