//! Runs a trace through the real service, one step at a time in the order of
//! the clock.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};

use crate::domain::document::Node;
use crate::domain::hold::{Amounts, Reported, Stage};
use crate::domain::ids::{HoldId, Name, TenantId, UserId};
use crate::domain::plan::Shipped;
use crate::domain::time::Millis;
use crate::service::users::UserChange;
use crate::service::{
    CheckCommand, CheckReply, FinishReply, Service, SettleCommand, SettleUsage, Tenant,
};
use crate::startup::Embedded;

use super::draw::{Draw, Zipf, assign};
use super::peaks::{Load, PoolLoad};
use super::report::{
    LedgerCheck, Overruns, PlanRow, PoolLimitRow, PoolRow, Report, Rules, Tally, TraceSummary, UserRow, add,
};
use super::trace::Call;

/// How long a call takes: a second for every 50 tokens, and half a second
/// before the first one.
const MS_PER_OUTPUT_TOKEN: i64 = 20;
const MS_BEFORE_FIRST_TOKEN: i64 = 500;

const TOP_USERS: usize = 10;
/// Who writes, in the audit of the temporary store.
const BY: &str = "replay";

/// What is to be replayed.
pub struct Plan {
    pub file: String,
    /// In the order of their times; at least one.
    pub calls: Vec<Call>,
    pub users: u32,
    /// Plans and their shares, of which at least one is above 0.
    pub mix: Vec<(Name, u64)>,
    pub seed: u64,
    pub content: Shipped,
}

/// Replays `plan` in a temporary store of its own.
pub async fn replay(plan: Plan) -> anyhow::Result<Report> {
    let dir = tempfile::Builder::new().prefix("apportion-replay-").tempdir()?;
    let embedded = Embedded::open_scratch(dir.path()).await?;
    let service = embedded.service.clone();
    let tenant = tenant(&service, &plan).await?;
    let mut replay = Replay::new(service, tenant, &plan)?;
    let result = replay.run(&plan).await;
    let report = match result {
        Ok(()) => replay.report(plan).await,
        Err(error) => Err(error),
    };
    embedded.close().await;
    report
}

/// A tenant with a clock of its own that has the plans to be tried.
async fn tenant(service: &Service, plan: &Plan) -> anyhow::Result<Arc<Tenant>> {
    let registry = &service.registry;
    let id = TenantId::parse("replay")?;
    let tenant = registry.create_tenant_with(&id, true, None, &plan.content, BY).await?;
    registry.set_clock(&tenant, plan.calls[0].at).await?;
    Ok(tenant)
}

/// A hold that is to be settled, ordered by time, then by admission.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Open {
    ends: Millis,
    /// Place in the trace: no two calls share it.
    call: usize,
    hold: HoldId,
    user: usize,
}

/// One user as far as drawn.
#[derive(Default)]
struct User {
    /// Put on record with its plan.
    known: bool,
    calls: u64,
    admitted: u64,
    total_tokens: u64,
}

struct Replay {
    service: Arc<Service>,
    tenant: Arc<Tenant>,
    zipf: Zipf,
    draw: Draw,
    /// Index into the mix, by user.
    plan_of: Vec<u16>,
    users: Vec<User>,
    open: BinaryHeap<Reverse<Open>>,
    tallies: Vec<Tally>,
    overruns: Overruns,
    pool: Option<PoolLoad>,
}

impl Replay {
    fn new(service: Arc<Service>, tenant: Arc<Tenant>, plan: &Plan) -> anyhow::Result<Self> {
        let mut draw = Draw::new(plan.seed);
        let shares: Vec<u64> = plan.mix.iter().map(|(_, share)| *share).collect();
        let plan_of = assign(plan.users, &shares, &mut draw);
        // A trace names no models, so every call meets the same pool.
        let pool = tenant.catalog().pool_for(None).map(|entry| PoolLoad::new(&entry.pool));
        Ok(Self {
            service,
            tenant,
            zipf: Zipf::new(plan.users),
            draw,
            plan_of,
            users: (0..plan.users).map(|_| User::default()).collect(),
            open: BinaryHeap::new(),
            tallies: vec![Tally::default(); plan.mix.len()],
            overruns: Overruns::default(),
            pool,
        })
    }

