//! A check that names several models: the first that is allowed serves.

use serde_json::{Value, json};

use crate::harness::compare::assert_has;
use crate::harness::sheets::{PoolSheet, Sheet};
use crate::harness::{Reply, Tenant};

/// Three models, each with a pool of its own that has room for one call.
async fn three_pools() -> Tenant {
    let t = Tenant::with(Sheet::new().dr(100)).await;
    for model in ["opus", "sonnet", "haiku"] {
        t.pool(&PoolSheet::new(model, &[model]).places(1)).await;
    }
    t
}

async fn any(t: &Tenant, models: Value) -> Reply {
    t.check(json!({"user": "u", "models": models, "max_output_tokens": 10})).await
}

#[track_caller]
fn by(reply: &Reply) -> &str {
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.body["granted"]["model"].as_str().expect("a model")
}

#[tokio::test]
async fn the_first_model_whose_pool_has_room_serves() {
    let t = three_pools().await;
    let models = json!(["Opus", "sonnet", "haiku"]);
    let first = any(&t, models.clone()).await;
    assert_has(
        &first.body["granted"],
        &json!({"model": "Opus", "substituted": false, "max_output_tokens": 10}),
    );
    assert_eq!(first.body.get("because"), None);
    let second = any(&t, models.clone()).await;
    assert_has(&second.body["granted"], &json!({"model": "sonnet", "substituted": true}));
    let full =
        |model: &str| json!({"model": model, "code": "upstream_capacity_exceeded", "limit": "pool_places"});
    assert_eq!(second.body["because"], json!([full("Opus")]));
    let third = any(&t, models.clone()).await;
    assert_eq!(third.body["because"], json!([full("Opus"), full("sonnet")]));
    any(&t, models.clone()).await.refused(429, "upstream_capacity_exceeded");
    assert_eq!(t.left("u", "requests_per_day").await["used"], 3, "a refusal takes nothing");
    // What the substitute took is given back where it was taken.
    t.finish(&second.hold_id(), 1, 1).await.ok();
    assert_eq!(by(&any(&t, models).await), "sonnet");
}

#[tokio::test]
async fn a_limit_of_the_plan_on_one_model_is_a_reason_too() {
    let sheet = Sheet::new().limit(json!({
        "name": "opus_a_day", "kind": "window", "meter": "requests", "period": "day", "limit": 1, "models": ["opus*"]
    }));
    let t = Tenant::with(sheet).await;
    t.put_models(&json!([{"id": "opus-4", "aliases": ["best"]}, {"id": "haiku"}])).await.ok();
    let models = json!(["best", "haiku"]);
    assert_eq!(by(&any(&t, models.clone()).await), "best");
    let second = any(&t, models).await;
    let because = json!([{"model": "best", "code": "daily_quota_exhausted", "limit": "opus_a_day"}]);
    assert_eq!((by(&second), &second.body["because"]), ("haiku", &because));
    let hold = t.hold(&second.hold_id()).await.ok();
    assert_eq!(hold["hold"]["model"], "haiku");
}

#[tokio::test]
async fn a_whole_grant_of_any_model_comes_before_a_smaller_one() {
    let t = Tenant::with(Sheet::new().dr(100)).await;
    for (model, tokens) in [("small", 40), ("large", 100)] {
        t.pool(&PoolSheet::new(model, &[model]).output_tokens(tokens, 60)).await;
    }
    let ask =
        json!({"user": "u", "models": ["small", "large"], "max_output_tokens": 60, "min_output_tokens": 10});
    let whole = t.check(ask.clone()).await;
    assert_has(
        &whole.body["granted"],
        &json!({"model": "large", "substituted": true, "max_output_tokens": 60}),
    );
    // Now both have 40 left: the caller's order counts again.
    let less = t.check(ask.clone()).await;
    assert_has(
        &less.body["granted"],
        &json!({"model": "small", "substituted": false, "max_output_tokens": 40}),
    );
    let less = t.check(ask.clone()).await;
    assert_has(&less.body["granted"], &json!({"model": "large", "max_output_tokens": 40}));
    assert_eq!(less.body["because"][0]["model"], "small");
    let refused = t.check(ask).await.refused(429, "upstream_capacity_exceeded");
    assert_eq!(refused.body["violations"][0]["requested"], 10, "the least that the caller accepts");
}

