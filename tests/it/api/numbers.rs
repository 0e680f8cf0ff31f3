//! Zero, null and nothing: three different things.

use serde_json::{Value, json};

use crate::harness::Tenant;
use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;

#[tokio::test]
async fn a_limit_of_zero_refuses_and_never_says_when_it_will_not() {
    let month_end = json!("2026-04-01T00:00:00.000Z");
    let day_end = json!("2026-03-11T00:00:00.000Z");
    for (sheet, code, resets_at) in [
        (Sheet::new().dr(0), "daily_quota_exhausted", day_end),
        (Sheet::new().mt(0), "monthly_quota_exhausted", month_end),
        (Sheet::new().cc(0), "quota_exhausted", Value::Null),
        (Sheet::new().rb(0, 0), "quota_exhausted", Value::Null),
        (Sheet::new().ob(0, 0), "quota_exhausted", Value::Null),
        (Sheet::new().per("life", json!("lifetime"), 0), "quota_exhausted", Value::Null),
    ] {
        let t = Tenant::with(sheet).await;
        let refused = t.ask("u", 1, 1).await.refused(429, code);
        assert_eq!(refused.body["retryable"], false);
        assert_eq!(refused.body["resets_at"], resets_at);
        let view = t.quota("u").await.ok();
        assert_has(
            &view["limits"][0],
            &json!({"remaining": 0, "state": "exhausted", "next_call_at": resets_at}),
        );
        assert_has(&view, &json!({"state": "exhausted", "next_call_at": resets_at}));
    }
}

#[tokio::test]
async fn a_zero_per_call_cap_still_lets_nothing_through() {
    let t = Tenant::with(Sheet::new().output(0).dr(10)).await;
    t.ask("u", 1, 1).await.refused(413, "output_too_large");
    t.ask("u", 1, 0).await.ok();
    let reserved = t.check(json!({"user": "u", "input_tokens": 1})).await.ok();
    assert_eq!(reserved["hold"]["reserved"]["output_tokens"], 0);
}

#[tokio::test]
async fn null_is_the_limit_left_out() {
    let t = Tenant::with(Sheet::new().dr(5)).await;
    for sheet in [
        Sheet::new().dr(0).but("limit", Value::Null),
        Sheet::new().mt(0).but("limit", Value::Null),
        Sheet::new().cc(0).but("limit", Value::Null),
        Sheet::new().rb(0, 0).but("capacity", Value::Null).but("refill_per_minute", Value::Null),
    ] {
        t.plan(&sheet).await;
        for _ in 0..3 {
            t.ask("u", 1000, 1000).await.ok();
        }
        assert_eq!(t.quota("u").await.ok()["limits"], json!([]));
    }
    t.plan(&Sheet::new().field("per_call", json!({"max_output_tokens": null}))).await;
    t.ask("u", 1, 5000).await.ok();
}

#[tokio::test]
async fn a_sheet_that_cannot_be_right_is_refused_with_every_fault() {
    let t = Tenant::with(Sheet::new().dr(5)).await;
    let bad = |sheet: Sheet| sheet.json();
    for sheet in [
        bad(Sheet::new().dr(1).but("limit", json!(-1))),
        bad(Sheet::new().cc(1).but("limit", json!(-1))),
        bad(Sheet::new().rb(1, 1).but("capacity", json!(-1))),
        bad(Sheet::new().mt(1).but("limit", json!(1.5))),
        bad(Sheet::new().mt(1).but("limit", json!("many"))),
        bad(Sheet::new().mt(1).but("limit", json!(9_007_199_254_740_992_u64))),
        bad(Sheet::new().rb(100_000_000_001, 1)),
        bad(Sheet::new().rb(5, 100_000_000_001)),
        bad(Sheet::new().rb(5, 0)),
        bad(Sheet::new().cc(1_000_001)),
        bad(Sheet::new().dr(1).dr(2)),
        bad(Sheet::new().dr(1).but("zone", json!("Nowhere/City"))),
        bad(Sheet::new().dr(1).but("name", json!("Per Day"))),
        bad(Sheet::new().dr(1).but("meter", json!("Requests"))),
        bad(Sheet::new().dr(1).but("period", json!("year"))),
        bad(Sheet::new().dr(1).but("period", json!({"hours": 0}))),
        bad(Sheet::new().dr(1).but("kind", json!("rolling")).but("window_seconds", json!(60))),
        bad(Sheet::new().dr(1).but("enforce", json!("gently"))),
        bad(Sheet::new().mt(1).but("scope", json!("tenant")).but("anchor", json!("user"))),
        bad(Sheet::new().mt(1).but("scope", json!("galaxy"))),
        bad(Sheet::new().mt(1).but("colour", json!("red"))),
        bad(Sheet::new().mt(1).but("warn_at", json!([1.5]))),
        bad(Sheet::new().field("cache_read_weight", json!(1.1))),
        bad(Sheet::new().field("cache_read_weight", json!(-0.1))),
        bad(Sheet::new().input(1000).output(100).mt(1099)),
        bad(Sheet::new().input(1000).output(100).ob(99, 60)),
    ] {
        let reply = t.put_plan(&sheet).await;
        assert_eq!((reply.status, reply.code()), (400, "invalid_request"), "{sheet}\n{}", reply.text);
        assert!(reply.body["errors"].as_array().is_some_and(|e| !e.is_empty()), "{}", reply.text);
    }
    let many = (0..33).fold(Sheet::new(), |s, n| s.dr(5).but("name", json!(format!("d{n}"))));
    t.put_plan(&many.json()).await.refused(400, "invalid_request");
    let several =
        Sheet::new().dr(1).but("limit", json!(-1)).mt(1).but("limit", json!(-1)).but("zone", json!("X/Y"));
    let refused = t.put_plan(&several.json()).await.refused(400, "invalid_request");
    assert_eq!(refused.body["errors"].as_array().map(Vec::len), Some(3), "{}", refused.text);
    assert_eq!(t.left("u", "requests_per_day").await["limit"], 5, "the sheet is as it was");
}

#[tokio::test]
async fn what_can_never_bite_is_accepted_with_a_warning() {
    let t = Tenant::with(Sheet::new().dr(5)).await;
    let sheet = Sheet::new()
        .rb(1, 1)
        .dr(100_000)
        .dr(5)
        .but("name", json!("ghost"))
        .but("models", json!(["no-such-*"]));
    let saved = t.put_plan(&sheet.json()).await.ok();
    assert_eq!(saved["warnings"].as_array().map(Vec::len), Some(2), "{saved}");
}
