//! Upstream capacity that everybody shares: taken only by admitted work.

use serde_json::{Value, json};

use crate::harness::Tenant;
use crate::harness::compare::assert_has;
use crate::harness::sheets::{PoolSheet, Sheet};

async fn with_plans() -> Tenant {
    let t = Tenant::with(Sheet::named("u").rb(1, 1)).await;
    t.put_plan(&Sheet::named("v").rb(10, 10).json()).await.ok();
    t.set_plan("v", "v").await.ok();
    t
}

#[tokio::test]
async fn output_that_is_counted_later_must_not_be_used_up() {
    let t = Tenant::with(Sheet::new()).await;
    let limit = json!({"name": "out", "kind": "bucket", "meter": "output_tokens", "capacity": 100, "refill_per_minute": 60});
    t.pool(&PoolSheet::new("default", &["*"]).field("counts", json!("actual")).limit(limit)).await;
    let (first, second) = (t.ask("u", 5, 500).await.hold_id(), t.ask("v", 5, 500).await.hold_id());
    t.finish(&first, 5, 90).await.ok();
    t.finish(&second, 5, 40).await.ok();
    let refused = t.ask("w", 5, 500).await.refused(429, "upstream_capacity_exceeded");
    // Thirty too many, and one more.
    assert_eq!(refused.body["retry_after_ms"], 31_000);
    t.ask("w", 5, 0).await.ok();
    t.pass(31_000).await;
    let hold = t.ask("w", 5, 500).await.hold_id();
    t.finish(&hold, 5, 0).await.ok();
    assert_eq!(t.ask("w", 5, 0).await.row("out")["remaining"], 1);
}

/// Remaining input of a pool that counts so, while a call of all it has runs: at once,
/// after half a minute, and after it has ended with less.
async fn input_of(counts: &str) -> [Value; 3] {
    let t = Tenant::with(Sheet::new()).await;
    let limit = json!({"name": "in", "kind": "bucket", "meter": "input_tokens", "capacity": 100, "refill_per_minute": 60});
    t.pool(&PoolSheet::new("default", &["*"]).field("counts", json!(counts)).limit(limit)).await;
    let taken = t.ask("u", 100, 0).await;
    let at_once = taken.row("in")["remaining"].clone();
    t.pass(30_000).await;
    let later = t.ask("v", 0, 0).await.row("in")["remaining"].clone();
    t.finish(&taken.hold_id(), 80, 0).await.ok();
    [at_once, later, t.ask("v", 0, 0).await.row("in")["remaining"].clone()]
}

#[tokio::test]
async fn input_that_counts_at_the_start_is_held_by_nobody() {
    // As a vendor's own bucket: it refills while the call runs.
    assert_eq!(json!(input_of("actual").await), json!([0, 30, 50]));
    assert_eq!(json!(input_of("reserved").await), json!([0, 0, 20]));
}

#[tokio::test]
async fn a_user_who_is_refused_takes_nothing_from_the_pool() {
    let t = with_plans().await;
    t.pool(&PoolSheet::new("default", &["*"]).requests(10, 1)).await;
    let first = t.ask("u", 0, 0).await;
    assert_has(&first.row("pool_requests"), &json!({"scope": "pool", "remaining": 9}));
    for _ in 0..19 {
        let refused = t.ask("u", 0, 0).await.refused(429, "request_rate_exceeded");
        assert_eq!(refused.body["violations"].as_array().map(Vec::len), Some(1));
        t.pass(100).await;
    }
    assert_eq!(t.ask("v", 0, 0).await.row("pool_requests")["remaining"], 8);
}

