//! An hour of recorded traffic at two nodes while everything around them breaks, one thing after
//! the other; then every row there is against every other.
//!
//! `SOAK_MINUTES=60 cargo test --test it -- --ignored --nocapture soak` is the long one. Other
//! settings: `SOAK_PARTS` (after each all is compared), `SOAK_SPEED` (how much faster than recorded), `SOAK_SEED`, `SOAK_HARMS` (names), `SOAK_TRACES` (a folder).

mod books;
mod harm;
pub mod traffic;

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::faults::nodes::{Pair, eventually, every_key_ends};
use crate::harness::number_from_env;
use crate::harness::postgres::Postgres;
use crate::harness::proxy::Proxy;
use crate::harness::redis::Single;
use crate::harness::sheets::{PoolSheet, Sheet};
use crate::model::rng::Rng;
use books::Found;
use harm::{Harm, Stage};
use traffic::Traffic;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_short_while_of_traffic_and_faults_leaves_every_row_right() {
    let harms = [
        Harm::RedisFlushed,
        Harm::NodeKilled,
        Harm::PostgresAway,
        Harm::RedisKilled,
        Harm::NodeFrozen,
        Harm::ScriptsForgotten,
    ];
    let short = Plan {
        parts: 1,
        time: Duration::from_secs(5),
        long: Duration::from_secs(4),
        gaps: [200, 500],
        lease: 2,
        users: 60,
    };
    soak(short, &harms).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "takes an hour: SOAK_MINUTES"]
async fn an_hour_of_traffic_and_faults_leaves_every_row_right() {
    let parts = number_from_env("SOAK_PARTS", 4);
    let time = Duration::from_secs(60 * number_from_env("SOAK_MINUTES", 60) as u64) / parts as u32;
    let long = Duration::from_secs(60);
    let plan = Plan { parts, time, long, gaps: [20_000, 60_000], lease: 20, users: 600 };
    soak(plan, &harm::chosen()).await;
}

struct Plan {
    /// After each, all rows are compared.
    parts: usize,
    /// Of each part.
    time: Duration,
    /// How long what takes long takes.
    long: Duration,
    /// Milliseconds between one harm and the next.
    gaps: [i64; 2],
    /// Seconds.
    lease: i64,
    /// By how often they call; of three, one has small limits.
    users: usize,
}

async fn soak(plan: Plan, harms: &[Harm]) {
    let settings = ["--appendonly", "yes", "--appendfsync", "everysec"];
    let (Some(redis), Some(postgres)) = (Single::start(&settings), Postgres::start()) else { return };
    let postgres: &'static Postgres = Box::leak(Box::new(postgres));
    let proxy = Proxy::before(&redis.address());
    let pair = Pair::begin(&format!("redis://{}", proxy.address), postgres, [Vec::new(), Vec::new()], false);
    let mut stage = Stage { pair, redis, proxy, postgres, long: plan.long, forgot: Vec::new() };
    let users: Vec<String> = (0..plan.users)
        .map(|rank| if rank % 3 == 2 { format!("small{rank}") } else { format!("big{rank}") })
        .collect();
    put_plans(&stage.pair, &users).await;

    let seed = number_from_env("SOAK_SEED", 1) as u64;
    let speed = number_from_env("SOAK_SPEED", 10) as f64;
    let (from, trace) = traffic::trace();
    println!("{} calls from {from}, {speed} times as fast; seed {seed}", trace.len());
    let traffic = Traffic::new(stage.pair.clients().clone(), users.clone(), plan.lease);
    let (begun, mut rng) = (Instant::now(), Rng::new(seed));
    for part in 1..=plan.parts {
        let sending = tokio::spawn(traffic.clone().run(trace.clone(), speed, seed, part));
        hurt(&mut stage, &traffic, &plan, harms, &mut rng, begun).await;
        traffic.stop().await;
        sending.await.expect("it was told to stop");
        // Until what was left alone is in doubt, and buckets are full.
        let refill = harm::CAPACITY * 60 / harm::REFILL;
        tokio::time::sleep(Duration::from_secs((plan.lease + refill + 1).cast_unsigned())).await;
        stage.recover().await;
        let found = compare(&mut stage, &traffic, &users).await;
        println!("after {:.0} s, compared: {:?}", begun.elapsed().as_secs_f64(), found.compared);
        println!(
            "lost, answered up to {:?} before Redis was emptied or killed ({} times): {}",
            found.lag,
            stage.forgot.len(),
            found.lost
        );
        println!("differences: {}", found.differences.len());
        found.differences.iter().take(50).for_each(|difference| println!("  {difference}"));
        assert!(found.differences.is_empty());
        stage.pair.nothing_odd_was_said();
    }
    postgres.kill();
}

