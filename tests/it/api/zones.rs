//! Changes of zone and anchor under way: a running window ends as it began, none is cut short, none
//! comes twice.

use serde_json::{Value, json};

use crate::harness::Tenant;
use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;
use crate::model::oracle::calendar::{Ms, instant, wire};

const HOUR: Ms = 3_600_000;
const DAY: Ms = 24 * HOUR;

/// Far apart, with clocks that change at different days, by half hours, and at midnight.
const ZONES: [&str; 9] = [
    "UTC",
    "Asia/Tokyo",
    "America/Los_Angeles",
    "Pacific/Kiritimati",
    "Europe/Berlin",
    "Pacific/Pago_Pago",
    "Australia/Lord_Howe",
    "America/Havana",
    "Africa/Cairo",
];

/// Who says which zone a window turns in, or on which day.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Says {
    User,
    Org,
    Tenant,
    /// A new version of the plan, of a limit that has a zone.
    Limit,
    /// Another plan, whose limit has another zone.
    Plan,
    /// The user's day, of an anchored month.
    Anchor,
}

const ALL: [Says; 6] = [Says::User, Says::Org, Says::Tenant, Says::Limit, Says::Plan, Says::Anchor];

/// One limit `w` of 1000 requests, in a zone if given.
fn sheet(id: &str, says: Says, period: &str, zone: Option<&str>) -> Sheet {
    let sheet = Sheet::named(id).dr(1000).but("name", json!("w")).but("period", json!(period));
    match (says, zone) {
        (Says::Org, _) => sheet.but("scope", json!("org")),
        (Says::Anchor, _) => sheet.but("anchor", json!("user")),
        (_, Some(zone)) => sheet.but("zone", json!(zone)),
        _ => sheet,
    }
}

async fn start(says: Says, period: &str, now: &str) -> Tenant {
    let t = Tenant::at(ZONES[0], now).await;
    let zoned = matches!(says, Says::Limit | Says::Plan).then_some(ZONES[0]);
    t.plan(&sheet("p", says, period, zoned)).await;
    for user in ["u", "lazy"] {
        t.put_user(user, json!({"org": user})).await.ok();
        t.ask(user, 0, 0).await.ok();
    }
    t
}

/// The n-th change.
async fn change(t: &Tenant, says: Says, period: &str, n: usize) {
    let zone = ZONES[n % ZONES.len()];
    match says {
        Says::Tenant => drop(t.put_settings(json!({"zone": zone})).await.ok()),
        Says::Limit => {
            drop(t.put_plan(&sheet("p", says, period, Some(zone)).json()).await.ok());
        }
        Says::Plan => {
            let id = ["p", "q", "r"][n % 3];
            t.put_plan(&sheet(id, says, period, Some(zone)).json()).await.ok();
            t.set_plan("u", id).await.ok();
            t.set_plan("lazy", id).await.ok();
        }
        Says::User | Says::Org | Says::Anchor => {
            for user in ["u", "lazy"] {
                match says {
                    Says::User => drop(t.put_user(user, json!({"zone": zone})).await.ok()),
                    Says::Org => drop(t.put_org(user, json!({"zone": zone})).await.ok()),
                    _ => {
                        let day = [1, 31, 15, 28, 2, 30, 9][n % 7];
                        drop(t.put_user(user, json!({"anchor_day": day})).await.ok());
                    }
                }
            }
        }
    }
}

fn bounds(row: &Value) -> (Ms, Ms) {
    let at = |side: &str| instant(row["window"][side].as_str().unwrap_or_else(|| panic!("no window: {row}")));
    (at("start"), at("end"))
}

