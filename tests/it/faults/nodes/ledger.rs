//! Postgres dies, or is away for long: what is known goes on, and comes on record afterwards.

use std::time::{Duration, Instant};

use serde_json::json;

use super::engine::evict;
use super::truth::{check, eventually};
use super::{Load, Loss, Pair};
use crate::harness::number_from_env;
use crate::harness::postgres::Postgres;
use crate::harness::proxy::Proxy;
use crate::harness::redis::Single;

const SOME: usize = 250;

/// A server of one's own; it ends with the test binary.
pub fn own_postgres() -> Option<&'static Postgres> {
    Postgres::start().map(|server| &*Box::leak(Box::new(server)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_who_are_known_go_on_while_postgres_is_away_and_it_all_comes_on_record() {
    let (Some(redis), Some(postgres)) = (Single::start(&[]), own_postgres()) else { return };
    let pair = Pair::on(&redis.url(), postgres).await;
    let load = Load::start(&pair);
    load.answers(SOME).await;
    let drained = pair.psql("SELECT drained FROM slots WHERE tenant = $T").parse::<u64>().unwrap();
    let (begun, away) = (Instant::now(), Duration::from_secs(number_from_env("AWAY_SECONDS", 10) as u64));
    postgres.kill();
    let mut stranger = 0;
    while begun.elapsed() < away {
        load.answers(SOME / 2).await;
        stranger += 1;
        let node = pair.client(stranger % 2);
        node.check(json!({"user": format!("new{stranger}")})).await.refused(503, "store_unavailable");
        let ready = node.http.get(format!("{}/livez", node.url)).send().await.unwrap();
        assert_eq!(ready.status(), 200);
    }
    let stream: Vec<String> = redis.run(&["KEYS", "ap:*:e"]);
    let waiting: u64 = redis.run(&["XLEN", &stream[0]]);
    assert!(waiting > SOME as u64, "{waiting} changes wait");
    postgres.restart();
    load.answers(SOME).await;
    let told = load.stop().await;
    assert_eq!(pair.rebuilt(), 0);
    let fault = format!("Postgres away for {} s ({waiting} changes waited)", away.as_secs());
    check(&pair, &told, &[&redis], &fault, Loss::Nothing).await;
    let now = pair.psql("SELECT drained FROM slots WHERE tenant = $T").parse::<u64>().unwrap();
    assert!(now > drained || pair.rebuilt() > 0);
    postgres.kill();
}

/// The slots cannot be compared with the ledger now, and need not be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_redis_that_break_while_postgres_is_away_close_no_door() {
    let (Some(redis), Some(postgres)) = (Single::start(&[]), own_postgres()) else { return };
    let proxy = Proxy::before(&redis.address());
    let pair = Pair::on(&format!("redis://{}", proxy.address), postgres).await;
    let load = Load::start(&pair);
    load.answers(SOME).await;
    postgres.kill();
    // Some break again before the new one has said whose it is.
    proxy.lose_replies(2, b"replication");
    for _ in 0..5 {
        proxy.cut();
        load.answers(SOME / 5).await;
    }
    assert!(proxy.lost() > 0);
    proxy.lose_replies(0, b"");
    postgres.restart();
    let told = load.stop().await;
    assert_eq!((told.refused(), pair.rebuilt()), (0, 0));
    let fault = "connections to Redis cut five times while Postgres is away";
    check(&pair, &told, &[&redis], fault, Loss::Nothing).await;
    postgres.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_that_is_killed_again_and_again_has_everything_once() {
    let (Some(redis), Some(postgres)) = (Single::start(&[]), own_postgres()) else { return };
    let pair = Pair::on(&redis.url(), postgres).await;
    let load = Load::start(&pair);
    for _ in 0..3 {
        load.answers(SOME).await;
        postgres.kill();
        load.answers(SOME / 5).await;
        postgres.restart();
    }
    load.answers(SOME).await;
    let told = load.stop().await;
    assert_eq!(pair.rebuilt(), 0);
    check(&pair, &told, &[&redis], "kill -9 of Postgres, three times", Loss::Nothing).await;
    postgres.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_is_never_loaded_from_figures_that_lag() {
    let (Some(redis), Some(postgres)) = (Single::start(&[]), own_postgres()) else { return };
    let pair = Pair::on(&redis.url(), postgres).await;
    let body = |number: u64| {
        json!({"user": "tight", "request_id": format!("r{number}"), "input_tokens": 4_000,
               "max_output_tokens": 500, "lease_seconds": 3600})
    };
    pair.client(0).check(body(0)).await.ok();
    pair.client(1).quota("tight").await.ok();
    postgres.kill();
    // Known to Redis alone.
    pair.client(1).check(body(1)).await.ok();
    evict(&redis, "*:a:u:tight");
    for node in pair.clients() {
        for reply in [node.check(body(2)).await, node.quota("tight").await] {
            assert_eq!(reply.status, 503, "{}", reply.text);
        }
    }
    postgres.restart();
    for node in pair.clients() {
        let view = eventually(|| node.quota("tight")).await.ok();
        assert_eq!(crate::harness::row(&view, "life")["held"], 9_000);
        eventually(|| node.check(body(3))).await.refused(429, "quota_exhausted");
    }
    postgres.kill();
}
