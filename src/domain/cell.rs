//! The arithmetic of the three cells: bucket, window, slots.
//!
//! Everything that is ever taken, held, returned or reset goes through this
//! file. Whole numbers only; `now` is an argument; a clock that steps back is
//! no time gone by.

use serde::{Deserialize, Serialize};

use super::charge::Span;
use super::quantity::{MAX_AMOUNT, MAX_DEBT, add_saturating};
use super::time::Millis;

/// A bucket counts in units of 1/60,000 token, so that a refill of R tokens a
/// minute is exactly R units a millisecond.
pub const UNIT: i64 = 60_000;

/// 9999-12-31T23:59:59.999Z: later moments are not shown.
const LAST_SHOWN: Millis = Millis(253_402_300_799_999);

/// One cell of an account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cell {
    Bucket(Bucket),
    Window(Window),
    Slots(Slots),
}

/// A token bucket with debt. Invariant: level <= capacity - held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    capacity: u64,
    refill: u64,
    /// In units; below zero is debt.
    level: i64,
    /// Tokens reserved by holds whose lease runs.
    held: u64,
    at: Millis,
}

impl Bucket {
    /// A bucket nobody has used: full.
    pub fn full(capacity: u64, refill: u64, now: Millis) -> Self {
        Self { capacity, refill, level: capacity as i64 * UNIT, held: 0, at: now }
    }

    /// The figures it runs with, as a change that changes nothing.
    pub fn figures(&self, now: Millis) -> (u64, u64, Millis) {
        (self.capacity, self.refill, now)
    }

    fn ceiling(&self) -> i64 {
        (self.capacity as i64 - self.held as i64) * UNIT
    }

    fn refill_to(&mut self, time: Millis) {
        let elapsed = time.0.saturating_sub(self.at.0);
        if elapsed <= 0 {
            return;
        }
        let room = self.ceiling() - self.level;
        if room > 0 {
            let gained = i128::from(elapsed) * i128::from(self.refill);
            self.level += gained.min(i128::from(room)) as i64;
        }
        self.at = time;
    }

    /// Takes over new figures at `time` and keeps the deficit, so that no
    /// change of figures mints or burns a token.
    fn switch(&mut self, capacity: u64, refill: u64, time: Millis) {
        self.refill_to(time);
        self.level += (capacity as i64 - self.capacity as i64) * UNIT;
        self.capacity = capacity;
        self.refill = refill;
    }

    /// Brings the bucket to `now` through the lease ends since (ascending,
    /// with the amounts they free) and the change of figures, if any.
    pub fn advance(
        &mut self,
        figures: Option<(u64, u64, Millis)>,
        ends: impl Iterator<Item = (Millis, u64)>,
        now: Millis,
    ) {
        let mut pending = figures.filter(|(c, r, _)| (*c, *r) != (self.capacity, self.refill));
        for (end, amount) in ends {
            if let Some((capacity, refill, since)) = pending.filter(|(_, _, since)| *since <= end) {
                self.switch(capacity, refill, since);
                pending = None;
            }
            self.end_lease(amount, end);
        }
        if let Some((capacity, refill, since)) = pending {
            self.switch(capacity, refill, since.min(now));
        }
        if figures.is_some() {
            self.refill_to(now);
        }
    }

    /// A lease ended: the amount stays gone, only its place is free for
    /// refill again.
    pub fn end_lease(&mut self, amount: u64, time: Millis) {
        self.refill_to(time);
        self.held = self.held.saturating_sub(amount);
    }

    /// Whole tokens that can be taken now.
    pub fn available(&self) -> u64 {
        (self.level / UNIT).max(0) as u64
    }

    pub fn take(&mut self, amount: u64, is_held: bool) {
        self.change(i128::from(amount).saturating_neg());
        if is_held {
            self.held = add_saturating(self.held, amount);
        }
    }

