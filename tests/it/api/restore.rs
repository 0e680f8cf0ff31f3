//! The history of a plan: who changed what, and the way back.

use serde_json::{Value, json};

use crate::harness::Tenant;
use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;

async fn versions(t: &Tenant) -> Vec<Value> {
    t.get("/v1/admin/plans/p/versions").await.ok()["data"].as_array().expect("a list").clone()
}

#[tokio::test]
async fn each_version_tells_what_differs_from_the_one_before() {
    let t = Tenant::with(Sheet::new().mt(1_000).rb(10, 10)).await;
    let more = Sheet::new().mt(2_000).rb(10, 10).output(100).field("reason", json!("more for all"));
    t.put_plan(&more.json()).await.ok();
    t.put_plan(&Sheet::new().mt(2_000).output(100).field("applies", json!("now")).json()).await.ok();
    let versions = versions(&t).await;
    let paths = |row: &Value| {
        let changes = row["changes"].as_array().expect("a list");
        changes.iter().map(|change| change["path"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(paths(&versions[2]), [""; 0], "the first one");
    assert_eq!(paths(&versions[1]), ["/limits/tokens_per_month/limit", "/per_call/max_output_tokens"]);
    assert_has(&versions[1]["changes"][0], &json!({"before": 1_000, "after": 2_000}));
    assert_has(&versions[1], &json!({"reason": "more for all", "written_at": "2026-03-10T12:00:00.000Z"}));
    assert!(versions[1]["written_by"].is_string());
    assert_eq!(paths(&versions[0]), ["/limits/requests_per_minute"]);
    assert_eq!(versions[0]["changes"][0]["after"], Value::Null);
}

#[tokio::test]
async fn an_earlier_version_comes_back_as_a_new_one() {
    let t = Tenant::with(Sheet::new().mt(1_000)).await;
    t.spend("u", 300, 100).await;
    t.put_plan(&Sheet::new().mt(500).field("applies", json!("now")).json()).await.ok();
    assert_eq!(t.remaining("u", "tokens_per_month").await, 100);
    let path = "/v1/admin/plans/p/versions/1/restore";
    let seen = t.post(path, &json!({"dry_run": true})).await.ok();
    assert_has(&seen, &json!({"version": 3, "applies": "now", "limits": [{"limit": 1_000}]}));
    assert_eq!(versions(&t).await.len(), 2, "a look changes nothing");
    t.post(path, &json!({})).await.refused(400, "invalid_request");
    let back = t.post(path, &json!({"reason": "it was too little"})).await.ok();
    assert_has(&back, &json!({"version": 3, "limits": [{"limit": 1_000}]}));
    assert_eq!(t.remaining("u", "tokens_per_month").await, 600, "what was used stays used");
    // A downgrade waits like any other.
    let down = t.post("/v1/admin/plans/p/versions/2/restore", &json!({"reason": "budget"})).await.ok();
    assert_has(&down, &json!({"version": 4, "applies": "next_window"}));
    assert_eq!(versions(&t).await[0]["reason"], "budget");
}

#[tokio::test]
async fn what_was_never_there_does_not_come_back() {
    let t = Tenant::with(Sheet::new().mt(1_000)).await;
    let reason = json!({"reason": "test"});
    for version in ["2", "0", "x", "-1", "4294967296"] {
        t.post(&format!("/v1/admin/plans/p/versions/{version}/restore"), &reason)
            .await
            .refused(404, "not_found");
    }
    t.post("/v1/admin/plans/q/versions/1/restore", &reason).await.refused(404, "unknown_plan");
}
