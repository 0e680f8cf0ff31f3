//! The servers: started, looked at, and what happens to them.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::{Way, drive};
use crate::process::{Process, free_port, get, request};
use crate::requests::{Checks, Picks, SettleBatches};
use crate::sheet::SHEET;
use crate::stores::Stores;
use crate::{Event, Options};

const TENANT: &str = "endure";
const SCOPE: &str = "check quota admin:read admin:write";
/// A last millisecond of a day, and the first of the next.
const BEFORE_MIDNIGHT: &str = "2026-11-30T23:59:59.999Z";
const MIDNIGHT: &str = "2026-12-01T00:00:00.000Z";

pub struct Nodes {
    options: Options,
    pub token: String,
    nodes: Vec<Node>,
    data: TempDir,
    environment: Vec<(&'static str, String)>,
    stores: Option<Stores>,
    /// How much of the event has happened.
    steps: usize,
}

struct Node {
    address: SocketAddr,
    process: Option<Process>,
}

/// How the servers are now.
pub struct Look {
    rss: u64,
    files: u64,
    wal: u64,
    redis: Option<(u64, u64)>,
    lag_ms: f64,
}

impl fmt::Display for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = |bytes: u64| bytes as f64 / 1e6;
        write!(f, "resident {:.0} MB", mb(self.rss))?;
        match self.redis {
            Some((keys, bytes)) => {
                write!(f, ", Redis {keys} keys {:.0} MB, lag {:.0} ms", mb(bytes), self.lag_ms)
            }
            None => write!(f, ", file {:.0} MB, its log {:.0} MB", mb(self.files), mb(self.wal)),
        }
    }
}

