//! The token bucket.

use serde::{Deserialize, Serialize};

use super::Standing;
use crate::domain::charge::FigureStep;
use crate::domain::quantity::{MAX_DEBT, add_saturating};
use crate::domain::time::Millis;

/// A bucket counts in units of 1/60,000 token, so that a refill of R tokens a
/// minute is exactly R units a millisecond.
pub const UNIT: i64 = 60_000;

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

    /// Everything in it: capacity, refill, level, held and when it was last
    /// brought to a moment.
    pub fn parts(&self) -> (u64, u64, i64, u64, Millis) {
        (self.capacity, self.refill, self.level, self.held, self.at)
    }

    /// What [`parts`](Self::parts) told.
    pub fn from_parts((capacity, refill, level, held, at): (u64, u64, i64, u64, Millis)) -> Self {
        Self { capacity, refill, level, held, at }
    }

    /// When it was last brought to a moment.
    pub fn at(&self) -> Millis {
        self.at
    }

    fn ceiling(&self) -> i64 {
        (self.capacity as i64 - self.held as i64).saturating_mul(UNIT)
    }

    fn refill_to(&mut self, time: Millis) {
        let elapsed = time.0.saturating_sub(self.at.0);
        if elapsed <= 0 {
            return;
        }
        let room = self.ceiling().saturating_sub(self.level);
        if room > 0 {
            let gained = i128::from(elapsed) * i128::from(self.refill);
            self.level += gained.min(i128::from(room)) as i64;
        }
        self.at = time;
    }

    /// Takes over new figures and keeps the deficit, so that no change of
    /// figures mints or burns a token.
    fn switch(&mut self, to: FigureStep, now: Millis) {
        if (to.most, to.refill) == (self.capacity, self.refill) {
            return;
        }
        self.refill_to(to.since.min(now));
        self.level += (to.most as i64 - self.capacity as i64) * UNIT;
        self.capacity = to.most;
        self.refill = to.refill;
    }

    /// Brings the bucket to `now` through the lease ends since (ascending,
    /// with the amounts they free) and the changes of figures (in order).
    pub fn advance(
        &mut self,
        changes: &[FigureStep],
        ends: impl Iterator<Item = (Millis, u64)>,
        now: Millis,
    ) {
        let mut changes = changes.iter().peekable();
        for (end, amount) in ends {
            while let Some(change) = changes.next_if(|change| change.since <= end) {
                self.switch(*change, now);
            }
            self.end_lease(amount, end);
        }
        changes.for_each(|change| self.switch(*change, now));
        self.refill_to(now);
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
    pub fn settle(&mut self, reserved: u64, actual: u64, frees_hold: bool, now: Millis) {
        self.refill_to(now);
        if frees_hold {
            self.held = self.held.saturating_sub(reserved);
        }
        self.change(i128::from(reserved) - i128::from(actual));
    }

    /// The bucket as a caller with other figures sees it at `now`.
    pub fn seen_with(&self, capacity: u64, refill: u64, now: Millis) -> Self {
        let mut seen = self.clone();
        seen.switch(FigureStep { most: capacity, refill, since: now }, now);
        seen
    }

    fn change(&mut self, tokens: i128) {
        let level = i128::from(self.level) + tokens * i128::from(UNIT);
        let floor = i128::from(-MAX_DEBT * UNIT);
        self.level = level.max(floor).min(i128::from(self.ceiling()).max(floor)) as i64;
    }

    /// Milliseconds until `amount` tokens are there if nothing else happens
    /// than refill, the lease ends to come and the changes of figures to come
    /// (both ascending). `None`: never.
    pub fn wait_ms(
        &self,
        amount: u64,
        ends: impl Iterator<Item = (Millis, u64)>,
        changes: &[FigureStep],
        now: Millis,
    ) -> Option<u64> {
        let target = i64::try_from(amount).ok()?.checked_mul(UNIT)?;
        let mut future = self.clone();
        future.refill_to(now);
        let mut ends = ends.peekable();
        let mut changes = changes.iter().peekable();
        loop {
            let end = ends.peek().map(|(end, _)| *end);
            let change = changes.next_if(|change| end.is_none_or(|end| change.since <= end));
            let Some(next) = change.map(|change| change.since).or(end) else { break };
            // At the instant of a change the new figures hold.
            let by_then = |reached: &Millis| *reached < next || (change.is_none() && *reached == next);
            if let Some(reached) = future.reaches(target).filter(by_then) {
                return Some((reached.0 - now.0).max(0) as u64);
            }
            match (change, ends.next_if(|_| change.is_none())) {
                (Some(change), _) => {
                    future.switch(*change, next);
                    future.refill_to(next);
                }
                (None, Some((end, freed))) => future.end_lease(freed, end),
                (None, None) => break,
            }
        }
        Some((future.reaches(target)?.0 - now.0).max(0) as u64)
    }

    /// Milliseconds until `amount` tokens are there if all that is held came
    /// back at once.
    pub fn at_best_ms(&self, amount: u64) -> u64 {
        let held = i128::from(self.held) * i128::from(UNIT);
        let full = i128::from(self.capacity) * i128::from(UNIT);
        let missing = i128::from(amount) * i128::from(UNIT) - (i128::from(self.level) + held).min(full);
        match (missing > 0, self.refill) {
            (false, _) => 0,
            (true, 0) => u64::MAX,
            (true, refill) => {
                u64::try_from(missing.unsigned_abs().div_ceil(refill.into())).unwrap_or(u64::MAX)
            }
        }
    }

    /// When it is full if nothing else happens than refill and the lease ends
    /// to come (ascending). `None`: never.
    pub fn at_rest(&self, ends: impl Iterator<Item = (Millis, u64)>) -> Option<Millis> {
        let wait = i64::try_from(self.wait_ms(self.capacity, ends, &[], self.at)?).ok()?;
        Some(self.at.plus_ms(wait)).filter(|at| *at < Millis::MAX)
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
        let shown = |at: Option<Millis>| at.map(|at| at.max(now)).filter(|at| *at <= Millis::MAX);
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