    /// Settles `reserved` against `actual`; `frees_hold` while the lease runs.
    pub fn settle(&mut self, reserved: u64, actual: u64, frees_hold: bool) {
        if frees_hold {
            self.held = self.held.saturating_sub(reserved);
        }
        self.change(i128::from(reserved) - i128::from(actual));
    }

    fn change(&mut self, tokens: i128) {
        let level = i128::from(self.level) + tokens * i128::from(UNIT);
        let floor = i128::from(-MAX_DEBT * UNIT);
        self.level = level.max(floor).min(i128::from(self.ceiling()).max(floor)) as i64;
    }

    /// Milliseconds until `amount` tokens are there if nothing else happens
    /// than refill and the lease ends to come (ascending). `None`: never.
    pub fn wait_ms(
        &self,
        amount: u64,
        ends: impl Iterator<Item = (Millis, u64)>,
        now: Millis,
    ) -> Option<u64> {
        let target = i64::try_from(amount).ok()?.checked_mul(UNIT)?;
        let mut future = self.clone();
        future.refill_to(now);
        for (end, freed) in ends {
            if let Some(reached) = future.reaches(target).filter(|reached| *reached <= end) {
                return Some((reached.0 - now.0).max(0) as u64);
            }
            future.end_lease(freed, end);
        }
        Some((future.reaches(target)?.0 - now.0).max(0) as u64)
    }

    fn reaches(&self, target: i64) -> Option<Millis> {
        if self.level >= target {
            return Some(self.at);
        }
        if target > self.ceiling() || self.refill == 0 {
            return None;
        }
        let missing = (target - self.level) as u64;
        Some(Millis(self.at.0.saturating_add(missing.div_ceil(self.refill) as i64)))
    }

    pub fn standing(&self, now: Millis) -> Standing {
        let shown = |at: Option<Millis>| at.map(|at| at.max(now)).filter(|at| *at <= LAST_SHOWN);
        let next = (self.level.max(0) / UNIT + 1) * UNIT;
        Standing::Bucket {
            capacity: self.capacity,
            refill_per_minute: self.refill,
            remaining: self.available(),
            held: self.held,
            in_debt: self.level < 0,
            full_at: shown(self.reaches(self.ceiling())),
            next_unit_at: shown(self.reaches(next)),
        }
    }
}

/// A counter that starts afresh when its window ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    start: Millis,
    /// `NOT_BEGUN` before the first take.
    end: Millis,
    used: u64,
    held: u64,
    /// Ended windows, kept while open holds may still extend into them.
    #[allow(clippy::box_collection, reason = "an account at rest must stay small")]
    past: Option<Box<Vec<Past>>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Past {
    start: Millis,
    end: Millis,
    used: u64,
    held: u64,
}

const NOT_BEGUN: Millis = Millis(i64::MIN);
/// Ended windows kept at most.
const PAST_KEPT: usize = 8;

impl Default for Window {
    fn default() -> Self {
        Self { start: NOT_BEGUN, end: NOT_BEGUN, used: 0, held: 0, past: None }
    }
}

/// How much of a window is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filling {
    pub used: u64,
    pub held: u64,
}

impl Filling {
    pub fn taken(self) -> u64 {
        add_saturating(self.used, self.held)
    }
}

impl Window {
    fn begun(&self) -> bool {
        self.end != NOT_BEGUN
    }

    /// Turns the window if it has ended by `now`. `keep_past` while a hold is
    /// open in this account.
    pub fn roll(&mut self, span: Span, now: Millis, keep_past: bool) {
        if !keep_past {
            self.past = None;
        }
        if !self.begun() || now < self.end {
            return;
        }
        if keep_past {
            self.keep();
        }
        (self.used, self.held) = (0, 0);
        (self.start, self.end) = match span {
            Span::Calendar { start, end, next_end, min_len } => {
                let earliest = Millis(self.end.0.saturating_add(min_len));
                if start >= earliest {
                    (start, end)
                } else if end >= earliest {
                    (self.end, end)
                } else {
                    (self.end, next_end)
                }
            }
            Span::Tiles { len } => {
                let start = self.start.0 + (now.0 - self.start.0) / len * len;
                (Millis(start), Millis(start + len))
            }
            Span::Session { .. } => (NOT_BEGUN, NOT_BEGUN),
            Span::Lifetime => (self.start, self.end),
        };
    }

