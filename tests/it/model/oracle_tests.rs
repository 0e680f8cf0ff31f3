//! The model against figures worked out by hand, so that it is not only compared with the service.

use serde_json::{Value, json};

use super::oracle::Oracle;
use super::oracle::calendar::instant;
use crate::harness::sheets::{PoolSheet, Sheet};

fn oracle(sheet: Sheet) -> Oracle {
    let mut oracle = Oracle::new("UTC", instant("2026-03-10T12:00:00Z"));
    oracle.default_plan = Some(sheet.id().to_owned());
    oracle.put_plan(&sheet.json());
    oracle
}

fn later(oracle: &mut Oracle, ms: i64) {
    oracle.set_clock(oracle.now + ms);
}

fn ask(input: i64, output: i64) -> Value {
    json!({"user": "u", "input_tokens": input, "max_output_tokens": output})
}

#[test]
fn a_wait_is_the_first_millisecond_at_which_the_token_is_there() {
    let mut o = oracle(Sheet::new().rb(1, 40));
    assert_eq!(o.check(&ask(0, 0)).status, 200);
    later(&mut o, 200);
    let refused = o.check(&ask(0, 0));
    assert_eq!(refused.body["retry_after_ms"], 1300);
    assert_eq!(refused.headers[0].1.as_deref(), Some("2"));
    later(&mut o, 1299);
    assert_eq!(o.check(&ask(0, 0)).status, 429);
    later(&mut o, 1);
    assert_eq!(o.check(&ask(0, 0)).status, 200);
}

#[test]
fn an_overrun_is_a_debt_that_refill_repays() {
    let mut o = oracle(Sheet::new().ob(2000, 60).mt(1_000_000));
    assert_eq!(o.check(&ask(500, 1000)).status, 200);
    o.settle(0, &json!({"input_tokens": 900, "output_tokens": 3200}));
    let refused = o.check(&ask(50, 100));
    assert_eq!(refused.body["code"], "output_rate_exceeded");
    assert_eq!(refused.body["retry_after_ms"], 1_300_000);
}

#[test]
fn refill_stops_at_capacity_less_what_is_held_until_the_lease_ends() {
    let mut o = oracle(Sheet::new().ob(5000, 5000));
    let mut body = ask(10, 4000);
    body["lease_seconds"] = json!(60);
    assert_eq!(o.check(&body).status, 200);
    later(&mut o, 30_000);
    assert_eq!(o.quota("u").body["limits"][0]["remaining"], 1000);
    later(&mut o, 30_000);
    assert_eq!(o.quota("u").body["limits"][0]["remaining"], 1000);
    later(&mut o, 48_000);
    assert_eq!(o.quota("u").body["limits"][0]["remaining"], 5000);
}

#[test]
fn what_is_in_doubt_stays_counted_and_a_late_settle_corrects_it() {
    let mut o = oracle(Sheet::new().mt(10_000).cc(2));
    let mut body = ask(1000, 3000);
    body["lease_seconds"] = json!(60);
    o.check(&body);
    later(&mut o, 62_000);
    let refused = o.check(&ask(4000, 6000));
    assert_eq!(refused.body["code"], "monthly_quota_exhausted");
    let settled = o.settle(0, &json!({"input_tokens": 1000, "output_tokens": 200}));
    assert_eq!(settled.body["hold"]["late"], true);
    assert_eq!(o.quota("u").body["limits"][0]["remaining"], 8800);
}

