//! Which number a window that ended is held against, when grants pay.

use serde_json::json;

use crate::harness::Tenant;
use crate::harness::sheets::Sheet;

async fn granted(t: &Tenant, limit: &str) -> i64 {
    t.left("u", limit).await["granted"].as_i64().expect("granted")
}

async fn grant(t: &Tenant, limit: &str, amount: u64) {
    let body = json!({"limit": limit, "amount": amount, "reason": "test"});
    t.post("/v1/admin/users/u/grants", &body).await;
}

#[tokio::test]
async fn a_version_put_after_a_window_ended_changes_nothing_of_what_it_paid() {
    let t = Tenant::with(Sheet::named("p").dr(5)).await;
    for _ in 0..4 {
        t.spend("u", 0, 0).await;
    }
    grant(&t, "requests_per_day", 6).await;
    // Nobody looks at the account between the day's end and the new version.
    t.set_clock("2026-03-11T06:00:00.000Z").await;
    t.put_plan(&Sheet::named("p").dr(1).json()).await.ok();
    assert_eq!(granted(&t, "requests_per_day").await, 6, "the day used 4 of its own 5");
    // Used beyond the plan's own of its day: gone.
    for _ in 0..3 {
        t.spend("u", 0, 0).await;
    }
    t.set_clock("2026-03-12T06:00:00.000Z").await;
    t.put_plan(&Sheet::named("p").dr(100).json()).await.ok();
    assert_eq!(granted(&t, "requests_per_day").await, 4);
}

#[tokio::test]
async fn a_window_that_ended_while_no_plan_had_its_limit_pays_nothing() {
    let t = Tenant::with(Sheet::named("one").dr(5)).await;
    t.put_plan(&Sheet::named("two").mt(1000).json()).await.ok();
    t.put_plan(&Sheet::named("three").dr(1).json()).await.ok();
    t.set_plan("u", "one").await.ok();
    for _ in 0..4 {
        t.spend("u", 0, 0).await;
    }
    grant(&t, "requests_per_day", 6).await;
    t.set_plan("u", "two").await.ok();
    t.set_clock("2026-03-12T06:00:00.000Z").await;
    t.set_plan("u", "three").await.ok();
    assert_eq!(granted(&t, "requests_per_day").await, 6);
}
