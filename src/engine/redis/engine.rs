//! The engine whose accounts are in Redis.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use redis::Value;
use smallvec::SmallVec;

use super::answers::{self, Answer, Found};
use super::bytes::Unreadable;
use super::calls::{self, Call, Head};
use super::connection::Generation;
use super::draining::Drains;
use super::error::RedisError;
use super::keys::Keys;
use super::map::HashSlot;
use super::reading::JustRead;
use super::record::Record;
use super::script::Script;
use super::scripts::Scripts;
use super::state::Packed;
use super::topology::Redis;
use crate::domain::account::Account;
use crate::domain::charge::{AccountKey, Charge, TenantRef};
use crate::domain::hold::Hold;
use crate::domain::ids::{HoldId, UserId};
use crate::domain::slot::{Position, Slot};
use crate::domain::step::Projections;
use crate::domain::time::Millis;
use crate::engine::promises::Promises;
use crate::engine::{
    Answers, Batch, Engine, EngineError, Extend, Extended, Finish, Finished, Lag, LineStep, Loaded, Missing,
    Moved, Plain, Probed, Reply, Rest, Step, Stood, Take, Taken, Ticket,
};

/// Lease ends to come that a script answers at most.
pub(super) const ENDS_TOLD: usize = 512;

#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Keeps those apart that share a Redis.
    pub installation: u64,
    pub answers: Answers,
    /// Changes of a tenant that may wait to be recorded.
    pub longest: u64,
    /// Compares what the scripts make of accounts with the rules, every time.
    pub checks: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            installation: 0,
            answers: Answers::ByEngine,
            longest: 1_000_000,
            checks: cfg!(debug_assertions),
        }
    }
}

/// See the module's text.
pub struct RedisEngine {
    pub(super) redis: Redis,
    pub(super) scripts: Scripts,
    pub(super) options: Options,
    pub(super) views: Mutex<HashMap<TenantRef, View>>,
    pub(super) drains: Drains,
    pub(super) promises: Mutex<HashMap<AccountKey, Promises>>,
    pub(super) just_read: JustRead,
}

/// A tenant's slot as this node last saw it.
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    pub epoch: u64,
    /// Its last number.
    pub known: u64,
    /// The connection over which it was compared with the ledger.
    pub generation: Generation,
}

/// Where a tenant's keys are, and what they are called.
pub(super) struct Place {
    pub tenant: TenantRef,
    pub view: View,
    pub keys: Keys,
    pub slot: HashSlot,
}

impl RedisEngine {
    pub fn new(redis: Redis, options: Options) -> Self {
        Self {
            redis,
            scripts: Scripts::new(),
            options,
            views: Mutex::default(),
            drains: Drains::default(),
            promises: Mutex::default(),
            just_read: JustRead::default(),
        }
    }

    /// `Err`: the slot was not compared with the ledger yet.
    pub(super) fn place(&self, tenant: TenantRef) -> Result<Place, EngineError> {
        let view = self.views.lock().get(&tenant).copied().ok_or(EngineError::Unsure(tenant))?;
        let slot = self.hash_slot(tenant);
        Ok(Place { tenant, view, keys: Keys::new(self.owner(tenant), view.epoch), slot })
    }

    pub(super) fn head(&self, place: &Place, now: Millis) -> Head {
        let View { epoch, known, .. } = place.view;
        Head { epoch, known, now, longest: self.options.longest, shows: self.options.checks }
    }

    pub(super) async fn call(
        &self,
        slot: HashSlot,
        script: &Script,
        call: &Call,
    ) -> Result<Value, EngineError> {
        self.send(None, slot, script, call).await.map_err(unavailable)
    }

    /// Runs a script that changes accounts: only over the connection over which
    /// the slot was compared with the ledger. What is behind a new one may have
    /// forgotten changes, and whatever is added there would take their numbers:
    /// it would look as if nothing were missing.
    pub(super) async fn change(
        &self,
        place: &Place,
        script: &Script,
        call: &Call,
    ) -> Result<Value, EngineError> {
        match self.send(Some(place.view.generation), place.slot, script, call).await {
            Err(RedisError::NewConnection) => Err(self.distrust(place.tenant)),
            answer => answer.map_err(unavailable),
        }
    }

    async fn send(
        &self,
        only: Option<Generation>,
        slot: HashSlot,
        script: &Script,
        call: &Call,
    ) -> Result<Value, RedisError> {
        let keys: SmallVec<[&[u8]; 12]> = call.keys.iter().map(String::as_bytes).collect();
        let args: SmallVec<[&[u8]; 16]> = call.args.iter().map(Vec::as_slice).collect();
        self.redis.script_over(only, slot, script, &keys, &args).await.map(|(value, _)| value)
    }

