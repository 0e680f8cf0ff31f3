//! Whether a tenant's plans fit what its vendor lets through, and whether a
//! change still does.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use serde_json::{Value, json};

use crate::domain::capacity::{self, MeterReport, Report};
use crate::domain::document::{Fault, Node, Reader};
use crate::domain::ids::Name;
use crate::domain::plan::{Pool, Sheet};
use crate::service::Service;
use crate::service::entitlement::profiles::Profile;
use crate::service::error::ServiceError;
use crate::service::telling::actives::last_week;
use crate::service::tenancy::catalog::{Catalog, Tenant};
use crate::service::tenancy::catalog_writes::{PlanPut, PlanWritten};
use crate::service::tenancy::registry::Registry;

const DEFAULT_POOL: &str = "default";

/// Users active at the same time, by plan.
pub type Active = Vec<(Name, u64)>;

/// What `POST capacity/check` asks.
#[derive(Debug, Clone)]
pub struct CapacityQuestion {
    /// `None`: the peak of the last seven days.
    pub active: Option<Active>,
    /// `None`: the pool `default`.
    pub pool: Option<Name>,
    /// Sheets to be tried: in place of the plans' own, or beside them.
    pub plans: Vec<Sheet>,
}

impl CapacityQuestion {
    /// Reads `{"active":{"free":60,...},"pool","plans":{"free":{...},...}}`.
    pub fn read(node: &Node<'_>) -> Result<Self, Vec<Fault>> {
        node.read(|fields| {
            let active = match fields.has("active") {
                true => Some(capacity::read_active(fields)?),
                false => None,
            };
            let plans = if fields.has("plans") { read_plans(fields)? } else { Vec::new() };
            Some(Self { active, pool: fields.optional("pool").parsed(Name::parse), plans })
        })
    }
}

/// Sheets by the ids of their plans, each as it would be put.
fn read_plans(fields: &mut Reader<'_, '_>) -> Option<Vec<Sheet>> {
    fields.required("plans").table(|plans| {
        let mut sheets = Vec::new();
        for plan in plans.names() {
            match Name::parse(plan) {
                Ok(id) => sheets.extend(plans.required(plan).table(|sheet| Sheet::fields(sheet, Some(&id)))),
                Err(error) => plans.required(plan).fault(format!("is no plan: the name {error}")),
            }
        }
        Some(sheets)
    })
}

/// A meter of a pool for which a change leaves too little.
#[derive(Debug, Clone)]
pub struct PushedOver {
    pub pool: Name,
    pub row: MeterReport,
}

impl PushedOver {
    /// As a warning of a reply.
    pub fn to_json(&self) -> Value {
        let Self { pool, row } = self;
        let figure = |figure: Option<u64>| figure.map_or("without bound".to_owned(), |it| it.to_string());
        let per = row.per.as_ref().map_or(String::new(), |per| format!(" a {per}"));
        let message = format!(
            "with as many users as at the peak of the last 7 days the plans may draw {} {}{per} together, \
             and pool {pool} allows {}",
            figure(row.demand),
            row.meter,
            figure(row.allowed),
        );
        json!({
            "pointer": "",
            "message": message,
            "pool": pool.as_str(),
            "meter": row.meter,
            "limit": row.limit,
            "demand": row.demand,
            "allowed": row.allowed,
        })
    }
}

impl Registry {
    /// Holds the tenant's plans, some of them as `tried`, against one of its pools, enforced or
    /// not.
    ///
    /// # Errors
    /// `Invalid` for a plan or pool that the tenant does not have.
    pub fn check_capacity(
        &self,
        tenant: &Tenant,
        pool: Option<&Name>,
        active: &[(Name, u64)],
        tried: &[Sheet],
    ) -> Result<Report, ServiceError> {
        let catalog = tenant.catalog();
        let name = pool.map_or(DEFAULT_POOL, Name::as_str);
        let entry = catalog.pools.iter().find(|entry| entry.pool.id.as_str() == name);
        let entry = entry.ok_or_else(|| ServiceError::invalid("/pool", format!("is not there: {name}")))?;
        let now = tenant.now();
        let known = catalog.plans.values().map(|plan| &plan.current(now).sheet);
        let is_tried = |sheet: &&Sheet| tried.iter().any(|other| other.id == sheet.id);
        let sheets = known.filter(|sheet| !is_tried(sheet)).chain(tried);
        capacity::check(sheets, &entry.pool, active).map_err(ServiceError::Invalid)
    }

    /// The most users of each plan that were active at the same time in the last
    /// seven days, as far as that is on record.
    pub async fn measured_peak(&self, tenant: &Tenant) -> Result<Active, ServiceError> {
        let measured = self.ledger.active_peaks(tenant.number, last_week(tenant.now())).await?;
        let of = |plan: &Name| measured.iter().find(|(of, _)| of == plan).map_or(0, |(_, users)| *users);
        Ok(tenant.catalog().plans.keys().map(|plan| (plan.clone(), of(plan))).collect())
    }
}

