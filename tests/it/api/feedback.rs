//! What a vendor answers to one call, and what follows for all behind the same pool.

use serde_json::{Value, json};

use crate::harness::compare::assert_has;
use crate::harness::sheets::{PoolSheet, Sheet};
use crate::harness::{Client, Reply, Tenant};

async fn with_pool(pool: PoolSheet) -> Tenant {
    let t = Tenant::with(Sheet::new().dr(10_000)).await;
    t.pool(&pool).await;
    t
}

/// A pool that never is what stands in the way.
fn wide() -> PoolSheet {
    PoolSheet::new("default", &["*"]).requests(10_000, 10_000)
}

async fn tell(client: &Client, body: Value) -> Value {
    client.post("/v1/pools/default/feedback", &body).await.ok()
}

/// The vendor's 429 with these headers.
async fn refused_by_vendor(client: &Client, headers: Value) -> Value {
    tell(client, json!({"status": 429, "headers": headers})).await
}

async fn condition(t: &Tenant) -> Value {
    t.get("/v1/admin/pools/default").await.ok()["condition"].clone()
}

#[track_caller]
fn wait_of(refused: &Reply) -> i64 {
    refused.body["retry_after_ms"].as_i64().unwrap_or_else(|| panic!("no wait: {}", refused.text))
}

#[tokio::test]
async fn one_refusal_by_the_vendor_pauses_everybody_for_as_long_as_it_says() {
    for (headers, ms) in [
        (json!({"retry-after": "20"}), 20_000),
        (json!({"Retry-After": 20}), 20_000),
        (json!({"retry-after": ["20"]}), 20_000),
        (json!({"retry-after": "Tue, 10 Mar 2026 12:00:20 GMT"}), 20_000),
        (json!({"retry-after-ms": "974"}), 974),
        (json!({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}), 360_000),
        (json!({"x-ratelimit-reset-tokens": "974ms"}), 974),
        (
            json!({"anthropic-ratelimit-output-tokens-remaining": "0",
                "anthropic-ratelimit-output-tokens-reset": "2026-03-10T12:00:07Z"}),
            7000,
        ),
    ] {
        let t = with_pool(wide()).await;
        t.ask("u", 1, 1).await.ok();
        let told = refused_by_vendor(&t, headers.clone()).await;
        assert_eq!(
            (&told["meaning"], &told["condition"]["state"]),
            (&json!("wait"), &json!("paused")),
            "{told}"
        );
        for user in ["u", "v"] {
            let refused = t.ask(user, 1, 1).await.refused(429, "upstream_paused");
            assert_eq!(refused.body["retryable"], true);
            // What the vendor has nothing left of stands beside it.
            let violations = refused.body["violations"].as_array().unwrap();
            assert_has(violations.last().unwrap(), &json!({"scope": "pool", "kind": "pause"}));
            assert_eq!(wait_of(&refused), ms, "{headers}");
        }
        t.pass(ms - 1).await;
        t.ask("u", 1, 1).await.refused(429, "upstream_paused");
        t.pass(1).await;
        t.ask("u", 1, 1).await.ok();
    }
}

#[tokio::test]
async fn a_pause_takes_nothing_and_hides_nothing_that_no_wait_helps_against() {
    let t = Tenant::with(Sheet::new().dr(2)).await;
    t.pool(&wide()).await;
    let body = json!({"user": "u", "request_id": "r", "input_tokens": 1});
    let hold = t.check(body.clone()).await.hold_id();
    refused_by_vendor(&t, json!({"retry-after": "20"})).await;
    assert_eq!(t.check(body).await.hold_id(), hold, "what went through before is answered as it was");
    t.check(json!({"user": "u", "request_id": "s"})).await.refused(429, "upstream_paused");
    assert_has(&t.left("u", "requests_per_day").await, &json!({"used": 1}));
    t.finish(&hold, 1, 1).await.ok();
    t.extend(&hold, json!({})).await.refused(409, "already_finished");
    t.pass(20_000).await;
    t.check(json!({"user": "u", "request_id": "s"})).await.ok();
    refused_by_vendor(&t, json!({"retry-after": "20"})).await;
    let refused = t.ask("u", 1, 1).await.refused(429, "daily_quota_exhausted");
    assert_eq!(refused.header("retry-after"), None, "waiting for the vendor would be in vain");
    t.check(json!({"user": "v", "dry_run": true})).await.refused(429, "upstream_paused");
}

