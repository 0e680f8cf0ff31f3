//! Whether a tenant's plans fit what its vendor lets through.

use crate::domain::capacity::{self, Report};
use crate::domain::document::{Fault, Node};
use crate::domain::ids::Name;

use crate::service::error::ServiceError;
use crate::service::tenancy::catalog::Tenant;
use crate::service::tenancy::registry::Registry;

const DEFAULT_POOL: &str = "default";

/// What `POST capacity/check` asks.
#[derive(Debug, Clone)]
pub struct CapacityQuestion {
    /// Users active at the peak, by plan.
    pub active: Vec<(Name, u64)>,
    /// `None`: the pool `default`.
    pub pool: Option<Name>,
}

impl CapacityQuestion {
    /// Reads `{"active":{"free":60,...},"pool"}`.
    pub fn read(node: &Node<'_>) -> Result<Self, Vec<Fault>> {
        node.read(|fields| {
            if !fields.has("active") {
                fields.fault("active", "is required: the peak is not measured yet");
            }
            let active = capacity::read_active(fields);
            let pool = fields.optional("pool").parsed(Name::parse);
            Some(Self { active: active?, pool })
        })
    }
}

impl Registry {
    /// Holds the tenant's plans against one of its pools, enforced or not.
    ///
    /// # Errors
    /// `Invalid` for a plan or pool that the tenant does not have.
    pub fn check_capacity(
        &self,
        tenant: &Tenant,
        question: &CapacityQuestion,
    ) -> Result<Report, ServiceError> {
        let catalog = tenant.catalog();
        let name = question.pool.as_ref().map_or(DEFAULT_POOL, Name::as_str);
        let entry = catalog.pools.iter().find(|entry| entry.pool.id.as_str() == name);
        let entry = entry.ok_or_else(|| ServiceError::invalid("/pool", format!("is not there: {name}")))?;
        let now = tenant.now();
        let sheets = catalog.plans.values().map(|plan| &plan.current(now).sheet);
        capacity::check(sheets, &entry.pool, &question.active).map_err(ServiceError::Invalid)
    }
}