impl Service {
    /// Answers `capacity/check`; `true`: by the measured peak.
    ///
    /// # Errors
    /// As [`Registry::check_capacity`].
    pub async fn check_capacity(
        &self,
        tenant: &Tenant,
        question: &CapacityQuestion,
    ) -> Result<(Report, bool), ServiceError> {
        let (pool, measured) = (question.pool.as_ref(), question.active.is_none());
        let active = match &question.active {
            Some(active) => active.clone(),
            None => self.measured_peak(tenant).await?,
        };
        Ok((self.registry.check_capacity(tenant, pool, &active, &question.plans)?, measured))
    }

    async fn measured_peak(&self, tenant: &Tenant) -> Result<Active, ServiceError> {
        self.flush_tallies().await?;
        self.registry.measured_peak(tenant).await
    }

    /// Puts a plan as [`Registry::put_plan`], and says which pools it pushes over.
    ///
    /// # Errors
    /// As [`Registry::put_plan`].
    pub async fn put_plan(
        &self,
        tenant: &Arc<Tenant>,
        put: PlanPut,
        expected: Option<u32>,
        by: &str,
    ) -> Result<(PlanWritten, Vec<PushedOver>), ServiceError> {
        let before = newest_sheets(&tenant.catalog());
        let written = self.registry.put_plan(tenant, put, expected, by).await?;
        let new = &written.plan.sheet;
        let others = before.iter().filter(|sheet| sheet.id != new.id);
        let after: Vec<Sheet> = others.chain([new]).cloned().collect();
        let over = match self.measured_peak(tenant).await {
            Ok(active) => self.pushed_over(tenant, (&before, &active), (&after, &active), |_| true),
            Err(error) => unknown(&error),
        };
        Ok((written, over))
    }

    /// Which pools a user who was headed for one plan, and now is for another,
    /// pushes over, were they active at the peak.
    pub async fn pushed_over_by_move(
        &self,
        tenant: &Tenant,
        from: Option<Name>,
        profile: &Profile,
    ) -> Vec<PushedOver> {
        let to = profile.headed_for(tenant);
        if from == to {
            return Vec::new();
        }
        let before = match self.measured_peak(tenant).await {
            Ok(active) => active,
            Err(error) => return unknown(&error),
        };
        let mut after = before.clone();
        for (plan, users) in &mut after {
            *users = users.saturating_sub(u64::from(from.as_ref() == Some(plan)));
            *users += u64::from(to.as_ref() == Some(plan));
        }
        let sheets = newest_sheets(&tenant.catalog());
        // That a plan bounds nothing was told when it was written.
        self.pushed_over(tenant, (&sheets, &before), (&sheets, &after), |row| row.demand.is_some())
    }

    /// The meters for which too much may be drawn afterwards, and more than
    /// before. Where no pool is enforced, the one for planning is looked at.
    fn pushed_over(
        &self,
        tenant: &Tenant,
        before: (&[Sheet], &[(Name, u64)]),
        after: (&[Sheet], &[(Name, u64)]),
        counts: impl Fn(&MeterReport) -> bool,
    ) -> Vec<PushedOver> {
        let catalog = tenant.catalog();
        let any = catalog.pools.iter().any(|entry| entry.pool.enforced);
        let looked_at = |pool: &Pool| if any { pool.enforced } else { pool.id.as_str() == DEFAULT_POOL };
        let mut over = Vec::new();
        for pool in catalog.pools.iter().map(|entry| &entry.pool).filter(|pool| looked_at(pool)) {
            let report = |(sheets, active): (&[Sheet], &[(Name, u64)])| {
                let of_sheets = |(plan, _): &&(Name, u64)| sheets.iter().any(|sheet| sheet.id == *plan);
                let active: Active = active.iter().filter(of_sheets).cloned().collect();
                capacity::check(sheets, pool, &active).map_or(Vec::new(), |report| report.meters)
            };
            let earlier = report(before);
            let grows = |row: &MeterReport| {
                let was = earlier.iter().find(|was| (&was.limit, &was.meter) == (&row.limit, &row.meter));
                let most = |demand: Option<u64>| demand.unwrap_or(u64::MAX);
                was.is_none_or(|was| was.fits || most(was.demand) < most(row.demand))
            };
            let rows = report(after).into_iter().filter(|row| !row.fits && counts(row) && grows(row));
            over.extend(rows.map(|row| PushedOver { pool: pool.id.clone(), row }));
        }
        for PushedOver { pool, row } in &over {
            self.registry.conditions.pushed_over.fetch_add(1, Relaxed);
            tracing::warn!(
                tenant.id = %tenant.id,
                pool.id = pool.as_str(),
                meter = row.meter,
                demand = row.demand,
                allowed = row.allowed,
                "what users may draw together at their peak is more than a pool allows"
            );
        }
        over
    }
}

fn newest_sheets(catalog: &Catalog) -> Vec<Sheet> {
    catalog.plans.values().map(|plan| plan.newest().sheet.clone()).collect()
}

/// The change is on record all the same.
fn unknown(error: &ServiceError) -> Vec<PushedOver> {
    tracing::warn!(error = error as &dyn std::error::Error, "whether the plans fit their pools is not known");
    Vec::new()
}