#[tokio::test]
async fn the_longest_wait_decides() {
    let t = Tenant::with(Sheet::new().rb(1, 1)).await;
    t.pool(&wide()).await;
    t.ask("u", 0, 0).await.ok();
    refused_by_vendor(&t, json!({"retry-after": "20"})).await;
    let refused = t.ask("u", 0, 0).await.refused(429, "request_rate_exceeded");
    assert_eq!((wait_of(&refused), refused.body["violations"].as_array().map(Vec::len)), (60_000, Some(2)));
    let refused = t.ask("v", 0, 0).await.refused(429, "upstream_paused");
    assert_eq!((refused.header("retry-after"), refused.header("x-should-retry")), (Some("20"), Some("true")));
}

#[tokio::test]
async fn those_who_wait_for_a_pause_are_told_successive_moments() {
    let t = with_pool(PoolSheet::new("default", &["*"]).requests(5, 60)).await;
    for n in 0..5 {
        t.ask(&format!("u{n}"), 0, 0).await.ok();
    }
    refused_by_vendor(&t, json!({"retry-after": "3"})).await;
    // Three come back while everybody waits, and then one a second.
    let mut waits = Vec::new();
    for n in 0..6 {
        waits.push(wait_of(&t.ask(&format!("v{n}"), 0, 0).await.refused(429, "upstream_paused")));
    }
    assert_eq!(waits, [3000, 3000, 3000, 4000, 5000, 6000]);
    assert_eq!(wait_of(&t.ask("v4", 0, 0).await), 5000, "asking again keeps the turn");
    t.pass(3000).await;
    for n in 0..3 {
        t.ask(&format!("v{n}"), 0, 0).await.ok();
    }
    t.ask("v3", 0, 0).await.refused(429, "upstream_capacity_exceeded");
    t.pass(1000).await;
    t.ask("v3", 0, 0).await.ok();
}

#[tokio::test]
async fn repeated_refusals_lower_the_rate_and_it_comes_back_slowly() {
    let t = with_pool(PoolSheet::new("default", &["*"]).output_tokens(1000, 6000)).await;
    refused_by_vendor(&t, json!({"retry-after": "1"})).await;
    t.pass(1000).await;
    assert_has(&t.ask("u", 0, 0).await.row("pool_output"), &json!({"limit": 1000}));
    t.pass(1000).await;
    refused_by_vendor(&t, json!({"retry-after": "1"})).await;
    assert_eq!(condition(&t).await["rate"], 0.8);
    t.pass(1000).await;
    let row = t.ask("u", 0, 0).await.row("pool_output");
    assert_has(&row, &json!({"limit": 800, "refill_per_minute": 4800, "remaining": 800}));
    // What is larger than the lowered stock may wait for the whole one, but fits.
    t.ask("u", 0, 900).await.ok();
    t.ask("u", 0, 900).await.refused(429, "upstream_capacity_exceeded");
    t.ask("u", 0, 1001).await.refused(413, "exceeds_capacity");
    for (minutes, rate) in [(1, 0.85), (2, 0.95), (1, 1.0)] {
        t.pass(minutes * 60_000).await;
        assert_eq!(condition(&t).await["rate"], rate);
    }
    let row = t.ask("u", 0, 0).await.row("pool_output");
    assert_has(&row, &json!({"limit": 1000, "refill_per_minute": 6000}));
}

#[tokio::test]
async fn a_lowered_rate_lowers_rolling_limits_too_and_leaves_slots() {
    let rolling = json!({"name": "rolling", "kind": "rolling", "meter": "output_tokens", "limit": 1000,
        "window_seconds": 60});
    let t = with_pool(PoolSheet::new("default", &["*"]).limit(rolling).places(10)).await;
    refused_by_vendor(&t, json!({"retry-after": "1"})).await;
    refused_by_vendor(&t, json!({"retry-after": "1"})).await;
    t.pass(1000).await;
    let asked = t.ask("u", 0, 300).await;
    assert_has(&asked.row("rolling"), &json!({"limit": 800, "remaining": 500}));
    assert_has(&asked.row("pool_places"), &json!({"limit": 10}));
    t.ask("u", 0, 501).await.refused(429, "upstream_capacity_exceeded");
    t.ask("u", 0, 1001).await.refused(413, "exceeds_capacity");
    // Larger than the lowered stock: the whole one is what counts.
    t.extend(&asked.hold_id(), json!({"add_output_tokens": 600})).await.ok();
}

