//! A tenant, or a share of its users, is decided and not refused.

use serde_json::{Value, json};

use crate::harness::compare::assert_has;
use crate::harness::sheets::{PoolSheet, Sheet};
use crate::harness::{Reply, Tenant};

async fn in_shadow(sheet: Sheet) -> Tenant {
    let t = Tenant::with(sheet).await;
    t.put_settings(json!({"enforcement": "shadow"})).await.ok();
    t
}

/// Admitted in full, with the refusal that it would have been.
#[track_caller]
fn would_be(reply: Reply, code: &str, limit: Value) -> Reply {
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(reply.body["decision"], "allow", "{}", reply.text);
    assert_eq!(reply.body["would_refuse"], json!({"code": code, "limit": limit}), "{}", reply.text);
    reply
}

#[track_caller]
fn passes(reply: Reply) -> Reply {
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(reply.body.get("would_refuse"), None, "{}", reply.text);
    reply
}

fn bucket(meter: &str) -> Sheet {
    Sheet::new().limit(
        json!({"name": "rate", "kind": "bucket", "meter": meter, "capacity": 100, "refill_per_minute": 60}),
    )
}

/// A sheet, the call that is refused once it was made before, the code and the limit.
fn refusals_by_limits() -> Vec<(Sheet, Value, &'static str, &'static str)> {
    let hundred = json!({"input_tokens": 60, "max_output_tokens": 20});
    vec![
        (
            Sheet::new().ob(50, 60),
            json!({"max_output_tokens": 51}),
            "exceeds_capacity",
            "output_tokens_per_minute",
        ),
        (Sheet::new().dr(1), json!({}), "daily_quota_exhausted", "requests_per_day"),
        (Sheet::new().per("week", json!("week"), 100), hundred.clone(), "weekly_quota_exhausted", "week"),
        (Sheet::new().mt(100), hundred.clone(), "monthly_quota_exhausted", "tokens_per_month"),
        (Sheet::new().per("block", json!({"hours": 5}), 100), hundred.clone(), "quota_exhausted", "block"),
        (Sheet::new().rb(0, 0), json!({}), "quota_exhausted", "requests_per_minute"),
        (Sheet::new().rb(1, 1), json!({}), "request_rate_exceeded", "requests_per_minute"),
        (bucket("input_tokens"), hundred.clone(), "input_rate_exceeded", "rate"),
        (bucket("output_tokens"), json!({"max_output_tokens": 60}), "output_rate_exceeded", "rate"),
        (bucket("total_tokens"), hundred.clone(), "token_rate_exceeded", "rate"),
        (bucket("credits"), json!({"model": "m", "input_tokens": 60}), "credit_rate_exceeded", "rate"),
        (Sheet::new().cc(1), json!({}), "concurrency_exceeded", "concurrency"),
    ]
}

#[tokio::test]
async fn what_a_limit_would_refuse_is_admitted_and_told() {
    for (sheet, mut body, code, limit) in refusals_by_limits() {
        let t = in_shadow(sheet).await;
        t.put_models(&json!([{"id": "m", "input": 1_000_000, "output": 0}])).await.ok();
        body["user"] = json!("u");
        t.check(body.clone()).await.ok();
        let reply = would_be(t.check(body.clone()).await, code, json!(limit));
        assert_eq!(reply.body["hold"]["state"], "held", "{code}");
        assert!(reply.header("ratelimit").is_some(), "{code}: the headers as usual");
        // The same call, enforced: refused at once, for the same reason.
        t.put_settings(json!({"enforcement": "enforce"})).await.ok();
        let status = if code == "exceeds_capacity" { 413 } else { 429 };
        let refused = t.check(body).await.refused(status, code);
        assert_eq!(refused.body["limit"], limit, "{code}");
    }
}

