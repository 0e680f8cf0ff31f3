//! What is done to two nodes and their stores while calls go on.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::faults::nodes::Pair;
use crate::harness::postgres::Postgres;
use crate::harness::proxy::Proxy;
use crate::harness::redis::Node;

/// What users with small limits have: requests at once, requests a minute, tokens in all.
pub const CAPACITY: i64 = 4;
pub const REFILL: i64 = 60;
pub const TOKENS: i64 = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    NodeKilled,
    NodeStopped,
    NodeFrozen,
    BothNodesKilled,
    RedisKilled,
    RedisFrozen,
    RedisFlushed,
    RedisFull,
    ScriptsForgotten,
    RepliesLost,
    ConnectionsCut,
    AccountsGone,
    PostgresKilled,
    PostgresAway,
}

pub const ALL: [Harm; 14] = [
    Harm::RedisFlushed,
    Harm::NodeKilled,
    Harm::RedisKilled,
    Harm::PostgresAway,
    Harm::ScriptsForgotten,
    Harm::NodeFrozen,
    Harm::RepliesLost,
    Harm::ConnectionsCut,
    Harm::RedisFull,
    Harm::AccountsGone,
    Harm::NodeStopped,
    Harm::PostgresKilled,
    Harm::RedisFrozen,
    Harm::BothNodesKilled,
];

/// How long the service may take to serve again on a crowded machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// Those that `SOAK_HARMS` names (`PostgresAway,NodeKilled`), or all.
pub fn chosen() -> Vec<Harm> {
    let named = std::env::var("SOAK_HARMS").unwrap_or_default();
    let is_named = |harm: &Harm| named.split(',').any(|name| name == format!("{harm:?}"));
    let chosen: Vec<Harm> = ALL.into_iter().filter(is_named).collect();
    if chosen.is_empty() { ALL.to_vec() } else { chosen }
}

/// Two nodes and what they stand on.
pub struct Stage {
    pub pair: Pair,
    pub redis: Node,
    pub proxy: Proxy,
    pub postgres: &'static Postgres,
    /// How long what takes long takes.
    pub long: Duration,
    /// When Redis was emptied, or killed.
    pub forgot: Vec<Instant>,
}

impl Stage {
    /// Does it and takes it back again.
    pub async fn suffer(&mut self, harm: Harm, place: usize) {
        let (long, short) = (self.long, self.long / 6);
        match harm {
            Harm::NodeKilled => self.without_nodes(&[place], short).await,
            Harm::BothNodesKilled => self.without_nodes(&[0, 1], short / 4).await,
            Harm::NodeStopped => {
                tokio::task::block_in_place(|| self.pair.stop(place));
                tokio::time::sleep(short).await;
                tokio::task::block_in_place(|| self.pair.start(place));
            }
            Harm::NodeFrozen => {
                self.pair.process(place).freeze();
                tokio::time::sleep(long / 2).await;
                self.pair.process(place).thaw();
            }
            Harm::RedisKilled => {
                self.redis.kill();
                // What it had not written to its file yet, for the disk was slow.
                self.forgot.push(Instant::now());
                tokio::time::sleep(short / 2).await;
                tokio::task::block_in_place(|| self.redis.restart());
            }
            Harm::RedisFrozen => {
                self.redis.freeze();
                tokio::time::sleep(short / 2).await;
                self.redis.thaw();
            }
            Harm::RedisFlushed => {
                self.redis.flush_all();
                self.forgot.push(Instant::now());
            }
            Harm::RedisFull => {
                self.redis.run::<()>(&["CONFIG", "SET", "maxmemory", "1mb"]);
                tokio::time::sleep(short).await;
                self.redis.run::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
            }
            Harm::ScriptsForgotten => self.redis.script_flush(),
            Harm::RepliesLost => {
                self.proxy.lose_replies(5, b"EVALSHA");
                tokio::time::sleep(short).await;
                self.proxy.lose_replies(0, b"");
            }
            Harm::ConnectionsCut => self.proxy.cut(),
            Harm::AccountsGone => {
                let text = "for _, key in ipairs(redis.call('KEYS', '*:a:*')) do redis.call('DEL', key) end";
                self.redis.run::<()>(&["EVAL", text, "0"]);
            }
            Harm::PostgresKilled => {
                self.postgres.kill();
                tokio::task::block_in_place(|| self.postgres.restart());
            }
            Harm::PostgresAway => {
                self.postgres.kill();
                tokio::time::sleep(long).await;
                tokio::task::block_in_place(|| self.postgres.restart());
            }
        }
    }

    async fn without_nodes(&mut self, nodes: &[usize], time: Duration) {
        nodes.iter().for_each(|node| self.pair.kill(*node));
        tokio::time::sleep(time).await;
        for node in nodes {
            tokio::task::block_in_place(|| self.pair.start(*node));
        }
    }

    /// Until both nodes decide again and everything is on record; how long that took.
    pub async fn recover(&self) -> Duration {
        let from = Instant::now();
        let body = json!({"user": "big0", "dry_run": true});
        for node in self.pair.clients() {
            while !matches!(node.check(body.clone()).await.status, 200 | 429) {
                let said = || self.pair.last_said(40);
                assert!(from.elapsed() < PATIENCE, "{} does not decide:\n{}", node.url, said());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        while self.waiting() > 50 {
            let said = || self.pair.last_said(40);
            assert!(from.elapsed() < PATIENCE, "{} changes wait:\n{}", self.waiting(), said());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        from.elapsed()
    }

    /// Changes that are not on record.
    pub fn waiting(&self) -> u64 {
        let streams: Vec<String> = self.redis.run(&["KEYS", "ap:*:e"]);
        streams.iter().map(|stream| self.redis.run::<u64>(&["XLEN", stream])).sum()
    }
}
