//! Learning from settled calls: when outputs are counted, written and read.

mod outputs;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::domain::hold::{Hold, Stage};
use crate::domain::ids::{Label, Name};
use crate::ledger::{LedgerError, Output};
use crate::service::{Service, ServiceError, Tenant};

use outputs::KEPT_DAYS;
pub use outputs::Outputs;

/// Seconds between two writings of what was counted here.
const WRITE_EVERY: u32 = 10;
/// Seconds between two readings of what others have counted.
const READ_EVERY: u32 = 30;

/// Tokens of the calls that this node has settled.
#[derive(Debug, Default)]
pub struct TokenSums {
    pub input: Sums,
    pub output: Sums,
}

#[derive(Debug, Default)]
pub struct Sums {
    pub reserved: AtomicU64,
    pub used: AtomicU64,
}

impl Sums {
    fn add(&self, reserved: u64, used: u64) {
        self.reserved.fetch_add(reserved, Relaxed);
        self.used.fetch_add(used, Relaxed);
    }
}

impl Service {
    /// Learns from a hold that a caller has settled with figures.
    pub(in crate::service) fn learn(&self, tenant: &Tenant, hold: &Hold) {
        let Stage::Settled(settlement) = &hold.stage else { return };
        let (reserved, reported) = (hold.reserved, &settlement.reported);
        self.tokens.input.add(reserved.input_tokens, reported.input_tokens);
        self.tokens.output.add(reserved.output_tokens, reported.output_tokens);
        let feature = hold.feature.as_ref().map_or("", Label::as_str);
        let model = reported.model.as_ref().map_or("", Name::as_str);
        tenant.outputs.note(feature, model, hold.day, reserved.output_tokens, reported.output_tokens);
    }

    /// Before somebody asks what calls are likely to take.
    pub(in crate::service) async fn know_outputs(&self, tenant: &Tenant) {
        tenant.outputs.know(&*self.ledger, tenant.number, today(tenant)).await;
    }

    /// How long answers were in the last days, by feature and model, over all nodes.
    pub async fn outputs(&self, tenant: &Tenant) -> Result<Vec<Output>, ServiceError> {
        tenant.outputs.flush(&*self.ledger, tenant.number).await?;
        Ok(self.ledger.outputs(tenant.number, first_day(tenant)).await?)
    }

    /// What is due in this second of many; `last`: there will be no other.
    pub(in crate::service) async fn keep_outputs(&self, second: u32, last: bool) -> Result<(), LedgerError> {
        let (write, read) =
            (second.is_multiple_of(WRITE_EVERY) || last, second.is_multiple_of(READ_EVERY) && !last);
        if !write && !read {
            return Ok(());
        }
        for tenant in self.registry.tenants() {
            tenant.outputs.flush(&*self.ledger, tenant.number).await?;
            if read {
                tenant.outputs.refresh(&*self.ledger, tenant.number, today(&tenant)).await?;
            }
        }
        Ok(())
    }

    /// Takes out what is older than the days that are kept.
    pub(in crate::service) async fn prune_outputs(&self, tenant: &Tenant) -> Result<(), ServiceError> {
        while self.ledger.prune_outputs(tenant.number, first_day(tenant)).await? {}
        Ok(())
    }
}

fn today(tenant: &Tenant) -> i32 {
    tenant.catalog().settings.zone.local_day(tenant.now())
}

fn first_day(tenant: &Tenant) -> i32 {
    today(tenant) - KEPT_DAYS + 1
}
