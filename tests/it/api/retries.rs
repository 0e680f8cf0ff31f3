//! The wait that is told is the wait that is needed.

use serde_json::json;

use crate::harness::sheets::Sheet;
use crate::harness::{Tenant, number_from_env};
use crate::model::rng::Rng;

#[tokio::test]
async fn a_retry_at_the_told_time_passes_exactly_and_by_the_header() {
    for (wait_ms, passes) in [(1000, false), (1299, false), (1300, true), (2000, true)] {
        let t = Tenant::with(Sheet::new().rb(1, 40)).await;
        t.ask("u", 0, 0).await.ok();
        t.pass(200).await;
        let refused = t.ask("u", 0, 0).await.refused(429, "request_rate_exceeded");
        assert_eq!(refused.header("retry-after"), Some("2"));
        assert_eq!(refused.header("retry-after-ms"), Some("1300"));
        assert_eq!(refused.body["retry_after_ms"], 1300);
        assert_eq!(refused.header("x-should-retry"), Some("true"));
        t.pass(wait_ms).await;
        assert_eq!(t.ask("u", 0, 0).await.status == 200, passes, "after {wait_ms} ms");
    }
}

#[tokio::test]
async fn a_retry_at_the_told_time_succeeds_after_any_history_and_not_much_earlier() {
    let t = Tenant::at("UTC", "2026-03-10T12:00:00.000Z").await;
    let mut rng = Rng::new(13);
    let histories = number_from_env("PROPTEST_CASES", 150).min(500);
    for history in 0..histories {
        let capacity = rng.between(1, 15);
        let output_capacity = rng.between(50, 900);
        let sheet = Sheet::named(&format!("h{history}"))
            .rb(capacity as u64, rng.between(1, 120) as u64)
            .ob(output_capacity as u64, rng.between(10, 4000) as u64);
        t.put_plan(&sheet.json()).await.ok();
        let user = format!("u{history}");
        t.set_plan(&user, sheet.id()).await.ok();
        let mut last = None;
        for _ in 0..40 {
            let body = json!({
                "user": user,
                "max_output_tokens": rng.between(0, output_capacity),
                "lease_seconds": rng.between(1, 90),
            });
            let reply = t.check(body.clone()).await;
            if reply.status == 429 {
                last = Some((body, reply));
                break;
            }
            let hold = reply.hold_id();
            if rng.chance(40) {
                t.finish(&hold, 0, rng.between(0, output_capacity)).await.ok();
            }
            t.pass(rng.between(0, 3000)).await;
        }
        let Some((body, refused)) = last else { continue };
        let told = refused.body["retry_after_ms"].as_i64().expect("a wait");
        let header: i64 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!(header * 1000 >= told && header >= 1 && header * 1000 < told + 1000, "{}", refused.text);
        let early = (told - 2 - told.div_euclid(100) - 1).max(0);
        if early > 0 {
            t.pass(early).await;
            assert_eq!(t.check(body.clone()).await.status, 429, "{early} of {told} ms: {}", sheet.json());
        }
        t.pass(told - early).await;
        assert_eq!(t.check(body).await.status, 200, "after {told} ms: {}", sheet.json());
    }
}

#[tokio::test]
async fn the_wait_for_a_place_is_the_time_to_the_lease_end_that_frees_it() {
    let t = Tenant::with(Sheet::new().cc(2)).await;
    t.ask_for("u", 0, 0, 50).await.ok();
    t.pass(10_000).await;
    t.ask_for("u", 0, 0, 20).await.ok();
    let refused = t.ask("u", 0, 0).await.refused(429, "concurrency_exceeded");
    assert_eq!(refused.body["retry_after_ms"], 20_000);
    let violation = &refused.body["violations"][0];
    assert_eq!(violation["kind"], "slots");
    assert_eq!(
        (&violation["limit"], &violation["remaining"], &violation["would_fit"]),
        (&json!(2), &json!(0), &json!(0))
    );
    t.pass(19_999).await;
    t.ask("u", 0, 0).await.refused(429, "concurrency_exceeded");
    t.pass(1).await;
    t.ask("u", 0, 0).await.ok();
}

#[tokio::test]
async fn the_longest_wait_decides_and_every_failing_limit_is_named() {
    let t = Tenant::with(Sheet::new().rb(1, 3).ob(100, 60)).await;
    t.ask_for("u", 0, 100, 1).await.ok();
    t.pass(1000).await;
    // Requests: one in 20 s less the second gone by; output: 45 in 45 s.
    let refused = t.ask("u", 0, 45).await.refused(429, "output_rate_exceeded");
    assert_eq!(refused.body["limit"], "output_tokens_per_minute");
    assert_eq!(refused.header("retry-after"), Some("45"));
    assert_eq!(refused.body["violated-policies"], json!(["requests_per_minute", "output_tokens_per_minute"]));
    assert_eq!(refused.body["violations"][0]["retry_after_ms"], 19_000);
    assert_eq!(refused.body["violations"][1]["retry_after_ms"], 45_000);
}

#[tokio::test]
async fn no_client_is_told_to_sleep_longer_than_the_tenant_allows() {
    let t = Tenant::with(Sheet::new().rb(1, 1)).await;
    t.ask("u", 0, 0).await.ok();
    let refused = t.ask("u", 0, 0).await.refused(429, "request_rate_exceeded");
    assert_eq!(refused.header("retry-after"), Some("60"));
    assert_eq!(refused.header("x-should-retry"), Some("true"));
    t.put_settings(json!({"max_auto_retry_seconds": 59})).await.ok();
    let refused = t.ask("u", 0, 0).await.refused(429, "request_rate_exceeded");
    assert_eq!(refused.header("x-should-retry"), Some("false"));
    assert_eq!(refused.body["retryable"], true);
}
