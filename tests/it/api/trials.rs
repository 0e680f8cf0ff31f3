//! Trials: a plan for a time, and what follows.

use serde_json::{Value, json};

use crate::harness::Tenant;
use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;

const END: &str = "2026-03-17T12:00:00.000Z";

async fn tenant() -> Tenant {
    let t = Tenant::with(Sheet::named("basic").mt(1000).cc(1)).await;
    t.put_plan(&Sheet::named("plus").mt(100_000).cc(5).json()).await.ok();
    t.put_plan(&Sheet::named("middle").mt(10_000).cc(2).json()).await.ok();
    t
}

/// The plan a user is on, and the pending change of the admin's view.
async fn stands(t: &Tenant, user: &str) -> (String, Value) {
    let shown = t.on_record(&format!("users/{user}")).await.ok();
    let quota = t.quota(user).await.ok();
    assert_eq!(quota["plan"], shown["plan"], "{user}");
    // The next plan, as the user sees it.
    let next = &shown["pending"];
    let upcoming = if next.is_null() {
        Value::Null
    } else {
        json!({"plan": next["plan"], "effective_at": next["effective_at"]})
    };
    assert_eq!(quota["upcoming"], upcoming, "{user}");
    (shown["plan"]["id"].as_str().unwrap().to_owned(), shown["pending"].clone())
}

#[tokio::test]
async fn a_trial_ends_by_itself_and_gives_back_the_plan_left() {
    let t = tenant().await;
    t.spend("u", 900, 0).await;
    t.move_user("u", json!({"plan": "plus", "until": END})).await.ok();
    let back = json!({"plan": {"id": "basic", "version": 1}, "effective_at": END, "then": null});
    assert_eq!(stands(&t, "u").await, ("plus".into(), back));
    t.spend("u", 50_000, 0).await;
    t.set_clock("2026-03-17T11:59:59.999Z").await;
    let hold = t.ask("u", 1000, 0).await.hold_id();
    t.set_clock(END).await;
    assert_eq!(stands(&t, "u").await, ("basic".into(), Value::Null));
    let left = t.left("u", "tokens_per_month").await;
    assert_has(
        &left,
        &json!({"limit": 1000, "used": 50_900, "held": 1000, "remaining": 0, "over_by": 50_900}),
    );
    t.ask("u", 1, 0).await.refused(429, "monthly_quota_exhausted");
    t.finish(&hold, 500, 0).await.ok();
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 51_400, "held": 0}));
    // Nothing of the trial is left in the month after it.
    t.set_clock("2026-04-01T00:00:00.000Z").await;
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"limit": 1000, "used": 0, "remaining": 1000}));
}

#[tokio::test]
async fn a_trial_may_be_followed_by_another_plan() {
    let t = tenant().await;
    t.move_user("u", json!({"plan": "plus", "until": END, "then": "middle"})).await.ok();
    let then = json!({"plan": {"id": "middle", "version": 1}, "effective_at": END, "then": null});
    assert_eq!(stands(&t, "u").await, ("plus".into(), then));
    t.set_clock(END).await;
    assert_eq!(stands(&t, "u").await, ("middle".into(), Value::Null));
}

#[tokio::test]
async fn a_trial_may_start_later() {
    let t = tenant().await;
    let start = "2026-03-11T00:00:00.000Z";
    for (user, then, after) in [("u", Value::Null, "basic"), ("v", json!("middle"), "middle")] {
        let mut body = json!({"plan": "plus", "effective": start, "until": END});
        if !then.is_null() {
            body["then"] = then;
        }
        let moved = t.move_user(user, body).await.ok();
        let expected = json!({
            "plan": {"id": "plus", "version": 1},
            "effective_at": start,
            "then": {"plan": {"id": after, "version": 1}, "effective_at": END},
        });
        assert_eq!(moved["pending"], expected);
        assert_eq!(stands(&t, user).await, ("basic".into(), expected));
    }
    t.set_clock(start).await;
    for (user, after) in [("u", "basic"), ("v", "middle")] {
        let (plan, pending) = stands(&t, user).await;
        assert_eq!((plan.as_str(), &pending["plan"]["id"]), ("plus", &json!(after)));
    }
    t.set_clock(END).await;
    for (user, after) in [("u", "basic"), ("v", "middle")] {
        assert_eq!(stands(&t, user).await, (after.to_owned(), Value::Null));
    }
}

