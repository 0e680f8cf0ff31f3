//! The lines before the pools, of an engine in this process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use parking_lot::Mutex;

use super::{LineStep, Stood, Take, scopes};
use crate::domain::account::Account;
use crate::domain::charge::AccountKey;
use crate::domain::line::{Ahead, Line};
use crate::domain::plan::Scope;
use crate::domain::step::{self, Verdict};
use crate::domain::taking::Taking;
use crate::domain::time::Millis;

/// Who waits for which pool. They outlive whatever happens to the accounts.
#[derive(Default)]
pub(super) struct Lines {
    /// How many lines there are: while there is none, nobody looks further.
    count: AtomicUsize,
    lines: Mutex<HashMap<AccountKey, Line>>,
}

/// All nodes are this one, and it is there.
const REAL: Millis = Millis(0);

impl Lines {
    /// What a check finds before it.
    pub fn ahead(&self, take: &Take, now: Millis) -> Ahead {
        let Some((place, pool)) = take.place.as_ref().zip(take.pool()) else { return Ahead::default() };
        if self.count.load(SeqCst) == 0 || take.ask.taking != Taking::Enforced {
            return Ahead::default();
        }
        self.lines.lock().get(pool).map_or(Ahead::default(), |line| line.ahead(place, now, REAL))
    }

    /// Whoever is admitted stands in no line any more.
    pub fn admitted(&self, take: &Take) {
        if let Some((place, pool)) = take.place.as_ref().zip(take.pool())
            && place.waits()
        {
            self.step(pool, &LineStep::Leave(place.turn));
        }
    }

    pub fn step(&self, pool: &AccountKey, step: &LineStep) -> Stood {
        let mut lines = self.lines.lock();
        let line = lines.entry(pool.clone()).or_default();
        let (mut stands, mut of_node) = (true, 0);
        match step {
            LineStep::Enter { waiter, most } => stands = line.enter(*waiter, *most, REAL),
            LineStep::Leave(turn) => line.leave(*turn),
            LineStep::Keep { node } => {
                line.keep(*node, REAL);
                of_node = line.of_node(*node);
            }
        }
        if line.is_empty() {
            lines.remove(pool);
        }
        self.count.store(lines.len(), SeqCst);
        Stood { stands, of_node }
    }
}

/// A verdict as it is behind those who go first, and the wait for the pool at
/// best. Neither is worth the work where nobody waits, the caller included.
pub(crate) fn behind(
    take: &Take,
    verdict: Verdict,
    accounts: &[&Account],
    ahead: &Ahead,
    now: Millis,
) -> (Verdict, u64) {
    let is_alone = *ahead == Ahead::default() && !take.place.is_some_and(|place| place.waits());
    match is_alone {
        true => (verdict, 0),
        false => step::behind(verdict, accounts, &scopes(&take.accounts), &take.ask, ahead, now),
    }
}

impl Take {
    /// The pool that it takes from.
    pub(crate) fn pool(&self) -> Option<&AccountKey> {
        self.accounts.iter().find(|key| key.scope == Scope::Pool)
    }
}
