//! The in-process engine: sharded accounts, each under its own lock.
//!
//! Locks are taken in one order (shard, then user < org < tenant < pool, then
//! the outbox), so no two operations can wait for each other. An account with
//! a change that is not on record, or with a lease that runs, stays.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::entry::{AsIsMap, Asked, ByKey, Entry, Guards, Pins, SHARDS, State, shard_of};
use super::lines::{self, Lines};
use super::outbox::Outbox;
use super::refusing::{count_shadow_refusals, rests_on_unrecorded, spread_pool_waits};
use super::{
    Batch, Change, Engine, EngineError, Extend, Extended, Finish, Finished, LineStep, Loaded, Missing, Moved,
    Plain, Probed, Reply, Rest, Step, Stood, Take, Taken, Ticket, finishing,
};
use crate::domain::account::Account;
use crate::domain::charge::{AccountKey, Charge, TenantRef};
use crate::domain::hold::Hold;
use crate::domain::ids::{HoldId, UserId};
use crate::domain::step::{self, Projections, Verdict};
use crate::domain::time::Millis;

type Shard = HashSet<ByKey, ahash::RandomState>;

/// See the module's text.
pub struct MemoryEngine {
    shards: Vec<Mutex<Shard>>,
    hasher: ahash::RandomState,
    owners: Vec<Mutex<AsIsMap<HoldId, Arc<Entry>>>>,
    pub(super) outbox: Outbox,
    lines: Lines,
    sweeps: AtomicU32,
    /// More accounts than this are not kept once they are idle.
    max_accounts: usize,
    known: AtomicUsize,
}

