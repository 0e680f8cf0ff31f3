//! Who is active: users with an admitted check within the same five minutes.
//!
//! Five minutes, since whoever draws what a plan sustains calls every other
//! minute, and few who have stopped for longer still count. Each node gathers
//! digests of the users that it sees and adds them to the ledger about once a
//! second; there each user counts once, whichever nodes saw them. The digests
//! need the server's secret, and are gone after eight days.

use std::collections::HashMap;
use std::ops::Range;

use ahash::RandomState;
use parking_lot::Mutex;

use crate::domain::capacity::Headcount;
use crate::domain::charge::TenantRef;
use crate::domain::ids::Name;
use crate::domain::time::Millis;
use crate::ledger::ActiveUsers;

const SLOT_MS: i64 = 300_000;
/// The slots of seven days.
const WEEK: i64 = 7 * 288;
/// Parts that are locked by themselves.
const SHARDS: usize = 16;
/// Crowds that nobody joined for so many rounds leave memory.
const IDLE_ROUNDS: u32 = 600;

/// The users that were seen and are not on record yet.
pub(super) struct Actives {
    shards: [Mutex<Crowds>; SHARDS],
}

/// By tenant and plan.
type Crowds = HashMap<(TenantRef, Name), Crowd, RandomState>;

#[derive(Default)]
struct Crowd {
    slot: i64,
    /// Who needs not be told of again.
    seen: Headcount,
    fresh: Vec<u64>,
    idle: u32,
}

impl Default for Actives {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl Actives {
    /// A check of a user of the plan was admitted. Of users who come after the
    /// next slot has begun and before the flush, the slot before knows nothing.
    pub fn saw(&self, tenant: TenantRef, plan: &Name, digest: u64, now: Millis) {
        let slot = now.0.div_euclid(SLOT_MS);
        let mut crowds = self.shards[digest as usize % SHARDS].lock();
        let key = (tenant, plan.clone());
        let crowd = crowds.entry(key).or_default();
        if crowd.slot != slot {
            *crowd = Crowd { slot, ..Crowd::default() };
        }
        if crowd.seen.add(digest) {
            crowd.fresh.push(digest);
            crowd.idle = 0;
        }
    }

    /// Takes out what is not on record yet.
    pub fn take(&self) -> Vec<ActiveUsers> {
        let mut taken = Vec::new();
        for shard in &self.shards {
            shard.lock().retain(|(tenant, plan), crowd| {
                let digests = std::mem::take(&mut crowd.fresh);
                crowd.idle += 1;
                if !digests.is_empty() {
                    let (tenant, plan) = (*tenant, plan.clone());
                    taken.push(ActiveUsers { tenant, slot: crowd.slot, plan, digests });
                }
                crowd.idle < IDLE_ROUNDS
            });
        }
        taken
    }
}

/// The slots of the seven days until now, the running one included.
pub(in crate::service) fn last_week(now: Millis) -> Range<i64> {
    let slot = now.0.div_euclid(SLOT_MS);
    slot + 1 - WEEK..slot + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_told_of_once_a_slot_and_plan() {
        let (actives, tenant) = (Actives::default(), TenantRef(1));
        let (free, pro) = (Name::parse("free").unwrap(), Name::parse("pro").unwrap());
        let told = || actives.take().iter().map(|crowd| crowd.digests.len()).sum::<usize>();
        for digest in [1, 2, 1, 17] {
            actives.saw(tenant, &free, digest, Millis(0));
        }
        assert_eq!((told(), told()), (3, 0));
        actives.saw(tenant, &free, 1, Millis(SLOT_MS - 1));
        assert_eq!(told(), 0);
        actives.saw(tenant, &pro, 1, Millis(SLOT_MS - 1));
        actives.saw(tenant, &free, 1, Millis(SLOT_MS));
        assert_eq!(told(), 2);
    }
}