impl Nodes {
    pub fn start(options: &Options) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&options.scratch)?;
        let data = tempfile::Builder::new().prefix("endure-").tempdir_in(&options.scratch)?;
        let is_apart = matches!(options.server.as_str(), "engine" | "ledger");
        let stores = is_apart.then(|| Stores::start(data.path(), &options.redis_settings)).transpose()?;
        if stores.is_none() && options.nodes > 1 {
            bail!("more than one node need --server engine or ledger");
        }
        let mut environment: Vec<_> = stores.iter().flat_map(Stores::settings).collect();
        let first = data.path().join("node-0");
        let kind: &[&str] = if options.event == Event::Turn { &["--test"] } else { &[] };
        let making = [&["tenant", "create", TENANT], kind].concat();
        cli(&options.binary, &first, &environment, &making)?;
        let minting = ["token", "mint", "--tenant", TENANT, "--scope", SCOPE, "--ttl", "7d"];
        let token = cli(&options.binary, &first, &environment, &minting)?;
        let secret = std::fs::read_to_string(first.join("keys/server.key")).unwrap_or_default();
        if options.nodes > 1 && !secret.is_empty() {
            environment.push(("APPORTION_SERVER_KEY", secret.trim().to_owned()));
        }
        let mut own =
            Self { options: options.clone(), token, nodes: Vec::new(), data, environment, stores, steps: 0 };
        for _ in 0..options.nodes.max(1) {
            let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
            own.nodes.push(Node { address, process: None });
            own.start_node(own.nodes.len() - 1, &options.binary)?;
        }
        own.put("/v1/admin/plans/bench", serde_json::from_str(SHEET)?)?;
        own.put("/v1/admin/settings", json!({"default_plan": "bench"}))?;
        if options.event == Event::Turn {
            own.put("/v1/admin/clock", json!({"now": BEFORE_MIDNIGHT}))?;
        }
        Ok(own)
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.address).collect()
    }

    fn start_node(&mut self, index: usize, binary: &Path) -> anyhow::Result<()> {
        let data = self.data.path().join(format!("node-{index}"));
        std::fs::create_dir_all(&data)?;
        let address = self.nodes[index].address;
        let mut program = Command::new(binary);
        program.args(["serve", "--listen", &address.to_string(), "--data"]).arg(&data);
        program.env("APPORTION_DURABILITY", &self.options.server).env("APPORTION_LOG", "warn");
        program.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let log = data.join("server.log");
        self.nodes[index].process = Some(Process::start(program, address, "/readyz", &log)?);
        Ok(())
    }

    /// Two settled checks for each user, so that all are known and in memory.
    pub fn meet_everybody(&self, users: usize) -> anyhow::Result<()> {
        let way = Way {
            address: self.nodes[0].address,
            connections: 32,
            seconds: None,
            rate: 0,
            status: 200,
            keeps_holds: true,
        };
        for _ in 0..2 {
            let checks = Checks::some(&self.token, Picks::spread(users, users), users);
            let tally = drive(way, checks)?;
            let settles = SettleBatches::new(&self.token, tally.holds);
            let settled = drive(Way { connections: 4, keeps_holds: false, ..way }, settles)?;
            if let Some(wrong) = tally.one_wrong.or(settled.one_wrong) {
                bail!("a first call was answered {wrong}");
            }
        }
        Ok(())
    }

    /// Lets happen what is due.
    pub fn see_to(&mut self, event: Event, elapsed: Duration, seconds: u64) -> anyhow::Result<()> {
        let third = Duration::from_secs(seconds) / 3;
        let is_due = elapsed >= third * (self.steps as u32 + 1);
        let last = self.nodes.len() - 1;
        match (event, self.steps) {
            (Event::Kill, 0) if is_due => {
                println!("{:>5} s: a node is killed", elapsed.as_secs());
                self.nodes[last].process = None;
            }
            (Event::Kill, 1) if is_due => {
                println!("{:>5} s: it is started again", elapsed.as_secs());
                self.start_node(last, &self.options.binary.clone())?;
            }
            (Event::Roll, step) if is_due && step <= last && step < 2 => self.roll(step, elapsed)?,
            (Event::Turn, 0) if is_due => {
                println!("{:>5} s: midnight", elapsed.as_secs());
                self.put("/v1/admin/clock", json!({"now": MIDNIGHT}))?;
            }
            _ => return Ok(()),
        }
        self.steps += 1;
        Ok(())
    }

    /// One node ends as it is told to, and a new one takes its place.
    fn roll(&mut self, index: usize, elapsed: Duration) -> anyhow::Result<()> {
        println!("{:>5} s: node {index} is told to stop", elapsed.as_secs());
        if let Some(mut process) = self.nodes[index].process.take() {
            process.stop()?;
        }
        let next = self.options.next_binary.as_ref().unwrap_or(&self.options.binary).clone();
        self.start_node(index, &next)
    }

    pub fn look(&self) -> anyhow::Result<Look> {
        let alive = || self.nodes.iter().filter_map(|node| node.process.as_ref());
        let rss = alive().filter_map(|process| process.rss().ok()).sum();
        let size = |name: &str| {
            let path = self.data.path().join("node-0").join(name);
            path.metadata().map_or(0, |metadata| metadata.len())
        };
        let metrics = alive().filter_map(|process| get(process.address, "/metrics", None).ok());
        let lags = metrics.filter_map(|(_, text)| {
            let line = text.lines().find(|line| line.starts_with("apportion_ledger_lag_seconds "))?;
            line.split(' ').nth(1)?.parse::<f64>().ok()
        });
        let lag_ms = lags.fold(0.0, f64::max) * 1e3;
        let redis = self.stores.as_ref().map(Stores::redis_size).transpose()?;
        Ok(Look { rss, files: size("apportion.db"), wal: size("apportion.db-wal"), redis, lag_ms })
    }

    fn put(&self, path: &str, mut body: Value) -> anyhow::Result<()> {
        if path != "/v1/admin/clock" {
            body["reason"] = json!("measurement");
        }
        let address = self.nodes[0].address;
        let (status, reply) = request(address, "PUT", path, Some(&self.token), &body.to_string())?;
        if status != 200 {
            bail!("PUT {path} was answered {status} {reply}");
        }
        Ok(())
    }
}

fn cli(
    binary: &Path,
    data: &Path,
    environment: &[(&'static str, String)],
    arguments: &[&str],
) -> anyhow::Result<String> {
    let mut program = Command::new(binary);
    program.args(arguments).arg("--data").arg(data);
    program.envs(environment.iter().map(|(name, value)| (name, value)));
    let done = program.output().with_context(|| format!("cannot run {}", binary.display()))?;
    if !done.status.success() {
        bail!("{arguments:?} failed: {}", String::from_utf8_lossy(&done.stderr));
    }
    Ok(String::from_utf8(done.stdout)?.trim().to_owned())
}
