//! Plans against a pool: what all active users together may draw from a vendor.
//!
//! For each meter the demand of a plan is its active users times the rate that
//! its sheet sustains for ever; the sum must not exceed what the pool allows.
//! Apart from that, what users have stored in their buckets can be spent at
//! once: the worst window is shown beside it and judged on its own.

mod demand;
mod headcount;

use std::collections::HashSet;

use serde::{Serialize, Serializer};

pub use self::headcount::Headcount;

use self::demand::{Flow, Period as Per};
use super::document::{Fault, Reader};
use super::ids::Name;
use super::plan::{Meter, Pool, PoolLimit, Rule, Sheet};
use super::quantity::{MAX_AMOUNT, Ppm};

#[cfg(test)]
mod tests;

/// Meters that are shown even when the pool has no limit on them.
const ALWAYS: [Meter; 3] = [Meter::Requests, Meter::InputTokens, Meter::OutputTokens];

/// Whether plans fit a pool, limit by limit. Amounts saturate at 2^53 - 1.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub pool: Name,
    /// The sustained demand fits on every meter.
    pub fits: bool,
    /// The worst window fits on every meter.
    pub burst_fits: bool,
    pub meters: Vec<MeterReport>,
}

/// One limit of the pool, or a meter on which it has none.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeterReport {
    /// `requests`, `output_tokens`, ...; `slots` for calls in flight.
    pub meter: String,
    /// Name of the pool's limit; `None` when it has none on this meter.
    pub limit: Option<String>,
    /// What `demand`, `allowed` and rates are counted per: `minute`, `day`,
    /// ...; `None` for slots.
    pub per: Option<String>,
    pub by_plan: Vec<PlanReport>,
    /// Sum over the plans; `None` when a plan's demand has no bound.
    pub demand: Option<u64>,
    /// The vendor's own figure, per `window_seconds` for a bucket.
    pub vendor_limit: Option<u64>,
    pub window_seconds: Option<u32>,
    #[serde(serialize_with = "share")]
    pub margin: Option<Ppm>,
    /// What the pool lets through; `None` when it has no limit here.
    pub allowed: Option<u64>,
    pub fits: bool,
    /// What can come in the worst window: all that is stored and what is
    /// refilled meanwhile. `None` where nothing is stored, or without bound.
    pub burst: Option<u64>,
    /// What the worst window may hold.
    pub burst_allowed: Option<u64>,
    pub burst_fits: bool,
    /// Why it does not fit although there is no figure to show.
    pub reason: Option<String>,
}

/// One plan's part of a meter.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanReport {
    pub plan: Name,
    pub active: u64,
    /// What one user can draw for ever; `None` is no bound.
    pub rate: Option<u64>,
    /// The limit or limits of the sheet that make the rate.
    pub by: Option<String>,
    pub demand: Option<u64>,
    pub burst: Option<u64>,
    /// The largest rate with which all would fit, all else equal. `None` when
    /// any rate fits, or none can because another plan has no bound.
    pub largest_rate: Option<u64>,
}

/// Checks the plans of `active` (plan id and users active at the peak) against
/// `pool`.
///
/// Faults, under `/active/<plan>`: a plan that no sheet has, or named twice.
pub fn check<'s>(
    sheets: impl IntoIterator<Item = &'s Sheet>,
    pool: &Pool,
    active: &[(Name, u64)],
) -> Result<Report, Vec<Fault>> {
    let crowds = crowds(sheets.into_iter().collect(), active)?;
    let mut meters: Vec<MeterReport> = Vec::new();
    for meter in ALWAYS {
        if !pool.limits.iter().any(|limit| limit.limit.rule.meter() == Some(&meter)) {
            meters.push(report_unlimited(&meter, pool, &crowds));
        }
    }
    meters.extend(pool.limits.iter().map(|limit| report(limit, pool, &crowds)));
    meters.sort_by_key(|row| {
        ALWAYS.iter().position(|meter| meter.as_str() == row.meter).unwrap_or(ALWAYS.len())
    });
    Ok(Report {
        pool: pool.id.clone(),
        fits: meters.iter().all(|row| row.fits),
        burst_fits: meters.iter().all(|row| row.burst_fits),
        meters,
    })
}

