//! How the users of a plan stand to its limits.

use serde_json::{Value, json};

use crate::harness::Tenant;
use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;

async fn tuning(t: &Tenant) -> Value {
    t.get("/v1/admin/plans/p/tuning").await.ok()
}

fn limit<'a>(body: &'a Value, name: &str) -> &'a Value {
    let rows = body["limits"].as_array().expect("rows");
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name} in {body}"))
}

#[tokio::test]
async fn use_over_limit_is_that_of_the_last_whole_period() {
    let t = Tenant::at("UTC", "2026-02-10T12:00:00.000Z").await;
    t.plan(&Sheet::new().mt(1_000).dr(10).rb(100, 20).cc(2)).await;
    // Nine users with 100 tokens, one with 900; the month after, a day of one call each.
    for n in 0..9 {
        t.spend(&format!("u{n}"), 60, 40).await;
    }
    t.spend("most", 900, 0).await;
    t.set_clock("2026-03-10T12:00:00.000Z").await;
    for n in 0..4 {
        for _ in 0..=n {
            t.spend(&format!("u{n}"), 1, 0).await;
        }
    }
    let body = tuning(&t).await;
    assert_has(&body, &json!({"blocked_users": 0, "refusals": [], "from": "2026-03-04", "to": "2026-03-11"}));
    let month = limit(&body, "tokens_per_month");
    assert_has(
        month,
        &json!({"of": "last month", "users": 10, "p50": 0.1, "p90": 0.1, "p99": 0.9, "reason": null,
                "code": "monthly_quota_exhausted"}),
    );
    // Of yesterday there is nothing yet.
    assert_has(limit(&body, "requests_per_day"), &json!({"of": "yesterday", "users": 0, "p50": null}));
    assert_eq!(limit(&body, "concurrency")["reason"], "calls in flight are not totalled");
    t.set_clock("2026-03-11T11:00:00.000Z").await;
    let body = tuning(&t).await;
    assert_has(limit(&body, "requests_per_day"), &json!({"users": 4, "p50": 0.2, "p99": 0.4}));
    // Five minutes could have given 100 + 5 x 20.
    assert_has(limit(&body, "requests_per_minute"), &json!({"users": 4, "p50": 0.01, "p99": 0.02}));
}

#[tokio::test]
async fn who_was_refused_on_three_days_is_blocked() {
    let t = Tenant::at("UTC", "2026-03-02T12:00:00.000Z").await;
    t.plan(&Sheet::new().dr(1)).await;
    for day in 0..3 {
        for user in ["often", "once"] {
            if day > 0 && user == "once" {
                continue;
            }
            t.spend(user, 1, 0).await;
            t.ask(user, 1, 0).await.refused(429, "daily_quota_exhausted");
        }
        t.pass(86_400_000).await;
    }
    let body = tuning(&t).await;
    assert_eq!(
        body["refusals"],
        json!([{"code": "daily_quota_exhausted", "refusals": 4, "users": 2, "blocked_users": 1}])
    );
    assert_eq!(
        (&body["blocked_users"], &limit(&body, "requests_per_day")["blocked_users"]),
        (&json!(1), &json!(1))
    );
    t.get("/v1/admin/plans/none/tuning").await.refused(404, "unknown_plan");
}
