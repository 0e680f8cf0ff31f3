//! Versions of a plan: for whom each holds, and from when.

use serde_json::{Value, json};

use super::moves::{base_sheet, neighbours};
use crate::harness::Tenant;
use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;

const MONTH_END: &str = "2026-04-01T00:00:00.000Z";
const NOON: &str = "2026-03-10T12:00:00.000Z";

/// `PUT plans/{id}` without `applies` unless the body names it.
async fn put(t: &Tenant, mut body: Value) -> Value {
    body["reason"] = json!("test");
    let id = body["id"].as_str().unwrap().to_owned();
    t.put(&format!("/v1/admin/plans/{id}"), &body).await.ok()
}

/// The version that a user is on, and when which one comes.
async fn version(t: &Tenant, user: &str) -> (i64, Value) {
    let quota = t.quota(user).await.ok();
    (quota["plan"]["version"].as_i64().expect("a version"), quota["upcoming"].clone())
}

fn comes(id: &str, version: i64, at: &str) -> Value {
    json!({"plan": {"id": id, "version": version}, "effective_at": at})
}

#[tokio::test]
async fn a_version_that_takes_something_away_waits_for_the_months_end_unless_told_otherwise() {
    let mut wrong = Vec::new();
    let t = Tenant::with(Sheet::named("other")).await;
    for (what, sheet, is_down) in neighbours("q") {
        put(&t, base_sheet("q").field("applies", json!("now")).json()).await;
        let (applies, at) = if is_down { ("next_window", MONTH_END) } else { ("now", NOON) };
        let mut dry = sheet.clone();
        dry["dry_run"] = json!(true);
        for body in [dry, sheet] {
            let reply = put(&t, body).await;
            if (reply["applies"].as_str(), reply["effective_at"].as_str()) != (Some(applies), Some(at)) {
                wrong.push(format!("{what}: {} at {}", reply["applies"], reply["effective_at"]));
            }
        }
        let mut told = sheet_of(&t).await;
        told["applies"] = json!("now");
        assert_has(&put(&t, told).await, &json!({"applies": "now", "effective_at": NOON}));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The sheet in force, as a body to be put again.
async fn sheet_of(t: &Tenant) -> Value {
    let mut sheet = t.get("/v1/admin/plans/q").await.ok();
    for name in ["version", "effective_at", "applies", "to"] {
        sheet.as_object_mut().unwrap().remove(name);
    }
    sheet
}

/// Who is on which version while a smaller sheet waits: the others until their own month ends.
#[tokio::test]
async fn a_smaller_version_waits_for_each_users_own_month_and_holds_for_who_comes_meanwhile() {
    let t = Tenant::at("UTC", "2026-03-10T12:00:00.000Z").await;
    t.plan(&Sheet::named("p").mt(1000).but("anchor", json!("user"))).await;
    t.put_plan(&Sheet::named("other").dr(5).json()).await.ok();
    for (user, body) in [
        ("plain", json!({})),
        ("tokyo", json!({"zone": "Asia/Tokyo"})),
        ("last day", json!({"anchor_day": 31})),
        ("elsewhere", json!({"plan": "other"})),
    ] {
        t.put_user(user, body).await.ok();
    }
    t.spend("plain", 600, 0).await;
    put(&t, Sheet::named("p").mt(500).but("anchor", json!("user")).json()).await;
    // The tenant's clock stands: who comes after the change is new all the same.
    t.put_user("new", json!({})).await.ok();
    t.spend("called", 1, 0).await;
    t.set_plan("elsewhere", "p").await.ok();
    for (user, end) in [
        ("plain", MONTH_END),
        ("tokyo", "2026-03-31T15:00:00.000Z"),
        ("last day", "2026-03-31T00:00:00.000Z"),
    ] {
        assert_eq!(version(&t, user).await, (1, comes("p", 2, end)), "{user}");
    }
    for user in ["new", "called", "elsewhere", "never seen"] {
        assert_eq!(version(&t, user).await, (2, Value::Null), "{user}");
        t.ask(user, 501, 0).await.refused(413, "exceeds_capacity");
    }
    t.ask("plain", 400, 0).await.ok();
    t.set_clock("2026-03-31T00:00:00.000Z").await;
    assert_eq!(version(&t, "last day").await, (2, Value::Null));
    assert_eq!(version(&t, "tokyo").await.0, 1);
    t.set_clock("2026-03-31T23:59:59.999Z").await;
    assert_eq!(version(&t, "tokyo").await, (2, Value::Null));
    assert_has(&t.left("plain", "tokens_per_month").await, &json!({"limit": 1000, "remaining": 0}));
    t.set_clock(MONTH_END).await;
    assert_eq!(version(&t, "plain").await, (2, Value::Null));
    let check = t.ask("plain", 500, 0).await;
    assert_eq!(check.body["plan"], json!({"id": "p", "version": 2}));
    assert_has(&check.row("tokens_per_month"), &json!({"limit": 500, "used": 0, "held": 500}));
    assert_eq!(t.on_record("users/plain").await.ok()["plan"]["version"], 2);
}

#[tokio::test]
async fn whoever_leaves_a_plan_and_comes_back_while_a_version_waits_has_come_to_it() {
    let t = Tenant::with(Sheet::named("p").mt(1000)).await;
    t.put_plan(&Sheet::named("other").dr(5).json()).await.ok();
    t.spend("u", 600, 0).await;
    put(&t, Sheet::named("p").mt(500).json()).await;
    assert_eq!(version(&t, "u").await.0, 1);
    // Staying is no coming.
    t.set_plan("u", "p").await.ok();
    assert_eq!(version(&t, "u").await.0, 1);
    t.set_plan("u", "other").await.ok();
    t.set_plan("u", "p").await.ok();
    assert_eq!(version(&t, "u").await, (2, Value::Null));
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"limit": 500, "used": 600, "over_by": 100}));
}

