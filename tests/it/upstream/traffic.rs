//! An hour of two recorded traces on one vendor's limit: chats as interactive, completions of code
//! as bulk; `UPSTREAM_MINUTES=20-30` takes a part of it. Without the recordings, a small made-up trace.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;

use super::world::{self, Job, Manner, Outcome, Stage, Stream};
use super::{free_tenant, jobs, seconds};
use crate::harness::Tenant;
use crate::harness::sheets::PoolSheet;
use crate::harness::vendor::{Counts, How, Rate, Rules, Style, Vendor, What};
use crate::model::oracle::calendar::{MINUTE_MS, Ms};

/// What an interactive call is made with, best first; bulk insists on the first.
const MODELS: &[&str] = &["opus", "haiku"];
/// A call is on its way for so long at most.
const ON_ITS_WAY_MS: Ms = 250;

/// The calls, and the tokens a minute that the vendor of the first model allows.
struct Recorded {
    from: &'static str,
    streams: Vec<Stream>,
    limit: i64,
}

fn recorded() -> Recorded {
    let folder = std::env::var("UPSTREAM_TRACES").unwrap_or_else(|_| "../shared/data".into());
    let file = |name: &str| Path::new(&folder).join(name);
    let mut streams = read(&file("azure_llm_2023_conv.csv"), false);
    streams.extend(read(&file("azure_llm_2023_code.csv"), true));
    let part = std::env::var("UPSTREAM_MINUTES").ok();
    if let Some((from, to)) = part.as_deref().and_then(|part| part.split_once('-')) {
        let [from, to] = [from, to].map(|minute| minute.parse::<Ms>().expect("a minute") * MINUTE_MS);
        streams.retain(|stream| (from..to).contains(&stream[0].at));
        streams.iter_mut().for_each(|stream| stream[0].at -= from);
    }
    match streams.is_empty() {
        true => made_up(),
        false => Recorded { from: "two recorded traces", streams, limit: 1_000_000 },
    }
}

/// Four hundred calls in twelve minutes, every third of them bulk.
fn made_up() -> Recorded {
    let mut streams = read(Path::new("tests/data/trace.csv"), false);
    for stream in streams.iter_mut().step_by(3) {
        stream[0] = Job { bulk: true, models: &MODELS[..1], ..stream[0].clone() };
    }
    Recorded { from: "made up", streams, limit: 45_000 }
}

/// Each call as its own sender: with what it used, and the most it might have, by its lane.
fn read(file: &Path, bulk: bool) -> Vec<Stream> {
    let Ok(text) = std::fs::read_to_string(file) else { return Vec::new() };
    let mut begin = None;
    let call = |line: &str| {
        let mut parts = line.trim().split(',');
        let mut next = || parts.next().expect("three columns");
        let (time, input, output) = (next(), next(), next());
        let clock = time.split([' ', 'T']).nth(1).expect("a time of day").trim_end_matches('Z');
        let clock: Vec<f64> = clock.split(':').map(|part| part.parse().expect("a number")).collect();
        let at = (((clock[0] * 60.0 + clock[1]) * 60.0 + clock[2]) * 1000.0) as Ms;
        let at = at - *begin.get_or_insert(at);
        let number = |text: &str| text.parse::<i64>().expect("a count");
        let (input, output) = (number(input), number(output));
        let max_output = if bulk { 256 } else { 600 };
        let output = output.min(max_output);
        let models = if bulk { &MODELS[..1] } else { MODELS };
        vec![Job { at, bulk, max_output, models, ..jobs::call(input, output) }]
    };
    text.lines().skip(1).map(call).collect()
}

/// A vendor that counts, in any minute, what calls say they may use.
fn vendor(limit: i64) -> Vendor {
    let rules = Rules {
        style: Style::Anthropic,
        rates: vec![Rate::per_minute(What::Total, limit, How::Sliding)],
        slots: None,
        counts: Counts::Reserved,
        counts_rejected: false,
    };
    Vendor::new(rules, 0)
}

