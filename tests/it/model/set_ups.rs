//! Every set-up answers every command with the very same bytes.

use std::sync::OnceLock;

use super::generate::Script;
use super::rng::Rng;
use super::stage::Stage;
use super::world::World;
use crate::harness::lasting::found_or_skipped;
use crate::harness::postgres::Postgres;
use crate::harness::stores::Stores;
use crate::harness::{Server, number_from_env};

/// Of a seed, at most: it ends early where the contract leaves something open.
const COMMANDS: usize = 400;
const SEEDS: usize = 6;
/// Apart from those of the long runs.
const FIRST_SEED: usize = 100_001;

const SET_UPS: [Stores; 3] = [Stores::Embedded, Stores::Redis, Stores::Cluster];

/// One server of each set-up; `None`: they cannot be had here.
fn servers() -> Option<&'static [Server; 3]> {
    static SERVERS: OnceLock<Option<[Server; 3]>> = OnceLock::new();
    let start = || {
        let there = found_or_skipped("redis-server") && Postgres::shared().is_some();
        there.then(|| SET_UPS.map(|stores| Server::start_on(&stores.settings(), &[])))
    };
    SERVERS.get_or_init(start).as_ref()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_set_ups_reply_to_random_commands_byte_for_byte_alike() {
    let Some(servers) = tokio::task::spawn_blocking(servers).await.unwrap() else { return };
    let first = number_from_env("SET_UPS_SEED", FIRST_SEED);
    let seeds = (first..first + number_from_env("SET_UPS_SEEDS", SEEDS)).map(|seed| seed as u64);
    let runs: Vec<_> = seeds.map(|seed| tokio::spawn(play(servers, seed))).collect();
    for run in runs {
        run.await.unwrap();
    }
}

async fn play(servers: &'static [Server; 3], seed: u64) {
    let mut rng = Rng::new(seed);
    let stage = Stage::draw(&mut rng);
    let (one, two, three) = tokio::join!(
        World::set_on(&stage, &servers[0]),
        World::set_on(&stage, &servers[1]),
        World::set_on(&stage, &servers[2])
    );
    let mut worlds = [one, two, three];
    let mut script = Script::new(rng, stage);
    for step in 0..COMMANDS {
        let command = script.next(&worlds[0].oracle);
        let [one, two, three] = &mut worlds;
        let results: [_; 3] = tokio::join!(one.run(&command), two.run(&command), three.run(&command)).into();
        if worlds.iter().any(|world| world.oracle.is_blurred()) {
            return;
        }
        for ((result, world), set_up) in results.into_iter().zip(&worlds).zip(SET_UPS) {
            let so_far = || world.history[world.history.len().saturating_sub(25)..].join("\n");
            let at = format!("SET_UPS_SEED={seed}, step {step}, {set_up:?}");
            result.unwrap_or_else(|difference| panic!("{at}:\n{}\n{difference}", so_far()));
            assert_eq!(world.replies, worlds[0].replies, "{at}:\n{}", so_far());
        }
    }
}
