//! What a tenant has on record, as immutable snapshots: a decision reads one
//! and is never half old, half new.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use arc_swap::ArcSwap;

use crate::domain::charge::{CellId, FigureStep, TenantRef};
use crate::domain::document::{Fault, Node};
use crate::domain::ids::{Name, TenantId};
use crate::domain::plan::{Filter, Limit, Models, Pool, Ramp, Sheet};
use crate::domain::time::{Millis, Zone};
use crate::ledger::{PoolCondition, Record, RecordKind, TenantRow};

use super::clock::{TenantClock, WallClock};
use super::ingress::Ingress;
use super::settings::Settings;
use crate::service::entitlement::history::History;
use crate::service::entitlement::plans::{
    Applies, Plan, PlanVersion, VersionRecord, VersionTerms, read_audience,
};
use crate::service::error::ServiceError;
use crate::service::learning::Outputs;
use crate::service::upstream::conditions::{Kept, Observed};
use crate::service::webhooks::Webhook;

/// All versions of records, newest first, by kind and id.
pub(super) type Earlier = HashMap<(RecordKind, String), Vec<Record>>;

/// A tenant in force. The same object for as long as the process lives, so
/// that whoever holds it sees its clock, its catalog and its suspension as
/// they are now.
#[derive(Debug)]
pub struct Tenant {
    pub number: TenantRef,
    pub id: TenantId,
    /// Has a clock of its own.
    pub test: bool,
    suspended: AtomicBool,
    deleted: AtomicBool,
    /// Its own limit on calls, on this node.
    ingress: Ingress,
    /// How long its answers are.
    pub(in crate::service) outputs: Outputs,
    /// There may be records of erased users: whoever is not on record may be
    /// one of them.
    has_erased: AtomicBool,
    wall: Arc<WallClock>,
    pub(in crate::service) clock: TenantClock,
    catalog: ArcSwap<Catalog>,
    /// Held by whoever changes this tenant or reads it anew, so that an older
    /// reading never replaces a newer one.
    pub(in crate::service) changing: tokio::sync::Mutex<()>,
}

impl Tenant {
    pub(in crate::service) fn new(row: &TenantRow, wall: Arc<WallClock>, catalog: Catalog) -> Self {
        Self {
            number: row.number,
            id: row.id.clone(),
            test: row.test,
            suspended: AtomicBool::new(row.suspended),
            deleted: AtomicBool::new(false),
            ingress: Ingress::default(),
            outputs: Outputs::default(),
            has_erased: AtomicBool::new(row.has_erased),
            wall,
            clock: TenantClock::new(row.clock),
            catalog: ArcSwap::from_pointee(catalog),
            changing: tokio::sync::Mutex::default(),
        }
    }

    /// The plans, pools, models and settings in force.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    /// The tenant's time: its own clock where that was set, else the wall's.
    pub fn now(&self) -> Millis {
        self.clock.standing().unwrap_or_else(|| self.wall.now())
    }

    /// Whether time passes only when somebody sets the clock.
    pub fn clock_stands(&self) -> bool {
        self.clock.standing().is_some()
    }

    pub fn is_suspended(&self) -> bool {
        self.suspended.load(Relaxed)
    }

    /// Whether it is no more: its credentials are nobody's.
    pub fn is_deleted(&self) -> bool {
        self.deleted.load(Relaxed)
    }

    pub(super) fn delete(&self) {
        self.deleted.store(true, Relaxed);
    }

    /// Whether there is room for one more call now under the setting
    /// `requests_per_second`; it is taken if there is.
    ///
    /// # Errors
    /// In how many milliseconds there will be.
    pub fn let_in(&self) -> Result<(), u64> {
        match self.catalog.load().settings.requests_per_second {
            0 => Ok(()),
            rate => self.ingress.take(rate, Instant::now()),
        }
    }

    pub(in crate::service) fn suspend(&self, suspended: bool) {
        self.suspended.store(suspended, Relaxed);
    }

    pub(in crate::service) fn has_erased(&self) -> bool {
        self.has_erased.load(Relaxed)
    }

