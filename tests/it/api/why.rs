//! Why somebody was refused at a certain time.

use serde_json::{Value, json};

use crate::harness::Tenant;
use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;

async fn why(t: &Tenant, query: &str) -> Vec<Value> {
    let body = t.get(&format!("/v1/admin/users/u/refusals{query}")).await.ok();
    body["data"].as_array().expect("a list").clone()
}

#[tokio::test]
async fn a_refusal_is_told_with_the_figures_and_the_sheet_of_then() {
    let t = Tenant::with(Sheet::new().mt(1_000)).await;
    t.put_user("u", json!({"plan": "p", "reason": "came by the trial"})).await.ok();
    t.spend("u", 600, 300).await;
    t.pass(3_600_000).await;
    let body = json!({"user": "u", "model": "sonnet", "feature": "chat", "input_tokens": 80,
                      "max_output_tokens": 40, "min_output_tokens": 30});
    let now = t.check(body).await.refused(429, "monthly_quota_exhausted");
    t.pass(3_600_000).await;
    let bigger = Sheet::new().mt(5_000).field("reason", json!("they asked for more")).json();
    t.put_plan(&bigger).await.ok();
    t.ask("u", 10, 5).await.hold_id();

    // Anywhere within the second that the user names.
    for at in ["2026-03-10T13:00:00Z", "2026-03-10T13:00:00.4Z", "2026-03-10T13:30:00Z"] {
        let rows = why(&t, &format!("?at={at}")).await;
        assert_eq!(rows.len(), 1, "{at}");
        let row = &rows[0];
        assert_has(
            row,
            &json!({
                "at": "2026-03-10T13:00:00.000Z", "code": "monthly_quota_exhausted", "limit": "tokens_per_month",
                "plan": {"id": "p", "version": 1},
                "asked": {"model": "sonnet", "feature": "chat", "lane": "interactive", "input_tokens": 80,
                          "max_output_tokens": 40, "min_output_tokens": 30},
            }),
        );
        // The same words as the caller was told then.
        assert_eq!(row["violations"], now.body["violations"]);
        assert_has(&row["violations"][0], &json!({"limit": 1_000, "remaining": 100, "requested": 110}));
        let told = |list: &str| {
            let rows = row[list].as_array().expect("a list");
            rows.iter().map(|row| row["action"].as_str().expect("an action").to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(told("changed_before"), ["user.put", "plan.put"]);
        assert_eq!(told("changed_since"), ["plan.put"]);
        assert_eq!(row["changed_since"][0]["after"]["limits"][0]["limit"], 5_000);
    }
}

#[tokio::test]
async fn the_nearest_of_many_is_found_and_nobody_else_is_told() {
    let t = Tenant::with(Sheet::new().rb(1, 1)).await;
    t.ask("u", 1, 1).await.hold_id();
    for _ in 0..5 {
        t.pass(2_000).await;
        t.ask("u", 1, 1).await.refused(429, "request_rate_exceeded");
    }
    let all = why(&t, "").await;
    let at: Vec<&str> = all.iter().map(|row| &row["at"].as_str().unwrap()[17..19]).collect();
    assert_eq!(at, ["10", "08", "06", "04", "02"], "the newest first");
    assert_eq!(why(&t, "?at=2026-03-10T12:00:05.5Z").await[0]["at"], "2026-03-10T12:00:06.000Z");
    assert_eq!(why(&t, "?at=2026-03-10T12:00:07Z&limit=2").await.len(), 2);
    let waits: Vec<u64> =
        all.iter().map(|row| row["violations"][0]["retry_after_ms"].as_u64().unwrap()).collect();
    assert_eq!(waits, [50_000, 52_000, 54_000, 56_000, 58_000]);
    t.get("/v1/admin/users/nobody/refusals").await.refused(404, "not_found");
    t.ask("v", 1, 1).await.hold_id();
    let none = t.get("/v1/admin/users/v/refusals").await.ok();
    assert_eq!(none, json!({"data": [], "next_cursor": null}));
    let bad = t.get("/v1/admin/users/u/refusals?at=noon").await.refused(400, "invalid_request");
    assert_eq!(bad.body["errors"][0]["pointer"], "/at");
    t.get("/v1/admin/users/u/refusals?limit=21").await.refused(400, "invalid_request");
}