    async fn run(&mut self, plan: &Plan) -> anyhow::Result<()> {
        let progress = progress(plan.calls.len() as u64);
        for (index, call) in plan.calls.iter().enumerate() {
            self.settle_until(call.at, &plan.calls).await?;
            let failed = || format!("call {} of the trace, at {}", index + 1, call.at);
            self.check(index, call, &plan.mix).await.with_context(failed)?;
            progress.inc(1);
        }
        self.settle_until(Millis::MAX, &plan.calls).await?;
        progress.finish_and_clear();
        Ok(())
    }

    async fn check(&mut self, index: usize, call: &Call, mix: &[(Name, u64)]) -> anyhow::Result<()> {
        self.service.registry.set_clock(&self.tenant, call.at).await?;
        let user = self.zipf.draw(&mut self.draw);
        let plan = usize::from(self.plan_of[user]);
        let id = user_id(user)?;
        if !self.users[user].known {
            self.introduce(&id, &mix[plan].0).await?;
            self.users[user].known = true;
        }
        self.users[user].calls += 1;
        let command = CheckCommand {
            user: id,
            request_id: None,
            model: None,
            feature: None,
            bulk: false,
            input_tokens: call.input_tokens,
            max_output_tokens: None,
            min_output_tokens: None,
            lease_seconds: None,
            dry_run: false,
            amounts: Vec::new(),
        };
        let allowed = match self.service.check(&self.tenant, command).await? {
            CheckReply::Refused(refusal) => {
                self.tallies[plan].refuse(refusal.code.as_str());
                return Ok(());
            }
            CheckReply::Allowed(allowed) => allowed,
        };
        let hold = allowed.hold.context("an admitted check without a hold")?;
        self.users[user].admitted += 1;
        self.tallies[plan].admit(&hold.reserved);
        if call.output_tokens > hold.granted.max_output_tokens {
            self.overruns.calls += 1;
            self.overruns.output_tokens += call.output_tokens - hold.granted.max_output_tokens;
        }
        if let Some(pool) = &mut self.pool {
            pool.admitted(call.at, load(&hold.reserved));
        }
        let output = i64::try_from(call.output_tokens).unwrap_or(i64::MAX);
        let takes = output.saturating_mul(MS_PER_OUTPUT_TOKEN).saturating_add(MS_BEFORE_FIRST_TOKEN);
        self.open.push(Reverse(Open { ends: call.at.plus_ms(takes), call: index, hold: hold.id, user }));
        Ok(())
    }

    async fn introduce(&self, user: &UserId, plan: &Name) -> anyhow::Result<()> {
        let body = serde_json::json!({ "plan": plan.as_str(), "reason": BY }).to_string();
        let change = Node::from_json(body.as_bytes()).map_err(|fault| vec![fault]);
        let Ok(change) = change.and_then(|node| UserChange::read(&node)) else {
            bail!("plan {plan} cannot be given to a user");
        };
        self.service.registry.put_user(&self.tenant, user, change, None, BY).await?;
        Ok(())
    }

    /// Settles every call that has ended by `now`, in the order of their ends.
    async fn settle_until(&mut self, now: Millis, calls: &[Call]) -> anyhow::Result<()> {
        while let Some(Reverse(next)) = self.open.peek()
            && next.ends <= now
            && let Some(Reverse(open)) = self.open.pop()
        {
            self.settle(&open, &calls[open.call]).await?;
        }
        Ok(())
    }

