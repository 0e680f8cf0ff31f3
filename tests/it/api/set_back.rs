//! A test tenant is set up while its clock runs with real time, which is later than the day that its
//! clock is put to: what was written has been written.

use serde_json::{Value, json};

use crate::harness::compare::assert_has;
use crate::harness::sheets::{PoolSheet, Sheet};
use crate::harness::{Tenant, row};

const DAY: &str = "2026-03-10T12:00:00.000Z";
const APRIL: &str = "2026-04-01T00:00:00.000Z";
/// Later than `DAY`, and as far in the future as a clock is put before it goes back.
const LATER: &str = "2026-11-30T12:00:00.000Z";

async fn ahead() -> Tenant {
    Tenant::at("UTC", LATER).await
}

async fn month(t: &Tenant, user: &str) -> Value {
    t.left(user, "tokens_per_month").await
}

#[tokio::test]
async fn versions_written_ahead_of_the_clock_hold_in_their_order() {
    let t = ahead().await;
    for limit in [1000, 2000, 3000] {
        t.plan(&Sheet::named("p").mt(limit)).await;
    }
    t.set_clock(DAY).await;
    t.spend("u", 100, 0).await;
    assert_has(&month(&t, "u").await, &json!({"limit": 3000, "used": 100}));
    assert_eq!(t.quota("u").await.ok()["plan"]["version"], 3);
    // And those written after it was put back take their turn.
    t.put_plan(&Sheet::named("p").mt(500).field("applies", json!("next_window")).json()).await.ok();
    assert_has(&month(&t, "u").await, &json!({"limit": 3000}));
    assert_has(&month(&t, "new").await, &json!({"limit": 500}));
    assert_eq!(t.quota("u").await.ok()["upcoming"]["effective_at"], APRIL);
    t.set_clock(APRIL).await;
    assert_has(&month(&t, "u").await, &json!({"limit": 500, "used": 0}));
}

#[tokio::test]
async fn who_was_there_before_is_told_by_the_order_of_writes() {
    let t = ahead().await;
    t.plan(&Sheet::named("p").mt(1000)).await;
    t.put_user("before", json!({})).await.ok();
    t.put_plan(
        &Sheet::named("p").mt(500).field("to", json!("new_users")).field("applies", json!("now")).json(),
    )
    .await
    .ok();
    t.put_user("between", json!({})).await.ok();
    t.set_clock(DAY).await;
    t.put_user("then", json!({})).await.ok();
    t.put_plan(
        &Sheet::named("p").mt(400).field("to", json!("new_users")).field("applies", json!("now")).json(),
    )
    .await
    .ok();
    t.put_user("after", json!({})).await.ok();
    for at in [DAY, "2026-03-11T00:00:00.000Z", APRIL] {
        t.set_clock(at).await;
        for (user, limit) in
            [("before", 1000), ("between", 500), ("then", 500), ("after", 400), ("never seen", 400)]
        {
            assert_eq!(month(&t, user).await["limit"], limit, "{user} at {at}");
        }
    }
}

#[tokio::test]
async fn a_waiting_version_is_for_those_who_came_after_it() {
    let t = ahead().await;
    t.plan(&Sheet::named("p").mt(1000)).await;
    t.put_plan(&Sheet::named("q").mt(1000).json()).await.ok();
    t.put_user("there", json!({})).await.ok();
    t.put_user("comes", json!({"plan": "q"})).await.ok();
    t.set_clock(DAY).await;
    t.put_plan(&Sheet::named("p").mt(500).field("applies", json!("next_window")).json()).await.ok();
    t.set_plan("comes", "p").await.ok();
    for at in [DAY, "2026-03-11T00:00:00.000Z"] {
        t.set_clock(at).await;
        for (user, limit) in [("there", 1000), ("comes", 500), ("never seen", 500)] {
            assert_eq!(month(&t, user).await["limit"], limit, "{user} at {at}");
        }
    }
    t.set_clock(APRIL).await;
    assert_eq!(month(&t, "there").await["limit"], 500);
}

