//! A cell as one charge sees it at one moment.

use smallvec::SmallVec;

use super::{Projections, Remedy, Shown, Standings};
use crate::domain::account::{Account, Projection};
use crate::domain::cell::{Bucket, Cell, Rolling, Slots, Standing, Window};
use crate::domain::charge::{Charge, FigureStep, Figures, Span};
use crate::domain::quantity::add_saturating;
use crate::domain::time::Millis;

/// What a charge finds in its cell.
pub(super) struct Seen<'a> {
    pub cell: &'a Cell,
    charge: &'a Charge,
    /// What grants add to its limit.
    granted: u64,
    now: Millis,
}

impl<'a> Seen<'a> {
    pub fn new(projection: &'a Projection, place: usize, charge: &'a Charge, now: Millis) -> Self {
        Self { cell: projection.cell(place), charge, granted: projection.granted(charge), now }
    }

    /// What is left in the cell, by the figures of the charge.
    pub fn stock(&self) -> u64 {
        match (self.cell, self.charge.figures) {
            (Cell::Bucket(bucket), Figures::Bucket { capacity, refill, .. }) => {
                bucket.seen_with(capacity, refill, self.now).available()
            }
            (Cell::Bucket(bucket), _) => bucket.available(),
            (Cell::Window(window), Figures::Window { .. }) => {
                self.ceiling().saturating_sub(window.filling().taken())
            }
            (Cell::Slots(slots), Figures::Slots { limit }) => limit.saturating_sub(slots.in_use()),
            (Cell::Rolling(rolling), Figures::Rolling { limit, .. }) => limit.saturating_sub(rolling.used()),
            _ => u64::MAX,
        }
    }

    /// What was left of the window that began at `start`.
    pub fn stock_of(&self, start: Millis) -> u64 {
        let (Cell::Window(window), Figures::Window { limit, .. }) = (self.cell, self.charge.figures) else {
            return self.stock();
        };
        let taken = window.filling_of(start).map_or(0, |filling| filling.taken());
        let is_running = window.current_start() == Some(start);
        // Grants have paid for a window that is over: the plan's limit alone
        // counts there.
        let whole = if is_running { self.ceiling() } else { limit };
        whole.saturating_sub(taken)
    }

    /// The largest amount the cell would give now.
    pub fn room(&self) -> u64 {
        self.stock().saturating_sub(self.charge.keep)
    }

    /// The most the limit can ever give at once, as things are.
    fn ceiling(&self) -> u64 {
        add_saturating(self.charge.figures.ceiling(), self.granted)
    }

    /// The most one call can ever be given.
    pub fn most(&self) -> u64 {
        match self.charge.figures {
            Figures::Kept => u64::MAX,
            _ => self.ceiling().saturating_sub(self.charge.keep),
        }
    }

    pub fn is_spent(&self) -> bool {
        matches!(self.cell, Cell::Window(_)) && self.room() == 0
    }

    /// The remedy if it does not fit: `needed` now, `whole` for the call in
    /// all. `account` is the cell's, at `place`.
    pub fn remedy(&self, account: &Account, place: usize, whole: u64, needed: u64) -> Remedy {
        let Self { charge, now, .. } = *self;
        if whole > self.most() && self.ceiling() > 0 {
            return Remedy::Never { max: self.most() };
        }
        let never = Remedy::Reset { resets_at: None };
        let wait = |ms: Option<u64>| ms.map_or(never, |retry_after_ms| Remedy::Wait { retry_after_ms });
        match (self.cell, charge.figures) {
            (Cell::Bucket(bucket), Figures::Bucket { capacity, refill, .. }) if capacity > 0 => {
                let bucket = bucket.seen_with(capacity, refill, now);
                let target = needed.saturating_add(charge.keep);
                let after = |changes: &[FigureStep]| {
                    bucket.wait_ms(target, account.lease_ends(place, now), changes, now)
                };
                let to_come = charge.to_come.as_deref().unwrap_or_default();
                // Smaller figures to come may leave no room for it: by those of
                // now there is.
                wait(after(to_come).or_else(|| after(&[])))
            }
            (Cell::Window(window), Figures::Window { span, .. }) => {
                let end = window.current(span).map(|(_, end)| end);
                Remedy::Reset { resets_at: end.filter(|end| *end != Millis::MAX) }
            }
            (Cell::Slots(slots), Figures::Slots { limit }) if limit > 0 => {
                let to_free = (slots.in_use() + needed + charge.keep).saturating_sub(limit);
                let end = account.lease_ends(place, now).nth((to_free as usize).saturating_sub(1));
                wait(end.map(|(end, _)| (end.0 - now.0) as u64))
            }
            (Cell::Rolling(rolling), Figures::Rolling { limit, .. }) if limit > 0 => {
                wait(rolling.wait_ms(needed.saturating_add(charge.keep), limit, now))
            }
            _ => never,
        }
    }