#[tokio::test]
async fn a_trial_that_nobody_looked_at_while_it_ran_is_over_all_the_same() {
    let t = tenant().await;
    t.spend("u", 900, 0).await;
    t.move_user("u", json!({"plan": "plus", "effective": "2026-03-11T00:00:00Z", "until": END})).await.ok();
    t.set_clock("2026-05-05T05:05:05.000Z").await;
    assert_eq!(stands(&t, "u").await, ("basic".into(), Value::Null));
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"limit": 1000, "used": 0}));
    // The next change starts from the plan of now.
    let moved = t.move_user("u", json!({"plan": "plus", "until": "2026-05-06T00:00:00Z"})).await.ok();
    assert_eq!(moved["pending"]["plan"]["id"], "basic");
}

#[tokio::test]
async fn a_newer_change_replaces_a_trial_and_what_was_to_follow() {
    let t = tenant().await;
    // Bought during the trial: nothing takes it away again.
    t.move_user("u", json!({"plan": "plus", "until": END})).await.ok();
    t.move_user("u", json!({"plan": "plus", "effective": "now"})).await.ok();
    assert_eq!(stands(&t, "u").await, ("plus".into(), Value::Null));
    t.set_clock(END).await;
    assert_eq!(stands(&t, "u").await, ("plus".into(), Value::Null));
    // A second trial on top of the first: then it goes on as without the second.
    let later = "2026-03-20T00:00:00.000Z";
    t.move_user("v", json!({"plan": "middle", "until": "2026-03-19T00:00:00Z"})).await.ok();
    t.move_user("v", json!({"plan": "plus", "until": later})).await.ok();
    let back = json!({"plan": {"id": "basic", "version": 1}, "effective_at": later, "then": null});
    assert_eq!(stands(&t, "v").await, ("plus".into(), back));
    // A longer trial of the same plan, told what follows.
    t.move_user("w", json!({"plan": "plus", "until": "2026-03-19T00:00:00Z"})).await.ok();
    t.move_user("w", json!({"plan": "plus", "until": later, "then": "basic"})).await.ok();
    t.set_clock("2026-03-19T00:00:00.000Z").await;
    assert_eq!(stands(&t, "w").await.0, "plus");
    t.set_clock(later).await;
    assert_eq!(stands(&t, "w").await, ("basic".into(), Value::Null));
    assert_eq!(stands(&t, "v").await, ("basic".into(), Value::Null));
}

#[tokio::test]
async fn a_trial_of_less_starts_when_the_month_ends_unless_told_otherwise() {
    let t = tenant().await;
    t.set_plan("u", "plus").await.ok();
    let until = "2026-04-10T00:00:00.000Z";
    let moved = t.move_user("u", json!({"plan": "basic", "until": until})).await.ok();
    let expected = json!({
        "plan": {"id": "basic", "version": 1},
        "effective_at": "2026-04-01T00:00:00.000Z",
        "then": {"plan": {"id": "plus", "version": 1}, "effective_at": until},
    });
    assert_eq!(moved["pending"], expected);
    let moved = t.move_user("u", json!({"plan": "basic", "effective": "now", "until": until})).await.ok();
    assert_has(&moved, &json!({"plan": {"id": "basic"}, "pending": {"plan": {"id": "plus"}, "then": null}}));
}

#[tokio::test]
async fn a_numbered_trial_ends_by_itself_and_keeps_its_number() {
    let t = tenant().await;
    t.move_user("u", json!({"plan": "plus", "until": END, "sequence": 5})).await.ok();
    t.set_clock(END).await;
    assert_eq!(stands(&t, "u").await, ("basic".into(), Value::Null));
    t.move_user("u", json!({"plan": "plus"})).await.refused(409, "sequence_required");
    assert_eq!(t.move_user("u", json!({"plan": "plus", "sequence": 4})).await.ok()["stale"], true);
    assert_eq!(t.move_user("u", json!({"plan": "plus", "sequence": 6})).await.ok()["plan"]["id"], "plus");
}
