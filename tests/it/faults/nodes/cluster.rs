//! A Redis Cluster that changes under load.

use super::truth::check;
use super::{Load, Loss, Pair};
use crate::harness::postgres::Postgres;
use crate::harness::redis::{Cluster, Node};

const SOME: usize = 250;

/// The slot with the keys of the tenant, who is the only one.
fn slot(cluster: &Cluster) -> u16 {
    let keys = cluster.nodes.iter().flat_map(|node| node.run::<Vec<String>>(&["KEYS", "ap:*:meta"]));
    let key = keys.last().expect("the tenant has a slot");
    cluster.nodes[0].run(&["CLUSTER", "KEYSLOT", &key])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_to_another_primary_and_back_takes_everything_with_it() {
    let (Some(cluster), Some(postgres)) = (Cluster::start(), Postgres::shared()) else { return };
    let pair = Pair::on(&cluster.url(), postgres).await;
    let slot = slot(&cluster);
    let load = Load::start(&pair);
    for _ in 0..2 {
        load.answers(SOME).await;
        let from = cluster.owner_of(slot);
        let to = cluster.nodes.iter().find(|node| node.port != from.port).expect("there are three");
        tokio::task::block_in_place(|| {
            cluster.begin_move(slot, to);
            cluster.move_keys(slot, to);
            cluster.end_move(slot, to);
        });
    }
    load.answers(SOME).await;
    let told = load.stop().await;
    assert_eq!(pair.rebuilt(), 0);
    let nodes: Vec<&Node> = cluster.nodes.iter().collect();
    check(&pair, &told, &nodes, "a Cluster's slot moved away and back", Loss::Nothing).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clusters_primary_that_is_killed_is_replaced_by_its_replica() {
    let (Some(cluster), Some(postgres)) = (Cluster::start(), Postgres::shared()) else { return };
    let pair = Pair::on(&cluster.url(), postgres).await;
    let primary = cluster.owner_of(slot(&cluster));
    let replica = tokio::task::block_in_place(|| cluster.add_replica_of(primary));
    let load = Load::start(&pair);
    load.answers(SOME).await;
    tokio::task::block_in_place(|| {
        primary.kill();
        cluster.wait_until_promoted(&replica);
    });
    load.answers(SOME).await;
    let told = load.stop().await;
    let others = cluster.nodes.iter().filter(|node| node.port != primary.port);
    let nodes: Vec<&Node> = others.chain([&replica]).collect();
    check(&pair, &told, &nodes, "kill -9 of a Cluster's primary", Loss::NotOnRecord).await;
}
