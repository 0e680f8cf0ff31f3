//! Moving users to other plans: now, when their month ends, at a time, in the order that numbers tell.

use serde_json::{Value, json};

use crate::harness::Tenant;
use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;

fn base(id: &str) -> Sheet {
    Sheet::named(id).input(100).output(100).rb(10, 10).mt(1000).cc(2)
}

/// Changes one field of one limit.
fn tuned(mut sheet: Value, limit: &str, field: &str, value: Value) -> Value {
    let limits = sheet["limits"].as_array_mut().unwrap();
    limits.iter_mut().find(|row| row["name"] == limit).unwrap()[field] = value;
    sheet
}

/// Sheets beside the base one, and whether going there takes something away.
pub fn neighbours(id: &str) -> Vec<(&'static str, Value, bool)> {
    let tune = |limit, field, value| tuned(base(id).json(), limit, field, value);
    let mut less = base(id).json();
    less["limits"].as_array_mut().unwrap().pop();
    let both = tuned(tune("tokens_per_month", "limit", json!(5000)), "concurrency", "limit", json!(1));
    let uncapped = base(id).field("per_call", json!({"max_input_tokens": 100}));
    vec![
        ("the same", base(id).json(), false),
        ("more of a window", tune("tokens_per_month", "limit", json!(1001)), false),
        ("less of a window", tune("tokens_per_month", "limit", json!(999)), true),
        ("nothing of a window", tune("tokens_per_month", "limit", json!(0)), true),
        ("a larger bucket", tune("requests_per_minute", "capacity", json!(11)), false),
        ("a smaller bucket", tune("requests_per_minute", "capacity", json!(9)), true),
        ("a faster bucket", tune("requests_per_minute", "refill_per_minute", json!(11)), false),
        ("a slower bucket", tune("requests_per_minute", "refill_per_minute", json!(9)), true),
        ("more places", tune("concurrency", "limit", json!(3)), false),
        ("fewer places", tune("concurrency", "limit", json!(1)), true),
        ("a larger input", base(id).input(101).json(), false),
        ("a smaller input", base(id).input(99).json(), true),
        ("a larger output", base(id).output(101).json(), false),
        ("a smaller output", base(id).output(99).json(), true),
        ("a cap less", uncapped.json(), false),
        ("a limit less", less, false),
        ("a limit more", base(id).dr(1_000_000).json(), true),
        ("a soft limit more", base(id).dr(1).but("enforce", json!("soft")).json(), false),
        ("a limit more that only counts", base(id).dr(1).but("enforce", json!("shadow")).json(), false),
        ("a limit that turns soft", tune("concurrency", "enforce", json!("soft")), false),
        ("another limit of the same name", tune("tokens_per_month", "meter", json!("input_tokens")), true),
        ("more of one, less of the other", both, true),
        ("another zone", tune("tokens_per_month", "zone", json!("Asia/Tokyo")), false),
        ("another weight", base(id).field("cache_read_weight", json!(0.5)).json(), false),
    ]
}

pub fn base_sheet(id: &str) -> Sheet {
    base(id)
}

