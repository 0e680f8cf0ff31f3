//! Runs a trace through the real service, one step at a time in the order of
//! the clock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};

use crate::domain::document::Node;
use crate::domain::hold::{Amounts, Hold, ReleaseReason, Reported, Stage};
use crate::domain::ids::{HoldId, Label, Name, TenantId, UserId};
use crate::domain::plan::Shipped;
use crate::domain::time::Millis;
use crate::ledger::{Group, UsageRow};
use crate::service::entitlement::users::UserChange;
use crate::service::{
    CheckCommand, CheckReply, FinishReply, MaxOutput, PoolEntry, Registry, ReleaseCommand, Service,
    SettleCommand, SettleUsage, THEY_ALLOW, Tenant,
};
use crate::startup::Running;

use super::differences::Differences;
use super::draw::{Draw, Zipf, assign};
use super::outcome::{Decision, Outcome, User};
use super::peaks::{Load, PoolLoad};
use super::report::{Overruns, Report, Tally};
use super::trace::Call;

/// How long a call takes: a second for every 50 tokens, and half a second
/// before the first one.
pub const MS_PER_OUTPUT_TOKEN: i64 = 20;
pub const MS_BEFORE_FIRST_TOKEN: i64 = 500;

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
    /// What `content` is, in words.
    pub plans: String,
    pub content: Shipped,
}

impl Plan {
    /// The mix in words.
    pub fn shares(&self) -> String {
        let shares: Vec<_> = self.mix.iter().map(|(plan, share)| format!("{plan} {share}")).collect();
        shares.join(", ")
    }
}

/// Replays `plan` in a temporary store of its own.
pub async fn replay(plan: Plan) -> anyhow::Result<Report> {
    let (outcome, rows) = run(&plan, &plan.content, None).await?;
    outcome.report(plan, &rows)
}

/// Replays `plan` in shadow beside another limiter, which enforces `theirs`
/// (`against` says what that is).
pub async fn compare(plan: Plan, theirs: &Shipped, against: &str) -> anyhow::Result<Differences> {
    let (enforced, _) = run(&plan, theirs, None).await?;
    let theirs: Vec<&'static str> = enforced.decisions.iter().map(|decision| decision.word).collect();
    let (ours, rows) = run(&plan, &plan.content, Some(&theirs)).await?;
    Differences::new(&plan, against, &theirs, &ours, &rows)
}