#[tokio::test]
async fn the_newest_waiting_version_wins() {
    let t = Tenant::with(Sheet::named("p").mt(1000)).await;
    t.ask("u", 0, 0).await.ok();
    put(&t, Sheet::named("p").mt(500).json()).await;
    t.pass(60_000).await;
    put(&t, Sheet::named("p").mt(400).json()).await;
    assert_eq!(version(&t, "u").await, (1, comes("p", 3, MONTH_END)));
    assert_eq!(version(&t, "new").await, (3, Value::Null));
    // One that acts now leaves nothing waiting.
    put(&t, Sheet::named("p").mt(900).field("applies", json!("now")).json()).await;
    assert_eq!(version(&t, "u").await, (4, Value::Null));
    t.set_clock(MONTH_END).await;
    assert_eq!(version(&t, "u").await, (4, Value::Null));
}

/// What is smaller or larger is told by what people are on, not by what still waits.
#[tokio::test]
async fn a_version_is_compared_with_those_that_hold_for_somebody() {
    let t = Tenant::with(Sheet::named("p").mt(1000)).await;
    t.ask("u", 0, 0).await.ok();
    put(&t, Sheet::named("p").mt(500).json()).await;
    // More than what waits, less than what nearly everybody has.
    let third = put(&t, Sheet::named("p").mt(800).json()).await;
    assert_has(&third, &json!({"applies": "next_window", "effective_at": MONTH_END}));
    assert_eq!(version(&t, "u").await, (1, comes("p", 3, MONTH_END)));
    // More than anybody has.
    assert_eq!(put(&t, Sheet::named("p").mt(1001).json()).await["applies"], "now");
    // Less than what is to come, more than anybody has.
    let at = "2026-03-20T00:00:00.000Z";
    put(&t, Sheet::named("p").mt(5000).field("applies", json!(at)).json()).await;
    assert_eq!(put(&t, Sheet::named("p").mt(2000).json()).await["applies"], "now");
    // One whose time comes while a newer one waits never came.
    put(&t, Sheet::named("p").mt(9000).field("applies", json!("2026-03-11T00:00:00Z")).json()).await;
    assert_eq!(put(&t, Sheet::named("p").mt(1500).json()).await["applies"], "next_window");
    t.set_clock("2026-03-12T00:00:00.000Z").await;
    assert_eq!(version(&t, "u").await.0, 6);
    assert_eq!(put(&t, Sheet::named("p").mt(1800).json()).await["applies"], "next_window");
    assert_eq!(put(&t, Sheet::named("p").mt(2500).json()).await["applies"], "now");
    // Once the months have ended, nobody is on the one before.
    put(&t, Sheet::named("p").mt(100).json()).await;
    t.set_clock("2026-06-01T00:00:00.000Z").await;
    assert_eq!(put(&t, Sheet::named("p").mt(200).json()).await["applies"], "now");
    // What is for new users alone leaves the others on theirs.
    put(&t, Sheet::named("p").mt(50).field("to", json!("new_users")).json()).await;
    assert_eq!(put(&t, Sheet::named("p").mt(150).json()).await["applies"], "next_window");
}

