//! `[[degrade]]`: what a plan advises as its limits are used up.

use serde_json::{Value, json};

use crate::harness::Tenant;
use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;

fn advising(degrade: Value) -> Sheet {
    Sheet::new().rb(10, 10).mt(1_000).but("warn_at", json!([0.8, 0.95])).cc(8).field("degrade", degrade)
}

async fn warned(t: &Tenant, input: i64) -> Value {
    t.ask("u", input, 0).await.ok()["warnings"].clone()
}

#[tokio::test]
async fn advice_comes_with_the_grant_once_so_much_is_used() {
    let t = Tenant::with(advising(json!([
        {"limit": "tokens_per_month", "at": 0.5, "model": "haiku"},
        {"limit": "tokens_per_month", "at": 0.8, "model": "haiku", "max_output_tokens": 100},
    ])))
    .await;
    assert_eq!(warned(&t, 499).await, json!([]));
    let first = json!({"model": "haiku"});
    let at = |ratio: f64, used_ratio: f64| json!({"limit": "tokens_per_month", "ratio": ratio, "used_ratio": used_ratio});
    let with = |mut warning: Value, advice: &Value| {
        warning["advice"] = advice.clone();
        warning
    };
    assert_eq!(warned(&t, 1).await, json!([with(at(0.5, 0.5), &first)]));
    // One threshold that warns and advises is one warning, the highest of each kind.
    let more = json!({"model": "haiku", "max_output_tokens": 100});
    assert_eq!(warned(&t, 300).await, json!([with(at(0.8, 0.8), &more)]));
    assert_eq!(warned(&t, 150).await, json!([at(0.95, 0.95), with(at(0.8, 0.95), &more)]));
    // Advice enforces nothing, and a refusal carries none.
    let refused = t.ask("u", 51, 0).await.refused(429, "monthly_quota_exhausted");
    assert_eq!(refused.body.get("warnings"), None);
    // A dry run tells it, another user hears nothing.
    let dry = t.check(json!({"user": "u", "input_tokens": 1, "dry_run": true})).await.ok();
    assert_eq!(dry["warnings"].as_array().map(Vec::len), Some(2), "{dry}");
    assert_eq!(t.ask("v", 1, 0).await.ok()["warnings"], json!([]));
}

#[tokio::test]
async fn advice_is_given_by_every_kind_of_limit() {
    let t = Tenant::with(advising(json!([
        {"limit": "requests_per_minute", "at": 0.3, "max_output_tokens": 50},
        {"limit": "concurrency", "at": 0.375, "model": "haiku"},
    ])))
    .await;
    warned(&t, 1).await;
    assert_eq!(warned(&t, 1).await, json!([]));
    let third = warned(&t, 1).await;
    assert_has(
        &third[0],
        &json!({"limit": "requests_per_minute", "used_ratio": 0.3, "advice": {"max_output_tokens": 50}}),
    );
    assert_has(
        &third[1],
        &json!({"limit": "concurrency", "used_ratio": 0.375, "advice": {"model": "haiku"}}),
    );
}

#[tokio::test]
async fn faulty_advice_is_refused_by_its_field_and_idle_advice_warned_of() {
    let t = Tenant::with(Sheet::new().mt(1_000)).await;
    let bad = advising(json!([
        {"limit": "tokens_per_mouth", "at": 0.5, "model": "haiku"},
        {"limit": "tokens_per_month", "at": 1.01, "model": "haiku"},
        {"limit": "tokens_per_month", "at": 0.5},
    ]));
    let refused = t.put_plan(&bad.json()).await.refused(400, "invalid_request");
    let at: Vec<&str> = refused.body["errors"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|error| error["pointer"].as_str())
        .collect();
    assert_eq!(at, ["/degrade/0/limit", "/degrade/1/at", "/degrade/2"]);
    let idle = advising(json!([{"limit": "tokens_per_month", "at": 0.5, "model": "nobody"}]));
    let saved = t.put_plan(&idle.json()).await.ok();
    assert_has(&saved["warnings"][0], &json!({"pointer": "/degrade/0/model"}));
    assert_eq!(saved["degrade"], idle.json()["degrade"]);
}
