//! The conditions of pools, at hand beside their sheets.
//!
//! A condition is on record like a plan: at once in force on the node that
//! changed it, on the others as soon as they hear of it. The one way to change
//! one is `Registry::change_condition`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::domain::charge::{CellId, Earlier, FigureStep, Figures};
use crate::domain::condition::{Brake, Condition, Pause, PauseKind, Peaks, Turns, Waited};
use crate::domain::ids::Name;
use crate::domain::plan::{Limit, Rule};
use crate::domain::quantity::Ppm;
use crate::domain::time::Millis;
use crate::ledger::{LedgerError, Note, PoolCondition, Write, Written};
use crate::service::entitlement::figures::without_spans;
use crate::service::error::ServiceError;
use crate::service::tenancy::catalog::{Catalog, PoolEntry, Tenant};
use crate::service::tenancy::registry::Registry;

/// Writers of one condition that are waited for before giving up.
const TRIES: usize = 16;

/// A pool's condition as this node knows it.
#[derive(Debug, Default)]
pub(in crate::service) struct Kept {
    /// 0: nothing is on record.
    version: u32,
    condition: Condition,
    /// What those of each lane that wait were told by this node: interactive,
    /// bulk.
    pub turns: Mutex<[Turns; 2]>,
    /// Somebody was turned away here since the last time that all was well.
    turned_away: AtomicBool,
}

impl Kept {
    fn read(stored: &PoolCondition) -> Result<Self, ServiceError> {
        let condition = serde_json::from_str(&stored.body);
        let condition = condition.map_err(|error| {
            ServiceError::Corrupt(format!("the condition of pool '{}': {error}", stored.pool))
        })?;
        Ok(Self { version: stored.version, condition, ..Self::default() })
    }
}

/// A bucket's figures now, those before, and those known to come.
pub(super) type BucketFigures = (Figures, Option<Earlier>, Option<Arc<[FigureStep]>>);

/// What concerns all conditions of a process.
#[derive(Debug, Default)]
pub struct Conditions {
    /// Rings whoever waits: a condition has changed, or what else is on record
    /// of a tenant.
    pub(in crate::service) bell: Notify,
    pub pauses: AtomicU64,
    pub closures: AtomicU64,
    pub openings: AtomicU64,
    pub brakes: AtomicU64,
    pub lowered: AtomicU64,
    pub corrections: AtomicU64,
    pub pushed_over: AtomicU64,
    pub feedback: AtomicU64,
}

impl PoolEntry {
    /// Whether, and until when, calls of a lane wait for this pool whatever is
    /// in it. Of a pool that is for planning only nobody waits.
    pub fn paused(&self, now: Millis, bulk: bool) -> Option<Pause> {
        if self.kept.version == 0 || !self.pool.enforced {
            return None;
        }
        let condition = &self.kept.condition;
        let (pause, turned_away) = (condition.paused(now, bulk), &self.kept.turned_away);
        if pause.is_some() {
            turned_away.store(true, Relaxed);
        } else if turned_away.load(Relaxed)
            && condition.paused(now, true).is_none()
            && turned_away.swap(false, Relaxed)
        {
            tracing::info!(pool.id = self.pool.id.as_str(), "calls of a pool go through again");
        }
        pause
    }

    pub fn condition(&self) -> &Condition {
        &self.kept.condition
    }

    /// The condition as callers and admins see it.
    pub fn condition_json(&self, now: Millis) -> Value {
        let condition = self.condition();
        let closed = condition.closed(now);
        let paused_until = condition.paused_until(now);
        json!({
            "state": match (closed, paused_until) {
                (Some(_), _) => "closed",
                (None, Some(_)) => "paused",
                (None, None) => "open",
            },
            "paused_until": paused_until.map(|at| at.to_string()),
            "bulk_paused_until": condition.bulk_until(now).map(|at| at.to_string()),
            "closed_since": closed.map(|closed| closed.since.to_string()),
            "closed_until": closed.map(|closed| closed.until.to_string()),
            "closed_because": closed.map(|closed| closed.why.as_str()),
            "rate": condition.share(now).as_f64(),
            "ramp": self.ramp_allows(now),
        })
    }

    /// What held the pool's callers back of late, the latest first.
    pub fn waited_json(&self) -> Value {
        let of = |wait: &Waited| {
            json!({
                "kind": wait.kind.as_str(),
                "from": wait.from.to_string(),
                "until": wait.until.to_string(),
                "times": wait.times,
            })
        };
        self.condition().waited().latest_first().map(of).collect()
    }