#[tokio::test]
async fn a_version_for_new_users_is_for_those_who_come_later() {
    let t = Tenant::with(Sheet::named("p").mt(1000)).await;
    t.put_plan(&Sheet::named("other").dr(5).json()).await.ok();
    t.put_user("on record", json!({})).await.ok();
    t.put_user("elsewhere", json!({"plan": "other"})).await.ok();
    let told = put(
        &t,
        Sheet::named("p").mt(500).field("to", json!("new_users")).field("applies", json!("now")).json(),
    );
    assert_has(&told.await, &json!({"to": "new_users", "applies": "now", "effective_at": NOON}));
    t.put_user("new", json!({})).await.ok();
    t.ask("called", 0, 0).await.ok();
    // Users created later: who was there before keeps theirs, also on coming to the plan.
    t.set_plan("elsewhere", "p").await.ok();
    for at in [NOON, MONTH_END, "2026-09-01T00:00:00.000Z"] {
        t.set_clock(at).await;
        for user in ["on record", "elsewhere"] {
            assert_eq!(version(&t, user).await, (1, Value::Null), "{user} at {at}");
        }
        for user in ["new", "called", "never seen"] {
            assert_eq!(version(&t, user).await, (2, Value::Null), "{user} at {at}");
        }
    }
    // A second one splits those who came meanwhile from those to come.
    put(&t, Sheet::named("p").mt(400).field("to", json!("new_users")).field("applies", json!("now")).json())
        .await;
    t.put_user("newer", json!({})).await.ok();
    for (user, expected) in [("on record", 1), ("new", 2), ("newer", 3)] {
        assert_eq!(version(&t, user).await.0, expected, "{user}");
    }
    // One for everyone ends it.
    put(&t, Sheet::named("p").mt(300).field("applies", json!("now")).json()).await;
    for user in ["on record", "elsewhere", "new", "newer", "never seen"] {
        assert_eq!(version(&t, user).await, (4, Value::Null), "{user}");
    }
}

#[tokio::test]
async fn a_version_at_a_time_holds_for_everyone_from_then_on() {
    let t = Tenant::with(Sheet::named("p").mt(1000)).await;
    t.ask("u", 0, 0).await.ok();
    let at = "2026-03-12T00:00:00.000Z";
    let told =
        put(&t, Sheet::named("p").mt(500).field("applies", json!("2026-03-12T00:00:00Z")).json()).await;
    assert_has(&told, &json!({"version": 2, "effective_at": at, "to": "everyone"}));
    t.ask("came", 0, 0).await.ok();
    for user in ["u", "came", "never seen"] {
        assert_eq!(version(&t, user).await, (1, comes("p", 2, at)), "{user}");
    }
    t.set_clock("2026-03-11T23:59:59.999Z").await;
    assert_eq!(t.ask("u", 600, 0).await.body["plan"]["version"], 1);
    t.set_clock(at).await;
    for user in ["u", "came", "never seen"] {
        assert_eq!(version(&t, user).await, (2, Value::Null), "{user}");
    }
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"limit": 500, "held": 600, "over_by": 100}));
    // A time gone by is now.
    let told =
        put(&t, Sheet::named("p").mt(700).field("applies", json!("2026-01-01T00:00:00Z")).json()).await;
    assert_eq!(told["effective_at"], at);
    assert_eq!(version(&t, "u").await, (3, Value::Null));
}

#[tokio::test]
async fn a_version_at_a_time_for_new_users_changes_nothing_for_the_others() {
    let t = Tenant::with(Sheet::named("p").mt(1000)).await;
    t.ask("u", 0, 0).await.ok();
    let at = "2026-03-12T00:00:00.000Z";
    let body = Sheet::named("p").mt(500).field("applies", json!(at)).field("to", json!("new_users")).json();
    put(&t, body).await;
    t.ask("came", 0, 0).await.ok();
    assert_eq!(version(&t, "u").await, (1, Value::Null));
    assert_eq!(version(&t, "came").await, (1, comes("p", 2, at)));
    t.set_clock(at).await;
    assert_eq!(version(&t, "u").await, (1, Value::Null));
    assert_eq!(version(&t, "came").await, (2, Value::Null));
    assert_eq!(version(&t, "never seen").await, (2, Value::Null));
}

