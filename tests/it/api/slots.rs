//! Places for calls in flight: each ages on its own clock, none is freed twice.

use serde_json::json;

use crate::harness::Tenant;
use crate::harness::sheets::Sheet;

#[tokio::test]
async fn callers_that_vanish_free_their_places_one_by_one() {
    let t = Tenant::with(Sheet::new().cc(2)).await;
    let mut admitted = Vec::new();
    for second in (0..300).step_by(5) {
        let reply = t.ask_for("u", 10, 10, 29).await;
        if reply.status == 200 {
            admitted.push(second);
        } else {
            reply.refused(429, "concurrency_exceeded");
        }
        t.pass(5000).await;
    }
    let expected: Vec<i32> = (0..10).flat_map(|n| [30 * n, 30 * n + 5]).collect();
    assert_eq!(admitted, expected);
}

#[tokio::test]
async fn a_call_refused_for_its_place_is_not_charged_to_the_rate() {
    let t = Tenant::with(Sheet::new().rb(2, 2).cc(1)).await;
    let first = t.ask("u", 0, 0).await.hold_id();
    t.pass(1000).await;
    t.ask("u", 0, 0).await.refused(429, "concurrency_exceeded");
    assert_eq!(t.remaining("u", "requests_per_minute").await, 1);
    t.pass(1000).await;
    t.finish(&first, 0, 0).await.ok();
    t.pass(1000).await;
    t.ask("u", 0, 0).await.ok();
}

#[tokio::test]
async fn a_lease_covers_its_first_instant_and_not_its_last() {
    let t = Tenant::with(Sheet::new().cc(1)).await;
    let reply = t.ask_for("u", 0, 0, 60).await;
    assert_eq!(reply.body["hold"]["created_at"], "2026-03-10T12:00:00.000Z");
    assert_eq!(reply.body["hold"]["expires_at"], "2026-03-10T12:01:00.000Z");
    t.pass(59_999).await;
    t.ask("u", 0, 0).await.refused(429, "concurrency_exceeded");
    t.pass(1).await;
    t.ask("u", 0, 0).await.ok();
}

#[tokio::test]
async fn an_extend_keeps_the_place_and_never_past_the_longest_life_of_a_hold() {
    let t = Tenant::with(Sheet::new().cc(1)).await;
    t.put_settings(json!({"max_hold_seconds": 100})).await.ok();
    let hold = t.ask_for("u", 0, 0, 60).await.hold_id();
    t.pass(50_000).await;
    let extended = t.extend(&hold, json!({"lease_seconds": 10})).await.ok();
    assert_eq!(extended["hold"]["expires_at"], "2026-03-10T12:01:00.000Z", "an extend never shortens");
    // Without a figure: the lease last asked for, 10 s.
    t.pass(5_000).await;
    let extended = t.extend(&hold, json!({})).await.ok();
    assert_eq!(extended["hold"]["expires_at"], "2026-03-10T12:01:05.000Z");
    let extended = t.extend(&hold, json!({"lease_seconds": 300})).await.ok();
    assert_eq!(extended["hold"]["expires_at"], "2026-03-10T12:01:40.000Z");
    t.pass(45_000).await;
    t.extend(&hold, json!({"lease_seconds": 300})).await.refused(409, "lease_ended");
    t.ask("u", 0, 0).await.ok();
}

#[tokio::test]
async fn a_limit_of_one_admits_one_of_each_kind() {
    for (sheet, code) in [
        (Sheet::new().cc(1), "concurrency_exceeded"),
        (Sheet::new().rb(1, 1), "request_rate_exceeded"),
        (Sheet::new().dr(1), "daily_quota_exhausted"),
        (Sheet::new().mt(2), "monthly_quota_exhausted"),
        (Sheet::new().ob(1, 1), "output_rate_exceeded"),
    ] {
        let t = Tenant::with(sheet).await;
        t.ask("u", 1, 1).await.ok();
        t.ask("u", 1, 1).await.refused(429, code);
    }
    let t = Tenant::with(Sheet::new().input(1).output(1)).await;
    for _ in 0..2 {
        t.ask("u", 1, 1).await.ok();
    }
    let refused = t.ask("u", 2, 1).await.refused(413, "input_too_large");
    assert_eq!(refused.body["max"], 1);
    let refused = t.ask("u", 1, 2).await.refused(413, "output_too_large");
    assert_eq!(refused.body["max"], 1);
}
