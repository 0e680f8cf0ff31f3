//! What a pool's vendor answers, and what follows for everybody behind it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;

use super::conditions::Noted;
use crate::domain::charge::{AccountKey, CellId, Charge, Demand, MeterCode};
use crate::domain::condition::{Condition, Outcome};
use crate::domain::hold::Hold;
use crate::domain::ids::{Label, Name};
use crate::domain::plan::{Filter, Limit, Rule, Scope};
use crate::domain::time::{Millis, Period};
use crate::domain::upstream::{Answer, Left, Meaning};
use crate::ledger::Note;
use crate::service::{PoolEntry, Service, ServiceError, Tenant, Unrecorded};

/// What is left by the vendor's count is believed where it is less than ours by
/// more than this part of our limit.
const FAR: u64 = 10;

/// A vendor's answer to a call of a pool.
#[derive(Debug)]
pub struct Feedback<'a> {
    pub answer: Answer<'a>,
    pub bulk: bool,
    pub latency_ms: Option<u64>,
}

/// What was made of it.
#[derive(Debug)]
pub struct FeedbackReply {
    pub pool: Arc<PoolEntry>,
    pub meaning: Meaning,
    /// Limits of which less is left than was thought, and what is.
    pub corrected: Vec<(Label, u64)>,
    pub now: Millis,
}

impl Service {
    /// Takes in what a vendor answered. `by` is for the audit.
    ///
    /// # Errors
    /// `NotFound`: the tenant has no such pool.
    pub async fn feedback(
        &self,
        tenant: &Tenant,
        id: &Name,
        feedback: &Feedback<'_>,
        by: &str,
    ) -> Result<FeedbackReply, ServiceError> {
        let catalog = tenant.catalog();
        let entry = catalog.pool(id).ok_or(ServiceError::NotFound("pool"))?;
        let now = tenant.now();
        self.registry.conditions.feedback.fetch_add(1, Relaxed);
        let meaning = feedback.answer.meaning(now);
        self.put_in_force(tenant, id, &meaning, by).await?;
        let rejected = feedback.answer.is_rejection();
        // A call that went through is told by its settle.
        if !feedback.bulk && (rejected || feedback.latency_ms.is_some()) {
            self.observe(tenant, entry, Outcome { rejected, latency_ms: feedback.latency_ms }).await;
        }
        let corrected = match entry.pool.enforced {
            true => self.correct_by(tenant, entry, &feedback.answer.left(), now).await?,
            false => Vec::new(),
        };
        let pool = tenant.catalog().pool(id).cloned().ok_or(ServiceError::NotFound("pool"))?;
        Ok(FeedbackReply { pool, meaning, corrected, now: tenant.now() })
    }

    async fn put_in_force(
        &self,
        tenant: &Tenant,
        id: &Name,
        meaning: &Meaning,
        by: &str,
    ) -> Result<(), ServiceError> {
        match meaning {
            Meaning::Nothing => {}
            Meaning::Wait { until, because } => {
                let change = |known: &Condition, now| {
                    (*until > now).then(|| known.waits(*until, *because, now)).flatten()
                };
                self.registry.change_condition(tenant, id, None, change).await?;
            }
            Meaning::Spent { why } => {
                let month_end = |now| tenant.catalog().settings.zone.borders(Period::Month, 1, now).end;
                let after = serde_json::json!({ "why": why, "until": month_end(tenant.now()) });
                let noted = Noted { note: note("pool.close", id, Some(after)), by, reason: None };
                self.registry
                    .change_condition(tenant, id, Some(noted), |condition, now| {
                        condition.closes(why, month_end(now), now)
                    })
                    .await?;
            }
        }
        Ok(())
    }

    /// Lets calls of a pool through again.
    ///
    /// # Errors
    /// `NotFound`: the tenant has no such pool.
    pub async fn open_pool(
        &self,
        tenant: &Tenant,
        id: &Name,
        by: &str,
        reason: String,
    ) -> Result<Arc<PoolEntry>, ServiceError> {
        let noted = Noted { note: note("pool.open", id, None), by, reason: Some(reason) };
        let opened =
            self.registry.change_condition(tenant, id, Some(noted), |known, now| known.opens(now)).await?;
        let waits_there = |key: &AccountKey| {
            (key.tenant, key.scope, &*key.owner) == (tenant.number, Scope::Pool, id.as_str())
        };
        self.rooms.ring_those(waits_there);
        Ok(opened.0)
    }