/// Changes the rule again and again while time goes on, and looks after each that every window
/// begins where the last one ended, is long enough, and was given once.
#[tokio::test]
async fn whatever_changes_windows_touch_and_none_is_cut_short_or_given_twice() {
    for says in ALL {
        let periods: &[(&str, Ms, Ms, Ms, usize)] = &[
            ("day", 23 * HOUR, 2 * DAY + 2 * HOUR, 13 * HOUR, 50),
            ("week", 7 * DAY - HOUR, 14 * DAY + 2 * HOUR, 3 * DAY + HOUR, 24),
            ("month", 26 * DAY + 22 * HOUR, 62 * DAY, 11 * DAY + HOUR, 24),
        ];
        for (period, shortest, longest, step, rounds) in periods {
            if says == Says::Anchor && *period != "month" {
                continue;
            }
            let t = start(says, period, "2026-03-05T10:00:00.000Z").await;
            let mut window = bounds(&t.left("u", "w").await);
            let mut used = 1;
            for n in 1..=*rounds {
                t.pass(*step).await;
                let before = t.left("u", "w").await;
                change(&t, says, period, n).await;
                let after = t.left("u", "w").await;
                let told = format!("{says:?}, {period}, change {n} at {}", wire(t.now()));
                assert_eq!(bounds(&after), bounds(&before), "{told}: the running window changed");
                assert_eq!(after["used"], before["used"], "{told}");
                let now = bounds(&after);
                if now != window {
                    assert_eq!(now.0, window.1, "{told}: {} is not where the last one ended", wire(now.0));
                    used = 0;
                }
                let length = now.1 - now.0;
                // Months up to 59 days, or two months where neither is cut.
                assert!((*shortest..=*longest).contains(&length), "{told}: {} h", length / HOUR);
                assert!((now.0..now.1).contains(&t.now()), "{told}: {after}");
                assert_eq!(after["used"], used, "{told}: {after}");
                t.ask("u", 0, 0).await.ok();
                used += 1;
                window = now;
            }
            // Who did not call in all that time is in the same window.
            assert_eq!(bounds(&t.left("lazy", "w").await), window, "{says:?}, {period}: seen late");
        }
    }
}

#[tokio::test]
async fn the_next_window_ends_at_the_first_border_of_the_new_rule_that_is_far_enough() {
    for (says, period, value, ends) in [
        (Says::User, "day", json!("Asia/Tokyo"), ["2026-03-11T00:00:00.000Z", "2026-03-12T15:00:00.000Z"]),
        (
            Says::User,
            "day",
            json!("America/Los_Angeles"),
            ["2026-03-11T00:00:00.000Z", "2026-03-12T07:00:00.000Z"],
        ),
        (Says::User, "week", json!("Asia/Tokyo"), ["2026-03-16T00:00:00.000Z", "2026-03-29T15:00:00.000Z"]),
        (
            Says::User,
            "week",
            json!("America/Los_Angeles"),
            ["2026-03-16T00:00:00.000Z", "2026-03-23T07:00:00.000Z"],
        ),
        (Says::User, "month", json!("Asia/Tokyo"), ["2026-04-01T00:00:00.000Z", "2026-04-30T15:00:00.000Z"]),
        (
            Says::User,
            "month",
            json!("America/Los_Angeles"),
            ["2026-04-01T00:00:00.000Z", "2026-05-01T07:00:00.000Z"],
        ),
        (Says::Anchor, "month", json!(31), ["2026-04-01T00:00:00.000Z", "2026-04-30T00:00:00.000Z"]),
        (Says::Anchor, "month", json!(28), ["2026-04-01T00:00:00.000Z", "2026-04-28T00:00:00.000Z"]),
        (Says::Anchor, "month", json!(27), ["2026-04-01T00:00:00.000Z", "2026-05-27T00:00:00.000Z"]),
        (Says::Anchor, "month", json!(15), ["2026-04-01T00:00:00.000Z", "2026-05-15T00:00:00.000Z"]),
    ] {
        let t = start(says, period, "2026-03-10T10:00:00.000Z").await;
        let field = if says == Says::User { "zone" } else { "anchor_day" };
        t.put_user("u", json!({field: value})).await.ok();
        let told = format!("{period} {value}");
        assert_has(&t.left("u", "w").await, &json!({"resets_at": ends[0], "used": 1}));
        t.set_clock(&wire(instant(ends[0]) - 1)).await;
        assert_has(&t.left("u", "w").await, &json!({"resets_at": ends[0], "used": 1}));
        t.set_clock(ends[0]).await;
        let row = t.left("u", "w").await;
        assert_eq!((&row["resets_at"], &row["used"]), (&json!(ends[1]), &json!(0)), "{told}");
        assert_eq!(row["window"]["start"], ends[0], "{told}");
        // From then on the new rule's own borders.
        t.set_clock(ends[1]).await;
        assert_eq!(t.left("u", "w").await["window"]["start"], ends[1], "{told}");
    }
}

