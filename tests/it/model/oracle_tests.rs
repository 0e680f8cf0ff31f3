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
    o.put_user("u", &json!({"zone": "Asia/Tokyo"}));
    assert_eq!(o.quota("u").body["limits"][0]["resets_at"], "2026-03-11T00:00:00.000Z");
    o.set_clock(instant("2026-03-11T00:00:00Z"));
    // Fifteen hours on would be a day cut short.
    assert_eq!(o.quota("u").body["limits"][0]["resets_at"], "2026-03-12T15:00:00.000Z");
}

#[test]
fn an_upgrade_takes_hold_at_once_and_what_was_used_is_carried() {
    // C29.
    let mut o = oracle(Sheet::named("free").rb(5, 5).mt(1000));
    o.put_plan(&Sheet::named("pro").rb(60, 60).mt(100_000).json());
    for _ in 0..5 {
        assert_eq!(o.check(&ask(100, 100)).status, 200);
    }
    later(&mut o, 5000);
    o.move_user("u", &json!({"plan": "pro"}));
    let view = o.quota("u").body;
    assert_eq!(view["limits"][0]["remaining"], 55);
    assert_eq!(view["limits"][1]["remaining"], 99_000);
}

#[test]
fn toggling_the_plan_mints_nothing_and_a_repeated_event_changes_nothing() {
    // C31.
    let mut o = oracle(Sheet::named("free").mt(1000));
    o.put_plan(&Sheet::named("pro").mt(100_000).json());
    o.move_user("u", &json!({"plan": "pro", "sequence": 1}));
    o.check(&ask(49_000, 49_000));
    o.settle(0, &json!({"input_tokens": 49_000, "output_tokens": 49_000}));
    o.check(&ask(1000, 1000));
    for (n, plan) in ["free", "pro", "free", "pro"].iter().enumerate() {
        o.move_user("u", &json!({"plan": plan, "effective": "now", "sequence": n + 2}));
    }
    for _ in 0..5 {
        let again = o.move_user("u", &json!({"plan": "pro", "effective": "now", "sequence": 5}));
        assert_eq!((again.status, &again.body["stale"]), (200, &json!(false)));
    }
    let old = o.move_user("u", &json!({"plan": "free", "effective": "now", "sequence": 3}));
    assert_eq!(old.body["stale"], true);
    assert_eq!(o.move_user("u", &json!({"plan": "free"})).body["code"], "sequence_required");
    assert_eq!(o.put_user("u", &json!({"plan": "free"})).body["code"], "sequence_required");
    assert_eq!(o.check(&ask(10, 10)).body["code"], "monthly_quota_exhausted");
    o.settle(1, &json!({"input_tokens": 1000, "output_tokens": 500}));
    assert_eq!(o.quota("u").body["limits"][0]["used"], 99_500);
    assert_eq!(o.check(&ask(10, 10)).status, 200);
    assert_eq!(o.check(&ask(300, 300)).body["code"], "monthly_quota_exhausted");
}

#[test]
fn a_smaller_version_waits_for_the_end_of_each_ones_month_and_newcomers_have_it_at_once() {
    // C33, 13.29, 13.60, 13.78.
    let mut o = oracle(Sheet::named("p").cc(5).mt(1000));
    o.check(&ask(10, 10));
    o.put_plan(&Sheet::named("p").cc(1).mt(100).json());
    let view = o.quota("u").body;
    assert_eq!(view["plan"]["version"], 1);
    assert_eq!(
        view["upcoming"],
        json!({"plan": {"id": "p", "version": 2}, "effective_at": "2026-04-01T00:00:00.000Z"})
    );
    assert_eq!(o.quota("new").body["plan"]["version"], 2);
    o.set_clock(instant("2026-03-31T23:59:59.999Z"));
    assert_eq!(o.quota("u").body["limits"][0]["limit"], 5);
    later(&mut o, 1);
    let view = o.quota("u").body;
    assert_eq!((&view["plan"]["version"], &view["upcoming"]), (&json!(2), &Value::Null));
    assert_eq!(view["limits"][0]["name"], "concurrency");
    assert_eq!(view["limits"][0]["limit"], 1);
}

#[test]
fn a_version_for_new_users_leaves_those_who_are_there_alone() {
    let mut o = oracle(Sheet::named("p").dr(5));
    o.check(&ask(1, 1));
    let mut body = Sheet::named("p").dr(9).json();
    body["to"] = json!("new_users");
    o.put_plan(&body);
    assert_eq!(o.quota("u").body["limits"][0]["limit"], 5);
    assert_eq!(o.quota("v").body["limits"][0]["limit"], 9);
}

