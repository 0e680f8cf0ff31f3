//! Which refusal a caller is given when several would do, and what each of them carries.

use serde_json::{Value, json};

use crate::harness::compare::assert_has;
use crate::harness::sheets::{PoolSheet, Sheet};
use crate::harness::{Reply, Tenant};

/// Everything is wrong at once; one fault after the other is mended.
#[tokio::test]
async fn refusals_come_in_the_order_of_the_contract() {
    let t = Tenant::with(Sheet::new().input(100).output(50).rb(2, 1).dr(2)).await;
    t.check(json!({"user": "u", "request_id": "taken"})).await.ok();
    let finished = t.check(json!({"user": "u", "request_id": "over"})).await.hold_id();
    t.finish(&finished, 0, 0).await.ok();
    t.put_user("u", json!({"suspended": true})).await.ok();
    let quota_only = t.with_token(&t.token(&["--scope", "quota"]));
    let nobody = t.with_token("nonsense");
    let bad = json!({"user": "u", "request_id": "taken", "input_tokens": -1});
    nobody.check(bad.clone()).await.refused(401, "unauthenticated");
    quota_only.check(bad.clone()).await.refused(403, "forbidden");
    t.check(bad).await.refused(400, "invalid_request");
    let reused = json!({"user": "u", "request_id": "taken", "input_tokens": 101});
    t.check(reused).await.refused(422, "request_id_reused");
    t.check(json!({"user": "u", "request_id": "over"})).await.refused(409, "already_finished");
    t.ask("u", 101, 51).await.refused(403, "user_suspended");
    t.put_user("u", json!({"suspended": false})).await.ok();
    t.ask("u", 101, 51).await.refused(413, "input_too_large");
    t.ask("u", 100, 51).await.refused(413, "output_too_large");
    t.ask("u", 100, 50).await.refused(429, "daily_quota_exhausted");
    t.set_clock("2026-03-11T00:00:00.000Z").await;
    t.ask("u", 100, 50).await.ok();
    t.ask("u", 100, 50).await.ok();
    t.plan(&Sheet::new().input(100).output(50).rb(2, 1).dr(3)).await;
    t.ask("u", 100, 50).await.refused(429, "request_rate_exceeded");
}

#[tokio::test]
async fn a_user_who_must_be_verified_is_told_so() {
    let t = Tenant::with(Sheet::new().dr(5).field("requires_verified", json!(true))).await;
    t.ask("u", 0, 0).await.refused(403, "user_unverified");
    t.put_user("u", json!({"verified": true})).await.ok();
    t.ask("u", 0, 0).await.ok();
}

#[tokio::test]
async fn a_tenant_without_a_default_plan_knows_only_the_users_it_was_told() {
    let t = Tenant::with(Sheet::new().dr(5)).await;
    t.put_settings(json!({"default_plan": null})).await.ok();
    t.ask("u", 0, 0).await.refused(404, "unknown_user");
    t.put_user("v", json!({"plan": "p"})).await.ok();
    t.ask("v", 0, 0).await.ok();
    t.put_user("w", json!({"plan": "no-such-plan"})).await.refused(404, "unknown_plan");
}

#[tokio::test]
async fn what_can_never_fit_is_told_apart_from_what_does_not_fit_now() {
    let t = Tenant::with(Sheet::new().ob(100, 60).mt(500)).await;
    let refused = t.ask("u", 0, 101).await.refused(413, "exceeds_capacity");
    assert_has(&refused.body, &json!({"limit": "output_tokens_per_minute", "max": 100, "retryable": false}));
    assert_eq!(refused.body["violations"].as_array().map(Vec::len), Some(1));
    let refused = t.ask("u", 450, 101).await.refused(413, "exceeds_capacity");
    assert_has(&refused.body, &json!({"limit": "output_tokens_per_minute", "max": 100}));
    assert_eq!(refused.body["violated-policies"], json!(["output_tokens_per_minute", "tokens_per_month"]));
    let refused = t.ask("u", 10_000_001, 0).await.refused(413, "input_too_large");
    assert_eq!(refused.body["max"], 10_000_000);
    assert_eq!(refused.header("x-should-retry"), Some("false"));
}

