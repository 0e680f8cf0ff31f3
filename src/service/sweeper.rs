//! Tidying, and the rule that ends what stays in doubt.
//!
//! Nothing waits for a sweep: leases and windows are read off the clock, and a
//! hold whose rule is due is resolved whenever somebody touches it. The sweep
//! resolves the rest and drops idle accounts from memory.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::finishing::count;
use super::settings::Resolution;
use super::{Service, ServiceError, Tenant, Unrecorded};
use crate::domain::hold::{FinishedBy, Hold, ReleaseReason, Reported, Settlement};
use crate::domain::ids::{HoldId, Name};
use crate::domain::time::Millis;
use crate::engine::{Finished, How};

/// How often doubtful holds are looked for.
const EVERY: Duration = Duration::from_secs(5);
/// Rounds of `EVERY` between two sweeps of idle accounts.
const ROUNDS_PER_SWEEP: u32 = 12;
/// Rounds between two looks for counters that are too old: about an hour.
const ROUNDS_PER_PRUNING: u32 = 720;
/// Holds resolved in one go.
const AT_ONCE: u32 = 500;

impl Service {
    /// Starts sweeping; abort the task to stop.
    pub fn start_sweeper(self: &Arc<Self>) -> JoinHandle<()> {
        let service = Arc::clone(self);
        tokio::spawn(async move {
            for round in 0u32.. {
                tokio::time::sleep(EVERY).await;
                for tenant in service.registry.tenants() {
                    if let Err(error) = service.resolve_due(&tenant).await {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(tenant.id = %tenant.id, error, "cannot resolve holds in doubt");
                    }
                }
                if round % ROUNDS_PER_PRUNING == 0 {
                    service.prune_all().await;
                }
                if round % ROUNDS_PER_SWEEP == 0 {
                    let kept = service.engine.sweep(service.registry.wall.now());
                    tracing::debug!(accounts.kept = kept, "swept");
                }
            }
        })
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
        self.resolve_due(tenant).await?;
        Ok(now)
    }

    /// Resolves every hold of a tenant that has been in doubt for as long as
    /// its rule allows. Returns how many.
    pub async fn resolve_due(&self, tenant: &Tenant) -> Result<u32, ServiceError> {
        let mut resolved = 0;
        loop {
            let due = self.due_before(tenant);
            let holds = self.ledger.doubtful(tenant.number, due, AT_ONCE).await?;
            let found = holds.len() as u32;
            for hold in holds {
                self.resolve_by_rule(tenant, &Arc::new(hold)).await?;
            }
            resolved += found;
            if found < AT_ONCE {
                return Ok(resolved);
            }
        }
    }

    /// What came into doubt by then is due now.
    fn due_before(&self, tenant: &Tenant) -> Millis {
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
                self.resolve_by_rule(tenant, &hold).await?;
                self.find_hold(tenant, id).await
            }
            _ => Ok(Some(hold)),
        }
    }

    async fn resolve_by_rule(&self, tenant: &Tenant, hold: &Arc<Hold>) -> Result<(), ServiceError> {
        let how = match tenant.catalog().settings.in_doubt_after.then {
            Resolution::Release => How::Release { reason: ReleaseReason::NotSent, by: FinishedBy::Rule },
            Resolution::Charge => How::Settle(Box::new(charge_reserved(hold))),
            Resolution::Progress => {
                let models = self.models_of(tenant, hold).await?;
                let prices = models.prices(hold.model.as_ref().map(Name::as_str));
                let reported = report(hold, hold.progress);
                let counted = count(&reported, hold.cache_read_weight, prices);
                How::Settle(Box::new(Settlement { counted, reported, ..charge_reserved(hold) }))
            }
        };
        if let (Finished::Done { ticket, .. }, _) = self.finish_with(tenant, hold, how, None).await? {
            self.recorded(Unrecorded(Some(ticket))).await?;
        }
        Ok(())
    }
}

/// Charges exactly what was reserved.
fn charge_reserved(hold: &Hold) -> Settlement {
    Settlement {
        at: hold.created_at,
        late: true,
        by: FinishedBy::Rule,
        reported: report(hold, hold.reserved.output_tokens),
        counted: hold.reserved,
        amounts: hold.amounts.clone(),
    }
}

fn report(hold: &Hold, output_tokens: u64) -> Reported {
    Reported {
        input_tokens: hold.reserved.input_tokens,
        output_tokens,
        model: hold.model.clone(),
        ..Reported::default()
    }
}