#[tokio::test]
async fn who_may_not_call_at_all_and_calls_that_are_too_large_are_admitted_and_told() {
    let cases = [
        (Sheet::new().dr(9), json!({}), 403, "user_suspended"),
        (Sheet::new().dr(9).field("requires_verified", json!(true)), json!({}), 403, "user_unverified"),
        (Sheet::new().dr(9).input(10), json!({"input_tokens": 11}), 413, "input_too_large"),
        (Sheet::new().dr(9).output(10), json!({"max_output_tokens": 11}), 413, "output_too_large"),
        (Sheet::new().dr(9), json!({"input_tokens": 1001}), 413, "input_too_large"),
    ];
    for (sheet, mut body, status, code) in cases {
        let t = in_shadow(sheet).await;
        t.put_settings(json!({"max_tokens_per_call": 1000})).await.ok();
        t.put_user("u", json!({"suspended": code == "user_suspended"})).await.ok();
        body["user"] = json!("u");
        let reply = would_be(t.check(body.clone()).await, code, Value::Null);
        let asked = body["input_tokens"].as_i64().unwrap_or(0);
        assert_has(&reply.body["hold"]["reserved"], &json!({"requests": 1, "input_tokens": asked}));
        assert_eq!(reply.row("requests_per_day")["used"], 1, "{code}: it is counted");
        assert_eq!(t.finish(&reply.hold_id(), 5, 5).await.ok()["hold"]["state"], "settled");
        t.put_settings(json!({"enforcement": "enforce"})).await.ok();
        t.check(body).await.refused(status, code);
    }
}

#[tokio::test]
async fn what_is_wrong_with_the_request_itself_is_refused_as_ever() {
    let t = in_shadow(Sheet::new().dr(1)).await;
    t.check(json!({"user": "u", "input_tokens": -1})).await.refused(400, "invalid_request");
    let body = json!({"user": "u", "request_id": "r", "input_tokens": 1});
    let hold = t.check(body.clone()).await.hold_id();
    let other = json!({"user": "u", "request_id": "r", "input_tokens": 2});
    t.check(other).await.refused(422, "request_id_reused");
    t.finish(&hold, 1, 0).await.ok();
    t.check(body).await.refused(409, "already_finished");
    t.put_settings(json!({"default_plan": null})).await.ok();
    // Nothing to count by.
    t.ask("nobody", 0, 0).await.refused(404, "unknown_user");
}

#[tokio::test]
async fn figures_go_past_the_limits_and_everything_settles_exactly() {
    let sheet = Sheet::new().rb(1, 1).ob(100, 60).cc(1).dr(1).mt(150);
    let t = in_shadow(sheet).await;
    let first = passes(t.ask("u", 0, 80).await).hold_id();
    let second = would_be(t.ask("u", 10, 80).await, "monthly_quota_exhausted", json!("tokens_per_month"));
    assert_has(&second.row("requests_per_day"), &json!({"used": 2, "over_by": 1, "remaining": 0}));
    assert_has(&second.row("tokens_per_month"), &json!({"held": 170, "over_by": 20, "remaining": 0}));
    assert_has(&second.row("output_tokens_per_minute"), &json!({"held": 160, "remaining": 0}));
    assert_has(&second.row("concurrency"), &json!({"in_use": 2, "remaining": 0}));
    assert_eq!(second.body["granted"]["final"], true);
    t.finish(&second.hold_id(), 10, 10).await.ok();
    t.finish(&first, 0, 80).await.ok();
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 100, "held": 0, "over_by": 0}));
    assert_has(&t.left("u", "output_tokens_per_minute").await, &json!({"held": 0, "remaining": 10}));
    assert_has(&t.left("u", "concurrency").await, &json!({"in_use": 0}));
    // Two requests of one: a minute for the debt, another for the next call.
    t.pass(59_999).await;
    assert_eq!(t.remaining("u", "requests_per_minute").await, 0);
    t.pass(60_001).await;
    assert_eq!(t.remaining("u", "requests_per_minute").await, 1);
    let quota = t.quota("u").await.ok();
    assert_has(&quota, &json!({"state": "exhausted", "next_call_at": "2026-03-11T00:00:00.000Z"}));
}

