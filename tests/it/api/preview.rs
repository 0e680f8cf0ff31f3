//! What a sheet would do, told from what happened, and what it then does.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use serde_json::{Value, json};

use crate::faults::soak::traffic::{self, Arrival};
use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;
use crate::harness::{Tenant, number_from_env};
use crate::model::oracle::calendar::{DAY_MS, Ms, instant, wire};

async fn preview(t: &Tenant, sheet: &Sheet) -> Value {
    t.post("/v1/admin/plans/p/preview", &sheet.json()).await.ok()
}

/// `users` who are on record with the plan; each spends so many times on each of some days.
async fn days(sheet: Sheet, users: &[&str], a_day: [usize; 4]) -> Tenant {
    let t = Tenant::with(sheet).await;
    for times in a_day {
        for user in users {
            for _ in 0..times {
                t.spend(user, 60, 40).await;
            }
        }
        t.pass(DAY_MS).await;
    }
    t
}

#[tokio::test]
async fn who_would_be_over_and_refused_is_told_by_limit_and_code() {
    let t = days(Sheet::new().dr(10).mt(100_000), &["a", "b"], [6, 2, 6, 3]).await;
    t.spend("a", 60, 40).await;
    let less = preview(&t, &Sheet::new().dr(4).mt(1_500)).await;
    assert_has(
        &less,
        &json!({
            "version": 1, "users_on_plan": 2, "users": 2, "calls": 35, "complete": true,
            // a has used 1,800 of the month by now, b 1,700.
            "over": {"users": 2, "by_limit": {"tokens_per_month": 2}},
            // Four of each day's six pass: 4, 2, 4, 3 calls of 100 tokens.
            "refused": {"users": 2, "calls": 8, "by_code": {"daily_quota_exhausted": 8}},
            "relieved": {"users": 0, "calls": 0},
        }),
    );
    let most: Vec<&str> =
        less["most"].as_array().unwrap().iter().map(|row| row["user"].as_str().unwrap()).collect();
    assert_eq!(most.len(), 2);
    let month = preview(&t, &Sheet::new().mt(1_500)).await;
    assert_has(&month["refused"], &json!({"calls": 5, "by_code": {"monthly_quota_exhausted": 5}}));
    let same = preview(&t, &Sheet::new().dr(10).mt(100_000)).await;
    assert_has(&same, &json!({"over": {"users": 0}, "refused": {"calls": 0}, "most": []}));
    // Only the days asked for count; those before them fill the windows.
    let mut last = Sheet::new().mt(1_500).json();
    last["days"] = json!(1);
    let last = t.post("/v1/admin/plans/p/preview", &last).await.ok();
    assert_has(&last, &json!({"calls": 7, "refused": {"calls": 5}}));
    // Nothing was changed by any look.
    assert_eq!(t.get("/v1/admin/plans/p/versions").await.ok()["data"].as_array().unwrap().len(), 1);
    assert_eq!(t.remaining("a", "requests_per_day").await, 9);
}

#[tokio::test]
async fn who_was_refused_and_would_not_be_is_told() {
    let t = days(Sheet::new().dr(3).input(100), &["a"], [3, 3, 1, 0]).await;
    for n in 0..5 {
        let answer = t.ask("a", 60, 40).await;
        if n < 3 {
            let hold = answer.hold_id();
            t.finish(&hold, 60, 40).await.ok();
        } else {
            answer.refused(429, "daily_quota_exhausted");
        }
    }
    t.ask("a", 101, 1).await.refused(413, "input_too_large");
    let more = preview(&t, &Sheet::new().dr(4).input(100)).await;
    assert_has(&more["relieved"], &json!({"users": 1, "calls": 1, "by_code": {"daily_quota_exhausted": 1}}));
    let more = preview(&t, &Sheet::new().dr(10).input(200)).await;
    let expected = json!({"calls": 3, "by_code": {"daily_quota_exhausted": 2, "input_too_large": 1}});
    assert_has(&more["relieved"], &expected);
    let caps = preview(&t, &Sheet::new().dr(3).input(50)).await;
    assert_has(&caps["refused"], &json!({"calls": 10, "by_code": {"input_too_large": 10}}));
}

