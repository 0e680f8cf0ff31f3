//! Where the engine runs apart: its slots against what the ledger knows.
//!
//! An empty slot is easily told; one that is *behind* (a promoted replica, a
//! restored dump) looks alive and has forgotten what was answered. So a slot is
//! compared with the ledger whenever it was reached anew, and whatever cannot
//! have been the last word is built anew, in a new epoch: accounts then come
//! from the ledger as they are asked for.

use std::collections::HashSet;
use std::time::Duration;

use crate::domain::charge::TenantRef;
use crate::domain::slot::{Fence, Position, Slot};
use crate::domain::time::Millis;
use crate::engine::Lag;
use crate::ledger::LedgerError;
use crate::service::{Service, ServiceError, Tenant};

/// Between two looks whether something is on record.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);
/// How long a call waits for what it needs to be on record.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

impl Service {
    /// Sees to it that a tenant's slot is not behind the ledger.
    pub(in crate::service) async fn settle_slot(&self, tenant: TenantRef) -> Result<(), ServiceError> {
        let recorded = self.recorded_slot(tenant).await?;
        if self.engine.admit(tenant, recorded).await? {
            return Ok(());
        }
        let _turn = self.slot_turn(tenant).await;
        let before = recorded;
        let recorded = self.recorded_slot(tenant).await?;
        // Whoever had the turn may have done it.
        if self.engine.admit(tenant, recorded).await? {
            return Ok(());
        }
        if recorded.epoch > before.epoch {
            // Another node is about to open it: whoever is first does.
            return Ok(self.engine.open_slot(tenant, recorded).await?);
        }
        if recorded.drained > 0 {
            tracing::warn!(tenant.number = tenant.0, slot.epoch = recorded.epoch, "a slot is built anew");
        }
        self.build_anew(tenant, recorded).await
    }

    /// Whether the ledger has less than was on record when a portion was read: it was restored
    /// from a backup, or a replica that was behind has taken its place. What it has counts.
    pub(in crate::service) async fn follow_ledger(&self, read: Fence) -> Result<(), ServiceError> {
        let has_forgotten = |recorded: Slot| recorded.epoch == read.epoch && recorded.drained < read.from;
        if !has_forgotten(self.recorded_slot(read.tenant).await?) {
            return Ok(());
        }
        let _turn = self.slot_turn(read.tenant).await;
        // Whoever had the turn may have done it.
        let recorded = self.recorded_slot(read.tenant).await?;
        if !has_forgotten(recorded) {
            return Ok(());
        }
        tracing::error!(
            tenant.number = read.tenant.0,
            slot.epoch = recorded.epoch,
            was_on_record = read.from,
            is_on_record = recorded.drained,
            "the ledger has forgotten what was on record: the slot is built anew from what it has"
        );
        self.build_anew(read.tenant, recorded).await
    }

    async fn build_anew(&self, tenant: TenantRef, recorded: Slot) -> Result<(), ServiceError> {
        // What it still has goes on record first: all of it was answered.
        self.engine.close_slot(tenant, recorded.epoch).await?;
        self.drain_slot(tenant).await?;
        let renewed = self.ledger.renew_slot(tenant, recorded.epoch).await.map_err(of_slot)?;
        Ok(self.engine.open_slot(tenant, renewed).await?)
    }

    /// Records what a closed slot has left.
    async fn drain_slot(&self, tenant: TenantRef) -> Result<(), ServiceError> {
        loop {
            let recorded = self.recorded_slot(tenant).await?;
            match self.engine.remaining(tenant, recorded).await? {
                Some(batch) => _ = self.record_batch(batch).await?,
                None if self.recorded_slot(tenant).await? == recorded => return Ok(()),
                // Another node has recorded some of it meanwhile.
                None => {}
            }
        }
    }

    /// Sees to it that what other nodes left for the ledger is recorded, of
    /// tenants too whom nobody asks this node about.
    pub(in crate::service) async fn look_after_slots(
        &self,
        seen: &mut HashSet<TenantRef>,
    ) -> Result<(), ServiceError> {
        if !self.engine.has_slots() {
            return Ok(());
        }
        for tenant in self.registry.tenants() {
            if !seen.contains(&tenant.number) {
                self.engine.look_after(tenant.number, self.ledger.slot(tenant.number).await?);
                seen.insert(tenant.number);
            }
        }
        Ok(())
    }

    /// How far the ledger is behind the engine.
    pub fn lag(&self) -> Lag {
        self.engine.lag()
    }

    /// Waits until the ledger has come so far.
    pub(in crate::service) async fn on_record(&self, position: Position) -> Result<(), ServiceError> {
        let wait = async {
            loop {
                let drained = self.drained.notified();
                if position.is_in(self.recorded_slot(position.tenant).await?) {
                    return Ok(());
                }
                let _ = tokio::time::timeout(BETWEEN_LOOKS, drained).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap_or(Err(ServiceError::Overloaded))
    }

    /// Brings what other nodes did before a call to this one: a test clock that
    /// they set, and for calls that read the ledger (`reads`) what they, or we,
    /// decided.
    pub async fn catch_up(&self, tenant: &Tenant, reads: bool) -> Result<(), ServiceError> {
        let number = tenant.number;
        if tenant.test {
            match self.plain(|| self.engine.clock(number)).await {
                Ok(Some(now)) => tenant.clock.stand_at(Some(now)),
                // The last time heard of goes on; who decides asks the engine again.
                Ok(None) | Err(ServiceError::StoreUnavailable(_)) => {}
                Err(error) => return Err(error),
            }
        }
        if !reads {
            return Ok(());
        }
        match self.plain(|| self.engine.position(number)).await {
            Ok(Some(position)) => self.on_record(position).await,
            // Nothing is decided while the engine is away; what is on record
            // can be looked at and changed all the same.
            Ok(None) | Err(ServiceError::StoreUnavailable(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The engine has another time for a tenant than we. Whoever decided by
    /// ours decides again.
    pub(super) async fn set_right(&self, number: TenantRef, now: Millis) -> Result<(), ServiceError> {
        let tenant = self.registry.tenants().into_iter().find(|tenant| tenant.number == number);
        match tenant.filter(|tenant| tenant.test) {
            None => self.registry.wall.lead_to(now),
            Some(tenant) => match (self.engine.clock(number).await?, tenant.clock.standing()) {
                (Some(set), _) => tenant.clock.stand_at(Some(set)),
                // The slot was emptied.
                (None, Some(ours)) => self.engine.set_clock(number, ours).await?,
                (None, None) => self.registry.wall.lead_to(now),
            },
        }
        Err(ServiceError::ClockOff)
    }

    async fn recorded_slot(&self, tenant: TenantRef) -> Result<Slot, ServiceError> {
        self.ledger.slot(tenant).await.map_err(of_slot)
    }

    async fn slot_turn(&self, tenant: TenantRef) -> tokio::sync::MutexGuard<'_, ()> {
        self.turns[tenant.0 as usize % self.turns.len()].lock().await
    }
}

/// Whoever was deleted meanwhile has no slot: the call that asks never happened,
/// and the next one is nobody's.
fn of_slot(error: LedgerError) -> ServiceError {
    match error {
        LedgerError::Conflict => ServiceError::StoreUnavailable(Box::new(error)),
        other => other.into(),
    }
}
