//! What is known to come is counted in: waits over changes of figures, trials
//! within trials, sheets put while others wait.

use serde_json::{Value, json};

use crate::harness::Tenant;
use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;

async fn overridden(t: &Tenant, capacity: u64, refill: u64, until: &str) {
    let numbers = json!({"capacity": capacity, "refill_per_minute": refill});
    let body = json!({"overrides": {"requests_per_minute": numbers}, "expires_at": until, "reason": "test"});
    t.put("/v1/admin/users/u/overrides", &body).await.ok();
}

/// Asks until refused; then asks 1 ms before the wait told is over, and when it is.
async fn wait_is_exact(t: &Tenant) -> i64 {
    let mut refused = t.ask("u", 0, 0).await;
    while refused.status == 200 {
        refused = t.ask("u", 0, 0).await;
    }
    let wait = refused.body["retry_after_ms"].as_i64().expect("a wait");
    t.pass(wait - 1).await;
    t.ask("u", 0, 0).await.refused(429, "request_rate_exceeded");
    t.pass(1).await;
    t.ask("u", 0, 0).await.ok();
    wait
}

#[tokio::test]
async fn a_wait_counts_the_end_of_an_override() {
    let t = Tenant::with(Sheet::named("p").rb(5, 6)).await;
    // 60 a minute for a quarter of a second more, then 6 a minute, with room for 5.
    overridden(&t, 10, 60, "2026-03-10T12:00:00.250Z").await;
    let wait = wait_is_exact(&t).await;
    assert_eq!(wait, 250 + (5_750 * 10), "the five more that it had room for are repaid first");
}

#[tokio::test]
async fn a_wait_counts_a_move_to_come() {
    let t = Tenant::with(Sheet::named("slow").rb(5, 5)).await;
    t.put_plan(&Sheet::named("fast").rb(5, 60).json()).await.ok();
    let body = json!({"plan": "fast", "effective": "2026-03-10T12:00:03.000Z", "reason": "test"});
    t.post("/v1/admin/users/u/plan", &body).await.ok();
    assert_eq!(wait_is_exact(&t).await, 3_750, "3 s of a twelfth each, then one a second");
}

async fn change(t: &Tenant, body: Value) -> Value {
    let mut body = body;
    body["reason"] = "test".into();
    t.post("/v1/admin/users/u/plan", &body).await.ok()
}

#[tokio::test]
async fn a_trial_within_a_trial_ends_as_the_outer_one_would_have() {
    let t = Tenant::with(Sheet::named("free").mt(100)).await;
    for (plan, limit) in [("pro", 1000), ("max", 9000)] {
        t.put_plan(&Sheet::named(plan).mt(limit).json()).await.ok();
    }
    change(&t, json!({"plan": "pro", "until": "2026-03-20T00:00:00.000Z"})).await;
    let user = change(&t, json!({"plan": "max", "until": "2026-03-15T00:00:00.000Z"})).await;
    let then = json!({"effective_at": "2026-03-20T00:00:00.000Z"});
    assert_has(&user["pending"], &json!({"effective_at": "2026-03-15T00:00:00.000Z"}));
    assert_has(&user["pending"]["then"], &then);
    for (at, plan) in [("2026-03-14", "max"), ("2026-03-15", "pro"), ("2026-03-20", "free")] {
        t.set_clock(&format!("{at}T00:00:00.000Z")).await;
        assert_eq!(t.quota("u").await.ok()["plan"]["id"], plan, "{at}");
    }
}

#[tokio::test]
async fn a_trial_leaves_a_pending_cancellation_standing() {
    let t = Tenant::with(Sheet::named("free").mt(100)).await;
    t.put_plan(&Sheet::named("pro").mt(1000).json()).await.ok();
    t.put_plan(&Sheet::named("max").mt(9000).json()).await.ok();
    t.set_plan("u", "pro").await.ok();
    change(&t, json!({"plan": "free"})).await;
    change(&t, json!({"plan": "max", "effective": "now", "until": "2026-03-15T00:00:00.000Z"})).await;
    for (at, plan) in [("2026-03-14", "max"), ("2026-03-15", "pro"), ("2026-04-01", "free")] {
        t.set_clock(&format!("{at}T00:00:00.000Z")).await;
        assert_eq!(t.quota("u").await.ok()["plan"]["id"], plan, "{at}");
    }
}