    async fn settle(&mut self, open: &Open, call: &Call) -> anyhow::Result<()> {
        self.service.registry.set_clock(&self.tenant, open.ends).await?;
        let reported = Reported {
            input_tokens: call.input_tokens,
            output_tokens: call.output_tokens,
            ..Reported::default()
        };
        let usage = SettleUsage::Reported { reported, amounts: Vec::new() };
        let command = SettleCommand { id: open.hold, usage };
        let finished = match self.service.settle(&self.tenant, command).await? {
            FinishReply::Done(finished) => finished,
            other => bail!("call {} of the trace cannot be settled: {other:?}", open.call + 1),
        };
        let Stage::Settled(settlement) = &finished.hold.stage else {
            bail!("call {} of the trace is not settled", open.call + 1);
        };
        self.tallies[usize::from(self.plan_of[open.user])].settle(&settlement.counted);
        self.users[open.user].total_tokens += settlement.counted.total_tokens;
        if let Some(pool) = &mut self.pool {
            pool.settled(open.ends, load(&settlement.counted));
        }
        Ok(())
    }

    async fn report(self, plan: Plan) -> anyhow::Result<Report> {
        let ledger = self.compare_with_ledger(&plan).await?;
        let mut total = Tally::default();
        for tally in &self.tallies {
            total.include(tally);
        }
        let shown: Vec<_> = plan.mix.iter().map(|(plan, share)| format!("{plan} {share}")).collect();
        Ok(Report {
            trace: TraceSummary {
                file: plan.file,
                calls: plan.calls.len() as u64,
                first: plan.calls[0].at,
                last: plan.calls[plan.calls.len() - 1].at,
                input_tokens: plan.calls.iter().map(|call| call.input_tokens).sum(),
                output_tokens: plan.calls.iter().map(|call| call.output_tokens).sum(),
            },
            rules: Rules {
                users: plan.users,
                seed: plan.seed,
                mix: shown.join(", "),
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
        let mut order: Vec<usize> = (0..self.users.len()).filter(|user| self.users[*user].calls > 0).collect();
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
        let catalog = self.tenant.catalog();
        let (Some(entry), Some(load)) = (catalog.pool_for(None), &self.pool) else { return Vec::new() };
        let limits = entry.pool.limits.iter().zip(load.peaks()).map(|(limit, (allowed, peak))| PoolLimitRow {
            name: limit.limit.name.to_string(),
            window_seconds: super::peaks::window_seconds(limit),
            allowed,
            vendor_limit: limit.vendor_limit,
            peak: peak.amount,
            peak_at: peak.at,
        });
        vec![PoolRow {
            pool: entry.pool.id.to_string(),
            enforced: entry.pool.enforced,
            limits: limits.collect(),
        }]
    }

    /// Adds up what the ledger has recorded, and compares plan by plan.
    async fn compare_with_ledger(&self, plan: &Plan) -> anyhow::Result<LedgerCheck> {
        let rows = self.service.ledger().usage(self.tenant.number, i32::MIN, i32::MAX).await?;
        let mut recorded = Amounts::default();
        let mut by_plan: HashMap<Name, Amounts> = HashMap::new();
        for row in &rows {
            add(&mut recorded, &row.amounts);
            add(by_plan.entry(row.plan.clone()).or_default(), &row.amounts);
        }
        let mut differing = Vec::new();
        for ((name, _), tally) in plan.mix.iter().zip(&self.tallies) {
            if by_plan.remove(name).unwrap_or_default() != tally.used {
                differing.push(name.to_string());
            }
        }
        differing.extend(by_plan.keys().map(ToString::to_string));
        differing.sort();
        Ok(LedgerCheck { agrees: differing.is_empty(), recorded, differing_plans: differing })
    }
}

fn user_id(index: usize) -> anyhow::Result<UserId> {
    Ok(UserId::parse(&format!("user-{:06}", index + 1))?)
}

fn load(amounts: &Amounts) -> Load {
    Load {
        requests: amounts.requests,
        input_tokens: amounts.input_tokens,
        output_tokens: amounts.output_tokens,
        credits: amounts.credits,
    }
}

/// Shown on a terminal only, on standard error.
fn progress(calls: u64) -> ProgressBar {
    let bar = ProgressBar::new(calls);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} calls, {per_sec}, {eta} left") {
        bar.set_style(style);
    }
    bar
}
