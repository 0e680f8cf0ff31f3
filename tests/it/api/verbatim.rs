//! Usage in the vendor's own words: settled, booked and priced as that vendor counts.

use serde_json::{Value, json};

use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;
use crate::harness::{Reply, Tenant};

/// Reports as vendors send them, with what they come to: input, output, read from and written to
/// caches, and the price in micro-credits.
fn reports() -> Vec<Value> {
    serde_json::from_str(include_str!("../../data/usage.json")).expect("a list")
}

async fn tenant() -> Tenant {
    let t = Tenant::with(Sheet::new().mt(10_000_000)).await;
    let prices = json!([{"id": "m", "input": 3_000_000, "output": 15_000_000, "cache_read": 300_000, "cache_write": 3_750_000}]);
    t.put_models(&prices).await.ok();
    t
}

fn verbatim(report: &Value) -> Value {
    json!({"model": "m", "usage_format": report["usage_format"], "usage": report["usage"]})
}

fn assert_counted(hold: &Value, report: &Value) {
    let [input, output, read, written] = [0, 1, 2, 3].map(|index| report["counted"][index].as_i64().unwrap());
    let actual = json!({
        "input_tokens": input, "output_tokens": output, "total_tokens": input + output,
        "cache_read_tokens": read, "cache_write_tokens": written, "credits": report["credits"],
    });
    assert_has(&hold["actual"], &actual);
}

#[tokio::test]
async fn every_vendors_report_is_counted_and_priced_as_it_means_it() {
    let t = tenant().await;
    let mut settles = Vec::new();
    for report in reports() {
        let hold = t.check(json!({"user": "u", "model": "m", "input_tokens": 10})).await.hold_id();
        let settled = t.settle(&hold, verbatim(&report)).await.ok();
        assert_eq!(settled["hold"]["state"], "settled", "{}", report["what"]);
        assert_counted(&settled["hold"], &report);
        // The same in figures of our own is the same settle.
        let figure = |index: usize| report["counted"][index].clone();
        let ours = json!({"model": "m", "input_tokens": figure(0), "output_tokens": figure(1),
            "cache_read_tokens": figure(2), "cache_write_tokens": figure(3)});
        assert_eq!(t.settle(&hold, ours).await.header("idempotency-replayed"), Some("true"));
        let batched = t.check(json!({"user": "u", "model": "m", "input_tokens": 10})).await.hold_id();
        let mut settle = verbatim(&report);
        settle["id"] = json!(batched);
        settles.push(settle);
    }
    let told = t.settle_batch(&settles).await.ok();
    for (index, report) in reports().iter().enumerate() {
        assert_counted(&told["results"][index]["body"]["hold"], report);
    }
}

#[tokio::test]
async fn use_without_a_hold_is_booked_from_the_vendors_report_too() {
    let t = tenant().await;
    let mut total = 0;
    let mut items = Vec::new();
    for (index, report) in reports().iter().enumerate() {
        let mut item = verbatim(report);
        item["id"] = json!(format!("use-{index}"));
        item["user"] = json!("u");
        items.push(item);
        total += report["counted"][0].as_i64().unwrap() + report["counted"][1].as_i64().unwrap();
    }
    let told = t.usage(&json!({"items": items})).await.ok();
    assert!(
        told["results"].as_array().unwrap().iter().all(|result| result["status"] == "recorded"),
        "{told}"
    );
    assert_eq!(t.left("u", "tokens_per_month").await["used"], total);
    t.usage(&items[0]).await.ok();
    assert_eq!(t.left("u", "tokens_per_month").await["used"], total);
}

#[tokio::test]
async fn a_report_that_does_not_say_what_was_used_is_a_fault_at_its_place() {
    let t = tenant().await;
    let hold = t.check(json!({"user": "u", "model": "m", "input_tokens": 10})).await.hold_id();
    let pointers = |refused: Reply| -> Vec<String> {
        let errors = refused.refused(400, "invalid_request").body["errors"].clone();
        errors.as_array().unwrap().iter().map(|e| e["pointer"].as_str().unwrap().to_owned()).collect()
    };
    let usage = json!({"prompt_tokens": 5, "completion_tokens": 1});
    for (body, fault) in [
        (json!({"usage_format": "openai", "usage": {"completion_tokens": 1}}), "/usage/prompt_tokens"),
        (json!({"usage_format": "anthropic", "usage": usage}), "/usage/input_tokens"),
        (
            json!({"usage_format": "openai", "usage": {"prompt_tokens": -1, "completion_tokens": 1}}),
            "/usage/prompt_tokens",
        ),
        (json!({"usage_format": "openai"}), "/usage"),
        (json!({"usage_format": "openai", "usage": null}), "/usage"),
        (json!({"usage_format": "cohere", "usage": usage}), "/usage_format"),
        (json!({"usage": usage}), "/usage_format"),
        (json!({"usage_format": "openai", "usage": usage, "input_tokens": 5}), "/input_tokens"),
        (json!({"usage_format": "openai", "usage": "unknown"}), "/usage_format"),
        (json!({"usage": "none"}), "/usage"),
    ] {
        assert_eq!(pointers(t.settle(&hold, body.clone()).await)[0], fault, "{body}");
    }
    let much =
        json!({"usage_format": "openai", "usage": {"prompt_tokens": 10_000_001, "completion_tokens": 1}});
    t.settle(&hold, much).await.refused(422, "usage_implausible");
    assert_eq!(t.hold(&hold).await.ok()["hold"]["state"], "held");
    t.settle(&hold, json!({"usage": "unknown"})).await.ok();
    assert_eq!(t.hold(&hold).await.ok()["hold"]["state"], "in_doubt");
    t.settle(&hold, json!({"usage_format": "openai", "usage": usage})).await.ok();
}
