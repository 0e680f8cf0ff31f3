//! Tidying, and the rule that ends what stays in doubt.
//!
//! Nothing waits for a sweep: leases and windows are read off the clock, and a
//! hold whose rule is due is resolved whenever somebody touches it. The sweep
//! resolves the rest and drops idle accounts from memory.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::{Service, ServiceError, Tenant, Unrecorded};
use crate::domain::document::Node;
use crate::domain::hold::{FinishedBy, Hold, ReleaseReason};
use crate::domain::ids::HoldId;
use crate::domain::time::Millis;
use crate::ledger::DoubtFilter;
use crate::service::calls::doubt::Pages;
use crate::service::calls::finishing::{Ending, reported_of};
use crate::service::tenancy::catalog_writes::Versioned;
use crate::service::tenancy::settings::Resolution;
use crate::service::waiting::Resting;

/// How often doubtful holds are looked for.
const EVERY: Duration = Duration::from_secs(5);
/// Rounds of `EVERY` between two sweeps of idle accounts.
const ROUNDS_PER_SWEEP: u32 = 12;
/// Rounds between two looks for counters that are too old: about an hour.
const ROUNDS_PER_PRUNING: u32 = 720;
/// Pages of due holds that a change of settings waits for: 10,000 holds.
const PAGES_AT_ONCE: u32 = 20;