async fn put_plans(pair: &Pair, users: &[String]) {
    let everybody =
        |sheet: Sheet| sheet.per("everybody", json!("month"), 1 << 50).but("scope", json!("tenant"));
    let small = Sheet::named("small")
        .rb(harm::CAPACITY.cast_unsigned(), harm::REFILL.cast_unsigned())
        .dr(60)
        .cc(30)
        .per("life", json!("lifetime"), harm::TOKENS.cast_unsigned());
    let big = Sheet::named("big")
        .rb(100_000, 600_000)
        .ob(100_000_000, 600_000_000)
        .dr(10_000_000)
        .cc(100_000)
        .per("life", json!("lifetime"), 1 << 50)
        .per("together", json!("month"), 1 << 50)
        .but("scope", json!("org"));
    let client = pair.client(0);
    for sheet in [small, big] {
        client.put_plan(&everybody(sheet).json()).await.ok();
    }
    for model in ["conv", "code"] {
        let pool = PoolSheet::new(model, &[model]).places(500_000).requests(10_000_000, 100_000_000);
        client.put_pool(&pool.json()).await.ok();
    }
    client.put_settings(json!({"default_plan": "small"})).await.ok();
    for (place, user) in users.iter().enumerate().filter(|(_, user)| user.starts_with("big")) {
        client.put_user(user, json!({"plan": "big", "org": format!("o{}", place % 7)})).await.ok();
    }
    let last = users.iter().rfind(|user| user.starts_with("big")).expect("big users");
    pair.second_knows(last, &["life", "everybody", "together"], "credits").await;
    pair.second_knows("small0", &["life", "everybody"], "together").await;
}

/// One harm after the other, all of them before one comes again.
async fn hurt(
    stage: &mut Stage,
    traffic: &Traffic,
    plan: &Plan,
    harms: &[Harm],
    rng: &mut Rng,
    begun: Instant,
) {
    let part = Instant::now();
    let mut round: Vec<Harm> = Vec::new();
    let mut count = 0;
    while part.elapsed() < plan.time || count < harms.len() {
        if round.is_empty() {
            round = harms.to_vec();
            // The first round is in the order of the list.
            if count > 0 {
                (1..round.len()).for_each(|last| {
                    let other = rng.between(0, last as i64) as usize;
                    round.swap(last, other);
                });
            }
            round.reverse();
        }
        let gap = rng.between(plan.gaps[0], plan.gaps[1]).cast_unsigned();
        tokio::time::sleep(Duration::from_millis(gap)).await;
        let harm = round.pop().expect("a round has harms");
        count += 1;
        let quiet = std::mem::take(&mut *traffic.seen.lock().unwrap());
        let from = Instant::now();
        stage.suffer(harm, count % 2).await;
        let took = from.elapsed();
        let waiting = stage.waiting();
        let recovered = stage.recover().await;
        let seen = std::mem::take(&mut *traffic.seen.lock().unwrap());
        println!(
            "{:6.1} s | {harm:?} for {:.1} s | refused {}, broken off {}, within {:.1} s | slowest {:.1} s | \
             {waiting} waited, on record after {:.1} s | answered {} | before: {} answered, {} refused, \
             slowest {:.2} s | {} open | {} MB",
            begun.elapsed().as_secs_f64(),
            took.as_secs_f64(),
            seen.refused,
            seen.broken,
            seen.bad_for().as_secs_f64(),
            seen.slowest.as_secs_f64(),
            recovered.as_secs_f64(),
            seen.good,
            quiet.good,
            quiet.refused + quiet.broken,
            quiet.slowest.as_secs_f64(),
            traffic.open.load(SeqCst),
            stage.pair.megabytes(),
        );
    }
}

async fn compare(stage: &mut Stage, traffic: &Traffic, users: &[String]) -> Found {
    let mut found = Found::default();
    let calls = traffic.calls.lock().unwrap().clone();
    let holds = books::holds(&stage.pair).await;
    books::against_callers(&calls, &holds, users, &stage.forgot, &mut found);
    books::against_totals(&stage.pair, &holds, &mut found);
    books::against_limits(&holds, &mut found);
    let shown = books::against_figures(&stage.pair, &holds, &mut found).await;
    every_key_ends(&[&stage.redis]);
    // What is built anew from the ledger is what there was.
    stage.redis.flush_all();
    for (user, model) in users.iter().zip(["conv", "code"].into_iter().cycle()).take(20) {
        // Brings back what many share.
        let body = json!({"user": user, "model": model, "dry_run": true});
        eventually(|| stage.pair.client(0).check(body.clone())).await;
    }
    let anew = books::against_figures(&stage.pair, &holds, &mut found).await;
    assert_eq!(shown, anew, "built anew from the ledger");
    let count = |what: fn(&traffic::Call) -> bool| calls.iter().filter(|call| what(call)).count();
    println!(
        "{} calls: {} admitted, {} refused by a limit, {} without an answer; {} ended, {} unknown at their end",
        calls.len(),
        count(|call| call.hold.is_some()),
        count(|call| call.refused),
        count(|call| call.hold.is_none() && !call.refused),
        count(|call| call.ended.is_some()),
        count(|call| call.gone),
    );
    found
}
