//! Changing plans, pools, models and settings: a new version each time, and
//! every version is kept.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::domain::document::{Fault, Node, Reader};
use crate::domain::ids::Name;
use crate::domain::plan::{LintWarning, Models, Pool, Sheet};
use crate::domain::time::Millis;
use crate::ledger::{self, LedgerError, Message, Record, RecordKind, Written};

use super::catalog::{Catalog, PoolEntry, Tenant};
use super::reason::{optional_reason, required_reason};
use super::registry::Registry;
use super::settings::Settings;
use crate::service::entitlement::plans::Plan;
use crate::service::entitlement::plans::{
    Applies, Audience, PlanVersion, VersionRecord, VersionTerms, read_audience,
};
use crate::service::entitlement::profiles::Profile;
use crate::service::error::ServiceError;

/// Writers of one record at a time that are waited for before giving up.
const TRIES: usize = 16;
const PLANS_MAX: usize = 1_000;
const POOLS_MAX: usize = 200;

/// What `PUT plans/{id}` asks for.
#[derive(Debug)]
pub struct PlanPut {
    sheet: Sheet,
    /// `None`: an upgrade at once, a downgrade when running months end.
    applies: Option<Applies>,
    to: Audience,
    /// Look, but change nothing.
    pub dry_run: bool,
    reason: Option<String>,
}

impl PlanPut {
    /// Reads a sheet with `applies`, `to`, `reason` and `dry_run` beside its
    /// fields. The sheet may leave out its id, and may not name another.
    pub fn read(node: &Node<'_>, id: &Name) -> Result<Self, Vec<Fault>> {
        node.read(|fields| {
            let how = How::fields(fields);
            let sheet = Sheet::fields(fields, Some(id));
            Some(how.of(sheet?))
        })
    }

    /// Reads `applies`, `to`, `reason` and `dry_run`, for the sheet of a version that
    /// was there before.
    pub fn restore(node: &Node<'_>, version: PlanVersion) -> Result<Self, Vec<Fault>> {
        node.read(|fields| Some(How::fields(fields).of(version.sheet)))
    }
}

/// What stands beside a sheet.
struct How {
    applies: Option<Applies>,
    to: Audience,
    dry_run: bool,
    reason: Option<String>,
}

impl How {
    fn fields(fields: &mut Reader<'_, '_>) -> Self {
        let applies = Applies::read(fields, "applies");
        let to = read_audience(fields);
        let dry_run = fields.optional("dry_run").flag().unwrap_or(false);
        let reason = if dry_run { optional_reason(fields) } else { required_reason(fields) };
        Self { applies, to, dry_run, reason }
    }

    fn of(self, sheet: Sheet) -> PlanPut {
        let Self { applies, to, dry_run, reason } = self;
        PlanPut { sheet, applies, to, dry_run, reason }
    }
}

/// What `PUT pools/{id}` asks for.
#[derive(Debug)]
pub struct PoolPut {
    pool: Pool,
    reason: Option<String>,
}

impl PoolPut {
    /// Reads a pool with `reason` beside its fields.
    pub fn read(node: &Node<'_>, id: &Name) -> Result<Self, Vec<Fault>> {
        node.read(|fields| {
            let reason = optional_reason(fields);
            let pool = Pool::fields(fields, Some(id));
            Some(Self { pool: pool?, reason })
        })
    }
}

/// What `PUT models` asks for.
#[derive(Debug)]
pub struct ModelsPut {
    models: Models,
    reason: Option<String>,
}

impl ModelsPut {
    /// Reads `{"models":[...],"reason"}`.
    pub fn read(node: &Node<'_>) -> Result<Self, Vec<Fault>> {
        let (models, reason) = node.read(|fields| {
            let reason = optional_reason(fields);
            Some((Models::fields(fields)?, reason))
        })?;
        Ok(Self { models: Models::new(models)?, reason })
    }
}

/// A plan as written, and what in it can never bite.
#[derive(Debug)]
pub struct PlanWritten {
    pub plan: Arc<PlanVersion>,
    pub warnings: Vec<LintWarning>,
}

/// A version of something that is not a plan, as the API shows it.
#[derive(Debug)]
pub struct Versioned {
    /// With `version` among its fields.
    pub body: Value,
    pub version: u32,
}

