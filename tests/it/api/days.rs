//! Windows: borders in the right zone, months that come back to their day, use kept in its window.

use serde_json::{Value, json};

use crate::harness::Tenant;
use crate::harness::sheets::Sheet;

#[tokio::test]
async fn the_limit_that_really_holds_the_caller_back_is_the_one_that_is_named() {
    let t = Tenant::with(Sheet::new().rb(1, 1).dr(3)).await;
    for minute in 0..3 {
        t.set_clock(&format!("2026-03-10T13:0{minute}:00.000Z")).await;
        t.ask("u", 0, 0).await.ok();
    }
    for _ in 0..20 {
        let refused = t.ask("u", 0, 0).await.refused(429, "daily_quota_exhausted");
        assert_eq!(refused.body["resets_at"], "2026-03-11T00:00:00.000Z");
        assert_eq!(refused.body["retry_after_ms"], Value::Null);
        assert_eq!(refused.body["retryable"], false);
        t.pass(3000).await;
    }
    // The polls took nothing from the bucket.
    assert_eq!(t.remaining("u", "requests_per_minute").await, 1);
}

#[tokio::test]
async fn of_several_exhausted_windows_the_one_that_resets_last_decides() {
    let t = Tenant::with(Sheet::new().rb(1, 1).dr(1).mt(100)).await;
    t.spend("u", 60, 40).await;
    let refused = t.ask("u", 1, 0).await.refused(429, "monthly_quota_exhausted");
    assert_eq!(refused.body["limit"], "tokens_per_month");
    assert_eq!(refused.body["resets_at"], "2026-04-01T00:00:00.000Z");
    assert_eq!(refused.body["violations"].as_array().map(Vec::len), Some(3));
    assert_eq!(refused.body["violations"][0]["retry_after_ms"], 60_000);
    assert_eq!(refused.body["violations"][1]["resets_at"], "2026-03-11T00:00:00.000Z");
    // An empty call asks nothing of the token window.
    t.ask("u", 0, 0).await.refused(429, "daily_quota_exhausted");
}

#[tokio::test]
async fn a_month_ends_at_local_midnight_east_and_west_of_greenwich() {
    let t = Tenant::at("Asia/Tokyo", "2026-07-31T14:59:59.000Z").await;
    t.plan(&Sheet::new().mt(1000)).await;
    t.spend("u", 1000, 0).await;
    let refused = t.ask("u", 1, 0).await.refused(429, "monthly_quota_exhausted");
    assert_eq!(refused.body["resets_at"], "2026-07-31T15:00:00.000Z");
    t.set_clock("2026-07-31T15:00:01.000Z").await;
    t.ask("u", 1, 0).await.ok();

    let t = Tenant::at("America/Los_Angeles", "2026-07-31T20:00:00.000Z").await;
    t.plan(&Sheet::new().mt(1000)).await;
    t.spend("u", 1000, 0).await;
    for at in ["2026-08-01T00:00:01.000Z", "2026-08-01T06:59:59.000Z"] {
        t.set_clock(at).await;
        let refused = t.ask("u", 1, 0).await.refused(429, "monthly_quota_exhausted");
        assert_eq!(refused.body["resets_at"], "2026-08-01T07:00:00.000Z");
    }
    t.set_clock("2026-08-01T07:00:01.000Z").await;
    t.ask("u", 1, 0).await.ok();
}

#[tokio::test]
async fn a_day_without_midnight_starts_at_its_first_instant_and_the_next_one_at_midnight() {
    let t = Tenant::at("Africa/Cairo", "2026-04-23T10:00:00.000Z").await;
    t.plan(&Sheet::new().dr(2)).await;
    for _ in 0..2 {
        t.ask("u", 0, 0).await.ok();
    }
    t.set_clock("2026-04-23T21:59:59.000Z").await;
    let refused = t.ask("u", 0, 0).await.refused(429, "daily_quota_exhausted");
    assert_eq!(refused.body["resets_at"], "2026-04-23T22:00:00.000Z");
    t.set_clock("2026-04-23T22:00:01.000Z").await;
    t.ask("u", 0, 0).await.ok();
    t.ask("u", 0, 0).await.ok();
    t.set_clock("2026-04-24T20:59:59.000Z").await;
    t.ask("u", 0, 0).await.refused(429, "daily_quota_exhausted");
    t.set_clock("2026-04-24T21:00:01.000Z").await;
    t.ask("u", 0, 0).await.ok();
}

