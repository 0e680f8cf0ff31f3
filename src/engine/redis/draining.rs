//! The way to the ledger: each tenant's stream is read in portions, and cut off
//! once these are on record. Several nodes may do so at once; the ledger's
//! fence lets one of them through.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::{Value, cmd};
use smallvec::SmallVec;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout_at;

use super::answers::bytes;
use super::bytes::Unreadable;
use super::calls::Call;
use super::connection::Generation;
use super::engine::{RedisEngine, unavailable, unreadable};
use super::keys::Keys;
use super::record::Record;
use super::slots::Meta;
use super::state::Packed;
use crate::domain::charge::TenantRef;
use crate::domain::ids::HoldId;
use crate::domain::slot::{Fence, Slot};
use crate::engine::{Batch, Change, EngineError, Lag, Ticket};

/// Changes handed over at once at most.
const PORTION: u64 = 1000;
/// How often slots are looked at that this node has written nothing to.
const ROUND: Duration = Duration::from_secs(3);
/// How long changes gather that nobody waits for: one statement for many costs
/// the ledger a fraction of one for each. This is what may be lost with a Redis.
const GATHERING: Duration = Duration::from_millis(20);
/// How long a slot rests that could not be recorded …
const REST: Duration = Duration::from_millis(20);
/// … and longer where nobody waits: if another node records it, one is enough.
const YIELD: Duration = Duration::from_millis(200);
/// Rests in a row before a slot waits for the next round.
const RESTS: u32 = 10;
/// How long the record of a hold stays that has finished and is in the ledger,
/// in ms: whoever read the hold before finds out that it has ended.
const FINISHED_STAYS: u64 = 300_000;

/// What of which slot is to be recorded, and who waits for it.
#[derive(Default)]
pub(super) struct Drains {
    state: Mutex<State>,
    marked: Notify,
}

#[derive(Default)]
struct State {
    /// When each slot is to be looked at: in order, and by slot.
    queue: BTreeSet<(Instant, TenantRef)>,
    queued: HashMap<TenantRef, Instant>,
    slots: HashMap<TenantRef, Seen>,
    /// When all are.
    round: Option<Instant>,
    /// Nothing gathers any more.
    hurries: bool,
}

impl State {
    /// Whether it is to be looked at earlier than it was.
    fn queue(&mut self, tenant: TenantRef, pause: Duration) -> bool {
        let now = Instant::now();
        let rests = self.slots.get(&tenant).and_then(|seen| seen.rests_until);
        let due = (if self.hurries { now } else { now + pause }).max(rests.unwrap_or(now));
        match self.queued.get(&tenant) {
            Some(before) if *before <= due => return false,
            Some(before) => _ = self.queue.remove(&(*before, tenant)),
            None => {}
        }
        self.queued.insert(tenant, due);
        self.queue.insert((due, tenant))
    }

    fn saw(&mut self, tenant: TenantRef, epoch: u64, known: u64) -> &Seen {
        let seen = self.slots.entry(tenant).or_default();
        if seen.epoch < epoch {
            // Another node has built it anew. Which of the last epoch's changes
            // came on record it knows, this one does not: whoever waits for one
            // is told that it did not, and asks again. The new epoch's numbers
            // say nothing of them.
            *seen = Seen { epoch, known, drained: known, ..Seen::default() };
        } else if seen.epoch == epoch {
            seen.known = seen.known.max(known);
            seen.compare();
        }
        seen
    }

    /// The slot whose time has come, or when that will be.
    fn next(&mut self, now: Instant) -> Result<TenantRef, Instant> {
        let round = *self.round.get_or_insert(now + ROUND);
        if round <= now {
            self.round = Some(now + ROUND);
            let all: Vec<TenantRef> = self.slots.keys().copied().collect();
            all.into_iter().for_each(|tenant| _ = self.queue(tenant, Duration::ZERO));
        }
        match self.queue.first().copied() {
            Some((due, tenant)) if due <= now => {
                self.queue.pop_first();
                self.queued.remove(&tenant);
                Ok(tenant)
            }
            first => Err(first.map_or(round, |(due, _)| due.min(round))),
        }
    }
}

/// A slot as this node saw it, also while it is not trusted.
#[derive(Default)]
struct Seen {
    epoch: u64,
    known: u64,
    /// On record, as far as this node was told.
    drained: u64,
    /// Since when there has been something that is not.
    behind_since: Option<Instant>,
    failures: u32,
    /// Whoever waits: another node may be recording it.
    rests_until: Option<Instant>,
    waiting: Vec<(u64, oneshot::Sender<bool>)>,
}

