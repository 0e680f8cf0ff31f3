//! Buckets: no edge, no lost fraction, exact debt, refill stopped by what is held.

use serde_json::json;

use crate::harness::Tenant;
use crate::harness::sheets::Sheet;

#[tokio::test]
async fn an_ask_that_is_refused_leaves_the_bucket_as_it_was() {
    let t = Tenant::with(Sheet::new().ob(100, 60)).await;
    t.spend("u", 1, 98).await;
    assert_eq!(t.remaining("u", "output_tokens_per_minute").await, 2);
    let refused = t.ask("u", 1, 5).await.refused(429, "output_rate_exceeded");
    assert_eq!(refused.header("retry-after"), Some("3"));
    assert_eq!(refused.body["retry_after_ms"], 3000);
    assert_eq!(refused.body["violations"][0]["would_fit"], 2);
    t.ask("u", 1, 2).await.ok();
    assert_eq!(t.remaining("u", "output_tokens_per_minute").await, 0);
}

#[tokio::test]
async fn a_bucket_has_no_edge_at_which_the_burst_doubles() {
    let t = Tenant::with(Sheet::new().rb(60, 60)).await;
    t.set_clock("2026-03-10T12:00:59.000Z").await;
    for _ in 0..60 {
        t.ask("u", 0, 0).await.ok();
    }
    t.set_clock("2026-03-10T12:01:00.500Z").await;
    let mut admitted = 0;
    for _ in 0..60 {
        admitted += i32::from(t.ask("u", 0, 0).await.status == 200);
    }
    assert_eq!(admitted, 1);
}

#[tokio::test]
async fn fractions_of_a_token_are_kept_from_call_to_call() {
    let t = Tenant::with(Sheet::new().rb(5, 10)).await;
    for _ in 0..5 {
        t.ask("u", 0, 0).await.ok();
    }
    t.pass(9000).await;
    t.ask("u", 0, 0).await.ok();
    t.pass(3100).await;
    t.ask("u", 0, 0).await.ok();
    // From T+12.2 on a check every 100 ms: the next token is whole at T+18.0.
    for _ in 0..58 {
        t.pass(100).await;
        t.ask("u", 0, 0).await.refused(429, "request_rate_exceeded");
    }
    t.pass(100).await;
    t.ask("u", 0, 0).await.ok();
}

#[tokio::test]
async fn an_overrun_is_charged_in_full_and_repaid_by_refill() {
    let t = Tenant::with(Sheet::new().mt(10_000).ob(2000, 60)).await;
    t.usage(&json!({"id": "before", "user": "u", "input_tokens": 8000, "output_tokens": 0})).await.ok();
    let hold = t.ask("u", 500, 1000).await.hold_id();
    let settled = t.finish(&hold, 900, 3200).await;
    assert_eq!(settled.status, 200, "{}", settled.text);
    let month = settled.row("tokens_per_month");
    assert_eq!(
        (&month["used"], &month["remaining"], &month["over_by"]),
        (&json!(12_100), &json!(0), &json!(2100))
    );
    let overage = &settled.body["hold"]["overage"];
    assert_eq!((&overage["input_tokens"], &overage["output_tokens"]), (&json!(400), &json!(2200)));
    t.ask("u", 50, 100).await.refused(429, "monthly_quota_exhausted");

    t.plan(&Sheet::new().mt(1_000_000).ob(2000, 60)).await;
    t.pass(10_000).await;
    let refused = t.ask("u", 50, 100).await.refused(429, "output_rate_exceeded");
    assert_eq!(refused.header("retry-after"), Some("1290"));
    assert_eq!(refused.header("x-should-retry"), Some("false"), "nobody sleeps for 20 minutes");
    assert_eq!(refused.body["violations"][0]["would_fit"], 0);
}

#[tokio::test]
async fn a_debt_has_a_bound() {
    let t = Tenant::with(Sheet::new().ob(100_000, 1_000_000)).await;
    t.put_settings(json!({"max_tokens_per_call": 1_000_000_000})).await.ok();
    let item =
        |n| json!({"id": format!("i{n}"), "user": "u", "input_tokens": 0, "output_tokens": 1_000_000_000});
    t.usage(&json!({"items": (0..60).map(item).collect::<Vec<_>>()})).await.ok();
    // 50,000,000,000 at 1,000,000 a minute, not the 60,000,000,000 less 100,000 that were used.
    let refused = t.ask("u", 0, 1).await.refused(429, "output_rate_exceeded");
    assert_eq!(refused.body["retry_after_ms"], 3_000_000_000_i64 + 1);
}

#[tokio::test]
async fn refill_waits_for_the_lease_end_and_then_goes_on() {
    let t = Tenant::with(Sheet::new().ob(5000, 5000)).await;
    for _ in 0..30 {
        let hold = t.ask("u", 10, 4000).await.hold_id();
        t.finish(&hold, 10, 50).await.ok();
        t.pass(1000).await;
    }
    assert_eq!(t.remaining("u", "output_tokens_per_minute").await, 5000);
    t.ask_for("u", 10, 4000, 60).await.ok();
    for _ in 0..20 {
        let refused = t.ask("u", 10, 2000).await.refused(429, "output_rate_exceeded");
        // The lease ends after 60 s; from then on 1000 more take 12 s.
        assert_eq!(refused.body["retry_after_ms"], 72_000);
    }
    t.pass(60_000).await;
    assert_eq!(t.remaining("u", "output_tokens_per_minute").await, 1000);
    t.pass(47_999).await;
    t.ask("u", 10, 5000).await.refused(429, "output_rate_exceeded");
    t.pass(1).await;
    t.ask("u", 10, 5000).await.ok();
}

#[tokio::test]
async fn one_call_a_minute_is_one_call_a_minute_for_hours() {
    let t = Tenant::with(Sheet::new().rb(5, 1)).await;
    for _ in 0..5 {
        t.ask("u", 0, 0).await.ok();
    }
    t.pass(59_000).await;
    let refused = t.ask("u", 0, 0).await.refused(429, "request_rate_exceeded");
    assert_eq!(refused.header("retry-after"), Some("1"));
    t.pass(1000).await;
    t.ask("u", 0, 0).await.ok();
    let mut admitted = Vec::new();
    for poll in 1..=720 {
        t.pass(10_000).await;
        if t.ask("u", 0, 0).await.status == 200 {
            admitted.push(poll);
        }
    }
    assert_eq!(admitted, (1..=120).map(|minute| 6 * minute).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_level_does_not_drift_over_many_fractions() {
    // Seven a minute: a token every 8571.43 ms.
    let t = Tenant::with(Sheet::new().rb(7, 7)).await;
    for _ in 0..7 {
        t.ask("u", 0, 0).await.ok();
    }
    for _ in 0..60 {
        t.pass(997).await;
        t.quota("u").await.ok();
    }
    t.pass(60_000 - 60 * 997 - 1).await;
    assert_eq!(t.remaining("u", "requests_per_minute").await, 6);
    t.pass(1).await;
    assert_eq!(t.remaining("u", "requests_per_minute").await, 7);
}

#[tokio::test]
async fn a_long_pause_overflows_nothing() {
    let t = Tenant::with(Sheet::new().ob(100_000_000_000, 100_000_000_000)).await;
    t.ask_for("u", 0, 10_000_000, 3600).await.ok();
    t.set_clock("9998-01-01T00:00:00.000Z").await;
    assert_eq!(t.remaining("u", "output_tokens_per_minute").await, 100_000_000_000);
    t.ask("u", 1, 1).await.ok();
}