#[tokio::test]
async fn a_release_gives_back_what_went_past_the_limits() {
    let t = in_shadow(Sheet::new().rb(1, 1).dr(1).mt(100)).await;
    t.ask("u", 100, 0).await.ok();
    let over = t.ask("u", 100, 0).await.hold_id();
    t.release(&over).await.ok();
    assert_has(&t.left("u", "requests_per_day").await, &json!({"used": 1, "over_by": 0}));
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"held": 100, "over_by": 0}));
    t.pass(60_000).await;
    assert_eq!(t.remaining("u", "requests_per_minute").await, 1);
}

#[tokio::test]
async fn a_call_beyond_all_measure_breaks_nothing() {
    let t = in_shadow(bucket("total_tokens").mt(100)).await;
    let most = (1i64 << 53) - 1;
    let reply = would_be(t.ask("u", most, 0).await, "input_too_large", Value::Null);
    // What nobody can settle is not reserved.
    assert_eq!(reply.body["hold"]["reserved"]["input_tokens"], 1_000_000_000);
    let hold = reply.hold_id();
    t.extend(&hold, json!({"add_output_tokens": most})).await.ok();
    t.extend(&hold, json!({"add_output_tokens": most})).await.ok();
    t.quota("u").await.ok();
    t.pass(1000).await;
    t.finish(&hold, 30, 0).await.ok();
    assert_eq!(t.remaining("u", "rate").await, 70);
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 30, "held": 0}));
}

#[tokio::test]
async fn a_dry_run_tells_and_takes_nothing() {
    let t = in_shadow(Sheet::new().dr(1)).await;
    t.ask("u", 0, 0).await.ok();
    let dry = t.check(json!({"user": "u", "dry_run": true})).await;
    let dry = would_be(dry, "daily_quota_exhausted", json!("requests_per_day"));
    assert_eq!(dry.body.get("hold"), None);
    assert_has(&t.left("u", "requests_per_day").await, &json!({"used": 1}));
}

#[tokio::test]
async fn a_repeated_request_is_the_same_hold_and_takes_nothing_twice() {
    let t = in_shadow(Sheet::new().dr(1)).await;
    t.ask("u", 0, 0).await.ok();
    let body = json!({"user": "u", "request_id": "r", "their_decision": "allow"});
    let first = would_be(t.check(body.clone()).await, "daily_quota_exhausted", json!("requests_per_day"));
    // What others decided is no part of the request.
    let again = t.check(json!({"user": "u", "request_id": "r", "their_decision": "blocked"})).await;
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(first.hold_id(), again.hold_id());
    assert_has(&t.left("u", "requests_per_day").await, &json!({"used": 2}));
}

#[tokio::test]
async fn a_smaller_output_is_granted_as_enforcement_would_else_what_was_asked_for() {
    let t = in_shadow(Sheet::new().mt(100)).await;
    let ask = json!({"user": "u", "max_output_tokens": 90, "min_output_tokens": 30});
    let first = passes(t.check(ask.clone()).await);
    assert_eq!(first.body["granted"]["max_output_tokens"], 90);
    t.finish(&first.hold_id(), 0, 60).await.ok();
    let second = passes(t.check(ask.clone()).await);
    assert_has(&second.body["granted"], &json!({"max_output_tokens": 40, "final": true}));
    let third = would_be(t.check(ask).await, "monthly_quota_exhausted", json!("tokens_per_month"));
    assert_eq!(third.body["granted"]["max_output_tokens"], 90);
    assert_has(&third.row("tokens_per_month"), &json!({"held": 130, "over_by": 90}));
}