async fn tenant(limits: [i64; 2]) -> Tenant {
    let tenant = free_tenant().await;
    for (model, limit) in MODELS.iter().zip(limits) {
        let limit = json!({"name": "tokens", "kind": "rolling", "meter": "total_tokens", "vendor_limit": limit,
                           "guard_ms": ON_ITS_WAY_MS});
        tenant.pool(&PoolSheet::new(model, &[model]).limit(limit)).await;
    }
    tenant
}

/// The traffic with callers who ask in this manner. The second model's limit is half the first's.
async fn run(traffic: &Recorded, manner: Manner) -> Outcome {
    let limits = [traffic.limit, traffic.limit / 2];
    let tenant = tenant(limits).await;
    let vendors: BTreeMap<_, _> = MODELS.iter().copied().zip(limits.map(vendor)).collect();
    let stage = Stage { vendors, manner, on_its_way_ms: ON_ITS_WAY_MS, until: Ms::MAX };
    world::run(&tenant, stage, traffic.streams.clone()).await
}

/// Admitted at once or refused.
const GATE: Manner = Manner { wait_ms: [0; 2], least_percent: 100, substitutes: false, again: false };
/// Waits, and for nothing else.
const WAITS: Manner = Manner { wait_ms: [10_000, 60_000], ..GATE };
/// Takes another model, then half of the output, then waits.
const ALL: Manner = Manner { least_percent: 50, substitutes: true, ..WAITS };

/// The share of what the gate refuses that is served otherwise.
fn rescued(gate: &Outcome, other: &Outcome) -> f64 {
    1.0 - other.given_up as f64 / gate.given_up.max(1) as f64
}

pub async fn table() -> Vec<String> {
    let traffic = recorded();
    let (gate, waits, all) =
        (run(&traffic, GATE).await, run(&traffic, WAITS).await, run(&traffic, ALL).await);
    let row = |name: &str, outcome: &Outcome| {
        format!(
            "| {name} | {} of {} | {} ({:.0} %) | {} | {} | {:.1} % of {} | {} / {} | {} | {} |",
            outcome.done,
            outcome.jobs,
            outcome.given_up,
            rescued(&gate, outcome) * 100.0,
            outcome.sends,
            outcome.rejected,
            outcome.filled() * 100.0,
            seconds(outcome.waiting_ms),
            seconds(outcome.wait(false, 0.5)),
            seconds(outcome.wait(false, 0.95)),
            outcome.substituted,
            outcome.smaller,
        )
    };
    vec![
        format!("{}, {} tokens a minute:", traffic.from, traffic.limit),
        String::new(),
        "| callers | done | refused for good (less than the gate) | sends | 429s of the vendor | used while work waits | interactive wait p50 / p95 | other model | less output |".into(),
        "|---|---|---|---|---|---|---|---|---|".into(),
        row("a gate: now or not", &gate),
        row("wait", &waits),
        row("take another model or less, then wait", &all),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes; see UPSTREAM_TRACES"]
async fn an_hour_of_recorded_traffic() {
    table().await.iter().for_each(|row| println!("{row}"));
}

#[tokio::test]
async fn most_of_what_a_gate_refuses_is_served_and_the_vendor_refuses_nothing() {
    let traffic = made_up();
    let (gate, all) = (run(&traffic, GATE).await, run(&traffic, ALL).await);
    println!(
        "{} {} {} {} {} {}",
        gate.given_up,
        all.given_up,
        all.filled(),
        all.waiting_ms,
        all.substituted,
        all.smaller
    );
    assert_eq!((gate.rejected, all.rejected), (0, 0));
    assert!(gate.given_up >= 20, "{}", gate.given_up);
    assert!(rescued(&gate, &all) >= 0.6, "{} of {}", all.given_up, gate.given_up);
    assert!(all.filled() >= 0.9, "{}", all.filled());
}
