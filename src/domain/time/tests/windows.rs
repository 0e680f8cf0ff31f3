use std::path::Path;
use std::sync::{Arc, LazyLock};

use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use proptest::prelude::*;

use super::{at, zone};
use crate::domain::time::{Borders, Millis, Period, Zone, set_tzdata_dir, tz_version};

const DAY_MS: i64 = 86_400_000;
const YEAR_1970: i64 = 0;
const YEAR_2040: i64 = 2_208_988_800_000;

static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let zones = TimeZoneDatabase::bundled();
    zones.available().map(|name| name.to_string()).collect()
});

/// Zones whose clocks were set across midnight, or by odd amounts.
const DIFFICULT: [&str; 16] = [
    "Africa/Cairo",
    "Africa/Casablanca",
    "Africa/Monrovia",
    "America/Asuncion",
    "America/Caracas",
    "America/Havana",
    "America/Santiago",
    "America/St_Johns",
    "Antarctica/Troll",
    "Asia/Beirut",
    "Asia/Gaza",
    "Asia/Tehran",
    "Atlantic/Azores",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Pacific/Kwajalein",
];

fn zone_name() -> impl Strategy<Value = &'static str> {
    (0..NAMES.len()).prop_map(|index| NAMES[index].as_str())
}

fn rules(name: &str) -> TimeZone {
    TimeZoneDatabase::bundled().get(name).unwrap()
}

/// Seconds on the wall clock, counted as if it showed UTC.
fn wall(rules: &TimeZone, second: i64) -> i64 {
    second + i64::from(rules.to_offset(Timestamp::from_second(second).unwrap()).seconds())
}

/// The rule word by word: tries one instant after the other.
fn slow_start_of_day(rules: &TimeZone, day: i64) -> Millis {
    let midnight = day * 86_400;
    let mut minute = midnight - 26 * 3600;
    while wall(rules, minute) < midnight {
        minute += 60;
    }
    let first = (minute - 60..=minute).find(|second| wall(rules, *second) >= midnight);
    Millis(first.unwrap() * 1000)
}

fn check_tiling(zone: &Zone, period: Period, anchor_day: u8, now: Millis) {
    let here = zone.borders(period, anchor_day, now);
    let context = format!("{zone} {period:?} from {anchor_day} at {now}: {here:?}");
    let Borders { start, end, next_end } = here;
    assert!(start <= now && now < end && end < next_end, "{context}");
    for inside in [start, Millis(start.0.midpoint(end.0)), Millis(end.0 - 1)] {
        assert_eq!(zone.borders(period, anchor_day, inside), here, "{context}, asked at {inside}");
    }
    let next = zone.borders(period, anchor_day, end);
    assert_eq!((next.start, next.end), (end, next_end), "{context}");
    let before = zone.borders(period, anchor_day, Millis(start.0 - 1));
    assert_eq!((before.end, before.next_end), (start, end), "{context}");
    let longest = match period {
        Period::Day => 49,
        Period::Week => 8 * 24,
        _ => 32 * 24,
    };
    assert!(end.0 - start.0 <= longest * 3_600_000, "{context}");
}

fn check_all_periods(zone: &Zone, anchor_day: u8, now: Millis) {
    check_tiling(zone, Period::Day, 1, now);
    check_tiling(zone, Period::Week, 1, now);
    check_tiling(zone, Period::Month, anchor_day, now);
}

proptest! {
    #[test]
    fn windows_tile_time_in_every_zone(
        name in zone_name(), now in YEAR_1970..YEAR_2040, anchor_day in 1u8..=31,
    ) {
        check_all_periods(&zone(name), anchor_day, Millis(now));
    }

    #[test]
    fn windows_tile_time_around_changes_of_the_clock(
        name in prop::sample::select(&DIFFICULT[..]), now in YEAR_1970..YEAR_2040, anchor_day in 1u8..=31,
        away in -2 * DAY_MS..2 * DAY_MS,
    ) {
        let from = Timestamp::from_millisecond(now).unwrap();
        let change = rules(name).following(from).next().map(|change| change.timestamp());
        let now = Millis(change.unwrap_or(from).as_millisecond() + away);
        check_all_periods(&zone(name), anchor_day, now);
    }

    #[test]
    fn a_day_starts_as_the_rule_says(
        name in zone_name(), day in 0i32..25_567,
    ) {
        let slow = slow_start_of_day(&rules(name), day.into());
        prop_assert_eq!(zone(name).start_of_day(day), slow, "{} day {}", name, day);
    }
}

