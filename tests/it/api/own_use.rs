//! A user sees what used their quota, as far as the plan shows it.

use serde_json::{Value, json};

use crate::harness::sheets::Sheet;
use crate::harness::{Client, Tenant, row};

const START: &str = "2026-03-10T12:00:00.000Z";

fn of(t: &Tenant, user: &str) -> Client {
    t.with_token(&t.token(&["--user", user]))
}

/// A call by feature and model from beginning to end.
async fn spend(t: &Tenant, feature: &str, model: &str, input: i64, output: i64) {
    let body = json!({"user": "u", "feature": feature, "model": model, "input_tokens": input,
        "max_output_tokens": output});
    let hold = t.check(body).await.hold_id();
    t.finish(&hold, input, output).await.ok();
}

#[tokio::test]
async fn what_used_a_window_comes_to_what_the_window_says() {
    let t = Tenant::with(Sheet::new().mt(100_000)).await;
    spend(&t, "chat", "sonnet", 100, 20).await;
    spend(&t, "chat", "opus", 200, 40).await;
    spend(&t, "draw", "opus", 30, 10).await;
    let item = json!({"id": "1", "user": "u", "feature": "voice", "input_tokens": 50, "output_tokens": 50});
    t.usage(&json!({"items": [item]})).await.ok();
    t.spend("other", 1000, 1000).await;
    // What runs and what was given back is not used.
    let hold = t.ask("u", 500, 500).await.hold_id();
    t.release(&hold).await.ok();
    let running = t.check(json!({"user": "u", "feature": "chat", "input_tokens": 7})).await.hold_id();

    let me = of(&t, "u");
    let quota = me.get("/v1/me/quota").await.ok();
    let window = row(&quota, "tokens_per_month");
    let from = window["window"]["start"].as_str().unwrap();
    let used = me.get(&format!("/v1/me/usage?by=feature&from={from}")).await.ok();
    assert_eq!(used["total"]["total_tokens"], window["used"]);
    assert_eq!(
        used["data"],
        json!([
            {"feature": "chat", "requests": 2, "input_tokens": 300, "output_tokens": 60, "total_tokens": 360, "credits": 0, "share": 0.72},
            {"feature": "voice", "requests": 1, "input_tokens": 50, "output_tokens": 50, "total_tokens": 100, "credits": 0, "share": 0.2},
            {"feature": "draw", "requests": 1, "input_tokens": 30, "output_tokens": 10, "total_tokens": 40, "credits": 0, "share": 0.08},
        ])
    );
    assert_eq!((&used["complete"], &used["usual"]["total_tokens"]), (&json!(true), &json!(125)));
    let calls = used["running"].as_array().unwrap();
    assert_eq!(
        (calls.len(), &calls[0]["feature"], &calls[0]["created_at"]),
        (1, &json!("chat"), &json!(START))
    );

    let models = me.get("/v1/me/usage?by=model").await.ok();
    let shown: Vec<(&Value, &Value)> =
        models["data"].as_array().unwrap().iter().map(|row| (&row["model"], &row["total_tokens"])).collect();
    assert_eq!(
        shown,
        [(&json!("opus"), &json!(280)), (&json!("sonnet"), &json!(120)), (&json!(null), &json!(100))]
    );
    assert_eq!(models["from"], "2026-03-01T00:00:00.000Z");

    // Its lease ends: it is in doubt and runs no more.
    t.pass(3_600_000).await;
    assert_eq!(me.get("/v1/me/usage").await.ok()["running"], json!([]));
    t.finish(&running, 7, 0).await.ok();
    let late = me.get("/v1/me/usage?from=2026-03-10T12:00:00.001Z").await.ok();
    assert_eq!((&late["data"], &late["usual"]), (&json!([]), &json!(null)), "it was made before");
    let day = me.get("/v1/me/usage?from=2026-03-10&to=2026-03-11").await.ok();
    assert_eq!(day["total"]["total_tokens"], 507);
}

#[tokio::test]
async fn only_a_users_own_token_shows_what_they_used() {
    let t = Tenant::with(Sheet::new().mt(1000)).await;
    t.spend("u", 10, 10).await;
    t.get("/v1/me/usage").await.refused(403, "forbidden");
    assert_eq!(of(&t, "v").get("/v1/me/usage").await.ok()["data"], json!([]));
    t.get("/v1/admin/users/v").await.refused(404, "not_found");
    let me = of(&t, "u");
    let faults = me.get("/v1/me/usage?by=user&from=x").await.refused(400, "invalid_request");
    let pointers: Vec<&Value> =
        faults.body["errors"].as_array().unwrap().iter().map(|f| &f["pointer"]).collect();
    assert_eq!(pointers, ["/by", "/from"]);
}

