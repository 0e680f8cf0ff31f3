//! Reads that change nothing, and what the ledger has of an account put there.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use redis::{Pipeline, Value};
use smallvec::SmallVec;

use super::answers::Found;
use super::answers::{bytes, int, opens};
use super::bytes::Reader;
use super::calls::{self, Stored};
use super::engine::{ENDS_TOLD, Place, RedisEngine, unavailable, unreadable};
use super::record::{self, Read};
use super::slots::Meta;
use super::state::{self, Open, Packed};
use crate::domain::account::Account;
use crate::domain::charge::{AccountKey, Charge, TenantRef};
use crate::domain::hold::Hold;
use crate::domain::ids::HoldId;
use crate::domain::plan::Scope;
use crate::domain::step;
use crate::domain::time::Millis;
use crate::engine::{EngineError, Loaded, Missing, Probed, REQUESTS_KEPT_MS, Rest, Step};

/// Lease ends read at most to tell a wait.
const ENDS_READ: usize = 100_000;

/// Holds as they were shown to somebody who may be about to change them: then
/// they need not be read again, as the script looks whether they still are so.
#[derive(Default)]
pub(super) struct JustRead(Mutex<HashMap<HoldId, Read>>);

/// How many are remembered at most.
const JUST_READ_MAX: usize = 1024;

impl JustRead {
    fn add(&self, read: &Read) {
        let mut all = self.0.lock();
        // Most are asked for at once, or never.
        if all.len() >= JUST_READ_MAX {
            all.clear();
        }
        all.insert(read.hold.id, read.clone());
    }

    /// The record behind what was shown.
    fn take(&self, shown: &Arc<Hold>) -> Option<Read> {
        self.0.lock().remove(&shown.id).filter(|read| Arc::ptr_eq(&read.hold, shown))
    }
}

/// An account as read.
pub(super) enum Stands {
    Absent,
    /// It goes by another name.
    Moved,
    Here {
        raw: Vec<u8>,
        account: Account,
        /// All unfinished holds, also those in doubt.
        open: Vec<Open>,
    },
}

impl RedisEngine {
    /// Reads in one go, and only from a slot that can be trusted. The answers
    /// follow those about the slot.
    pub(super) async fn look(
        &self,
        place: &Place,
        ask: impl FnOnce(&mut Pipeline),
    ) -> Result<(Meta, std::vec::IntoIter<Value>), EngineError> {
        let mut pipeline = redis::pipe();
        pipeline.cmd("GET").arg(place.keys.meta());
        ask(&mut pipeline);
        let (values, generation) = self.redis.pipeline(place.slot, &pipeline).await.map_err(unavailable)?;
        let mut values = values.into_iter();
        let meta = Meta::from_value(values.next().unwrap_or(Value::Nil))?;
        match Self::is_trusted(place, meta, generation) {
            Some(meta) => Ok((meta, values)),
            None => Err(self.distrust(place.tenant)),
        }
    }

    /// A hold's record; `None` where there is none (any more).
    pub(super) async fn record(&self, place: &Place, id: HoldId) -> Result<Option<Read>, EngineError> {
        let ask = |pipeline: &mut Pipeline| {
            pipeline.cmd("GET").arg(place.keys.hold(id));
        };
        let (_, mut values) = self.look(place, ask).await?;
        match values.next() {
            None | Some(Value::Nil) => Ok(None),
            value => Read::of(&bytes(value).map_err(unreadable)?).map(Some).map_err(unreadable),
        }
    }

    /// The same for a step of a hold that the caller has `found`.
    pub(super) async fn record_of(
        &self,
        place: &Place,
        id: HoldId,
        found: Option<&Arc<Hold>>,
    ) -> Result<Option<Read>, EngineError> {
        match found.and_then(|found| self.just_read.take(found)).filter(|read| !read.hold.is_finished()) {
            Some(read) => Ok(Some(read)),
            None => self.record(place, id).await,
        }
    }

