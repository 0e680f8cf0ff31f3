//! The scenarios that others published figures of, each beside ours.

use serde_json::json;

use super::world::{self, Manner, Outcome, Stream};
use super::{Upstream, jobs, seconds};
use crate::harness::vendor::{Counts, How, Rate, Rules, Style, What};
use crate::model::oracle::calendar::Ms;

/// What a call's way to the vendor takes at most, where nothing is said of it.
const ON_ITS_WAY_MS: Ms = 40;

/// What calls may generate while another one is on its way.
const ONE_OUTPUT: i64 = 100;

/// 600 requests, 90,000 tokens of input and 30,000 of output a minute, a tenth of it at once; 8 places.
pub fn minute(counts_rejected: bool) -> Upstream {
    let figures = [
        (What::Requests, "requests", 600),
        (What::Input, "input_tokens", 90_000),
        (What::Output, "output_tokens", 30_000),
    ];
    let rate =
        |(what, _, limit): (What, _, i64)| Rate::per_minute(what, limit, How::Bucket { burst: limit / 10 });
    // Calls that take unequally long bunch up: the burst has room for what comes in that time. And
    // while a call is on its way another one may end, whose output nobody knew.
    let limit = |(what, meter, limit): (What, &str, i64)| {
        let ends = if what == What::Output { ONE_OUTPUT } else { 0 };
        let guard = (limit * ON_ITS_WAY_MS + 59_999) / 60_000 + ends;
        json!({"name": meter, "kind": "bucket", "meter": meter, "capacity": limit / 10 - guard, "refill_per_minute": limit})
    };
    let places = json!({"name": "places", "kind": "slots", "limit": 8});
    Upstream {
        rules: Rules {
            style: Style::OpenAi,
            rates: figures.map(rate).to_vec(),
            slots: Some(8),
            counts: Counts::Actual,
            counts_rejected,
        },
        limits: figures.map(limit).into_iter().chain([places]).collect(),
        interactive_share: 0.0,
        on_its_way_ms: ON_ITS_WAY_MS,
    }
}

/// The same, of which bulk calls leave a tenth.
pub fn shared_minute() -> Upstream {
    Upstream { interactive_share: 0.1, ..minute(false) }
}

/// So many tokens in any `window_ms`, and a rolling limit of the same with a guard.
pub fn sliding(limit: i64, window_ms: i64, guard_ms: Ms, on_its_way_ms: Ms) -> Upstream {
    let rolling = json!({"name": "tokens", "kind": "rolling", "meter": "total_tokens", "limit": limit,
                         "window_seconds": window_ms / 1000, "guard_ms": guard_ms});
    Upstream {
        rules: Rules {
            style: Style::Anthropic,
            rates: vec![Rate { what: What::Total, limit, window_ms, how: How::Sliding }],
            slots: None,
            counts: Counts::Reserved,
            counts_rejected: false,
        },
        limits: vec![rolling],
        interactive_share: 0.0,
        on_its_way_ms,
    }
}

/// Twenty streams of calls of 100 to 1,500 tokens, 390 in all.
fn twenty_streams() -> Vec<Stream> {
    let mut dice = jobs::Dice::new(20);
    let mut call = || jobs::call(50 + dice.below(1_000) as i64, 50 + dice.below(450) as i64);
    let stream = |nth| (0..if nth < 10 { 20 } else { 19 }).map(|_| call()).collect();
    (0..20).map(stream).collect()
}

pub async fn run(upstream: &Upstream, streams: Vec<Stream>) -> Outcome {
    let tenant = upstream.tenant().await;
    world::run(&tenant, upstream.stage(Manner::PATIENT), streams).await
}

fn told(name: &str, outcome: &Outcome, published: &str) -> String {
    format!(
        "| {name} | {} / {} | {} | {} | {} | {} / {} | {published} |",
        outcome.done,
        outcome.jobs,
        outcome.sends,
        outcome.rejected,
        seconds(outcome.total_ms),
        seconds(outcome.wait(false, 0.5)),
        seconds(outcome.wait(false, 0.95)),
    )
}