impl Service {
    /// Starts sweeping; abort the task to stop.
    pub fn start_sweeper(self: &Arc<Self>) -> JoinHandle<()> {
        let service = Arc::clone(self);
        tokio::spawn(async move {
            let mut slots_seen = HashSet::new();
            for round in 0u32.. {
                tokio::time::sleep(EVERY).await;
                if let Err(error) = service.look_after_slots(&mut slots_seen).await {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "cannot look after what other nodes left");
                }
                for tenant in service.registry.tenants() {
                    if let Err(error) = service.resolve_due(&tenant).await {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(tenant.id = %tenant.id, error, "cannot resolve holds in doubt");
                    }
                    if let Err(error) = service.record_busy(&tenant).await {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(tenant.id = %tenant.id, error, "cannot record how busy pools were");
                    }
                    if let Err(error) = service.record_moves(&tenant).await {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(tenant.id = %tenant.id, error, "cannot record moves of plans");
                    }
                }
                service.go_on_erasing().await;
                if round % ROUNDS_PER_PRUNING == 0 {
                    service.prune_all().await;
                }
                if round % ROUNDS_PER_SWEEP == 0 {
                    service.go_on_with_make_goods().await;
                    let kept = service.engine.sweep(service.registry.wall.now()).await;
                    tracing::debug!(accounts.kept = kept, "swept");
                }
            }
        })
    }

    /// Ends erasures that were begun, and forgets erased users whose time has
    /// come.
    pub async fn go_on_erasing(&self) {
        for tenant in self.registry.tenants() {
            let work = async {
                self.end_erasures(&tenant).await?;
                self.forget_erased(&tenant).await
            };
            if let Err(error) = work.await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(tenant.id = %tenant.id, error, "cannot go on erasing users");
            }
        }
    }

    async fn go_on_with_make_goods(self: &Arc<Self>) {
        for tenant in self.registry.tenants() {
            if let Err(error) = self.go_on_making_good(&tenant).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(tenant.id = %tenant.id, error, "cannot go on making good");
            }
        }
    }

    async fn prune_all(&self) {
        for tenant in self.registry.tenants() {
            if let Err(error) = self.prune_tallies(&tenant).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(tenant.id = %tenant.id, error, "cannot take out old counters");
            }
        }
    }

    /// Sets a test tenant's clock; what became due by that is resolved before
    /// anything else is decided.
    pub async fn set_clock(&self, tenant: &Tenant, now: Millis, by: &str) -> Result<Millis, ServiceError> {
        let now = self.registry.set_clock(tenant, now, by).await?;
        self.plain(|| self.engine.set_clock(tenant.number, now)).await?;
        self.resolve_due(tenant).await?;
        self.record_moves(tenant).await?;
        self.forget_erased(tenant).await?;
        self.rooms.ring_tenant(tenant.number);
        self.test_clock_moved.notify_one();
        Ok(now)
    }

    /// Those who wait for this tenant's clock on this node, once all of them
    /// have looked at it.
    pub async fn at_rest(&self, tenant: &Tenant) -> Resting {
        self.rooms.at_rest(tenant.number).await
    }

    /// Changes settings. A new rule for what is in doubt holds for what is in
    /// doubt already: much of that is resolved here, the rest by the sweep.
    pub async fn put_settings(
        &self,
        tenant: &Arc<Tenant>,
        body: &Node<'_>,
        expected: Option<u32>,
        by: &str,
    ) -> Result<Versioned, ServiceError> {
        let rule = tenant.catalog().settings.in_doubt_after;
        let written = self.registry.put_settings(tenant, body, expected, by).await?;
        if tenant.catalog().settings.in_doubt_after != rule
            && let Err(error) = self.resolve_due_pages(tenant, PAGES_AT_ONCE).await
        {
            // The settings are on record all the same.
            let error = &error as &dyn std::error::Error;
            tracing::warn!(tenant.id = %tenant.id, error, "cannot resolve holds in doubt");
        }
        Ok(written)
    }

    /// Resolves every hold of a tenant that has been in doubt for as long as
    /// its rule allows. Returns how many.
    pub async fn resolve_due(&self, tenant: &Tenant) -> Result<u32, ServiceError> {
        self.resolve_due_pages(tenant, u32::MAX).await
    }

    async fn resolve_due_pages(&self, tenant: &Tenant, most: u32) -> Result<u32, ServiceError> {
        let mut pages = Pages::of(tenant, DoubtFilter::default(), self.due_before(tenant), None);
        let mut resolved = 0;
        for _ in 0..most {
            let Some(holds) = pages.next(self).await? else { break };
            let mut ended = Vec::with_capacity(holds.len());
            for hold in holds {
                ended.extend(self.end_by_rule(tenant, &Arc::new(hold)).await?);
            }
            for (_, ticket) in ended {
                self.recorded(ticket).await?;
                resolved += 1;
            }
        }
        Ok(resolved)
    }

    /// What came into doubt by then is due now.
    pub(super) fn due_before(&self, tenant: &Tenant) -> Millis {
        let hours = tenant.catalog().settings.in_doubt_after.hours;
        tenant.now().plus_ms(-i64::from(hours) * 3_600_000)
    }

    /// A hold as it is now: one whose rule is due is resolved first.
    pub(super) async fn current_hold(
        &self,
        tenant: &Tenant,
        id: HoldId,
    ) -> Result<Option<Arc<Hold>>, ServiceError> {
        let Some(hold) = self.find_hold(tenant, id).await? else { return Ok(None) };
        match hold.doubtful_from() {
            Some(since) if since <= self.due_before(tenant) => {
                if let Some((_, ticket)) = self.end_by_rule(tenant, &hold).await? {
                    self.recorded(ticket).await?;
                }
                self.find_hold(tenant, id).await
            }
            _ => Ok(Some(hold)),
        }
    }

    async fn end_by_rule(
        &self,
        tenant: &Tenant,
        hold: &Arc<Hold>,
    ) -> Result<Option<(Arc<Hold>, Unrecorded)>, ServiceError> {
        let progress = reported_of(hold, hold.progress);
        let ending = match tenant.catalog().settings.in_doubt_after.then {
            Resolution::Release => Ending::Release(ReleaseReason::NotSent, FinishedBy::Rule),
            Resolution::Charge => Ending::Reserved(FinishedBy::Rule),
            Resolution::Progress => Ending::Usage { reported: &progress, amounts: &[], by: FinishedBy::Rule },
        };
        self.end_doubt(tenant, hold, &ending).await
    }
}