/// Reads the field `active`, `{"free": 60, ...}`, of a request.
pub fn read_active(r: &mut Reader<'_, '_>) -> Option<Vec<(Name, u64)>> {
    r.optional("active").table(|r| {
        let mut active = Vec::new();
        for plan in r.names() {
            let users = r.required(plan).amount(MAX_AMOUNT);
            match Name::parse(plan) {
                Ok(name) => active.extend(users.map(|users| (name, users))),
                Err(error) => r.fault(plan, format!("is no plan: the name {error}")),
            }
        }
        Some(active)
    })
}

/// Reads `free=60,standard=20`, or says in a sentence what is wrong with it.
pub fn parse_active(text: &str) -> Result<Vec<(Name, u64)>, String> {
    let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let parse = |entry: &str| {
        let (plan, users) = entry.split_once('=').ok_or_else(|| format!("{entry:?} is not PLAN=USERS"))?;
        let name = Name::parse(plan).map_err(|error| format!("the plan of {entry:?} {error}"))?;
        let digits = !users.is_empty() && users.bytes().all(|byte| byte.is_ascii_digit());
        let users = users.parse().ok().filter(|users| digits && *users <= MAX_AMOUNT);
        let users = users.ok_or_else(|| format!("the users of {entry:?} must be a whole number"))?;
        Ok((name, users))
    };
    entries.map(parse).collect()
}

/// The active users of one plan.
struct Crowd<'s> {
    sheet: &'s Sheet,
    active: u64,
}

fn crowds<'s>(sheets: Vec<&'s Sheet>, active: &[(Name, u64)]) -> Result<Vec<Crowd<'s>>, Vec<Fault>> {
    let mut named = HashSet::new();
    let mut crowds = Vec::new();
    let mut faults = Vec::new();
    for (plan, active) in active {
        let escaped = plan.as_str().replace('/', "~1");
        let mut fault = |message: &str| {
            faults.push(Fault { pointer: format!("/active/{escaped}"), message: message.into() });
        };
        match sheets.iter().find(|sheet| sheet.id == *plan) {
            _ if !named.insert(plan) => fault("is given more than once"),
            Some(sheet) => crowds.push(Crowd { sheet, active: *active }),
            None => fault("is not a known plan"),
        }
    }
    if faults.is_empty() { Ok(crowds) } else { Err(faults) }
}

/// How a row is counted: per what, and what the pool allows.
struct Measure {
    per: Per,
    allowed: Option<u128>,
    burst_allowed: Option<u128>,
}

