//! Following what others write: what changed is read again, and nothing else.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::Notify;

use super::catalog::Tenant;
use super::registry::Registry;
use crate::domain::charge::TenantRef;
use crate::ledger::{Bucket, Changed, TenantRow, What};
use crate::service::error::ServiceError;

/// How often the ledger is asked whether others wrote to it, whoever calls.
pub(in crate::service) const POLL: Duration = Duration::from_millis(500);
/// Between two looks at least: others may write without a pause.
const LOOKS_APART: Duration = Duration::from_millis(20);

/// How often others wrote, by bucket. Of users and orgs that were read, the
/// number from before the reading is kept: an entry with another one is not
/// believed, also if it was read before the change and put by after.
pub(in crate::service) struct Epochs(Box<[AtomicU32]>);

impl Default for Epochs {
    fn default() -> Self {
        Self((0..Bucket::COUNT).map(|_| AtomicU32::new(0)).collect())
    }
}

impl Epochs {
    pub fn of(&self, tenant: TenantRef, id: &str) -> u32 {
        self.0[usize::from(Bucket::of(tenant, id).0)].load(SeqCst)
    }

    fn pass(&self, bucket: Bucket) {
        self.0[usize::from(bucket.0)].fetch_add(1, SeqCst);
    }

    pub fn pass_all(&self) {
        for epoch in &self.0 {
            epoch.fetch_add(1, SeqCst);
        }
    }
}

/// The way on which nodes tell each other to look at once. Without one, and
/// while it is down, they look every [`POLL`].
#[derive(Default)]
pub(in crate::service) struct Channel {
    woken: Arc<Notify>,
    on_written: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Channel {
    /// Something is on record of which the others should hear.
    pub fn written(&self) {
        if let Some(tell) = self.on_written.get() {
            tell();
        }
    }
}

/// What of a tenant is to be read again.
#[derive(Default)]
struct Stale {
    row: bool,
    records: bool,
}

impl Registry {
    /// Looks for what others wrote as soon as may be: somebody has told us.
    /// Many calls at a time are one look.
    pub fn look_now(&self) {
        self.channel.woken.notify_one();
    }

    /// Has `tell` called after every write of this process of which others
    /// should hear; it must not block, and may leave out what it told just
    /// now. To be set once, at the start.
    pub fn on_written(&self, tell: impl Fn() + Send + Sync + 'static) {
        if self.channel.on_written.set(Box::new(tell)).is_err() {
            tracing::error!("a second channel for changes was refused");
        }
    }

    /// Keeps the copy and the wall clock current for as long as anybody holds
    /// the registry.
    pub fn start_polling(self: &Arc<Self>) -> tokio::task::JoinHandle<()> {
        let (registry, woken) = (Arc::downgrade(self), Arc::clone(&self.channel.woken));
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(POLL);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = woken.notified() => {}
                }
                let Some(registry) = registry.upgrade() else { return };
                registry.wall.follow();
                if let Err(error) = registry.refresh().await {
                    tracing::warn!(error = &error as &dyn std::error::Error, "cannot look for changes");
                }
                drop(registry);
                tokio::time::sleep(LOOKS_APART).await;
            }
        })
    }

    /// Reads again what has changed.
    pub(super) async fn follow(&self, changes: &[Changed]) -> Result<(), ServiceError> {
        let mut tenants: BTreeMap<u32, Stale> = BTreeMap::new();
        let mut buckets = HashSet::new();
        let mut operators = false;
        for Changed { tenant, what } in changes {
            let stale = tenant.map(|tenant| tenants.entry(tenant.0).or_default());
            match (what, stale) {
                (What::User(bucket) | What::Org(bucket), _) => drop(buckets.insert(*bucket)),
                (What::Tenant, Some(stale)) => stale.row = true,
                (What::Record(..), Some(stale)) => stale.records = true,
                (_, None) => operators = true,
            }
        }
        if operators {
            self.tolerate(self.read_operators().await, "")?;
        }
        // Plans before those who may have moved to them.
        let rows = match tenants.values().any(|stale| stale.row) {
            true => self.ledger.tenants().await?,
            false => Vec::new(),
        };
        for (number, stale) in tenants {
            let row = rows.iter().find(|row| row.number.0 == number);
            self.follow_tenant(TenantRef(number), stale, row).await?;
        }
        buckets.iter().for_each(|bucket| self.epochs.pass(*bucket));
        self.watchers.owners_changed(&buckets);
        Ok(())
    }

    async fn follow_tenant(
        &self,
        number: TenantRef,
        stale: Stale,
        row: Option<&TenantRow>,
    ) -> Result<(), ServiceError> {
        match (self.tenant_numbered(number), row) {
            // It was deleted meanwhile.
            (None, None) => Ok(()),
            (None, Some(row)) => self.tolerate(self.take_on(row).await.map(drop), row.id.as_str()),
            (Some(tenant), _) => {
                let _turn = tenant.changing.lock().await;
                if tenant.is_deleted() {
                    return Ok(());
                }
                match row {
                    None if stale.row => self.let_go(&tenant),
                    Some(row) if stale.row => self.follow_row(&tenant, row).await?,
                    _ => {}
                }
                match stale.records && !tenant.is_deleted() {
                    true => self.tolerate(self.read_tenant(&tenant).await, tenant.id.as_str()),
                    false => Ok(()),
                }
            }
        }
    }

    /// Brings a tenant to what its row says. The caller holds
    /// `tenant.changing`.
    pub(super) async fn follow_row(&self, tenant: &Arc<Tenant>, row: &TenantRow) -> Result<(), ServiceError> {
        if row.has_erased {
            tenant.erases();
        }
        if (tenant.is_suspended(), tenant.clock.standing()) == (row.suspended, row.clock) {
            return Ok(());
        }
        // The row may be older than what was last written here.
        let rows = self.ledger.tenants().await?;
        if let Some(row) = rows.iter().find(|now| now.number == row.number) {
            tenant.suspend(row.suspended);
            tenant.clock.stand_at(row.clock);
            self.watchers.tenant_changed(tenant.number);
        }
        Ok(())
    }

    /// What is broken on record keeps what it had; the log tells.
    pub(super) fn tolerate(&self, result: Result<(), ServiceError>, whose: &str) -> Result<(), ServiceError> {
        match result {
            Err(ServiceError::Corrupt(what)) => {
                tracing::error!(tenant.id = whose, what, "a stored record cannot be read");
                Ok(())
            }
            other => other,
        }
    }
}

#[cfg(test)]
#[path = "following_tests.rs"]
mod tests;
