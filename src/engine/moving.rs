//! Moving a user's account to another name.

use std::sync::Arc;

use smallvec::smallvec;

use super::entry::{Guards, Pins, State};
use super::memory::{MemoryEngine, missing};
use super::{Change, EngineError, Moved, Step, Ticket};
use crate::domain::charge::{AccountKey, TenantRef};
use crate::domain::hold::Hold;
use crate::domain::ids::UserId;
use crate::domain::plan::Scope;
use crate::domain::time::Millis;

impl MemoryEngine {
    /// See [`Engine::move_account`].
    pub(super) fn move_now(
        &self,
        tenant: TenantRef,
        from: &UserId,
        to: &UserId,
        now: Millis,
    ) -> Result<Step<Moved>, EngineError> {
        let key = |user: &UserId| AccountKey { tenant, scope: Scope::User, owner: user.shared() };
        let pins = self.pin(&[key(from), key(to)]);
        // Two accounts of one scope: by key, so that two moves never wait for
        // each other.
        let [source, target] = [&pins.0[0], &pins.0[1]];
        let mut guards: Guards<'_> = if source.key < target.key {
            smallvec![source.state.lock(), target.state.lock()]
        } else {
            let target = target.state.lock();
            smallvec![source.state.lock(), target]
        };
        // By its new name the ledger might not know what request ids stand for.
        let lacks = |_, state: &State| !state.loaded || state.has_older();
        if let Some(missing) = missing(&pins, &guards, lacks) {
            return Ok(Step::Missing(missing));
        }
        if guards[0].is_blank() {
            (guards[0].moved, guards[1].moved) = (true, false);
            return Ok(Step::Done(Moved::Done(self.queue_barrier())));
        }
        let counts = |state: &State| {
            let unfinished = state.holds.iter().any(|hold| !hold.is_finished());
            unfinished || state.account.at_rest().is_none_or(|at| at > now)
        };
        if counts(&guards[1]) {
            return Ok(Step::Done(Moved::Occupied));
        }
        let emptied = State { loaded: true, moved: true, ..State::default() };
        let mut state = std::mem::replace(&mut *guards[0], emptied);
        let renamed =
            |hold: &Arc<Hold>| Arc::new(Hold { user: to.clone(), admits_user: false, ..Hold::clone(hold) });
        state.holds = state.holds.iter().map(renamed).collect();
        // Request ids of earlier are remembered beside those that come.
        state.requests.extend(std::mem::take(&mut guards[1].requests));
        state.came = true;
        let moved: Vec<Arc<Hold>> = state.holds.iter().cloned().collect();
        // Those that are finished and not on record yet.
        guards[1].holds.iter().for_each(|hold| state.holds.put(Arc::clone(hold)));
        for hold in &moved {
            self.owner_shard(hold.id).lock().insert(hold.id, Arc::clone(target));
        }
        *guards[1] = state;
        self.record_move(&pins, &mut guards, moved).map(|ticket| Step::Done(Moved::Done(ticket)))
    }

    /// See [`Engine::reopen`].
    pub(super) fn reopen_now(&self, key: &AccountKey) {
        let entry = self.shard(key).lock().get(key).map(|known| Arc::clone(&known.0));
        let Some(entry) = entry else { return };
        let mut state = entry.state.lock();
        if state.moved {
            // Read anew: the ledger may have come to know it since.
            *state = State::default();
        }
    }

    fn record_move(
        &self,
        pins: &Pins,
        guards: &mut Guards<'_>,
        moved: Vec<Arc<Hold>>,
    ) -> Result<Ticket, EngineError> {
        let [source, target] = [&pins.0[0], &pins.0[1]];
        let packed: Arc<[u8]> = guards[1].account.pack().into();
        let accounts = smallvec![(source.key.clone(), Arc::from([])), (target.key.clone(), packed)];
        let (done, ticket) = tokio::sync::oneshot::channel();
        let pins = pins.clone();
        let change = Change { hold: None, before: None, accounts, moved, pins, done: Some(done) };
        if self.outbox.push(change) {
            return Ok(Ticket::waiting(ticket));
        }
        self.forget(&mut guards[0], source);
        self.forget(&mut guards[1], target);
        Err(EngineError::Unavailable)
    }
}
