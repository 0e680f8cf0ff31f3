//! What came of a replay, made into a report and compared with the ledger.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::domain::hold::Amounts;
use crate::domain::ids::Name;
use crate::domain::plan::PoolLimit;
use crate::ledger::UsageRow;
use crate::service::{PoolEntry, Tenant};

use super::peaks::{Peak, PoolLoad, window_seconds};
use super::report::{
    LedgerCheck, Overruns, PlanRow, PoolLimitRow, PoolRow, Report, Rules, Tally, TraceSummary, UserRow, add,
};
use super::run::{MS_BEFORE_FIRST_TOKEN, MS_PER_OUTPUT_TOKEN, Plan, user_id};

const TOP_USERS: usize = 10;

/// One user's part.
#[derive(Default)]
pub struct User {
    pub calls: u64,
    pub admitted: u64,
    pub total_tokens: u64,
}

/// Everything that was counted while the trace ran.
pub struct Outcome {
    pub tenant: Arc<Tenant>,
    /// Index into the mix, by user.
    pub plan_of: Vec<u16>,
    pub users: Vec<User>,
    /// In the order of the mix.
    pub tallies: Vec<Tally>,
    pub overruns: Overruns,
    pub pools: Vec<(Arc<PoolEntry>, PoolLoad)>,
    /// By call of the trace.
    pub decisions: Vec<Decision>,
}

/// How a call was decided, whether that was enforced or not.
pub struct Decision {
    pub user: usize,
    /// `allow` or the refusal's code.
    pub word: &'static str,
}

impl Outcome {
    /// Writes the report; `rows` is all that the ledger has recorded.
    pub fn report(self, plan: Plan, rows: &[UsageRow]) -> anyhow::Result<Report> {
        let ledger = self.compare_with_ledger(&plan, rows);
        let mut total = Tally::default();
        for tally in &self.tallies {
            total.include(tally);
        }
        Ok(Report {
            trace: TraceSummary::new(&plan),
            rules: Rules {
                users: plan.users,
                seed: plan.seed,
                mix: plan.shares(),
                draw: "drawn by Zipf's rule with exponent 1 (the k-th user calls 1/k as often as the first)",
                check: "at the call's time, with its input tokens and no max_output_tokens: the plan's cap is reserved",
                settle: format!(
                    "with the call's true tokens, {MS_BEFORE_FIRST_TOKEN} ms + {MS_PER_OUTPUT_TOKEN} ms an output token later"
                ),
                refused: "calls are not tried again",
            },
            plans: self.plan_rows(&plan.mix),
            total,
            top_users: self.top_users(&plan.mix)?,
            pools: self.pool_rows(),
            overruns: self.overruns,
            ledger,
        })
    }

    fn plan_rows(&self, mix: &[(Name, u64)]) -> Vec<PlanRow> {
        let rows = mix.iter().zip(&self.tallies).enumerate().map(|(index, ((plan, _), tally))| {
            let users = self.plan_of.iter().zip(&self.users).filter(|(of, _)| usize::from(**of) == index);
            PlanRow {
                plan: plan.to_string(),
                users: users.clone().count() as u64,
                active_users: users.filter(|(_, user)| user.calls > 0).count() as u64,
                tally: tally.clone(),
            }
        });
        rows.collect()
    }

    fn top_users(&self, mix: &[(Name, u64)]) -> anyhow::Result<Vec<UserRow>> {
        let mut order: Vec<usize> =
            (0..self.users.len()).filter(|user| self.users[*user].calls > 0).collect();
        order.sort_by_key(|user| (Reverse(self.users[*user].total_tokens), *user));
        let rows = order.into_iter().take(TOP_USERS).zip(1..).map(|(index, rank)| {
            let user = &self.users[index];
            Ok(UserRow {
                rank,
                user: user_id(index)?.to_string(),
                plan: mix[usize::from(self.plan_of[index])].0.to_string(),
                calls: user.calls,
                admitted: user.admitted,
                refused: user.calls - user.admitted,
                total_tokens: user.total_tokens,
            })
        });
        rows.collect()
    }

    fn pool_rows(&self) -> Vec<PoolRow> {
        let row = |(entry, load): &(Arc<PoolEntry>, PoolLoad)| PoolRow {
            pool: entry.pool.id.to_string(),
            enforced: entry.pool.enforced,
            limits: entry.pool.limits.iter().zip(load.peaks()).map(limit_row).collect(),
        };
        self.pools.iter().map(row).collect()
    }

    /// Adds up what the ledger has recorded, and compares plan by plan.
    pub fn compare_with_ledger(&self, plan: &Plan, rows: &[UsageRow]) -> LedgerCheck {
        let mut recorded = Amounts::default();
        let mut by_plan: BTreeMap<&str, Amounts> = BTreeMap::new();
        for row in rows {
            add(&mut recorded, &row.amounts);
            add(by_plan.entry(row.name.as_deref().unwrap_or_default()).or_default(), &row.amounts);
        }
        let mut differing = Vec::new();
        for ((name, _), tally) in plan.mix.iter().zip(&self.tallies) {
            if by_plan.remove(name.as_str()).unwrap_or_default() != tally.used {
                differing.push(name.to_string());
            }
        }
        differing.extend(by_plan.keys().map(ToString::to_string));
        LedgerCheck { agrees: differing.is_empty(), recorded, differing_plans: differing }
    }
}

fn limit_row((limit, (allowed, peak)): (&PoolLimit, (u64, Peak))) -> PoolLimitRow {
    PoolLimitRow {
        name: limit.limit.name.to_string(),
        window_seconds: window_seconds(limit),
        allowed,
        vendor_limit: limit.vendor_limit,
        peak: peak.amount,
        peak_at: peak.at,
    }
}
