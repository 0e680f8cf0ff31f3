//! Making tenants, and setting the clocks of test tenants.

use std::sync::Arc;

use crate::domain::document::{Fault, Node};
use crate::domain::ids::{Name, TenantId};
use crate::domain::plan;
use crate::domain::time::{Millis, Zone};
use crate::ledger::{LedgerError, Record, RecordKind, TenantRow, Written};

use super::catalog::Tenant;
use super::error::ServiceError;
use super::registry::Registry;
use super::settings::Settings;

/// The plan of a new tenant's users.
const DEFAULT_PLAN: &str = "free";

/// What a new tenant is to be.
#[derive(Debug, Clone)]
pub struct NewTenant {
    pub id: TenantId,
    /// Has a clock of its own.
    pub test: bool,
    pub zone: Arc<Zone>,
}

impl NewTenant {
    /// Reads `{"id","zone","test"}`.
    pub fn read(node: &Node<'_>) -> Result<Self, Vec<Fault>> {
        node.read(|fields| {
            let id = fields.required("id").parsed(TenantId::parse);
            let zone = fields.optional("zone").parsed(Zone::parse);
            let test = fields.optional("test").flag().unwrap_or(false);
            if fields.optional("suspended").flag() == Some(true) {
                fields.fault("suspended", "must be false: a new tenant is not suspended");
            }
            Some(Self { id: id?, test, zone: zone.unwrap_or_else(Zone::utc) })
        })
    }
}

impl Registry {
    /// Makes a tenant with the shipped plans, pool, models and settings as
    /// version 1 of each. The pool is for planning only until it is enforced.
    ///
    /// # Errors
    /// `AlreadyExists` when the id is taken.
    pub async fn create_tenant(&self, new: NewTenant, by: &str) -> Result<Arc<Tenant>, ServiceError> {
        let written = Written { at: self.wall.now(), by: by.to_owned(), reason: None };
        let records = first_records(&new, &written);
        let row: TenantRow = match self.writer.create_tenant(new.id, new.test, records).await {
            Err(LedgerError::Conflict) => return Err(ServiceError::AlreadyExists("tenant")),
            other => other?,
        };
        self.take_on(&row).await.inspect_err(|_| self.writer.distrust())
    }

    /// Sets the clock of a test tenant, on which it then stands.
    ///
    /// It goes forward only (the same instant again is fine), or back as long
    /// as nothing was ever taken.
    ///
    /// # Errors
    /// `NoTestTenant`, `ClockBackwards`.
    pub async fn set_clock(&self, tenant: &Tenant, now: Millis) -> Result<Millis, ServiceError> {
        if !tenant.test {
            return Err(ServiceError::NoTestTenant);
        }
        let _turn = tenant.changing.lock().await;
        let before = tenant.now();
        if now < before && self.ledger.ever_taken(tenant.number).await? {
            return Err(ServiceError::ClockBackwards { now: before });
        }
        if tenant.clock.standing() != Some(now) {
            self.writer.set_clock(tenant.number, now).await?;
            tenant.clock.stand_at(Some(now));
        }
        Ok(now)
    }
}

fn first_records(new: &NewTenant, written: &Written) -> Vec<Record> {
    let shipped = plan::shipped();
    let default_plan = Name::parse(DEFAULT_PLAN).ok();
    let settings = Settings::new(new.zone.clone(), default_plan);
    let plans = shipped.sheets.iter().map(|sheet| (RecordKind::Plan, sheet.id.as_str(), sheet.to_json()));
    let pools = shipped.pools.iter().map(|pool| (RecordKind::Pool, pool.id.as_str(), pool.to_json()));
    let others = [
        (RecordKind::Models, "", shipped.models.to_json()),
        (RecordKind::Settings, "", settings.to_json()),
    ];
    let record = |(kind, id, body): (RecordKind, &str, serde_json::Value)| Record {
        kind,
        id: id.to_owned(),
        version: 1,
        body: Some(body.to_string()),
        effective_at: written.at,
        written: written.clone(),
    };
    plans.chain(pools).chain(others).map(record).collect()
}
