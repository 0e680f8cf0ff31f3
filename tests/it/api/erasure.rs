//! Users are erased: the identity goes, the amounts stay, and nobody gets a second allowance.

mod races;

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::Tenant;
use crate::harness::behind::Tables;
use crate::harness::compare::assert_has;
use crate::harness::percent;
use crate::harness::sheets::Sheet;
use crate::harness::stores::Stores;

/// An id that is nobody else's in the whole database.
fn id_in(t: &Tenant) -> String {
    format!("anna.{}@example.com", t.id)
}

async fn audit(t: &Tenant) -> Vec<Value> {
    t.get("/v1/admin/audit").await.ok()["data"].as_array().unwrap().clone()
}

/// The pseudonym of the user who was erased last.
async fn pseudonym(t: &Tenant) -> String {
    let rows = audit(t).await;
    let row = rows.iter().find(|row| row["action"] == "user.erase").expect("an erasure");
    row["target"].as_str().unwrap().to_owned()
}

/// The tables in which these bytes stand anywhere.
async fn tables_with(t: &Tenant, needle: &str) -> Vec<String> {
    Tables::of(t.server).await.with(needle).await
}

/// Requests, input, output and total tokens of a user's days.
async fn usage_of(t: &Tenant, user: &str) -> [i64; 4] {
    Tables::of(t.server).await.usage_of(user).await
}

/// Case C89.
#[tokio::test]
async fn whoever_is_deleted_and_comes_back_meets_what_they_left() {
    let t = Tenant::with(Sheet::new().mt(1000)).await;
    let u = id_in(&t);
    t.spend(&u, 800, 100).await;
    let open = t.ask(&u, 10, 10).await.hold_id();
    let before = t.left(&u, "tokens_per_month").await;
    assert_eq!(t.erase(&u).await.status, 204);

    // 80 are left, whoever asks how often.
    for _ in 0..3 {
        t.ask(&u, 100, 100).await.refused(429, "monthly_quota_exhausted");
    }
    assert_eq!(t.left(&u, "tokens_per_month").await, before);
    t.get(&format!("/v1/admin/users/{}", percent(&u))).await.refused(404, "not_found");

    // The open call ends as if nothing had been, once.
    let ended = t.finish(&open, 4, 6).await.ok();
    assert_eq!(ended["hold"]["user"], pseudonym(&t).await.as_str());
    t.finish(&open, 4, 6).await.ok();
    t.finish(&open, 5, 6).await.refused(409, "already_finished");
    assert_has(&t.left(&u, "tokens_per_month").await, &json!({"used": 910, "held": 0, "remaining": 90}));

    // What fits is admitted, and the user is back with the rest.
    t.ask(&u, 100, 0).await.refused(429, "monthly_quota_exhausted");
    assert_eq!(t.spend(&u, 40, 40).await["hold"]["user"], u.as_str());
    assert_eq!(t.get(&format!("/v1/admin/users/{}", percent(&u))).await.ok()["user"], u.as_str());
    assert_eq!(t.remaining(&u, "tokens_per_month").await, 10);
    t.ask(&u, 10, 1).await.refused(429, "monthly_quota_exhausted");

    // And so again, until the month is over.
    assert_eq!(t.erase(&u).await.status, 204);
    t.ask(&u, 10, 1).await.refused(429, "monthly_quota_exhausted");
    t.set_clock("2026-03-31T23:59:59.999Z").await;
    t.ask(&u, 10, 1).await.refused(429, "monthly_quota_exhausted");
    t.set_clock("2026-04-01T00:00:00.000Z").await;
    assert_eq!(t.remaining(&u, "tokens_per_month").await, 1000);
    t.ask(&u, 900, 100).await.ok();
}

