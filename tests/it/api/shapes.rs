//! The same refusals in the form of a vendor, so that its own clients understand them.

use serde_json::{Value, json};

use crate::harness::sheets::{PoolSheet, Sheet};
use crate::harness::{Client, Reply, Tenant};

/// What decides about a retry, and must be the same in every form.
const OF_RETRIES: [&str; 4] = ["retry-after", "retry-after-ms", "x-should-retry", "www-authenticate"];

/// A refusal: its code, and how it is brought about.
struct Case {
    code: &'static str,
    /// `type` and `code` of OpenAI's error, `type` of Anthropic's.
    words: (&'static str, &'static str, &'static str),
    path: String,
    body: Value,
}

fn case(
    code: &'static str,
    words: (&'static str, &'static str, &'static str),
    path: &str,
    body: Value,
) -> Case {
    Case { code, words, path: path.into(), body }
}

const TOKENS: (&str, &str, &str) = ("tokens", "rate_limit_exceeded", "rate_limit_error");
const REQUESTS: (&str, &str, &str) = ("requests", "rate_limit_exceeded", "rate_limit_error");
const SPENT: (&str, &str, &str) = ("insufficient_quota", "insufficient_quota", "rate_limit_error");

fn faulty(code: &'static str) -> (&'static str, &'static str, &'static str) {
    ("invalid_request_error", code, "invalid_request_error")
}

async fn ask(client: &Client, case: &Case, shape: &str) -> Reply {
    client.post(&format!("{}?shape={shape}", case.path), &case.body).await
}

/// The three forms of one refusal, side by side.
async fn compare(client: &Client, case: &Case) {
    let plain = ask(client, case, "none").await;
    plain.assert_problem();
    assert_eq!(plain.code(), case.code, "{}", plain.text);
    let openai = ask(client, case, "openai").await;
    let anthropic = ask(client, case, "anthropic").await;
    for told in [&openai, &anthropic] {
        assert_eq!((told.status, told.header("content-type")), (plain.status, Some("application/json")));
        for name in OF_RETRIES {
            assert_eq!(told.header(name), plain.header(name), "{name} of {}", case.code);
        }
        let details = &told.body["error"]["details"];
        assert_eq!(details["error_code"], case.code);
        for name in ["limit", "max", "retry_after_ms", "resets_at"] {
            assert_eq!(details.get(name), plain.body.get(name), "{name} of {}", case.code);
        }
        let message = told.body["error"]["message"].as_str().unwrap_or_default();
        assert!(
            message.starts_with(plain.body["detail"].as_str().unwrap().trim_end_matches('.')),
            "{message}"
        );
    }
    let error = &openai.body["error"];
    assert_eq!(
        (&error["type"], &error["code"]),
        (&json!(case.words.0), &json!(case.words.1)),
        "{}",
        case.code
    );
    assert!(error.as_object().unwrap().contains_key("param"));
    assert_eq!(openai.body.as_object().unwrap().len(), 1);
    assert_eq!(
        (&anthropic.body["type"], &anthropic.body["error"]["type"]),
        (&json!("error"), &json!(case.words.2))
    );
    assert_eq!(anthropic.body["request_id"].as_str(), anthropic.header("x-request-id"));
}

fn check(model: &str, input: i64, output: i64) -> Value {
    json!({"user": "u", "model": model, "input_tokens": input, "max_output_tokens": output})
}

/// One limit for each model, so that a model names the refusal.
fn sheet() -> Sheet {
    let bucket = |name: &str, meter: &str| json!({"name": name, "kind": "bucket", "meter": meter, "capacity": 100, "refill_per_minute": 60});
    let on = |sheet: Sheet, model: &str| sheet.but("models", json!([model]));
    let sheet = on(Sheet::new().dr(1), "day");
    let sheet = on(sheet.per("week", json!("week"), 10), "week");
    let sheet = on(sheet.mt(10), "month");
    let sheet = on(sheet.per("life", json!("lifetime"), 10), "life");
    let sheet = on(sheet.rb(1, 1), "rate");
    let sheet = on(sheet.cc(1), "slots");
    let sheet = on(sheet.limit(bucket("input", "input_tokens")), "input");
    let sheet = on(sheet.ob(100, 60), "output");
    let sheet = on(sheet.limit(bucket("total", "total_tokens")), "total");
    on(sheet.limit(bucket("money", "credits")), "money")
}

#[tokio::test]
async fn every_limit_that_refuses_says_so_in_the_words_of_both_vendors() {
    let t = Tenant::with(sheet()).await;
    t.put_models(&json!([{"id": "money", "input": 1_000_000, "output": 1_000_000, "cache_read": 0}]))
        .await
        .ok();
    t.pool(&PoolSheet::new("crowded", &["crowd"]).output_tokens(10, 10)).await;
    t.pool(&PoolSheet::new("closed", &["pause"])).await;
    for model in ["day", "week", "month", "life", "rate", "slots", "crowd"] {
        t.check(check(model, 5, 5)).await.ok();
    }
    for (model, input, output) in [("input", 90, 0), ("output", 0, 90), ("total", 80, 10), ("money", 80, 10)]
    {
        t.check(check(model, input, output)).await.ok();
    }
    let headers = json!({"retry-after": "20"});
    t.post("/v1/pools/closed/feedback", &json!({"status": 429, "headers": headers})).await.ok();
    for (code, words, model) in [
        ("daily_quota_exhausted", SPENT, "day"),
        ("weekly_quota_exhausted", SPENT, "week"),
        ("monthly_quota_exhausted", SPENT, "month"),
        ("quota_exhausted", SPENT, "life"),
        ("request_rate_exceeded", REQUESTS, "rate"),
        ("concurrency_exceeded", REQUESTS, "slots"),
        ("input_rate_exceeded", TOKENS, "input"),
        ("output_rate_exceeded", TOKENS, "output"),
        ("token_rate_exceeded", TOKENS, "total"),
        ("credit_rate_exceeded", TOKENS, "money"),
    ] {
        let most = if words == TOKENS { 20 } else { 5 };
        compare(&t, &case(code, words, "/v1/check", check(model, most, most))).await;
    }
    let large = ("invalid_request_error", "exceeds_capacity", "request_too_large");
    compare(&t, &case("exceeds_capacity", large, "/v1/check", check("output", 0, 101))).await;
    // These tell each caller another wait.
    for (model, code) in [("crowd", "upstream_capacity_exceeded"), ("pause", "upstream_paused")] {
        for shape in ["openai", "anthropic"] {
            let refused = ask(&t, &case(code, REQUESTS, "/v1/check", check(model, 0, 10)), shape).await;
            assert_eq!(refused.body["error"]["details"]["error_code"], code, "{}", refused.text);
            assert!(refused.header("retry-after").is_some() && refused.header("retry-after-ms").is_some());
        }
    }
}

#[tokio::test]
async fn whatever_else_is_wrong_is_told_in_the_form_that_was_asked_for() {
    let t = Tenant::with(Sheet::new().input(4000).output(512)).await;
    let large = |code| ("invalid_request_error", code, "request_too_large");
    let forbidden = |code| ("invalid_request_error", code, "permission_error");
    let missing = ("invalid_request_error", "not_found", "not_found_error");
    t.put_user("gone", json!({"suspended": true})).await.ok();
    let taken = json!({"user": "u", "request_id": "taken", "model": "a"});
    t.check(taken.clone()).await.ok();
    let over = json!({"user": "u", "request_id": "over", "model": "a"});
    let finished = t.check(over.clone()).await.hold_id();
    t.finish(&finished, 0, 0).await.ok();
    let open = t.check(json!({"user": "u", "model": "a"})).await.hold_id();
    t.extend(&open, json!({"output_tokens_so_far": 5})).await.ok();
    let mut other = taken;
    other["input_tokens"] = json!(7);
    let settle = |hold: &str| format!("/v1/holds/{hold}/settle");
    let nothing = format!("hold_{}", "0".repeat(32));
    let cases = [
        case("invalid_request", faulty("invalid_request"), "/v1/check", json!({"user": 7})),
        case("invalid_request", faulty("invalid_request"), "/v1/usage", json!({"id": "a", "colour": 1})),
        case("request_id_reused", faulty("request_id_reused"), "/v1/check", other),
        case("already_finished", faulty("already_finished"), "/v1/check", over),
        case("user_suspended", forbidden("user_suspended"), "/v1/check", json!({"user": "gone"})),
        case("input_too_large", large("input_too_large"), "/v1/check", check("a", 4001, 0)),
        case("output_too_large", large("output_too_large"), "/v1/check", check("a", 0, 513)),
        case("body_too_large", large("body_too_large"), "/v1/check", json!({"user": "u".repeat(70_000)})),
        case("not_found", missing, &settle(&nothing), json!({"input_tokens": 1, "output_tokens": 1})),
        case("not_found", missing, "/v1/nowhere", json!({})),
        case("method_not_allowed", faulty("method_not_allowed"), "/v1/users/u/quota", json!({})),
        case("has_progress", faulty("has_progress"), &format!("/v1/holds/{open}/release"), json!({})),
        case(
            "usage_implausible",
            faulty("usage_implausible"),
            &settle(&open),
            json!({"input_tokens": 10_000_001, "output_tokens": 0}),
        ),
        case("invalid_request", faulty("invalid_request"), "/v1/admin/capacity/check", json!({"active": 1})),
    ];
    for case in &cases {
        compare(&t, case).await;
    }
    let nobody = ("invalid_request_error", "invalid_api_key", "authentication_error");
    compare(&t.with_token("nonsense"), &case("unauthenticated", nobody, "/v1/check", json!({}))).await;
    let looks = t.with_token(&t.token(&["--scope", "quota"]));
    compare(&looks, &case("forbidden", forbidden("forbidden"), "/v1/check", json!({}))).await;
}

#[tokio::test]
async fn a_tenants_own_status_for_spent_allowances_has_the_vendors_word() {
    let t = Tenant::with(Sheet::new().dr(0)).await;
    for (status, word) in [(402, "billing_error"), (403, "permission_error"), (429, "rate_limit_error")] {
        t.put_settings(json!({"denial_status": status})).await.ok();
        let words = ("insufficient_quota", "insufficient_quota", word);
        let spent = case("daily_quota_exhausted", words, "/v1/check", json!({"user": "u"}));
        compare(&t, &spent).await;
        assert_eq!(ask(&t, &spent, "anthropic").await.status, status);
    }
}

#[tokio::test]
async fn a_form_that_nobody_knows_is_a_fault_of_the_query() {
    let t = Tenant::with(Sheet::new().dr(1)).await;
    for bad in ["gemini", "", "OpenAI", "openai&shape=anthropic"] {
        let path = format!("/v1/check?shape={bad}");
        let refused = t.post(&path, &json!({"user": "u"})).await.refused(400, "invalid_request");
        assert_eq!(refused.body["errors"][0]["pointer"], "/shape", "{bad}");
    }
    assert_eq!(t.remaining("u", "requests_per_day").await, 1);
}

#[tokio::test]
async fn the_tenants_own_form_is_that_of_calls_unless_the_query_names_another() {
    let t = Tenant::with(Sheet::new().dr(0)).await;
    assert_eq!(t.put_settings(json!({"shape": "anthropic"})).await.ok()["shape"], "anthropic");
    let refused = t.check(json!({"user": "u"})).await;
    assert_eq!(refused.body["error"]["type"], "rate_limit_error");
    let openai = t.post("/v1/check?shape=openai", &json!({"user": "u"})).await;
    assert_eq!(openai.body["error"]["type"], "insufficient_quota");
    let plain = t.post("/v1/check?shape=none", &json!({"user": "u"})).await;
    plain.refused(429, "daily_quota_exhausted");
    t.get("/v1/admin/plans/none").await.refused(404, "unknown_plan");
    t.put_settings(json!({"shape": null})).await.ok();
    t.check(json!({"user": "u"})).await.refused(429, "daily_quota_exhausted");
    t.put_settings(json!({"shape": "gemini"})).await.refused(400, "invalid_request");
}

#[tokio::test]
async fn decisions_carry_the_vendors_own_headers() {
    let t = Tenant::with(Sheet::new().rb(10, 6).dr(30).ob(1024, 300).mt(200_000)).await;
    let ask = json!({"user": "u", "input_tokens": 1200, "max_output_tokens": 512});
    let told = |reply: &Reply, start: &str| {
        let of = |(name, value): (&String, &String)| Some(format!("{}={value}", name.strip_prefix(start)?));
        let mut told: Vec<String> = reply.headers.iter().filter_map(of).collect();
        told.sort();
        told
    };
    assert!(told(&t.check(ask.clone()).await, "x-ratelimit-").is_empty());
    let openai = t.post("/v1/check?shape=openai", &ask).await;
    // 10 a minute, of which two are gone; of 1024 output tokens all are held,
    // and nobody knows until when.
    let figures = [
        "limit-requests=10",
        "limit-tokens=1024",
        "remaining-requests=8",
        "remaining-tokens=0",
        "reset-requests=20s",
    ];
    assert_eq!(told(&openai, "x-ratelimit-"), figures);
    assert!(openai.header("ratelimit").is_some());
    let anthropic = t.post("/v1/check?shape=anthropic", &ask).await;
    assert_eq!(anthropic.status, 429);
    let figures = [
        "output-tokens-limit=1024",
        "output-tokens-remaining=0",
        "requests-limit=10",
        "requests-remaining=8",
        "requests-reset=2026-03-10T12:00:20.000Z",
        "tokens-limit=200000",
        "tokens-remaining=196576",
        "tokens-reset=2026-04-01T00:00:00.000Z",
    ];
    assert_eq!(told(&anthropic, "anthropic-ratelimit-"), figures);
}

#[tokio::test]
async fn items_of_a_batch_are_told_in_the_form_of_the_batch() {
    let t = Tenant::with(Sheet::new().dr(1)).await;
    let checks = json!({"checks": [{"user": "u"}, {"user": "u"}, {"user": 7}]});
    let told = t.post("/v1/check/batch?shape=openai", &checks).await.ok();
    let results = &told["results"];
    assert_eq!(results[0]["headers"]["x-ratelimit-remaining-requests"], "0");
    assert_eq!(results[1]["body"]["error"]["code"], "insufficient_quota");
    assert_eq!(results[2]["body"]["error"]["param"], "user");
    let none = format!("hold_{}", "0".repeat(32));
    let settles = json!({"settles": [{"id": none, "input_tokens": 1, "output_tokens": 1}]});
    let told = t.post("/v1/holds/settle/batch?shape=anthropic", &settles).await.ok();
    assert_eq!(told["results"][0]["body"]["error"]["type"], "not_found_error");
}