    pub(in crate::service) fn erases(&self) {
        self.has_erased.store(true, Relaxed);
    }

    pub(in crate::service) fn replace_catalog(&self, catalog: Catalog) {
        self.catalog.store(Arc::new(catalog));
    }
}

/// A tenant's records at one moment.
#[derive(Debug, Clone)]
pub struct Catalog {
    pub settings: Settings,
    /// 0: nothing was ever set.
    pub settings_version: u32,
    pub plans: BTreeMap<Name, Arc<Plan>>,
    /// By id, ascending.
    pub pools: Vec<Arc<PoolEntry>>,
    pub models: Arc<Models>,
    pub models_version: u32,
    pub webhooks: Vec<Arc<Webhook>>,
    /// The tenant's zones of before, with the instants until which they held,
    /// ascending.
    pub(in crate::service) zones: Vec<(Millis, Arc<Zone>)>,
}

/// A pool in force.
#[derive(Debug, Clone)]
pub struct PoolEntry {
    pub pool: Pool,
    /// The models it serves, aliases resolved.
    pub serves: Filter,
    pub version: u32,
    pub effective_at: Millis,
    /// The cell of each of the pool's limits, in the pool's order.
    pub cells: Vec<CellId>,
    /// The filter of each limit with aliases resolved, in the pool's order.
    pub filters: Vec<Filter>,
    /// The limit of any minute that its ramp comes to, and its cell.
    pub(in crate::service) ramp: Option<(Limit, CellId)>,
    /// What its buckets ran with before.
    pub(in crate::service) history: History,
    /// What its vendor said of late.
    pub(in crate::service) kept: Arc<Kept>,
    /// What each of its buckets runs with over time, where the rate matters.
    pub(in crate::service) runs: Vec<Arc<[FigureStep]>>,
    pub(in crate::service) observed: Observed,
    pub(in crate::service) models_version: u32,
}

impl PoolEntry {
    /// `catalog` gives the models by which aliases in filters are resolved.
    fn new(pool: Pool, record: &Record, history: History, catalog: &Catalog) -> Self {
        let (version, effective_at) = (record.version, record.effective_at);
        let limits = || pool.limits.iter().map(|limit| &limit.limit);
        let cells = limits().map(Limit::cell).collect();
        let filters = limits().map(|limit| limit.filter.resolved(&catalog.models)).collect();
        let ramp = pool.ramp.as_ref().and_then(Ramp::limit).map(|limit| (limit.clone(), limit.cell()));
        let serves = pool.filter().resolved(&catalog.models);
        let models_version = catalog.models_version;
        let (kept, runs, observed) = Default::default();
        Self {
            serves,
            pool,
            version,
            effective_at,
            cells,
            filters,
            ramp,
            history,
            kept,
            runs,
            observed,
            models_version,
        }
    }

    /// What its buckets ran with, up to the version that takes its place.
    fn history_with_own(&self) -> History {
        let mut history = self.history.clone();
        history.add(self.effective_at, self.limits());
        history
    }

    /// Its limits with their cells.
    pub(in crate::service) fn limits(&self) -> impl Iterator<Item = (&Limit, &CellId)> {
        self.pool.limits.iter().map(|limit| &limit.limit).zip(&self.cells)
    }
}

impl Catalog {
    /// A tenant without any record.
    pub(super) fn empty() -> Self {
        Self {
            settings: Settings::new(Zone::utc(), None),
            settings_version: 0,
            plans: BTreeMap::new(),
            pools: Vec::new(),
            models: Arc::new(Models::default()),
            models_version: 0,
            webhooks: Vec::new(),
            zones: Vec::new(),
        }
    }