/// Puts a sheet without saying when it applies.
async fn put(t: &Tenant, limit: u64, to: &str) -> String {
    let mut body = Sheet::named("p").mt(limit).json();
    body["to"] = to.into();
    body["reason"] = "test".into();
    let written = t.put("/v1/admin/plans/p", &body).await.ok();
    written["applies"].as_str().expect("applies").to_owned()
}

#[tokio::test]
async fn a_sheet_is_a_downgrade_if_it_is_one_for_anybody() {
    let t = Tenant::with(Sheet::named("p").mt(1000)).await;
    t.spend("u", 100, 0).await;
    assert_eq!(put(&t, 500, "everyone").await, "next_window");
    assert_eq!(put(&t, 800, "everyone").await, "next_window", "more than what waits, less than what holds");
    assert_eq!(put(&t, 1000, "everyone").await, "now", "as it was");
    assert_eq!(put(&t, 50, "new_users").await, "next_window");
    assert_eq!(put(&t, 60, "everyone").await, "next_window", "most are on the old one");
    assert_eq!(t.left("u", "tokens_per_month").await["limit"], 1000);
}

#[tokio::test]
async fn a_cursor_of_one_list_is_none_of_another() {
    let t = Tenant::with(Sheet::named("p").mt(1000)).await;
    for user in ["a", "b"] {
        t.spend(user, 1, 1).await;
    }
    let page = t.get("/v1/admin/users?limit=1").await.ok();
    let cursor = page["next_cursor"].as_str().expect("more").to_owned();
    assert_eq!(t.get(&format!("/v1/admin/users?cursor={cursor}")).await.ok()["data"][0]["user"], "b");
    for list in ["plans", "keys", "audit", "holds", "users/a/ledger"] {
        t.get(&format!("/v1/admin/{list}?cursor={cursor}")).await.refused(400, "invalid_request");
    }
}

#[tokio::test]
async fn use_of_somebody_without_any_plan_puts_nobody_on_record() {
    let t = Tenant::with(Sheet::named("p").mt(1000)).await;
    t.put_settings(json!({"default_plan": null})).await.ok();
    let used = json!({"id": "d", "user": "new", "input_tokens": 1, "output_tokens": 1});
    assert_eq!(t.post("/v1/usage", &used).await.ok()["results"][0]["status"], "recorded");
    t.ask("new", 1, 1).await.refused(404, "unknown_user");
    assert_eq!(t.quota("new").await.status, 404);
    assert_eq!(t.get("/v1/admin/users/new").await.status, 404);
    t.put_settings(json!({"default_plan": "p"})).await.ok();
    t.ask("new", 1, 1).await.ok();
}

#[tokio::test]
async fn a_key_in_pem_is_no_shared_secret() {
    let t = Tenant::with(Sheet::named("p").mt(1000)).await;
    let pem = format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", "A".repeat(64));
    let body = json!({"kind": "jwt", "algorithm": "HS256", "public_key": pem, "scopes": ["check"]});
    let refused = t.post("/v1/admin/keys", &body).await.refused(400, "invalid_request");
    assert_eq!(refused.body["errors"][0]["pointer"], "/public_key");
}

#[tokio::test]
async fn the_same_trial_twice_is_one_trial() {
    let t = Tenant::with(Sheet::named("free").mt(100)).await;
    t.put_plan(&Sheet::named("pro").mt(1000).json()).await.ok();
    let trial = json!({"plan": "pro", "until": "2026-03-20T00:00:00.000Z"});
    let first = change(&t, trial.clone()).await;
    assert_eq!(change(&t, trial).await["pending"], first["pending"]);
    // Prolonged: it ends later, with the plan of before.
    change(&t, json!({"plan": "pro", "until": "2026-03-25T00:00:00.000Z"})).await;
    t.set_clock("2026-03-24T00:00:00.000Z").await;
    assert_eq!(t.quota("u").await.ok()["plan"]["id"], "pro");
    t.set_clock("2026-03-25T00:00:00.000Z").await;
    assert_eq!(t.quota("u").await.ok()["plan"]["id"], "free");
}
