//! What admins do about a hold in doubt.

use serde_json::{Value, json};

use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;
use crate::harness::{Reply, Tenant, percent};

/// What a resolve says: the action, with figures where it has some.
pub fn action(what: &str) -> Value {
    match what {
        "settle" => {
            json!({"action": "settle", "input_tokens": 1000, "output_tokens": 200, "reason": "billed"})
        }
        other => json!({"action": other, "reason": "as agreed"}),
    }
}

pub async fn resolve(t: &Tenant, hold: &str, body: &Value) -> Reply {
    t.post(&format!("/v1/admin/holds/{hold}/resolve"), body).await
}

pub async fn resolve_all(t: &Tenant, query: &str, body: Value) -> Reply {
    t.post(&format!("/v1/admin/holds/resolve{query}"), &body).await
}

/// The ids of all holds in doubt, page by page.
pub async fn listed(t: &Tenant, query: &str, limit: usize) -> Vec<String> {
    let mut ids = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = t.get(&format!("/v1/admin/holds?limit={limit}{query}{cursor}")).await.ok();
        let rows = page["data"].as_array().expect("rows");
        assert!(rows.len() <= limit);
        assert!(rows.iter().all(|row| row["state"] == "in_doubt"), "{page}");
        ids.extend(rows.iter().map(|row| row["id"].as_str().expect("an id").to_owned()));
        let Some(next) = page["next_cursor"].as_str() else { return ids };
        cursor = format!("&cursor={}", percent(next));
    }
}

/// The rows `hold.resolve` that this tenant's admins left in the audit: target, before, after, reason.
pub async fn audited(t: &Tenant) -> Vec<(String, Value, Value, String)> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let (mut rows, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = t.get(&format!("/v1/admin/audit?limit=500{cursor}")).await.ok();
        let all = page["data"].as_array().expect("rows");
        let resolved = all.iter().filter(|row| row["action"] == "hold.resolve");
        rows.extend(resolved.map(|row| {
            (text(&row["target"]), row["before"].clone(), row["after"].clone(), text(&row["reason"]))
        }));
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={}", percent(next));
    }
    // Oldest first.
    rows.reverse();
    rows
}

fn sheet() -> Sheet {
    Sheet::new().mt(10_000).dr(5).ob(5000, 1).cc(2)
}

/// A hold of 1000 in and 3000 out whose lease is over since a second.
async fn doubtful(t: &Tenant, user: &str) -> String {
    let hold = t.ask_for(user, 1000, 3000, 60).await.hold_id();
    t.pass(61_000).await;
    hold
}

#[tokio::test]
async fn a_hold_whose_caller_died_is_kept_until_an_admin_ends_it() {
    for (what, used, requests, output) in
        [("charge", 4000, 1, 2000), ("release", 0, 0, 5000), ("settle", 1200, 1, 4800)]
    {
        let t = Tenant::with(sheet()).await;
        let hold = doubtful(&t, "u").await;
        assert_has(&t.left("u", "tokens_per_month").await, &json!({"remaining": 6000, "held": 4000}));
        assert_has(&t.left("u", "concurrency").await, &json!({"in_use": 0, "remaining": 2}));
        t.ask("u", 4000, 6000).await.refused(413, "exceeds_capacity");
        t.ask("u", 6001, 0).await.refused(429, "monthly_quota_exhausted");

        let resolved = resolve(&t, &hold, &action(what)).await.ok();
        let state = if what == "release" { "released" } else { "settled" };
        assert_has(&resolved["hold"], &json!({"state": state, "late": true, "resolved_by": "admin"}));
        assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": used, "held": 0}));
        assert_has(&t.left("u", "requests_per_day").await, &json!({"used": requests}));
        assert_has(&t.left("u", "output_tokens_per_minute").await, &json!({"remaining": output}));
        assert_has(&t.left("u", "concurrency").await, &json!({"in_use": 0}));
        assert_eq!(listed(&t, "", 10).await, Vec::<String>::new());
        // The same again changes nothing.
        let again = resolve(&t, &hold, &action(what)).await;
        assert_eq!(again.header("idempotency-replayed"), Some("true"));
        assert_eq!(again.ok()["hold"], resolved["hold"]);
        assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": used, "held": 0}));
    }
}

