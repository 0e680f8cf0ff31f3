//! Interactive and bulk calls over hours: nobody starves, and what one lane leaves the other has.

use serde_json::json;

use super::world::{self, Job, Manner, Outcome, Stage, Stream};
use super::{Upstream, jobs, seconds};
use crate::harness::vendor::{Counts, How, Rate, Rules, Style, What};
use crate::model::oracle::calendar::{HOUR_MS, MINUTE_MS, Ms};

/// Tokens a minute, in any span of one.
const LIMIT: i64 = 6_000;
const INTERACTIVE: i64 = 600;
const BULK: i64 = 900;

/// A bucket worked out from `share` percent of what the vendor allows in a sliding minute.
fn minute(share: i64) -> Upstream {
    let limit = LIMIT * share / 100;
    let bucket = json!({"name": "tokens", "kind": "bucket", "meter": "total_tokens", "vendor_limit": limit,
                        "burst_share": 0.3, "guard_ms": 250});
    Upstream {
        rules: Rules {
            style: Style::Anthropic,
            rates: vec![Rate::per_minute(What::Total, limit, How::Sliding)],
            slots: None,
            counts: Counts::Reserved,
            counts_rejected: false,
        },
        limits: vec![bucket],
        interactive_share: if share == 100 { 0.3 } else { 0.0 },
        on_its_way_ms: 250,
    }
}

/// Interactive calls that come by chance, so many a minute of the limit's `percent`.
fn interactive(percent: i64, minutes: Ms) -> Vec<Stream> {
    let mut dice = jobs::Dice::new(6);
    let mean = 60_000 * INTERACTIVE * 100 / (LIMIT * percent);
    let mut at = 0;
    let mut streams = Vec::new();
    while at < minutes * MINUTE_MS {
        // Exponential gaps, from a table of evenly spread numbers.
        let even = (dice.below(1 << 20) + 1) as f64 / f64::from(1 << 20);
        at += (-even.ln() * mean as f64) as Ms;
        streams.push(vec![Job { at, ..jobs::call(INTERACTIVE - 100, 100) }]);
    }
    streams
}

/// Workers who always have a next job.
fn bulk(workers: usize, minutes: Ms) -> Vec<Stream> {
    let most = (minutes * LIMIT / BULK) as usize;
    vec![vec![Job { bulk: true, ..jobs::call(BULK - 100, 100) }; most]; workers]
}

async fn run(upstream: &Upstream, minutes: Ms, streams: Vec<Stream>) -> Outcome {
    let tenant = upstream.tenant().await;
    let stage = Stage { until: minutes * MINUTE_MS, ..upstream.stage(Manner::PATIENT) };
    world::run(&tenant, stage, streams).await
}

/// Steady interactive calls that take most of what the bucket lets through, and bulk workers beside them.
async fn steady(minutes: Ms) -> Outcome {
    let streams = interactive(40, minutes).into_iter().chain(bulk(4, minutes)).collect();
    run(&minute(100), minutes, streams).await
}

/// The fewest bulk jobs that were begun in an hour.
fn fewest_an_hour(outcome: &Outcome, minutes: Ms) -> usize {
    let begun = |hour: Ms| outcome.bulk_at.iter().filter(|at| **at / HOUR_MS == hour).count();
    (0..(minutes / 60).max(1)).map(begun).min().unwrap_or(0)
}

/// Bulk tokens in nights of so many minutes with few interactive calls: of a fixed share of the limit,
/// and of a limit that both lanes share.
async fn nights(minutes: Ms) -> [Outcome; 2] {
    let fixed = run(&minute(70), minutes, bulk(4, minutes)).await;
    let shared = interactive(5, minutes).into_iter().chain(bulk(4, minutes)).collect();
    [fixed, run(&minute(100), minutes, shared).await]
}

pub async fn table() -> Vec<String> {
    let day = steady(24 * 60).await;
    let [fixed, shared] = nights(8 * 60).await;
    let lane = |outcome: &Outcome, bulk| {
        let [half, most, all] = [0.5, 0.95, 1.0].map(|share| seconds(outcome.wait(bulk, share)));
        format!(
            "{} admitted, waits p50 {half}, p95 {most}, longest {all}",
            outcome.waits[usize::from(bulk)].len()
        )
    };
    let more = shared.tokens[1] as f64 / fixed.tokens[1] as f64 * 100.0 - 100.0;
    vec![
        "| scenario | interactive | bulk | 429s of the vendor |".into(),
        "|---|---|---|---|".into(),
        format!(
            "| a day of steady interactive calls, 40 % of the limit | {} | {}; {} at least in each hour | {} |",
            lane(&day, false),
            lane(&day, true),
            fewest_an_hour(&day, 24 * 60),
            day.rejected
        ),
        format!(
            "| a night, 70 % of the limit for bulk alone | | {} tokens | {} |",
            fixed.tokens[1], fixed.rejected
        ),
        format!(
            "| the same night, one limit for both lanes | {} | {} tokens: {more:+.0} % | {} |",
            lane(&shared, false),
            shared.tokens[1],
            shared.rejected
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes"]
async fn a_day_of_two_lanes() {
    table().await.iter().for_each(|row| println!("{row}"));
}

#[tokio::test]
async fn bulk_is_not_starved_by_steady_interactive_calls() {
    let outcome = steady(20).await;
    assert_eq!(outcome.rejected, 0);
    // Three tenths of the limit are left for them.
    assert!(outcome.bulk_at.len() >= 10, "{:?}", outcome.bulk_at.len());
    assert!(outcome.wait(false, 0.5) <= 1_000, "{}", outcome.wait(false, 0.5));
}

#[tokio::test]
async fn what_interactive_calls_leave_at_night_bulk_has() {
    let [fixed, shared] = nights(20).await;
    assert_eq!((fixed.rejected, shared.rejected), (0, 0));
    assert!(shared.tokens[1] * 100 >= fixed.tokens[1] * 122, "{:?} {:?}", fixed.tokens, shared.tokens);
}