#[tokio::test]
async fn a_part_is_granted_where_the_whole_does_not_fit() {
    let t = Tenant::with(Sheet::new().ob(100, 60).mt(1000)).await;
    t.ask("u", 0, 70).await.ok();
    let ask = |min: i64, max: i64| json!({"user": "u", "input_tokens": 5, "max_output_tokens": max, "min_output_tokens": min});
    let refused = t.check(ask(31, 64)).await.refused(429, "output_rate_exceeded");
    assert_has(&refused.body["violations"][0], &json!({"requested": 31, "would_fit": 30}));
    let granted = t.check(ask(10, 64)).await.ok();
    assert_has(&granted["granted"], &json!({"input_tokens": 5, "max_output_tokens": 30, "final": false}));
    assert_eq!(granted["hold"]["reserved"]["output_tokens"], 30);
    t.check(ask(101, 200)).await.refused(413, "exceeds_capacity");
    t.check(ask(65, 64)).await.refused(400, "invalid_request");
}

#[tokio::test]
async fn the_last_call_of_a_window_is_marked_as_final() {
    let t = Tenant::with(Sheet::new().mt(100)).await;
    let ask = json!({"user": "u", "input_tokens": 60, "max_output_tokens": 64, "min_output_tokens": 1});
    let granted = t.check(ask).await.ok();
    assert_has(&granted["granted"], &json!({"max_output_tokens": 40, "final": true}));
    assert_eq!(granted["limits"][0]["remaining"], 0);
}

#[tokio::test]
async fn an_exhausted_allowance_tells_no_client_to_come_back_soon() {
    let t = Tenant::at("UTC", "2026-03-10T00:00:00.000Z").await;
    t.plan(&Sheet::new().mt(1000)).await;
    t.spend("u", 1000, 0).await;
    let before = t.quota("u").await.ok();
    for _ in 0..300 {
        let refused = t.ask("u", 1, 0).await.refused(429, "monthly_quota_exhausted");
        assert_eq!(refused.body["resets_at"], "2026-04-01T00:00:00.000Z");
        assert_eq!(refused.header("x-should-retry"), Some("false"));
    }
    assert_eq!(t.quota("u").await.ok(), before);
    for status in [402, 403] {
        t.put_settings(json!({"denial_status": status})).await.ok();
        t.ask("u", 1, 0).await.refused(status, "monthly_quota_exhausted");
    }
    t.put_settings(json!({"denial_status": 429})).await.ok();
    t.put_settings(json!({"denial_status": 404})).await.refused(400, "invalid_request");
}

#[tokio::test]
async fn every_spent_allowance_takes_the_tenants_status_and_keeps_all_else() {
    let sheet = Sheet::new()
        .dr(1)
        .but("models", json!(["day"]))
        .per("week", json!("week"), 10)
        .but("models", json!(["week"]))
        .mt(10)
        .but("models", json!(["month"]))
        .per("life", json!("lifetime"), 10)
        .but("models", json!(["life"]))
        .per("none", json!("day"), 0)
        .but("models", json!(["none"]))
        .rb(1, 1)
        .but("models", json!(["rate"]));
    let t = Tenant::with(sheet).await;
    let ask = |model: &str| json!({"user": "u", "model": model, "input_tokens": 5, "max_output_tokens": 5});
    for model in ["day", "week", "month", "life", "rate"] {
        t.check(ask(model)).await.ok();
    }
    let open = t.check(json!({"user": "u", "model": "week"})).await.hold_id();
    let spent = [
        ("day", "daily_quota_exhausted"),
        ("week", "weekly_quota_exhausted"),
        ("month", "monthly_quota_exhausted"),
        ("life", "quota_exhausted"),
        ("none", "daily_quota_exhausted"),
    ];
    let before = t.quota("u").await.ok();
    for status in [402, 403, 429] {
        t.put_settings(json!({"denial_status": status})).await.ok();
        for (model, code) in spent {
            let alone = t.check(ask(model)).await.refused(status, code);
            let batch = t.check_batch(&[ask(model), ask("rate")]).await.ok();
            let item = &batch["results"][0];
            assert_has(item, &json!({"status": status, "body": {"status": status, "code": code}}));
            assert_eq!(item["headers"]["x-should-retry"], "false", "{item}");
            assert_eq!(item["headers"].get("retry-after"), None, "{item}");
            assert_eq!(item["body"]["resets_at"], alone.body["resets_at"]);
            // What time brings back is a 429 whatever the setting.
            let rate = &batch["results"][1];
            assert_has(rate, &json!({"status": 429, "body": {"code": "request_rate_exceeded"}}));
            assert_eq!(rate["headers"]["x-should-retry"], "true", "{rate}");
        }
        let more = t.extend(&open, json!({"add_output_tokens": 5})).await;
        more.refused(status, "weekly_quota_exhausted");
    }
    assert_eq!(t.quota("u").await.ok(), before, "a refusal changes nothing");
}