    fn keep(&mut self) {
        let past = self.past.get_or_insert_default();
        if past.len() == PAST_KEPT {
            past.remove(0);
        }
        past.push(Past { start: self.start, end: self.end, used: self.used, held: self.held });
    }

    /// The window that a take at `now` falls into; `None` when a take of 0
    /// would open none.
    pub fn current(&self, span: Span) -> Option<(Millis, Millis)> {
        match span {
            _ if self.begun() => Some((self.start, self.end)),
            Span::Calendar { start, end, .. } => Some((start, end)),
            Span::Lifetime => Some((Millis(0), Millis::MAX)),
            Span::Tiles { .. } | Span::Session { .. } => None,
        }
    }

    /// What is gone of the running window.
    pub fn filling(&self) -> Filling {
        Filling { used: self.used, held: self.held }
    }

    /// What is gone of the window that began at `start`.
    pub fn filling_of(&self, start: Millis) -> Option<Filling> {
        if self.begun() && self.start == start {
            return Some(self.filling());
        }
        let past = self.past.as_deref()?.iter().find(|past| past.start == start)?;
        Some(Filling { used: past.used, held: past.held })
    }

    /// Takes from the running window, opening it if it has not begun.
    /// Returns the window, `None` when an empty take opened none.
    pub fn take(&mut self, amount: u64, is_held: bool, span: Span, now: Millis) -> Option<(Millis, Millis)> {
        if amount > 0 && !self.begun() {
            (self.start, self.end) = Self::opened_at(span, now);
        }
        let gone = if is_held { &mut self.held } else { &mut self.used };
        *gone = add_saturating(*gone, amount);
        self.current(span)
    }

    fn opened_at(span: Span, at: Millis) -> (Millis, Millis) {
        match span {
            Span::Calendar { start, end, .. } => (start, end),
            Span::Tiles { len } | Span::Session { len } => (at, at.plus_ms(len)),
            Span::Lifetime => (Millis(0), Millis::MAX),
        }
    }

    /// Takes more from the window of a receipt, wherever it is by now.
    pub fn take_in(&mut self, window: (Millis, Millis), amount: u64, is_held: bool, now: Millis) {
        self.adopt(window, amount, now);
        self.change(window.0, |filling| {
            let gone = if is_held { &mut filling.held } else { &mut filling.used };
            *gone = add_saturating(*gone, amount);
        });
    }

    /// Moves `reserved` (held, or used up at once) to `actual` in the window
    /// of the receipt; in an ended window only the ledger cares.
    pub fn settle(&mut self, window: (Millis, Millis), reserved: Reserved, actual: u64, now: Millis) {
        self.adopt(window, actual, now);
        self.change(window.0, |filling| {
            match reserved {
                Reserved::Held(amount) => filling.held = filling.held.saturating_sub(amount),
                Reserved::Used(amount) => filling.used = filling.used.saturating_sub(amount),
            }
            filling.used = add_saturating(filling.used, actual);
        });
    }

    /// An empty take of a window that had not begun is settled with more:
    /// its admission becomes the first take. Returns the window it fell into.
    pub fn settle_first(
        &mut self,
        admitted: Millis,
        actual: u64,
        span: Span,
        now: Millis,
    ) -> Option<(Millis, Millis)> {
        if actual == 0 {
            return None;
        }
        let len = match span {
            Span::Tiles { len } | Span::Session { len } => len,
            Span::Calendar { .. } | Span::Lifetime => return self.take(actual, false, span, now),
        };
        let window = match span {
            // The grid of tiles reaches back from the block begun since.
            Span::Tiles { .. } if self.begun() => {
                let start = self.start.0 + (admitted.0 - self.start.0).div_euclid(len) * len;
                (Millis(start), Millis(start + len))
            }
            // Joins the session begun since while its own would still run.
            Span::Session { .. } if self.begun() && self.start < admitted.plus_ms(len) => {
                (self.start, self.end)
            }
            _ => (admitted, admitted.plus_ms(len)),
        };
        if !self.begun() {
            (self.start, self.end) = window;
            (self.used, self.held) = (0, 0);
            self.roll(span, now, false);
        }
        self.change(window.0, |filling| filling.used = add_saturating(filling.used, actual));
        Some(window)
    }

