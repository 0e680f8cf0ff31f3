//! Instants, zones and the borders of calendar windows.
//!
//! The only module that knows zone rules: everything above sees instants.

mod instant;
mod zone;

pub use instant::{
    DAY_MS, Millis, PENTADS_OF_MONTH, first_day_of_month, first_day_of_pentad, month_of_day, parse_date,
    pentad_of_day,
};
pub use zone::{Zone, set_tzdata_dir, tz_version};

/// How long a window lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Period {
    Day,
    /// From Monday.
    Week,
    Month,
    /// Tiles of so many hours from the first take.
    Hours(u32),
    /// Tiles of so many days of 24 hours from the first take.
    Days(u32),
    /// So many hours from the first take after the last one ended.
    SessionHours(u32),
    /// Never ends.
    Lifetime,
}

/// On which day of the month a `Month` begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Anchor {
    /// On the first.
    Calendar,
    /// On the user's anchor day.
    User,
}

/// A window that contains now, and the end of the next one. Windows are
/// half-open and touch: the next one begins at `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Borders {
    pub start: Millis,
    pub end: Millis,
    pub next_end: Millis,
}

impl Borders {
    /// The window around the instant of these borders for one who was in a
    /// window of another rule until `ended`: it begins there and is at least
    /// `min_len` ms long, if the rule's own begins earlier than that.
    pub fn following(self, ended: Millis, min_len: i64) -> (Millis, Millis) {
        let earliest = ended.plus_ms(min_len);
        if self.start >= earliest {
            (self.start, self.end)
        } else if self.end >= earliest {
            (ended, self.end)
        } else {
            (ended, self.next_end)
        }
    }
}

const HOUR_MS: i64 = 3_600_000;

impl Period {
    /// The shortest window after a change of zone or anchor; 0 for periods
    /// that know neither.
    pub fn min_len_ms(self) -> i64 {
        match self {
            Self::Day => 23 * HOUR_MS,
            Self::Week => (7 * 24 - 1) * HOUR_MS,
            Self::Month => (26 * 24 + 22) * HOUR_MS,
            _ => 0,
        }
    }

    /// The length of tiles and sessions; `None` for the other periods.
    pub fn fixed_len_ms(self) -> Option<i64> {
        match self {
            Self::Hours(hours) | Self::SessionHours(hours) => Some(i64::from(hours) * HOUR_MS),
            Self::Days(days) => Some(i64::from(days) * 24 * HOUR_MS),
            _ => None,
        }
    }

    /// Whether local midnights border its windows.
    pub fn is_calendar(self) -> bool {
        matches!(self, Self::Day | Self::Week | Self::Month)
    }
}

#[cfg(test)]
mod tests;