impl MemoryEngine {
    /// `max_accounts` bounds the idle accounts kept in memory.
    pub fn new(max_accounts: usize) -> Self {
        let hasher = ahash::RandomState::new();
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(HashSet::with_hasher(hasher.clone()))).collect(),
            owners: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher,
            outbox: Outbox::default(),
            lines: Lines::default(),
            sweeps: AtomicU32::new(0),
            max_accounts,
            known: AtomicUsize::new(0),
        }
    }

    pub(super) fn shard(&self, key: &AccountKey) -> &Mutex<Shard> {
        &self.shards[shard_of(self.hasher.hash_one(key))]
    }

    pub(super) fn owner_shard(&self, id: HoldId) -> &Mutex<AsIsMap<HoldId, Arc<Entry>>> {
        &self.owners[shard_of(id.0 as u64)]
    }

    /// Finds or makes the entries of `keys`.
    pub(super) fn pin(&self, keys: &[AccountKey]) -> Pins {
        let sweep = self.sweeps.load(Ordering::Relaxed);
        let pin = |key: &AccountKey| {
            let mut shard = self.shard(key).lock();
            if let Some(ByKey(entry)) = shard.get(key) {
                entry.used_in.store(sweep, Ordering::Relaxed);
                return Arc::clone(entry);
            }
            let entry = Entry { key: key.clone(), state: Mutex::default(), used_in: AtomicU32::new(sweep) };
            let entry = Arc::new(entry);
            shard.insert(ByKey(Arc::clone(&entry)));
            self.known.fetch_add(1, Ordering::Relaxed);
            entry
        };
        Pins(keys.iter().map(pin).collect())
    }

    /// Runs `operation` with all accounts locked, or names those to load.
    pub(super) fn with<T>(
        &self,
        keys: &[AccountKey],
        now: Millis,
        operation: impl FnOnce(&Pins, &mut Guards<'_>, Millis) -> Result<T, EngineError>,
    ) -> Result<Step<T>, EngineError> {
        self.with_request(keys, None, now, operation)
    }

    /// The same for an operation that asks what a request id of the first account stands for.
    fn with_request<T>(
        &self,
        keys: &[AccountKey],
        request: Option<u64>,
        now: Millis,
        operation: impl FnOnce(&Pins, &mut Guards<'_>, Millis) -> Result<T, EngineError>,
    ) -> Result<Step<T>, EngineError> {
        if self.outbox.is_full() {
            return Err(EngineError::Overloaded);
        }
        let pins = self.pin(keys);
        let mut guards: Guards<'_> = pins.0.iter().map(|entry| entry.state.lock()).collect();
        if guards.iter().any(|state| state.moved) {
            return Err(EngineError::Moved);
        }
        let lacks = |place: usize, state: &State| {
            !state.loaded || (place == 0 && request.is_some_and(|digest| state.must_ask(digest)))
        };
        if let Some(missing) = missing(&pins, &guards, lacks) {
            return Ok(Step::Missing(missing));
        }
        let now = guards.iter().map(|state| state.account.advanced_to()).max().map_or(now, |at| at.max(now));
        operation(&pins, &mut guards, now).map(Step::Done)
    }

    /// Puts a step in place and queues it for the ledger. On failure the
    /// accounts are forgotten: the ledger has their last recorded state.
    fn record(
        &self,
        pins: &Pins,
        guards: &mut Guards<'_>,
        before: Option<Arc<Hold>>,
        hold: Option<&Arc<Hold>>,
    ) -> Result<Ticket, EngineError> {
        let packed = |(entry, state): (&Arc<Entry>, &MutexGuard<'_, State>)| {
            (entry.key.clone(), Arc::from(state.account.pack()))
        };
        let accounts = pins.0.iter().zip(guards.iter()).map(packed).collect();
        let (done, ticket) = tokio::sync::oneshot::channel();
        let (hold, moved) = (hold.cloned(), Vec::new());
        let change = Change { hold, before, accounts, moved, pins: pins.clone(), done: Some(done) };
        if self.outbox.push(change) {
            return Ok(Ticket::waiting(ticket));
        }
        for (state, entry) in guards.iter_mut().zip(&pins.0) {
            self.forget(state, entry);
        }
        Err(EngineError::Unavailable)
    }

    pub(super) fn forget(&self, state: &mut State, _entry: &Entry) {
        for hold in state.holds.iter() {
            self.owner_shard(hold.id).lock().remove(&hold.id);
        }
        *state = State::default();
    }

    fn take_now(&self, take: &Take, now: Millis) -> Result<Step<Taken>, EngineError> {
        let digest = take.draft.request.as_ref().filter(|_| !take.dry_run).map(|mark| mark.id.digest());
        self.with_request(&take.accounts, digest, now, |pins, guards, now| {
            if let Some(hold) = digest.and_then(|digest| guards[0].request(digest, now)) {
                return Ok(Taken::Known(hold));
            }
            let (seen, scopes) = (accounts(guards), super::scopes(&take.accounts));
            let verdict = step::take(&seen, &scopes, &take.ask, now);
            let ahead = self.lines.ahead(take, now);
            let (verdict, at_best_ms) = lines::behind(take, verdict, &seen, &ahead, now);
            drop(seen);
            let (output, is_final, receipts, projections, standings, shortfalls) = match verdict {
                Verdict::Refused { mut shortfalls, standings } => {
                    if !take.dry_run && !take.quiet {
                        count_shadow_refusals(guards, &take.ask, &standings);
                        spread_pool_waits(guards, take, &mut shortfalls, now);
                    }
                    let ticket = rests_on_unrecorded(pins, guards).then(|| self.queue_barrier());
                    return Ok(Taken::Refused { shortfalls, standings, at_best_ms, ticket });
                }
                Verdict::Fits { output, is_final, receipts, projections, standings, shortfalls } => {
                    (output, is_final, receipts, projections, standings, shortfalls)
                }
            };
            let mut hold = take.draft.clone();
            step::reserve(&mut hold, output, is_final, take.credits);
            if take.dry_run {
                let standings = step::view(&accounts(guards), &take.ask.charges, now);
                return Ok(Taken::Fits { draft: Box::new(hold), standings, shortfalls });
            }
            finishing::begin(&mut hold, take, receipts, now);
            let hold = Arc::new(hold);
            accept(guards, projections);
            self.open(pins, guards, &hold, digest, now);
            let ticket = self.record(pins, guards, None, Some(&hold))?;
            self.lines.admitted(take);
            Ok(Taken::Hold { hold, standings, shortfalls, ticket })
        })
    }

    /// Notes a new hold in every account it took from.
    fn open(&self, pins: &Pins, guards: &mut Guards<'_>, hold: &Arc<Hold>, digest: Option<u64>, now: Millis) {
        if let Some(end) = hold.doubtful_from() {
            for (state, entry) in guards.iter_mut().zip(&pins.0) {
                let receipts = hold.receipts.iter().filter(|receipt| receipt.scope == entry.key.scope);
                state.account.insert_open(end, hold.id, receipts);
            }
        }
        guards[0].holds.put(Arc::clone(hold));
        self.owner_shard(hold.id).lock().insert(hold.id, Arc::clone(&pins.0[0]));
        if let Some(digest) = digest {
            let finished = hold.finished_at().unwrap_or(Millis::MAX);
            guards[0].remember(digest, hold.id, finished, now);
        }
    }

    fn finish_now(&self, finish: &Finish, now: Millis) -> Result<Step<Finished>, EngineError> {
        self.with(&finish.accounts, now, |pins, guards, now| {
            let known = guards[0].holds.get(finish.hold).cloned();
            let Some(before) = known.or_else(|| finish.ended_by_rule.clone()) else {
                return Ok(Finished::NotOpen);
            };
            let scopes = finish.accounts.iter().map(|key| key.scope);
            let scoped: SmallVec<[_; 3]> = scopes.zip(accounts(guards)).collect();
            let (hold, ending) = match finishing::end(finish, &before, now) {
                Ok(ended) => ended,
                Err(answer) => return Ok(answer),
            };
            let (projections, standings) = ending.step(&scoped, finish, &before, now);
            drop(scoped);
            let hold = Arc::new(hold);
            if let Some(end) = before.doubtful_from() {
                guards.iter_mut().for_each(|state| state.account.remove_open(end, hold.id));
            }
            accept(guards, projections);
            guards[0].holds.put(Arc::clone(&hold));
            self.owner_shard(hold.id).lock().insert(hold.id, Arc::clone(&pins.0[0]));
            if let (Some(mark), Some(at)) = (&hold.request, hold.finished_at()) {
                guards[0].remember(mark.id.digest(), hold.id, at, now);
            }
            let ticket = self.record(pins, guards, Some(before.clone()), Some(&hold))?;
            Ok(Finished::Done { hold, standings, ticket })
        })
    }

    fn extend_now(&self, extend: &Extend, now: Millis) -> Result<Step<Extended>, EngineError> {
        self.with(&extend.accounts, now, |pins, guards, now| {
            let Some(before) = guards[0].holds.get(extend.hold).cloned() else {
                return Ok(Extended::NotOpen);
            };
            let longer = match finishing::extend(&accounts(guards), extend, &before, now) {
                Ok(longer) => longer,
                Err(answer) => return Ok(answer),
            };
            let hold = Arc::new(longer.hold);
            accept(guards, longer.projections);
            for (state, entry) in guards.iter_mut().zip(&pins.0) {
                let receipts = hold.receipts.iter().filter(|receipt| receipt.scope == entry.key.scope);
                state.account.remove_open(before.expires_at, hold.id);
                state.account.insert_open(hold.expires_at, hold.id, receipts);
            }
            guards[0].holds.put(Arc::clone(&hold));
            let ticket = self.record(pins, guards, Some(before), Some(&hold))?;
            let (standings, shortfalls) = (longer.standings, longer.shortfalls);
            Ok(Extended::Done { hold, standings, shortfalls, ticket })
        })
    }

    /// Puts what the ledger has in an entry that lacks it.
    fn load_one(&self, entry: &Arc<Entry>, loaded: Loaded, asides: u32) {
        let mut state = entry.state.lock();
        if !state.loaded {
            for hold in &loaded.unfinished {
                self.owner_shard(hold.id).lock().insert(hold.id, Arc::clone(entry));
            }
        }
        state.load(loaded, asides);
    }

    /// A ticket for everything that happened so far.
    pub(super) fn queue_barrier(&self) -> Ticket {
        let (done, ticket) = tokio::sync::oneshot::channel();
        // A refused barrier drops its sender, which answers `false`.
        self.outbox.push(Change { done: Some(done), ..Change::default() });
        Ticket::waiting(ticket)
    }

    /// Removes a finished hold that is on record now.
    fn retire(&self, entry: &Entry, hold: &Arc<Hold>) {
        let mut state = entry.state.lock();
        if state.holds.get(hold.id).is_some_and(|known| Arc::ptr_eq(known, hold)) {
            state.holds.remove(hold.id);
            self.owner_shard(hold.id).lock().remove(&hold.id);
        }
    }

    /// Drops the entry if nothing needs it. The shard is locked by the caller.
    fn may_drop(&self, entry: &Arc<Entry>, now: Millis) -> bool {
        let Some(mut state) = entry.state.try_lock() else { return false };
        // One reference is the shard's, one each the owners' of its holds.
        let unused = Arc::strong_count(entry) == 1 + state.holds.len();
        if !unused || !state.account.is_quiet(now) {
            return false;
        }
        self.forget(&mut state, entry);
        true
    }
}

/// The accounts that lack something which the ledger has.
pub(super) fn missing(
    pins: &Pins,
    guards: &Guards<'_>,
    lacks: impl Fn(usize, &State) -> bool,
) -> Option<Missing> {
    let mut missing = Missing { keys: SmallVec::new(), after: None, asked: Asked::default() };
    for (place, (state, entry)) in guards.iter().zip(&pins.0).enumerate() {
        if lacks(place, state) {
            missing.keys.push(entry.key.clone());
            missing.asked.0.push((Arc::clone(entry), state.asides()));
        }
    }
    (!missing.keys.is_empty()).then_some(missing)
}

fn accounts<'s>(guards: &'s Guards<'_>) -> SmallVec<[&'s Account; 3]> {
    guards.iter().map(|state| &state.account).collect()
}