    /// Books use that happened at `at`, not later than `now`. What belongs to
    /// a window that is over leaves the running one alone.
    pub fn use_at(&mut self, amount: u64, span: Span, at: Millis, now: Millis) -> Option<(Millis, Millis)> {
        match span {
            Span::Calendar { .. } => {
                let bounds = self.current(span)?;
                if at >= bounds.0 {
                    return self.take(amount, false, span, now);
                }
                let past =
                    self.past.as_deref_mut()?.iter_mut().find(|past| past.start <= at && at < past.end)?;
                past.used = add_saturating(past.used, amount);
                Some((past.start, past.end))
            }
            Span::Lifetime => self.take(amount, false, span, now),
            Span::Tiles { .. } | Span::Session { .. } => self.settle_first(at, amount, span, now),
        }
    }

    /// A window nothing was taken from yet begins with the receipt's borders.
    fn adopt(&mut self, window: (Millis, Millis), amount: u64, now: Millis) {
        if amount > 0 && !self.begun() && now < window.1 {
            (self.start, self.end) = window;
        }
    }

    fn change(&mut self, start: Millis, change: impl FnOnce(&mut Filling)) {
        let (used, held) = if self.begun() && self.start == start {
            (&mut self.used, &mut self.held)
        } else {
            let past =
                self.past.as_deref_mut().and_then(|past| past.iter_mut().find(|past| past.start == start));
            match past {
                Some(past) => (&mut past.used, &mut past.held),
                None => return,
            }
        };
        let mut filling = Filling { used: *used, held: *held };
        change(&mut filling);
        (*used, *held) = (filling.used, filling.held);
    }

    pub fn standing(&self, limit: u64, granted: u64, span: Span) -> Standing {
        let whole = add_saturating(limit, granted);
        let taken = u128::from(self.used) + u128::from(self.held);
        Standing::Window {
            limit,
            granted,
            used: self.used,
            held: self.held,
            remaining: u128::from(whole).saturating_sub(taken) as u64,
            over_by: taken.saturating_sub(u128::from(whole)).min(u128::from(MAX_AMOUNT)) as u64,
            window: self.current(span).filter(|(_, end)| *end != Millis::MAX),
        }
    }
}

/// How a reservation stands in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserved {
    Held(u64),
    Used(u64),
}

/// Calls in flight. The ids are in the account's open holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slots {
    in_use: u64,
}

impl Slots {
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
}

impl Standing {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Bucket { .. } => "bucket",
            Self::Window { .. } => "window",
            Self::Slots { .. } => "slots",
        }
    }

    pub fn remaining(&self) -> u64 {
        match self {
            Self::Bucket { remaining, .. }
            | Self::Window { remaining, .. }
            | Self::Slots { remaining, .. } => *remaining,
        }
    }

    /// The limit's own figure: capacity, limit or slots.
    pub fn limit(&self) -> u64 {
        match self {
            Self::Bucket { capacity: limit, .. } | Self::Window { limit, .. } | Self::Slots { limit, .. } => {
                *limit
            }
        }
    }

    /// More is gone than the limit gives.
    pub fn is_over(&self) -> bool {
        match self {
            Self::Bucket { in_debt, .. } => *in_debt,
            Self::Window { over_by, .. } => *over_by > 0,
            Self::Slots { limit, in_use, .. } => in_use > limit,
        }
    }
}
