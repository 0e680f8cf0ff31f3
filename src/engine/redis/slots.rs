//! A tenant's slot as a whole: whether it can be trusted, its epoch, its clock.

use redis::{Cmd, Value, cmd};

use super::answers::{bytes, int};
use super::bytes::{Reader, Unreadable};
use super::calls::Call;
use super::connection::Generation;
use super::engine::{Place, RedisEngine, View, unavailable, unreadable};
use super::keys::{self, Keys, Owner};
use super::map::{HashSlot, slot_of};
use crate::domain::charge::{AccountKey, TenantRef};
use crate::domain::slot::{Position, Slot};
use crate::domain::time::Millis;
use crate::engine::EngineError;

/// Keys looked at in one go.
const PORTION: usize = 1000;

/// What a slot says of itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meta {
    pub epoch: u64,
    /// The number of its last change.
    pub seq: u64,
    /// The last one that is on record, as far as it was told.
    pub drained: u64,
    /// Of a test tenant.
    pub clock: Option<Millis>,
    pub is_closed: bool,
}

impl Meta {
    pub fn read(bytes: &[u8]) -> Result<Self, Unreadable> {
        let mut r = Reader(bytes);
        let (epoch, seq, drained, clock) = (r.amount()?, r.amount()?, r.amount()?, r.at()?);
        Ok(Self { epoch, seq, drained, clock: Some(clock).filter(|at| at.0 >= 0), is_closed: r.u8()? != 0 })
    }

    /// As an answer to `GET`.
    pub fn from_value(value: Value) -> Result<Option<Self>, EngineError> {
        match value {
            Value::Nil => Ok(None),
            value => Self::read(&bytes(Some(value)).map_err(unreadable)?).map(Some).map_err(unreadable),
        }
    }
}

impl RedisEngine {
    pub(super) fn owner(&self, tenant: TenantRef) -> Owner {
        Owner { installation: self.options.installation, tenant }
    }

    pub(super) fn hash_slot(&self, tenant: TenantRef) -> HashSlot {
        slot_of(keys::tag(self.owner(tenant)).as_bytes())
    }

    pub(super) async fn meta(&self, tenant: TenantRef) -> Result<(Option<Meta>, Generation), EngineError> {
        let key = Keys::new(self.owner(tenant), 0).meta();
        let (value, generation) =
            self.redis.run(self.hash_slot(tenant), cmd("GET").arg(key)).await.map_err(unavailable)?;
        Ok((Meta::from_value(value)?, generation))
    }

    /// What Redis has of an account, and of its slot, for a person to see.
    pub async fn inspect(&self, key: &AccountKey) -> Result<serde_json::Value, EngineError> {
        let Some(meta) = self.meta(key.tenant).await?.0 else { return Ok(serde_json::Value::Null) };
        let (keys, slot) = (Keys::new(self.owner(key.tenant), meta.epoch), self.hash_slot(key.tenant));
        let (state, _) =
            self.redis.run(slot, cmd("GET").arg(keys.account(key))).await.map_err(unavailable)?;
        let (open, _) = self.redis.run(slot, cmd("ZCARD").arg(keys.open(key))).await.map_err(unavailable)?;
        let state = match state {
            Value::Nil => None,
            state => super::state::inspect(&bytes(Some(state)).map_err(unreadable)?),
        };
        Ok(serde_json::json!({
            "key": keys.account(key),
            "account": state,
            "unfinished_holds": int(Some(open)).map_err(unreadable)?,
            "slot": {
                "epoch": meta.epoch,
                "last_change": meta.seq,
                "on_record": meta.drained,
                "clock": meta.clock,
                "closed": meta.is_closed,
            },
        }))
    }

    /// Whether a slot, as just read, is the one that was compared with the
    /// ledger, and not behind what this node saw of it.
    pub(super) fn is_trusted(place: &Place, meta: Option<Meta>, generation: Generation) -> Option<Meta> {
        let View { epoch, known, generation: compared } = place.view;
        meta.filter(|meta| {
            generation == compared && meta.epoch == epoch && !meta.is_closed && meta.seq >= known
        })
    }

    pub(super) async fn trusted_meta(&self, tenant: TenantRef) -> Result<(Place, Meta), EngineError> {
        let place = self.place(tenant)?;
        let (meta, generation) = self.meta(tenant).await?;
        match Self::is_trusted(&place, meta, generation) {
            Some(meta) => Ok((place, meta)),
            None => Err(self.distrust(tenant)),
        }
    }

