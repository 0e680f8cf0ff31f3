//! Waits told to callers whom a shared pool refused together.
//!
//! All of them would come back at the same moment and all but one be refused
//! again. So each is told the moment at which there will be room for it after
//! those told before. A promise is advice: it takes nothing, decides nothing
//! and is forgotten with the process.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::domain::account::Account;
use crate::domain::cell::UNIT;
use crate::domain::charge::{CellId, Charge, Figures};
use crate::domain::decision::Remedy;
use crate::domain::step::{self, Shortfall};
use crate::domain::time::Millis;

/// Callers remembered per pool; those beyond are told the last moment.
const REMEMBERED: usize = 4096;

#[derive(Default)]
pub(super) struct Promises(Vec<Promise>);

struct Promise {
    cell: CellId,
    user: Arc<str>,
    amount: u64,
    at: Millis,
}

impl Promises {
    /// Moves the waits of `shortfalls` in buckets and rolling limits of account
    /// `pool` behind those promised before. A caller who asks again keeps its
    /// place.
    pub fn spread(
        &mut self,
        pool: u8,
        account: &Account,
        user: &Arc<str>,
        charges: &[Charge],
        shortfalls: &mut SmallVec<[Shortfall; 4]>,
        now: Millis,
    ) {
        self.0.retain(|promise| promise.at > now);
        for short in shortfalls {
            let charge = &charges[short.charge];
            let Remedy::Wait { retry_after_ms } = &mut short.remedy else { continue };
            if charge.account != pool {
                continue;
            }
            let (alone, amount) = (*retry_after_ms, short.requested);
            let told = match charge.figures {
                Figures::Bucket { refill, .. } => {
                    let time_for = |before: u64| before.saturating_mul(UNIT as u64).div_ceil(refill.max(1));
                    self.place(charge.cell, user, amount, alone, now, |before| {
                        alone.saturating_add(time_for(before))
                    })
                }
                Figures::Rolling { limit, window_ms } => {
                    let window = window_ms.unsigned_abs();
                    // Whole windows are as good as empty ones; of the rest it is known what leaves when.
                    self.place(charge.cell, user, amount, alone, now, |before| {
                        let (turns, rest) = (before / limit.max(1), before % limit.max(1));
                        let wait =
                            step::wait_for(account, charges, short.charge, amount.saturating_add(rest), now);
                        let wait = wait.unwrap_or_else(|| alone.saturating_add(window));
                        wait.max(alone).saturating_add(turns.saturating_mul(window))
                    })
                }
                Figures::Window { .. } | Figures::Slots { .. } | Figures::Kept => continue,
            };
            *retry_after_ms = told;
        }
    }

    /// The wait of one caller: no earlier than `alone`, the wait if nobody
    /// else was there. `behind` is the wait behind an amount promised before.
    fn place(
        &mut self,
        cell: CellId,
        user: &Arc<str>,
        amount: u64,
        alone: u64,
        now: Millis,
        behind: impl FnOnce(u64) -> u64,
    ) -> u64 {
        let mine = |promise: &&Promise| promise.cell == cell && promise.user == *user;
        if let Some(known) = self.0.iter().find(mine) {
            return alone.max((known.at.0 - now.0) as u64);
        }
        let before: u64 =
            self.0.iter().filter(|promise| promise.cell == cell).map(|promise| promise.amount).sum();
        let wait = if before == 0 { alone } else { behind(before) };
        if self.0.len() < REMEMBERED {
            let at = now.plus_ms(i64::try_from(wait).unwrap_or(i64::MAX));
            self.0.push(Promise { cell, user: Arc::clone(user), amount, at });
        }
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(promises: &mut Promises, user: &str, now: i64) -> u64 {
        // Ten tokens at 600 a minute: one second a caller.
        promises.0.retain(|promise| promise.at > Millis(now));
        promises.place(CellId(1), &user.into(), 10, 1_000, Millis(now), |before| 1_000 + before * 100)
    }

    #[test]
    fn callers_refused_together_are_told_successive_moments() {
        let mut promises = Promises::default();
        assert_eq!(place(&mut promises, "a", 0), 1_000);
        assert_eq!(place(&mut promises, "b", 0), 2_000);
        assert_eq!(place(&mut promises, "c", 0), 3_000);
        assert_eq!(place(&mut promises, "b", 500), 1_500, "asking again keeps the place");
    }

    #[test]
    fn a_promise_is_over_when_its_moment_has_come() {
        let mut promises = Promises::default();
        place(&mut promises, "a", 0);
        assert_eq!(place(&mut promises, "b", 5_000), 1_000);
    }
}