fn report_unlimited(meter: &Meter, pool: &Pool, crowds: &[Crowd<'_>]) -> MeterReport {
    let filter = pool.filter();
    let flows = crowds.iter().map(|crowd| demand::flow(crowd.sheet, Some(meter), &filter, Per::MINUTE));
    let measure = Measure { per: Per::MINUTE, allowed: None, burst_allowed: None };
    judge(meter.as_str(), measure, crowds, &flows.collect::<Vec<_>>())
}

fn report(pool_limit: &PoolLimit, pool: &Pool, crowds: &[Crowd<'_>]) -> MeterReport {
    let rule = &pool_limit.limit.rule;
    let measure = measure(pool_limit, pool);
    let filter = match pool_limit.limit.filter.is_everything() {
        true => pool.filter(),
        false => pool_limit.limit.filter.clone(),
    };
    let per = measure.per;
    let flows = crowds.iter().map(|crowd| demand::flow(crowd.sheet, rule.meter(), &filter, per));
    let meter = rule.meter().map_or("slots", Meter::as_str);
    let mut row = judge(meter, measure, crowds, &flows.collect::<Vec<_>>());
    row.limit = Some(pool_limit.limit.name.to_string());
    row.vendor_limit = pool_limit.vendor_limit;
    row.margin = pool_limit.vendor_limit.map(|_| pool.margin);
    row.window_seconds = match rule {
        Rule::Bucket { .. } => pool_limit.vendor_limit.map(|_| pool_limit.window_seconds),
        Rule::Rolling { window_seconds, .. } => Some(*window_seconds),
        Rule::Window { .. } | Rule::Slots { .. } => None,
    };
    row
}

/// What a limit of the pool lets through: of a vendor's figure the share that
/// is used; of figures given outright the refill, and with the stock besides
/// in the worst minute.
fn measure(pool_limit: &PoolLimit, pool: &Pool) -> Measure {
    match &pool_limit.limit.rule {
        Rule::Bucket { capacity, refill_per_minute, .. } => {
            let seconds = pool_limit.window_seconds;
            let per = Per::Minute { window_seconds: seconds };
            match pool_limit.vendor_limit {
                Some(figure) => {
                    let effective = u128::from(pool.margin.of_rounded_down(figure));
                    let allowed = effective * 60 / u128::from(seconds);
                    Measure { per, allowed: Some(allowed), burst_allowed: Some(effective) }
                }
                None => {
                    let refill = u128::from(*refill_per_minute);
                    let worst = u128::from(*capacity) + refill;
                    Measure { per, allowed: Some(refill), burst_allowed: Some(worst) }
                }
            }
        }
        Rule::Window { limit, period, .. } => {
            Measure { per: Per::Window(*period), allowed: Some((*limit).into()), burst_allowed: None }
        }
        Rule::Slots { limit } => {
            Measure { per: Per::AtOnce, allowed: Some((*limit).into()), burst_allowed: None }
        }
        Rule::Rolling { limit, window_seconds, .. } => {
            let per = Per::Minute { window_seconds: *window_seconds };
            let allowed = u128::from(*limit) * 60 / u128::from(*window_seconds);
            Measure { per, allowed: Some(allowed), burst_allowed: Some((*limit).into()) }
        }
    }
}

fn judge(meter: &str, measure: Measure, crowds: &[Crowd<'_>], flows: &[Option<Flow>]) -> MeterReport {
    let Measure { per, allowed, burst_allowed } = measure;
    let demands: Vec<Option<u128>> =
        crowds.iter().zip(flows).map(|(crowd, flow)| times(crowd, flow, |flow| flow.rate)).collect();
    let bursts: Vec<Option<u128>> =
        crowds.iter().zip(flows).map(|(crowd, flow)| times(crowd, flow, |flow| flow.burst)).collect();
    let (demand, burst) = (sum(&demands), sum(&bursts));
    let by_plan = crowds.iter().zip(flows).enumerate().map(|(index, (crowd, flow))| {
        let others = [&demands[..index], &demands[index + 1..]].concat();
        let room = allowed.zip(sum(&others)).map(|(allowed, others)| allowed.saturating_sub(others));
        PlanReport {
            plan: crowd.sheet.id.clone(),
            active: crowd.active,
            rate: flow.as_ref().map(|flow| shown(flow.rate)),
            by: flow.as_ref().map(|flow| flow.by.clone()),
            demand: demands[index].map(shown),
            burst: bursts[index].filter(|_| per.stores()).map(shown),
            largest_rate: room.and_then(|room| room.checked_div(crowd.active.into())).map(shown),
        }
    });
    let fits = |wanted: Option<u128>, allowed: Option<u128>| match (wanted, allowed) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(wanted), Some(allowed)) => wanted <= allowed,
    };
    let unbounded = crowds.iter().zip(&demands).find(|(_, demand)| demand.is_none());
    let reason = unbounded.map(|(crowd, _)| {
        format!("the demand of {} has no bound: no limit of the sheet bounds {meter}", crowd.sheet.id)
    });
    MeterReport {
        meter: meter.to_owned(),
        limit: None,
        per: per.words(),
        by_plan: by_plan.collect(),
        demand: demand.map(shown),
        vendor_limit: None,
        window_seconds: None,
        margin: None,
        allowed: allowed.map(shown),
        fits: fits(demand, allowed),
        burst: burst.filter(|_| per.stores()).map(shown),
        burst_allowed: burst_allowed.map(shown),
        burst_fits: fits(burst, burst_allowed),
        reason,
    }
}

/// Users times what one of them draws; nobody draws nothing, even unbound.
fn times(crowd: &Crowd<'_>, flow: &Option<Flow>, of: impl Fn(&Flow) -> u128) -> Option<u128> {
    match flow {
        _ if crowd.active == 0 => Some(0),
        Some(flow) => Some(of(flow).saturating_mul(crowd.active.into())),
        None => None,
    }
}

fn sum(parts: &[Option<u128>]) -> Option<u128> {
    parts.iter().try_fold(0u128, |sum, part| Some(sum.saturating_add((*part)?)))
}

fn shown(amount: u128) -> u64 {
    amount.min(MAX_AMOUNT.into()) as u64
}

fn share<S: Serializer>(share: &Option<Ppm>, serializer: S) -> Result<S::Ok, S::Error> {
    share.map(Ppm::as_f64).serialize(serializer)
}
