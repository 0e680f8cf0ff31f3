//! Rolling limits under random traffic of one node and of two: no span of the window holds more
//! than the limit. `ROLLING_RUNS` says how many runs each engine has.

use apportion::engine::redis::Options;

use super::apart::FIRST;
use super::engines::{at, in_redis};
use super::*;
use crate::harness::number_from_env;
use crate::harness::redis::Single;
use crate::model::rng::Rng;

const WINDOW_MS: i64 = 10_000;
const TENANT: TenantRef = TenantRef(1);

fn rolling(limit: u64) -> Charge {
    let figures = Figures::Rolling { limit, window_ms: WINDOW_MS };
    Charge { cell: CellId(9), figures, ..bucket(1, 0) }
}

/// What one run has taken, and when.
struct Run<'e> {
    nodes: &'e [Arc<dyn Engine>],
    limit: u64,
    taken: Vec<(i64, u64, u128)>,
}

impl Run<'_> {
    /// What counts in the window that ends at `now`.
    fn within(&self, now: i64) -> u64 {
        let counts = |(at, _, _): &&(i64, u64, u128)| *at > now - WINDOW_MS && *at <= now;
        self.taken.iter().filter(counts).map(|(_, amount, _)| amount).sum()
    }

    async fn take(&mut self, node: usize, amount: u64, id: u128, now: i64) {
        let mut take = take("u", id, amount, None);
        take.ask.charges = [rolling(self.limit)].into_iter().collect();
        let within = self.within(now);
        match taken(&self.nodes[node], &take, Millis(now)).await {
            Taken::Hold { .. } => self.taken.push((now, amount, id)),
            Taken::Refused { .. } => assert!(
                within + amount > self.limit - self.limit / 50,
                "refused more than 2 % too early: {within} and {amount} of {}",
                self.limit
            ),
            _ => panic!("decided"),
        }
        let within = self.within(now);
        assert!(within <= self.limit, "{within} of {} at {now}", self.limit);
    }

    async fn release(&mut self, node: usize, which: usize, now: i64) {
        let (_, _, id) = self.taken.swap_remove(which);
        let mut finish =
            finish("u", id, How::Release { reason: ReleaseReason::NotSent, by: FinishedBy::Caller });
        finish.show = [Charge { asked: false, ..rolling(self.limit) }].into_iter().collect();
        let engine = &self.nodes[node];
        let at = Millis(now);
        let Finished::Done { .. } = done!(engine, engine.finish(&finish, at)) else { panic!("released") };
    }
}

async fn runs(name: &str, nodes: &[Arc<dyn Engine>], runs: usize) {
    let seed = std::process::id().into();
    println!("{name}: {runs} runs on {} node(s), seed {seed}", nodes.len());
    let mut dice = Rng::new(seed);
    let mut below = move |most: u64| dice.next() % most;
    let (mut now, mut id) = (NOW.0, 0);
    for _ in 0..runs {
        now += 2 * WINDOW_MS;
        let mut run = Run { nodes, limit: 50 + below(2_000), taken: Vec::new() };
        for _ in 0..20 {
            let longest = if below(3) == 0 { 4_000 } else { 60 };
            now += below(longest).cast_signed();
            nodes[0].set_clock(TENANT, Millis(now)).await.expect("up");
            let node = below(nodes.len() as u64) as usize;
            id += 1;
            run.take(node, 1 + below(run.limit / 3), id, now).await;
            if below(8) == 0 && !run.taken.is_empty() {
                let which = below(run.taken.len() as u64) as usize;
                run.release(node, which, now).await;
            }
        }
        // What is not on record fills the memory of this process.
        if name == "memory" {
            commit(&nodes[0]).await;
        }
    }
}

#[tokio::test]
async fn no_span_of_a_rolling_limit_holds_more_than_it_allows() {
    let many = number_from_env("ROLLING_RUNS", 20);
    for (name, engine) in in_memory() {
        runs(name, &[engine], many).await;
    }
    for (name, engine) in in_redis().await {
        runs(name, &[engine], many).await;
    }
    let Some(server) = Single::start(&[]) else { return };
    let one = at(&server.url(), Options::default(), FIRST).await;
    let two = at(&server.url(), Options::default(), FIRST).await;
    runs("redis", &[one, two], many).await;
}