#[tokio::test]
async fn an_extend_in_shadow_is_never_refused_for_a_limit() {
    let t = in_shadow(Sheet::new().mt(100).output(50)).await;
    let hold = t.ask("u", 40, 50).await.hold_id();
    let reply = t.extend(&hold, json!({"add_output_tokens": 20})).await;
    let body = reply.ok();
    assert_eq!(body["would_refuse"], json!({"code": "output_too_large", "limit": null}));
    assert_eq!(body["hold"]["reserved"]["output_tokens"], 70);
    t.put_plan(&Sheet::new().mt(100).json()).await.ok();
    let hold = t.ask("v", 40, 50).await.hold_id();
    let body = t.extend(&hold, json!({"add_output_tokens": 11})).await.ok();
    assert_eq!(body["would_refuse"], json!({"code": "exceeds_capacity", "limit": "tokens_per_month"}));
    assert_has(&body["limits"][0], &json!({"held": 101, "over_by": 1}));
    assert_eq!(t.extend(&hold, json!({})).await.ok().get("would_refuse"), None);
    t.finish(&hold, 40, 61).await.ok();
    assert_has(&t.left("v", "tokens_per_month").await, &json!({"used": 101, "held": 0}));
    t.pass(600_000).await;
    let late = t.ask_for("w", 0, 0, 1).await.hold_id();
    t.pass(1000).await;
    t.extend(&late, json!({})).await.refused(409, "lease_ended");
}

#[tokio::test]
async fn shared_limits_and_the_pool_are_taken_from_in_full() {
    let sheet = Sheet::new().dr(3).but("scope", json!("tenant")).but("name", json!("of_all"));
    let t = in_shadow(sheet).await;
    t.pool(&PoolSheet::new("default", &["*"]).places(1).output_tokens(100, 60)).await;
    passes(t.ask("a", 0, 60).await);
    let second = would_be(t.ask("b", 0, 60).await, "upstream_capacity_exceeded", json!("pool_output"));
    assert_has(&second.row("pool_places"), &json!({"in_use": 2}));
    assert_has(&second.row("pool_output"), &json!({"held": 120, "remaining": 0}));
    t.ask("c", 0, 0).await.ok();
    let over = would_be(t.ask("d", 0, 0).await, "daily_quota_exhausted", json!("of_all"));
    assert_has(&over.row("of_all"), &json!({"used": 4, "over_by": 1}));
    t.put_settings(json!({"enforcement": "enforce"})).await.ok();
    t.ask("e", 0, 0).await.refused(429, "daily_quota_exhausted");
}

#[tokio::test]
async fn a_batch_is_decided_in_order_and_refuses_nothing() {
    let t = in_shadow(Sheet::new().dr(1)).await;
    let checks = [
        json!({"user": "u", "their_decision": "allow"}),
        json!({"user": "u", "their_decision": "rate_limited"}),
        json!({"user": "u", "their_decision": "Nope!"}),
        json!({"user": "v"}),
    ];
    let body = t.check_batch(&checks).await.ok();
    let results = body["results"].as_array().unwrap();
    let statuses: Vec<i64> = results.iter().map(|r| r["status"].as_i64().unwrap()).collect();
    assert_eq!(statuses, [200, 200, 400, 200]);
    assert_eq!(results[0]["body"].get("would_refuse"), None);
    assert_has(&results[1]["body"]["would_refuse"], &json!({"code": "daily_quota_exhausted"}));
    assert_eq!(results[2]["body"]["errors"][0]["pointer"], "/their_decision");
    assert_has(&t.left("u", "requests_per_day").await, &json!({"used": 2}));
}

/// Which of sixty users are in shadow; every one of them has used up the day.
async fn shadowed(t: &Tenant) -> Vec<bool> {
    let mut side = Vec::new();
    for n in 0..60 {
        let reply = t.check(json!({"user": format!("user-{n}"), "dry_run": true})).await;
        assert!(matches!(reply.status, 200 | 429), "{}", reply.text);
        side.push(reply.status == 200);
    }
    side
}

#[tokio::test]
async fn a_share_of_users_is_always_the_same_users_and_only_grows() {
    let t = in_shadow(Sheet::new().dr(1)).await;
    for n in 0..60 {
        t.ask(&format!("user-{n}"), 0, 0).await.ok();
    }
    let mut before = vec![false; 60];
    for percent in [0, 1, 10, 50, 90, 100] {
        t.put_settings(json!({"enforcement": "enforce", "shadow_percent": percent})).await.ok();
        let now = shadowed(&t).await;
        assert!(before.iter().zip(&now).all(|(before, now)| !before || *now), "{percent} %");
        assert_eq!(now, shadowed(&t).await, "{percent} %: the same again");
        before = now;
        match percent {
            0 => assert!(before.iter().all(|shadowed| !shadowed)),
            50 => assert!((15..46).contains(&before.iter().filter(|shadowed| **shadowed).count())),
            100 => assert!(before.iter().all(|shadowed| *shadowed)),
            _ => {}
        }
    }
    t.put_settings(json!({"shadow_percent": 101})).await.refused(400, "invalid_request");
}