    /// Builds the snapshot of `records` (the newest of each) and `conditions`; what is the same
    /// in `before` is taken over as it is. `earlier` has all versions, newest
    /// first, of the records that [`needs_versions`](Self::needs_versions) names.
    ///
    /// # Errors
    /// `Corrupt`, naming the record that cannot be read.
    pub(super) fn build(
        records: &[Record],
        conditions: &[PoolCondition],
        before: &Self,
        earlier: &Earlier,
    ) -> Result<Self, ServiceError> {
        let mut new = Self::empty();
        let of_kind = |kind| records.iter().filter(move |record| record.kind == kind);
        if let Some(record) = of_kind(RecordKind::Models).next() {
            new.models_version = record.version;
            new.models = if record.version == before.models_version {
                before.models.clone()
            } else {
                Arc::new(parse(record, Models::read)?)
            };
        }
        if let Some(record) = of_kind(RecordKind::Settings).next() {
            new.settings = parse(record, Settings::read)?;
            new.settings_version = record.version;
            new.zones = new.zones_before(record, before, earlier)?;
        }
        for record in of_kind(RecordKind::Plan) {
            let plan = new.plan_of(record, before, earlier)?;
            new.plans.insert(plan.id.clone(), plan);
        }
        for record in of_kind(RecordKind::Pool) {
            let entry = new.pool_of(record, before, earlier)?;
            new.pools.push(entry);
        }
        for record in of_kind(RecordKind::Webhook) {
            new.webhooks.push(Arc::new(Webhook::read(record)?));
        }
        new.pools.sort_by(|a, b| a.pool.id.cmp(&b.pool.id));
        new.with_conditions(conditions, before)
    }