#[tokio::test]
async fn a_part_of_the_users_stands_for_all() {
    let users: Vec<String> = (0..40).map(|n| format!("u{n}")).collect();
    let users: Vec<&str> = users.iter().map(String::as_str).collect();
    let t = days(Sheet::new().dr(5), &users, [2, 0, 0, 0]).await;
    let mut sheet = Sheet::new().dr(1).json();
    sheet["users"] = json!(10);
    let seen = t.post("/v1/admin/plans/p/preview", &sheet).await.ok();
    let expected = json!({"users_on_plan": 40, "users": 10, "calls": 20, "complete": false, "refused": {"users": 10, "calls": 10}});
    assert_has(&seen, &expected);
    assert_eq!(seen["most"].as_array().unwrap().len(), 10);
    sheet["users"] = json!(0);
    t.post("/v1/admin/plans/p/preview", &sheet).await.refused(400, "invalid_request");
    t.post("/v1/admin/plans/q/preview", &Sheet::named("q").json()).await.refused(404, "unknown_plan");
    let wrong = json!({"name": "p", "limits": [{"name": "x", "kind": "bucket"}]});
    t.post("/v1/admin/plans/p/preview", &wrong).await.refused(400, "invalid_request");
}

/// What a trace's refusals came to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Refused {
    calls: u64,
    by_code: BTreeMap<String, u64>,
    by_user: BTreeMap<String, u64>,
}

/// Plays a trace from now on: every call by one of the users, settled when it is over.
async fn play(t: &Tenant, trace: &[Arrival], users: usize) -> Refused {
    let begin = t.now();
    let mut refused = Refused::default();
    let mut open: BinaryHeap<Reverse<(Ms, usize, String)>> = BinaryHeap::new();
    let mut last = begin;
    for (number, call) in trace.iter().enumerate() {
        // No two calls at once: then their order is everybody's.
        let at = (begin + call.at.as_millis() as Ms).max(last + 1);
        last = at;
        end(t, trace, &mut open, at).await;
        t.set_clock(&wire(at)).await;
        let user = format!("u{}", number * 7919 % users);
        let check = json!({"user": user, "model": call.model, "input_tokens": call.input,
                           "max_output_tokens": call.output + 50});
        let answer = t.check(check).await;
        if answer.status == 200 {
            let ends = at + 500 + 20 * call.output;
            open.push(Reverse((ends, number, answer.hold_id())));
            continue;
        }
        refused.calls += 1;
        *refused.by_code.entry(answer.code().to_owned()).or_default() += 1;
        *refused.by_user.entry(user).or_default() += 1;
    }
    end(t, trace, &mut open, Ms::MAX).await;
    refused
}

async fn end(t: &Tenant, trace: &[Arrival], open: &mut BinaryHeap<Reverse<(Ms, usize, String)>>, until: Ms) {
    while open.peek().is_some_and(|Reverse((ends, ..))| *ends <= until) {
        let Some(Reverse((ends, number, hold))) = open.pop() else { return };
        t.set_clock(&wire(ends)).await;
        t.finish(&hold, trace[number].input, trace[number].output).await.ok();
    }
}

fn told(preview: &Value, effect: &str) -> (u64, BTreeMap<String, u64>) {
    let codes = preview[effect]["by_code"].as_object().unwrap().iter();
    let by_code = codes.map(|(code, calls)| (code.clone(), calls.as_u64().unwrap())).collect();
    (preview[effect]["calls"].as_u64().unwrap(), by_code)
}

#[tokio::test]
async fn what_it_tells_is_what_then_happens() {
    let recorded = std::env::var_os("PREVIEW_TRACES").is_some();
    let (from, trace) = if recorded { traffic::trace() } else { traffic::made_up() };
    let trace = &trace[..trace.len().min(number_from_env("PREVIEW_CALLS", 4_000))];
    let users = if recorded { 40 } else { 12 };
    let wide = Sheet::new().rb(1_000, 1_000).dr(100_000);
    let narrow = Sheet::new().rb(2, 2).ob(900, 700).cc(1).dr(20).mt(20_000);
    let t = Tenant::with(wide.clone()).await;
    let first = play(&t, trace, users).await;
    assert_eq!(first, Refused::default());
    let foretold = preview(&t, &narrow).await;
    assert_eq!(foretold["complete"], true);

    // The same traffic at the same hours of another month.
    t.put_plan(&narrow.clone().field("applies", json!("now")).json()).await.ok();
    t.set_clock(&wire(instant("2026-05-10T12:00:00.000Z"))).await;
    let happened = play(&t, trace, users).await;
    println!(
        "{from}: {} calls, {users} users; foretold {:?}, happened {} {:?}",
        trace.len(),
        told(&foretold, "refused"),
        happened.calls,
        happened.by_code
    );
    assert!(happened.by_code.len() >= 4, "{happened:?}");
    assert_eq!(told(&foretold, "refused"), (happened.calls, happened.by_code.clone()));
    assert_eq!(foretold["refused"]["users"], happened.by_user.len());

    // And back again: everything that was refused and is still known would go through.
    let back = preview(&t, &wide).await;
    let known: u64 = happened.by_user.values().map(|calls| (*calls).min(100)).sum();
    assert_eq!(back["relieved"]["calls"], known);
    assert_eq!(back["refused"]["calls"], 0);
}