/// A counter's value in `/metrics`; 0 if it is not there.
async fn counter(t: &Tenant, line: &str) -> u64 {
    let text = t.get("/metrics").await.text;
    let value = text.lines().find_map(|have| have.strip_prefix(line));
    value.map_or(0, |value| value.trim().parse().expect("a number"))
}

#[tokio::test]
async fn metrics_tell_shadow_refusals_apart_and_compare_two_limiters() {
    let refused = "apportion_decisions_total{code=\"weekly_quota_exhausted\",decision=\"would_refuse\"}";
    let compared = "apportion_compared_decisions_total{ours=\"refuse\",theirs=\"refuse\"}";
    let t = in_shadow(Sheet::new().per("week", json!("week"), 10)).await;
    t.ask("u", 10, 0).await.ok();
    let before = [counter(&t, refused).await, counter(&t, compared).await];
    let body = json!({"user": "u", "input_tokens": 1, "their_decision": "monthly_cap"});
    t.check(body.clone()).await.ok();
    let mut dry = body.clone();
    dry["dry_run"] = json!(true);
    t.check(dry).await.ok();
    // Enforced decisions are compared, too.
    t.put_settings(json!({"enforcement": "enforce"})).await.ok();
    t.check(body).await.refused(429, "weekly_quota_exhausted");
    let after = [counter(&t, refused).await, counter(&t, compared).await];
    // Others may count at the same time, but nobody else would refuse for a week.
    assert!(after[0] > before[0], "{before:?} {after:?}");
    assert!(after[1] >= before[1] + 2, "{before:?} {after:?}");
}

#[tokio::test]
async fn decisions_are_counted_beside_the_others_by_day_and_cause() {
    let t = in_shadow(Sheet::new().dr(2)).await;
    let ask = |theirs: &str| json!({"user": "u", "request_id": theirs, "their_decision": theirs});
    for theirs in ["allow", "blocked", "monthly_cap", "monthly_cap_2"] {
        t.check(ask(theirs)).await.ok();
        // Told again, and tried only: not decided again.
        t.check(ask(theirs)).await.ok();
        t.check(json!({"user": "u", "dry_run": true, "their_decision": theirs})).await.ok();
    }
    t.put_settings(json!({"enforcement": "enforce"})).await.ok();
    t.check(json!({"user": "u", "their_decision": "allow"})).await.refused(429, "daily_quota_exhausted");
    let code = "daily_quota_exhausted";
    let row =
        |ours: &str, theirs: &str| json!({"day": "2026-03-10", "ours": ours, "theirs": theirs, "checks": 1});
    let mut expected =
        vec![row("allow", "allow"), row("allow", "blocked"), row(code, "allow"), row(code, "monthly_cap")];
    expected.push(row(code, "monthly_cap_2"));
    let rows = t.get("/v1/admin/decisions").await.ok()["data"].clone();
    assert_eq!(rows, json!(expected));
}

#[tokio::test]
async fn what_others_decided_is_a_word() {
    let t = Tenant::with(Sheet::new().dr(9)).await;
    for bad in
        [json!("Allow"), json!(""), json!("a".repeat(65)), json!("a b"), json!(1), json!(true), json!({})]
    {
        let refused =
            t.check(json!({"user": "u", "their_decision": bad})).await.refused(400, "invalid_request");
        assert_eq!(refused.body["errors"][0]["pointer"], "/their_decision", "{bad}");
    }
    for good in ["allow", "monthly_cap", "429", &"a".repeat(64)] {
        passes(t.check(json!({"user": "u", "their_decision": good})).await);
    }
}
