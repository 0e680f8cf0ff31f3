//! Two nodes as processes of their own, on stores of the test's choice.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use crate::faults::process::Process;
use crate::harness::lasting::free_port;
use crate::harness::postgres::{Database, Postgres};
use crate::harness::sheets::{PoolSheet, Sheet};
use crate::harness::{Client, cli, stores};

/// Most tokens that the user `tight` may ever use.
pub const TIGHT: i64 = 9_000;
/// Calls of the pool that may run at once.
pub const PLACES: i64 = 5_000;
/// Most output tokens that a bucket has: nothing refills while the clock stands.
pub const CAPACITY: i64 = 90_000_000;

pub struct Pair {
    database: Database,
    /// Of the slot, before anything was done to it.
    epoch: i64,
    places: [TempDir; 2],
    addresses: [String; 2],
    nodes: [Option<Process>; 2],
    /// What nodes said that have ended.
    odd: Vec<String>,
    settings: [Settings; 2],
    clients: [Client; 2],
    /// The tenant's clock stands.
    pub stands: bool,
}

/// Names and values of a process's environment.
pub type Settings = Vec<(&'static str, String)>;

impl Pair {
    /// Two nodes on a Redis and a new database, and a tenant whose clock stands.
    pub async fn on(redis: &str, postgres: &'static Postgres) -> Self {
        Self::durable(redis, postgres, "engine").await
    }

    /// The same with another durability.
    pub async fn durable(redis: &str, postgres: &'static Postgres, durability: &str) -> Self {
        let settings = [(); 2].map(|()| vec![("APPORTION_DURABILITY", durability.to_owned())]);
        let mut pair = Self::begin(redis, postgres, settings, true);
        pair.client(0).put_clock("2026-03-10T12:00:00.000Z").await.ok();
        pair.put_plans().await;
        pair.epoch = pair.rebuilt();
        pair
    }

    /// A tenant in real time, with settings of each node's environment.
    pub async fn in_real_time(redis: &str, postgres: &'static Postgres, settings: [Settings; 2]) -> Self {
        let pair = Self::begin(redis, postgres, settings, false);
        pair.put_plans().await;
        pair
    }

    /// Two nodes and a tenant without plans.
    pub fn begin(redis: &str, postgres: &'static Postgres, settings: [Settings; 2], stands: bool) -> Self {
        let database = postgres.empty();
        let own = [("redis_url", redis.to_owned()), ("database_url", database.url())];
        let places = [(); 2].map(|()| {
            let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a data directory");
            stores::keep(place.path(), &own);
            place
        });
        cli(places[0].path(), &["tenant", "create", "pair", if stands { "--test" } else { "--zone=UTC" }]);
        share_key(places[0].path(), places[1].path());
        let scope = "check quota admin:read admin:write";
        let token =
            cli(places[0].path(), &["token", "mint", "--tenant", "pair", "--scope", scope, "--ttl", "24h"]);
        let addresses = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
        let clients = [0, 1].map(|node: usize| Client::new(&format!("http://{}", addresses[node]), &token));
        let mut pair = Self {
            database,
            epoch: 0,
            places,
            addresses,
            nodes: [None, None],
            odd: Vec::new(),
            settings,
            clients,
            stands,
        };
        pair.start(0);
        pair.start(1);
        pair
    }

    pub fn start(&mut self, node: usize) {
        let settings: Vec<(&str, &str)> =
            self.settings[node].iter().map(|(name, value)| (*name, value.as_str())).collect();
        self.nodes[node] =
            Some(Process::serve_at(self.places[node].path(), &self.addresses[node], &settings));
    }

    pub fn kill(&mut self, node: usize) {
        let process = self.nodes[node].take().expect("it runs");
        self.odd.extend(odd(&process));
        process.kill();
    }

    /// SIGTERM, and its end.
    pub fn stop(&mut self, node: usize) {
        let process = self.nodes[node].take().expect("it runs");
        process.terminate();
        self.odd.extend(odd(&process));
        process.wait();
    }

    /// Nodes that met what must never be say so.
    pub fn nothing_odd_was_said(&self) {
        let odd: Vec<String> =
            self.odd.iter().cloned().chain(self.nodes.iter().flatten().flat_map(odd)).collect();
        assert_eq!(odd, [""; 0]);
    }

    /// The last warnings of each node.
    pub fn last_said(&self, most: usize) -> String {
        let mut said = Vec::new();
        for node in self.nodes.iter().flatten() {
            let mut lines = node.said("\"level\":\"WARN\"");
            lines.extend(node.said("\"level\":\"ERROR\""));
            lines.sort();
            said.extend(lines.split_off(lines.len().saturating_sub(most)));
        }
        said.join("\n")
    }

    /// The memory of both nodes.
    pub fn megabytes(&self) -> u64 {
        self.nodes.iter().flatten().map(Process::megabytes).sum()
    }

    pub fn process(&self, node: usize) -> &Process {
        self.nodes[node].as_ref().expect("it runs")
    }

    /// The directory of a node.
    pub fn place(&self, node: usize) -> &Path {
        self.places[node].path()
    }

    pub fn client(&self, node: usize) -> &Client {
        &self.clients[node]
    }

    pub fn clients(&self) -> &[Client; 2] {
        &self.clients
    }

    pub fn database_url(&self) -> String {
        self.database.url()
    }

    /// Runs a statement; `$T` stands for the tenant's number.
    pub fn psql(&self, text: &str) -> String {
        let number = "(SELECT number FROM tenants WHERE id = 'pair')";
        self.database.psql(&text.replace("$T", number))
    }

    /// How often the slot was built anew.
    pub fn rebuilt(&self) -> i64 {
        let epoch = self.psql("SELECT epoch FROM slots WHERE tenant = $T");
        epoch.parse::<i64>().expect("the slot is on record") - self.epoch
    }

    /// Every limit there is: of the user, the tenant and a pool, of every kind.
    async fn put_plans(&self) {
        let client = self.client(0);
        let sheet = Sheet::new()
            .per("life", json!("lifetime"), 900_000_000)
            .dr(1_000_000)
            .cc(100_000)
            .per("everybody", json!("month"), 900_000_000)
            .but("scope", json!("tenant"));
        let tight = Sheet::named("tight").per("life", json!("lifetime"), TIGHT.cast_unsigned());
        for sheet in [sheet, tight.cc(100_000).dr(1_000_000)] {
            // A bucket is never the same twice in real time.
            let sheet = if self.stands { sheet.ob(CAPACITY.cast_unsigned(), 60) } else { sheet };
            client.put_plan(&sheet.json()).await.ok();
        }
        let pool = PoolSheet::new("m", &["m"]).places(PLACES.cast_unsigned()).requests(1_000_000, 1);
        client.put_pool(&pool.json()).await.ok();
        client.put_settings(json!({"default_plan": "p"})).await.ok();
        client.put_user("tight", json!({"plan": "tight"})).await.ok();
        self.second_knows("tight", &["life", "pool_places"], "everybody").await;
        self.second_knows("u0", &["life", "everybody", "pool_places"], "credits").await;
    }

    /// Changes reach other nodes within half a second.
    pub async fn second_knows(&self, user: &str, limits: &[&str], other: &str) {
        let from = Instant::now();
        let named = |text: &str, limit: &str| text.contains(&format!("\"{limit}\""));
        loop {
            let body = json!({"user": user, "model": "m", "dry_run": true});
            let text = self.client(1).check(body).await.text;
            if limits.iter().all(|limit| named(&text, limit)) && !named(&text, other) {
                return;
            }
            assert!(from.elapsed() < Duration::from_secs(30), "the second node does not know: {text}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Lines of what must never be.
fn odd(process: &Process) -> Vec<String> {
    let words = ["decided otherwise", "cannot be read", "a change is missing", "panicked"];
    words.iter().flat_map(|words| process.said(words)).collect()
}

/// The second node believes the tokens of the first.
fn share_key(from: &Path, to: &Path) {
    std::fs::create_dir(to.join("keys")).expect("a new directory");
    let key = Path::new("keys").join("server.key");
    std::fs::copy(from.join(&key), to.join(&key)).expect("the first command made one");
}