fn accept(guards: &mut Guards<'_>, projections: Projections) {
    for (state, projection) in guards.iter_mut().zip(projections) {
        state.account.accept(projection);
    }
}

impl Engine for MemoryEngine {
    fn take<'a>(&'a self, take: &'a Take, now: Millis) -> Reply<'a, Taken> {
        std::future::ready(self.take_now(take, now)).boxed()
    }

    fn finish<'a>(&'a self, finish: &'a Finish, now: Millis) -> Reply<'a, Finished> {
        std::future::ready(self.finish_now(finish, now)).boxed()
    }

    fn extend<'a>(&'a self, extend: &'a Extend, now: Millis) -> Reply<'a, Extended> {
        std::future::ready(self.extend_now(extend, now)).boxed()
    }

    fn touch<'a>(
        &'a self,
        key: &'a AccountKey,
        charges: &'a [Charge],
        now: Millis,
    ) -> Reply<'a, Option<Ticket>> {
        let touched = self.with(std::slice::from_ref(key), now, |pins, guards, now| {
            let Some(projection) = step::touch(&guards[0].account, charges, now) else { return Ok(None) };
            guards[0].account.accept(projection);
            self.record(pins, guards, None, None).map(Some)
        });
        std::future::ready(touched).boxed()
    }

    fn probe<'a>(
        &'a self,
        accounts: &'a [AccountKey],
        charges: &'a [Charge],
        now: Millis,
    ) -> Plain<'a, Vec<Option<Probed>>> {
        let probed = accounts.iter().enumerate().map(|(index, key)| self.probe_one(index, key, charges, now));
        std::future::ready(Ok(probed.collect())).boxed()
    }

    fn stand<'a>(&'a self, pool: &'a AccountKey, step: &'a LineStep) -> Plain<'a, Stood> {
        std::future::ready(Ok(self.lines.step(pool, step))).boxed()
    }

    fn hold(&self, tenant: TenantRef, id: HoldId) -> Plain<'_, Option<Arc<Hold>>> {
        std::future::ready(Ok(self.find_hold(tenant, id))).boxed()
    }

    fn request<'a>(&'a self, user: &'a AccountKey, digest: u64, now: Millis) -> Reply<'a, Option<HoldId>> {
        let look = |_: &Pins, guards: &mut Guards<'_>, now| Ok(guards[0].request(digest, now));
        let found = self.with_request(std::slice::from_ref(user), Some(digest), now, look);
        std::future::ready(found).boxed()
    }

    fn load<'a>(&'a self, missing: &'a Missing, loaded: Vec<Loaded>) -> Plain<'a, ()> {
        let answered = missing.asked.0.iter().zip(loaded);
        answered.for_each(|((entry, asides), loaded)| self.load_one(entry, loaded, *asides));
        std::future::ready(Ok(())).boxed()
    }

    fn changes(&self) -> BoxFuture<'_, Batch> {
        self.outbox.drain().map(|changes| Batch { changes, fence: None }).boxed()
    }

    fn committed(&self, batch: Batch) -> BoxFuture<'_, ()> {
        for mut change in batch.changes {
            if let (Some(hold), Some(entry)) = (&change.hold, change.pins.0.first())
                && hold.is_finished()
            {
                self.retire(entry, hold);
            }
            if let Some(to) = change.pins.0.last() {
                change.moved.iter().filter(|hold| hold.is_finished()).for_each(|hold| self.retire(to, hold));
            }
            if let Some(done) = change.done.take() {
                let _ = done.send(true);
            }
        }
        std::future::ready(()).boxed()
    }

    fn failed(&self, batch: Batch) -> BoxFuture<'_, ()> {
        let later = self.outbox.reject_all();
        for mut change in batch.changes.into_iter().chain(later) {
            for entry in &change.pins.0 {
                self.forget(&mut entry.state.lock(), entry);
            }
            if let Some(done) = change.done.take() {
                let _ = done.send(false);
            }
        }
        self.outbox.accept_again();
        std::future::ready(()).boxed()
    }

    fn move_account<'a>(
        &'a self,
        tenant: TenantRef,
        from: &'a UserId,
        to: &'a UserId,
        now: Millis,
    ) -> Reply<'a, Moved> {
        std::future::ready(self.move_now(tenant, from, to, now)).boxed()
    }

    fn reopen<'a>(&'a self, key: &'a AccountKey) -> Plain<'a, ()> {
        self.reopen_now(key);
        std::future::ready(Ok(())).boxed()
    }

    fn rest<'a>(&'a self, key: &'a AccountKey, now: Millis) -> Reply<'a, Rest> {
        std::future::ready(self.rest_now(key, now)).boxed()
    }

    fn barrier(&self, _tenant: TenantRef) -> Ticket {
        self.queue_barrier()
    }

    fn forget_tenant(&self, tenant: TenantRef) -> Plain<'_, ()> {
        for shard in &self.shards {
            let gone: Vec<_> = {
                let mut shard = shard.lock();
                shard
                    .extract_if(|ByKey(entry)| entry.key.tenant == tenant)
                    .map(|ByKey(entry)| entry)
                    .collect()
            };
            self.known.fetch_sub(gone.len(), Ordering::Relaxed);
            gone.iter().for_each(|entry| self.forget(&mut entry.state.lock(), entry));
        }
        // Those of operations that were at work meanwhile.
        for owners in &self.owners {
            owners.lock().retain(|_, entry| entry.key.tenant != tenant);
        }
        std::future::ready(Ok(())).boxed()
    }

    fn sweep(&self, now: Millis) -> BoxFuture<'_, usize> {
        let sweep = self.sweeps.fetch_add(1, Ordering::Relaxed) + 1;
        let crowded = self.known.load(Ordering::Relaxed) > self.max_accounts;
        for shard in &self.shards {
            let mut dropped = 0;
            shard.lock().retain(|ByKey(entry)| {
                // What has moved away stays long enough for everybody to notice.
                let crowded = crowded && !entry.state.try_lock().is_none_or(|state| state.moved);
                let idle = crowded || sweep.wrapping_sub(entry.used_in.load(Ordering::Relaxed)) >= 2;
                let drop = idle && self.may_drop(entry, now);
                dropped += usize::from(drop);
                !drop
            });
            self.known.fetch_sub(dropped, Ordering::Relaxed);
        }
        std::future::ready(self.known.load(Ordering::Relaxed)).boxed()
    }
}