    /// The figures of the pool's bucket at `index` now, with those that held
    /// before and those that are known to come. A call for which the lowered
    /// stock is too small is asked of the whole one: it may wait, but is never
    /// told that it is too large. `fits`: whether a stock can ever hold it.
    pub(in crate::service) fn bucket(
        &self,
        index: usize,
        now: Millis,
        fits: impl Fn(u64) -> bool,
    ) -> Option<BucketFigures> {
        let Rule::Bucket { capacity: whole, refill_per_minute, .. } = self.pool.limits[index].limit.rule
        else {
            return None;
        };
        let earlier = |steps: Arc<[FigureStep]>| without_spans(steps, Millis(i64::MIN));
        let steps = self.runs.get(index).filter(|_| self.condition().rate().matters(now));
        let Some(steps) = steps else {
            let figures =
                Figures::Bucket { capacity: whole, refill: refill_per_minute, since: self.effective_at };
            let before = self.history.figures(self.cells[index]).map(|steps| earlier(Arc::clone(steps)));
            return Some((figures, before, None));
        };
        let to_come = steps.partition_point(|step| step.since <= now).max(1);
        let present = steps.get(to_come - 1)?;
        let capacity = if fits(present.most) { present.most } else { whole };
        let figures = Figures::Bucket { capacity, refill: present.refill, since: present.since };
        let before = (to_come > 1).then(|| earlier(steps[..to_come - 1].into()));
        Some((figures, before, (to_come < steps.len()).then(|| steps[to_come..].into())))
    }

    /// The same for the pool's rolling limit at `index`.
    pub(in crate::service) fn rolling(
        &self,
        index: usize,
        now: Millis,
        fits: impl Fn(u64) -> bool,
    ) -> Option<Figures> {
        let rule = &self.pool.limits[index].limit.rule;
        let window_ms = rule.rolling_ms()?;
        let whole = rule.most_at_once();
        let lowered = self.condition().rate().scaled(whole, now);
        Some(Figures::Rolling { limit: if fits(lowered) { lowered } else { whole }, window_ms })
    }

    /// This pool with the condition that is on record; `None`: it is the one
    /// that is at hand. `before`: the pool as it was at hand.
    fn conditioned(
        &self,
        stored: Option<&PoolCondition>,
        before: Option<&Arc<Self>>,
    ) -> Result<Option<Self>, ServiceError> {
        let version = stored.map_or(0, |stored| stored.version);
        if self.kept.version == version {
            return Ok(None);
        }
        let known = before.filter(|before| before.kept.version == version);
        let kept = match (known, stored) {
            (Some(known), _) => Arc::clone(&known.kept),
            (None, Some(stored)) => Arc::new(Kept::read(stored)?),
            (None, None) => Arc::default(),
        };
        let observed = Arc::clone(before.map_or(&self.observed, |before| &before.observed));
        let mut entry = Self { kept, observed, ..self.clone() };
        entry.runs = entry.runs();
        Ok(Some(entry))
    }

    /// What each bucket runs with over time, by the versions of the sheet and
    /// the rate; empty for other limits.
    fn runs(&self) -> Vec<Arc<[FigureStep]>> {
        let run = |(limit, cell): (&Limit, &CellId)| {
            let mut whole: Vec<FigureStep> =
                self.history.figures(*cell).map_or(Vec::new(), |steps| steps.to_vec());
            if let Rule::Bucket { capacity, refill_per_minute, .. } = &limit.rule {
                whole.push(FigureStep {
                    most: *capacity,
                    refill: *refill_per_minute,
                    since: self.effective_at,
                });
            }
            self.condition().rate().figures(&whole).into()
        };
        self.limits().map(run).collect()
    }
}

impl Catalog {
    /// These records with the conditions on record; what is the same in
    /// `before` is taken over as it is.
    pub(in crate::service) fn with_conditions(
        mut self,
        conditions: &[PoolCondition],
        before: &Self,
    ) -> Result<Self, ServiceError> {
        for entry in &mut self.pools {
            let stored = conditions.iter().find(|stored| stored.pool == entry.pool.id.as_str());
            if let Some(conditioned) = entry.conditioned(stored, before.pool(&entry.pool.id))? {
                *entry = Arc::new(conditioned);
            }
        }
        Ok(self)
    }
}

/// What a change of a condition is put on record with.
pub(super) struct Noted<'a> {
    pub note: Note,
    pub by: &'a str,
    pub reason: Option<String>,
}

