//! The window: a counter with borders.

use serde::{Deserialize, Serialize};

use super::Standing;
use crate::domain::charge::Span;
use crate::domain::quantity::{MAX_AMOUNT, add_saturating};
use crate::domain::time::{Borders, Millis};

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

/// One window in its plain figures; before the first take it begins and ends
/// at `i64::MIN`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub start: Millis,
    pub end: Millis,
    pub used: u64,
    pub held: u64,
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

/// A window that is over, as it stood at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    pub end: Millis,
    /// Used and held.
    pub taken: u64,
}

impl Window {
    /// Everything in it: the running window, then those that ended.
    pub fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        let running = Part { start: self.start, end: self.end, used: self.used, held: self.held };
        let past = self.past.as_deref().into_iter().flatten();
        let past =
            past.map(|past| Part { start: past.start, end: past.end, used: past.used, held: past.held });
        std::iter::once(running).chain(past)
    }

    /// What [`parts`](Self::parts) told.
    pub fn from_parts(running: Part, past: impl Iterator<Item = Part>) -> Self {
        let past =
            past.map(|part| Past { start: part.start, end: part.end, used: part.used, held: part.held });
        let past = Some(past.collect::<Vec<_>>()).filter(|past| !past.is_empty()).map(Box::new);
        Self { start: running.start, end: running.end, used: running.used, held: running.held, past }
    }

    fn begun(&self) -> bool {
        self.end != NOT_BEGUN
    }

    /// Turns the window if it has ended by `now`, and answers how it stood at
    /// its end. `keep_past` while a hold is open in this account.
    pub fn roll(&mut self, span: Span, now: Millis, keep_past: bool) -> Option<Ended> {
        // Nothing else tells later when the last session was.
        let is_session = matches!(span, Span::Session { .. });
        if !keep_past && !is_session {
            self.past = None;
        }
        if !self.begun() || now < self.end {
            return None;
        }
        if keep_past || is_session {
            self.keep();
        }
        let ended = Ended { end: self.end, taken: self.filling().taken() };
        (self.used, self.held) = (0, 0);
        (self.start, self.end) = match span {
            Span::Calendar { start, end, next_end, min_len } => {
                Borders { start, end, next_end }.following(self.end, min_len)
            }
            Span::Tiles { len } => {
                let start = self.start.0 + (now.0 - self.start.0) / len * len;
                (Millis(start), Millis(start + len))
            }
            Span::Session { .. } => (NOT_BEGUN, NOT_BEGUN),
            Span::Lifetime => (self.start, self.end),
        };
        Some(ended)
    }

    /// Keeps the window that ended, if it is not kept already.
    fn keep(&mut self) {
        let past = self.past.get_or_insert_default();
        if past.last().is_some_and(|past| past.start == self.start) {
            return;
        }
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

    /// When the running window began, once it has.
    pub fn current_start(&self) -> Option<Millis> {
        self.begun().then_some(self.start)
    }

    /// When nothing that was taken counts any more; `None`: never.
    pub fn at_rest(&self) -> Option<Millis> {
        match self.filling().taken() {
            0 => Some(Millis(0)),
            _ => Some(self.end).filter(|end| *end < Millis::MAX),
        }
    }

    /// What is gone of the running window.
    pub fn filling(&self) -> Filling {
        Filling { used: self.used, held: self.held }
    }

    /// What is gone of the window that began at `start`.
    pub fn filling_of(&self, start: Millis) -> Option<Filling> {
        let past = self.past.as_deref().and_then(|past| past.iter().find(|past| past.start == start));
        match past {
            Some(past) => Some(Filling { used: past.used, held: past.held }),
            None => (self.begun() && self.start == start).then(|| self.filling()),
        }
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
        self.change(window.0, now, |filling| {
            let gone = if is_held { &mut filling.held } else { &mut filling.used };
            *gone = add_saturating(*gone, amount);
        });
    }

    /// Moves `reserved` (held, or used up at once) to `actual` in the window
    /// of the receipt; in an ended window only the ledger cares.
    pub fn settle(&mut self, window: (Millis, Millis), reserved: Reserved, actual: u64, now: Millis) {
        self.adopt(window, actual, now);
        self.change(window.0, now, |filling| {
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
            // Nothing was taken by its end: nothing for grants to pay.
            self.roll(span, now, false);
        }
        self.change(window.0, now, |filling| filling.used = add_saturating(filling.used, actual));
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
                self.use_in_past(amount, at)
            }
            Span::Lifetime => self.take(amount, false, span, now),
            Span::Tiles { .. } => self.settle_first(at, amount, span, now),
            Span::Session { .. } if self.begun() && at >= self.start => self.take(amount, false, span, now),
            Span::Session { .. } if self.begun() || self.last_ended().is_some_and(|end| at < end) => {
                self.use_in_past(amount, at)
            }
            Span::Session { .. } => self.settle_first(at, amount, span, now),
        }
    }

    fn last_ended(&self) -> Option<Millis> {
        self.past.as_deref()?.last().map(|past| past.end)
    }

    fn use_in_past(&mut self, amount: u64, at: Millis) -> Option<(Millis, Millis)> {
        let past = self.past.as_deref_mut()?.iter_mut().find(|past| past.start <= at && at < past.end)?;
        past.used = add_saturating(past.used, amount);
        Some((past.start, past.end))
    }

    /// A window nothing was taken from yet begins with the receipt's borders.
    fn adopt(&mut self, window: (Millis, Millis), amount: u64, now: Millis) {
        if amount > 0 && !self.begun() && now < window.1 {
            (self.start, self.end) = window;
        }
    }

    fn change(&mut self, start: Millis, now: Millis, change: impl FnOnce(&mut Filling)) {
        if self.begun() && self.start == start {
            if now < self.end {
                let mut filling = self.filling();
                change(&mut filling);
                (self.used, self.held) = (filling.used, filling.held);
                return;
            }
            // It is over, and nothing turned it yet because its limit is gone:
            // how it stood at its end is what its grants will pay for.
            self.keep();
        }
        let past = self.past.as_deref_mut().and_then(|past| past.iter_mut().find(|past| past.start == start));
        if let Some(past) = past {
            let mut filling = Filling { used: past.used, held: past.held };
            change(&mut filling);
            (past.used, past.held) = (filling.used, filling.held);
        }
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