    /// Runs an operation's script.
    pub(super) async fn ask(
        &self,
        place: &Place,
        script: &Script,
        call: &Call,
    ) -> Result<Answer, EngineError> {
        let tenant = place.tenant;
        let value = self.change(place, script, call).await?;
        let answer = answers::read(value).map_err(unreadable)?;
        match &answer {
            Answer::Unsure => return Err(self.distrust(tenant)),
            Answer::Clock(at) => return Err(EngineError::Clock(tenant, *at)),
            Answer::Overloaded => return Err(EngineError::Overloaded),
            Answer::Moved => return Err(EngineError::Moved),
            Answer::Done(found) | Answer::Repeated(found) => self.moved_on(place, found.seq),
            _ => {}
        }
        Ok(answer)
    }

    /// From now on the slot has to be compared with the ledger first.
    pub(super) fn distrust(&self, tenant: TenantRef) -> EngineError {
        self.views.lock().remove(&tenant);
        EngineError::Unsure(tenant)
    }

    /// There are changes to record, up to this number.
    pub(super) fn moved_on(&self, place: &Place, seq: u64) {
        if let Some(view) = self.views.lock().get_mut(&place.tenant)
            && view.epoch == place.view.epoch
        {
            view.known = view.known.max(seq);
        }
        self.drains.gather(place.tenant, place.view.epoch, seq);
    }

    pub(super) fn ticket(&self, place: &Place, seq: u64) -> Ticket {
        match self.options.answers {
            Answers::ByEngine => Ticket::done(),
            Answers::ByLedger => self.drains.ticket(place.tenant, place.view.epoch, seq),
        }
    }

    pub(super) fn missing<'k>(
        &self,
        place: &Place,
        keys: impl Iterator<Item = &'k AccountKey>,
        seq: u64,
    ) -> Missing {
        let after = Position { tenant: place.tenant, epoch: place.view.epoch, number: seq };
        self.drains.mark(place.tenant);
        Missing { keys: keys.cloned().collect(), after: Some(after), asked: Default::default() }
    }

    async fn touch_now(
        &self,
        key: &AccountKey,
        charges: &[Charge],
        now: Millis,
    ) -> Result<Step<Option<Ticket>>, EngineError> {
        let place = self.place(key.tenant)?;
        let call = calls::touch(&place.keys, self.head(&place, now), key, charges);
        Ok(match self.ask(&place, &self.scripts.touch, &call).await? {
            Answer::Missing { seq, .. } => Step::Missing(self.missing(&place, std::iter::once(key), seq)),
            Answer::Done(found) if found.accounts.is_empty() => Step::Done(None),
            Answer::Done(found) => Step::Done(Some(self.ticket(&place, found.seq))),
            _ => return Err(EngineError::Unavailable),
        })
    }

    /// Where asked for: the script made of accounts and hold what the rules do.
    pub(super) fn compare(
        &self,
        found: &mut Found,
        projections: Projections,
        hold: &Hold,
    ) -> Result<(), EngineError> {
        if !self.options.checks {
            return Ok(());
        }
        let record = Record::read(&found.record).map_err(unreadable)?;
        let mut same = record.hold == *hold;
        for ((account, projection), after) in found.accounts.iter_mut().zip(projections).zip(&found.after) {
            account.accept(projection);
            let after = Packed::read(after).map_err(unreadable)?;
            same &= after.cells == account.cells()
                && after.spent == *account.spent()
                && after.advanced_to == account.advanced_to();
        }
        debug_assert!(same, "a script and the rules differ: {hold:?} {:?}", record.hold);
        if same { Ok(()) } else { Err(differs("a step")) }
    }
}

pub(super) fn refs(found: &Found) -> SmallVec<[&Account; 3]> {
    found.accounts.iter().collect()
}

pub(super) fn unavailable(error: RedisError) -> EngineError {
    tracing::warn!(error = &error as &dyn std::error::Error, "Redis did not answer");
    EngineError::Unavailable
}

pub(super) fn unreadable(_: Unreadable) -> EngineError {
    tracing::error!("Redis has something that cannot be read");
    EngineError::Unavailable
}

pub(super) fn differs(what: &str) -> EngineError {
    tracing::error!(what, "a script decided otherwise than the rules");
    EngineError::Unavailable
}

impl Engine for RedisEngine {
    fn take<'a>(&'a self, take: &'a Take, now: Millis) -> Reply<'a, Taken> {
        self.take_now(take, now).boxed()
    }

    fn finish<'a>(&'a self, finish: &'a Finish, now: Millis) -> Reply<'a, Finished> {
        self.finish_now(finish, now).boxed()
    }

    fn extend<'a>(&'a self, extend: &'a Extend, now: Millis) -> Reply<'a, Extended> {
        self.extend_now(extend, now).boxed()
    }