impl Registry {
    /// Changes a pool's condition, unless `change` answers that nothing
    /// changes. Of changes at the same time each is made from what the one
    /// before it left. The answer says whether anything changed.
    ///
    /// # Errors
    /// `NotFound`: the tenant has no such pool.
    pub(super) async fn change_condition(
        &self,
        tenant: &Tenant,
        pool: &Name,
        noted: Option<Noted<'_>>,
        change: impl Fn(&Condition, Millis) -> Option<Condition>,
    ) -> Result<(Arc<PoolEntry>, bool), ServiceError> {
        let find = || tenant.catalog().pool(pool).cloned().ok_or(ServiceError::NotFound("pool"));
        let known = find()?;
        if change(known.condition(), tenant.now()).is_none() {
            return Ok((known, false));
        }
        let _turn = tenant.changing.lock().await;
        for _ in 0..TRIES {
            if tenant.is_deleted() {
                return Err(ServiceError::NotFound("pool"));
            }
            let (known, now) = (find()?, tenant.now());
            let Some(condition) = change(known.condition(), now) else { return Ok((known, false)) };
            let body = serde_json::to_string(&condition)
                .map_err(|error| ServiceError::Corrupt(error.to_string()))?;
            let stored = PoolCondition { pool: pool.as_str().into(), version: known.kept.version + 1, body };
            let noted = noted.as_ref().map(|Noted { note, by, reason }| {
                (note.clone(), Written { at: now, by: (*by).to_owned(), reason: reason.clone() })
            });
            let told = self.told_of_pool(tenant, (known.condition(), &condition), &stored, now);
            match self.write_told(tenant, Write::Condition(stored.clone(), noted), told).await {
                Ok(()) => {
                    self.told_of_change(tenant, known.condition(), &condition, pool, now);
                    let catalog = tenant.catalog();
                    let mut conditioned = Catalog::clone(&catalog);
                    if let Some(entry) = conditioned.pools.iter_mut().find(|entry| entry.pool.id == *pool)
                        && let Some(next) = entry.conditioned(Some(&stored), Some(&known))?
                    {
                        *entry = Arc::new(next);
                    }
                    tenant.replace_catalog(conditioned);
                    self.conditions.bell.notify_waiters();
                    return Ok((find()?, true));
                }
                Err(LedgerError::Conflict) => self.read_conditions(tenant).await?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(ServiceError::ChangedMeanwhile)
    }

    /// Reads the conditions anew. The caller holds `tenant.changing`.
    async fn read_conditions(&self, tenant: &Tenant) -> Result<(), ServiceError> {
        let stored = self.ledger.conditions(tenant.number).await?;
        let catalog = tenant.catalog();
        tenant.replace_catalog(Catalog::clone(&catalog).with_conditions(&stored, &catalog)?);
        self.conditions.bell.notify_waiters();
        Ok(())
    }

    /// One line for every pause, closure and opening, and their counts.
    fn told_of_change(
        &self,
        tenant: &Tenant,
        before: &Condition,
        after: &Condition,
        pool: &Name,
        now: Millis,
    ) {
        let (tenant, pool) = (tenant.id.as_str(), pool.as_str());
        let counts = &self.conditions;
        let count = |counter: &AtomicU64| _ = counter.fetch_add(1, Relaxed);
        match (before.closed(now), after.closed(now)) {
            (None, Some(closed)) => {
                count(&counts.closures);
                let (why, until) = (closed.why.as_str(), closed.until.to_string());
                tracing::error!(
                    tenant.id = tenant,
                    pool.id = pool,
                    why,
                    until,
                    "a pool is closed: the vendor's spend limit"
                );
            }
            (Some(_), None) => {
                count(&counts.openings);
                tracing::info!(tenant.id = tenant, pool.id = pool, "a closed pool was opened");
            }
            _ => {}
        }
        if let (None, Some(until)) = (before.paused_until(now), after.paused_until(now)) {
            count(&counts.pauses);
            let until = until.to_string();
            tracing::warn!(
                tenant.id = tenant,
                pool.id = pool,
                until,
                "a pool is paused: the vendor says to wait"
            );
        }
        if after.share(now) < before.share(now) {
            count(&counts.lowered);
            let rate = after.share(now).as_f64();
            tracing::warn!(
                tenant.id = tenant,
                pool.id = pool,
                rate,
                "a pool's rate was lowered: refusals repeat"
            );
        }
        if let (None, Some(_)) = (before.bulk_until(now), after.bulk_until(now)) {
            count(&counts.brakes);
            tracing::warn!(
                tenant.id = tenant,
                pool.id = pool,
                "bulk calls of a pool are paused: interactive ones fare badly"
            );
        }
    }

    /// Counts of enforced pools of all tenants that are paused, closed, braked
    /// and slowed down now.
    pub fn troubled_pools(&self) -> [u64; 4] {
        let mut counts = [0; 4];
        for tenant in self.tenants() {
            let now = tenant.now();
            for entry in tenant.catalog().pools.iter().filter(|entry| entry.pool.enforced) {
                let condition = entry.condition();
                let is = [
                    condition.paused(now, false).is_some_and(|pause| pause.kind == PauseKind::Paused),
                    condition.closed(now).is_some(),
                    condition.bulk_until(now).is_some(),
                    condition.share(now) < Ppm::ONE,
                ];
                counts.iter_mut().zip(is).for_each(|(count, is)| *count += u64::from(is));
            }
        }
        counts
    }
}

/// What calls of a pool came to on this node of late.
pub(in crate::service) type Observed = Arc<Mutex<Lately>>;

#[derive(Debug, Default)]
pub(in crate::service) struct Lately {
    pub brake: Brake,
    pub peaks: Peaks,
}
