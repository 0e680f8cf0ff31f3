//! A vendor's limit on whatever the last seconds were.

use serde_json::{Value, json};

use crate::harness::compare::assert_has;
use crate::harness::sheets::{PoolSheet, Sheet};
use crate::harness::{Reply, Tenant};

/// A pool with a rolling limit of 100 in 10 seconds.
async fn hundred(meter: &str, field: (&str, Value)) -> Tenant {
    let t = Tenant::with(Sheet::new().dr(1_000_000)).await;
    let limit =
        json!({"name": "last_10_s", "kind": "rolling", "meter": meter, "limit": 100, "window_seconds": 10});
    t.pool(&PoolSheet::new("default", &["*"]).limit(limit).field(field.0, field.1)).await;
    t
}

#[track_caller]
fn waits(refused: Reply, ms: i64) {
    let refused = refused.refused(429, "upstream_capacity_exceeded");
    assert_eq!(refused.body["retry_after_ms"], ms, "{}", refused.text);
}

#[tokio::test]
async fn no_span_of_the_window_holds_more_than_the_limit() {
    let t = hundred("output_tokens", ("margin", json!(1))).await;
    let row = t.ask("u", 0, 60).await.row("last_10_s");
    let shown = json!({"kind": "rolling", "scope": "pool", "limit": 100, "used": 60, "remaining": 40, "window_seconds": 10});
    assert_has(&row, &shown);
    t.pass(4_000).await;
    t.ask("v", 0, 40).await.ok();
    waits(t.ask("w", 0, 1).await, 6_000);
    t.pass(5_999).await;
    waits(t.ask("w", 0, 60).await, 1);
    t.pass(1).await;
    t.ask("w", 0, 60).await.ok();
    let refused = t.ask("w", 0, 1).await.refused(429, "upstream_capacity_exceeded");
    assert_has(&refused.body["violations"][0], &json!({"kind": "rolling", "remaining": 0, "requested": 1}));
    t.ask("w", 0, 101).await.refused(413, "exceeds_capacity");
}

#[tokio::test]
async fn what_was_counted_stays_until_it_leaves_and_only_a_release_gives_back() {
    let t = hundred("output_tokens", ("margin", json!(1))).await;
    let settled = t.ask("u", 0, 60).await.hold_id();
    let released = t.ask("u", 0, 40).await.hold_id();
    t.finish(&settled, 0, 10).await.ok();
    t.ask("v", 0, 1).await.refused(429, "upstream_capacity_exceeded");
    t.release(&released).await.ok();
    assert_eq!(t.ask("v", 0, 30).await.row("last_10_s")["remaining"], 10);
    t.pass(5_000).await;
    let more = t.ask("v", 0, 10).await.hold_id();
    t.finish(&more, 0, 25).await.ok();
    t.pass(5_000).await;
    // The 10 of the reservation and the 15 beyond it count from then on.
    assert_eq!(t.ask("v", 0, 0).await.row("last_10_s")["used"], 25);
}

#[tokio::test]
async fn a_vendor_who_counts_what_was_said_counts_it_when_it_is_said() {
    let t = hundred("total_tokens", ("counts", json!("actual"))).await;
    let hold = t.ask("u", 20, 500).await;
    assert_eq!(hold.row("last_10_s")["used"], 20);
    t.pass(6_000).await;
    t.finish(&hold.hold_id(), 20, 50).await.ok();
    assert_eq!(t.ask("u", 0, 0).await.row("last_10_s")["used"], 70);
    t.pass(4_000).await;
    assert_eq!(t.ask("u", 0, 0).await.row("last_10_s")["used"], 50);
}

#[tokio::test]
async fn bulk_leaves_its_share_and_takes_less_rather_than_nothing() {
    let t = hundred("output_tokens", ("interactive_share", json!(0.3))).await;
    let bulk = json!({"user": "u", "priority": "bulk", "max_output_tokens": 90, "min_output_tokens": 10});
    let first = t.check(bulk.clone()).await.ok();
    assert_eq!(first["granted"]["max_output_tokens"], 70);
    waits(t.check(bulk).await, 10_000);
    t.ask("v", 0, 30).await.ok();
}

#[tokio::test]
async fn a_limit_that_is_lowered_holds_at_once() {
    let t = hundred("requests", ("margin", json!(1))).await;
    for _ in 0..10 {
        t.ask("u", 0, 0).await.ok();
        t.pass(100).await;
    }
    let limit = json!({"name": "last_10_s", "kind": "rolling", "meter": "requests", "limit": 5, "window_seconds": 10});
    t.pool(&PoolSheet::new("default", &["*"]).limit(limit)).await;
    // Once the sixth of the ten has left, there is room for one.
    waits(t.ask("u", 0, 0).await, 9_500);
}

#[tokio::test]
async fn calls_on_their_way_are_counted_for_as_much_longer() {
    let t = hundred("requests", ("margin", json!(1))).await;
    let guarded = |limit, guard| {
        let limit = json!({"name": "last_10_s", "kind": "rolling", "meter": "requests", "limit": limit,
                           "window_seconds": 10, "guard_ms": guard});
        PoolSheet::new("default", &["*"]).limit(limit)
    };
    t.pool(&guarded(2, 1_500)).await;
    t.ask("u", 0, 0).await.ok();
    t.pass(1_000).await;
    assert_has(&t.ask("u", 0, 0).await.row("last_10_s"), &json!({"used": 2, "window_seconds": 10}));
    waits(t.ask("u", 0, 0).await, 10_500);
    t.pass(10_500).await;
    t.ask("u", 0, 0).await.ok();
    // Another guard is no other limit: what was taken counts on.
    t.pool(&guarded(2, 0)).await;
    assert_eq!(t.ask("u", 0, 0).await.row("last_10_s")["used"], 2);
    t.pool(&guarded(2, 5_000)).await;
    waits(t.ask("u", 0, 0).await, 15_000);
}

#[tokio::test]
async fn callers_refused_together_are_told_successive_moments() {
    let t = hundred("output_tokens", ("margin", json!(1))).await;
    for _ in 0..4 {
        t.ask("u", 0, 25).await.ok();
        t.pass(2_000).await;
    }
    for (user, wait) in [("a", 2_000), ("b", 4_000), ("c", 6_000), ("d", 8_000), ("e", 12_000), ("a", 2_000)]
    {
        waits(t.ask(user, 0, 25).await, wait);
    }
}

#[tokio::test]
async fn sheets_have_no_rolling_limits() {
    let limit =
        json!({"name": "x", "kind": "rolling", "meter": "requests", "limit": 5, "window_seconds": 60});
    let t = Tenant::with(Sheet::new()).await;
    let refused = t.put_plan(&Sheet::named("p").limit(limit).json()).await.refused(400, "invalid_request");
    assert_eq!(refused.body["errors"][0]["pointer"], "/limits/0/kind");
}
