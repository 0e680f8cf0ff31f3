//! Making tenants, and setting the clocks of test tenants.

use std::sync::Arc;

use serde_json::json;

use crate::domain::document::{Fault, Node};
use crate::domain::ids::TenantId;
use crate::domain::plan::{self, Shipped};
use crate::domain::time::{Millis, Zone};
use crate::ledger::{LedgerError, Record, RecordKind, TenantRow, Written};

use super::catalog::Tenant;
use super::reason::{optional_reason, required_reason};
use super::registry::Registry;
use super::settings::Settings;
use crate::service::error::ServiceError;

/// The plan of a new tenant's users.
const DEFAULT_PLAN: &str = "free";

/// What a new tenant is to be.
#[derive(Debug, Clone)]
pub struct NewTenant {
    pub id: TenantId,
    /// Has a clock of its own.
    pub test: bool,
    /// `None`: UTC.
    pub zone: Option<Arc<Zone>>,
    pub suspended: bool,
}

impl NewTenant {
    /// Reads `{"id","zone","test","suspended"}`.
    pub fn read(node: &Node<'_>) -> Result<Self, Vec<Fault>> {
        node.read(|fields| {
            let id = fields.required("id").parsed(TenantId::parse);
            let zone = fields.optional("zone").parsed(Zone::parse);
            let test = fields.optional("test").flag().unwrap_or(false);
            let suspended = fields.optional("suspended").flag().unwrap_or(false);
            Some(Self { id: id?, test, zone, suspended })
        })
    }
}

/// What `PUT tenants/{id}` changes; what is missing stays.
#[derive(Debug, Clone)]
pub struct TenantChange {
    zone: Option<Arc<Zone>>,
    suspended: Option<bool>,
    reason: Option<String>,
}

impl TenantChange {
    /// Suspends, and nothing else.
    pub fn suspension() -> Self {
        Self { zone: None, suspended: Some(true), reason: None }
    }

    /// Reads `{"zone","suspended","reason"}`. `reason` is required with
    /// `suspended`. What a tenant can never change (`id`, `test`) may stand
    /// there as it is, so that a reply can be sent back.
    pub fn read(node: &Node<'_>, tenant: &Tenant) -> Result<Self, Vec<Fault>> {
        node.read(|fields| {
            let zone = fields.optional("zone").parsed(Zone::parse);
            let suspended = fields.optional("suspended").flag();
            let reason =
                if fields.has("suspended") { required_reason(fields) } else { optional_reason(fields) };
            if fields.optional("id").text().is_some_and(|id| id != tenant.id.as_str()) {
                fields.fault("id", "cannot be changed");
            }
            if fields.optional("test").flag().is_some_and(|test| test != tenant.test) {
                fields.fault("test", "cannot be changed");
            }
            Some(Self { zone, suspended, reason })
        })
    }
}

impl Registry {
    /// Changes a tenant. A suspension holds at once here and within a second
    /// in every other process.
    ///
    /// # Errors
    /// `NotFound` when it was deleted meanwhile; `StoreUnavailable`.
    pub async fn change_tenant(
        &self,
        tenant: &Arc<Tenant>,
        change: TenantChange,
        by: &str,
    ) -> Result<(), ServiceError> {
        if let Some(zone) = change.zone.filter(|zone| **zone != *tenant.catalog().settings.zone) {
            // The tenant's days begin elsewhere: a setting like the others.
            let body = json!({ "zone": zone.name(), "reason": change.reason }).to_string();
            let body =
                Node::from_json(body.as_bytes()).map_err(|fault| ServiceError::Invalid(vec![fault]))?;
            self.put_settings(tenant, &body, None, by).await?;
        }
        let Some(suspended) = change.suspended else { return Ok(()) };
        let _turn = tenant.changing.lock().await;
        let written = Written { at: tenant.now(), by: by.to_owned(), reason: change.reason };
        match self.writer.suspend_tenant(tenant.number, suspended, written).await {
            Err(LedgerError::Conflict) => return Err(ServiceError::NotFound("tenant")),
            other => other?,
        }
        tenant.suspend(suspended);
        // Whoever listens hears that it is over.
        self.watchers.tenant_changed(tenant.number);
        Ok(())
    }

    /// Marks a tenant as deleted and forgets it: see `purging` for the rest.
    pub(super) async fn delete_tenant(&self, tenant: &Arc<Tenant>, by: &str) -> Result<(), ServiceError> {
        let _turn = tenant.changing.lock().await;
        let written = Written { at: self.wall.now(), by: by.to_owned(), reason: None };
        match self.writer.delete_tenant(tenant.number, written).await {
            Err(LedgerError::Conflict) => return Err(ServiceError::NotFound("tenant")),
            other => other?,
        }
        self.let_go(tenant);
        Ok(())
    }

    /// Makes a tenant with the shipped plans, pool, models and settings as
    /// version 1 of each. The pool is for planning only until it is enforced.
    ///
    /// # Errors
    /// `AlreadyExists` when the id is taken.
    pub async fn create_tenant(
        &self,
        id: &TenantId,
        test: bool,
        zone: Option<Arc<Zone>>,
        by: &str,
    ) -> Result<Arc<Tenant>, ServiceError> {
        self.create_tenant_with(id, test, zone, &plan::shipped(), by).await
    }

    /// The same with other plans, pools and models. The users' plan is `free`
    /// if there is one.
    pub async fn create_tenant_with(
        &self,
        id: &TenantId,
        test: bool,
        zone: Option<Arc<Zone>>,
        content: &Shipped,
        by: &str,
    ) -> Result<Arc<Tenant>, ServiceError> {
        let written = Written { at: self.wall.now(), by: by.to_owned(), reason: None };
        let records = first_records(content, zone.unwrap_or_else(Zone::utc), &written);
        let row: TenantRow = match self.writer.create_tenant(id.clone(), test, records).await {
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
    pub async fn set_clock(&self, tenant: &Tenant, now: Millis, by: &str) -> Result<Millis, ServiceError> {
        if !tenant.test {
            return Err(ServiceError::NoTestTenant);
        }
        let _turn = tenant.changing.lock().await;
        let before = tenant.now();
        if now < before && self.ledger.ever_taken(tenant.number).await? {
            return Err(ServiceError::ClockBackwards { now: before });
        }
        if tenant.clock.standing() != Some(now) {
            let written = Written { at: now, by: by.to_owned(), reason: None };
            self.writer.set_clock(tenant.number, now, written).await?;
            tenant.clock.stand_at(Some(now));
            self.watchers.tenant_changed(tenant.number);
        }
        Ok(now)
    }
}

fn first_records(content: &Shipped, zone: Arc<Zone>, written: &Written) -> Vec<Record> {
    let default_plan = content.sheets.iter().map(|sheet| &sheet.id).find(|id| id.as_str() == DEFAULT_PLAN);
    let settings = Settings::new(zone, default_plan.cloned());
    let plans = content.sheets.iter().map(|sheet| (RecordKind::Plan, sheet.id.as_str(), sheet.to_json()));
    let pools = content.pools.iter().map(|pool| (RecordKind::Pool, pool.id.as_str(), pool.to_json()));
    let others =
        [(RecordKind::Models, "", content.models.to_json()), (RecordKind::Settings, "", settings.to_json())];
    let record = |(kind, id, body): (RecordKind, &str, serde_json::Value)| Record {
        kind,
        id: id.to_owned(),
        version: 1,
        body: Some(body.to_string()),
        effective_at: written.at,
        written: written.clone(),
        revision: 0,
    };
    plans.chain(pools).chain(others).map(record).collect()
}