#[tokio::test]
async fn soft_limits_admit_and_say_that_they_were_crossed() {
    let t = Tenant::with(Sheet::new().dr(1).but("enforce", json!("soft"))).await;
    let first = t.ask("u", 0, 0).await.row("requests_per_day");
    assert_ne!(first["over"], true);
    let second = t.ask("u", 0, 0).await.row("requests_per_day");
    assert_has(&second, &json!({"over": true, "used": 2, "remaining": 0, "over_by": 1}));
}

/// One limit of each kind, by scope, that a call of 60 + 60 tokens passes once.
fn one_of_each(enforce: &str, scope: &str) -> Vec<Sheet> {
    let named = |sheet: Sheet| {
        sheet.but("name", json!("it")).but("enforce", json!(enforce)).but("scope", json!(scope))
    };
    let bucket = |meter: &str| {
        Sheet::new().limit(json!({"kind": "bucket", "meter": meter, "capacity": 100, "refill_per_minute": 1}))
    };
    vec![
        named(Sheet::new().rb(1, 1)),
        named(bucket("input_tokens")),
        named(bucket("output_tokens")),
        named(Sheet::new().dr(1)),
        named(Sheet::new().mt(130)).but("warn_at", json!([0.5])),
        named(Sheet::new().per("it", json!("week"), 130)),
        named(Sheet::new().per("it", json!({"hours": 5}), 130)),
        named(Sheet::new().per("it", json!({"session_hours": 5}), 130)),
        named(Sheet::new().per("it", json!("lifetime"), 130)),
        named(Sheet::new().cc(1)),
    ]
}

/// What is gone of a limit: whole units taken or held.
fn gone(row: &Value) -> i64 {
    let figure = |name: &str| row[name].as_i64().unwrap_or(0);
    if row["kind"] == "slots" { figure("in_use") } else { figure("used") + figure("held") }
}

#[tokio::test]
async fn a_soft_limit_of_any_kind_admits_counts_in_full_and_says_so() {
    for scope in ["user", "org", "tenant"] {
        for sheet in one_of_each("soft", scope) {
            let t = Tenant::with(sheet.clone()).await;
            t.put_user("u", json!({"org": "acme"})).await.ok();
            let first = t.ask("u", 60, 60).await;
            assert_ne!(first.row("it")["over"], true, "{}", sheet.json());
            let second = t.ask("u", 60, 60).await;
            let row = second.row("it");
            assert_eq!((&row["over"], &row["remaining"]), (&json!(true), &json!(0)), "{}", sheet.json());
            assert_eq!(second.body["granted"]["final"], false, "{}", sheet.json());
            assert_eq!(second.body.get("would_refuse"), None);
            if row["kind"] == "window" {
                assert_eq!(gone(&row), 2 * gone(&first.row("it")), "{}", sheet.json());
            }
            if scope == "user" {
                assert!(second.header("ratelimit").is_some_and(|field| field.contains("\"it\"")));
            }
            if sheet.json()["limits"][0].get("warn_at").is_some() {
                assert_eq!(second.body["warnings"][0]["limit"], "it");
            }
            assert_eq!(t.quota("u").await.ok()["state"], "ok", "no soft limit stands in the way");
            // Both settled with nothing: it is as if nothing had been, but for requests.
            t.release(&first.hold_id()).await.ok();
            t.release(&second.hold_id()).await.ok();
            let row = t.left("u", "it").await;
            assert_eq!((gone(&row), &row["remaining"]), (0, &row["limit"]), "{}", sheet.json());
        }
    }
}

#[tokio::test]
async fn a_shadow_limit_of_any_kind_is_seen_in_the_quota_view_alone() {
    for scope in ["user", "org", "tenant"] {
        for sheet in one_of_each("shadow", scope) {
            let t = Tenant::with(sheet.clone()).await;
            t.put_user("u", json!({"org": "acme"})).await.ok();
            let mut holds = Vec::new();
            for _ in 0..3 {
                let reply = t.ask("u", 60, 60).await;
                assert_eq!((&reply.body["limits"], &reply.body["warnings"]), (&json!([]), &json!([])));
                assert_eq!((reply.header("ratelimit"), reply.header("ratelimit-policy")), (None, None));
                assert_eq!(reply.body["granted"]["final"], false, "{}", sheet.json());
                holds.push(reply.hold_id());
            }
            let row = t.left("u", "it").await;
            assert_eq!((&row["would_refuse"], &row["state"]), (&json!(2), &json!("ok")), "{}", sheet.json());
            assert_ne!(row["over"], true);
            let settled = t.finish(&holds[0], 1, 1).await.ok();
            assert_eq!(settled["limits"], json!([]));
        }
    }
}