#[tokio::test]
async fn overrides_and_grants_given_ahead_of_the_clock_count() {
    let t = ahead().await;
    let org = Sheet::named("own").dr(1).but("scope", json!("org"));
    t.put_plan(&org.json()).await.ok();
    t.plan(&Sheet::named("p").mt(1000).ob(1000, 60)).await;
    let numbers =
        json!({"tokens_per_month": {"limit": 300}, "output_tokens_per_minute": {"refill_per_minute": 600}});
    t.put_overrides("users/u", json!({"overrides": numbers})).await.ok();
    t.give("users/u", json!({"limit": "tokens_per_month", "amount": 200})).await.ok();
    t.put_org("acme", json!({"plan": "own"})).await.ok();
    t.put_user("u", json!({"org": "acme"})).await.ok();
    t.put_overrides("orgs/acme", json!({"overrides": {"requests_per_day": {"limit": 5}}})).await.ok();
    t.give("orgs/acme", json!({"limit": "requests_per_day", "amount": 2})).await.ok();
    t.set_clock(DAY).await;
    assert_has(&month(&t, "u").await, &json!({"limit": 300, "granted": 200, "remaining": 500}));
    let quota = t.get("/v1/admin/orgs/acme/quota").await.ok();
    assert_has(&row(&quota, "requests_per_day"), &json!({"limit": 5, "granted": 2}));
    let user = t.on_record("users/u").await.ok();
    assert_has(
        &user,
        &json!({"overrides": {"tokens_per_month": {"limit": 300}}, "grants": [{"amount": 200}]}),
    );
    t.ask("u", 501, 0).await.refused(413, "exceeds_capacity");
    t.spend("u", 0, 450).await;
    t.pass(10_000).await;
    assert_eq!(t.remaining("u", "output_tokens_per_minute").await, 650);
    // What went beyond the 300 is gone.
    t.set_clock(APRIL).await;
    assert_has(&month(&t, "u").await, &json!({"limit": 300, "granted": 50, "remaining": 350}));
    t.put_overrides("users/u", json!({"overrides": {"tokens_per_month": null}})).await.ok();
    assert_has(&month(&t, "u").await, &json!({"limit": 1000, "granted": 50}));
}

#[tokio::test]
async fn zones_days_and_pools_set_ahead_of_the_clock_hold() {
    let t = ahead().await;
    let sheet = |zone: Option<&str>| match zone {
        Some(zone) => Sheet::named("p").mt(1000).but("zone", json!(zone)),
        None => Sheet::named("p").mt(1000),
    };
    t.plan(&sheet(Some("America/New_York"))).await;
    t.plan(&sheet(None)).await;
    t.put_settings(json!({"zone": "Europe/Berlin"})).await.ok();
    t.put_settings(json!({"zone": "Asia/Tokyo"})).await.ok();
    t.pool(&PoolSheet::new("default", &["*"]).output_tokens(1000, 60)).await;
    t.pool(&PoolSheet::new("default", &["*"]).output_tokens(1000, 600)).await;
    t.put_user("la", json!({"zone": "UTC"})).await.ok();
    t.put_user("la", json!({"zone": "America/Los_Angeles"})).await.ok();
    t.set_clock(DAY).await;
    let ends = [("u", "2026-03-31T15:00:00.000Z"), ("la", "2026-04-01T07:00:00.000Z")];
    for (user, end) in ends {
        assert_eq!(month(&t, user).await["resets_at"], end, "{user}");
        t.spend(user, 100, 300).await;
        assert_has(&month(&t, user).await, &json!({"resets_at": end, "used": 400}));
    }
    t.pass(10_000).await;
    assert_eq!(t.ask("u", 0, 0).await.row("pool_output")["remaining"], 500);
    t.put_plan(&Sheet::named("p").mt(500).field("applies", json!("next_window")).json()).await.ok();
    for (user, end) in ends {
        assert_eq!(t.quota(user).await.ok()["upcoming"]["effective_at"], end, "{user}");
    }
    t.set_clock("2026-03-31T15:00:00.000Z").await;
    assert_has(
        &month(&t, "u").await,
        &json!({"limit": 500, "used": 0, "resets_at": "2026-04-30T15:00:00.000Z"}),
    );
    assert_has(&month(&t, "la").await, &json!({"limit": 1000, "used": 400}));
}

#[tokio::test]
async fn moves_made_ahead_of_the_clock_are_done_and_those_to_come_come() {
    let t = ahead().await;
    t.plan(&Sheet::named("p").mt(1000)).await;
    t.put_plan(&Sheet::named("q").mt(2000).json()).await.ok();
    t.set_plan("done", "q").await.ok();
    let later = json!({"plan": "q", "effective": "2026-12-01T00:00:00Z"});
    t.move_user("waits", later).await.ok();
    t.set_clock(DAY).await;
    assert_has(&month(&t, "done").await, &json!({"limit": 2000}));
    assert_has(&month(&t, "waits").await, &json!({"limit": 1000}));
    let moved = t.move_user("done", json!({"plan": "p"})).await.ok();
    assert_eq!(moved["pending"]["effective_at"], APRIL);
    t.spend("done", 100, 0).await;
    t.set_clock("2026-12-01T00:00:00.000Z").await;
    assert_has(&month(&t, "done").await, &json!({"limit": 1000}));
    assert_has(&month(&t, "waits").await, &json!({"limit": 2000}));
}
