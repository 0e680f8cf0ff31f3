//! Nodes die and stand still.

use std::time::Duration;

use serde_json::json;

use super::truth::{check, eventually};
use super::{Load, Loss, Pair};
use crate::harness::postgres::Postgres;
use crate::harness::redis::Single;
use crate::harness::{number_from_env, row};

const SOME: usize = 250;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_node_has_answered_comes_on_record_by_the_other() {
    let (Some(redis), Some(postgres)) = (Single::start(&[]), Postgres::shared()) else { return };
    let mut pair = Pair::on(&redis.url(), postgres).await;
    let load = Load::start(&pair);
    for round in 0..number_from_env("KILL_ROUNDS", 15).div_ceil(4) {
        load.answers(SOME / 2).await;
        pair.kill(round % 2);
        load.answers(SOME / 2).await;
        pair.start(round % 2);
    }
    load.answers(SOME / 2).await;
    let told = load.stop().await;
    assert_eq!(pair.rebuilt(), 0);
    check(&pair, &told, &[&redis], "kill -9 of nodes in turn", Loss::Nothing).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_go_and_come_under_load_lose_nothing() {
    let (Some(redis), Some(postgres)) = (Single::start(&[]), Postgres::shared()) else { return };
    let mut pair = Pair::on(&redis.url(), postgres).await;
    let load = Load::start(&pair);
    for node in [0, 1] {
        load.answers(SOME / 2).await;
        tokio::task::block_in_place(|| pair.stop(node));
        load.answers(SOME / 2).await;
        tokio::task::block_in_place(|| pair.start(node));
    }
    load.answers(SOME / 2).await;
    let told = load.stop().await;
    assert_eq!((told.refused(), pair.rebuilt()), (0, 0));
    check(&pair, &told, &[&redis], "a node stopped and one added, twice", Loss::Nothing).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_slept_longer_than_a_lease_ends_nothing_twice() {
    let (Some(redis), Some(postgres)) = (Single::start(&[]), Postgres::shared()) else { return };
    let pair = Pair::in_real_time(&redis.url(), postgres, [Vec::new(), Vec::new()]).await;
    let [asleep, awake] = pair.clients().clone();
    let load = Load::of(pair.clients(), "");
    load.answers(SOME).await;
    let ask =
        |user: &str| json!({"user": user, "input_tokens": 50, "max_output_tokens": 50, "lease_seconds": 1});
    let mut holds = Vec::new();
    for user in ["same", "other"] {
        holds.push((user, asleep.check(ask(user)).await.hold_id()));
    }
    pair.process(0).freeze();
    let told_asleep: Vec<_> = holds
        .iter()
        .map(|(_, hold)| {
            let (node, hold) = (asleep.clone(), hold.clone());
            tokio::spawn(
                async move { node.settle(&hold, json!({"input_tokens": 40, "output_tokens": 10})).await },
            )
        })
        .collect();
    for (user, hold) in &holds {
        // The lease ends by itself, seen from the other node.
        loop {
            let state = eventually(|| awake.hold(hold)).await.ok()["hold"]["state"].clone();
            if state == "in_doubt" {
                break;
            }
            assert_eq!(state, "held", "nobody else has ended it");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(row(&awake.quota(user).await.ok(), "concurrency")["in_use"], 0);
        let output = if *user == "same" { 10 } else { 20 };
        let settled = awake.settle(hold, json!({"input_tokens": 40, "output_tokens": output})).await.ok();
        assert_eq!(settled["hold"]["late"], true, "{settled}");
    }
    pair.process(0).thaw();
    let mut answers = futures_util::future::join_all(told_asleep).await.into_iter();
    let mut next = || answers.next().unwrap().unwrap();
    assert_eq!(next().ok()["hold"]["state"], "settled", "the same again");
    assert_eq!(next().status, 409, "it ended in another way");
    for (user, _) in &holds {
        let used = if *user == "same" { 50 } else { 60 };
        for node in pair.clients() {
            assert_eq!(row(&node.quota(user).await.ok(), "life")["used"], used, "{user}");
        }
    }
    load.answers(SOME).await;
    let told = load.stop().await;
    super::truth::print_line("a node frozen for longer than a lease", &told, 0);
}