#[tokio::test]
async fn a_call_refused_by_the_pool_takes_nothing_from_the_user() {
    let t = Tenant::with(Sheet::new().dr(5).mt(10_000)).await;
    t.pool(&PoolSheet::new("a", &["model-a"]).places(5)).await;
    t.pool(&PoolSheet::new("b", &["model-b"]).requests(1, 1)).await;
    let ask = |user: &str, model: &str| json!({"user": user, "model": model, "input_tokens": 100, "max_output_tokens": 100});
    let mut served = 0;
    for user in ["x", "y", "z"] {
        let first = t.check(ask(user, "model-a")).await.hold_id();
        t.post(&format!("/v1/holds/{first}/release"), &json!({"reason": "upstream_refused"})).await.ok();
        let second = t.check(ask(user, "model-b")).await;
        if second.status == 200 {
            served += 1;
            t.finish(&second.hold_id(), 100, 100).await.ok();
            assert_has(&t.left(user, "requests_per_day").await, &json!({"used": 1}));
            assert_has(&t.left(user, "tokens_per_month").await, &json!({"used": 200, "held": 0}));
        } else {
            let refused = second.refused(429, "upstream_capacity_exceeded");
            assert_eq!(refused.body["violations"][0]["scope"], "pool");
            assert_eq!(refused.body["retryable"], true);
            assert_has(&t.left(user, "requests_per_day").await, &json!({"used": 0}));
            assert_has(&t.left(user, "tokens_per_month").await, &json!({"used": 0, "held": 0}));
        }
    }
    assert_eq!(served, 1);
    assert_has(&t.check(ask("w", "model-a")).await.row("pool_places"), &json!({"in_use": 1}));
}

#[tokio::test]
async fn bulk_leaves_the_share_of_interactive_calls() {
    let t = Tenant::with(Sheet::new().dr(1000)).await;
    t.pool(&PoolSheet::new("default", &["*"]).places(10).field("interactive_share", json!(0.3))).await;
    let ask = |lane: &str| json!({"user": "u", "priority": lane});
    let mut bulk = Vec::new();
    for n in 0..20 {
        let reply = t.check(ask("bulk")).await;
        if n < 7 {
            bulk.push(reply.hold_id());
        } else {
            reply.refused(429, "upstream_capacity_exceeded");
        }
    }
    for _ in 0..3 {
        t.check(ask("interactive")).await.ok();
    }
    t.check(ask("interactive")).await.refused(429, "upstream_capacity_exceeded");
    t.finish(&bulk[0], 0, 0).await.ok();
    let last = t.check(ask("interactive")).await;
    assert_has(&last.row("pool_places"), &json!({"in_use": 10, "remaining": 0}));
    t.check(ask("bulk")).await.refused(429, "upstream_capacity_exceeded");
}

#[tokio::test]
async fn a_bulk_call_that_can_never_fit_its_share_is_told_so() {
    let t = Tenant::with(Sheet::new().dr(1000)).await;
    t.pool(&PoolSheet::new("default", &["*"]).output_tokens(101, 60).field("interactive_share", json!(0.3)))
        .await;
    let ask = |lane: &str, n: i64| json!({"user": "u", "priority": lane, "max_output_tokens": n});
    // The share of 30.3 is rounded up: 70 are left for bulk.
    let refused = t.check(ask("bulk", 71)).await.refused(413, "exceeds_capacity");
    assert_has(&refused.body, &json!({"limit": "pool_output", "max": 70}));
    t.check(ask("bulk", 70)).await.ok();
    let refused = t.check(ask("bulk", 1)).await.refused(429, "upstream_capacity_exceeded");
    assert_has(&refused.body["violations"][0], &json!({"remaining": 31, "would_fit": 0}));
    t.check(ask("interactive", 31)).await.ok();
}

#[tokio::test]
async fn one_place_in_the_pool_is_one_call() {
    let t = Tenant::with(Sheet::new().dr(1000)).await;
    t.pool(&PoolSheet::new("default", &["*"]).places(1)).await;
    let hold = t.ask_for("u", 0, 0, 30).await.hold_id();
    let refused = t.ask("v", 0, 0).await.refused(429, "upstream_capacity_exceeded");
    assert!(refused.body["retry_after_ms"].as_i64().is_some_and(|ms| ms >= 30_000), "{}", refused.text);
    t.finish(&hold, 0, 0).await.ok();
    t.ask("v", 0, 0).await.ok();
}