#[tokio::test]
async fn the_waiting_version_waits_for_the_end_of_the_running_window() {
    let t = Tenant::with(Sheet::named("p").mt(1000)).await;
    t.spend("before", 600, 0).await;
    t.spend("after", 600, 0).await;
    t.put_user("before", json!({"zone": "Asia/Tokyo"})).await.ok();
    put(&t, Sheet::named("p").mt(500).json()).await;
    t.put_user("after", json!({"zone": "Asia/Tokyo"})).await.ok();
    // Tokyo's month ends earlier; the window that began as UTC's does not.
    for user in ["before", "after"] {
        assert_eq!(version(&t, user).await, (1, comes("p", 2, MONTH_END)), "{user}");
    }
    t.set_clock("2026-03-31T20:00:00.000Z").await;
    for user in ["before", "after"] {
        t.ask(user, 400, 0).await.ok();
    }
    t.set_clock(MONTH_END).await;
    for user in ["before", "after"] {
        assert_eq!(version(&t, user).await, (2, Value::Null), "{user}");
    }
}

#[tokio::test]
async fn a_smaller_plan_of_an_org_waits_for_the_orgs_month() {
    let t = Tenant::with(Sheet::named("p").dr(100)).await;
    let of_org = |limit: u64| Sheet::named("team").mt(limit).but("scope", json!("org"));
    t.put_plan(&of_org(1000).json()).await.ok();
    t.put_org("acme", json!({"plan": "team", "zone": "Asia/Tokyo"})).await.ok();
    t.put_user("u", json!({"org": "acme"})).await.ok();
    t.spend("u", 600, 0).await;
    put(&t, of_org(500).json()).await;
    let quota = t.get("/v1/admin/orgs/acme/quota").await.ok();
    assert_eq!(quota["upcoming"], comes("team", 2, "2026-03-31T15:00:00.000Z"));
    assert_eq!(quota["plan"], json!({"id": "team", "version": 1}));
    t.ask("u", 300, 0).await.ok();
    t.put_org("new", json!({"plan": "team"})).await.ok();
    assert_eq!(t.get("/v1/admin/orgs/new/quota").await.ok()["plan"]["version"], 2);
    t.set_clock("2026-03-31T15:00:00.000Z").await;
    let quota = t.get("/v1/admin/orgs/acme/quota").await.ok();
    assert_has(&quota, &json!({"plan": {"version": 2}, "upcoming": null}));
    t.ask("u", 501, 0).await.refused(413, "exceeds_capacity");
}