#[tokio::test]
async fn an_anniversary_on_the_31st_comes_back_after_a_short_month() {
    let t = Tenant::at("UTC", "2026-01-31T10:00:00.000Z").await;
    t.plan(&Sheet::new().mt(1000).but("anchor", json!("user"))).await;
    t.put_user("u", json!({"anchor_day": 31})).await.ok();
    let mut starts = Vec::new();
    for day in ["2026-02-10", "2026-03-01", "2026-04-10", "2026-05-10", "2026-06-01"] {
        t.set_clock(&format!("{day}T12:00:00.000Z")).await;
        let row = t.left("u", "tokens_per_month").await;
        starts.push(row["window"]["start"].as_str().unwrap().to_owned());
        if day == "2026-03-01" {
            t.spend("u", 1000, 0).await;
            t.set_clock("2026-03-28T12:00:00.000Z").await;
            t.ask("u", 1, 0).await.refused(429, "monthly_quota_exhausted");
            t.set_clock("2026-03-30T12:00:00.000Z").await;
            let refused = t.ask("u", 1, 0).await.refused(429, "monthly_quota_exhausted");
            assert_eq!(refused.body["resets_at"], "2026-03-31T00:00:00.000Z");
            t.set_clock("2026-03-31T12:00:00.000Z").await;
            t.ask("u", 1, 0).await.ok();
        }
    }
    let expected: Vec<String> = ["01-31", "02-28", "03-31", "04-30", "05-31"]
        .iter()
        .map(|d| format!("2026-{d}T00:00:00.000Z"))
        .collect();
    assert_eq!(starts, expected);
}

#[tokio::test]
async fn what_is_given_back_after_midnight_goes_to_the_day_it_was_taken_from() {
    let t = Tenant::with(Sheet::new().dr(5).mt(100_000)).await;
    for _ in 0..4 {
        t.ask("u", 0, 0).await.ok();
    }
    t.set_clock("2026-03-10T23:59:50.000Z").await;
    let hold = t.ask("u", 0, 0).await.hold_id();
    t.set_clock("2026-03-11T00:00:10.000Z").await;
    for _ in 0..2 {
        t.spend("u", 0, 0).await;
    }
    t.set_clock("2026-03-11T00:00:20.000Z").await;
    t.release(&hold).await.ok();
    assert_eq!(t.left("u", "requests_per_day").await["used"], 2);
    for _ in 0..3 {
        t.ask("u", 0, 0).await.ok();
    }
    t.ask("u", 0, 0).await.refused(429, "daily_quota_exhausted");
}

#[tokio::test]
async fn what_is_settled_after_the_month_ended_adjusts_the_month_it_was_taken_from() {
    let t = Tenant::at("UTC", "2026-03-31T23:59:50.000Z").await;
    t.plan(&Sheet::new().mt(10_000)).await;
    let hold = t.ask("u", 1000, 3000).await.hold_id();
    t.set_clock("2026-04-01T00:00:10.000Z").await;
    let settled = t.finish(&hold, 1000, 9000).await;
    let row = settled.row("tokens_per_month");
    assert_eq!((&row["used"], &row["held"]), (&json!(0), &json!(0)));
    assert_eq!(t.remaining("u", "tokens_per_month").await, 10_000);
}

#[tokio::test]
async fn windows_touch_without_gap_at_the_last_and_first_millisecond() {
    let t = Tenant::at("Asia/Tokyo", "2026-11-30T14:59:59.999Z").await;
    t.plan(&Sheet::new().mt(100)).await;
    t.spend("u", 100, 0).await;
    t.ask("u", 1, 0).await.refused(429, "monthly_quota_exhausted");
    t.set_clock("2026-11-30T15:00:00.000Z").await;
    let row = t.ask("u", 1, 0).await.row("tokens_per_month");
    assert_eq!(
        row["window"],
        json!({"start": "2026-11-30T15:00:00.000Z", "end": "2026-12-31T15:00:00.000Z", "zone": "Asia/Tokyo"})
    );
}