#[test]
fn days_start_as_the_rule_says_at_every_change_of_difficult_clocks() {
    for name in DIFFICULT {
        let (zone, rules) = (zone(name), rules(name));
        let changes = rules.following(Timestamp::UNIX_EPOCH).map(|change| change.timestamp().as_second());
        for change in changes.take_while(|second| *second < YEAR_2040 / 1000) {
            let day = wall(&rules, change - 1).div_euclid(86_400);
            for day in day..=day + 1 {
                let start = zone.start_of_day(day as i32);
                assert_eq!(start, slow_start_of_day(&rules, day), "{name} day {day}");
            }
            for ms in [-1, 0, 1] {
                check_all_periods(&zone, 31, Millis(change * 1000 + ms));
            }
        }
    }
}

#[test]
fn the_missing_date_of_apia_is_no_window() {
    let apia = zone("Pacific/Apia");
    let borders = apia.borders(Period::Day, 1, at("2011-12-30T09:59Z"));
    let expected = ["2011-12-29T10:00Z", "2011-12-30T10:00Z", "2011-12-31T10:00Z"].map(at);
    assert_eq!([borders.start, borders.end, borders.next_end], expected);
    let (missing, following) = (apia.start_of_day(15_338), apia.start_of_day(15_339));
    assert_eq!(missing, following);
}

#[test]
fn a_day_begins_once_though_the_clock_of_st_johns_goes_back_over_midnight() {
    let st_johns = zone("America/St_Johns");
    let days: Vec<i32> = ["02:29Z", "02:30Z", "02:31Z", "03:29Z", "03:30Z"]
        .map(|time| st_johns.local_day(at(&format!("2010-11-07T{time}"))))
        .into();
    assert_eq!(days, [14_919, 14_920, 14_919, 14_919, 14_920], "the date itself goes back");
    let starts = ["02:29Z", "02:30Z", "02:31Z", "03:29Z", "03:30Z"]
        .map(|time| st_johns.borders(Period::Day, 1, at(&format!("2010-11-07T{time}"))).start);
    let (first, second) = (at("2010-11-06T02:30Z"), at("2010-11-07T02:30Z"));
    assert_eq!(starts, [first, second, second, second, second]);
}

#[test]
fn weeks_begin_on_monday() {
    let borders = zone("Europe/Berlin").borders(Period::Week, 1, at("2026-03-29T12:00Z"));
    let expected = ["2026-03-22T23:00Z", "2026-03-29T22:00Z", "2026-04-05T22:00Z"].map(at);
    assert_eq!([borders.start, borders.end, borders.next_end], expected);
}

#[test]
fn an_anchor_day_comes_back_after_a_short_month() {
    let mut start = at("2027-01-31T00:00Z");
    for expected in ["2027-02-28T00:00Z", "2027-03-31T00:00Z", "2027-04-30T00:00Z"] {
        start = Zone::utc().borders(Period::Month, 31, start).end;
        assert_eq!(start, at(expected));
    }
}

#[test]
fn borders_hold_at_both_ends_of_time() {
    for zone in [Zone::utc(), zone("Pacific/Kiritimati"), zone("Pacific/Pago_Pago")] {
        for now in [Millis(0), Millis(Millis::MAX.0)] {
            for period in [Period::Day, Period::Week, Period::Month] {
                let Borders { start, end, next_end } = zone.borders(period, 31, now);
                assert!(start <= now && now < end && end < next_end, "{zone} {period:?} {now}");
            }
        }
    }
}

#[test]
fn names_of_zones_are_those_of_iana() {
    for name in ["UTC", "Cuba", "Europe/Berlin", "Etc/GMT+5", "America/Argentina/Buenos_Aires", "EST"] {
        assert_eq!(zone(name).name(), name);
    }
    for name in [
        "",
        "Z",
        "+01:00",
        "UTC+1",
        "GMT+01:00",
        "EST5EDT,M3.2.0,M11.1.0",
        "Mars/Olympus",
        "Etc/Unknown",
        "../zoneinfo/UTC",
        "/UTC",
        "localtime",
        "Europe/Berlin ",
        "Europe",
    ] {
        assert!(Zone::parse(name).is_err(), "{name:?}");
    }
    assert_eq!(Zone::parse("europe/berlin"), Err("must be written Europe/Berlin".into()));
}

#[test]
fn a_zone_exists_once() {
    assert!(Arc::ptr_eq(&zone("Asia/Tokyo"), &zone("Asia/Tokyo")));
    assert_ne!(zone("Cuba"), zone("America/Havana"), "a link is another name");
}

#[test]
fn zone_data_is_current_and_cannot_change_while_in_use() {
    zone("UTC");
    assert!(tz_version().as_str() >= "2026f", "{}", tz_version());
    assert!(set_tzdata_dir(Path::new("/nowhere")).is_err());
}