    fn touch<'a>(
        &'a self,
        key: &'a AccountKey,
        charges: &'a [Charge],
        now: Millis,
    ) -> Reply<'a, Option<Ticket>> {
        self.touch_now(key, charges, now).boxed()
    }

    fn move_account<'a>(
        &'a self,
        tenant: TenantRef,
        from: &'a UserId,
        to: &'a UserId,
        now: Millis,
    ) -> Reply<'a, Moved> {
        self.move_now(tenant, from, to, now).boxed()
    }

    fn reopen<'a>(&'a self, key: &'a AccountKey) -> Plain<'a, ()> {
        self.reopen_now(key).boxed()
    }

    fn rest<'a>(&'a self, key: &'a AccountKey, now: Millis) -> Reply<'a, Rest> {
        self.rest_now(key, now).boxed()
    }

    fn probe<'a>(
        &'a self,
        accounts: &'a [AccountKey],
        charges: &'a [Charge],
        now: Millis,
    ) -> Plain<'a, Vec<Option<Probed>>> {
        self.probe_now(accounts, charges, now).boxed()
    }

    fn stand<'a>(&'a self, pool: &'a AccountKey, step: &'a LineStep) -> Plain<'a, Stood> {
        self.stand_now(pool, step).boxed()
    }

    fn hold(&self, tenant: TenantRef, id: HoldId) -> Plain<'_, Option<Arc<Hold>>> {
        self.hold_now(tenant, id).boxed()
    }

    fn request<'a>(&'a self, user: &'a AccountKey, digest: u64, now: Millis) -> Reply<'a, Option<HoldId>> {
        self.request_now(user, digest, now).boxed()
    }

    fn load<'a>(&'a self, missing: &'a Missing, loaded: Vec<Loaded>) -> Plain<'a, ()> {
        self.load_now(missing, loaded).boxed()
    }

    fn changes(&self) -> BoxFuture<'_, Batch> {
        self.next_batch().boxed()
    }

    fn committed(&self, batch: Batch) -> BoxFuture<'_, ()> {
        self.on_record(batch).boxed()
    }

    fn failed(&self, batch: Batch) -> BoxFuture<'_, ()> {
        self.not_on_record(batch).boxed()
    }

    fn barrier(&self, tenant: TenantRef) -> Ticket {
        match self.place(tenant) {
            Ok(place) => self.ticket(&place, place.view.known),
            Err(_) => Ticket::done(),
        }
    }

    fn forget_holds<'a>(&'a self, tenant: TenantRef, holds: &'a [HoldId]) -> Plain<'a, ()> {
        self.forget_holds_now(tenant, holds).boxed()
    }

    fn forget_tenant(&self, tenant: TenantRef) -> Plain<'_, ()> {
        self.forget_now(tenant).boxed()
    }

    fn sweep(&self, _now: Millis) -> BoxFuture<'_, usize> {
        // Keys end by themselves; what is here are promises alone.
        self.promises.lock().clear();
        std::future::ready(0).boxed()
    }

    fn hurry(&self) {
        self.drains.hurry();
    }

    fn has_slots(&self) -> bool {
        true
    }

    fn look_after(&self, tenant: TenantRef, recorded: Slot) {
        self.drains.saw(tenant, recorded.epoch, recorded.drained);
        self.drains.mark(tenant);
    }

    fn lag(&self) -> Lag {
        self.drains.lag()
    }

    fn ready(&self) -> Plain<'_, ()> {
        let away = self.redis.away();
        std::future::ready(if away.is_empty() { Ok(()) } else { Err(EngineError::Unavailable) }).boxed()
    }

    fn admit(&self, tenant: TenantRef, recorded: Slot) -> Plain<'_, bool> {
        self.admit_now(tenant, recorded).boxed()
    }

    fn close_slot(&self, tenant: TenantRef, epoch: u64) -> Plain<'_, ()> {
        self.close_now(tenant, epoch).boxed()
    }

    fn remaining(&self, tenant: TenantRef, recorded: Slot) -> Plain<'_, Option<Batch>> {
        self.remaining_now(tenant, recorded).boxed()
    }

    fn open_slot(&self, tenant: TenantRef, recorded: Slot) -> Plain<'_, ()> {
        self.open_now(tenant, recorded).boxed()
    }

    fn position(&self, tenant: TenantRef) -> Plain<'_, Option<Position>> {
        self.position_now(tenant).boxed()
    }

    fn clock(&self, tenant: TenantRef) -> Plain<'_, Option<Millis>> {
        self.clock_now(tenant).boxed()
    }

    fn set_clock(&self, tenant: TenantRef, now: Millis) -> Plain<'_, ()> {
        self.set_clock_now(tenant, now).boxed()
    }
}