#[test]
fn the_limit_that_resets_last_decides_before_any_rate() {
    let mut o = oracle(Sheet::new().rb(3, 1).dr(3));
    for _ in 0..3 {
        assert_eq!(o.check(&ask(0, 0)).status, 200);
    }
    let refused = o.check(&ask(0, 0));
    assert_eq!(refused.body["code"], "daily_quota_exhausted");
    assert_eq!(refused.body["resets_at"], "2026-03-11T00:00:00.000Z");
    assert_eq!(refused.body["violations"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_release_after_midnight_goes_to_the_day_of_the_check() {
    let mut o = oracle(Sheet::new().dr(5));
    o.set_clock(instant("2026-03-10T23:59:50Z"));
    for _ in 0..5 {
        assert_eq!(o.check(&ask(0, 0)).status, 200);
    }
    o.set_clock(instant("2026-03-11T00:00:10Z"));
    o.check(&ask(0, 0));
    o.release(4);
    assert_eq!(o.quota("u").body["limits"][0]["used"], 1);
}

#[test]
fn a_plan_change_keeps_what_a_bucket_lacks() {
    let mut o = oracle(Sheet::named("small").ob(1000, 600));
    o.put_plan(&Sheet::named("large").ob(5000, 3000).json());
    o.check(&ask(0, 900));
    o.settle(0, &json!({"input_tokens": 0, "output_tokens": 900}));
    o.set_plan("u", "large");
    assert_eq!(o.quota("u").body["limits"][0]["remaining"], 4100);
    later(&mut o, 10_000);
    assert_eq!(o.quota("u").body["limits"][0]["remaining"], 4600);
    o.set_plan("u", "small");
    assert_eq!(o.quota("u").body["limits"][0]["remaining"], 600);
}

#[test]
fn bulk_leaves_the_share_of_the_pool_and_a_part_is_granted_where_the_whole_does_not_fit() {
    let mut o = oracle(Sheet::new().mt(1_000_000));
    o.put_pool(&PoolSheet::new("default", &["*"]).output_tokens(100, 60).json());
    let mut body = ask(0, 90);
    body["priority"] = json!("bulk");
    let refused = o.check(&body);
    assert_eq!((refused.status, &refused.body["max"]), (413, &json!(70)));
    body["min_output_tokens"] = json!(10);
    let granted = o.check(&body);
    assert_eq!(granted.body["granted"]["max_output_tokens"], 70);
}

#[test]
fn cache_reads_count_by_their_weight_rounded_up_once() {
    let mut o = oracle(Sheet::new().mt(1_000_000).field("cache_read_weight", json!(0.1)));
    o.check(&ask(10_339, 0));
    let settled =
        o.settle(0, &json!({"input_tokens": 10_339, "output_tokens": 0, "cache_read_tokens": 10_318}));
    assert_eq!(settled.body["hold"]["counted"]["input_tokens"], 1053);
}

#[test]
fn blocks_tile_from_the_first_take_and_sessions_open_when_none_is_open() {
    let mut o = oracle(Sheet::new().per("block", json!({"hours": 5}), 1000).per(
        "session",
        json!({"session_hours": 2}),
        1000,
    ));
    assert_eq!(o.quota("u").body["limits"][0]["window"], Value::Null);
    o.check(&ask(10, 0));
    later(&mut o, 11 * 3_600_000);
    let view = o.quota("u").body;
    assert_eq!(view["limits"][0]["window"]["start"], "2026-03-10T22:00:00.000Z");
    assert_eq!(view["limits"][1]["window"], Value::Null);
    o.check(&ask(10, 0));
    assert_eq!(o.quota("u").body["limits"][1]["window"]["start"], "2026-03-10T23:00:00.000Z");
}

#[test]
fn a_change_of_zone_lets_the_running_window_end_first() {
    let mut o = oracle(Sheet::new().dr(5));
    o.check(&ask(0, 0));
    o.set_calendar("u", Some("Asia/Tokyo"), None);
    assert_eq!(o.quota("u").body["limits"][0]["resets_at"], "2026-03-11T00:00:00.000Z");
    o.set_clock(instant("2026-03-11T00:00:00Z"));
    // Fifteen hours on would be a day cut short.
    assert_eq!(o.quota("u").body["limits"][0]["resets_at"], "2026-03-12T15:00:00.000Z");
}
