//! Limits of an org or the tenant: one account, whichever sheet its callers stand on.

use serde_json::json;

use crate::harness::Tenant;
use crate::harness::sheets::Sheet;

fn org_bucket(id: &str, capacity: u64) -> Sheet {
    Sheet::named(id).ob(capacity, 600).but("scope", json!("org"))
}

#[tokio::test]
async fn a_hold_is_settled_in_the_shared_bucket_wherever_its_user_stands_by_then() {
    let mut wrong = Vec::new();
    for (moved, late, reserved, actual, left) in [
        ("stays", false, 0, 37, 163),
        ("stays", true, 0, 37, 163),
        ("without", false, 0, 37, 163),
        ("without", true, 0, 37, 163),
        ("without", true, 20, 37, 183),
        ("without", false, 20, 5, 195),
        ("large", true, 0, 37, 163),
        ("large", false, 20, 37, 163),
    ] {
        let t = Tenant::with(org_bucket("small", 70)).await;
        t.put_plan(&org_bucket("large", 200).json()).await.ok();
        t.put_plan(&Sheet::named("without").dr(10).json()).await.ok();
        for user in ["a", "b"] {
            t.put_user(user, json!({"org": "acme"})).await.ok();
        }
        t.set_plan("b", "large").await.ok();
        let hold = t.ask_for("a", 0, reserved, 30).await.hold_id();
        if late {
            t.pass(60_000).await;
        }
        t.ask("b", 0, 0).await.ok();
        if moved != "stays" {
            t.set_plan("a", moved).await.ok();
        }
        t.finish(&hold, 0, actual).await.ok();
        let row = t.check(json!({"user": "b", "dry_run": true})).await.row("output_tokens_per_minute");
        if row["remaining"] != left {
            wrong.push(format!(
                "{moved}, late {late}, {reserved} reserved, {actual} used: {} instead of {left}",
                row["remaining"]
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn what_is_settled_while_a_bucket_is_not_in_the_plan_is_not_refilled_for_time_gone_by() {
    let mut wrong = Vec::new();
    for (reserved, actual, left) in [(0, 37, 63), (20, 37, 63), (20, 5, 95)] {
        let t = Tenant::with(Sheet::named("with").ob(100, 60)).await;
        t.put_plan(&Sheet::named("without").dr(10).json()).await.ok();
        let hold = t.ask_for("u", 0, reserved, 3600).await.hold_id();
        t.pass(100_000).await;
        t.set_plan("u", "without").await.ok();
        t.finish(&hold, 0, actual).await.ok();
        t.set_plan("u", "with").await.ok();
        let seen = t.remaining("u", "output_tokens_per_minute").await;
        if seen != left {
            wrong.push(format!("{reserved} reserved, {actual} used: {seen} instead of {left}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn what_an_empty_call_used_opens_its_block_also_when_the_limit_has_left_the_plan() {
    let t = Tenant::with(Sheet::named("with").per("block", json!({"days": 6}), 1000)).await;
    t.put_plan(&Sheet::named("without").dr(10).json()).await.ok();
    let hold = t.ask("u", 0, 0).await.hold_id();
    t.pass(5000).await;
    t.set_plan("u", "without").await.ok();
    t.finish(&hold, 2, 1).await.ok();
    t.set_plan("u", "with").await.ok();
    let row = t.left("u", "block").await;
    assert_eq!(
        (&row["used"], &row["window"]["start"]),
        (&json!(3), &json!("2026-03-10T12:00:00.000Z")),
        "{row}"
    );
}