#[tokio::test]
async fn an_admins_figures_are_priced_as_of_the_admission_and_weighed_by_its_plan() {
    let credits = json!({"name": "credits", "kind": "window", "meter": "credits", "period": "month", "limit": 1_000_000});
    let t =
        Tenant::with(Sheet::new().limit(credits).mt(100_000).field("cache_read_weight", json!(0.1))).await;
    let price =
        |input: u64| json!([{"id": "m", "aliases": ["alias"], "input": input, "output": 0, "cache_read": 0}]);
    t.put_models(&price(1_000_000)).await.ok();
    let check = json!({"user": "u", "model": "alias", "input_tokens": 2000, "max_output_tokens": 0, "lease_seconds": 60});
    let hold = t.check(check).await.hold_id();
    t.put_models(&price(9_000_000)).await.ok();
    t.pass(60_000).await;
    assert_eq!(listed(&t, "&model=alias", 10).await.as_slice(), std::slice::from_ref(&hold));
    let body = json!({"action": "settle", "input_tokens": 1000, "output_tokens": 0, "cache_read_tokens": 900, "reason": "x"});
    let resolved = resolve(&t, &hold, &body).await.ok();
    assert_has(&resolved["hold"]["counted"], &json!({"input_tokens": 190, "credits": 100}));
    assert_eq!(t.left("u", "credits").await["used"], 100);
}

#[tokio::test]
async fn only_what_is_in_doubt_can_be_resolved() {
    let t = Tenant::with(sheet()).await;
    let hold = t.ask_for("u", 1000, 3000, 60).await.hold_id();
    t.pass(59_999).await;
    for what in ["charge", "release", "settle"] {
        let refused = resolve(&t, &hold, &action(what)).await.refused(409, "not_in_doubt");
        assert_eq!(refused.body["hold"]["state"], "held");
    }
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"held": 4000}));
    assert_eq!(audited(&t).await, [], "nothing was resolved");
    t.pass(1).await;
    resolve(&t, &hold, &action("release")).await.ok();
}

/// Brings a hold of 1000 in and 3000 out into a state.
async fn hold_in(state: &str) -> (Tenant, String) {
    let t = Tenant::with(Sheet::new().mt(1_000_000)).await;
    if let Some(then) = state.strip_prefix("ruled ") {
        t.put_settings(json!({"in_doubt_after": {"hours": 1, "then": then}})).await.ok();
    }
    let hold = t.ask_for("u", 1000, 3000, 60).await.hold_id();
    match state.split_once(' ').unwrap_or((state, "")) {
        ("held", _) => {}
        ("unknown", _) => drop(t.settle(&hold, json!({"usage": "unknown"})).await.ok()),
        ("settled", _) => drop(t.finish(&hold, 1000, 200).await.ok()),
        ("released", _) => drop(t.release(&hold).await.ok()),
        ("expired", _) => t.pass(60_000).await,
        ("ruled", _) => t.pass(60_000 + 3_600_000).await,
        ("resolved", what) => {
            t.pass(60_000).await;
            resolve(&t, &hold, &action(what)).await.ok();
        }
        other => panic!("{other:?}"),
    }
    (t, hold)
}