#[tokio::test]
async fn nothing_but_the_audit_of_before_has_the_id_any_more() {
    let t = Tenant::with(Sheet::new().mt(1000).rb(100, 100)).await;
    let u = id_in(&t);
    let usage = |id: &str| json!({"id": id, "user": u, "input_tokens": 5, "output_tokens": 5});
    t.spend(&u, 10, 10).await;
    t.put_user(&u, json!({"plan": "p", "signals": {"device": "phone-of-anna"}})).await.ok();
    for n in 0..3 {
        t.check(json!({"user": u, "request_id": format!("r{n}"), "input_tokens": 1})).await.ok();
    }
    t.usage(&usage("a")).await.ok();
    t.ask(&u, 5000, 0).await.refused(413, "exceeds_capacity");
    t.get(&format!("/v1/admin/users/{}/ledger", percent(&u))).await.ok();
    for table in ["accounts", "holds", "refusals", "refused", "users"] {
        // Some of it may still be in the journal.
        let found = tables_with(&t, &u).await;
        assert!(found.iter().any(|name| name == table || name == "journal"), "{table}: {found:?}");
    }

    let body = json!({"reason": "asked for it"});
    let erase = t.request(Method::DELETE, &format!("/v1/admin/users/{}", percent(&u))).json(&body);
    assert_eq!(t.send(erase).await.status, 204);
    assert_eq!(tables_with(&t, &u).await, ["audit"]);
    assert!(tables_with(&t, "phone-of-anna").await.is_empty());
    let erased = audit(&t).await.into_iter().find(|row| row["action"] == "user.erase").unwrap();
    assert_has(&erased, &json!({"reason": "asked for it", "after": null, "before": {"plan": "p"}}));
    assert!(!erased.to_string().contains(&u), "{erased}");
    let name = pseudonym(&t).await;
    assert!(name.starts_with("erased_") && name.len() == 39, "{name}");

    // Refused: nothing of the user comes back. The amounts are where they were.
    t.ask(&u, 5000, 0).await.refused(413, "exceeds_capacity");
    t.check(json!({"user": u, "input_tokens": 1, "dry_run": true})).await.ok();
    let history = t.get(&format!("/v1/admin/users/{name}/ledger")).await.ok();
    assert_eq!(tables_with(&t, &u).await, ["audit"]);
    assert_eq!(history["refusals"][0]["count"], 2);
    let kinds =
        |kind: &str| history["data"].as_array().unwrap().iter().filter(|row| row["kind"] == kind).count();
    assert_eq!((kinds("checked"), kinds("settled")), (4, 2), "{history:#}");
    assert_eq!(usage_of(&t, &name).await, [2, 15, 15, 30]);

    // Use brings the user back; what was before stays under the pseudonym.
    t.usage(&usage("b")).await.ok();
    t.usage(&usage("a")).await.ok();
    assert_has(&t.left(&u, "tokens_per_month").await, &json!({"used": 40, "held": 3}));
    assert_eq!(usage_of(&t, &name).await[1], 15);
    assert_eq!(t.erase(&u).await.status, 204);
    assert_eq!(usage_of(&t, &name).await[..2], [3, 20]);
    assert_eq!(tables_with(&t, &u).await, ["audit"]);
}

#[tokio::test]
async fn flags_plan_and_rights_stay_for_as_long_as_anything_counts() {
    let t = Tenant::with(Sheet::new().dr(5)).await;
    t.put_plan(&Sheet::named("big").dr(10).per("tokens_per_day", json!("day"), 100).json()).await.ok();
    t.put_user("u", json!({"plan": "big", "verified": true, "zone": "Asia/Tokyo"})).await.ok();
    let grant = json!({"limit": "tokens_per_day", "amount": 50, "reason": "sorry"});
    t.post("/v1/admin/users/u/grants", &grant).await.ok();
    t.spend("u", 100, 20).await;
    let quota = t.quota("u").await.ok();
    t.erase("u").await.ok();
    assert_eq!(t.quota("u").await.ok(), quota);
    t.ask("u", 31, 0).await.refused(429, "daily_quota_exhausted");
    t.ask("u", 30, 0).await.ok();
    let back = t.get("/v1/admin/users/u").await.ok();
    let kept =
        json!({"user": "u", "plan": {"id": "big"}, "verified": true, "zone": "Asia/Tokyo", "signals": null});
    assert_has(&back, &kept);
    assert_eq!(back["grants"][0]["amount"], 50);

    // The hold keeps the account alive after the day; then the rule ends it, and the rest.
    t.erase("u").await.ok();
    t.set_clock("2026-03-11T16:00:00.000Z").await;
    assert_eq!(t.quota("u").await.ok()["plan"]["id"], "big");
    t.set_clock("2026-03-20T12:00:00.000Z").await;
    assert_eq!(t.quota("u").await.ok()["plan"]["id"], "p", "a new user");
    t.ask("u", 1, 0).await.ok();
    assert_has(
        &t.get("/v1/admin/users/u").await.ok(),
        &json!({"verified": false, "grants": [], "version": 1}),
    );
}