impl PlanVersion {
    /// The sheet with `version`, `applies`, `to` and `effective_at`: of a
    /// version that waits for users' months to end, when the tenant's own ends.
    pub fn to_json(&self, catalog: &Catalog) -> Value {
        let mut body = self.sheet.to_json();
        body["version"] = self.version.into();
        self.terms.describe(&mut body);
        body["effective_at"] = self.effective_at(catalog).to_string().into();
        body
    }

    fn effective_at(&self, catalog: &Catalog) -> Millis {
        if self.terms.applies != Applies::NextWindow {
            return self.takes_hold_at(self.written_at);
        }
        Profile::default().holder().month_end(&self.sheet, catalog, self.written_at, self.written_at)
    }
}

impl PlanPut {
    /// For whom and from when the new sheet holds. It takes something away if
    /// anybody on the plan would have less.
    fn terms(&self, before: Option<&Arc<Plan>>, now: Millis) -> VersionTerms {
        let is_downgrade = || {
            let mut held = before.into_iter().flat_map(|plan| plan.held_at(now));
            held.any(|version| version.sheet.is_downgrade_to(&self.sheet))
        };
        let applies = self.applies.unwrap_or_else(|| match is_downgrade() {
            true => Applies::NextWindow,
            false => Applies::Now,
        });
        VersionTerms { applies, to: self.to }
    }
}

impl PoolEntry {
    /// The pool with `version`, `effective_at`, its `condition` and `pauses`.
    pub fn to_json(&self, now: Millis) -> Value {
        let mut body = self.pool.to_json();
        body["version"] = self.version.into();
        body["effective_at"] = self.effective_at.to_string().into();
        body["condition"] = self.condition_json(now);
        body["pauses"] = self.waited_json();
        body
    }
}

impl Registry {
    /// Puts a new version of a plan in force, from when and for whom its terms
    /// say.
    ///
    /// # Errors
    /// `ChangedMeanwhile` when the plan is not at version `expected`;
    /// `Invalid` when the tenant has too many plans.
    pub async fn put_plan(
        &self,
        tenant: &Arc<Tenant>,
        put: PlanPut,
        expected: Option<u32>,
        by: &str,
    ) -> Result<PlanWritten, ServiceError> {
        let id = put.sheet.id.clone();
        let catalog = tenant.catalog();
        let warnings = put.sheet.lint(&catalog.models);
        if put.dry_run {
            let version = catalog.plan(&id).map_or(0, |plan| plan.newest().version);
            if expected.is_some_and(|expected| expected != version) {
                return Err(ServiceError::ChangedMeanwhile);
            }
            let now = tenant.now();
            let terms = put.terms(catalog.plan(&id), now);
            let record = VersionRecord { version: version + 1, written_at: now, revision: 0, terms };
            let plan = PlanVersion::new(put.sheet, record, &catalog.models);
            return Ok(PlanWritten { plan: Arc::new(plan), warnings });
        }
        let reason = put.reason.clone();
        let write = Write { kind: RecordKind::Plan, id: id.as_str(), expected, by, reason };
        let make = |catalog: &Catalog, version: u32| {
            room_for_plan(catalog, &id)?;
            let (mut body, written_at) = (put.sheet.to_json(), tenant.now());
            let terms = put.terms(catalog.plan(&id), written_at);
            terms.describe(&mut body);
            let record = VersionRecord { version, written_at, revision: 0, terms };
            let plan = PlanVersion::new(put.sheet.clone(), record, &catalog.models);
            let (at, why) = (plan.effective_at(catalog), (by, put.reason.as_deref()));
            let told = self.told_of_sheet(tenant, &plan, at, why);
            Ok(Made { body: Some(body.to_string()), told })
        };
        let catalog = self.write_made(tenant, write, make).await?;
        let plan = catalog.plan(&id).ok_or_else(|| unreadable("plan"))?;
        Ok(PlanWritten { plan: plan.newest().clone(), warnings })
    }

    /// All versions of a plan, newest first, with who wrote them.
    pub async fn plan_versions(
        &self,
        tenant: &Tenant,
        id: &Name,
    ) -> Result<Vec<(PlanVersion, Written)>, ServiceError> {
        let kind = RecordKind::Plan;
        let records = self.ledger.versions(Some(tenant.number), kind, id.as_str().to_owned()).await?;
        if records.is_empty() {
            return Err(ServiceError::UnknownPlan);
        }
        let catalog = tenant.catalog();
        let written = records.into_iter().filter(|record| record.body.is_some());
        written.map(|record| Ok((catalog.version_of(&record)?, record.written))).collect()
    }