#[tokio::test]
async fn a_bucket_refills_by_each_rate_for_as_long_as_it_held() {
    for eager in [false, true] {
        let t = with_pool(PoolSheet::new("default", &["*"]).output_tokens(100_000, 6000)).await;
        t.spend("u", 0, 90_000).await;
        for _ in 0..2 {
            refused_by_vendor(&t, json!({"retry-after": "1"})).await;
            t.pass(2000).await;
            if eager {
                t.ask("u", 0, 0).await.ok();
            }
        }
        // 2 s at 100 a second, then 80 a second: a minute after the pause, 85.
        t.pass(60_000).await;
        let row = t.ask("u", 0, 0).await.row("pool_output");
        let deficit = 90_000 - 200 - 61 * 80 - 85;
        assert_eq!(row["remaining"], 85_000 - deficit, "eager {eager}: {row}");
    }
}

#[tokio::test]
async fn a_spend_limit_closes_the_pool_until_an_admin_opens_it() {
    let t = with_pool(wide()).await;
    let body = json!({"error": {"type": "insufficient_quota", "code": "insufficient_quota", "message": ""}});
    let told = tell(&t, json!({"status": 429, "headers": {"retry-after": "20"}, "body": body})).await;
    assert_has(&told, &json!({"meaning": "spent", "because": "insufficient_quota"}));
    t.pass(3_600_000).await;
    let refused = t.ask("u", 1, 1).await.refused(429, "upstream_paused");
    assert_eq!((&refused.body["retryable"], refused.header("x-should-retry")), (&json!(true), Some("false")));
    assert_has(&refused.body["violations"][0], &json!({"scope": "pool", "kind": "closure"}));
    assert_has(
        &condition(&t).await,
        &json!({"state": "closed", "closed_until": "2026-04-01T00:00:00.000Z", "closed_because": "insufficient_quota"}),
    );
    let open = "/v1/admin/pools/default/open";
    t.post(open, &json!({})).await.refused(400, "invalid_request");
    let opened = t.post(open, &json!({"reason": "paid"})).await.ok();
    assert_eq!(opened["condition"]["state"], "open");
    t.ask("u", 1, 1).await.ok();
    t.post(open, &json!({"reason": "again"})).await.ok();
    let audit = t.get("/v1/admin/audit").await.ok();
    let of_pool = |row: &&Value| row["target"] == "default" && row["action"] != "pool.put";
    let rows: Vec<&Value> = audit["data"].as_array().unwrap().iter().filter(of_pool).collect();
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert_has(rows[0], &json!({"action": "pool.open", "reason": "paid"}));
    assert_has(rows[1], &json!({"action": "pool.close"}));
}

#[tokio::test]
async fn a_refusal_that_names_no_wait_closes_the_pool_until_the_month_turns() {
    let t = with_pool(wide()).await;
    assert_eq!(refused_by_vendor(&t, json!({})).await["meaning"], "spent");
    t.set_clock("2026-03-31T23:59:59.999Z").await;
    t.ask("u", 1, 1).await.refused(429, "upstream_paused");
    t.pass(1).await;
    t.ask("u", 1, 1).await.ok();
    assert_eq!(condition(&t).await["state"], "open");
}

#[tokio::test]
async fn what_the_vendor_has_far_less_of_is_believed_once() {
    let t = with_pool(PoolSheet::new("default", &["*"]).output_tokens(1000, 600)).await;
    let headers = |left: u64| {
        json!({"status": 200, "headers": {"x-ratelimit-limit-requests": "9", "x-ratelimit-remaining-requests": "0",
            "anthropic-ratelimit-output-tokens-limit": "1000",
            "anthropic-ratelimit-output-tokens-remaining": left.to_string()}})
    };
    // A tenth of the limit may be a matter of moments.
    assert_eq!(tell(&t, headers(900)).await["corrected"], json!([]));
    for _ in 0..2 {
        let told = tell(&t, headers(300)).await;
        assert_eq!(told["meaning"], "nothing");
        assert_eq!(t.ask("u", 0, 0).await.row("pool_output")["remaining"], 300);
    }
    t.ask("u", 0, 301).await.refused(429, "upstream_capacity_exceeded");
    t.pass(1000).await;
    assert_eq!(t.ask("u", 0, 0).await.row("pool_output")["remaining"], 310);
    assert_eq!(tell(&t, headers(800)).await["corrected"], json!([]), "it is never corrected up");
    assert_eq!(t.ask("u", 0, 0).await.row("pool_output")["remaining"], 310);
}