#[tokio::test]
async fn every_version_is_kept_with_its_terms_and_only_the_one_meant_is_replaced() {
    let t = Tenant::with(Sheet::named("p").mt(1000)).await;
    put(&t, Sheet::named("p").mt(500).json()).await;
    put(&t, Sheet::named("p").mt(400).field("to", json!("new_users")).field("applies", json!("now")).json())
        .await;
    let shown = t.get("/v1/admin/plans/p").await;
    assert_eq!(shown.header("etag"), Some("\"3\""));
    assert_has(&shown.ok(), &json!({"version": 3, "to": "new_users"}));
    let versions = t.get("/v1/admin/plans/p/versions").await.ok();
    let told: Vec<Value> = versions["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| json!([v["version"], v["limits"][0]["limit"], v["applies"], v["to"], v["effective_at"]]))
        .collect();
    let expected = [
        json!([3, 400, "now", "new_users", NOON]),
        json!([2, 500, "next_window", "everyone", MONTH_END]),
        json!([1, 1000, "now", "everyone", NOON]),
    ];
    assert_eq!(told, expected);
    let path = "/v1/admin/plans/p";
    t.put_if(path, "\"2\"", Sheet::named("p").mt(1).json()).await.refused(412, "changed_meanwhile");
    let replaced = t.put_if(path, "\"3\"", Sheet::named("p").mt(2000).json()).await;
    assert_eq!(replaced.header("etag"), Some("\"4\""));
    t.put_if("/v1/admin/plans/none", "\"1\"", Sheet::named("none").json())
        .await
        .refused(412, "changed_meanwhile");
    for (name, value) in [("applies", json!("later")), ("applies", json!(7)), ("to", json!("nobody"))] {
        let mut body = Sheet::named("p").mt(1).json();
        (body[name], body["reason"]) = (value, json!("test"));
        let refused = t.put(path, &body).await.refused(400, "invalid_request");
        assert_eq!(refused.body["errors"][0]["pointer"], format!("/{name}"));
    }
    assert_eq!(t.get(path).await.ok()["version"], 4);
}

/// The tenant's default plan is for those it does not know yet; who came is on the plan of then.
#[tokio::test]
async fn another_default_plan_is_for_those_to_come() {
    let t = Tenant::with(Sheet::named("p").mt(1000)).await;
    t.put_plan(&Sheet::named("q").mt(50).json()).await.ok();
    t.ask("u", 1, 0).await.ok();
    t.put_user("v", json!({"verified": true})).await.ok();
    t.put_settings(json!({"default_plan": "q"})).await.ok();
    for (user, plan) in [("u", "p"), ("v", "p"), ("new", "q")] {
        assert_eq!(t.quota(user).await.ok()["plan"]["id"], plan, "{user}");
        assert_eq!(t.ask(user, 1, 0).await.ok()["plan"]["id"], plan, "{user}");
    }
}

/// More of a call in flight is asked of what holds then, and its caps are those it began with.
#[tokio::test]
async fn an_extend_is_asked_of_the_numbers_of_now() {
    let sheet = |limit: u64| Sheet::named("p").mt(limit).output(200);
    for change in ["a version", "a plan", "an override", "a grant"] {
        let t = Tenant::with(sheet(300)).await;
        let hold = t.ask("u", 100, 100).await.hold_id();
        let more = json!({"lease_seconds": 600, "add_output_tokens": 101});
        t.extend(&hold, more).await.refused(413, "output_too_large");
        t.spend("u", 50, 0).await;
        let more = json!({"lease_seconds": 600, "add_output_tokens": 100});
        t.extend(&hold, more.clone()).await.refused(429, "monthly_quota_exhausted");
        match change {
            "a version" => drop(t.put_plan(&sheet(350).json()).await.ok()),
            "a plan" => {
                t.put_plan(&Sheet::named("q").mt(350).output(1).json()).await.ok();
                drop(t.set_plan("u", "q").await.ok());
            }
            "an override" => {
                let numbers = json!({"overrides": {"tokens_per_month": {"limit": 350}}});
                drop(t.put_overrides("users/u", numbers).await.ok());
            }
            _ => drop(t.give("users/u", json!({"limit": "tokens_per_month", "amount": 50})).await.ok()),
        }
        t.extend(&hold, more.clone()).await.ok();
        assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 50, "held": 300, "remaining": 0}));
        t.extend(&hold, json!({"add_output_tokens": 1})).await.refused(413, "output_too_large");
        t.finish(&hold, 100, 150).await.ok();
        assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 300, "held": 0}));
    }
    // A limit that is gone is charged and not asked.
    let t = Tenant::with(Sheet::named("p").mt(300)).await;
    t.put_plan(&Sheet::named("bare").json()).await.ok();
    let hold = t.ask("u", 100, 100).await.hold_id();
    t.set_plan("u", "bare").await.ok();
    t.extend(&hold, json!({"add_output_tokens": 500})).await.ok();
    t.set_plan("u", "p").await.ok();
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"held": 700, "over_by": 400}));
}

/// What a call counts and costs is told by the version that it began with.
#[tokio::test]
async fn a_call_is_weighed_by_the_version_it_began_with() {
    let sheet = |weight: f64| Sheet::named("p").mt(100_000).field("cache_read_weight", json!(weight));
    let t = Tenant::with(sheet(0.1)).await;
    let hold = t.ask("u", 1000, 0).await.hold_id();
    for n in 0..40 {
        t.put_plan(&sheet(if n % 2 == 0 { 1.0 } else { 0.5 }).json()).await.ok();
    }
    let body = json!({"input_tokens": 1000, "output_tokens": 0, "cache_read_tokens": 1000});
    let settled = t.settle(&hold, body).await.ok();
    assert_eq!(settled["hold"]["counted"]["input_tokens"], 100);
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 100}));
}