impl Seen {
    fn compare(&mut self) {
        match self.known > self.drained {
            true => _ = self.behind_since.get_or_insert_with(Instant::now),
            false => self.behind_since = None,
        }
    }
}

impl Drains {
    /// How far the ledger is behind in all slots.
    pub fn lag(&self) -> Lag {
        let state = self.state.lock();
        let mut lag = Lag::default();
        for seen in state.slots.values() {
            lag.changes += seen.known.saturating_sub(seen.drained);
            let behind = seen.behind_since.map_or(0, |since| since.elapsed().as_millis() as u64);
            lag.for_ms = lag.for_ms.max(behind);
        }
        lag
    }

    /// There may be something in it that somebody waits for.
    pub fn mark(&self, tenant: TenantRef) {
        if self.state.lock().queue(tenant, Duration::ZERO) {
            self.marked.notify_one();
        }
    }

    /// There is something in it, up to this number, that may wait for more.
    pub fn gather(&self, tenant: TenantRef, epoch: u64, known: u64) {
        let mut state = self.state.lock();
        let seen = state.saw(tenant, epoch, known);
        let pause = if seen.failures > 0 { YIELD } else { GATHERING };
        if state.queue(tenant, pause) {
            drop(state);
            self.marked.notify_one();
        }
    }

    /// Nothing more comes: what gathers is looked at now.
    pub fn hurry(&self) {
        let mut state = self.state.lock();
        state.hurries = true;
        let all: Vec<TenantRef> = state.queued.keys().copied().collect();
        all.into_iter().for_each(|tenant| _ = state.queue(tenant, Duration::ZERO));
        drop(state);
        self.marked.notify_one();
    }

    pub fn saw(&self, tenant: TenantRef, epoch: u64, known: u64) {
        self.state.lock().saw(tenant, epoch, known);
    }

    /// The last number that this node saw in an epoch.
    pub fn known(&self, tenant: TenantRef, epoch: u64) -> u64 {
        let state = self.state.lock();
        state.slots.get(&tenant).filter(|seen| seen.epoch == epoch).map_or(0, |seen| seen.known)
    }

    /// A slot was built anew: what was not on record by then is gone.
    pub fn begins(&self, tenant: TenantRef, recorded: Slot) {
        let mut state = self.state.lock();
        let seen = state.slots.entry(tenant).or_default();
        if seen.epoch < recorded.epoch {
            for (number, sender) in seen.waiting.drain(..) {
                let _ = sender.send(number <= recorded.drained);
            }
            *seen = Seen {
                epoch: recorded.epoch,
                known: recorded.drained,
                drained: recorded.drained,
                ..Seen::default()
            };
        }
    }

    pub fn ticket(&self, tenant: TenantRef, epoch: u64, number: u64) -> Ticket {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state.lock();
        let seen = state.slots.entry(tenant).or_default();
        if seen.epoch == epoch {
            seen.waiting.push((number, sender));
        }
        drop(state);
        self.mark(tenant);
        Ticket::waiting(receiver)
    }

    fn on_record(&self, tenant: TenantRef, epoch: u64, drained: u64) {
        let mut state = self.state.lock();
        let Some(seen) = state.slots.get_mut(&tenant).filter(|seen| seen.epoch == epoch) else { return };
        if drained > seen.drained {
            // What is left has not waited for longer than since now.
            seen.behind_since = None;
        }
        seen.drained = drained;
        seen.compare();
        for (_, sender) in seen.waiting.extract_if(.., |(number, _)| *number <= drained) {
            let _ = sender.send(true);
        }
    }

    fn epoch(&self, tenant: TenantRef) -> Option<u64> {
        self.state.lock().slots.get(&tenant).map(|seen| seen.epoch)
    }

    /// Waits for a slot to look at.
    async fn next(&self) -> TenantRef {
        loop {
            let next = self.state.lock().next(Instant::now());
            match next {
                Ok(tenant) => return tenant,
                // Until then, or something is to be looked at earlier.
                Err(due) => _ = timeout_at(due.into(), self.marked.notified()).await,
            }
        }
    }

    /// A slot that fails again and again waits for the next round.
    fn failed(&self, tenant: TenantRef) {
        let mut state = self.state.lock();
        let seen = state.slots.entry(tenant).or_default();
        seen.failures += 1;
        seen.rests_until = Some(Instant::now() + REST);
        if seen.failures <= RESTS {
            drop(state);
            self.mark(tenant);
        }
    }