#[test]
fn a_resized_bucket_keeps_its_deficit_and_refills_by_the_old_figures_up_to_the_change() {
    // C35, 29a.
    let mut o = oracle(Sheet::named("small").ob(1000, 600));
    o.put_plan(&Sheet::named("large").ob(5000, 3000).json());
    o.check(&ask(0, 900));
    o.settle(0, &json!({"input_tokens": 0, "output_tokens": 900}));
    for n in 0..11 {
        o.set_plan("u", if n % 2 == 0 { "large" } else { "small" });
    }
    assert_eq!(o.quota("u").body["limits"][0]["remaining"], 4100);
    let at = super::oracle::calendar::wire(o.now + 10_000);
    o.move_user("u", &json!({"plan": "small", "effective": at}));
    later(&mut o, 20_000);
    // 500 by the large plan, 100 by the small one: 300 of 900 are lacking.
    assert_eq!(o.quota("u").body["limits"][0]["remaining"], 700);
}

#[test]
fn an_override_holds_until_it_expires_and_the_bucket_is_as_full_as_both_rates_make_it() {
    let mut o = oracle(Sheet::named("p").ob(1000, 60).dr(5));
    o.check(&ask(0, 900));
    o.settle(0, &json!({"input_tokens": 0, "output_tokens": 900}));
    let at = super::oracle::calendar::wire(o.now + 10_000);
    let body = json!({
        "overrides": {"output_tokens_per_minute": {"capacity": 2000, "refill_per_minute": 600}, "requests_per_day": {"limit": 9}},
        "expires_at": at, "reason": "r",
    });
    o.put_overrides("u", &body);
    assert_eq!(o.quota("u").body["limits"][0]["remaining"], 1100);
    assert_eq!(o.quota("u").body["limits"][1]["remaining"], 8);
    later(&mut o, 20_000);
    let view = o.quota("u").body;
    assert_eq!(view["limits"][0]["remaining"], 100 + 100 + 10);
    assert_eq!(view["limits"][1]["remaining"], 4);
}

#[test]
fn a_grant_is_used_after_the_plans_own_and_what_is_used_of_it_is_gone() {
    let mut o = oracle(Sheet::named("p").dr(3));
    o.check(&ask(1, 1));
    let grant = |amount: i64, expires: Value| json!({"limit": "requests_per_day", "amount": amount, "expires_at": expires, "reason": "r"});
    o.give("u", &grant(5, Value::Null));
    o.give("u", &grant(2, json!("2026-03-12T00:00:00.000Z")));
    let row = |o: &Oracle| o.quota("u").body["limits"][0].clone();
    assert_eq!(
        (&row(&o)["limit"], &row(&o)["granted"], &row(&o)["remaining"]),
        (&json!(3), &json!(7), &json!(9))
    );
    for _ in 0..5 {
        assert_eq!(o.check(&ask(1, 1)).status, 200);
    }
    assert_eq!(row(&o)["over_by"], 0);
    // Three beyond the plan's own: two of the grant that expires, one of the other.
    o.set_clock(instant("2026-03-11T00:00:00Z"));
    assert_eq!((&row(&o)["granted"], &row(&o)["remaining"]), (&json!(4), &json!(7)));
    assert_eq!(o.user_document("u").body["grants"]["$among"].as_array().map(Vec::len), Some(1));
}

#[test]
fn an_orgs_own_sheet_decides_and_its_members_share_one_account() {
    let org_day = |limit: u64| json!({"name": "org_day", "kind": "window", "meter": "requests", "period": "day", "scope": "org", "limit": limit});
    let mut o = oracle(Sheet::named("p").limit(org_day(5)));
    o.put_plan(&Sheet::named("team").limit(org_day(2)).json());
    for user in ["a", "b"] {
        o.put_user(user, &json!({"org": "acme"}));
    }
    let by = |user: &str| json!({"user": user});
    assert_eq!(o.check(&by("a")).body["limits"][0]["remaining"], 4);
    o.put_org("acme", &json!({"plan": "team"}));
    assert_eq!(o.check(&by("b")).body["limits"][0]["remaining"], 0);
    assert_eq!(o.check(&by("a")).body["code"], "daily_quota_exhausted");
    assert_eq!(o.org_quota("acme").body["limits"][0]["used"], 2);
    o.put_user("a", &json!({"org": "umbrella"}));
    assert_eq!(o.check(&by("a")).body["limits"][0]["remaining"], 4);
}

