//! Whose turn comes when after a pause.
//!
//! All who were told to wait would come back at the moment when it ends, and
//! only some would find room. So each is told the moment at which there will be
//! room for it after those told before. As with other waits for a pool this is
//! advice: it takes nothing and decides nothing.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::domain::cell::UNIT;
use crate::domain::charge::CellId;
use crate::domain::time::Millis;

/// Callers remembered; those beyond are told the last moment.
const REMEMBERED: usize = 4096;

/// What a call wants of one bucket of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want {
    pub cell: CellId,
    pub amount: u64,
    /// What will be in it when the pause ends.
    pub stock: u64,
    pub refill: u64,
}

#[derive(Debug, Default)]
pub struct Turns {
    until: Millis,
    told: Vec<Turn>,
}

#[derive(Debug)]
struct Turn {
    user: Arc<str>,
    amounts: SmallVec<[(CellId, u64); 4]>,
    at: Millis,
}

impl Turns {
    /// When a call may come back that waits for a pause to end at `until`. A
    /// caller who asks again keeps the turn.
    pub fn turn(&mut self, user: &Arc<str>, wants: &[Want], until: Millis, now: Millis) -> Millis {
        if self.until != until {
            // Another pause: nobody was told of this one.
            *self = Self { until, told: Vec::new() };
        }
        self.told.retain(|turn| turn.at > now);
        if let Some(known) = self.told.iter().find(|turn| turn.user == *user) {
            return known.at.max(until);
        }
        let behind = wants.iter().map(|want| self.behind(want)).max().unwrap_or(0);
        let at = until.plus_ms(i64::try_from(behind).unwrap_or(i64::MAX));
        if self.told.len() < REMEMBERED {
            let amounts = wants.iter().map(|want| (want.cell, want.amount)).collect();
            self.told.push(Turn { user: Arc::clone(user), amounts, at });
        }
        at
    }

    /// How long after the pause there is room in one bucket.
    fn behind(&self, want: &Want) -> u64 {
        let told = self.told.iter().flat_map(|turn| &turn.amounts);
        let before: u64 = told.filter(|(cell, _)| *cell == want.cell).map(|(_, amount)| *amount).sum();
        let missing = before.saturating_add(want.amount).saturating_sub(want.stock);
        missing.saturating_mul(UNIT as u64).div_ceil(want.refill.max(1))
    }
}