    pub(super) async fn hold_now(
        &self,
        tenant: TenantRef,
        id: HoldId,
    ) -> Result<Option<Arc<Hold>>, EngineError> {
        let place = self.place(tenant)?;
        let read = self.record(&place, id).await?;
        if let Some(read) = read.as_ref().filter(|read| !read.hold.is_finished()) {
            self.just_read.add(read);
        }
        Ok(read.map(|read| read.hold))
    }

    /// Asks for what [`stands`] reads.
    pub(super) fn ask_for(place: &Place, key: &AccountKey, pipeline: &mut Pipeline) {
        pipeline.cmd("GET").arg(place.keys.account(key));
        pipeline.cmd("ZRANGE").arg(place.keys.open(key)).arg(0).arg(-1).arg("WITHSCORES");
    }

    pub(super) async fn request_now(
        &self,
        user: &AccountKey,
        digest: u64,
        now: Millis,
    ) -> Result<Step<Option<HoldId>>, EngineError> {
        let place = self.place(user.tenant)?;
        let ask = |pipeline: &mut Pipeline| {
            Self::ask_for(&place, user, pipeline);
            pipeline.cmd("HGET").arg(place.keys.requests(&user.owner)).arg(&digest.to_le_bytes());
        };
        let (meta, mut values) = self.look(&place, ask).await?;
        let account = match stands(&mut values)? {
            Stands::Absent => {
                return Ok(Step::Missing(self.missing(&place, std::iter::once(user), meta.seq)));
            }
            Stands::Moved => return Err(EngineError::Moved),
            Stands::Here { account, .. } => account,
        };
        let Some(Value::BulkString(mark)) = values.next() else { return Ok(Step::Done(None)) };
        let mut r = Reader(&mark);
        let (hold, finished) = (r.u128_be().map_err(unreadable)?, r.at().map_err(unreadable)?);
        let now = now.max(account.advanced_to());
        let expired = finished != Millis::MAX && finished.plus_ms(REQUESTS_KEPT_MS) <= now;
        Ok(Step::Done((!expired).then_some(HoldId(hold))))
    }

    pub(super) async fn rest_now(&self, key: &AccountKey, _now: Millis) -> Result<Step<Rest>, EngineError> {
        let place = self.place(key.tenant)?;
        let (meta, mut values) = self.look(&place, |pipeline| Self::ask_for(&place, key, pipeline)).await?;
        Ok(match stands(&mut values)? {
            Stands::Absent => Step::Missing(self.missing(&place, std::iter::once(key), meta.seq)),
            Stands::Moved => return Err(EngineError::Moved),
            Stands::Here { account, open, .. } => {
                let unfinished = key.scope == Scope::User && !open.is_empty();
                Step::Done(Rest { at: account.at_rest(), unfinished })
            }
        })
    }

    pub(super) async fn probe_now(
        &self,
        accounts: &[AccountKey],
        charges: &[Charge],
        now: Millis,
    ) -> Result<Vec<Option<Probed>>, EngineError> {
        let Some(first) = accounts.first() else { return Ok(Vec::new()) };
        let place = self.place(first.tenant)?;
        let ask =
            |pipeline: &mut Pipeline| accounts.iter().for_each(|key| Self::ask_for(&place, key, pipeline));
        let (_, mut values) = self.look(&place, ask).await?;
        let mut probed = Vec::with_capacity(accounts.len());
        for index in 0..accounts.len() {
            probed.push(match stands(&mut values)? {
                Stands::Absent | Stands::Moved => None,
                Stands::Here { account, .. } => {
                    let now = now.max(account.advanced_to());
                    let probes = step::probe(&account, index, charges, now);
                    Some(Probed { probes, next_lease_end: account.next_lease_end(now) })
                }
            });
        }
        Ok(probed)
    }

