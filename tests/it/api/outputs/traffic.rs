//! Recorded calls through the real service, on a clock that is moved: what a fixed reservation
//! and `auto` reserve of what is used, and how many calls a tight stock of output then admits.
//!
//! `cargo test --test it -- --ignored recorded_traffic --nocapture` prints the table. Each call
//! takes half a second and 20 ms a token, and is made once: nobody tries again. The vendor cuts
//! an answer off at what was granted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use apportion::domain::document::Node;
use apportion::domain::hold::Reported;
use apportion::domain::ids::{HoldId, Label, Name, TenantId, UserId};
use apportion::domain::plan::{Models, Pool, Sheet, Shipped};
use apportion::domain::time::Millis;
use apportion::service::{
    CheckCommand, CheckReply, FinishReply, MaxOutput, Service, SettleCommand, SettleUsage, Tenant,
};
use apportion::startup::Running;
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::faults::soak::traffic::{Arrival, trace};
use crate::model::rng::Rng;

const CAP: u64 = 4_096;
const USERS: i64 = 100;

/// What is short.
#[derive(Clone, Copy, Debug)]
enum Stock {
    Nothing,
    /// A pool for everybody: so much a minute, a fifth of it at once.
    Pool(u64),
    /// Each user's own bucket.
    Plan {
        capacity: u64,
        refill: u64,
    },
}

/// What became of the calls of one feature.
#[derive(Clone, Copy, Default, Debug)]
struct Sums {
    asked: u64,
    admitted: u64,
    reserved: u64,
    used: u64,
    cut: u64,
}

impl Sums {
    fn ratio(self) -> f64 {
        self.reserved as f64 / self.used.max(1) as f64
    }

    fn and(self, other: Self) -> Self {
        Self {
            asked: self.asked + other.asked,
            admitted: self.admitted + other.admitted,
            reserved: self.reserved + other.reserved,
            used: self.used + other.used,
            cut: self.cut + other.cut,
        }
    }
}

