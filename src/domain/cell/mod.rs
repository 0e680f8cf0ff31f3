//! The arithmetic of the cells: bucket, window, slots, rolling.
//!
//! Everything that is ever taken, held, returned or reset goes through this
//! folder. Whole numbers only; `now` is an argument; a clock that steps back is
//! no time gone by.

mod bucket;
mod rolling;
mod window;

#[cfg(test)]
mod rolling_tests;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use super::time::Millis;

pub use bucket::{Bucket, UNIT};
pub use rolling::Rolling;
pub use window::{Ended, Filling, Part, Reserved, Window};

/// One cell of an account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cell {
    Bucket(Bucket),
    Window(Window),
    Slots(Slots),
    Rolling(Rolling),
}

/// Calls in flight. The ids are in the account's open holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slots {
    in_use: u64,
}

impl Slots {
    pub fn new(in_use: u64) -> Self {
        Self { in_use }
    }

    pub fn in_use(&self) -> u64 {
        self.in_use
    }

    pub fn take(&mut self) {
        self.in_use += 1;
    }

    pub fn free(&mut self) {
        self.in_use = self.in_use.saturating_sub(1);
    }

    pub fn standing(&self, limit: u64) -> Standing {
        Standing::Slots { limit, in_use: self.in_use, remaining: limit.saturating_sub(self.in_use) }
    }
}

/// A cell's figures as shown to callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Bucket {
        capacity: u64,
        refill_per_minute: u64,
        /// Whole units, rounded down, never negative.
        remaining: u64,
        held: u64,
        in_debt: bool,
        /// When the level reaches capacity - held if nothing else happens;
        /// `None` past the year 9999.
        full_at: Option<Millis>,
        /// When the next whole unit is there (the `t` of `RateLimit`);
        /// `None` when there is no more to come.
        next_unit_at: Option<Millis>,
    },
    Window {
        limit: u64,
        granted: u64,
        used: u64,
        held: u64,
        remaining: u64,
        over_by: u64,
        /// `[start, end)`; `None` for windows not begun and for `lifetime`.
        window: Option<(Millis, Millis)>,
    },
    Slots {
        limit: u64,
        in_use: u64,
        remaining: u64,
    },
    Rolling {
        limit: u64,
        /// What counts in the window that ends now.
        used: u64,
        remaining: u64,
    },
}

impl Standing {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Bucket { .. } => "bucket",
            Self::Window { .. } => "window",
            Self::Slots { .. } => "slots",
            Self::Rolling { .. } => "rolling",
        }
    }

    pub fn remaining(&self) -> u64 {
        match self {
            Self::Bucket { remaining, .. }
            | Self::Window { remaining, .. }
            | Self::Slots { remaining, .. }
            | Self::Rolling { remaining, .. } => *remaining,
        }
    }

    /// The limit's own figure: capacity, limit or slots.
    pub fn limit(&self) -> u64 {
        match self {
            Self::Bucket { capacity: limit, .. }
            | Self::Window { limit, .. }
            | Self::Slots { limit, .. }
            | Self::Rolling { limit, .. } => *limit,
        }
    }

    /// What is left and what is held of a whole, in percents rounded down.
    pub fn percents(&self) -> (u64, u64) {
        let (whole, remaining, held) = match *self {
            Self::Bucket { capacity, remaining, held, .. } => (capacity, remaining, held),
            Self::Window { limit, granted, remaining, held, .. } => {
                (limit.saturating_add(granted), remaining, held)
            }
            Self::Slots { limit, remaining, in_use } => (limit, remaining, in_use),
            Self::Rolling { limit, remaining, .. } => (limit, remaining, 0),
        };
        let percent = |part: u64| match whole {
            0 => 0,
            // Amounts are below 2^53, a hundred times one below 2^60.
            _ => (part.min(whole) * 100) / whole,
        };
        let left = percent(remaining);
        (left, percent(held).min(100 - left))
    }

    /// More is gone than the limit gives.
    pub fn is_over(&self) -> bool {
        match self {
            Self::Bucket { in_debt, .. } => *in_debt,
            Self::Window { over_by, .. } => *over_by > 0,
            Self::Slots { limit, in_use, .. } => in_use > limit,
            Self::Rolling { limit, used, .. } => used > limit,
        }
    }
}