    /// Looks again where there is more already, at once if somebody waits.
    fn goes_on(&self, tenant: TenantRef) {
        let mut state = self.state.lock();
        let Some(seen) = state.slots.get(&tenant).filter(|seen| seen.known > seen.drained) else { return };
        let pause = if seen.waiting.is_empty() { GATHERING } else { Duration::ZERO };
        if state.queue(tenant, pause) {
            drop(state);
            self.marked.notify_one();
        }
    }

    fn went_well(&self, tenant: TenantRef) {
        if let Some(seen) = self.state.lock().slots.get_mut(&tenant) {
            seen.failures = 0;
        }
    }
}

impl RedisEngine {
    pub(super) async fn next_batch(&self) -> Batch {
        loop {
            let tenant = self.drains.next().await;
            match self.read_batch(tenant).await {
                Ok(Some(batch)) => return batch,
                Ok(None) => {}
                Err(_) => self.drains.failed(tenant),
            }
        }
    }

    async fn read_batch(&self, tenant: TenantRef) -> Result<Option<Batch>, EngineError> {
        let Some(epoch) = self.drains.epoch(tenant) else { return Ok(None) };
        let (meta, _) = self.meta(tenant).await?;
        let Some(meta) = meta.filter(|meta| meta.epoch == epoch && !meta.is_closed) else { return Ok(None) };
        self.drains.on_record(tenant, epoch, meta.drained);
        if meta.seq == meta.drained {
            self.drains.went_well(tenant);
            return Ok(None);
        }
        self.read_stream(tenant, Slot { epoch, drained: meta.drained }).await
    }

    pub(super) async fn remaining_now(
        &self,
        tenant: TenantRef,
        recorded: Slot,
    ) -> Result<Option<Batch>, EngineError> {
        let (meta, _) = self.meta(tenant).await?;
        match meta.filter(|meta| meta.epoch == recorded.epoch) {
            Some(_) => self.read_stream(tenant, recorded).await,
            None => Ok(None),
        }
    }

    /// What follows on what is on record, without a gap.
    async fn read_stream(&self, tenant: TenantRef, recorded: Slot) -> Result<Option<Batch>, EngineError> {
        let keys = Keys::new(self.owner(tenant), recorded.epoch);
        let from = format!("{}-0", recorded.drained + 1);
        let mut range = cmd("XRANGE");
        range.arg(keys.stream()).arg(from).arg("+").arg("COUNT").arg(PORTION);
        let (value, over) = self.redis.run(self.hash_slot(tenant), &range).await.map_err(unavailable)?;
        let Value::Array(entries) = value else { return Err(unreadable(Unreadable)) };
        let (mut changes, mut to) = (Vec::with_capacity(entries.len()), recorded.drained);
        for entry in entries {
            let (number, fields) = entry_parts(entry).map_err(unreadable)?;
            if number != to + 1 {
                if to > recorded.drained || self.is_missing(tenant, recorded, over).await? {
                    let expected = to + 1;
                    tracing::error!(tenant.number = tenant.0, number, expected, "a change is missing");
                }
                break;
            }
            changes.push(change(&keys, fields).map_err(unreadable)?);
            to = number;
        }
        let fence = Fence { tenant, epoch: recorded.epoch, from: recorded.drained, to };
        Ok((!changes.is_empty()).then_some(Batch { changes, fence: Some(fence) }))
    }

    /// Whether what should come next was never cut off. Between two looks more may have come on
    /// record, and over another connection it may be another server, or an older state of it.
    async fn is_missing(
        &self,
        tenant: TenantRef,
        recorded: Slot,
        over: Generation,
    ) -> Result<bool, EngineError> {
        let (meta, generation) = self.meta(tenant).await?;
        let is_same = |meta: Meta| meta.epoch == recorded.epoch && meta.drained <= recorded.drained;
        Ok(generation == over && meta.is_some_and(is_same))
    }

    pub(super) async fn on_record(&self, batch: Batch) {
        let Some(Fence { tenant, epoch, to, .. }) = batch.fence else { return };
        self.drains.on_record(tenant, epoch, to);
        self.drains.went_well(tenant);
        let holds = batch.changes.iter().flat_map(|change| change.hold.iter().chain(&change.moved));
        let finished: Vec<HoldId> = holds.filter(|hold| hold.is_finished()).map(|hold| hold.id).collect();
        // If it is not told, whoever looks next will find it in the ledger.
        let _ = self.say_drained(tenant, epoch, to, &finished).await;
        match batch.changes.len() as u64 {
            PORTION.. => self.drains.mark(tenant),
            _ => self.drains.goes_on(tenant),
        }
    }