    /// Where a script told only the first of many lease ends to come, reads the
    /// rest, for those of the accounts that waits depend on.
    pub(super) async fn look_further(
        &self,
        place: &Place,
        keys: &[AccountKey],
        wanted: SmallVec<[u8; 4]>,
        found: &mut Found,
    ) -> Result<bool, EngineError> {
        let mut further = false;
        for (index, key) in keys.iter().enumerate().take(found.accounts.len()) {
            let account = &found.accounts[index];
            let told = account.open().filter(|(end, ..)| *end > found.now).count();
            if !wanted.contains(&(index as u8)) || told < ENDS_TOLD {
                continue;
            }
            let ask = |pipeline: &mut Pipeline| {
                let from = format!("({}", found.now.0);
                let range = pipeline.cmd("ZRANGEBYSCORE").arg(place.keys.open(key)).arg(from);
                range.arg("+inf").arg("WITHSCORES").arg("LIMIT").arg(0).arg(ENDS_READ);
            };
            let (_, mut values) = self.look(place, ask).await?;
            let all = opens(values.next()).map_err(unreadable)?;
            let due = account.open().filter(|(end, ..)| *end <= found.now);
            let open: Vec<Open> = due.chain(all).collect();
            let (cells, spent) = (account.cells().to_vec(), account.spent().clone());
            found.accounts[index] = Account::from_parts(cells, account.advanced_to(), spent, open);
            further = true;
        }
        Ok(further)
    }

    pub(super) async fn load_now(&self, missing: &Missing, loaded: Vec<Loaded>) -> Result<(), EngineError> {
        let Some(first) = missing.keys.first() else { return Ok(()) };
        let place = self.place(first.tenant)?;
        // What was read of another epoch may be behind.
        if missing.after.is_some_and(|after| after.epoch != place.view.epoch) {
            return Ok(());
        }
        let mut records = Vec::new();
        let stored = |(key, loaded): (&'_ AccountKey, &'_ Loaded)| {
            let open = match key.scope {
                Scope::User => loaded.unfinished.iter().filter_map(of_hold).collect(),
                _ => loaded.account.open().map(of_open).collect(),
            };
            let requests = loaded.requests.clone();
            Stored { key: key.clone(), state: state::pack(&loaded.account), open, requests }
        };
        let accounts: Vec<Stored> = missing.keys.iter().zip(&loaded).map(stored).collect();
        for hold in loaded.iter().flat_map(|loaded| &loaded.unfinished) {
            records.push((hold.id, record::whole(hold)));
        }
        let call = calls::load(&place.keys, place.view.epoch, &accounts, &records);
        let value = self.change(&place, &self.scripts.load, &call).await?;
        match int(Some(value)).map_err(unreadable)? {
            0 => Ok(()),
            _ => Err(self.distrust(place.tenant)),
        }
    }
}

/// Reads the answers to [`RedisEngine::ask_for`].
pub(super) fn stands(values: &mut std::vec::IntoIter<Value>) -> Result<Stands, EngineError> {
    let (state, open) = (values.next(), values.next());
    let raw = match state {
        None | Some(Value::Nil) => return Ok(Stands::Absent),
        state => bytes(state).map_err(unreadable)?,
    };
    if raw.len() == 1 {
        return Ok(Stands::Moved);
    }
    let packed = Packed::read(&raw).map_err(unreadable)?;
    let open = opens(open).map_err(unreadable)?;
    let running = open.iter().filter(|(end, ..)| *end > packed.advanced_to).cloned().collect::<Vec<_>>();
    Ok(Stands::Here { account: packed.account(running), raw, open })
}

fn of_hold(hold: &Arc<Hold>) -> Option<(f64, Vec<u8>)> {
    Some((hold.doubtful_from()?.0 as f64, state::member(hold, Scope::User)))
}

fn of_open((end, id, parts): Open) -> (f64, Vec<u8>) {
    (end.0 as f64, state::member_of(id, &parts))
}
