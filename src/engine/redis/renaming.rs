//! Moving a user's account to another name.

use redis::{Pipeline, Value, cmd};

use super::answers::{self, Answer};
use super::bytes::Unreadable;
use super::calls::Call;
use super::draining::entry_parts;
use super::engine::{Place, RedisEngine, unavailable, unreadable};
use super::reading::{Stands, stands};
use super::record::{self, Record};
use super::state;
use crate::domain::account::Account;
use crate::domain::charge::{AccountKey, TenantRef};
use crate::domain::hold::Hold;
use crate::domain::ids::{HoldId, UserId};
use crate::domain::plan::Scope;
use crate::domain::time::Millis;
use crate::engine::{EngineError, Moved, Step};

/// How often a move is tried while calls change what it moves.
const TRIES: usize = 32;

impl RedisEngine {
    pub(super) async fn reopen_now(&self, key: &AccountKey) -> Result<(), EngineError> {
        let place = self.place(key.tenant)?;
        let call = Call { keys: vec![place.keys.account(key)], args: Vec::new() };
        self.change(&place, &self.scripts.reopen, &call).await?;
        Ok(())
    }

    pub(super) async fn forget_holds_now(
        &self,
        tenant: TenantRef,
        holds: &[HoldId],
    ) -> Result<(), EngineError> {
        if holds.is_empty() {
            return Ok(());
        }
        let place = self.place(tenant)?;
        let mut unlink = cmd("UNLINK");
        holds.iter().for_each(|id| _ = unlink.arg(place.keys.hold(*id)));
        self.redis.run(place.slot, &unlink).await.map_err(unavailable)?;
        Ok(())
    }

    /// Reads everything, and lets the script see to it that it is still so.
    pub(super) async fn move_now(
        &self,
        tenant: TenantRef,
        from: &UserId,
        to: &UserId,
        now: Millis,
    ) -> Result<Step<Moved>, EngineError> {
        let place = self.place(tenant)?;
        let key = |user: &UserId| AccountKey { tenant, scope: Scope::User, owner: user.shared() };
        let names = [key(from), key(to)];
        for _ in 0..TRIES {
            let ask = |pipeline: &mut Pipeline| {
                names.iter().for_each(|key| Self::ask_for(&place, key, pipeline));
                pipeline.cmd("HLEN").arg(place.keys.requests(&names[0].owner));
            };
            let (meta, mut values) = self.look(&place, ask).await?;
            let (source, target) = (stands(&mut values)?, stands(&mut values)?);
            let has_requests = !matches!(values.next(), Some(Value::Int(0)));
            let absent: Vec<&AccountKey> = names
                .iter()
                .zip([&source, &target])
                .filter_map(|(key, stands)| matches!(stands, Stands::Absent).then_some(key))
                .collect();
            if !absent.is_empty() {
                return Ok(Step::Missing(self.missing(&place, absent.into_iter(), meta.seq)));
            }
            let (source_raw, account, open) = parts(source);
            let (target_raw, target, target_open) = parts(target);
            let mut holds = self.unrecorded(&place, from).await?;
            holds.extend(open.iter().map(|(_, id, _)| *id));
            holds.sort_unstable();
            holds.dedup();
            let is_blank = account.is_blank() && holds.is_empty() && !has_requests;
            let counts = !target_open.is_empty() || target.at_rest().is_none_or(|at| at > now);
            if !is_blank && counts {
                return Ok(Step::Done(Moved::Occupied));
            }
            let mut call = Call::new(&place.keys, self.head(&place, now), HoldId(0), &names);
            let mine = place.keys.requests(&names[0].owner);
            if let Some(last) = call.keys.last_mut() {
                *last = place.keys.requests(&names[1].owner);
            }
            call.keys.push(mine);
            // The script reads "M" for an account that goes by another name.
            let state = if is_blank { Vec::new() } else { state::pack(&account) };
            call =
                call.with(source_raw).with(target_raw).with(state).with(open.len().to_string().into_bytes());
            if !is_blank && !self.with_records(&place, &mut call, &holds, to).await? {
                // One is open for so long that its record has ended here.
                return Ok(Step::Missing(self.missing(&place, names.iter().take(1), meta.seq)));
            }
            let value = self.change(&place, &self.scripts.moves, &call).await?;
            match answers::read(value).map_err(unreadable)? {
                Answer::Done(found) => {
                    self.moved_on(&place, found.seq);
                    return Ok(Step::Done(Moved::Done(self.ticket(&place, found.seq))));
                }
                Answer::Changed => {}
                Answer::Unsure => return Err(self.distrust(tenant)),
                Answer::Clock(at) => return Err(EngineError::Clock(tenant, at)),
                _ => return Err(EngineError::Unavailable),
            }
        }
        Err(EngineError::Overloaded)
    }

    /// Adds the holds' records, as they are and under the other name; `false`:
    /// one is not here.
    async fn with_records(
        &self,
        place: &Place,
        call: &mut Call,
        holds: &[HoldId],
        to: &UserId,
    ) -> Result<bool, EngineError> {
        let ask = |pipeline: &mut Pipeline| {
            for hold in holds {
                pipeline.cmd("GET").arg(place.keys.hold(*hold));
            }
        };
        let (_, values) = self.look(place, ask).await?;
        for (id, value) in holds.iter().zip(values) {
            let Value::BulkString(known) = value else { return Ok(false) };
            let known_record = Record::read(&known).map_err(unreadable)?;
            let hold = Hold { user: to.clone(), admits_user: false, ..known_record.hold };
            call.keys.push(place.keys.hold(*id));
            call.args.push(known);
            call.args.push(record::whole_at(&hold, known_record.version + 1));
        }
        Ok(true)
    }

    /// Finished holds of a user that are not on record yet.
    async fn unrecorded(&self, place: &Place, user: &UserId) -> Result<Vec<HoldId>, EngineError> {
        let mut range = cmd("XRANGE");
        range.arg(place.keys.stream()).arg("-").arg("+");
        let (value, _) = self.redis.run(place.slot, &range).await.map_err(unavailable)?;
        let Value::Array(entries) = value else { return Err(unreadable(Unreadable)) };
        let mut holds = Vec::new();
        for entry in entries {
            let (_, fields) = entry_parts(entry).map_err(unreadable)?;
            for (_, value) in fields.iter().filter(|(name, _)| name == b"h") {
                let hold = Record::read(value).map_err(unreadable)?.hold;
                if hold.user == *user && hold.is_finished() {
                    holds.push(hold.id);
                }
            }
        }
        Ok(holds)
    }
}

fn parts(stands: Stands) -> (Vec<u8>, Account, Vec<state::Open>) {
    match stands {
        Stands::Here { raw, account, open } => (raw, account, open),
        Stands::Absent | Stands::Moved => (b"M".to_vec(), Account::default(), Vec::new()),
    }
}
