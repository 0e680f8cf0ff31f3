//! Days, weeks and months in a zone, found the slow way: by asking minute by minute when a date begins.

use std::cell::RefCell;
use std::collections::HashMap;

use jiff::civil::{Date, Weekday};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, ToSpan};

/// Milliseconds since 1970 in UTC.
pub type Ms = i64;

pub const MINUTE_MS: Ms = 60_000;
pub const HOUR_MS: Ms = 60 * MINUTE_MS;
pub const DAY_MS: Ms = 24 * HOUR_MS;

thread_local! {
    static STARTS: RefCell<HashMap<(String, Date), Ms>> = RefCell::new(HashMap::new());
}

/// Writes an instant as it stands on the wire: RFC 3339, UTC, three decimals.
pub fn wire(at: Ms) -> String {
    let stamp = Timestamp::from_millisecond(at).expect("an instant of the model lies in jiff's range");
    format!("{stamp:.3}")
}

/// Reads an instant from the wire.
pub fn instant(text: &str) -> Ms {
    text.parse::<Timestamp>().unwrap_or_else(|e| panic!("not an instant: {text}: {e}")).as_millisecond()
}

/// A zone by the rules that came with the library: those of the machine may be years old.
fn zone_named(zone: &str) -> TimeZone {
    TimeZoneDatabase::bundled().get(zone).expect("the model only uses zones that exist")
}

/// The first instant whose wall clock in `zone` shows `date` 00:00 or later.
pub fn start_of(zone: &str, date: Date) -> Ms {
    if let Some(known) = STARTS.with(|s| s.borrow().get(&(zone.to_owned(), date)).copied()) {
        return known;
    }
    let tz = zone_named(zone);
    let midnight = date.at(0, 0, 0, 0);
    let noon_utc = TimeZone::UTC.to_timestamp(midnight).expect("a date of the model").as_millisecond();
    let mut at = noon_utc - 27 * HOUR_MS;
    let stop = noon_utc + 27 * HOUR_MS;
    while at <= stop {
        let stamp = Timestamp::from_millisecond(at).expect("in range");
        if tz.to_datetime(stamp) >= midnight {
            break;
        }
        at += MINUTE_MS;
    }
    assert!(at <= stop, "{zone} never reaches {date}");
    STARTS.with(|s| s.borrow_mut().insert((zone.to_owned(), date), at));
    at
}

/// The kinds of calendar window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calendar {
    Day,
    Week,
    /// A month that begins on this day, clamped to the month's last.
    Month(u8),
}

impl Calendar {
    /// How long a window must at least be after a change of rule.
    pub fn least_ms(self) -> Ms {
        match self {
            Self::Day => 23 * HOUR_MS,
            Self::Week => 7 * DAY_MS - HOUR_MS,
            Self::Month(_) => 26 * DAY_MS + 22 * HOUR_MS,
        }
    }

    /// The dates on which a window of this kind begins, around `about`, in order.
    fn dates(self, about: Date) -> Vec<Date> {
        match self {
            Self::Day => (-3..=3).map(|n| about + n.days()).collect(),
            Self::Week => {
                let back = i64::from(about.weekday().since(Weekday::Monday));
                let monday = about - back.days();
                (-2..=2).map(|n| monday + (7 * n).days()).collect()
            }
            Self::Month(anchor) => (-2..=3)
                .map(|n| {
                    let first = about.first_of_month() + n.months();
                    let day = i8::try_from(anchor).expect("1..=31").min(first.days_in_month());
                    Date::new(first.year(), first.month(), day).expect("clamped")
                })
                .collect(),
        }
    }

    /// The window [start, end) that contains `at`.
    pub fn window(self, zone: &str, at: Ms) -> (Ms, Ms) {
        let starts = self.starts(zone, at);
        let start = *starts.iter().rev().find(|s| **s <= at).expect("some start lies before");
        let end = *starts.iter().find(|s| **s > start).expect("some start lies after");
        (start, end)
    }

    /// The first border at or after `at`.
    pub fn border_from(self, zone: &str, at: Ms) -> Ms {
        *self.starts(zone, at).iter().find(|s| **s >= at).expect("some start lies after")
    }

    fn starts(self, zone: &str, at: Ms) -> Vec<Ms> {
        let tz = zone_named(zone);
        let about = tz.to_datetime(Timestamp::from_millisecond(at).expect("in range")).date();
        let mut starts: Vec<Ms> = self.dates(about).into_iter().map(|d| start_of(zone, d)).collect();
        starts.sort_unstable();
        starts.dedup();
        starts
    }
}
