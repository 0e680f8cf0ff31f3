//! How the users of a plan stand to its limits, so that the figures can be set to what
//! is used.

use std::ops::Range;

use crate::domain::decision::usual_code;
use crate::domain::ids::Name;
use crate::domain::plan::{Limit, Meter, Rule, Scope};
use crate::domain::time::{Anchor, Period, month_of_day};
use crate::ledger::{Figure, PlanRefusals, SLOT_MS, SpreadQuery, Used};
use crate::service::{Service, ServiceError, Tenant};

/// Slots of a day.
const DAY: i64 = 288;
/// Minutes of a slot.
const MINUTES: u64 = 5;
const REFUSED_DAYS: i32 = 7;
const BLOCKED_DAYS: u32 = 3;

#[derive(Debug)]
pub struct Tuning {
    pub plan: Name,
    pub version: u32,
    /// The days of the refusals.
    pub days: Range<i32>,
    pub limits: Vec<LimitUse>,
    pub refusals: Vec<PlanRefusals>,
}

#[derive(Debug)]
pub struct LimitUse {
    pub limit: Limit,
    /// The code that it refuses with.
    pub code: &'static str,
    /// Why not, where it cannot be told.
    pub used: Result<UseRatios, &'static str>,
}

/// Use over limit, of the users who used it at all.
#[derive(Debug, Clone, PartialEq)]
pub struct UseRatios {
    /// Of which time, in words.
    pub of: &'static str,
    pub users: u64,
    /// P50, P90, P99; `None`: nobody used it.
    pub quantiles: Option<[f64; 3]>,
}

impl Service {
    /// # Errors
    /// `UnknownPlan`.
    pub async fn tuning(&self, tenant: &Tenant, plan: &Name) -> Result<Tuning, ServiceError> {
        self.flush_tallies().await?;
        let (catalog, now) = (tenant.catalog(), tenant.now());
        let version = catalog.plan(plan).ok_or(ServiceError::UnknownPlan)?.current(now);
        let mut limits = Vec::with_capacity(version.sheet.limits.len());
        for limit in &version.sheet.limits {
            let used = match self.asked(tenant, plan, limit) {
                Ok((of, query, whole)) => {
                    let spread = self.ledger.spread(tenant.number, query).await?;
                    Ok(UseRatios::new(of, &spread, whole))
                }
                Err(reason) => Err(reason),
            };
            limits.push(LimitUse { limit: limit.clone(), code: usual_code(limit).as_str(), used });
        }
        let today = catalog.settings.zone.local_day(now);
        let days = today + 1 - REFUSED_DAYS..today + 1;
        let refusals =
            self.ledger.plan_refusals(tenant.number, plan.clone(), days.clone(), BLOCKED_DAYS).await?;
        Ok(Tuning { plan: plan.clone(), version: version.version, days, limits, refusals })
    }

    /// What to ask for a limit: in words, for the ledger, and what it could have
    /// given.
    fn asked(
        &self,
        tenant: &Tenant,
        plan: &Name,
        limit: &Limit,
    ) -> Result<(&'static str, SpreadQuery, u64), &'static str> {
        if limit.scope != Scope::User {
            return Err("it counts for users together");
        }
        if !limit.filter.is_empty() {
            return Err("totals do not tell what its filter takes");
        }
        let figure = |meter: &Meter| {
            Ok(match meter {
                Meter::Requests => Figure::Requests,
                Meter::InputTokens => Figure::InputTokens,
                Meter::OutputTokens => Figure::OutputTokens,
                Meter::TotalTokens => Figure::TotalTokens,
                Meter::Credits => Figure::Credits,
                Meter::Custom(_) => return Err("there are no totals of this meter"),
            })
        };
        let now = tenant.now();
        let today = tenant.catalog().settings.zone.local_day(now);
        let query = |used, by| SpreadQuery { plan: plan.clone(), used, by };
        match &limit.rule {
            Rule::Bucket { meter, capacity, refill_per_minute } => {
                let slot = now.0.div_euclid(SLOT_MS);
                let whole = capacity.saturating_add(refill_per_minute.saturating_mul(MINUTES));
                let peaks = Used::Peaks(slot - DAY..slot);
                Ok(("each user's busiest five minutes of the last day", query(peaks, figure(meter)?), whole))
            }
            Rule::Window { meter, limit: most, period, anchor, .. } => {
                let (of, used) = match period {
                    Period::Day => ("yesterday", Used::Days(today - 1..today)),
                    Period::Week => {
                        // 1970-01-01 was a Thursday.
                        let monday = today - (today + 3).rem_euclid(7);
                        ("last week", Used::Days(monday - 7..monday))
                    }
                    Period::Month if *anchor == Anchor::User => {
                        return Err("its months begin on a day of each user's own");
                    }
                    Period::Month => ("last month", Used::Month(month_of_day(today) - 1)),
                    _ => return Err("its windows begin with each user's own calls"),
                };
                Ok((of, query(used, figure(meter)?), *most))
            }
            Rule::Slots { .. } => Err("calls in flight are not totalled"),
            Rule::Rolling { .. } => Err("its windows have no borders"),
        }
    }
}

impl UseRatios {
    fn new(of: &'static str, spread: &[(u64, u64)], whole: u64) -> Self {
        let users: u64 = spread.iter().map(|(_, users)| users).sum();
        let quantile = |percent: u64| {
            // The least that so many of a hundred do not pass.
            let rank = (users * percent).div_ceil(100).max(1);
            let mut counted = 0;
            let found = spread.iter().find(|(_, users)| {
                counted += users;
                counted >= rank
            });
            let used = found.map_or(0, |(used, _)| *used);
            (used as f64 / whole.max(1) as f64 * 10_000.0).round() / 10_000.0
        };
        Self { of, users, quantiles: (users > 0).then(|| [50, 90, 99].map(quantile)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_what_so_many_of_a_hundred_do_not_pass() {
        let hundred: Vec<(u64, u64)> = (1..=100).map(|used| (used, 1)).collect();
        assert_eq!(UseRatios::new("", &hundred, 200).quantiles, Some([0.25, 0.45, 0.495]));
        assert_eq!(UseRatios::new("", &[(30, 1)], 10).quantiles, Some([3.0; 3]));
        assert_eq!(UseRatios::new("", &[], 10).quantiles, None);
    }
}
