//! Looking at what is in memory, changing nothing.

use std::sync::Arc;

use super::memory::MemoryEngine;
use super::{EngineError, Probed, Rest, Step};
use crate::domain::charge::{AccountKey, Charge, TenantRef};
use crate::domain::hold::Hold;
use crate::domain::ids::HoldId;
use crate::domain::step;
use crate::domain::time::Millis;

/// How often a hold is looked for whose account moves meanwhile.
const LOOKS: usize = 4;

impl MemoryEngine {
    /// See [`Engine::probe`].
    pub(super) fn probe_one(
        &self,
        index: usize,
        key: &AccountKey,
        charges: &[Charge],
        now: Millis,
    ) -> Option<Probed> {
        let entry = self.shard(key).lock().get(key).map(|known| Arc::clone(&known.0))?;
        let state = entry.state.lock();
        let now = now.max(state.account.advanced_to());
        let next_lease_end = state.account.next_lease_end(now);
        state
            .loaded
            .then(|| Probed { probes: step::probe(&state.account, index, charges, now), next_lease_end })
    }

    /// See [`Engine::hold`].
    pub(super) fn find_hold(&self, tenant: TenantRef, id: HoldId) -> Option<Arc<Hold>> {
        // Its account may move between the two looks.
        for _ in 0..LOOKS {
            let entry = self.owner_shard(id).lock().get(&id).map(Arc::clone)?;
            if entry.key.tenant != tenant {
                return None;
            }
            let state = entry.state.lock();
            if !state.moved {
                return state.holds.get(id).cloned();
            }
        }
        None
    }

    /// See [`Engine::rest`].
    pub(super) fn rest_now(&self, key: &AccountKey, now: Millis) -> Result<Step<Rest>, EngineError> {
        self.with(std::slice::from_ref(key), now, |_, guards, _| {
            let unfinished = guards[0].holds.iter().any(|hold| !hold.is_finished());
            Ok(Rest { at: guards[0].account.at_rest(), unfinished })
        })
    }
}
