//! Rounds: every server in turn, every operation in turn, in another order
//! each time.

use anyhow::Context;

use crate::client::{Tally, Way, drive};
use crate::options::Options;
use crate::process::{self, Cpu};
use crate::requests::{CheckBatches, Checks, Cycles, HoldText, Picks, Quotas, SettleBatches, Settles, Work};
use crate::stores::Stores;
use crate::targets::Target;

/// Connections on which batches are sent: one batch keeps a server busy for
/// as long as a hundred checks.
const BATCH_CONNECTIONS: usize = 8;

/// Figures of one operation on one server in one round.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Sample {
    pub server: String,
    pub operation: &'static str,
    pub round: usize,
    pub per_second: f64,
    /// CPU time of all the server's threads per item, in us.
    pub cpu_us: f64,
    /// The part of it that was spent in the kernel.
    pub cpu_system_us: f64,
    /// CPU time of its Redis per item, in us, where it has one.
    pub redis_us: Option<f64>,
    /// Of all processes of its Postgres.
    pub postgres_us: Option<f64>,
    pub p50_us: f64,
    pub p99_us: f64,
    /// Resident memory after the run, in bytes.
    pub rss: u64,
    /// How busy the asking thread was: near 1, the load was the bottleneck.
    pub client_busy: f64,
    /// Answers that were not what was asked for: the run does not count.
    pub wrong: u64,
    pub one_wrong: Option<String>,
}

/// Runs all rounds and gives every sample; `tell` is shown each as it comes.
pub fn run(options: &Options, targets: &[Target], tell: impl Fn(&Sample)) -> anyhow::Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for round in 0..options.rounds {
        for place in 0..targets.len() {
            let target = &targets[(place + round) % targets.len()];
            let mut run = Run { options, target, round, samples: Vec::new(), tell: &tell };
            run.all().with_context(|| format!("round {round} on {}", target.name))?;
            samples.append(&mut run.samples);
        }
    }
    Ok(samples)
}

/// One server's turn in one round.
struct Run<'a> {
    options: &'a Options,
    target: &'a Target,
    round: usize,
    samples: Vec<Sample>,
    tell: &'a dyn Fn(&Sample),
}

impl Run<'_> {
    fn all(&mut self) -> anyhow::Result<()> {
        let token = self.target.tokens.open.as_str();
        if self.target.is_echo() {
            let checks = Checks::new(token, self.picks(), None);
            return self.measure("check", self.way(), checks).map(drop);
        }
        let holding = Way { keeps_holds: true, ..self.way() };
        let few = self.options.connections.min(BATCH_CONNECTIONS);
        if self.options.wants("check") || self.options.wants("settle") {
            let tally = self.measure("check", holding, Checks::new(token, self.picks(), None))?;
            self.settle(tally, "settle")?;
        }
        if self.options.wants("cycle") {
            let under_way = 4 * self.options.connections;
            let checks = Checks::new(token, self.picks(), None);
            let work = Shared::new(Cycles::new(checks, token, under_way));
            self.measure("cycle", holding, work.clone())?;
            self.target.settle_all(self.options, token, work.take(Cycles::rest))?;
        }
        if self.options.wants("check_id") {
            // Ids must never come back, on no server and in no round.
            let first = (self.round as u64 + 1) << 40;
            let tally = self.measure("check_id", holding, Checks::new(token, self.picks(), Some(first)))?;
            self.target.settle_all(self.options, token, tally.holds)?;
        }
        if self.options.wants("batch") || self.options.wants("settle_batch") {
            let way = Way { connections: few, rate: 0, ..holding };
            let tally = self.measure("batch", way, CheckBatches::new(token, self.picks()))?;
            self.settle(tally, "settle_batch")?;
        }
        if self.options.wants("quota") {
            self.measure("quota", self.way(), Quotas::new(token, self.picks()))?;
        }
        let refusals = [("refused", &self.target.tokens.closed), ("strange", &self.target.tokens.strange)];
        for (operation, token) in refusals.into_iter().filter(|(operation, _)| self.options.wants(operation))
        {
            let way = Way { status: 429, ..self.way() };
            self.measure(operation, way, Checks::new(token, self.picks(), None))?;
        }
        Ok(())
    }

    /// Settles the holds of a run: measured for as long as a run lasts, the
    /// rest in silence.
    fn settle(&mut self, tally: Tally, operation: &'static str) -> anyhow::Result<()> {
        let mut holds = tally.holds;
        holds.sort_unstable();
        let token = self.target.tokens.open.as_str();
        if !self.options.wants(operation) {
            return self.target.settle_all(self.options, token, holds);
        }
        let rest = match operation {
            "settle_batch" => {
                let few = self.options.connections.min(BATCH_CONNECTIONS);
                let work = Shared::new(SettleBatches::new(token, holds));
                self.measure(operation, Way { connections: few, rate: 0, ..self.way() }, work.clone())?;
                work.take(SettleBatches::rest)
            }
            _ => {
                let work = Shared::new(Settles::new(token, holds));
                self.measure(operation, self.way(), work.clone())?;
                work.take(Settles::rest)
            }
        };
        self.target.settle_all(self.options, token, rest)
    }

    fn way(&self) -> Way {
        self.target.way(self.options)
    }

    fn picks(&self) -> Picks {
        Picks::new(self.options.users, self.options.zipf, self.round as u64 + 1)
    }

    fn measure(
        &mut self,
        operation: &'static str,
        way: Way,
        work: impl Work + 'static,
    ) -> anyhow::Result<Tally> {
        let (process, stores) = (&self.target.process, self.target.stores.as_ref());
        process.wait_until_idle()?;
        let stores_cpu = || stores.map(Stores::cpu).transpose();
        let (cpu_before, stores_before, own_before) = (process.cpu()?, stores_cpu()?, process::own_cpu()?);
        let mut tally = drive(way, work)?;
        let own = process::own_cpu()?.since(own_before);
        process.wait_until_idle()?;
        let cpu: Cpu = process.cpu()?.since(cpu_before);
        let stores_spent = stores_cpu()?.zip(stores_before);
        let items = tally.items.max(1) as f64;
        let sample = Sample {
            server: self.target.name.clone(),
            operation,
            round: self.round,
            per_second: tally.items as f64 / tally.seconds,
            cpu_us: cpu.total() / items,
            cpu_system_us: cpu.system / items,
            redis_us: stores_spent.map(|((now, _), (before, _))| now.since(before).total() / items),
            postgres_us: stores_spent.map(|((_, now), (_, before))| now.since(before).total() / items),
            p50_us: tally.quantile(0.5),
            p99_us: tally.quantile(0.99),
            rss: process.rss()?,
            client_busy: own.total() / 1e6 / tally.seconds,
            wrong: tally.wrong,
            one_wrong: tally.one_wrong.clone(),
        };
        (self.tell)(&sample);
        self.samples.push(sample);
        Ok(tally)
    }
}

/// Work that somebody else may finish.
struct Shared<W>(std::sync::Arc<std::sync::Mutex<W>>);

impl<W> Clone for Shared<W> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<W> Shared<W> {
    fn new(work: W) -> Self {
        Self(std::sync::Arc::new(std::sync::Mutex::new(work)))
    }

    fn take(&self, rest: impl FnOnce(&mut W) -> Vec<HoldText>) -> Vec<HoldText> {
        rest(&mut self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

impl<W: Work> Work for Shared<W> {
    fn next(&mut self, request: &mut Vec<u8>) -> Option<usize> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next(request)
    }

    fn made(&mut self, hold: HoldText) -> Option<HoldText> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).made(hold)
    }
}