#[tokio::test]
async fn the_refusal_that_passes_soonest_is_told() {
    let day = |model: &str| {
        json!({"name": format!("{model}_a_day"), "kind": "window", "meter": "requests", "period": "day",
            "limit": 0, "models": [model]})
    };
    let t = Tenant::with(Sheet::new().limit(day("never"))).await;
    t.pool(&PoolSheet::new("slow", &["slow"]).requests(1, 1)).await;
    t.pool(&PoolSheet::new("quick", &["quick"]).requests(1, 60)).await;
    for model in ["slow", "quick"] {
        t.check(json!({"user": "v", "model": model})).await.ok();
    }
    let refused = any(&t, json!(["never", "slow", "quick"])).await.refused(429, "upstream_capacity_exceeded");
    assert_has(&refused.body, &json!({"retryable": true, "retry_after_ms": 1000}));
    let refused = any(&t, json!(["never", "slow"])).await.refused(429, "upstream_capacity_exceeded");
    assert_eq!(refused.body["retry_after_ms"], 60_000);
    any(&t, json!(["never"])).await.refused(429, "daily_quota_exhausted");
}

#[tokio::test]
async fn a_repeated_call_is_served_by_the_model_that_it_was_served_by() {
    let t = three_pools().await;
    any(&t, json!(["opus"])).await.ok();
    let ask = |models: Value| json!({"user": "u", "request_id": "r", "models": models});
    let first = t.check(ask(json!(["opus", "haiku"]))).await;
    assert_eq!(by(&first), "haiku");
    let again = t.check(ask(json!(["opus", "haiku"]))).await;
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_has(&again.body["granted"], &json!({"model": "haiku", "substituted": true}));
    assert_eq!(again.hold_id(), first.hold_id());
    for other in [json!(["haiku", "opus"]), json!(["opus"]), json!(["opus", "haiku", "sonnet"])] {
        t.check(ask(other)).await.refused(422, "request_id_reused");
    }
    t.check(json!({"user": "u", "request_id": "r", "model": "opus"})).await.refused(422, "request_id_reused");
}

#[tokio::test]
async fn dry_runs_and_batches_choose_too() {
    let t = three_pools().await;
    any(&t, json!(["opus"])).await.ok();
    let ask = json!({"user": "u", "models": ["opus", "haiku"]});
    let mut dry = ask.clone();
    dry["dry_run"] = json!(true);
    for _ in 0..2 {
        let told = t.check(dry.clone()).await;
        assert_eq!((by(&told), told.body.get("hold")), ("haiku", None));
    }
    let batch = t.check_batch(&[ask.clone(), ask]).await.ok();
    assert_eq!(batch["results"][0]["body"]["granted"]["model"], "haiku");
    assert_eq!(batch["results"][1]["body"]["code"], "upstream_capacity_exceeded");
}

#[tokio::test]
async fn in_shadow_the_first_model_serves() {
    let t = three_pools().await;
    t.put_settings(json!({"enforcement": "shadow"})).await.ok();
    for _ in 0..2 {
        assert_eq!(by(&any(&t, json!(["opus", "haiku"])).await), "opus");
    }
}

#[tokio::test]
async fn a_list_of_models_is_read_strictly() {
    let t = three_pools().await;
    t.put_models(&json!([{"id": "opus", "aliases": ["best"]}])).await.ok();
    let nine: Vec<String> = (0..9).map(|n| format!("m{n}")).collect();
    for (models, pointer) in [
        (json!([]), "/models"),
        (json!("opus"), "/models"),
        (json!([1]), "/models/0"),
        (json!(["opus", ""]), "/models/1"),
        (json!(["haiku", "opus", "BEST"]), "/models/2"),
        (json!(nine), "/models"),
    ] {
        let refused = any(&t, models.clone()).await.refused(400, "invalid_request");
        assert_eq!(refused.body["errors"][0]["pointer"], pointer, "{models}");
    }
    let both = json!({"user": "u", "model": "opus", "models": ["haiku"]});
    t.check(both).await.refused(400, "invalid_request");
    t.put_settings(json!({"default_pool_only": false})).await.ok();
    any(&t, json!(["opus", "nobody"])).await.refused(400, "unknown_model");
}

#[tokio::test]
async fn a_model_that_only_was_tried_leaves_no_trace() {
    let shadow = json!({"name": "counted", "kind": "window", "meter": "requests", "period": "day", "limit": 0,
        "enforce": "shadow", "models": ["opus"]});
    let t = Tenant::with(Sheet::new().limit(shadow)).await;
    t.pool(&PoolSheet::new("opus", &["opus"]).requests(1, 60)).await;
    t.check(json!({"user": "v", "model": "opus"})).await.ok();
    assert_eq!(by(&any(&t, json!(["opus", "haiku"])).await), "haiku");
    let row = t.left("u", "counted").await;
    assert_eq!(row["would_refuse"], 0, "{row}");
    // Nor does its user stand before others who wait for the pool.
    let refused =
        t.check(json!({"user": "w", "model": "opus"})).await.refused(429, "upstream_capacity_exceeded");
    assert_eq!(refused.body["retry_after_ms"], 1000);
}