#[tokio::test]
async fn who_is_suspended_does_not_get_out_of_it() {
    let t = Tenant::with(Sheet::new().dr(5)).await;
    t.spend("u", 1, 1).await;
    t.put_user("u", json!({"suspended": true})).await.ok();
    t.erase("u").await.ok();
    t.ask("u", 1, 0).await.refused(403, "user_suspended");
    t.set_clock("2027-03-11T12:00:00.000Z").await;
    t.ask("u", 1, 0).await.refused(403, "user_suspended");
    // Who changes the user has them back.
    t.put_user("u", json!({"suspended": false})).await.ok();
    t.ask("u", 1, 0).await.ok();
}

#[tokio::test]
async fn buckets_slots_and_lifetimes_go_on_too() {
    let t = Tenant::with(Sheet::new().rb(5, 1).cc(2).per("life", json!("lifetime"), 100)).await;
    let open: Vec<String> = [t.ask("u", 1, 1).await.hold_id(), t.ask("u", 1, 1).await.hold_id()].into();
    t.erase("u").await.ok();
    t.ask("u", 1, 1).await.refused(429, "concurrency_exceeded");
    t.extend(&open[0], json!({"lease_seconds": 900})).await.ok();
    t.release(&open[1]).await.ok();
    for _ in 0..3 {
        t.spend("u", 1, 1).await;
    }
    // Back, with the hold of before.
    assert_eq!(t.hold(&open[0]).await.ok()["hold"]["user"], "u");
    t.finish(&open[0], 1, 1).await.ok();
    t.erase("u").await.ok();
    t.spend("u", 1, 1).await;
    t.erase("u").await.ok();
    t.ask("u", 1, 1).await.refused(429, "request_rate_exceeded");
    t.pass(60_000).await;
    t.spend("u", 1, 1).await;
    t.erase("u").await.ok();
    t.ask("u", 1, 1).await.refused(429, "request_rate_exceeded");
    // What was used of a lifetime is never over.
    t.set_clock("2027-03-11T12:00:00.000Z").await;
    assert_eq!(t.remaining("u", "life").await, 100 - 12);
    t.ask("u", 89, 0).await.refused(429, "quota_exhausted");
}

#[tokio::test]
async fn a_repeated_request_id_is_answered_as_before() {
    let t = Tenant::with(Sheet::new().mt(100)).await;
    let call = |n: i64| json!({"user": "u", "request_id": "r", "input_tokens": n});
    let first = t.check(call(90)).await.ok();
    t.erase("u").await.ok();
    assert_eq!(t.hold_by_request("u", "r").await.ok()["hold"]["id"], first["hold"]["id"]);
    t.check(call(91)).await.refused(422, "request_id_reused");
    t.erase("u").await.ok();
    let again = t.check(call(90)).await;
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(again.hold_id(), first["hold"]["id"]);
    assert_eq!(t.remaining("u", "tokens_per_month").await, 10);
}

