//! Making good to many users at once: once each, with a look before and a way back.

use serde_json::{Value, json};

use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;
use crate::harness::{Tenant, number_from_env};

const PATH: &str = "/v1/admin/make-goods/outage";

async fn left(t: &Tenant, user: &str) -> i64 {
    t.remaining(user, "tokens_per_month").await
}

fn grant(users: Value, amount: u64) -> Value {
    json!({"users": users, "grant": {"limit": "tokens_per_month", "amount": amount}, "reason": "the outage"})
}

/// Three users of plan `p`, one of `q`, and one of a plan without a month.
async fn people() -> Tenant {
    let t = Tenant::with(Sheet::new().mt(1_000)).await;
    t.put_plan(&Sheet::named("q").mt(5_000).json()).await.ok();
    t.put_plan(&Sheet::named("r").rb(10, 10).json()).await.ok();
    for (user, plan) in [("a", "p"), ("b", "p"), ("c", "p"), ("d", "q"), ("e", "r")] {
        t.put_user(user, json!({"plan": plan})).await.ok();
    }
    t
}

#[tokio::test]
async fn a_look_tells_what_it_would_come_to_and_changes_nothing() {
    let t = people().await;
    let mut body = grant(json!({}), 500);
    body["dry_run"] = json!(true);
    let seen = t.put(PATH, &body).await.ok();
    assert_has(&seen, &json!({"state": "dry_run", "matched": 5, "given": 4, "skipped": 1, "amount": 2_000}));
    assert_eq!(left(&t, "a").await, 1_000);
    t.get(PATH).await.refused(404, "not_found");
    assert_eq!(t.get("/v1/admin/make-goods").await.ok()["data"], json!([]));
}