/// Runs the trace under the plans of `content`: enforced, or in shadow beside
/// `theirs`, another limiter's decision on each call. Returns what came of it
/// and all that the ledger has recorded.
async fn run(
    plan: &Plan,
    content: &Shipped,
    theirs: Option<&[&'static str]>,
) -> anyhow::Result<(Outcome, Vec<UsageRow>)> {
    let dir = tempfile::Builder::new().prefix("apportion-replay-").tempdir()?;
    let running = Running::open_scratch(dir.path()).await?;
    let tenant = tenant(&running.registry, plan, content, theirs.is_some()).await?;
    let mut replay = Replay::new(running.service.clone(), tenant, plan, theirs);
    replay.run(plan).await?;
    let outcome = replay.finish();
    // The sums must be those of the ledger, so everything is written first.
    let data = running.record_all().await;
    let rows = data.ledger.usage(outcome.tenant.number, Group::Plan, i32::MIN..i32::MAX).await?;
    data.ledger.close().await;
    Ok((outcome, rows))
}

/// A tenant with a clock of its own that has the plans to be tried.
async fn tenant(
    registry: &Registry,
    plan: &Plan,
    content: &Shipped,
    in_shadow: bool,
) -> anyhow::Result<Arc<Tenant>> {
    let id = TenantId::parse("replay")?;
    let tenant = registry.create_tenant_with(&id, true, None, content, BY).await?;
    if in_shadow {
        let Ok(shadow) = Node::from_json(br#"{"enforcement":"shadow"}"#) else { bail!("no settings") };
        registry.put_settings(&tenant, &shadow, None, BY).await?;
    }
    registry.set_clock(&tenant, plan.calls[0].at, BY).await?;
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

struct Replay<'a> {
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
    /// Every pool of the tenant, by id.
    pools: Vec<(Arc<PoolEntry>, PoolLoad)>,
    /// Another limiter's decision on each call.
    theirs: Option<&'a [&'static str]>,
    decisions: Vec<Decision>,
}

impl<'a> Replay<'a> {
    fn new(
        service: Arc<Service>,
        tenant: Arc<Tenant>,
        plan: &Plan,
        theirs: Option<&'a [&'static str]>,
    ) -> Self {
        let mut draw = Draw::new(plan.seed);
        let shares: Vec<u64> = plan.mix.iter().map(|(_, share)| *share).collect();
        let plan_of = assign(plan.users, &shares, &mut draw);
        let pools =
            tenant.catalog().pools.iter().map(|entry| (entry.clone(), PoolLoad::new(&entry.pool))).collect();
        Self {
            service,
            tenant,
            zipf: Zipf::new(plan.users),
            draw,
            plan_of,
            users: (0..plan.users).map(|_| User::default()).collect(),
            open: BinaryHeap::new(),
            tallies: vec![Tally::default(); plan.mix.len()],
            overruns: Overruns::default(),
            pools,
            theirs,
            decisions: Vec::with_capacity(plan.calls.len()),
        }
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
        self.service.registry.set_clock(&self.tenant, call.at, BY).await?;
        let user = self.zipf.draw(&mut self.draw);
        let plan = usize::from(self.plan_of[user]);
        let id = user_id(user)?;
        if self.users[user].calls == 0 {
            self.introduce(&id, &mix[plan].0).await?;
        }
        self.users[user].calls += 1;
        let theirs = self.theirs.map(|theirs| theirs[index]);
        let command = CheckCommand {
            user: id,
            request_id: None,
            model: None,
            models: None,
            feature: None,
            bulk: false,
            input_tokens: call.input_tokens,
            max_output: MaxOutput::Cap,
            min_output_tokens: None,
            lease_seconds: None,
            wait_ms: 0,
            dry_run: false,
            amounts: Vec::new(),
            their_decision: theirs.map(Label::parse).transpose()?,
        };
        let reply = self.service.check(&self.tenant, command).await?;
        self.decisions.push(Decision { user, word: reply.decided().context("a call answered before")? });
        let allowed = match reply {
            CheckReply::Refused(refusal) => {
                self.tallies[plan].refuse(refusal.code.as_str());
                return Ok(());
            }
            CheckReply::Allowed(allowed) => allowed,
        };
        let hold = allowed.hold.context("an admitted check without a hold")?;
        if theirs.is_some_and(|theirs| theirs != THEY_ALLOW) {
            return self.give_back(index, hold.id).await;
        }
        self.users[user].admitted += 1;
        self.tallies[plan].admit(&hold.reserved);
        if call.output_tokens > hold.granted.max_output_tokens {
            self.overruns.calls += 1;
            self.overruns.output_tokens += call.output_tokens - hold.granted.max_output_tokens;
        }
        if let Some(pool) = self.pool_of(&hold) {
            pool.admitted(index, call.at, load(&hold.reserved));
        }
        let output = i64::try_from(call.output_tokens).unwrap_or(i64::MAX);
        let takes = output.saturating_mul(MS_PER_OUTPUT_TOKEN).saturating_add(MS_BEFORE_FIRST_TOKEN);
        self.open.push(Reverse(Open { ends: call.at.plus_ms(takes), call: index, hold: hold.id, user }));
        Ok(())
    }

    /// The other limiter does not let this call be made.
    async fn give_back(&self, call: usize, id: HoldId) -> anyhow::Result<()> {
        let command = ReleaseCommand { id, reason: ReleaseReason::NotSent };
        match self.service.release(&self.tenant, command).await? {
            FinishReply::Done(_) => Ok(()),
            other => bail!("call {} of the trace cannot be released: {other:?}", call + 1),
        }
    }

    async fn introduce(&self, user: &UserId, plan: &Name) -> anyhow::Result<()> {
        let body = serde_json::json!({ "plan": plan.as_str(), "reason": BY }).to_string();
        let change = Node::from_json(body.as_bytes()).map_err(|fault| vec![fault]);
        let Ok(change) = change.and_then(|node| UserChange::read(&node)) else {
            bail!("plan {plan} cannot be given to a user");
        };
        self.service.put_user(&self.tenant, user, change, None, BY).await?;
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
        self.service.registry.set_clock(&self.tenant, open.ends, BY).await?;
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
        if let Some(pool) = self.pool_of(&finished.hold) {
            pool.settled(open.call, open.ends, load(&settlement.counted));
        }
        Ok(())
    }

    /// The pool that a call met, enforced or not.
    fn pool_of(&mut self, hold: &Hold) -> Option<&mut PoolLoad> {
        let id = hold.pool.as_ref()?;
        self.pools.iter_mut().find(|(entry, _)| entry.pool.id == *id).map(|(_, load)| load)
    }

    /// What came of it.
    fn finish(self) -> Outcome {
        Outcome {
            tenant: self.tenant,
            plan_of: self.plan_of,
            users: self.users,
            tallies: self.tallies,
            overruns: self.overruns,
            pools: self.pools,
            decisions: self.decisions,
        }
    }
}

pub fn user_id(index: usize) -> anyhow::Result<UserId> {
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
