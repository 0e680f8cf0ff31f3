//! What others measured of a shared upstream, with this service in front of a model vendor:
//! `cargo test --test it -- --ignored upstream --nocapture` prints a row for each. In real time.

mod jobs;
mod world;

use serde_json::{Value, json};

use crate::harness::sheets::{PoolSheet, Sheet};
use crate::harness::vendor::{Counts, How, Rate, Rules, Style, What};
use crate::harness::{Server, Tenant};
use world::{Job, Outcome};

/// A tenant on the machine's clock, whose users are held back by the pool alone.
async fn tenant(limits: &[Value], counts: Counts) -> Tenant {
    let pool = limits.iter().fold(
        PoolSheet::new("default", &["*"])
            .field("counts", json!(if counts == Counts::Actual { "actual" } else { "reserved" })),
        |pool, limit| pool.limit(limit.clone()),
    );
    let tenant = Tenant::in_real_time(Server::shared(), "UTC");
    tenant.plan(&Sheet::new()).await;
    tenant.pool(&pool).await;
    tenant
}

fn bucket(meter: &str, capacity: i64, refill: i64) -> Value {
    json!({"name": meter, "kind": "bucket", "meter": meter, "capacity": capacity, "refill_per_minute": refill})
}

/// 600 requests, 90,000 tokens of input and 30,000 of output a minute, a tenth of it at once; 8 places.
fn minute(counts_rejected: bool) -> Rules {
    let rate = |what, limit: i64| Rate::per_minute(what, limit, How::Bucket { burst: limit / 10 });
    Rules {
        style: Style::OpenAi,
        rates: vec![rate(What::Requests, 600), rate(What::Input, 90_000), rate(What::Output, 30_000)],
        slots: Some(8),
        counts: Counts::Actual,
        counts_rejected,
    }
}

fn minute_limits() -> Vec<Value> {
    vec![
        bucket("requests", 60, 600),
        bucket("input_tokens", 9_000, 90_000),
        bucket("output_tokens", 3_000, 30_000),
        json!({"name": "places", "kind": "slots", "limit": 8}),
    ]
}

async fn row(name: &str, published: &str, limits: &[Value], rules: Rules, jobs: &[Job]) -> Outcome {
    let tenant = tenant(limits, rules.counts).await;
    let outcome = world::run(&tenant, rules, jobs).await;
    println!(
        "| {name} | {} / {} jobs, {} sends, {} x 429, refused {} | {:.1} s | interactive p50 {:.2} s, p95 {:.2} s | {published} |",
        outcome.waits.iter().map(Vec::len).sum::<usize>(),
        outcome.jobs,
        outcome.sends,
        outcome.rejected,
        outcome.refused,
        outcome.total_ms as f64 / 1000.0,
        outcome.interactive(0.5) as f64 / 1000.0,
        outcome.interactive(0.95) as f64 / 1000.0,
    );
    outcome
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes half a minute of real time"]
async fn what_was_published_of_shared_upstreams_and_what_comes_of_it_here() {
    let sliding = Rules {
        style: Style::Anthropic,
        rates: vec![Rate { what: What::Total, limit: 4_000, window_ms: 10_000, how: How::Sliding }],
        slots: None,
        counts: Counts::Reserved,
        counts_rejected: false,
    };
    // A second more than the vendor's: a call may reach it sooner after its check than another did.
    let rolling = json!({"name": "tokens", "kind": "rolling", "meter": "total_tokens", "limit": 4_000, "window_seconds": 11});
    let (minute_limits, sixty, lanes, alike) =
        (minute_limits(), jobs::sixty(), jobs::two_lanes(), jobs::alike(60, 107, 100));
    let (rolling, minute_limits) = (&[rolling][..], &minute_limits[..]);
    let (first, counted, lanes, alike) = tokio::join!(
        row("60 jobs", "60 sends, 0, 24.1 s", minute_limits, minute(false), &sixty),
        row("rejected ones counted", "60 sends, 0, 24.2 s", minute_limits, minute(true), &sixty),
        row(
            "48 bulk + 12 interactive",
            "p50 1.07 s, p95 1.39 s, 24.0 s",
            minute_limits,
            minute(false),
            &lanes
        ),
        row("4,000 in 10 s, sliding", "60 / 60, 0, 30.5 s", rolling, sliding, &alike),
    );
    for outcome in [&first, &counted, &lanes, &alike] {
        assert_eq!((outcome.sends, outcome.rejected), (60, 0));
    }
}