#[tokio::test]
async fn who_is_not_there_cannot_be_erased_and_versions_are_honoured() {
    let t = Tenant::with(Sheet::new().dr(50)).await;
    t.erase("nobody").await.refused(404, "not_found");
    t.put_user("u", json!({"plan": "p"})).await.ok();
    let erase = |tag: &str| t.request(Method::DELETE, "/v1/admin/users/u").header("if-match", tag);
    t.send(erase("\"7\"")).await.refused(412, "changed_meanwhile");
    for body in [json!({"reason": 1}), json!({"because": "x"}), json!([])] {
        let erase = t.request(Method::DELETE, "/v1/admin/users/u").json(&body);
        t.send(erase).await.refused(400, "invalid_request");
    }
    assert_eq!(t.send(erase("\"1\"")).await.status, 204);
    t.erase("u").await.refused(404, "not_found");
    // Never used: there is nothing to come back to.
    t.ask("u", 1, 1).await.ok();
    let other = Tenant::with(Sheet::new().dr(50)).await;
    other.erase("u").await.refused(404, "not_found");
}

#[tokio::test]
async fn lists_leave_the_erased_out_and_nobody_acts_under_a_pseudonym() {
    let t = Tenant::with(Sheet::new().dr(50)).await;
    t.put_user("u", json!({"plan": "p", "org": "acme"})).await.ok();
    t.put_user("v", json!({"plan": "p", "org": "acme"})).await.ok();
    t.spend("u", 1, 1).await;
    t.erase("u").await.ok();
    let name = pseudonym(&t).await;
    for query in ["", "?org=acme", "?plan=p", "?q=erased"] {
        let page = t.get(&format!("/v1/admin/users{query}")).await.ok();
        let users: Vec<&str> =
            page["data"].as_array().unwrap().iter().filter_map(|row| row["user"].as_str()).collect();
        assert_eq!(users, if query == "?q=erased" { vec![] } else { vec!["v"] }, "{query}");
    }
    t.ask(&name, 1, 1).await.refused(404, "unknown_user");
    t.quota(&name).await.refused(404, "not_found");
    t.put_user(&name, json!({"plan": "p"})).await.refused(404, "not_found");
    t.set_plan(&name, "p").await.refused(404, "not_found");
    t.erase(&name).await.refused(404, "not_found");
    let item = json!({"id": "x", "user": name, "input_tokens": 1, "output_tokens": 1});
    t.usage(&item).await.refused(400, "invalid_request");
    assert_has(&t.left("u", "requests_per_day").await, &json!({"used": 1}));
}

#[tokio::test]
async fn what_an_org_shares_is_not_touched() {
    let shared = Sheet::new().dr(50).per("together", json!("day"), 100).but("scope", json!("org"));
    let t = Tenant::with(shared).await;
    for user in ["u", "v"] {
        t.put_user(user, json!({"plan": "p", "org": "acme"})).await.ok();
    }
    let open = t.ask("u", 60, 0).await.hold_id();
    t.erase("u").await.ok();
    t.ask("v", 41, 0).await.refused(429, "daily_quota_exhausted");
    t.finish(&open, 10, 0).await.ok();
    assert_has(&t.left("v", "together").await, &json!({"used": 10, "held": 0}));
    t.ask("u", 91, 0).await.refused(429, "daily_quota_exhausted");
    t.ask("u", 90, 0).await.ok();
    assert_eq!(t.remaining("v", "together").await, 0);
}

/// Whoever looks at a call that was over before the erasure sees nobody any more.
#[tokio::test]
async fn a_finished_call_is_the_pseudonyms_at_once() {
    let t = Tenant::with(Sheet::new().mt(1000)).await;
    let u = id_in(&t);
    let ended = t.ask(&u, 10, 10).await.hold_id();
    t.finish(&ended, 5, 5).await.ok();
    assert_eq!(t.erase(&u).await.status, 204);
    let name = pseudonym(&t).await;
    assert_eq!(t.hold(&ended).await.ok()["hold"]["user"], name.as_str());
    assert_eq!(t.finish(&ended, 5, 5).await.ok()["hold"]["user"], name.as_str());
    assert!(!t.finish(&ended, 6, 5).await.text.contains(&u));
}