#[tokio::test]
async fn every_state_answers_every_operation_as_written() {
    const OPERATIONS: [&str; 7] =
        ["settle", "release", "unknown", "extend", "admin charge", "admin release", "admin settle"];
    const F: &str = "409 already_finished";
    const L: &str = "409 lease_ended";
    const D: &str = "409 not_in_doubt";
    // The figures of `settle` and `admin settle` are the same.
    let expected: [(&str, [&str; 7]); 11] = [
        ("held", ["200", "200", "200", "200", D, D, D]),
        ("expired", ["200", "200", "200", L, "200", "200", "200"]),
        ("unknown", ["200", "200", "200", L, "200", "200", "200"]),
        ("settled", ["200", F, F, F, F, F, F]),
        ("released", [F, "200", F, F, F, F, F]),
        ("ruled charge", ["200", "200", F, F, "200", "200", "200"]),
        ("ruled release", ["200", "200", F, F, "200", "200", "200"]),
        ("ruled progress", ["200", "200", F, F, "200", "200", "200"]),
        ("resolved charge", [F, F, F, F, "200", F, F]),
        ("resolved release", [F, F, F, F, F, "200", F]),
        ("resolved settle", [F, F, F, F, F, F, "200"]),
    ];
    for (state, answers) in expected {
        for (operation, answer) in OPERATIONS.iter().zip(answers) {
            let (t, hold) = hold_in(state).await;
            let before = t.left("u", "tokens_per_month").await;
            let reply = match *operation {
                "settle" => t.finish(&hold, 1000, 200).await,
                "release" => t.release(&hold).await,
                "unknown" => t.settle(&hold, json!({"usage": "unknown"})).await,
                "extend" => t.extend(&hold, json!({})).await,
                other => resolve(&t, &hold, &action(other.trim_start_matches("admin "))).await,
            };
            let told = format!("{} {}", reply.status, reply.code());
            assert_eq!(told.trim(), answer, "{operation} of a hold that is {state}: {}", reply.text);
            if answer != "200" {
                assert!(reply.body["hold"]["state"].is_string(), "{}", reply.text);
                assert_eq!(t.left("u", "tokens_per_month").await, before, "{operation}, {state}");
            }
            let used = match *operation {
                "settle" | "admin settle" => 1200,
                "admin charge" => 4000,
                _ => 0,
            };
            if answer == "200" && !["unknown", "extend"].contains(operation) {
                let left = t.left("u", "tokens_per_month").await;
                assert_has(&left, &json!({"used": used, "held": 0}));
            }
        }
    }
}

#[tokio::test]
async fn what_the_rule_ended_takes_one_correction_by_whom_ever() {
    for then in ["charge", "release", "progress"] {
        for what in ["charge", "release", "settle"] {
            let (t, hold) = hold_in(&format!("ruled {then}")).await;
            let resolved = resolve(&t, &hold, &action(what)).await.ok();
            assert_eq!(resolved["hold"]["resolved_by"], "admin", "{then}, {what}");
            let left = t.left("u", "tokens_per_month").await;
            t.finish(&hold, 1, 1).await.refused(409, "already_finished");
            t.release(&hold).await.refused(409, "already_finished");
            for other in ["charge", "release", "settle"].iter().filter(|other| **other != what) {
                resolve(&t, &hold, &action(other)).await.refused(409, "already_finished");
            }
            t.pass(3_600_000).await;
            assert_eq!(t.left("u", "tokens_per_month").await["used"], left["used"], "{then}, {what}");
        }
        let (t, hold) = hold_in(&format!("ruled {then}")).await;
        t.finish(&hold, 1, 1).await.ok();
        resolve(&t, &hold, &action("release")).await.refused(409, "already_finished");
        assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 2, "held": 0}));
    }
}

#[tokio::test]
async fn a_new_rule_holds_for_what_is_in_doubt_already() {
    for (then, used) in [("charge", 4000), ("release", 0), ("progress", 1250)] {
        let t = Tenant::with(Sheet::new().mt(10_000)).await;
        let hold = t.ask_for("u", 1000, 3000, 60).await.hold_id();
        t.extend(&hold, json!({"output_tokens_so_far": 250, "lease_seconds": 60})).await.ok();
        t.pass(60_000 + 2 * 3_600_000).await;
        assert_eq!(listed(&t, "", 10).await.as_slice(), std::slice::from_ref(&hold));
        t.put_settings(json!({"in_doubt_after": {"hours": 3, "then": then}})).await.ok();
        assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 0, "held": 4000}));
        t.put_settings(json!({"in_doubt_after": {"hours": 2, "then": then}})).await.ok();
        assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": used, "held": 0}));
        assert_eq!(listed(&t, "", 10).await, Vec::<String>::new());
        assert_eq!(t.hold(&hold).await.ok()["hold"]["resolved_by"], "rule");
    }
}