    /// Puts a new version of a pool in force.
    ///
    /// # Errors
    /// As [`put_plan`](Self::put_plan).
    pub async fn put_pool(
        &self,
        tenant: &Arc<Tenant>,
        put: PoolPut,
        expected: Option<u32>,
        by: &str,
    ) -> Result<Arc<PoolEntry>, ServiceError> {
        let id = put.pool.id.clone();
        let body = put.pool.to_json().to_string();
        let write = Write { kind: RecordKind::Pool, id: id.as_str(), expected, by, reason: put.reason };
        let catalog =
            self.write(tenant, write, |catalog| room_for_pool(catalog, &id).map(|()| body.clone())).await?;
        catalog.pool(&id).cloned().ok_or_else(|| unreadable("pool"))
    }

    /// The models in force: `{"models":[...],"version"}`.
    pub fn models(&self, tenant: &Tenant) -> Versioned {
        models_of(&tenant.catalog())
    }

    /// Puts a new list of models in force.
    ///
    /// # Errors
    /// `ChangedMeanwhile` when the list is not at version `expected`.
    pub async fn put_models(
        &self,
        tenant: &Arc<Tenant>,
        put: ModelsPut,
        expected: Option<u32>,
        by: &str,
    ) -> Result<Versioned, ServiceError> {
        let body = put.models.to_json().to_string();
        let write = Write { kind: RecordKind::Models, id: "", expected, by, reason: put.reason };
        let catalog = self.write(tenant, write, |_| Ok(body.clone())).await?;
        Ok(models_of(&catalog))
    }

    /// All settings: each with its value in force, and `version`.
    pub fn settings(&self, tenant: &Tenant) -> Versioned {
        self.settings_of(&tenant.catalog())
    }

    /// Changes the settings that `body` names; the others stay. `reason` may
    /// stand beside them.
    ///
    /// # Errors
    /// `Invalid` with a fault for each wrong setting; `ChangedMeanwhile` when
    /// the settings are not at version `expected`.
    pub async fn put_settings(
        &self,
        tenant: &Arc<Tenant>,
        body: &Node<'_>,
        expected: Option<u32>,
        by: &str,
    ) -> Result<Versioned, ServiceError> {
        let (_, reason) = read_settings(body, &tenant.catalog())?;
        let write = Write { kind: RecordKind::Settings, id: "", expected, by, reason };
        let new_body = |catalog: &Catalog| Ok(read_settings(body, catalog)?.0.to_json().to_string());
        let catalog = self.write(tenant, write, new_body).await?;
        Ok(self.settings_of(&catalog))
    }

    fn settings_of(&self, catalog: &Catalog) -> Versioned {
        let mut body = catalog.settings.to_json();
        if catalog.settings.allow_private_targets.is_none() {
            body["allow_private_targets"] = self.options.allow_private_targets.into();
        }
        body["version"] = catalog.settings_version.into();
        Versioned { body, version: catalog.settings_version }
    }

    /// Writes the next version of a record and puts it in force here.
    ///
    /// `body` makes it from what is in force, and is asked again when another
    /// process came first.
    async fn write(
        &self,
        tenant: &Arc<Tenant>,
        write: Write<'_>,
        body: impl Fn(&Catalog) -> Result<String, ServiceError> + Send,
    ) -> Result<Arc<Catalog>, ServiceError> {
        self.write_made(tenant, write, move |catalog, _| body(catalog).map(Made::body)).await
    }