#[tokio::test]
async fn a_shadow_limit_counts_what_it_would_have_refused_of_calls_that_others_refuse() {
    let sheet = Sheet::new().dr(1).ob(100, 60).but("enforce", json!("shadow"));
    let t = Tenant::with(sheet).await;
    t.ask("u", 0, 90).await.ok();
    t.ask("u", 0, 11).await.refused(429, "daily_quota_exhausted");
    t.ask("u", 0, 10).await.refused(429, "daily_quota_exhausted");
    assert_has(&t.left("u", "output_tokens_per_minute").await, &json!({"held": 90, "would_refuse": 1}));
}

#[tokio::test]
async fn a_shadow_limit_would_not_have_refused_what_it_would_have_granted_less_of() {
    let t = Tenant::with(Sheet::new().mt(100).but("enforce", json!("shadow"))).await;
    let ask = json!({"user": "u", "max_output_tokens": 80, "min_output_tokens": 20});
    for _ in 0..3 {
        assert_eq!(t.check(ask.clone()).await.ok()["granted"]["max_output_tokens"], 80);
    }
    // 100, then 20, then -60 were left.
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"held": 240, "would_refuse": 1}));
}

#[tokio::test]
async fn shadow_limits_only_count_what_they_would_have_refused() {
    let t = Tenant::with(Sheet::new().dr(1).but("enforce", json!("shadow"))).await;
    for _ in 0..3 {
        assert_eq!(t.ask("u", 0, 0).await.ok()["limits"], json!([]));
    }
    t.check(json!({"user": "u", "dry_run": true})).await.ok();
    let row = t.left("u", "requests_per_day").await;
    assert_has(&row, &json!({"used": 3, "would_refuse": 2}));
    // Use that had no hold is counted in full, but nobody asked whether it may be.
    t.usage(&json!({"id": "x", "user": "u", "input_tokens": 1, "output_tokens": 1})).await.ok();
    let row = t.left("u", "requests_per_day").await;
    assert_has(&row, &json!({"used": 4, "would_refuse": 2}));
}

#[tokio::test]
async fn a_filter_counts_only_what_it_names() {
    let sheet = Sheet::new()
        .dr(1)
        .but("name", json!("opus_per_day"))
        .but("models", json!(["opus*"]))
        .dr(2)
        .but("name", json!("chat_per_day"))
        .but("features", json!(["chat"]));
    let t = Tenant::with(sheet).await;
    let ask = |model: &str, feature: &str| json!({"user": "u", "model": model, "feature": feature});
    t.put_models(&json!([{"id": "Opus-4", "aliases": ["smart"], "input": 1, "output": 1}])).await.ok();
    let rows = t.check(ask("SMART", "other")).await.ok()["limits"].clone();
    assert_eq!(rows.as_array().map(Vec::len), Some(1));
    let refused = t.check(ask("oPUS-4", "other")).await.refused(429, "daily_quota_exhausted");
    assert_eq!(refused.body["violated-policies"], json!(["opus_per_day"]));
    assert_eq!(t.check(ask("sonnet", "other")).await.ok()["limits"], json!([]));
    assert_eq!(t.check(json!({"user": "u"})).await.ok()["limits"], json!([]));
    for _ in 0..2 {
        t.check(ask("sonnet", "chat")).await.ok();
    }
    t.check(ask("sonnet", "chat")).await.refused(429, "daily_quota_exhausted");
}

#[tokio::test]
async fn every_problem_has_a_page_that_explains_it() {
    let t = Tenant::with(Sheet::new().dr(1)).await;
    t.ask("u", 0, 0).await.ok();
    for problem in [t.ask("u", 0, 0).await, t.check(json!({})).await, t.get("/v1/nowhere").await] {
        problem.assert_problem();
        let page = t.get(problem.body["type"].as_str().unwrap()).await;
        assert_eq!(page.status, 200, "{}", problem.body["type"]);
    }
}