#[tokio::test]
async fn what_a_rule_ended_before_the_erasure_is_corrected_under_the_pseudonym() {
    let t = Tenant::with(Sheet::new().mt(1000)).await;
    let u = id_in(&t);
    t.put_settings(json!({"in_doubt_after": {"hours": 1, "then": "charge"}})).await.ok();
    let lost = t.ask_for(&u, 50, 50, 60).await.hold_id();
    t.pass(2 * 3_600_000).await;
    assert_has(&t.left(&u, "tokens_per_month").await, &json!({"used": 100}));
    assert_eq!(t.hold(&lost).await.ok()["hold"]["state"], "settled");
    assert_eq!(t.erase(&u).await.status, 204);
    let name = pseudonym(&t).await;
    for _ in 0..2 {
        assert_eq!(t.finish(&lost, 10, 10).await.ok()["hold"]["user"], name.as_str());
    }
    assert_eq!(t.hold(&lost).await.ok()["hold"]["counted"]["total_tokens"], 20);
    assert_has(&t.left(&u, "tokens_per_month").await, &json!({"used": 20}));
    t.get(&format!("/v1/admin/users/{name}/ledger")).await.ok();
    assert_eq!(usage_of(&t, &name).await[3], 20);
}

/// For a while it stands in the name of a mark there: the account is another's by now.
#[tokio::test]
async fn what_redis_has_of_the_id_says_nothing_and_ends_by_itself() {
    let t = Tenant::with(Sheet::new().mt(1000).cc(5)).await;
    let u = id_in(&t);
    let servers = Stores::of_this_run().redis();
    let found = || servers.iter().flat_map(|server| server.keys_with(&u)).collect::<Vec<_>>();
    t.spend(&u, 10, 10).await;
    t.check(json!({"user": u, "request_id": "r", "input_tokens": 1})).await.ok();
    assert_eq!(found().is_empty(), servers.is_empty());
    assert_eq!(t.erase(&u).await.status, 204);
    t.ask(&u, 5000, 0).await.refused(413, "exceeds_capacity");
    for (key, value, ends) in found() {
        let is_mark = key.ends_with(&format!(":a:u:{u}")) && value.starts_with(b"\0\x01M");
        assert!(is_mark && (1..=26 * 3_600_000).contains(&ends), "{key}: {value:?}, {ends}");
    }
}

/// What is over when the user comes back stays under the pseudonym, a correction too.
#[tokio::test]
async fn what_a_rule_ended_before_the_return_is_corrected_where_it_is() {
    for (then, by_rule) in [("charge", 100), ("release", 0)] {
        corrected(then, by_rule).await;
    }
}

async fn corrected(then: &str, by_rule: i64) {
    let t = Tenant::with(Sheet::new().mt(1000).rb(10, 1)).await;
    let u = id_in(&t);
    t.put_settings(json!({"in_doubt_after": {"hours": 1, "then": then}})).await.ok();
    let lost = t.ask_for(&u, 50, 50, 60).await.hold_id();
    t.erase(&u).await.ok();
    t.pass(2 * 3_600_000).await;
    assert_has(&t.left(&u, "tokens_per_month").await, &json!({"used": by_rule}));
    t.spend(&u, 1, 1).await;
    assert_eq!(t.finish(&lost, 10, 10).await.ok()["hold"]["counted"]["total_tokens"], 20);
    t.finish(&lost, 10, 10).await.ok();
    assert_has(&t.left(&u, "tokens_per_month").await, &json!({"used": by_rule + 2}));
    // There is room for the next time.
    for _ in 0..3 {
        assert_eq!(t.erase(&u).await.status, 204);
        t.spend(&u, 1, 1).await;
    }
    assert_has(&t.left(&u, "tokens_per_month").await, &json!({"used": by_rule + 8}));
    t.erase(&u).await.ok();
    // Everything that is in the journal is written by a question about usage or a history.
    let name = pseudonym(&t).await;
    t.get(&format!("/v1/admin/users/{name}/ledger")).await.ok();
    assert_eq!(usage_of(&t, &name).await[3], 28);
}
