//! The three kinds of count, each kept in the plainest way that CONTRACT 2 allows.
//!
//! A bucket is kept as its deficit (capacity less level): then a change of capacity needs no
//! arithmetic at all, since a plan change keeps the deficit. The unit is 1/60,000 of a token,
//! so that R a minute are R units a millisecond.

use std::collections::BTreeMap;

use super::calendar::Ms;
use super::sheet::{DivCeil, Kind, Limit};
use super::window::{Rule, Window};

pub const UNIT: i128 = 60_000;
/// A bucket's level never sinks below this many tokens under zero.
const DEBT_MAX: i128 = 50_000_000_000;

pub type HoldNo = usize;

#[derive(Clone, Debug, Default)]
pub struct Bucket {
    /// Capacity less level, in units.
    pub deficit: i128,
    pub at: Ms,
    /// The refill the bucket last ran with, a minute.
    pub refill: i128,
    /// Reserved tokens and the end of the lease, by hold.
    pub held: BTreeMap<HoldNo, (i128, Ms)>,
}

impl Bucket {
    pub fn held_tokens(&self) -> i128 {
        self.held.values().map(|(n, _)| n).sum()
    }

    pub fn floor_tokens(&self, capacity: i128) -> i128 {
        (capacity * UNIT - self.deficit).div_euclid(UNIT)
    }

    /// Lets the time pass, one lease end after the other.
    pub fn advance(&mut self, to: Ms) {
        while let Some(end) = self.next_lease_end().filter(|end| *end <= to) {
            self.refill_until(end);
            self.held.retain(|_, (_, e)| *e > end);
        }
        self.refill_until(to);
    }

    fn next_lease_end(&self) -> Option<Ms> {
        self.held.values().map(|(_, end)| *end).min()
    }

    fn refill_until(&mut self, to: Ms) {
        if to <= self.at {
            return;
        }
        let refilled = self.deficit - self.refill * i128::from(to - self.at);
        self.deficit = refilled.max(self.held_tokens() * UNIT).min(self.deficit);
        self.at = to;
    }

    /// The first instant at which the level reaches `n`, if nothing else happens than changes
    /// of figures that are known to come: when, capacity, refill. If those leave no room for it,
    /// by the figures of now.
    pub fn ready_at(
        &self,
        (capacity, refill): (i128, i128),
        to_come: &[(Ms, i128, i128)],
        n: i128,
    ) -> Option<Ms> {
        let by_all = self.ready_by((capacity, refill), to_come, n);
        by_all.or_else(|| self.ready_by((capacity, refill), &[], n))
    }

    fn ready_by(&self, figures: (i128, i128), to_come: &[(Ms, i128, i128)], n: i128) -> Option<Ms> {
        let (mut capacity, mut refill) = figures;
        let mut to_come = to_come.iter();
        let mut change = to_come.next();
        let mut later = self.clone();
        later.refill = refill;
        loop {
            let target = (capacity - n) * UNIT;
            if later.deficit <= target {
                return Some(later.at);
            }
            let end = later.next_lease_end();
            if target >= later.held_tokens() * UNIT && refill > 0 {
                let wait = (later.deficit - target).div_ceil_by(refill);
                let there = later.at + i64::try_from(wait).unwrap_or(i64::MAX / 4);
                if end.is_none_or(|end| there <= end) && change.is_none_or(|change| there < change.0) {
                    return Some(there);
                }
            }
            match change {
                Some(new) if end.is_none_or(|end| new.0 <= end) => {
                    later.advance(new.0);
                    (capacity, refill) = (new.1, new.2);
                    later.refill = refill;
                    change = to_come.next();
                }
                _ => later.advance(end?),
            }
        }
    }

    /// The first instant at which the level is as high as the holds let it be: once with the
    /// holds of now standing for good, once with leases that end.
    pub fn full_at(&self, refill: i128) -> [Option<Ms>; 2] {
        let gap = self.deficit - self.held_tokens() * UNIT;
        if gap <= 0 {
            return [Some(self.at); 2];
        }
        let standing =
            (refill > 0).then(|| self.at + i64::try_from(gap.div_ceil_by(refill)).unwrap_or(i64::MAX / 4));
        let mut later = self.clone();
        later.refill = refill;
        let ending = loop {
            let gap = later.deficit - later.held_tokens() * UNIT;
            let end = later.next_lease_end();
            if refill > 0 {
                let there = later.at + i64::try_from(gap.div_ceil_by(refill)).unwrap_or(i64::MAX / 4);
                if end.is_none_or(|end| there < end) {
                    break Some(there);
                }
            }
            match end {
                Some(end) => later.advance(end),
                None => break None,
            }
        };
        [standing, ending]
    }

    pub fn take(&mut self, n: i128, hold: Option<(HoldNo, Ms)>, capacity: i128) {
        self.deficit += n * UNIT;
        if let Some((hold, lease_end)) = hold.filter(|_| n > 0) {
            self.held.entry(hold).or_insert((0, lease_end)).0 += n;
        }
        self.bound(capacity);
    }

    /// A hold is finished: its reservation comes off, what it really used stays on.
    pub fn correct(&mut self, hold: HoldNo, reserved: i128, actual: i128, capacity: i128) {
        self.held.remove(&hold);
        self.deficit += (actual - reserved) * UNIT;
        self.deficit = self.deficit.max(self.held_tokens() * UNIT);
        self.bound(capacity);
    }

    fn bound(&mut self, capacity: i128) {
        self.deficit = self.deficit.min((capacity + DEBT_MAX) * UNIT);
    }
}

#[derive(Clone, Debug)]
pub enum Cell {
    Bucket(Bucket),
    Window(Window),
    /// Lease ends by hold.
    Slots(BTreeMap<HoldNo, Ms>),
}

impl Cell {
    /// A cell as it is before anything was ever taken.
    pub fn fresh(limit: &Limit, rule: Rule, now: Ms) -> Self {
        match limit.kind {
            Kind::Bucket { refill, .. } => Self::Bucket(Bucket { at: now, refill, ..Bucket::default() }),
            Kind::Window { period, .. } => Self::Window(Window::new(period, rule)),
            Kind::Slots { .. } => Self::Slots(BTreeMap::new()),
        }
    }

    pub fn advance(&mut self, now: Ms) {
        match self {
            Self::Bucket(bucket) => bucket.advance(now),
            Self::Window(_) => {}
            Self::Slots(leases) => leases.retain(|_, end| *end > now),
        }
    }
}
