//! Two nodes at the same instant: exactly the limit is admitted, never one more or fewer.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use super::truth::eventually;
use crate::harness::compare::assert_has;
use crate::harness::lasting::found_or_skipped;
use crate::harness::postgres::Postgres;
use crate::harness::sheets::{PoolSheet, Sheet};
use crate::harness::stores::Stores;
use crate::harness::{Client, Reply, Server, Tenant, number_from_env};

const CALLERS: usize = 2000;
/// Requests in flight at once; each needs a connection of its own.
const IN_FLIGHT: usize = 256;

/// A tenant of two nodes, and the way to the second one.
async fn on(stores: Stores, sheet: Sheet) -> Option<(Tenant, Client)> {
    static REDIS: OnceLock<[Server; 2]> = OnceLock::new();
    static CLUSTER: OnceLock<[Server; 2]> = OnceLock::new();
    if !found_or_skipped("redis-server") || Postgres::shared().is_none() {
        return None;
    }
    let place = if stores == Stores::Cluster { &CLUSTER } else { &REDIS };
    let [first, second] = tokio::task::block_in_place(|| {
        place.get_or_init(|| {
            crate::harness::binary();
            let first = Server::start_on(&stores.settings(), &[]);
            let second = first.beside(&[]);
            [first, second]
        })
    });
    let t = Tenant::on(first, "UTC", "2026-03-10T12:00:00.000Z").await;
    t.plan(&sheet).await;
    let second = Client::new(&second.url, &t.client.token);
    let plan = async || second.quota("nobody").await.ok()["plan"]["id"] == sheet.id();
    until("the plan is known to the second node", plan).await;
    Some((t, second))
}

/// Changes of plans reach other nodes within half a second.
async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let from = Instant::now();
    while !holds().await {
        assert!(from.elapsed() < Duration::from_secs(30), "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Whoever is told on a crowded machine that there is no store asks again, at the other node.
async fn all_at_once(nodes: [&Client; 2], round: usize, bodies: Vec<Value>) -> Vec<Reply> {
    let calls = bodies.into_iter().enumerate().map(async |(place, mut body)| {
        body["request_id"] = json!(format!("{round}-{place}"));
        let mut node = place;
        loop {
            let reply = eventually(|| {
                node += 1;
                nodes[node % 2].check(body.clone())
            })
            .await;
            // The node gave up reading: this machine was too busy to send.
            if reply.status != 408 {
                return reply;
            }
        }
    });
    stream::iter(calls).buffer_unordered(IN_FLIGHT).collect().await
}

fn all_have<'r>(refused: impl Iterator<Item = &'r Reply>, code: &str) {
    let others = refused.filter(|reply| reply.code() != code);
    assert_eq!(others.map(|reply| (reply.status, reply.text.as_str())).collect::<Vec<_>>(), []);
}

fn rounds() -> usize {
    number_from_env("PARALLEL_ROUNDS", 1)
}

async fn one_account(stores: Stores) {
    let Some((t, second)) = on(stores, Sheet::new().mt(10_000)).await else { return };
    for round in 0..rounds() {
        let user = format!("u{round}");
        let body = json!({"user": user, "input_tokens": 500, "max_output_tokens": 1500});
        let replies = all_at_once([&t.client, &second], round, vec![body; CALLERS]).await;
        let (admitted, refused): (Vec<Reply>, Vec<Reply>) =
            replies.into_iter().partition(|reply| reply.status == 200);
        assert_eq!(admitted.len(), 5);
        all_have(refused.iter(), "monthly_quota_exhausted");
        assert_has(&t.left(&user, "tokens_per_month").await, &json!({"held": 10_000, "remaining": 0}));
        for reply in &admitted {
            second.settle(&reply.hold_id(), json!({"input_tokens": 50, "output_tokens": 50})).await.ok();
        }
        assert_has(&t.left(&user, "tokens_per_month").await, &json!({"held": 0, "used": 500}));
        println!("| {stores:?}: 2000 checks at two nodes on one account with room for 5 | 5 admitted |");
    }
}

async fn one_pool(stores: Stores) {
    let Some((t, second)) = on(stores, Sheet::new().dr(10_000).cc(1000)).await else { return };
    for round in 0..rounds() {
        let model = format!("m{round}");
        t.pool(&PoolSheet::new(&model, &[&model]).places(333).requests(336, 1)).await;
        let body = |n: usize| json!({"user": format!("u{}", n % 50), "model": model});
        let dry = json!({"user": "nobody", "model": model, "dry_run": true});
        until("the pool is known to the second node", async || {
            second.check(dry.clone()).await.text.contains("pool_places")
        })
        .await;
        let replies = all_at_once([&t.client, &second], round, (0..CALLERS).map(body).collect()).await;
        let admitted: Vec<String> = replies.iter().filter(|r| r.status == 200).map(Reply::hold_id).collect();
        assert_eq!(admitted.len(), 333);
        all_have(replies.iter().filter(|reply| reply.status != 200), "upstream_capacity_exceeded");
        for (place, hold) in admitted.iter().enumerate() {
            [&t.client, &second][place % 2].release(hold).await.ok();
        }
        let row = second.check(json!({"user": "last", "model": model})).await.row("pool_requests");
        assert_eq!(row["remaining"], 335, "everything came back");
        println!("| {stores:?}: 2000 checks at two nodes on a pool with 333 places | 333 admitted |");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_one_account_at_two_nodes_are_admitted_up_to_its_limit() {
    one_account(Stores::Redis).await;
    one_account(Stores::Cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_one_pool_at_two_nodes_are_admitted_up_to_its_limit() {
    one_pool(Stores::Redis).await;
    one_pool(Stores::Cluster).await;
}