    /// A hold was settled: its call went through, and took so long.
    pub(in crate::service) async fn observe_settled(
        &self,
        tenant: &Tenant,
        hold: &Hold,
        latency_ms: Option<u64>,
        status: Option<u16>,
    ) {
        let Some(pool) = hold.pool.as_ref().filter(|_| !hold.bulk) else { return };
        let catalog = tenant.catalog();
        let Some(entry) = catalog.pool(pool) else { return };
        let rejected = status.is_some_and(|status| matches!(status, 429 | 529));
        self.observe(tenant, entry, Outcome { rejected, latency_ms }).await;
    }

    /// Counts how an interactive call ended. Where they fare badly, bulk calls
    /// wait; if that cannot be put on record now, the next call tries again.
    async fn observe(&self, tenant: &Tenant, entry: &PoolEntry, outcome: Outcome) {
        if !entry.pool.enforced {
            return;
        }
        let now = tenant.now();
        let trips = {
            let brake = &mut entry.observed.lock().brake;
            brake.note(outcome, now);
            brake.trips(now)
        };
        if !trips {
            return;
        }
        let braked =
            self.registry.change_condition(tenant, &entry.pool.id, None, |known, now| known.brakes(now));
        if let Err(error) = braked.await {
            tracing::warn!(error = &error as &dyn std::error::Error, "bulk calls could not be paused");
        }
    }

    /// Where far less is left by the vendor's count than by ours, somebody else
    /// has used it. What both know of is never taken twice: the stock is lowered
    /// to what is left, however many say so.
    async fn correct_by(
        &self,
        tenant: &Tenant,
        entry: &PoolEntry,
        left: &[Left],
        now: Millis,
    ) -> Result<Vec<(Label, u64)>, ServiceError> {
        let (names, charges): (Vec<&Label>, SmallVec<[Charge; 8]>) =
            left.iter().flat_map(|left| entry.counting(left, now)).unzip();
        if charges.is_empty() {
            return Ok(Vec::new());
        }
        let owner = entry.pool.id.shared();
        let key = AccountKey { tenant: tenant.number, scope: Scope::Pool, owner };
        let standings = self.standings(std::slice::from_ref(&key), &charges, now).await?;
        let mut far: Vec<Charge> = Vec::new();
        let mut corrected = Vec::new();
        for ((name, charge), shown) in names.into_iter().zip(&charges).zip(standings) {
            if shown.standing.remaining().saturating_sub(charge.keep) > shown.standing.limit() / FAR {
                corrected.push((name.clone(), charge.keep));
                far.push(charge.clone());
            }
        }
        if far.is_empty() {
            return Ok(corrected);
        }
        self.registry.conditions.corrections.fetch_add(1, Relaxed);
        let ticket = self.apply(now, || self.engine.touch(&key, &far, now)).await?;
        self.recorded(Unrecorded(ticket)).await?;
        Ok(corrected)
    }
}

impl PoolEntry {
    /// The limits that count what the vendor tells of, for every model and
    /// feature, each with the charge that leaves so much in it.
    fn counting<'s>(&'s self, left: &Left, now: Millis) -> Vec<(&'s Label, Charge)> {
        let limits = self.limits().zip(&self.filters).enumerate();
        let counts = |filter: &Filter, rule: &Rule| {
            let meter = rule.meter().and_then(MeterCode::built_in);
            *filter == Filter::default() && meter == Some(left.meter)
        };
        let charge = |(index, ((limit, cell), filter)): (usize, ((&'s Limit, &CellId), &Filter))| {
            if !counts(filter, &limit.rule) {
                return None;
            }
            let bucket = self.bucket(index, now, |_| true);
            let rolling = || Some((self.rolling(index, now, |_| true)?, None, None));
            let (figures, earlier, to_come) = bucket.or_else(rolling)?;
            let charge = Charge {
                account: 0,
                cell: *cell,
                meter: left.meter,
                figures,
                demand: Demand::fixed(1),
                enforce: limit.enforce,
                asked: true,
                earlier,
                grants: None,
                to_come,
                switches: true,
                keep: left.remaining,
            };
            Some((&limit.name, charge))
        };
        limits.filter_map(charge).collect()
    }
}

fn note(action: &'static str, pool: &Name, after: Option<serde_json::Value>) -> Note {
    Note { action, target: pool.as_str().to_owned(), before: None, after }
}