/// A sheet that shows one limit in percents and hides another one.
fn veiled() -> Sheet {
    Sheet::new().mt(3000).but("visibility", json!("percent")).dr(10).but("visibility", json!("hidden")).cc(2)
}

#[tokio::test]
async fn users_see_percents_or_nothing_where_the_sheet_says_so_and_backends_see_all() {
    let t = Tenant::with(veiled()).await;
    t.spend("u", 800, 200).await;
    t.ask("u", 299, 0).await.ok();
    let quota = of(&t, "u").get("/v1/me/quota").await.ok();
    let names: Vec<&Value> = quota["limits"].as_array().unwrap().iter().map(|row| &row["name"]).collect();
    assert_eq!(names, ["tokens_per_month", "concurrency"]);
    let month = row(&quota, "tokens_per_month");
    assert_eq!(
        month,
        json!({"name": "tokens_per_month", "scope": "user", "kind": "window", "meter": "total_tokens",
            "remaining_percent": 56, "held_percent": 9, "visibility": "percent", "state": "ok",
            "window": month["window"], "resets_at": "2026-04-01T00:00:00.000Z", "next_call_at": null,
            "forecast_exhausted_at": null})
    );
    let all = t.get("/v1/users/u/quota").await.ok();
    let month = row(&all, "tokens_per_month");
    assert_eq!((&month["used"], &month["visibility"]), (&json!(1000), &json!("percent")));
    assert_eq!(row(&all, "requests_per_day")["visibility"], "hidden");
    assert_eq!(row(&all, "concurrency").get("visibility"), None);
    let sheet = t.get("/v1/admin/plans/p").await.ok();
    assert_eq!(sheet["limits"][0]["visibility"], "percent");
}

#[tokio::test]
async fn answers_that_are_handed_on_to_users_tell_no_figure_that_they_shall_not_see() {
    let t = Tenant::with(veiled()).await;
    let ask = json!({"user": "u", "input_tokens": 1, "max_output_tokens": 1});
    for (shape, named) in [("none", 3), ("openai", 1), ("anthropic", 1)] {
        let told = t.post(&format!("/v1/check?shape={shape}"), &ask).await;
        for header in ["ratelimit", "ratelimit-policy"] {
            let value = told.header(header).unwrap_or_default();
            assert_eq!(
                value.matches('"').count() - value.matches("=\"").count() * 2,
                named * 2,
                "{shape}: {value}"
            );
        }
    }
}

#[tokio::test]
async fn amounts_that_are_not_shown_cannot_be_added_up_from_what_used_them() {
    let t = Tenant::with(veiled()).await;
    spend(&t, "chat", "sonnet", 300, 0).await;
    spend(&t, "draw", "sonnet", 100, 0).await;
    let used = of(&t, "u").get("/v1/me/usage").await.ok();
    assert_eq!(used["data"], json!([{"feature": "chat", "share": 0.75}, {"feature": "draw", "share": 0.25}]));
    assert_eq!((&used["total"], &used["usual"]), (&json!(null), &json!(null)));
}

#[tokio::test]
async fn a_hidden_limit_still_says_when_the_next_call_is_possible() {
    let t = Tenant::with(Sheet::new().dr(1).but("visibility", json!("hidden"))).await;
    t.ask("u", 0, 0).await.ok();
    let quota = of(&t, "u").get("/v1/me/quota").await.ok();
    assert_eq!(
        (&quota["limits"], &quota["state"], &quota["next_call_at"]),
        (&json!([]), &json!("exhausted"), &json!("2026-03-11T00:00:00.000Z"))
    );
}

#[tokio::test]
async fn pages_of_other_origins_read_only_that_a_token_is_no_good() {
    let t = Tenant::with(Sheet::new().dr(10)).await;
    t.put_settings(json!({"cors_origins": ["https://app.example"]})).await.ok();
    let allowed = async |client: &Client, origin: &str| {
        let request = client.request(reqwest::Method::GET, "/v1/me/usage").header("origin", origin);
        let answer = request.send().await.unwrap();
        answer.headers().get("access-control-allow-origin").map(|value| value.to_str().unwrap().to_owned())
    };
    let me = of(&t, "u");
    assert_eq!(allowed(&me, "https://app.example").await.as_deref(), Some("https://app.example"));
    assert_eq!(allowed(&me, "https://other.example").await, None);
    let nobody = t.with_token("nonsense");
    assert_eq!(allowed(&nobody, "https://other.example").await.as_deref(), Some("https://other.example"));
}