#[tokio::test]
async fn figures_beyond_belief_are_refused_of_an_admin_too() {
    let t = Tenant::with(sheet()).await;
    t.put_settings(json!({"max_tokens_per_call": 100_000})).await.ok();
    let hold = doubtful(&t, "u").await;
    let body = |input: u64, cached: u64| json!({"action": "settle", "input_tokens": input, "output_tokens": 10, "cache_read_tokens": cached, "reason": "x"});
    let refused = resolve(&t, &hold, &body(9_007_199_254_740_991, 0)).await.refused(422, "usage_implausible");
    assert_eq!(refused.body["max"], 100_000);
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 0, "held": 4000}));
    resolve(&t, &hold, &body(100_000, 100_000)).await.ok();
    // What is told of a hold that has finished is that.
    resolve(&t, &hold, &body(9_007_199_254_740_991, 0)).await.refused(409, "already_finished");
}

#[tokio::test]
async fn bodies_that_say_too_much_or_too_little_change_nothing() {
    let t = Tenant::with(sheet()).await;
    let hold = doubtful(&t, "u").await;
    let pointers = |reply: Reply| -> Vec<String> {
        let reply = reply.refused(400, "invalid_request");
        let errors = reply.body["errors"].as_array().unwrap().iter();
        errors.map(|error| error["pointer"].as_str().unwrap().to_owned()).collect()
    };
    for (body, expected) in [
        (json!({}), &["/action", "/reason"][..]),
        (json!({"action": "burn", "reason": "x"}), &["/action"]),
        (json!({"action": "charge"}), &["/reason"]),
        (json!({"action": "charge", "reason": " "}), &["/reason"]),
        (
            json!({"action": "charge", "input_tokens": 1, "output_tokens": 1, "reason": "x"}),
            &["/input_tokens", "/output_tokens"],
        ),
        (
            json!({"action": "settle", "output_tokens": -1, "reason": "x"}),
            &["/input_tokens", "/output_tokens"],
        ),
        (
            json!({"action": "settle", "input_tokens": 1, "output_tokens": 1, "cache_read_tokens": 2, "reason": "x"}),
            &["/cache_read_tokens"],
        ),
        (json!({"action": "release", "model": "m", "reason": "x"}), &["/model"]),
    ] {
        assert_eq!(pointers(resolve(&t, &hold, &body).await), expected, "{body}");
    }
    for (query, body, expected) in [
        ("", json!({}), &["/action", "/reason"][..]),
        (
            "",
            json!({"action": "settle", "input_tokens": 1, "output_tokens": 1, "reason": "x"}),
            &["/action", "/input_tokens", "/output_tokens"],
        ),
        ("", json!({"action": "charge", "user": "u"}), &["/reason"]),
        (
            "",
            json!({"action": "charge", "reason": "x", "state": "held", "user": "", "model": "?", "feature": "A", "from": "now"}),
            &["/state", "/user", "/model", "/feature", "/from"],
        ),
        (
            "?state=settled&user=%00&to=x",
            json!({"action": "charge", "reason": "x"}),
            &["/state", "/to", "/user"],
        ),
        ("?user=u", json!({"action": "charge", "reason": "x", "user": "v"}), &["/user"]),
        ("?from=2026-03-10", json!({"action": "charge", "reason": "x", "from": "2026-03-11"}), &["/from"]),
        ("?from=2026-03-10", json!({"action": "charge", "reason": "x", "to": "2026-03-09"}), &["/to"]),
    ] {
        assert_eq!(pointers(resolve_all(&t, query, body.clone()).await), expected, "{query} {body}");
    }
    for (query, expected) in
        [("?state=held", &["/state"][..]), ("?cursor=AA&limit=0&from=x", &["/from", "/limit", "/cursor"])]
    {
        assert_eq!(pointers(t.get(&format!("/v1/admin/holds{query}")).await), expected, "{query}");
    }
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 0, "held": 4000}));
    assert_eq!(audited(&t).await, []);
}

