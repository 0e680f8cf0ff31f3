//! Looking costs nothing and leaves nothing behind.

use serde_json::{Value, json};

use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;
use crate::harness::{Client, Tenant};

#[tokio::test]
async fn reading_what_is_left_changes_nothing_and_makes_no_users() {
    let t = Tenant::with(Sheet::new().rb(10, 1).dr(10)).await;
    t.ask("u", 0, 0).await.ok();
    let before = t.quota("u").await.ok();
    for n in 0..300 {
        assert_eq!(t.quota("u").await.ok(), before);
        let unknown = t.quota(&format!("ghost {n}")).await.ok();
        assert_has(&unknown["limits"][0], &json!({"remaining": 10}));
        assert_has(&unknown["limits"][1], &json!({"remaining": 10, "used": 0}));
    }
    let users = t.get("/v1/admin/users").await.ok();
    let names: Vec<&str> =
        users["data"].as_array().unwrap().iter().map(|u| u["user"].as_str().unwrap()).collect();
    assert_eq!(names, ["u"]);
}

#[tokio::test]
async fn a_refused_check_makes_no_user_and_an_admitted_one_does() {
    let t = Tenant::with(Sheet::new().dr(0)).await;
    t.ask("u", 0, 0).await.refused(429, "daily_quota_exhausted");
    assert_eq!(t.get("/v1/admin/users").await.ok()["data"], json!([]));
    t.plan(&Sheet::new().dr(1)).await;
    t.ask("u", 0, 0).await.ok();
    assert_eq!(t.get("/v1/admin/users").await.ok()["data"][0]["user"], "u");
}

#[tokio::test]
async fn the_quota_view_says_when_the_next_call_passes() {
    let t = Tenant::with(Sheet::new().rb(1, 3).cc(1).dr(2).input(100).output(50)).await;
    let view = t.quota("u").await.ok();
    assert_has(
        &view,
        &json!({
            "user": "u", "plan": {"id": "p", "version": 1}, "state": "ok", "next_call_at": null,
            "per_call": {"max_input_tokens": 100, "max_output_tokens": 50},
        }),
    );
    let hold = t.ask_for("u", 0, 0, 45).await.hold_id();
    let view = t.quota("u").await.ok();
    assert_has(&view, &json!({"state": "waiting", "next_call_at": "2026-03-10T12:00:45.000Z"}));
    assert_has(&view["limits"][0], &json!({"state": "waiting", "next_call_at": "2026-03-10T12:00:20.000Z"}));
    assert_has(&view["limits"][0], &json!({"full_at": "2026-03-10T12:00:20.000Z"}));
    assert_has(&view["limits"][1], &json!({"state": "waiting", "next_call_at": "2026-03-10T12:00:45.000Z"}));
    assert_has(&view["limits"][2], &json!({"state": "ok", "next_call_at": null}));
    t.finish(&hold, 0, 0).await.ok();
    t.pass(20_000).await;
    t.ask("u", 0, 0).await.ok();
    let view = t.quota("u").await.ok();
    assert_has(&view, &json!({"state": "exhausted", "next_call_at": "2026-03-11T00:00:00.000Z"}));
}

#[tokio::test]
async fn a_filtered_limit_does_not_close_the_whole_account() {
    let t = Tenant::with(Sheet::new().dr(1).but("models", json!(["opus*"])).dr(5).but("name", json!("all")))
        .await;
    t.check(json!({"user": "u", "model": "opus"})).await.ok();
    let view = t.quota("u").await.ok();
    assert_eq!(view["limits"][0]["state"], "exhausted");
    assert_has(&view, &json!({"state": "ok", "next_call_at": null}));
}

#[tokio::test]
async fn a_forecast_is_linear_from_the_start_of_the_window() {
    let t = Tenant::at("UTC", "2026-03-01T00:00:00.000Z").await;
    t.plan(&Sheet::new().mt(3100)).await;
    t.spend("u", 100, 0).await;
    assert_eq!(
        t.left("u", "tokens_per_month").await["forecast_exhausted_at"],
        Value::Null,
        "too early to tell"
    );
    t.set_clock("2026-03-02T00:00:00.000Z").await;
    t.spend("u", 100, 0).await;
    // 200 a day: 3,100 are gone after 15.5 days.
    let forecast = t.left("u", "tokens_per_month").await["forecast_exhausted_at"].clone();
    assert_eq!(forecast, "2026-03-16T12:00:00.000Z");
}

#[tokio::test]
async fn a_user_sees_only_what_is_the_users() {
    let sheet = Sheet::new().dr(3).mt(1000).but("scope", json!("tenant"));
    let t = Tenant::with(sheet).await;
    t.ask("u/1", 0, 0).await.ok();
    let me = t.with_token(&t.token(&["--scope", "me", "--user", "u/1"]));
    let view = me.get("/v1/me/quota").await.ok();
    assert_eq!(view["user"], "u/1");
    let names: Vec<&str> =
        view["limits"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["requests_per_day"]);
    assert_has(&view["limits"][0], &json!({"used": 1}));
    let everything: [(&str, &str); 4] = [
        ("GET", "/v1/users/u%2F1/quota"),
        ("GET", "/v1/admin/users"),
        ("GET", "/v1/admin/settings"),
        ("GET", "/v1/holds/x"),
    ];
    for (_, path) in everything {
        me.get(path).await.refused(403, "forbidden");
    }
    Client::check(&me, json!({"user": "u/1"})).await.refused(403, "forbidden");
}
