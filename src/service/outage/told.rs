//! What is on record of an outage once it is over: in the audit of every tenant
//! that met it on this node, from when until when, and what became of its checks.

use serde_json::json;

use super::super::{Allowed, CheckReply, Service, ServiceError, Tenant};
use super::{Map, Outage};
use crate::domain::charge::TenantRef;
use crate::domain::time::Millis;
use crate::ledger::{Note, Write, Written};

const BY: &str = "outage";
/// How the kernel calls the machine; in a container that is the container's name.
const NAME_OF_MACHINE: &str = "/proc/sys/kernel/hostname";

/// A tenant's part of an outage.
#[derive(Debug, Clone, Copy)]
pub(super) struct Met {
    from: Millis,
    admitted: u64,
    refused: u64,
}

pub(super) type MetBy = Map<TenantRef, Met>;

impl Outage {
    /// What a tenant's check came to, if the store is away.
    pub(in crate::service) fn met(&self, tenant: &Tenant, told: &Result<CheckReply, ServiceError>) {
        if !self.is_away() {
            return;
        }
        let (admitted, refused) = match told {
            Ok(CheckReply::Allowed(Allowed { degraded: true, replayed: false, .. })) => (1, 0),
            Err(ServiceError::StoreUnavailable(_)) => (0, 1),
            _ => return,
        };
        let mut state = self.state.lock();
        let new = Met { from: tenant.now(), admitted: 0, refused: 0 };
        let met = state.met.entry(tenant.number).or_insert(new);
        met.admitted += admitted;
        met.refused += refused;
    }
}

impl Service {
    /// Puts an outage that is over on record.
    pub(super) async fn tell_of_outage(&self, met: MetBy) {
        if met.is_empty() {
            return;
        }
        let name = std::fs::read_to_string(NAME_OF_MACHINE).unwrap_or_default();
        let node = Some(name.trim()).filter(|name| !name.is_empty()).unwrap_or("node");
        for tenant in self.registry.tenants() {
            let Some(Met { from, admitted, refused }) = met.get(&tenant.number) else { continue };
            let now = tenant.now();
            let after = json!({
                "from": from.to_string(),
                "until": now.to_string(),
                "admitted": admitted,
                "refused": refused,
            });
            let note =
                Note { action: "node.degraded", target: node.into(), before: None, after: Some(after) };
            let written = Written { at: now, by: BY.into(), reason: None };
            let noted = self.registry.write_told(&tenant, Write::Note(note, written), Vec::new()).await;
            if let Err(error) = noted {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(tenant.id = %tenant.id, error, "an outage could not be put on record");
            }
        }
    }
}
