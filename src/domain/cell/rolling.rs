//! The rolling limit: a log of what was taken, in which every span of the
//! window's length counts.

use serde::{Deserialize, Serialize};

use super::Standing;
use crate::domain::quantity::add_saturating;
use crate::domain::time::Millis;

/// What was taken in the last `window_ms`: (t - W, t] counts at t.
///
/// Neighbours are one entry, stamped with the later time, while together they
/// are at most a fiftieth of the limit. So the log stays short, nothing leaves
/// it too early, and at most that much leaves it late.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rolling {
    limit: u64,
    window_ms: i64,
    /// The sum of the log.
    used: u64,
    #[allow(clippy::box_collection, reason = "an account at rest must stay small")]
    log: Option<Box<Vec<Entry>>>,
}

/// Some takes: the last one's time, and what they took together.
pub type Entry = (Millis, u64);

/// Entries kept at most. More are only needed where holds gave things back or
/// took more than the limit allowed.
const ENTRIES_KEPT: usize = 128;
/// What is counted as one is at most a part of the limit.
const PARTS: u64 = 50;

impl Rolling {
    pub fn new(limit: u64, window_ms: i64) -> Self {
        Self { limit, window_ms, used: 0, log: None }
    }

    /// Limit, length of the window and sum, then the log.
    pub fn parts(&self) -> ((u64, i64, u64), &[Entry]) {
        ((self.limit, self.window_ms, self.used), self.log())
    }

    /// What [`parts`](Self::parts) told.
    pub fn from_parts((limit, window_ms, used): (u64, i64, u64), log: Vec<Entry>) -> Self {
        Self { limit, window_ms, used, log: Some(log).filter(|log| !log.is_empty()).map(Box::new) }
    }

    fn log(&self) -> &[Entry] {
        self.log.as_deref().map_or(&[], Vec::as_slice)
    }

    /// From now on the window is so long: its guard may change.
    pub fn follow(&mut self, window_ms: i64) {
        self.window_ms = window_ms;
    }

    /// Drops what has left the window by `now`.
    pub fn advance(&mut self, now: Millis) {
        let left = Millis(now.0.saturating_sub(self.window_ms));
        let Some(log) = &mut self.log else { return };
        let gone = log.iter().take_while(|(at, _)| *at <= left).count();
        let sum = log.drain(..gone).map(|(_, amount)| amount).fold(0, add_saturating);
        self.used = self.used.saturating_sub(sum);
        self.tidy();
    }

    fn tidy(&mut self) {
        if self.log().is_empty() {
            (self.log, self.used) = (None, 0);
        }
    }

    /// What counts now, in a cell that was brought to now.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// So much may be counted although it has left the window.
    pub fn late_at_most(limit: u64) -> u64 {
        limit / PARTS
    }

    /// Takes at `now` by the figures of now. Returns the window of the take.
    pub fn take(&mut self, amount: u64, limit: u64, now: Millis) -> (Millis, Millis) {
        self.limit = limit;
        self.add(amount, now);
        (now, now.plus_ms(self.window_ms))
    }

    fn add(&mut self, amount: u64, now: Millis) {
        if amount == 0 {
            return;
        }
        let most = self.limit / PARTS;
        let log = self.log.get_or_insert_default();
        if log.len() >= ENTRIES_KEPT {
            merge_neighbours(log, most);
        }
        let is_full = log.len() >= ENTRIES_KEPT;
        match log.last_mut() {
            Some((at, sum)) if is_full || *at >= now || add_saturating(*sum, amount) <= most => {
                (*at, *sum) = (now.max(*at), add_saturating(*sum, amount));
            }
            _ => log.push((now, amount)),
        }
        self.used = add_saturating(self.used, amount);
    }

    /// Settles what was taken in `window`: what goes beyond it is taken now, and
    /// nothing comes back, for it was counted then. `releases`: it was never
    /// used, and all of it comes back that is still in the window.
    pub fn settle(
        &mut self,
        window: (Millis, Millis),
        reserved: u64,
        actual: u64,
        releases: bool,
        now: Millis,
    ) {
        self.advance(now);
        if actual > reserved {
            self.add(actual - reserved, now);
        } else if releases && now < window.1 {
            self.give_back(window.0, reserved - actual);
        }
    }

    /// Gives back to the entry that has what was taken at `taken`: the first
    /// that is not older.
    fn give_back(&mut self, taken: Millis, amount: u64) {
        let Some(log) = &mut self.log else { return };
        let mut left = amount;
        for (_, sum) in log.iter_mut().skip_while(|(at, _)| *at < taken) {
            let part = left.min(*sum);
            (*sum, left) = (*sum - part, left - part);
        }
        log.retain(|(_, sum)| *sum > 0);
        self.used = self.used.saturating_sub(amount - left);
        self.tidy();
    }

    /// Milliseconds until `amount` fits under `limit` if nothing else happens;
    /// `None`: never.
    pub fn wait_ms(&self, amount: u64, limit: u64, now: Millis) -> Option<u64> {
        let mut left = self.used;
        let fits = |left: u64| add_saturating(left, amount) <= limit;
        if fits(left) {
            return Some(0);
        }
        for (at, sum) in self.log() {
            left = left.saturating_sub(*sum);
            if fits(left) {
                return Some((at.plus_ms(self.window_ms).0 - now.0).max(0) as u64);
            }
        }
        None
    }

    /// When nothing that was taken counts any more.
    pub fn at_rest(&self) -> Millis {
        self.log().last().map_or(Millis(0), |(at, _)| at.plus_ms(self.window_ms))
    }

    pub fn standing(&self, limit: u64) -> Standing {
        Standing::Rolling { limit, used: self.used, remaining: limit.saturating_sub(self.used) }
    }
}

/// Makes one of neighbours that are `most` at most together.
fn merge_neighbours(log: &mut Vec<Entry>, most: u64) {
    let mut kept = 0;
    for place in 1..log.len() {
        let (at, sum) = log[place];
        if add_saturating(log[kept].1, sum) <= most {
            log[kept] = (at, log[kept].1 + sum);
        } else {
            kept += 1;
            log[kept] = (at, sum);
        }
    }
    log.truncate(kept + 1);
}
