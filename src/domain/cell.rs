//! The arithmetic of the three cells: bucket, window, slots.

use super::time::Millis;

/// A cell's figures as shown to callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Bucket {
        capacity: u64,
        refill_per_minute: u64,
        /// Whole units, rounded down, never negative.
        remaining: u64,
        held: u64,
        /// When the level reaches capacity - held if nothing else happens;
        /// `None` past the year 9999.
        full_at: Option<Millis>,
        /// When the next whole unit is there (for the `t` of `RateLimit`);
        /// `None` when full or never.
        next_unit_at: Option<Millis>,
    },
    Window {
        limit: u64,
        granted: u64,
        used: u64,
        held: u64,
        remaining: u64,
        over_by: u64,
        /// `[start, end)`; `None` for windows not begun, `end` is `None` for
        /// `lifetime` (then the whole is shown as `None` too).
        window: Option<(Millis, Millis)>,
    },
    Slots { limit: u64, in_use: u64, remaining: u64 },
}