#[tokio::test]
async fn waits_for_the_pool_are_spread_and_never_too_short() {
    let t = Tenant::with(Sheet::new().dr(1000)).await;
    t.pool(&PoolSheet::new("default", &["*"]).requests(5, 60)).await;
    for n in 0..5 {
        t.ask(&format!("u{n}"), 0, 0).await.ok();
    }
    let mut waits = Vec::new();
    for n in 0..10 {
        let refused = t.ask(&format!("v{n}"), 0, 0).await.refused(429, "upstream_capacity_exceeded");
        waits.push(refused.body["retry_after_ms"].as_i64().unwrap());
    }
    for (n, wait) in waits.iter().enumerate() {
        // The n-th caller's share is there after n seconds.
        let share = 1000 * (n as i64 + 1);
        assert!(*wait >= share && *wait <= share + 1000.max(share / 10), "{waits:?}");
    }
    t.pass(waits[0]).await;
    t.ask("v0", 0, 0).await.ok();
}

#[tokio::test]
async fn the_most_specific_pool_is_used_and_the_default_otherwise() {
    let t = Tenant::with(Sheet::new().dr(1000)).await;
    t.put_models(&json!([{"id": "opus-4", "aliases": ["smart"], "input": 0, "output": 0}])).await.ok();
    for (id, models) in [("default", "*"), ("families", "opus*"), ("exact", "opus-4-fast")] {
        t.pool(
            &PoolSheet::new(id, &[models])
                .requests(50, 1)
                .limit(json!({"name": format!("in_{id}"), "kind": "slots", "limit": 50})),
        )
        .await;
    }
    for (model, pool) in [
        (json!("opus-4"), "in_families"),
        (json!("SMART"), "in_families"),
        (json!("opus-4-fast"), "in_exact"),
        (json!("sonnet"), "in_default"),
        (Value::Null, "in_default"),
    ] {
        let rows = t.check(json!({"user": "u", "model": model})).await.ok()["limits"].clone();
        let names: Vec<&str> = rows.as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["requests_per_day", "pool_requests", pool], "{model}");
    }
    t.put_settings(json!({"default_pool_only": false})).await.ok();
    t.check(json!({"user": "u", "model": "sonnet"})).await.refused(400, "unknown_model");
    t.check(json!({"user": "u", "model": "smart"})).await.ok();
}

