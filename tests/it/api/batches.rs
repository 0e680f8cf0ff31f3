//! Many at once: each decided on its own, in order.

use serde_json::{Value, json};

use crate::harness::Tenant;
use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;

#[tokio::test]
async fn a_batch_of_checks_is_decided_in_order() {
    let t = Tenant::with(Sheet::new().dr(2).mt(1000)).await;
    let checks = [
        json!({"user": "u", "input_tokens": 10}),
        json!({"user": "u", "input_tokens": -1}),
        json!({"user": "u", "input_tokens": 2000}),
        json!({"user": "u", "request_id": "r", "input_tokens": 20}),
        json!({"user": "u", "request_id": "r", "input_tokens": 20}),
        json!({"user": "u"}),
        json!({"user": "v", "wait_ms": 100}),
        json!({"user": "v"}),
        json!(7),
    ];
    let body = t.check_batch(&checks).await.ok();
    let results = body["results"].as_array().unwrap();
    let statuses: Vec<i64> = results.iter().map(|r| r["status"].as_i64().unwrap()).collect();
    assert_eq!(statuses, [200, 400, 413, 200, 200, 429, 400, 200, 400]);
    assert_eq!(results[3]["body"]["hold"]["id"], results[4]["body"]["hold"]["id"]);
    assert_has(&results[5]["body"], &json!({"code": "daily_quota_exhausted"}));
    let replayed = results[4]["headers"].as_object().unwrap();
    assert!(replayed.keys().any(|k| k.eq_ignore_ascii_case("idempotency-replayed")), "{replayed:?}");
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"held": 30}));
}

#[tokio::test]
async fn a_batch_of_settles_answers_each_hold() {
    let t = Tenant::with(Sheet::new().mt(1000)).await;
    let holds: Vec<String> = [t.ask("u", 100, 0).await.hold_id(), t.ask("v", 100, 0).await.hold_id()].into();
    let settles = [
        json!({"id": holds[0], "input_tokens": 10, "output_tokens": 0}),
        json!({"id": holds[0], "input_tokens": 10, "output_tokens": 0}),
        json!({"id": holds[0], "input_tokens": 11, "output_tokens": 0}),
        json!({"id": "hold_none", "input_tokens": 1, "output_tokens": 1}),
        json!({"id": holds[1], "usage": "unknown"}),
        json!({"id": holds[1]}),
        json!({"input_tokens": 1, "output_tokens": 1}),
    ];
    let body = t.settle_batch(&settles).await.ok();
    let of = |n: usize| {
        (body["results"][n]["status"].clone(), body["results"][n]["body"]["hold"]["state"].clone())
    };
    assert_eq!(of(0), (json!(200), json!("settled")));
    assert_eq!(of(1), (json!(200), json!("settled")));
    assert_eq!(of(2), (json!(409), json!("settled")));
    assert_eq!(of(3).0, 404);
    assert_eq!(of(4), (json!(200), json!("in_doubt")));
    assert_eq!(of(5), (json!(400), Value::Null));
    assert_eq!(of(6), (json!(400), Value::Null));
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 10, "held": 0}));
}

#[tokio::test]
async fn a_batch_has_bounds() {
    let t = Tenant::with(Sheet::new().dr(1000)).await;
    let check = json!({"user": "u"});
    t.check_batch(&[]).await.refused(400, "invalid_request");
    t.check_batch(&vec![check.clone(); 101]).await.refused(400, "invalid_request");
    let full = t.check_batch(&vec![check.clone(); 100]).await.ok();
    assert_eq!(full["results"].as_array().map(Vec::len), Some(100));
    assert_eq!(t.remaining("u", "requests_per_day").await, 900);
    t.post("/v1/check/batch", &json!({"checks": check})).await.refused(400, "invalid_request");
    t.post("/v1/check/batch", &json!({"checks": [check], "colour": 1})).await.refused(400, "invalid_request");
    let large = json!({"checks": [{"user": "x".repeat(1_100_000)}]});
    t.post("/v1/check/batch", &large).await.refused(413, "body_too_large");
}

#[tokio::test]
async fn late_settles_of_a_batch_correct_the_bucket_one_after_the_other() {
    // Given back first, the 20 are lost at the brim; charged first, they would fill the gap.
    for (first, second, left) in [(0, 40, 80), (40, 0, 100)] {
        let t = Tenant::with(Sheet::new().ob(100, 600)).await;
        let holds = [t.ask_for("u", 0, 20, 1).await.hold_id(), t.ask_for("u", 0, 20, 1).await.hold_id()];
        t.pass(60_000).await;
        let settles = [
            json!({"id": holds[0], "input_tokens": 0, "output_tokens": first}),
            json!({"id": holds[1], "input_tokens": 0, "output_tokens": second}),
        ];
        t.settle_batch(&settles).await.ok();
        assert_eq!(t.remaining("u", "output_tokens_per_minute").await, left);
    }
}