/// All rows, as a table.
pub async fn table() -> Vec<String> {
    let mut rows = vec![
        "| scenario | done | sends | 429s of the vendor | total | interactive wait p50 / p95 | published |"
            .into(),
        "|---|---|---|---|---|---|---|".into(),
    ];
    let mut row = async |name, upstream: Upstream, streams, published| {
        let outcome = run(&upstream, streams).await;
        rows.push(told(name, &outcome, published));
    };
    let guarded = |limit, guard_ms, way_ms| sliding(limit, 10_000, guard_ms, way_ms);
    row("60 jobs, 21 s at least", minute(false), jobs::sixty(), "60 sends, 0, 24.1 s").await;
    row("rejected calls count too", minute(true), jobs::sixty(), "60 sends, 0, 24.2 s").await;
    row("48 + 12, without lanes", minute(false), jobs::one_lane(), "10.6 s / 16.5 s").await;
    row("48 bulk + 12 interactive", shared_minute(), jobs::two_lanes(), "24.0 s, 1.07 s / 1.39 s").await;
    let alike = jobs::alike(60, 187, 20);
    row("60 x 207 tokens, 4,000 in sliding 10 s", guarded(4_000, 50, ON_ITS_WAY_MS), alike, "0, 30.5 s")
        .await;
    row("20 streams, 20,000 in 10 s", guarded(20_000, 0, 250), twenty_streams(), "29 of 386").await;
    let published = "0, at 95 % and + 0.25 s";
    row("the same with a guard", guarded(20_000, 250, 250), twenty_streams(), published).await;
    rows
}

/// Nothing is sent twice, nothing is rejected, and every job is done.
#[track_caller]
fn assert_clean(outcome: &Outcome) {
    let jobs = outcome.jobs;
    assert_eq!((outcome.done, outcome.sends, outcome.rejected), (jobs, jobs, 0), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "only prints"]
async fn all_that_was_published() {
    table().await.iter().for_each(|row| println!("{row}"));
}

#[tokio::test]
async fn sixty_jobs_are_sent_once_each_and_take_little_longer_than_they_must() {
    for counts_rejected in [false, true] {
        let outcome = run(&minute(counts_rejected), jobs::sixty()).await;
        assert_clean(&outcome);
        // 1.08 times the least.
        assert!(outcome.total_ms <= 22_680, "{}", outcome.total_ms);
    }
}

#[tokio::test]
async fn interactive_calls_go_before_bulk_ones_and_all_are_done_as_soon() {
    let without = run(&minute(false), jobs::one_lane()).await;
    let lanes = run(&shared_minute(), jobs::two_lanes()).await;
    assert_clean(&lanes);
    assert!(lanes.total_ms <= without.total_ms, "{} {}", lanes.total_ms, without.total_ms);
    let waits = (lanes.wait(false, 0.5), lanes.wait(false, 0.95));
    assert!(waits.0 <= 1_000 && waits.1 <= 1_300, "{waits:?}");
}

#[tokio::test]
async fn a_sliding_window_is_used_as_fast_as_it_turns() {
    let outcome = run(&sliding(4_000, 10_000, 50, ON_ITS_WAY_MS), jobs::alike(60, 187, 20)).await;
    assert_clean(&outcome);
    assert!(outcome.total_ms <= 30_500, "{}", outcome.total_ms);
}

#[tokio::test]
async fn a_guard_makes_up_for_unequal_ways_to_the_vendor() {
    let bare = run(&sliding(20_000, 10_000, 0, 250), twenty_streams()).await;
    assert!(bare.rejected > 0, "a window of the same length lets some arrive too close together");
    let outcome = run(&sliding(20_000, 10_000, 250, 250), twenty_streams()).await;
    assert_clean(&outcome);
    assert!(outcome.sends >= 386);
}