#[tokio::test]
async fn a_user_is_moved_up_at_once_and_down_when_the_month_ends() {
    let t = Tenant::with(base("p")).await;
    let mut wrong = Vec::new();
    for (n, (what, sheet, is_down)) in neighbours("q").into_iter().enumerate() {
        t.put_plan(&sheet).await.ok();
        let user = format!("u{n}");
        t.ask(&user, 1, 1).await.ok();
        let moved = t.move_user(&user, json!({"plan": "q"})).await.ok();
        let (plan, end) = (&moved["plan"]["id"], &moved["pending"]["effective_at"]);
        let expected = if is_down { ("p", json!("2026-04-01T00:00:00.000Z")) } else { ("q", Value::Null) };
        if (plan.as_str(), end) != (Some(expected.0), &expected.1) {
            wrong.push(format!("{what}: {plan} until {end}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn a_limit_that_turns_from_soft_to_hard_is_taken_for_a_new_one() {
    for enforce in ["soft", "shadow"] {
        let t = Tenant::with(Sheet::named("p").mt(1000).but("enforce", json!(enforce))).await;
        t.put_plan(&Sheet::named("q").mt(1000).json()).await.ok();
        t.ask("u", 1, 0).await.ok();
        let moved = t.move_user("u", json!({"plan": "q"})).await.ok();
        assert_eq!(moved["pending"]["plan"]["id"], "q", "{enforce}");
    }
}

/// The month is the running window of the plan's first limit by the month, by the user's zone and
/// day; without such a limit it is the calendar's.
#[tokio::test]
async fn each_users_month_ends_by_their_own_zone_and_day() {
    let t = Tenant::at("Europe/Berlin", "2026-02-10T12:00:00.000Z").await;
    let anchored = |id: &str| Sheet::named(id).mt(1000).but("anchor", json!("user"));
    t.plan(&Sheet::named("small").mt(10)).await;
    t.put_plan(&anchored("anchored").json()).await.ok();
    t.put_plan(&Sheet::named("fixed").mt(1000).but("zone", json!("Pacific/Auckland")).json()).await.ok();
    t.put_plan(&Sheet::named("calendar").mt(1000).json()).await.ok();
    t.put_plan(&Sheet::named("daily").dr(1000).json()).await.ok();
    // A month of an org says nothing of a user's.
    let orgs =
        Sheet::named("orgs").mt(1000).but("scope", json!("org")).but("zone", json!("Pacific/Auckland"));
    t.put_plan(&orgs.json()).await.ok();
    for (plan, zone, day, end) in [
        ("calendar", None, None, "2026-02-28T23:00:00.000Z"),
        ("calendar", Some("Asia/Tokyo"), None, "2026-02-28T15:00:00.000Z"),
        ("calendar", Some("America/Los_Angeles"), Some(31), "2026-03-01T08:00:00.000Z"),
        ("anchored", None, None, "2026-02-28T23:00:00.000Z"),
        ("anchored", None, Some(31), "2026-02-27T23:00:00.000Z"),
        ("anchored", Some("Asia/Tokyo"), Some(31), "2026-02-27T15:00:00.000Z"),
        ("anchored", Some("Asia/Tokyo"), Some(9), "2026-03-08T15:00:00.000Z"),
        ("fixed", Some("Asia/Tokyo"), None, "2026-02-28T11:00:00.000Z"),
        ("daily", None, Some(31), "2026-02-28T23:00:00.000Z"),
        ("daily", Some("Asia/Tokyo"), Some(31), "2026-02-28T15:00:00.000Z"),
        ("orgs", Some("Asia/Tokyo"), None, "2026-02-28T15:00:00.000Z"),
    ] {
        let user = format!("{plan}-{zone:?}-{day:?}");
        t.put_user(&user, json!({"plan": plan, "zone": zone, "anchor_day": day})).await.ok();
        let moved = t.move_user(&user, json!({"plan": "small", "effective": "next_window"})).await.ok();
        assert_eq!(moved["pending"]["effective_at"], end, "{user}");
        assert_eq!(t.quota(&user).await.ok()["upcoming"]["effective_at"], end, "{user}");
    }
}

#[tokio::test]
async fn a_month_that_ends_late_after_a_change_of_zone_is_waited_for() {
    let t = Tenant::with(Sheet::named("large").mt(1000)).await;
    t.put_plan(&Sheet::named("small").mt(10).json()).await.ok();
    t.spend("u", 500, 0).await;
    t.put_user("u", json!({"zone": "Asia/Tokyo"})).await.ok();
    let moved = t.move_user("u", json!({"plan": "small"})).await.ok();
    // Tokyo's month ends nine hours earlier; the running window does not.
    assert_eq!(moved["pending"]["effective_at"], "2026-04-01T00:00:00.000Z");
    t.set_clock("2026-03-31T23:59:59.999Z").await;
    t.ask("u", 400, 0).await.ok();
    t.set_clock("2026-04-01T00:00:00.000Z").await;
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"limit": 10, "used": 0, "held": 0}));
    t.ask("u", 11, 0).await.refused(413, "exceeds_capacity");
}

#[tokio::test]
async fn one_change_is_pending_and_the_newest_wins() {
    let t = Tenant::with(Sheet::named("p").mt(1000)).await;
    for (id, limit) in [("a", 100), ("b", 200), ("c", 300)] {
        t.put_plan(&Sheet::named(id).mt(limit).json()).await.ok();
    }
    let at = "2026-03-20T00:00:00.000Z";
    t.move_user("u", json!({"plan": "a", "effective": "next_window"})).await.ok();
    let moved = t.move_user("u", json!({"plan": "b", "effective": at})).await.ok();
    assert_eq!(
        moved["pending"],
        json!({"plan": {"id": "b", "version": 1}, "effective_at": at, "then": null})
    );
    assert_eq!(
        t.quota("u").await.ok()["upcoming"],
        json!({"plan": {"id": "b", "version": 1}, "effective_at": at})
    );
    // A change that acts now leaves nothing pending, however it is made.
    let moved = t.move_user("u", json!({"plan": "c", "effective": "now"})).await.ok();
    assert_eq!((&moved["plan"]["id"], &moved["pending"]), (&json!("c"), &Value::Null));
    t.move_user("u", json!({"plan": "a", "effective": at})).await.ok();
    let put = t.put_user("u", json!({"plan": "p"})).await.ok();
    assert_eq!((&put["plan"]["id"], &put["pending"]), (&json!("p"), &Value::Null));
    // Also one that stays on the plan.
    t.move_user("u", json!({"plan": "a", "effective": at})).await.ok();
    let moved = t.move_user("u", json!({"plan": "p", "effective": "now"})).await.ok();
    assert_eq!(moved["pending"], Value::Null);
    // What else is changed leaves it as it is.
    t.move_user("u", json!({"plan": "a", "effective": at})).await.ok();
    t.put_user("u", json!({"verified": true})).await.ok();
    t.put_overrides("users/u", json!({"overrides": {"tokens_per_month": {"limit": 7}}})).await.ok();
    t.give("users/u", json!({"limit": "tokens_per_month", "amount": 5})).await.ok();
    assert_eq!(t.on_record("users/u").await.ok()["pending"]["plan"]["id"], "a");
    t.set_clock(at).await;
    let user = t.on_record("users/u").await.ok();
    assert_eq!((&user["plan"]["id"], &user["pending"]), (&json!("a"), &Value::Null));
    assert_eq!(t.quota("u").await.ok()["upcoming"], Value::Null);
}

#[tokio::test]
async fn a_move_at_a_time_holds_from_its_first_millisecond_and_one_in_the_past_at_once() {
    let t = Tenant::with(Sheet::named("p").dr(5)).await;
    t.put_plan(&Sheet::named("q").dr(1).json()).await.ok();
    t.ask("u", 0, 0).await.ok();
    t.move_user("u", json!({"plan": "q", "effective": "2026-03-10T13:00:00Z"})).await.ok();
    t.set_clock("2026-03-10T12:59:59.999Z").await;
    t.ask("u", 0, 0).await.ok();
    t.set_clock("2026-03-10T13:00:00.000Z").await;
    t.ask("u", 0, 0).await.refused(429, "daily_quota_exhausted");
    assert_has(&t.left("u", "requests_per_day").await, &json!({"limit": 1, "used": 2, "over_by": 1}));
    let moved = t.move_user("u", json!({"plan": "p", "effective": "2026-03-01T00:00:00Z"})).await.ok();
    assert_eq!((&moved["plan"]["id"], &moved["pending"]), (&json!("p"), &Value::Null));
    t.ask("u", 0, 0).await.ok();
}

#[tokio::test]
async fn of_numbered_changes_the_highest_wins_in_whatever_order_they_come() {
    let t = Tenant::with(Sheet::named("p").mt(1000)).await;
    for id in ["a", "b", "c"] {
        t.put_plan(&Sheet::named(id).mt(1000).json()).await.ok();
    }
    let event = |plan: &str, sequence: u64| json!({"plan": plan, "effective": "now", "sequence": sequence});
    let orders = [[1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]];
    for (n, order) in orders.into_iter().enumerate() {
        let user = format!("u{n}");
        let mut highest = 0;
        for sequence in order {
            for _ in 0..2 {
                let plan = ["a", "b", "c"][sequence as usize - 1];
                let reply = t.move_user(&user, event(plan, sequence)).await.ok();
                assert_eq!(reply["stale"], sequence < highest, "{order:?} {sequence}");
                highest = highest.max(sequence);
            }
        }
        assert_eq!(t.on_record(&format!("users/{user}")).await.ok()["plan"]["id"], "c", "{order:?}");
    }
    // An equal number with another plan is the same event told differently: the first stands.
    let before = t.on_record("users/u0").await.ok();
    let again = t.move_user("u0", event("a", 3)).await.ok();
    assert_has(&again, &json!({"stale": false, "plan": {"id": "c"}, "version": before["version"]}));
    // Without a number nobody can tell whether it is newer.
    t.move_user("u0", json!({"plan": "a", "effective": "now"})).await.refused(409, "sequence_required");
    t.put_user("u0", json!({"plan": "a"})).await.refused(409, "sequence_required");
    t.put_user("u0", json!({"verified": true})).await.ok();
    assert_eq!(t.on_record("users/u0").await.ok()["plan"]["id"], "c");
    // The largest number a body may have, and those beyond it.
    t.move_user("u0", event("a", (1 << 53) - 1)).await.ok();
    t.move_user("u0", event("b", 1 << 53)).await.refused(400, "invalid_request");
    assert_eq!(t.on_record("users/u0").await.ok()["plan"]["id"], "a");
}

#[tokio::test]
async fn a_stale_change_leaves_what_is_pending_and_is_told_in_the_audit() {
    let t = Tenant::with(Sheet::named("p").mt(1000)).await;
    t.put_plan(&Sheet::named("q").mt(10).json()).await.ok();
    let pending = t.move_user("u", json!({"plan": "q", "sequence": 7})).await.ok();
    assert_eq!(pending["pending"]["plan"]["id"], "q");
    let late = json!({"plan": "p", "effective": "now", "sequence": 6, "reason": "an old event"});
    let stale = t.move_user("u", late).await.ok();
    assert_has(&stale, &json!({"stale": true, "version": pending["version"], "pending": pending["pending"]}));
    t.move_user("u", json!({"plan": "p", "effective": "now", "sequence": 7})).await.ok();
    assert_eq!(t.on_record("users/u").await.ok()["pending"], pending["pending"]);
    let audit = t.get("/v1/admin/audit?target=u").await.ok();
    assert_eq!(audit["data"].as_array().map(Vec::len), Some(2), "{audit}");
    let expected = json!({
        "action": "user.plan_stale",
        "target": "u",
        "before": {"plan": "p", "sequence": 7},
        "after": {"plan": "p", "sequence": 6},
        "reason": "an old event",
        "at": "2026-03-10T12:00:00.000Z",
    });
    assert_has(&audit["data"][0], &expected);
}

#[tokio::test]
async fn lists_of_users_see_the_moves_that_have_come() {
    let t = Tenant::with(Sheet::named("p").mt(1000)).await;
    t.put_plan(&Sheet::named("q").mt(10).json()).await.ok();
    for user in ["a", "b", "c"] {
        t.put_user(user, json!({"org": "acme"})).await.ok();
    }
    t.move_user("a", json!({"plan": "q"})).await.ok();
    t.move_user(
        "b",
        json!({"plan": "q", "effective": "2026-03-11T00:00:00Z", "until": "2026-03-12T00:00:00Z"}),
    )
    .await
    .ok();
    for (at, of_p, of_q) in [
        ("2026-03-10T12:00:00.000Z", "a b c", ""),
        ("2026-03-10T23:59:59.999Z", "a b c", ""),
        ("2026-03-11T00:00:00.000Z", "a c", "b"),
        ("2026-03-12T00:00:00.000Z", "a b c", ""),
        ("2026-04-01T00:00:00.000Z", "b c", "a"),
    ] {
        t.set_clock(at).await;
        for (plan, expected) in [("p", of_p), ("q", of_q)] {
            for filter in [format!("plan={plan}"), format!("plan={plan}&org=acme")] {
                let list = t.get(&format!("/v1/admin/users?{filter}")).await.ok();
                let rows = list["data"].as_array().unwrap();
                let users: Vec<&str> = rows.iter().map(|row| row["user"].as_str().unwrap()).collect();
                assert_eq!(users.join(" "), expected, "{at} {filter}");
                assert!(rows.iter().all(|row| row["plan"]["id"] == plan), "{list}");
            }
        }
    }
}

#[tokio::test]
async fn a_move_that_cannot_be_is_refused_and_changes_nothing() {
    let t = Tenant::with(Sheet::named("p").mt(1000)).await;
    t.put_plan(&Sheet::named("q").mt(10).json()).await.ok();
    t.put_user("u", json!({})).await.ok();
    let before = t.on_record("users/u").await.ok();
    for (body, pointer) in [
        (json!({}), "/plan"),
        (json!({"plan": 7}), "/plan"),
        (json!({"plan": "q", "effective": "soon"}), "/effective"),
        (json!({"plan": "q", "effective": "2026-03-11"}), "/effective"),
        (json!({"plan": "q", "sequence": -1}), "/sequence"),
        (json!({"plan": "q", "sequence": 1.5}), "/sequence"),
        (json!({"plan": "q", "until": "tomorrow"}), "/until"),
        (json!({"plan": "q", "effective": "now", "until": "2026-03-10T12:00:00Z"}), "/until"),
        (
            json!({"plan": "q", "effective": "2026-03-12T00:00:00Z", "until": "2026-03-11T00:00:00Z"}),
            "/until",
        ),
        (json!({"plan": "q", "until": "2026-03-31T00:00:00Z"}), "/until"),
        (json!({"plan": "q", "then": "p"}), "/until"),
        (json!({"plan": "q", "colour": "red"}), "/colour"),
    ] {
        let refused = t.move_user("u", body.clone()).await.refused(400, "invalid_request");
        assert_eq!(refused.body["errors"][0]["pointer"], pointer, "{body}: {}", refused.text);
    }
    let bare = json!({"plan": "q", "effective": "now"});
    let refused = t.post("/v1/admin/users/u/plan", &bare).await.refused(400, "invalid_request");
    assert_eq!(refused.body["errors"][0]["pointer"], "/reason");
    t.move_user("u", json!({"plan": "none"})).await.refused(404, "unknown_plan");
    let then = json!({"plan": "q", "effective": "now", "until": "2026-03-11T00:00:00Z", "then": "none"});
    t.move_user("u", then).await.refused(404, "unknown_plan");
    assert_eq!(t.on_record("users/u").await.ok(), before);
    t.on_record("users/nobody").await.refused(404, "not_found");
}

#[tokio::test]
async fn whoever_is_not_on_record_is_moved_from_the_default_plan() {
    let t = Tenant::with(Sheet::named("p").mt(1000)).await;
    t.put_plan(&Sheet::named("q").mt(10).json()).await.ok();
    let moved = t.move_user("new", json!({"plan": "q"})).await.ok();
    assert_has(&moved, &json!({"plan": {"id": "p"}, "pending": {"plan": {"id": "q"}}, "version": 1}));
    // A tenant without a default plan: they come with the plan, whatever it gives.
    let t = Tenant::at("UTC", "2026-03-10T12:00:00.000Z").await;
    t.put_plan(&Sheet::named("q").mt(10).json()).await.ok();
    t.put_settings(json!({"default_plan": null})).await.ok();
    let moved = t.move_user("new", json!({"plan": "q"})).await.ok();
    assert_has(&moved, &json!({"plan": {"id": "q"}, "pending": null}));
}

#[tokio::test]
async fn one_tenants_users_and_plans_are_nothing_to_another() {
    let t = Tenant::with(Sheet::named("p").mt(1000)).await;
    let other = Tenant::with(Sheet::named("elsewhere").mt(5)).await;
    t.put_user("u", json!({"org": "acme"})).await.ok();
    t.put_org("acme", json!({"plan": "p"})).await.ok();
    t.give("users/u", json!({"limit": "tokens_per_month", "amount": 5})).await.ok();
    t.put_overrides("users/u", json!({"overrides": {"tokens_per_month": {"limit": 7}}})).await.ok();
    other.on_record("users/u").await.refused(404, "not_found");
    other.on_record("orgs/acme").await.refused(404, "not_found");
    other.move_user("u", json!({"plan": "p"})).await.refused(404, "unknown_plan");
    other.put_org("acme", json!({"plan": "p"})).await.refused(404, "unknown_plan");
    assert_has(&other.left("u", "tokens_per_month").await, &json!({"limit": 5, "remaining": 5}));
    other.move_user("u", json!({"plan": "elsewhere", "effective": "now"})).await.ok();
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"limit": 7, "granted": 5}));
    assert_eq!(t.on_record("users/u").await.ok()["plan"]["id"], "p");
}