    /// The records whose earlier versions are needed and `self` does not tell.
    pub(super) fn needs_versions<'r>(
        &'r self,
        records: &'r [Record],
    ) -> impl Iterator<Item = &'r Record> + 'r {
        records.iter().filter(|record| {
            let known = match record.kind {
                RecordKind::Plan => self.plan_named(&record.id).map_or(0, |plan| plan.newest().version),
                RecordKind::Settings => self.settings_version,
                RecordKind::Pool => self.pool_named(&record.id).map_or(0, |entry| entry.version),
                RecordKind::Models | RecordKind::Key | RecordKind::MakeGood | RecordKind::Webhook => {
                    return false;
                }
            };
            record.version > 1 && known != record.version && known + 1 != record.version
        })
    }

    fn plan_named(&self, id: &str) -> Option<&Arc<Plan>> {
        self.plans.values().find(|plan| plan.id.as_str() == id)
    }

    fn pool_named(&self, id: &str) -> Option<&Arc<PoolEntry>> {
        self.pools.iter().find(|entry| entry.pool.id.as_str() == id)
    }

    fn zones_before(
        &self,
        record: &Record,
        before: &Self,
        earlier: &Earlier,
    ) -> Result<Vec<(Millis, Arc<Zone>)>, ServiceError> {
        let mut zones = before.zones.clone();
        if before.settings_version == record.version {
            return Ok(zones);
        }
        let mut step = |at: Millis, from: &Arc<Zone>, to: &Arc<Zone>| {
            if from != to {
                zones.push((at, from.clone()));
            }
        };
        if before.settings_version > 0 && before.settings_version + 1 == record.version {
            step(record.effective_at, &before.settings.zone, &self.settings.zone);
            return Ok(zones);
        }
        zones.clear();
        let mut last: Option<Arc<Zone>> = None;
        for older in earlier.get(&(RecordKind::Settings, record.id.clone())).into_iter().flatten().rev() {
            let zone = parse(older, Settings::read)?.zone;
            if let Some(from) = last.replace(zone.clone()).filter(|from| *from != zone) {
                zones.push((older.effective_at, from));
            }
        }
        Ok(zones)
    }

    fn plan_of(&self, record: &Record, before: &Self, earlier: &Earlier) -> Result<Arc<Plan>, ServiceError> {
        let known = before.plan_named(&record.id);
        let same_models = self.models_version == before.models_version;
        if let Some(known) = known.filter(|known| same_models && known.newest().version == record.version) {
            return Ok(known.clone());
        }
        let read = |record: &Record| self.version_of(record).map(Arc::new);
        let of_known = known.filter(|known| known.newest().version + 1 >= record.version);
        let versions = match of_known {
            Some(known) => {
                let again = |version: &Arc<PlanVersion>| match same_models {
                    true => version.clone(),
                    false => Arc::new(version.with_models(&self.models)),
                };
                let mut versions: Vec<_> = known.versions().iter().map(again).collect();
                if known.newest().version < record.version {
                    versions.push(read(record)?);
                }
                versions
            }
            None => {
                let key = (RecordKind::Plan, record.id.clone());
                let all = earlier.get(&key).map_or(std::slice::from_ref(record), Vec::as_slice);
                let till_now = all.iter().rev().filter(|older| older.body.is_some());
                till_now.map(read).collect::<Result<_, _>>()?
            }
        };
        let id = versions.first().map(|version| version.sheet.id.clone());
        let id = id.ok_or_else(|| ServiceError::Corrupt(format!("plan '{}' has no version", record.id)))?;
        Ok(Arc::new(Plan::new(id, versions)))
    }

    /// One version of a plan as stored.
    pub(super) fn version_of(&self, record: &Record) -> Result<PlanVersion, ServiceError> {
        let (sheet, terms) = parse(record, |node| {
            node.read(|fields| {
                let applies = Applies::read(fields, "applies").unwrap_or(Applies::Now);
                let terms = VersionTerms { applies, to: read_audience(fields) };
                Some((Sheet::fields(fields, None)?, terms))
            })
        })?;
        Ok(PlanVersion::new(sheet, VersionRecord::of(record, terms), &self.models))
    }

    fn pool_of(
        &self,
        record: &Record,
        before: &Self,
        earlier: &Earlier,
    ) -> Result<Arc<PoolEntry>, ServiceError> {
        let known = before.pool_named(&record.id);
        let is_same = |known: &&Arc<PoolEntry>| {
            (known.version, known.models_version) == (record.version, self.models_version)
        };
        if let Some(known) = known.filter(is_same) {
            return Ok(known.clone());
        }
        let history = match known {
            Some(known) if known.version == record.version => known.history.clone(),
            Some(known) if known.version + 1 == record.version => known.history_with_own(),
            _ => {
                let mut history = History::default();
                let all = earlier.get(&(RecordKind::Pool, record.id.clone())).into_iter().flatten();
                let older = all.rev().filter(|older| older.version < record.version && older.body.is_some());
                for older in older {
                    let entry = PoolEntry::new(parse(older, Pool::read)?, older, History::default(), self);
                    history.add(entry.effective_at, entry.limits());
                }
                history
            }
        };
        Ok(Arc::new(PoolEntry::new(parse(record, Pool::read)?, record, history, self)))
    }

    /// The tenant's zone at an instant, as far back as records go. Changes that
    /// are later than `now` were made before a test clock was set back.
    pub(in crate::service) fn zone_at(&self, at: Millis, now: Millis) -> &Arc<Zone> {
        let before = self.zones.iter().find(|(until, _)| at < *until && *until <= now);
        before.map_or(&self.settings.zone, |(_, zone)| zone)
    }

    pub fn plan(&self, id: &Name) -> Option<&Arc<Plan>> {
        self.plans.get(id)
    }

    pub fn pool(&self, id: &Name) -> Option<&Arc<PoolEntry>> {
        self.pools.iter().find(|entry| entry.pool.id == *id)
    }
}

/// Reads the body of a stored record.
pub(in crate::service) fn parse<T>(
    record: &Record,
    read: impl FnOnce(&Node<'_>) -> Result<T, Vec<Fault>>,
) -> Result<T, ServiceError> {
    let body = record.body.as_deref().unwrap_or("null");
    let value = Node::from_json(body.as_bytes()).map_err(|fault| vec![fault]).and_then(|node| read(&node));
    value.map_err(|faults| {
        let first = faults.first().map(Fault::to_string).unwrap_or_default();
        ServiceError::Corrupt(format!(
            "version {} of {:?} '{}': {first}",
            record.version, record.kind, record.id
        ))
    })
}