    pub(super) async fn not_on_record(&self, batch: Batch) {
        if let Some(Fence { tenant, .. }) = batch.fence {
            self.drains.failed(tenant);
        }
    }

    pub(super) async fn say_drained(
        &self,
        tenant: TenantRef,
        epoch: u64,
        to: u64,
        finished: &[HoldId],
    ) -> Result<(), EngineError> {
        let keys = Keys::new(self.owner(tenant), epoch);
        let mut call = Call { keys: vec![keys.meta(), keys.stream()], args: Vec::new() };
        call.keys.extend(finished.iter().map(|hold| keys.hold(*hold)));
        call.args.extend([epoch, to, FINISHED_STAYS].map(|number| number.to_string().into_bytes()));
        self.call(self.hash_slot(tenant), &self.scripts.drained, &call).await?;
        Ok(())
    }
}

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// An entry of a stream: its number and its fields.
pub(super) fn entry_parts(entry: Value) -> Result<(u64, Fields), Unreadable> {
    let Value::Array(entry) = entry else { return Err(Unreadable) };
    let mut entry = entry.into_iter();
    let id = bytes(entry.next())?;
    let number = std::str::from_utf8(&id).ok().and_then(|id| id.split_once('-')?.0.parse().ok());
    let Some(Value::Array(fields)) = entry.next() else { return Err(Unreadable) };
    let mut fields = fields.into_iter();
    let mut read = Vec::with_capacity(fields.len() / 2);
    while let Some(name) = fields.next() {
        read.push((bytes(Some(name))?, bytes(fields.next())?));
    }
    Ok((number.ok_or(Unreadable)?, read))
}

/// An event as the ledger is to record it.
fn change(keys: &Keys, fields: Fields) -> Result<Change, Unreadable> {
    let mut change = Change::default();
    let hold = |record: &[u8]| Ok(Arc::new(Record::read(record)?.hold));
    let mut accounts: SmallVec<_> = SmallVec::new();
    for (name, value) in fields {
        match &name[..] {
            b"k" => {}
            b"h" => change.hold = Some(hold(&value)?),
            b"b" => change.before = Some(hold(&value)?),
            b"m" => change.moved.push(hold(&value)?),
            _ => {
                let key = keys.read_account(&name).ok_or(Unreadable)?;
                let packed: Arc<[u8]> = match value.is_empty() {
                    true => Arc::from([]),
                    false => Packed::read(&value)?.account([]).pack().into(),
                };
                accounts.push((key, packed));
            }
        }
    }
    change.accounts = accounts;
    Ok(change)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: TenantRef = TenantRef(1);

    #[tokio::test]
    async fn what_a_lost_epoch_had_is_not_taken_for_a_later_ones_change_of_that_number() {
        let drains = Drains::default();
        drains.saw(TENANT, 1, 5);
        let (recorded, lost) = (drains.ticket(TENANT, 1, 4), drains.ticket(TENANT, 1, 5));
        drains.on_record(TENANT, 1, 4);
        assert!(recorded.recorded().await);
        drains.saw(TENANT, 2, 4);
        drains.on_record(TENANT, 2, 9);
        assert!(!lost.recorded().await);
        assert!(!drains.ticket(TENANT, 1, 6).recorded().await, "nobody can tell any more");
    }

    #[test]
    fn what_does_not_get_on_is_behind_for_longer_and_longer() {
        let drains = Drains::default();
        drains.saw(TENANT, 1, 5);
        drains.on_record(TENANT, 1, 3);
        let since = |drains: &Drains| drains.state.lock().slots[&TENANT].behind_since;
        let behind = since(&drains);
        assert!(behind.is_some());
        // The same is told again: nothing came on record.
        drains.on_record(TENANT, 1, 3);
        assert_eq!(since(&drains), behind);
        drains.on_record(TENANT, 1, 5);
        assert_eq!(since(&drains), None);
    }

    #[tokio::test]
    async fn who_builds_a_slot_anew_tells_what_came_on_record_of_the_last_epoch() {
        let drains = Drains::default();
        drains.saw(TENANT, 1, 5);
        let (recorded, lost) = (drains.ticket(TENANT, 1, 4), drains.ticket(TENANT, 1, 5));
        drains.begins(TENANT, Slot { epoch: 2, drained: 4 });
        drains.on_record(TENANT, 2, 9);
        assert!(recorded.recorded().await && !lost.recorded().await);
    }
}