    pub(super) async fn admit_now(&self, tenant: TenantRef, recorded: Slot) -> Result<bool, EngineError> {
        // Before the slot is looked at: it moves on meanwhile.
        let known = self.drains.known(tenant, recorded.epoch).max(recorded.drained);
        let (meta, generation) = self.meta(tenant).await?;
        let Some(meta) =
            meta.filter(|meta| meta.epoch == recorded.epoch && !meta.is_closed && meta.seq >= known)
        else {
            return Ok(false);
        };
        let view = View { epoch: meta.epoch, known: meta.seq, generation };
        self.views.lock().insert(tenant, view);
        self.drains.saw(tenant, meta.epoch, meta.seq);
        if meta.drained < recorded.drained {
            // Whoever recorded it did not come to say so.
            self.say_drained(tenant, recorded.epoch, recorded.drained, &[]).await?;
        }
        self.drains.mark(tenant);
        Ok(true)
    }

    pub(super) async fn close_now(&self, tenant: TenantRef, epoch: u64) -> Result<(), EngineError> {
        self.distrust(tenant);
        self.change_slot(tenant, "close", epoch, 0).await.map(|_| ())
    }

    pub(super) async fn open_now(&self, tenant: TenantRef, recorded: Slot) -> Result<(), EngineError> {
        let opened = self.change_slot(tenant, "open", recorded.epoch, recorded.drained).await?;
        self.drains.begins(tenant, recorded);
        if opened {
            let (keys, slot) = (Keys::new(self.owner(tenant), recorded.epoch), self.hash_slot(tenant));
            let redis = self.redis.clone();
            // What fails here ends by itself, or with the tenant.
            tokio::spawn(async move {
                let _ = unlink(&redis, slot, &keys, |keys, key| keys.is_outlived(key)).await;
            });
        }
        Ok(())
    }

    pub(super) async fn position_now(&self, tenant: TenantRef) -> Result<Option<Position>, EngineError> {
        let (_, meta) = self.trusted_meta(tenant).await?;
        self.drains.mark(tenant);
        Ok(Some(Position { tenant, epoch: meta.epoch, number: meta.seq }))
    }

    pub(super) async fn clock_now(&self, tenant: TenantRef) -> Result<Option<Millis>, EngineError> {
        Ok(self.trusted_meta(tenant).await?.1.clock)
    }

    pub(super) async fn set_clock_now(&self, tenant: TenantRef, now: Millis) -> Result<(), EngineError> {
        let (place, _) = self.trusted_meta(tenant).await?;
        match self.change_slot(tenant, "clock", place.view.epoch, now.0 as u64).await? {
            true => Ok(()),
            false => Err(self.distrust(tenant)),
        }
    }

    async fn change_slot(
        &self,
        tenant: TenantRef,
        what: &str,
        epoch: u64,
        number: u64,
    ) -> Result<bool, EngineError> {
        let args = [what.to_owned(), epoch.to_string(), number.to_string()];
        let call = Call {
            keys: vec![Keys::new(self.owner(tenant), epoch).meta()],
            args: args.into_iter().map(String::into_bytes).collect(),
        };
        let value = self.call(self.hash_slot(tenant), &self.scripts.slots, &call).await?;
        Ok(int(Some(value)).map_err(unreadable)? == 1)
    }

    pub(super) async fn forget_now(&self, tenant: TenantRef) -> Result<(), EngineError> {
        self.distrust(tenant);
        unlink(&self.redis, self.hash_slot(tenant), &Keys::new(self.owner(tenant), 0), |_, _| true).await
    }
}

/// Unlinks keys of a tenant, some at a time.
async fn unlink(
    redis: &super::Redis,
    slot: HashSlot,
    keys: &Keys,
    goes: impl Fn(&Keys, &str) -> bool,
) -> Result<(), EngineError> {
    let mut cursor = b"0".to_vec();
    loop {
        let mut scan = cmd("SCAN");
        scan.arg(&cursor[..]).arg("MATCH").arg(keys.everything()).arg("COUNT").arg(PORTION);
        let (value, _) = redis.run(slot, &scan).await.map_err(unavailable)?;
        let Value::Array(answer) = value else { return Err(unreadable(Unreadable)) };
        let mut answer = answer.into_iter();
        cursor = bytes(answer.next()).map_err(unreadable)?;
        let Some(Value::Array(found)) = answer.next() else { return Err(unreadable(Unreadable)) };
        let mut gone = Cmd::new();
        gone.arg("UNLINK");
        let mut count = 0;
        for key in found {
            let key = bytes(Some(key)).map_err(unreadable)?;
            if goes(keys, &String::from_utf8_lossy(&key)) {
                gone.arg(key);
                count += 1;
            }
        }
        if count > 0 {
            redis.run(slot, &gone).await.map_err(unavailable)?;
        }
        if cursor == b"0" {
            return Ok(());
        }
    }
}