fn content(stock: Stock) -> Shipped {
    let bucket = |name: &str, figures: Value| {
        let mut bucket = json!({"name": name, "kind": "bucket", "meter": "output_tokens"});
        bucket.as_object_mut().unwrap().extend(figures.as_object().unwrap().clone());
        bucket
    };
    let limits = match stock {
        Stock::Plan { capacity, refill } => {
            vec![bucket("output", json!({"capacity": capacity, "refill_per_minute": refill}))]
        }
        _ => vec![],
    };
    let sheet = json!({"id": "free", "per_call": {"max_output_tokens": CAP}, "limits": limits});
    let pools = match stock {
        Stock::Pool(limit) => {
            let limit = bucket("output", json!({"vendor_limit": limit, "burst_share": 0.2}));
            vec![json!({"id": "default", "models": ["*"], "limits": [limit]})]
        }
        _ => vec![],
    };
    fn read<T>(body: &Value, read: impl Fn(&Node<'_>) -> T) -> T {
        read(&Node::from_json(body.to_string().as_bytes()).unwrap())
    }
    Shipped {
        sheets: vec![read(&sheet, Sheet::read).unwrap().0],
        pools: pools.iter().map(|pool| read(pool, Pool::read).unwrap()).collect(),
        models: Models::default(),
    }
}

/// A call under way: when it ends, which it is, and its hold.
type Open = Reverse<(i64, usize, HoldId, u64)>;

struct Replay {
    service: std::sync::Arc<Service>,
    tenant: std::sync::Arc<Tenant>,
    open: BinaryHeap<Open>,
    /// By feature: `chat`, `code`.
    sums: [Sums; 2],
}

fn is_code(call: &Arrival) -> usize {
    usize::from(call.model == "code")
}

impl Replay {
    async fn at(&self, ms: i64) {
        // In steps, for the sake of speed.
        let at = Millis::parse("2026-03-10T12:00:00Z").unwrap().plus_ms(ms - ms % 250);
        self.service.registry.set_clock(&self.tenant, at, "test").await.unwrap();
    }

    async fn settle_until(&mut self, ms: i64, calls: &[Arrival]) {
        while self.open.peek().is_some_and(|Reverse((ends, ..))| *ends <= ms) {
            let Some(Reverse((ends, call, id, output))) = self.open.pop() else { break };
            self.at(ends).await;
            let input = calls[call].input.unsigned_abs();
            let reported = Reported { input_tokens: input, output_tokens: output, ..Reported::default() };
            let usage = SettleUsage::Reported { reported, amounts: Vec::new() };
            let ended = self.service.settle(&self.tenant, SettleCommand { id, usage }).await.unwrap();
            assert!(matches!(ended, FinishReply::Done(_)), "{ended:?}");
        }
    }

    async fn check(&mut self, number: usize, call: &Arrival, user: u64, max_output: MaxOutput) {
        let ms = call.at.as_millis() as i64;
        self.at(ms).await;
        let feature = ["chat", "code"][is_code(call)];
        let command = CheckCommand {
            user: UserId::parse(&format!("u{user}")).unwrap(),
            request_id: None,
            model: Some(Name::parse("model").unwrap()),
            models: None,
            feature: Some(Label::parse(feature).unwrap()),
            bulk: false,
            input_tokens: call.input.unsigned_abs(),
            max_output,
            min_output_tokens: None,
            lease_seconds: None,
            wait_ms: 0,
            dry_run: false,
            amounts: Vec::new(),
            their_decision: None,
        };
        let sums = &mut self.sums[is_code(call)];
        sums.asked += 1;
        let allowed = match self.service.check(&self.tenant, command).await.unwrap() {
            CheckReply::Allowed(allowed) => allowed,
            CheckReply::Refused(_) => return,
        };
        let granted = allowed.granted.max_output_tokens;
        let output = call.output.unsigned_abs().min(granted);
        sums.admitted += 1;
        sums.reserved += granted;
        sums.used += output;
        sums.cut += u64::from(call.output.unsigned_abs() > granted);
        let ends = ms + 500 + 20 * output as i64;
        self.open.push(Reverse((ends, number, allowed.hold.unwrap().id, output)));
    }
}

/// All calls, each asking for so much output.
async fn replay(calls: &[Arrival], stock: Stock, max_output: MaxOutput) -> [Sums; 2] {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let running = Running::open_scratch(dir.path()).await.unwrap();
    let id = TenantId::parse("replay").unwrap();
    let content = content(stock);
    let tenant = running.registry.create_tenant_with(&id, true, None, &content, "test").await.unwrap();
    let mut replay = Replay {
        service: running.service.clone(),
        tenant,
        open: BinaryHeap::new(),
        sums: [Sums::default(); 2],
    };
    let mut rng = Rng::new(7);
    for (number, call) in calls.iter().enumerate() {
        replay.settle_until(call.at.as_millis() as i64, calls).await;
        replay.check(number, call, rng.between(1, USERS).unsigned_abs(), max_output).await;
    }
    replay.settle_until(i64::MAX, calls).await;
    let sums = replay.sums;
    running.close().await;
    sums
}

const ASKED: [(&str, MaxOutput); 3] =
    [("4,096", MaxOutput::Tokens(4_096)), ("1,024", MaxOutput::Tokens(1_024)), ("`auto`", MaxOutput::Auto)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "replays an hour of recorded traffic twelve times"]
async fn what_auto_reserves_and_admits_of_recorded_traffic() {
    let (from, calls) = trace();
    if from.starts_with("tests/") {
        println!(
            "skipped: what_auto_reserves_and_admits_of_recorded_traffic: there is no recorded traffic here"
        );
        return;
    }
    println!("| stock of output | asked | reserved / used: chat | code | all | cut off | admitted |");
    println!("|---|---|---|---|---|---|---|");
    let plan = Stock::Plan { capacity: CAP, refill: 1_500 };
    let stocks = [Stock::Nothing, Stock::Pool(100_000), Stock::Pool(200_000), plan];
    for stock in stocks {
        let mut admitted = Vec::new();
        let replays = ASKED.map(|(_, max_output)| replay(&calls, stock, max_output));
        for ((name, _), [chat, code]) in ASKED.iter().zip(join_all(replays).await) {
            let all = chat.and(code);
            println!(
                "| {stock:?} | {name} | {:.2} | {:.1} | {:.2} | {} ({:.2} %) | {} of {} ({:.1} %) |",
                chat.ratio(),
                code.ratio(),
                all.ratio(),
                all.cut,
                100.0 * all.cut as f64 / all.admitted as f64,
                all.admitted,
                all.asked,
                100.0 * all.admitted as f64 / all.asked as f64,
            );
            admitted.push(all.admitted);
            assert!(all.cut * 100 <= all.admitted, "more than one answer in a hundred is cut off: {all:?}");
        }
        let [most, less, learned] = admitted[..] else { panic!("{admitted:?}") };
        // Until enough is known, `auto` reserves the cap: where little is short, that shows.
        assert!(most <= learned && 99 * less <= 100 * learned, "{stock:?}: {admitted:?}");
        assert!(!matches!(stock, Stock::Pool(_)) || less < learned, "{stock:?}: {admitted:?}");
    }
}

/// The same with a few made-up calls.
#[tokio::test]
async fn auto_reserves_less_and_admits_more() {
    let (_, quarter) = crate::faults::soak::traffic::made_up();
    let calls: Vec<Arrival> = (0..4)
        .flat_map(|part| {
            let later = Duration::from_secs(15 * 60 * part);
            quarter.iter().map(move |call| Arrival { at: call.at + later, ..*call })
        })
        .collect();
    let stock = Stock::Pool(30_000);
    let [fixed, _] = replay(&calls, stock, MaxOutput::Tokens(CAP)).await;
    let [learned, _] = replay(&calls, stock, MaxOutput::Auto).await;
    assert!(
        12 * fixed.admitted < 10 * learned.admitted && fixed.ratio() > 1.5 * learned.ratio(),
        "{fixed:?} {learned:?}"
    );
}