#[tokio::test]
async fn every_decision_carries_the_rate_limit_fields() {
    let sheet = Sheet::new()
        .rb(3, 3)
        .cc(2)
        .dr(5)
        .mt(100)
        .dr(9)
        .but("name", json!("t_day"))
        .but("scope", json!("tenant"));
    let t = Tenant::with(sheet).await;
    t.pool(&PoolSheet::new("default", &["*"]).requests(100, 100)).await;
    let allowed = t.ask("u", 1, 1).await;
    let refused = t.ask("u", 101, 0).await;
    assert_eq!((allowed.status, refused.status), (200, 413));
    t.ask("u", 0, 0).await.ok();
    let limited = t.ask("u", 0, 0).await.refused(429, "concurrency_exceeded");
    for reply in [&allowed, &refused, &limited] {
        assert_eq!(reply.header("cache-control"), Some("no-store"));
        let policies = items(reply, "ratelimit-policy");
        let names: Vec<&str> = policies.iter().map(|(n, _)| n.as_str()).collect();
        assert_eq!(names, ["requests_per_minute", "concurrency", "requests_per_day", "tokens_per_month"]);
        for (name, parameters) in &policies {
            let calendar = name.starts_with("requests_per_day") || name.starts_with("tokens");
            assert_eq!(has(parameters, "w"), !calendar && name != "concurrency", "{name} {parameters:?}");
            assert!(has(parameters, "q"), "{name} {parameters:?}");
        }
        assert_eq!(items(reply, "ratelimit").len(), 4);
    }
    let state = items(&limited, "ratelimit");
    let of = |n: usize, p: &str| {
        state[n].1.iter().find_map(|x| x.strip_prefix(&format!("{p}=")).map(str::to_owned))
    };
    assert_eq!(of(0, "r").as_deref(), Some("1"));
    // The third token is whole 20 s after the first was taken.
    assert_eq!(of(0, "t").as_deref(), Some("20"));
    assert_eq!(of(1, "r").as_deref(), Some("0"));
    assert_eq!(of(2, "r").as_deref(), Some("3"));
    assert_eq!(of(2, "t").as_deref(), Some("43200"));
}

/// A structured list: each item's name and its parameters.
fn items(reply: &Reply, header: &str) -> Vec<(String, Vec<String>)> {
    let text = reply.header(header).unwrap_or_else(|| panic!("no {header} on {}", reply.status));
    text.split(", ")
        .map(|item| {
            let mut parts = item.split(';').map(|p| p.trim().to_owned());
            let name = parts.next().unwrap();
            let bare = name.strip_prefix('"').and_then(|n| n.strip_suffix('"'));
            (bare.unwrap_or_else(|| panic!("no quoted name: {item}")).to_owned(), parts.collect())
        })
        .collect()
}

fn has(parameters: &[String], name: &str) -> bool {
    parameters.iter().any(|p| p.starts_with(&format!("{name}=")))
}

#[tokio::test]
async fn a_refusal_names_everything_a_client_needs() {
    let t = Tenant::with(Sheet::new().rb(1, 3)).await;
    t.ask("u", 0, 0).await.ok();
    let refused = t.ask("u", 0, 0).await.refused(429, "request_rate_exceeded");
    assert_has(
        &refused.body,
        &json!({
            "limit": "requests_per_minute",
            "retry_after_ms": 20_000,
            "violated-policies": ["requests_per_minute"],
            "violations": [{
                "name": "requests_per_minute", "scope": "user", "kind": "bucket", "meter": "requests",
                "limit": 1, "remaining": 0, "requested": 1, "would_fit": 0, "retry_after_ms": 20_000,
            }],
        }),
    );
    assert_eq!(refused.body["resets_at"], Value::Null);
}

#[tokio::test]
async fn warnings_name_the_highest_threshold_that_was_reached() {
    let t = Tenant::with(Sheet::new().mt(200_000).but("warn_at", json!([0.8, 0.95]))).await;
    t.usage(&json!({"id": "x", "user": "u", "input_tokens": 150_000, "output_tokens": 0})).await.ok();
    assert_eq!(t.ask("u", 0, 9_999).await.ok()["warnings"], json!([]));
    // 159,999 are spoken for; one more is 80 % exactly.
    let warned = t.ask("u", 1, 0).await.ok();
    assert_eq!(warned["warnings"], json!([{"limit": "tokens_per_month", "ratio": 0.8, "used_ratio": 0.8}]));
    let warned = t.ask("u", 6712, 0).await.ok();
    assert_eq!(warned["warnings"][0]["used_ratio"], 0.83356);
    let warned = t.ask("u", 30_000, 0).await.ok();
    assert_has(&warned["warnings"][0], &json!({"ratio": 0.95, "used_ratio": 0.98356}));
}