#[tokio::test]
async fn pools_are_not_shown_in_the_quota_view() {
    let t = Tenant::with(Sheet::new().dr(10)).await;
    t.pool(&PoolSheet::new("default", &["*"]).requests(10, 1)).await;
    t.ask("u", 0, 0).await.ok();
    assert_eq!(t.quota("u").await.ok()["limits"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn the_shipped_pool_is_for_planning_until_it_is_enforced() {
    let t = Tenant::with(Sheet::new().dr(10)).await;
    let shipped = t.get("/v1/admin/pools/default").await.ok();
    assert_has(
        &shipped,
        &json!({"id": "default", "enforced": false, "margin": 0.7, "interactive_share": 0.3}),
    );
    assert_eq!(t.ask("u", 0, 0).await.ok()["limits"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_vendors_figure_is_split_into_stock_and_refill() {
    let t = Tenant::with(Sheet::new().dr(10)).await;
    let pool = PoolSheet::new("default", &["*"]).field("margin", json!(0.7)).limit(json!({
        "name": "pool_output", "kind": "bucket", "meter": "output_tokens",
        "vendor_limit": 100_000, "burst_share": 0.2,
    }));
    t.pool(&pool).await;
    let row = t.ask("u", 0, 0).await.row("pool_output");
    assert_has(&row, &json!({"limit": 14_000, "refill_per_minute": 56_000, "remaining": 14_000}));
}

#[tokio::test]
async fn an_extend_of_a_bulk_call_leaves_the_share_as_its_check_did() {
    let t = Tenant::with(Sheet::new().dr(1000)).await;
    t.pool(&PoolSheet::new("default", &["*"]).output_tokens(100, 60).field("interactive_share", json!(0.3)))
        .await;
    let hold = t.check(json!({"user": "u", "priority": "bulk", "max_output_tokens": 60})).await.hold_id();
    t.extend(&hold, json!({"add_output_tokens": 11})).await.refused(413, "exceeds_capacity");
    t.check(json!({"user": "v", "max_output_tokens": 5})).await.ok();
    let refused =
        t.extend(&hold, json!({"add_output_tokens": 6})).await.refused(429, "upstream_capacity_exceeded");
    assert_has(&refused.body["violations"][0], &json!({"requested": 6, "would_fit": 5}));
    t.extend(&hold, json!({"add_output_tokens": 5})).await.ok();
}

#[tokio::test]
async fn a_pools_bucket_ran_by_each_version_for_as_long_as_it_held() {
    for eager in [false, true] {
        let t = Tenant::with(Sheet::new()).await;
        let pool = |capacity: u64, rate: u64| PoolSheet::new("default", &["*"]).output_tokens(capacity, rate);
        t.pool(&pool(10_000, 60)).await;
        t.spend("u", 0, 5000).await;
        for (capacity, rate) in [(10_000, 600), (20_000, 1200), (10_000, 6000)] {
            t.pass(10_000).await;
            if eager {
                t.ask("u", 0, 0).await.ok();
            }
            t.pool(&pool(capacity, rate)).await;
        }
        t.pass(1000).await;
        // 10 s at 1, 10 s at 10, 10 s at 20 and 1 s at 100 a second.
        let row = t.ask("u", 0, 0).await.row("pool_output");
        assert_eq!(row["remaining"], 5000 + 10 + 100 + 200 + 100, "eager {eager}: {row}");
    }
}

#[tokio::test]
async fn how_full_a_pool_is_is_told_with_it() {
    let t = Tenant::with(Sheet::new()).await;
    let sheet = PoolSheet::new("default", &["*"]).requests(10, 6).output_tokens(1000, 600);
    t.pool(&sheet).await;
    let planned = PoolSheet::new("planned", &["other"]).requests(5, 5).field("enforced", json!(false));
    t.pool(&planned).await;
    let untouched = t.get("/v1/admin/pools/default").await.ok();
    assert_has(&untouched["load"][0], &json!({"name": "pool_requests", "limit": 10, "remaining": 10}));
    t.ask("u", 5, 100).await.ok();
    let of = |pool: Value| pool["load"].clone();
    let load = of(t.get("/v1/admin/pools/default").await.ok());
    assert_has(
        &load[0],
        &json!({"scope": "pool", "kind": "bucket", "meter": "requests", "limit": 10, "remaining": 9,
                "refill_per_minute": 6, "full_at": "2026-03-10T12:00:10.000Z", "state": "ok"}),
    );
    assert_has(&load[1], &json!({"name": "pool_output", "remaining": 900, "held": 100}));
    assert_eq!(load.as_array().map(Vec::len), Some(2), "{load}");
    let list = t.get("/v1/admin/pools").await.ok();
    assert_eq!(of(list["data"][0].clone()), load);
    assert_eq!(of(list["data"][1].clone()), Value::Null, "nothing is counted where it is for planning only");
    for _ in 0..9 {
        t.ask("u", 5, 0).await.ok();
    }
    let load = of(t.get("/v1/admin/pools/default").await.ok());
    assert_has(
        &load[0],
        &json!({"remaining": 0, "state": "waiting", "next_call_at": "2026-03-10T12:00:10.000Z"}),
    );
    // A limit of some models only is full for them, and told too.
    let narrow = json!({"name": "opus_only", "kind": "slots", "limit": 3, "models": ["opus"]});
    t.pool(&sheet.limit(narrow)).await;
    let load = of(t.get("/v1/admin/pools/default").await.ok());
    assert_has(&load[2], &json!({"name": "opus_only", "kind": "slots", "in_use": 0, "remaining": 3}));
}