#[tokio::test]
async fn blocks_tile_from_the_first_take_and_show_no_window_before_it() {
    let t = Tenant::with(Sheet::new().per("block", json!({"hours": 5}), 1000)).await;
    let row = t.left("u", "block").await;
    assert_eq!(
        (&row["window"], &row["resets_at"], &row["remaining"]),
        (&Value::Null, &Value::Null, &json!(1000))
    );
    t.ask("u", 1001, 0).await.refused(413, "exceeds_capacity");
    assert_eq!(t.left("u", "block").await["window"], Value::Null, "a refused check sets no anchor");
    let hold = t.ask("u", 10, 0).await.hold_id();
    t.release(&hold).await.ok();
    t.pass(11 * 3_600_000).await;
    let window = t.left("u", "block").await["window"].clone();
    assert_eq!(window["start"], "2026-03-10T22:00:00.000Z");
    assert_eq!(window["end"], "2026-03-11T03:00:00.000Z");
}

#[tokio::test]
async fn a_session_opens_at_a_take_when_none_is_open_and_a_lifetime_never_ends() {
    let t = Tenant::with(Sheet::new().per("session", json!({"session_hours": 2}), 100).per(
        "life",
        json!("lifetime"),
        150,
    ))
    .await;
    t.spend("u", 100, 0).await;
    let refused = t.ask("u", 1, 0).await.refused(429, "quota_exhausted");
    assert_eq!(refused.body["resets_at"], "2026-03-10T14:00:00.000Z");
    t.set_clock("2026-03-10T14:00:00.000Z").await;
    let row = t.left("u", "session").await;
    assert_eq!((&row["window"], &row["remaining"]), (&Value::Null, &json!(100)));
    t.set_clock("2026-03-10T15:30:00.000Z").await;
    let session = t.ask("u", 50, 0).await.row("session");
    assert_eq!(session["window"]["start"], "2026-03-10T15:30:00.000Z");
    let refused = t.ask("u", 1, 0).await.refused(429, "quota_exhausted");
    assert_eq!(refused.body["limit"], "life");
    assert_eq!(refused.body["resets_at"], Value::Null);
    assert_eq!(t.left("u", "life").await["window"], Value::Null);
}

#[tokio::test]
async fn an_empty_call_that_turns_out_to_use_something_opens_the_block_at_its_admission() {
    let t = Tenant::with(Sheet::new().per("block", json!({"hours": 5}), 1000)).await;
    let hold = t.ask("u", 0, 0).await.hold_id();
    t.pass(3_600_000 / 2).await;
    t.finish(&hold, 30, 12).await.ok();
    let row = t.left("u", "block").await;
    assert_eq!((&row["used"], &row["window"]["start"]), (&json!(42), &json!("2026-03-10T12:00:00.000Z")));
}

#[tokio::test]
async fn a_change_of_zone_waits_for_the_end_of_the_running_window() {
    let t = Tenant::with(Sheet::new().dr(2)).await;
    t.ask("u", 0, 0).await.ok();
    t.put_user("u", json!({"zone": "Asia/Tokyo"})).await.ok();
    let row = t.left("u", "requests_per_day").await;
    assert_eq!((&row["used"], &row["resets_at"]), (&json!(1), &json!("2026-03-11T00:00:00.000Z")));
    t.set_clock("2026-03-11T00:00:00.000Z").await;
    let row = t.left("u", "requests_per_day").await;
    // The next one ends at a midnight of Tokyo that is at least 23 hours away.
    assert_eq!((&row["used"], &row["resets_at"]), (&json!(0), &json!("2026-03-12T15:00:00.000Z")));
    t.put_user("fresh", json!({"zone": "Asia/Tokyo"})).await.ok();
    assert_eq!(t.left("fresh", "requests_per_day").await["resets_at"], "2026-03-11T15:00:00.000Z");
}

#[tokio::test]
async fn a_zone_that_does_not_exist_is_refused_and_a_link_is_not() {
    let t = Tenant::at("Cuba", "2026-03-10T12:00:00.000Z").await;
    t.plan(&Sheet::new().dr(2)).await;
    assert_eq!(t.left("u", "requests_per_day").await["window"]["zone"], "Cuba");
    for zone in ["Mars/Olympus", "+09:00", "EST5EDT4,M3.2.0,M11.1.0", ""] {
        let sheet = Sheet::new().dr(2).but("zone", json!(zone)).json();
        t.put_plan(&sheet).await.refused(400, "invalid_request");
        t.put_user("u", json!({"zone": zone})).await.refused(400, "invalid_request");
    }
}