#[tokio::test]
async fn what_the_vendor_has_far_less_of_counts_as_use_now_in_a_rolling_limit() {
    let rolling = json!({"name": "rolling", "kind": "rolling", "meter": "output_tokens", "limit": 1000,
        "window_seconds": 60});
    let t = with_pool(PoolSheet::new("default", &["*"]).limit(rolling)).await;
    let left = |left: u64| {
        json!({"status": 200, "headers": {"anthropic-ratelimit-output-tokens-limit": "1000",
            "anthropic-ratelimit-output-tokens-remaining": left.to_string()}})
    };
    t.ask("u", 0, 200).await.ok();
    t.pass(30_000).await;
    assert_eq!(tell(&t, left(700)).await["corrected"], json!([]), "a tenth may be a matter of moments");
    // Whoever told the same at the same moment: it was used once.
    let said = left(300);
    let tellers: Vec<_> = (0..8).map(|_| tell(&t, said.clone())).collect();
    let told = futures_util::future::join_all(tellers).await;
    assert!(told.iter().any(|told| told["corrected"] != json!([])), "{told:?}");
    let row = t.ask("u", 0, 0).await.row("rolling");
    assert_has(&row, &json!({"used": 700, "remaining": 300}));
    let refused = t.ask("u", 0, 301).await.refused(429, "upstream_capacity_exceeded");
    assert!((30_000..=33_000).contains(&wait_of(&refused)), "what was taken here leaves first");
    // Ours after its minute, and theirs a minute after it was told.
    t.pass(30_000).await;
    assert_has(&t.ask("u", 0, 0).await.row("rolling"), &json!({"used": 500, "remaining": 500}));
    assert_eq!(tell(&t, left(800)).await["corrected"], json!([]), "it is never corrected up");
    t.pass(30_000).await;
    assert_has(&t.ask("u", 0, 0).await.row("rolling"), &json!({"used": 0, "remaining": 1000}));
}

#[tokio::test]
async fn slow_interactive_calls_hold_bulk_ones_back_for_a_while() {
    let t = with_pool(wide()).await;
    let ask = |lane: &str| json!({"user": "u", "priority": lane});
    let settle = async |ms: u64| {
        let hold = t.check(ask("interactive")).await.hold_id();
        let body =
            json!({"input_tokens": 1, "output_tokens": 1, "upstream": {"status": 200, "latency_ms": ms}});
        t.settle(&hold, body).await.ok();
    };
    for _ in 0..5 {
        settle(3500).await;
        t.check(ask("bulk")).await.ok();
    }
    for _ in 0..3 {
        settle(3501).await;
    }
    let refused = t.check(ask("bulk")).await.refused(429, "upstream_paused");
    assert_has(&refused.body["violations"][0], &json!({"scope": "pool", "kind": "brake"}));
    assert_eq!(wait_of(&refused), 30_000);
    t.check(ask("interactive")).await.ok();
    t.pass(30_000).await;
    t.check(ask("bulk")).await.ok();
    // They are slow still: half a minute more, and as often as need be.
    settle(100).await;
    t.check(ask("bulk")).await.refused(429, "upstream_paused");
    t.pass(61_000).await;
    settle(100).await;
    t.check(ask("bulk")).await.ok();
}

#[tokio::test]
async fn refusals_of_interactive_calls_hold_bulk_ones_back_longer() {
    let t = with_pool(wide()).await;
    refused_by_vendor(&t, json!({"retry-after": "1"})).await;
    t.pass(1000).await;
    t.check(json!({"user": "u"})).await.ok();
    let refused = t.check(json!({"user": "u", "priority": "bulk"})).await.refused(429, "upstream_paused");
    assert_eq!(wait_of(&refused), 29_000);
    // A bulk call's own refusal pauses, and says nothing of the others.
    let t = with_pool(wide()).await;
    tell(&t, json!({"status": 429, "headers": {"retry-after": "1"}, "priority": "bulk"})).await;
    t.pass(1000).await;
    t.check(json!({"user": "u", "priority": "bulk"})).await.ok();
}

#[tokio::test]
async fn only_the_pool_that_is_told_of_waits() {
    let t = with_pool(wide()).await;
    t.pool(&PoolSheet::new("opus", &["opus*"]).requests(100, 100)).await;
    t.post("/v1/pools/opus/feedback", &json!({"status": 429, "headers": {"retry-after": "20"}})).await.ok();
    t.check(json!({"user": "u", "model": "opus-4"})).await.refused(429, "upstream_paused");
    t.check(json!({"user": "u", "model": "sonnet"})).await.ok();
    t.post("/v1/pools/none/feedback", &json!({"status": 429})).await.refused(404, "not_found");
    let other = Tenant::with(Sheet::new().dr(10)).await;
    other.check(json!({"user": "u", "model": "opus-4"})).await.ok();
    other.post("/v1/pools/opus/feedback", &json!({"status": 200})).await.refused(404, "not_found");
}