#[tokio::test]
async fn a_day_of_23_hours_is_long_enough() {
    let t = start(Says::User, "day", "2026-03-27T10:00:00.000Z").await;
    t.put_user("u", json!({"zone": "Europe/Berlin"})).await.ok();
    let mut ends = Vec::new();
    for _ in 0..4 {
        let end = t.left("u", "w").await["resets_at"].as_str().unwrap().to_owned();
        t.set_clock(&end).await;
        ends.push(end);
    }
    let expected = [
        "2026-03-28T00:00:00.000Z",
        "2026-03-28T23:00:00.000Z",
        "2026-03-29T22:00:00.000Z",
        "2026-03-30T22:00:00.000Z",
    ];
    assert_eq!(ends, expected);
}

#[tokio::test]
async fn where_nothing_was_ever_taken_the_new_rule_holds_at_once() {
    for says in ALL {
        let t = Tenant::at("UTC", "2026-03-10T10:00:00.000Z").await;
        let zoned = matches!(says, Says::Limit | Says::Plan).then_some("UTC");
        t.plan(&sheet("p", says, "month", zoned)).await;
        for user in ["u", "lazy"] {
            t.put_user(user, json!({"org": user})).await.ok();
            // Refused, and asked without taking: neither begins a window.
            t.check(json!({"user": user, "dry_run": true})).await.ok();
        }
        change(&t, says, "month", 1).await;
        let end = if says == Says::Anchor { "2026-03-31T00:00:00.000Z" } else { "2026-03-31T15:00:00.000Z" };
        assert_eq!(t.left("u", "w").await["resets_at"], end, "{says:?}");
        t.ask("u", 0, 0).await.ok();
        assert_eq!(t.left("u", "w").await["resets_at"], end, "{says:?}");
    }
}

/// The tenant's clock stands at the border: the window that begins there has begun.
#[tokio::test]
async fn a_change_at_the_very_border_is_one_of_the_window_that_begins_there() {
    for says in [Says::User, Says::Org, Says::Tenant, Says::Limit, Says::Plan] {
        let t = start(says, "day", "2026-03-10T10:00:00.000Z").await;
        t.set_clock("2026-03-11T00:00:00.000Z").await;
        t.ask("u", 0, 0).await.ok();
        change(&t, says, "day", 1).await;
        for user in ["u", "lazy"] {
            assert_eq!(t.left(user, "w").await["resets_at"], "2026-03-12T00:00:00.000Z", "{says:?}, {user}");
        }
        t.set_clock("2026-03-12T00:00:00.000Z").await;
        for user in ["u", "lazy"] {
            assert_eq!(t.left(user, "w").await["resets_at"], "2026-03-13T15:00:00.000Z", "{says:?}, {user}");
        }
    }
}

#[tokio::test]
async fn going_to_another_zone_and_back_gives_no_day_twice() {
    let t = Tenant::at("UTC", "2026-03-10T10:00:00.000Z").await;
    t.plan(&Sheet::new().dr(3)).await;
    let mut given = 0;
    // Ten days, with a change of zone every three hours and as many calls as are let through.
    for n in 0..80 {
        t.put_user("u", json!({"zone": ZONES[n % 6]})).await.ok();
        for _ in 0..2 {
            given += i32::from(t.ask("u", 0, 0).await.status == 200);
        }
        t.pass(3 * HOUR).await;
    }
    // Windows of 23 hours or more: at most eleven begin in ten days.
    assert!((3..=33).contains(&given), "{given}");
    t.ask("v", 0, 0).await.ok();
}

#[tokio::test]
async fn a_hold_ends_in_the_window_it_began_in_after_changes_of_zone() {
    let t = Tenant::at("UTC", "2026-03-31T20:00:00.000Z").await;
    t.plan(&Sheet::new().mt(1000)).await;
    let hold = t.ask_for("u", 300, 0, 3600).await.hold_id();
    t.put_user("u", json!({"zone": "America/Los_Angeles"})).await.ok();
    t.set_clock("2026-04-01T00:00:00.000Z").await;
    t.put_user("u", json!({"zone": "Asia/Tokyo"})).await.ok();
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 0, "held": 0}));
    t.finish(&hold, 900, 0).await.ok();
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 0, "held": 0, "remaining": 1000}));
}