#[test]
fn the_anniversary_comes_back_to_the_31st() {
    // C27.
    let month = json!({"name": "m", "kind": "window", "meter": "requests", "period": "month", "anchor": "user", "limit": 1});
    let mut o = oracle(Sheet::named("p").limit(month));
    o.put_user("u", &json!({"anchor_day": 31}));
    for (at, status) in [
        ("2026-03-11T00:00:00Z", 200),
        ("2026-03-28T12:00:00Z", 429),
        ("2026-03-30T12:00:00Z", 429),
        ("2026-03-31T12:00:00Z", 200),
        ("2026-04-29T23:59:59.999Z", 429),
        ("2026-04-30T00:00:00Z", 200),
    ] {
        o.set_clock(instant(at));
        assert_eq!(o.check(&ask(0, 0)).status, status, "{at}");
    }
}

#[test]
fn a_trial_ends_in_the_plan_that_was_left() {
    let mut o = oracle(Sheet::named("free").dr(1));
    o.put_plan(&Sheet::named("pro").dr(100).json());
    let body =
        json!({"plan": "pro", "effective": "2026-03-10T13:00:00.000Z", "until": "2026-03-11T13:00:00.000Z"});
    let pending = o.move_user("u", &body).body["pending"].clone();
    assert_eq!(pending["effective_at"], "2026-03-10T13:00:00.000Z");
    assert_eq!(pending["then"]["effective_at"], "2026-03-11T13:00:00.000Z");
    for (at, plan) in [
        ("2026-03-10T12:59:59.999Z", "free"),
        ("2026-03-10T13:00:00Z", "pro"),
        ("2026-03-11T12:59:59.999Z", "pro"),
        ("2026-03-11T13:00:00Z", "free"),
    ] {
        o.set_clock(instant(at));
        assert_eq!(o.quota("u").body["plan"]["id"], plan, "{at}");
    }
}

#[test]
fn each_rule_ends_a_hold_in_doubt_and_one_late_settle_corrects_it() {
    use super::oracle::doubt::Then;
    for (then, tokens, requests) in [(Then::Charge, 300, 1), (Then::Progress, 150, 1), (Then::Release, 0, 0)]
    {
        let mut o = oracle(Sheet::new().dr(9).mt(10_000));
        o.set_doubt_rule(2, then);
        let mut body = ask(100, 200);
        body["lease_seconds"] = json!(60);
        o.check(&body);
        o.extend(0, &json!({"output_tokens_so_far": 50}), None);
        later(&mut o, 60_000 + 7_199_999);
        assert_eq!(o.quota("u").body["limits"][1]["held"], 300);
        later(&mut o, 1);
        let view = o.quota("u").body;
        assert_eq!(
            (&view["limits"][0]["used"], &view["limits"][1]["used"]),
            (&json!(requests), &json!(tokens))
        );
        let settled = o.settle(0, &json!({"input_tokens": 10, "output_tokens": 20}));
        assert_eq!((settled.status, &settled.body["hold"]["late"]), (200, &json!(true)));
        let view = o.quota("u").body;
        assert_eq!((&view["limits"][0]["used"], &view["limits"][1]["used"]), (&json!(1), &json!(30)));
        o.add_up().unwrap();
    }
}

#[test]
fn an_admins_word_is_final() {
    let mut o = oracle(Sheet::new().mt(10_000));
    let mut body = ask(100, 200);
    body["lease_seconds"] = json!(60);
    o.check(&body);
    let charge = json!({"action": "charge", "reason": "r"});
    assert_eq!(o.resolve(0, &charge).body["code"], "not_in_doubt");
    later(&mut o, 60_000);
    assert_eq!(o.resolve(0, &charge).status, 200);
    assert_eq!(o.resolve(0, &charge).status, 200);
    assert_eq!(o.resolve(0, &json!({"action": "release"})).body["code"], "already_finished");
    assert_eq!(o.settle(0, &json!({"input_tokens": 1, "output_tokens": 1})).body["code"], "already_finished");
    assert_eq!(o.release(0).body["code"], "already_finished");
    assert_eq!(o.quota("u").body["limits"][0]["used"], 300);
}

#[test]
fn a_shadowed_tenant_refuses_nothing_and_counts_everything() {
    let mut o = oracle(Sheet::new().dr(1).rb(1, 1));
    o.shadow = true;
    assert_eq!(o.check(&ask(0, 0)).body["would_refuse"], Value::Null);
    let second = o.check(&ask(0, 0));
    assert_eq!((second.status, &second.body["would_refuse"]["code"]), (200, &json!("daily_quota_exhausted")));
    assert_eq!(o.quota("u").body["limits"][0]["over_by"], 1);
}