#[tokio::test]
async fn a_pool_for_planning_holds_nobody_back() {
    let t = Tenant::with(Sheet::new().dr(10)).await;
    assert_eq!(refused_by_vendor(&t, json!({"retry-after": "20"})).await["condition"]["state"], "paused");
    t.ask("u", 1, 1).await.ok();
}

#[tokio::test]
async fn in_shadow_a_pause_is_told_and_holds_nobody_back() {
    let t = with_pool(wide()).await;
    t.put_settings(json!({"enforcement": "shadow"})).await.ok();
    refused_by_vendor(&t, json!({"retry-after": "20"})).await;
    let allowed = t.ask("u", 1, 1).await.ok();
    assert_eq!(allowed["would_refuse"]["code"], "upstream_paused", "{allowed}");
}

#[tokio::test]
async fn feedback_that_is_none_is_told_where_it_is_wrong() {
    let t = with_pool(wide()).await;
    for (body, pointer) in [
        (json!({}), "/status"),
        (json!({"status": 42}), "/status"),
        (json!({"status": 429, "headers": "retry-after: 1"}), "/headers"),
        (json!({"status": 429, "priority": "low"}), "/priority"),
        (json!({"status": 429, "latency_ms": -1}), "/latency_ms"),
        (json!({"status": 429, "header": {}}), "/header"),
    ] {
        let refused = t.post("/v1/pools/default/feedback", &body).await.refused(400, "invalid_request");
        assert_eq!(refused.body["errors"][0]["pointer"], pointer, "{}", refused.text);
    }
    // What a vendor sends is never wrong.
    let odd = json!({"status": 200, "headers": {"x": null, "y": {"z": 1}, "retry-after": true,
        "anthropic-ratelimit-output-tokens-remaining": "many"}, "body": "<html>"});
    assert_eq!(tell(&t, odd).await["meaning"], "nothing");
    // Without headers nothing says that it is a spend limit.
    assert_eq!(tell(&t, json!({"status": 429})).await["meaning"], "wait");
    let text = "{\"error\":{\"code\":\"insufficient_quota\"}}";
    assert_eq!(tell(&t, json!({"status": 429, "body": text})).await["meaning"], "spent");
}

#[tokio::test]
async fn a_check_that_waits_goes_through_when_the_pause_is_over_or_is_told_at_once_that_it_will_not() {
    let t = with_pool(wide()).await;
    refused_by_vendor(&t, json!({"retry-after": "20"})).await;
    let ask = |ms: i64| json!({"user": "u", "wait_ms": ms});
    let refused = t.check(ask(10_000)).await.refused(429, "upstream_paused");
    assert_eq!(wait_of(&refused), 20_000, "it would wait in vain");
    let (waited, ()) = tokio::join!(t.check(ask(30_000)), t.pass(20_000));
    waited.ok();
    tell(&t, json!({"status": 402})).await;
    t.check(ask(60_000)).await.refused(429, "upstream_paused");
}

#[tokio::test]
async fn past_pauses_are_told_with_their_beginnings_and_ends() {
    let t = with_pool(wide()).await;
    refused_by_vendor(&t, json!({"retry-after": "20"})).await;
    t.pass(600_000).await;
    let body = json!({"error": {"type": "insufficient_quota", "code": "insufficient_quota", "message": ""}});
    tell(&t, json!({"status": 429, "headers": {}, "body": body})).await;
    t.pass(60_000).await;
    t.post("/v1/admin/pools/default/open", &json!({"reason": "paid"})).await.ok();
    let told = json!([
        {"kind": "closure", "from": "2026-03-10T12:10:00.000Z", "until": "2026-03-10T12:11:00.000Z", "times": 1},
        {"kind": "pause", "from": "2026-03-10T12:00:00.000Z", "until": "2026-03-10T12:00:20.000Z", "times": 1},
    ]);
    // Bulk calls were held back meanwhile, too.
    let of_all = |mut pool: Value| {
        pool["pauses"].as_array_mut().unwrap().retain(|wait| wait["kind"] != "brake");
        pool["pauses"].take()
    };
    assert_eq!(of_all(t.get("/v1/admin/pools/default").await.ok()), told);
    assert_eq!(of_all(t.get("/v1/admin/pools").await.ok()["data"][0].take()), told);
}