#[tokio::test]
async fn holds_of_others_are_not_there_and_count_as_orphans() {
    let (t, other) = (Tenant::with(sheet()).await, Tenant::with(sheet()).await);
    let foreign = doubtful(&other, "u").await;
    let orphans = async || {
        let text = t.get("/metrics").await.text;
        let line = text.lines().find(|line| line.starts_with("apportion_orphan_holds_total"));
        line.and_then(|line| line.split(' ').nth(1)?.parse::<u64>().ok()).expect("a counter")
    };
    let before = orphans().await;
    for id in [foreign.as_str(), "hold_01890a5d-ac96-774b-bcce-b302099a8057", "nonsense"] {
        resolve(&t, id, &action("charge")).await.refused(404, "not_found");
    }
    assert!(orphans().await >= before + 3);
    assert_eq!(listed(&t, "", 10).await, Vec::<String>::new());
    assert_eq!(resolve_all(&t, "", action("charge")).await.ok()["matched"], 0);
    assert_eq!(listed(&other, "", 10).await, [foreign]);
}

#[tokio::test]
async fn only_admins_see_and_resolve() {
    let t = Tenant::with(sheet()).await;
    let hold = doubtful(&t, "u").await;
    let reader = t.client.with_token(&t.token(&["--scope", "admin:read"]));
    reader.get("/v1/admin/holds").await.ok();
    let path = format!("/v1/admin/holds/{hold}/resolve");
    reader.post(&path, &action("charge")).await.refused(403, "forbidden");
    reader.post("/v1/admin/holds/resolve", &action("charge")).await.refused(403, "forbidden");
    let backend = t.client.with_token(&t.token(&["--scope", "check quota"]));
    backend.get("/v1/admin/holds").await.refused(403, "forbidden");
    backend.post(&path, &action("charge")).await.refused(403, "forbidden");
}

#[tokio::test]
async fn every_resolve_is_in_the_audit() {
    let t = Tenant::with(sheet()).await;
    let hold = doubtful(&t, "u").await;
    resolve(&t, &hold, &action("settle")).await.ok();
    let rows = audited(&t).await;
    assert_eq!(rows.len(), 1);
    let (target, before, after, reason) = &rows[0];
    assert_eq!((target.as_str(), reason.as_str()), (hold.as_str(), "billed"));
    assert_has(before, &json!({"state": "in_doubt", "ended_by": null, "amounts": {"total_tokens": 4000}}));
    assert_has(
        after,
        &json!({"state": "settled", "ended_by": "admin", "amounts": {"requests": 1, "total_tokens": 1200}}),
    );
    resolve(&t, &hold, &action("charge")).await.refused(409, "already_finished");
    resolve_all(&t, "", json!({"action": "charge", "dry_run": true})).await.ok();
    assert_eq!(audited(&t).await.len(), 1, "what changes nothing leaves no row");

    let more = [doubtful(&t, "v").await, doubtful(&t, "w").await];
    resolve_all(&t, "", json!({"action": "release", "reason": "all of them", "from": "2026-03-10"}))
        .await
        .ok();
    let (_, before, after, reason) = audited(&t).await.pop().unwrap();
    assert_eq!(reason, "all of them");
    assert_has(&before["filter"], &json!({"user": null, "from": "2026-03-10T00:00:00.000Z", "to": null}));
    assert_has(
        &after,
        &json!({"action": "release", "matched": 2, "amounts": {"total_tokens": 8000}, "holds": more}),
    );
}