    /// The same with what webhooks are told of it; `make` gets the version that
    /// it is to be.
    pub(in crate::service) async fn write_made(
        &self,
        tenant: &Arc<Tenant>,
        write: Write<'_>,
        make: impl Fn(&Catalog, u32) -> Result<Made, ServiceError> + Send,
    ) -> Result<Arc<Catalog>, ServiceError> {
        let _turn = tenant.changing.lock().await;
        for _ in 0..TRIES {
            let catalog = tenant.catalog();
            let version = version_of(&catalog, write.kind, write.id);
            if write.expected.is_some_and(|expected| expected != version) {
                return Err(ServiceError::ChangedMeanwhile);
            }
            let now = tenant.now();
            let Made { body, told } = make(&catalog, version + 1)?;
            let record = Record {
                kind: write.kind,
                id: write.id.to_owned(),
                version: version + 1,
                body,
                effective_at: now,
                written: Written { at: now, by: write.by.to_owned(), reason: write.reason.clone() },
                revision: 0,
            };
            match self.write_told(tenant, ledger::Write::Record(record), told).await {
                Ok(()) => {
                    self.read_own_write(tenant).await?;
                    return Ok(tenant.catalog());
                }
                Err(LedgerError::Conflict) => self.read_tenant(tenant).await?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(ServiceError::ChangedMeanwhile)
    }

    /// Writes, and sees to it that what webhooks are told is sent.
    pub(in crate::service) async fn write_told(
        &self,
        tenant: &Tenant,
        write: ledger::Write,
        told: Vec<Message>,
    ) -> Result<(), LedgerError> {
        let tells = !told.is_empty();
        self.writer.write_telling(tenant.number, write, told).await?;
        if tells {
            self.outbox.due.notify_one();
        }
        Ok(())
    }
}

/// Which record is written, by whom and why.
pub(in crate::service) struct Write<'a> {
    pub kind: RecordKind,
    /// Empty for models and settings.
    pub id: &'a str,
    /// The version that it must have; `None`: any.
    pub expected: Option<u32>,
    pub by: &'a str,
    pub reason: Option<String>,
}

/// A record's next version.
pub(in crate::service) struct Made {
    /// `None`: a deletion.
    pub body: Option<String>,
    pub told: Vec<Message>,
}

impl Made {
    pub fn body(body: String) -> Self {
        Self { body: Some(body), told: Vec::new() }
    }

    pub fn deletion() -> Self {
        Self { body: None, told: Vec::new() }
    }
}

fn version_of(catalog: &Catalog, kind: RecordKind, id: &str) -> u32 {
    match kind {
        RecordKind::Plan => {
            catalog.plans.values().find(|plan| plan.id.as_str() == id).map_or(0, |plan| plan.newest().version)
        }
        RecordKind::Pool => {
            catalog.pools.iter().find(|entry| entry.pool.id.as_str() == id).map_or(0, |entry| entry.version)
        }
        RecordKind::Models => catalog.models_version,
        RecordKind::Settings => catalog.settings_version,
        RecordKind::Webhook => catalog.webhook(id).map_or(0, |webhook| webhook.version),
        RecordKind::Key | RecordKind::MakeGood => 0,
    }
}

fn room_for_plan(catalog: &Catalog, id: &Name) -> Result<(), ServiceError> {
    if catalog.plan(id).is_none() && catalog.plans.len() >= PLANS_MAX {
        return Err(ServiceError::invalid(
            "/id",
            format!("is one too many: there are {PLANS_MAX} plans already"),
        ));
    }
    Ok(())
}

fn room_for_pool(catalog: &Catalog, id: &Name) -> Result<(), ServiceError> {
    if catalog.pool(id).is_none() && catalog.pools.len() >= POOLS_MAX {
        return Err(ServiceError::invalid(
            "/id",
            format!("is one too many: there are {POOLS_MAX} pools already"),
        ));
    }
    Ok(())
}

fn read_settings(body: &Node<'_>, catalog: &Catalog) -> Result<(Settings, Option<String>), ServiceError> {
    let read = |fields: &mut Reader<'_, '_>| {
        let reason = optional_reason(fields);
        let settings = catalog.settings.changed_by(fields);
        let unknown = |plan: &&Name| catalog.plan(plan).is_none();
        if let Some(plan) = settings.default_plan.as_ref().filter(unknown) {
            fields.fault("default_plan", format!("is not a plan of this tenant: {plan}"));
        }
        Some((settings, reason))
    };
    body.read(read).map_err(ServiceError::Invalid)
}

fn models_of(catalog: &Catalog) -> Versioned {
    let mut body = catalog.models.to_json();
    body["version"] = json!(catalog.models_version);
    Versioned { body, version: catalog.models_version }
}

fn unreadable(what: &str) -> ServiceError {
    ServiceError::Corrupt(format!("the {what} just written cannot be read back"))
}