    /// The wait for `needed` if all that is held came back now.
    pub fn at_best(&self, needed: u64) -> u64 {
        let needed = needed.saturating_add(self.charge.keep);
        match (self.cell, self.charge.figures) {
            (Cell::Bucket(bucket), Figures::Bucket { capacity, refill, .. }) => {
                bucket.seen_with(capacity, refill, self.now).at_best_ms(needed)
            }
            (Cell::Window(window), Figures::Window { span, .. }) if window.filling().held == 0 => {
                let end = window.current(span).map_or(Millis::MAX, |(_, end)| end);
                (end.0 - self.now.0).max(0) as u64
            }
            (Cell::Rolling(rolling), Figures::Rolling { limit, .. }) => {
                rolling.wait_ms(needed, limit, self.now).unwrap_or(u64::MAX)
            }
            _ => 0,
        }
    }

    /// How long the limit needs to let `amount` through, once it is used up.
    pub fn time_for(&self, amount: u64) -> u64 {
        self.charge.figures.time_for(amount)
    }

    fn standing(&self) -> Standing {
        match (self.cell, self.charge.figures) {
            (Cell::Bucket(bucket), Figures::Bucket { capacity, refill, .. }) => {
                bucket.seen_with(capacity, refill, self.now).standing(self.now)
            }
            (Cell::Bucket(bucket), _) => bucket.standing(self.now),
            (Cell::Window(window), Figures::Window { limit, span, .. }) => {
                window.standing(limit, self.granted, span)
            }
            (Cell::Window(window), _) => window.standing(0, 0, Span::Lifetime),
            (Cell::Slots(slots), Figures::Slots { limit }) => slots.standing(limit),
            (Cell::Slots(slots), _) => slots.standing(slots.in_use()),
            (Cell::Rolling(rolling), Figures::Rolling { limit, .. }) => rolling.standing(limit),
            (Cell::Rolling(rolling), _) => rolling.standing(rolling.used()),
        }
    }
}

/// The limits of all charges, in their order.
pub(super) fn standings(projections: &Projections, charges: &[Charge], now: Millis) -> Standings {
    let shown = charges.iter().enumerate().map(|(index, charge)| {
        let projection = &projections[usize::from(charge.account)];
        match projection.place(index) {
            Some(place) => Shown {
                standing: Seen::new(projection, place, charge, now).standing(),
                would_refuse: projection.would_refuse(place),
            },
            None => {
                let standing = untouched(charge.figures, projection.granted(charge), now);
                Shown { standing, would_refuse: 0 }
            }
        }
    });
    shown.collect::<SmallVec<_>>()
}

fn untouched(figures: Figures, granted: u64, now: Millis) -> Standing {
    match figures {
        Figures::Bucket { capacity, refill, .. } => Bucket::full(capacity, refill, now).standing(now),
        Figures::Window { limit, span, .. } => Window::default().standing(limit, granted, span),
        Figures::Slots { limit } => Slots::default().standing(limit),
        Figures::Rolling { limit, window_ms } => Rolling::new(limit, window_ms).standing(limit),
        Figures::Kept => Slots::default().standing(0),
    }
}
