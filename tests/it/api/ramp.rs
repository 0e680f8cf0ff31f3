//! A pool whose traffic may only grow so fast.

use serde_json::{Value, json};

use crate::harness::compare::assert_has;
use crate::harness::sheets::{PoolSheet, Sheet};
use crate::harness::{Reply, Tenant};

const MINUTE: i64 = 60_000;

fn ramped() -> PoolSheet {
    PoolSheet::new("default", &["*"]).field("ramp", json!({"floor": 1000}))
}

async fn with_ramp() -> Tenant {
    let t = Tenant::with(Sheet::new().dr(100_000)).await;
    t.pool(&ramped()).await;
    t
}

fn ramp_of(reply: &Reply) -> Value {
    reply.row("ramp")
}

async fn allowed(t: &Tenant) -> Value {
    t.get("/v1/admin/pools/default").await.ok()["condition"]["ramp"].clone()
}

#[tokio::test]
async fn above_its_floor_a_minute_has_no_more_than_half_above_one_that_is_a_quarter_of_an_hour_older() {
    let t = with_ramp().await;
    let first = t.ask("u", 1000, 0).await;
    assert_has(
        &ramp_of(&first),
        &json!({"kind": "rolling", "limit": 1000, "remaining": 0, "window_seconds": 60}),
    );
    let refused = t.ask("u", 1, 0).await.refused(429, "upstream_capacity_exceeded");
    assert_has(&refused.body, &json!({"limit": "ramp", "retryable": true, "retry_after_ms": 60_000}));
    assert_has(
        &refused.body["violations"][0],
        &json!({"name": "ramp", "scope": "pool", "meter": "input_tokens"}),
    );
    t.pass(59_999).await;
    t.ask("u", 1, 0).await.refused(429, "upstream_capacity_exceeded");
    t.pass(1).await;
    t.ask("u", 1000, 0).await.ok();
    // Output and requests are not what grows.
    t.ask("u", 0, 100_000).await.ok();
    for minute in 2..16 {
        t.pass(MINUTE).await;
        assert_eq!(ramp_of(&t.ask("u", 1000, 0).await)["limit"], 1000, "minute {minute}");
    }
    // Half above what was surely taken within a minute: 2 % may have left it.
    t.pass(MINUTE).await;
    assert_eq!(allowed(&t).await, 1470);
    t.ask("u", 1470, 0).await.ok();
    for minute in 17..32 {
        t.pass(MINUTE).await;
        assert_eq!(ramp_of(&t.ask("u", 1470, 0).await)["limit"], 1470, "minute {minute}");
    }
    t.pass(MINUTE).await;
    assert_eq!(allowed(&t).await, 2161);
    // Who takes little for so long begins again.
    t.pass(31 * MINUTE).await;
    assert_eq!(allowed(&t).await, 1000);
    t.ask("u", 1001, 0).await.refused(413, "exceeds_capacity");
}

#[tokio::test]
async fn bulk_calls_leave_their_share_of_it() {
    let t = Tenant::with(Sheet::new().dr(100)).await;
    t.pool(&ramped().field("interactive_share", json!(0.3))).await;
    let bulk = |input: i64| json!({"user": "u", "priority": "bulk", "input_tokens": input});
    t.check(bulk(701)).await.refused(413, "exceeds_capacity");
    t.check(bulk(700)).await.ok();
    t.check(bulk(1)).await.refused(429, "upstream_capacity_exceeded");
    t.ask("u", 300, 0).await.ok();
}

#[tokio::test]
async fn what_was_not_sent_comes_back() {
    let t = with_ramp().await;
    let hold = t.ask("u", 900, 0).await.hold_id();
    t.release(&hold).await.ok();
    t.ask("u", 1000, 0).await.ok();
}

#[tokio::test]
async fn a_ramp_is_read_back_as_it_was_written_with_its_defaults() {
    let t = with_ramp().await;
    let shown = t.get("/v1/admin/pools/default").await.ok();
    let whole = json!({"meter": "input_tokens", "floor": 1000, "growth": 0.5, "minutes": 15});
    assert_eq!((&shown["ramp"], &shown["condition"]["ramp"]), (&whole, &json!(1000)));
    t.pool(&PoolSheet::new("default", &["*"])).await;
    let shown = t.get("/v1/admin/pools/default").await.ok();
    assert_eq!((&shown["ramp"], &shown["condition"]["ramp"]), (&Value::Null, &Value::Null));
    for (ramp, pointer) in [
        (json!({}), "/ramp/floor"),
        (json!({"floor": 0}), "/ramp/floor"),
        (json!({"floor": 1, "growth": 0}), "/ramp/growth"),
        (json!({"floor": 1, "growth": 2}), "/ramp/growth"),
        (json!({"floor": 1, "minutes": 61}), "/ramp/minutes"),
        (json!({"floor": 1, "meter": "Tokens"}), "/ramp/meter"),
        (json!({"floor": 1, "slope": 1}), "/ramp/slope"),
        (json!(1), "/ramp"),
    ] {
        let sheet = PoolSheet::new("default", &["*"]).field("ramp", ramp);
        let refused = t.put_pool(&sheet.json()).await.refused(400, "invalid_request");
        assert_eq!(refused.body["errors"][0]["pointer"], pointer, "{}", refused.text);
    }
    let named = json!({"name": "ramp", "kind": "slots", "limit": 1});
    let refused = t.put_pool(&ramped().limit(named).json()).await.refused(400, "invalid_request");
    assert_eq!(refused.body["errors"][0]["pointer"], "/ramp");
}