#[tokio::test]
async fn everybody_who_is_meant_gets_it_once() {
    let t = people().await;
    t.spend("a", 600, 300).await;
    let body = grant(json!({"plan": "p"}), 500);
    for _ in 0..2 {
        let done = t.put(PATH, &body).await.ok();
        assert_has(&done, &json!({"state": "done", "matched": 3, "given": 3, "amount": 1_500, "undone": 0}));
    }
    assert_eq!((left(&t, "a").await, left(&t, "b").await, left(&t, "d").await), (600, 1_500, 5_000));
    let known = t.get("/v1/admin/users/a").await.ok();
    assert_has(
        &known["grants"][0],
        &json!({"limit": "tokens_per_month", "amount": 500, "reason": "the outage"}),
    );
    t.put(PATH, &grant(json!({"plan": "p"}), 501)).await.refused(422, "request_id_reused");
    // Another one is another one.
    t.put("/v1/admin/make-goods/again", &body).await.ok();
    assert_eq!(left(&t, "b").await, 2_000);
    let audit = t.get("/v1/admin/audit?target=b").await.ok();
    assert_eq!(audit["data"][0]["reason"], "the outage");
    let audit = t.get("/v1/admin/audit?target=outage").await.ok();
    assert_eq!(audit["data"][0]["action"], "make_good.put");
    assert_eq!(t.get("/v1/admin/make-goods").await.ok()["data"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn what_was_given_is_taken_back_and_what_was_used_of_it_stays_used() {
    let t = people().await;
    t.spend("a", 600, 300).await;
    t.put(PATH, &grant(json!({"ids": ["a", "b", "a", "nobody"]}), 500)).await.ok();
    t.spend("a", 200, 100).await;
    let undo = format!("{PATH}/undo");
    t.post(&undo, &json!({})).await.refused(400, "invalid_request");
    for _ in 0..2 {
        let done = t.post(&undo, &json!({"reason": "given by mistake"})).await.ok();
        assert_has(&done, &json!({"state": "undone", "given": 2, "undone": 2}));
    }
    let row = t.left("a", "tokens_per_month").await;
    assert_has(&row, &json!({"used": 1_200, "remaining": 0, "over_by": 200}));
    assert_eq!(left(&t, "b").await, 1_000);
    // The id stands for what it was.
    let again = t.put(PATH, &grant(json!({"ids": ["a", "b", "nobody"]}), 500)).await.ok();
    assert_eq!((again["state"].as_str(), left(&t, "b").await), (Some("undone"), 1_000));
    t.post("/v1/admin/make-goods/nothing/undo", &json!({"reason": "x"})).await.refused(404, "not_found");
}

#[tokio::test]
async fn an_erased_user_does_not_come_back_with_what_was_taken_back() {
    let t = people().await;
    for user in ["a", "b"] {
        t.spend(user, 600, 300).await;
    }
    t.put(PATH, &grant(json!({"ids": ["a", "b"]}), 500)).await.ok();
    t.erase("a").await;
    let done = t.post(&format!("{PATH}/undo"), &json!({"reason": "given by mistake"})).await.ok();
    assert_has(&done, &json!({"state": "undone", "given": 2, "undone": 2}));
    t.ask("a", 500, 50).await.refused(429, "monthly_quota_exhausted");
    t.ask("a", 50, 50).await.hold_id();
}

#[tokio::test]
async fn a_reset_gives_back_what_the_window_has_used_until_it_ends() {
    let t = Tenant::with(Sheet::new().dr(3).mt(1_000)).await;
    for user in ["a", "b", "c"] {
        t.put_user(user, json!({"plan": "p"})).await.ok();
    }
    for _ in 0..3 {
        t.spend("a", 10, 5).await;
    }
    t.spend("b", 10, 5).await;
    t.ask("a", 1, 1).await.refused(429, "daily_quota_exhausted");
    let reset = json!({"users": {}, "reset": {"limit": "requests_per_day"}, "reason": "our fault"});
    let done = t.put(PATH, &reset).await.ok();
    assert_has(&done, &json!({"matched": 3, "given": 2, "skipped": 1, "amount": 4}));
    assert_eq!(t.remaining("a", "requests_per_day").await, 3);
    assert_eq!(t.remaining("b", "requests_per_day").await, 3);
    assert_eq!(left(&t, "a").await, 955, "nothing else was reset");
    t.set_clock("2026-03-11T00:00:00Z").await;
    for user in ["a", "b", "c"] {
        assert_has(&t.left(user, "requests_per_day").await, &json!({"remaining": 3, "used": 0}));
    }
    t.put(PATH, &reset).await.ok();
    assert_eq!(t.remaining("a", "requests_per_day").await, 3, "once");
}

#[tokio::test]
async fn those_who_were_refused_are_found() {
    let t = people().await;
    t.ask("a", 1_500, 1).await.refused(413, "exceeds_capacity");
    t.spend("b", 600, 400).await;
    t.ask("b", 1, 1).await.refused(429, "monthly_quota_exhausted");
    t.set_clock("2026-03-12T00:00:00Z").await;
    t.spend("c", 600, 400).await;
    t.ask("c", 1, 1).await.refused(429, "monthly_quota_exhausted");
    let matched = async |from: &str, to: &str, code: Value| {
        let mut body = grant(json!({"refused": {"from": from, "to": to, "code": code}}), 1);
        body["dry_run"] = json!(true);
        t.put(PATH, &body).await.ok()["matched"].as_u64().unwrap()
    };
    assert_eq!(matched("2026-03-10", "2026-03-11", Value::Null).await, 2);
    assert_eq!(matched("2026-03-10", "2026-03-11", json!("monthly_quota_exhausted")).await, 1);
    assert_eq!(matched("2026-03-10", "2026-03-13", json!("monthly_quota_exhausted")).await, 2);
    assert_eq!(matched("2026-03-11", "2026-03-11", Value::Null).await, 0);
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_its_field_named() {
    let t = people().await;
    let bad = async |body: Value, pointer: &str| {
        let reply = t.put(PATH, &body).await.refused(400, "invalid_request");
        assert_eq!(reply.body["errors"][0]["pointer"], pointer, "{body}");
    };
    let mut body = grant(json!({}), 5);
    body["reset"] = json!({"limit": "tokens_per_month"});
    bad(body, "/grant").await;
    bad(json!({"users": {}, "reason": "x"}), "/grant").await;
    bad(json!({"grant": {"limit": "tokens_per_month", "amount": 1}, "reason": "x"}), "/users").await;
    bad(grant(json!({}), 0), "/grant/amount").await;
    bad(json!({"users": {}, "reset": {"limit": "requests_per_minute"}, "reason": "x"}), "/reset/limit").await;
    let mut over = grant(json!({}), 1);
    over["grant"]["expires_at"] = json!("2026-03-10T12:00:00Z");
    bad(over, "/grant/expires_at").await;
    bad(grant(json!({"refused": {"from": "2026-03-11", "to": "2026-03-10"}}), 1), "/users/refused/to").await;
    bad(grant(json!({"ids": ["a", ""]}), 1), "/users/ids/1").await;
    t.put(PATH, &grant(json!({"plan": "nothing"}), 1)).await.refused(404, "unknown_plan");
    t.get(PATH).await.refused(404, "not_found");
    assert_eq!(left(&t, "a").await, 1_000);
}

#[tokio::test]
async fn more_than_a_page_of_users_gets_it() {
    let t = Tenant::with(Sheet::new().mt(1_000)).await;
    t.put_settings(json!({"default_plan": "p"})).await.ok();
    let users = number_from_env("MAKE_GOOD_USERS", 1_100) as u64;
    let id = |n: u64| format!("u{n:06}");
    for first in (0..users).step_by(100) {
        let check = |n| json!({"user": id(n), "input_tokens": 1, "max_output_tokens": 1});
        let items: Vec<Value> = (first..users.min(first + 100)).map(check).collect();
        t.check_batch(&items).await.ok();
    }
    let begun = std::time::Instant::now();
    let mut done = t.put(PATH, &grant(json!({}), 7)).await.ok();
    while done["state"] == "running" {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        done = t.get(PATH).await.ok();
    }
    println!("{users} users in {:?}", begun.elapsed());
    assert_has(&done, &json!({"state": "done", "matched": users, "given": users, "amount": 7 * users}));
    for n in [0, 499, 500, users - 1] {
        assert_eq!(left(&t, &id(n)).await, 1_005, "{}", id(n));
    }
}
