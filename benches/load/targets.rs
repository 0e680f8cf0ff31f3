//! The servers that are compared, set up and running.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::{Way, drive};
use crate::options::Options;
use crate::process::{self, Process, free_port, on_core};
use crate::requests::{Checks, HoldText, Picks, SettleBatches, check_for};
use crate::sheet;
use crate::stores::Stores;

/// A running server.
pub struct Target {
    pub name: String,
    pub process: Process,
    pub tokens: Tokens,
    pub stores: Option<Stores>,
    /// `None`: the bare handler, which knows no holds.
    data: Option<TempDir>,
}

/// Tokens of a backend that may do everything within its tenant.
#[derive(Clone, Default)]
pub struct Tokens {
    /// Of the tenant whose limits never refuse.
    pub open: String,
    /// Of the tenant whose daily requests are used up for everybody, and
    /// whose users have all called before.
    pub closed: String,
    /// The same with users whom nobody has seen.
    pub strange: String,
}

const SCOPE: &str = "check quota admin:read admin:write";

impl Target {
    pub fn is_echo(&self) -> bool {
        self.data.is_none()
    }

    pub fn address(&self) -> SocketAddr {
        self.process.address
    }

    /// The real server on a data directory of its own. `name` is its
    /// durability, with `:` and the path of its binary if that is another.
    pub fn start(options: &Options, name: &str) -> anyhow::Result<Self> {
        let (durability, binary) = name.split_once(':').unwrap_or((name, ""));
        let mut options = options.clone();
        if !binary.is_empty() {
            options.binary = binary.into();
        }
        let (options, data) = (&options, scratch(&options)?);
        let stores = matches!(durability, "engine" | "ledger")
            .then(|| Stores::start(data.path(), &options.redis_settings))
            .transpose()?;
        let environment = stores.iter().flat_map(Stores::settings).collect::<Vec<_>>();
        let tenant = |id: &str| create_tenant(options, data.path(), id, &environment);
        let tokens = Tokens { open: tenant("open")?, closed: tenant("closed")?, strange: tenant("strange")? };
        let process = serve(options, data.path(), durability, &environment)?;
        let target = Self { name: name.to_owned(), process, tokens, stores, data: Some(data) };
        let open = sheet::document(options.limits);
        let mut closed = open.clone();
        closed["limits"].as_array_mut().context("a list")?.push(
            json!({"name": "closed", "kind": "window", "meter": "requests", "period": "day", "limit": 0}),
        );
        if options.pool {
            put_pool(target.address(), &target.tokens.open)?;
        }
        put_sheet(target.address(), &target.tokens.open, open.clone())?;
        // The first check puts a user on record, the second reads them from there.
        for _ in 0..2 {
            target.meet_everybody(options, &target.tokens.open)?;
        }
        target.leave_open(options)?;
        if options.wants("refused") {
            put_sheet(target.address(), &target.tokens.closed, open)?;
            target.meet_everybody(options, &target.tokens.closed)?;
        }
        // Whom it met before would keep what they have until their windows turn.
        closed["applies"] = json!("now");
        for token in [&target.tokens.closed, &target.tokens.strange] {
            put_sheet(target.address(), token, closed.clone())?;
        }
        Ok(target)
    }

    /// The bare JSON handler; its reply to a check has `reply_bytes`. It is
    /// sent the same requests, with the same token.
    pub fn start_echo(options: &Options, tokens: &Tokens, reply_bytes: usize) -> anyhow::Result<Self> {
        let port = free_port()?;
        let mut program = on_core(&std::env::current_exe()?, core(options));
        program.args(["--echo-server", &port.to_string()]);
        program.args(["--reply-bytes", &reply_bytes.to_string()]);
        program.args(["--workers", &options.worker_count().to_string()]);
        let log = options.scratch.join(format!("echo-{port}.log"));
        let process = Process::start(program, SocketAddr::from(([127, 0, 0, 1], port)), "/", &log)?;
        // It has said that it runs; what it says later is of no interest.
        let _ = std::fs::remove_file(log);
        Ok(Self { name: "echo".into(), process, tokens: tokens.clone(), stores: None, data: None })
    }

    /// Length of the reply to a check, in bytes.
    pub fn reply_bytes(&self) -> anyhow::Result<usize> {
        let check = String::from_utf8(check_for("u_00000000"))?;
        let token = Some(self.tokens.open.as_str());
        let (status, reply) = process::request(self.address(), "POST", "/v1/check", token, &check)?;
        if status != 200 {
            bail!("a check was answered {status} {reply}");
        }
        Ok(reply.len())
    }

    /// One settled check for each user, so that all are in memory.
    fn meet_everybody(&self, options: &Options, token: &str) -> anyhow::Result<()> {
        let way = Way { rate: 0, seconds: None, keeps_holds: true, ..self.way(options) };
        let picks = Picks::spread(options.users, options.users);
        let tally = drive(way, Checks::some(token, picks, options.users))?;
        if let Some(wrong) = tally.one_wrong {
            bail!("the first checks were answered {wrong}");
        }
        self.settle_all(options, token, tally.holds)
    }

    /// Opens calls that nobody settles.
    fn leave_open(&self, options: &Options) -> anyhow::Result<()> {
        let way = Way { rate: 0, seconds: None, ..self.way(options) };
        for _ in 0..options.open {
            let picks = Picks::spread(options.users, options.users);
            let tally = drive(way, Checks::some(&self.tokens.open, picks, options.users))?;
            if let Some(wrong) = tally.one_wrong {
                bail!("a check was answered {wrong}");
            }
        }
        Ok(())
    }

    /// Settles what a run has left open, uncounted.
    pub fn settle_all(&self, options: &Options, token: &str, holds: Vec<HoldText>) -> anyhow::Result<()> {
        let way = Way { connections: 4, rate: 0, seconds: None, ..self.way(options) };
        let tally = drive(way, SettleBatches::new(token, holds))?;
        match tally.one_wrong {
            Some(wrong) => bail!("a settle was answered {wrong}"),
            None => Ok(()),
        }
    }

    pub fn way(&self, options: &Options) -> Way {
        Way {
            address: self.address(),
            connections: options.connections,
            seconds: Some(options.seconds),
            rate: options.rate,
            status: 200,
            keeps_holds: false,
        }
    }
}

/// The core that servers have to themselves.
fn core(options: &Options) -> Option<usize> {
    options.pin.then_some(0)
}

/// A directory that goes when the run is over.
pub fn scratch(options: &Options) -> anyhow::Result<TempDir> {
    std::fs::create_dir_all(&options.scratch)?;
    Ok(tempfile::Builder::new().prefix("load-").tempdir_in(&options.scratch)?)
}

/// Starts the server on a data directory and waits until it is ready.
pub fn serve(
    options: &Options,
    data: &Path,
    durability: &str,
    environment: &[(&'static str, String)],
) -> anyhow::Result<Process> {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let mut program = on_core(&options.binary, core(options));
    program.args(["serve", "--listen", &address.to_string(), "--data"]).arg(data);
    program.env("APPORTION_DURABILITY", durability);
    program.env("APPORTION_WORKERS", options.worker_count().to_string());
    program.env("APPORTION_LOG", "warn");
    program.envs(environment.iter().map(|(name, value)| (name, value)));
    Process::start(program, address, "/readyz", &log_of(data))
}

fn log_of(data: &Path) -> PathBuf {
    data.join("server.log")
}

/// Makes a tenant and gives a token for it.
pub fn create_tenant(
    options: &Options,
    data: &Path,
    id: &str,
    environment: &[(&'static str, String)],
) -> anyhow::Result<String> {
    cli(options, data, environment, &["tenant", "create", id])?;
    cli(options, data, environment, &["token", "mint", "--tenant", id, "--scope", SCOPE, "--ttl", "7d"])
}

/// Puts a sheet and makes it everybody's.
pub fn put_sheet(address: SocketAddr, token: &str, sheet: Value) -> anyhow::Result<()> {
    put(address, token, "/v1/admin/plans/bench", sheet)?;
    put(address, token, "/v1/admin/settings", json!({"default_plan": "bench"}))
}

/// A pool of all models, which never refuses.
fn put_pool(address: SocketAddr, token: &str) -> anyhow::Result<()> {
    let pool = json!({
        "id": "default", "models": ["*"], "enforced": true, "limits": [
            {"name": "pool_requests", "kind": "bucket", "meter": "requests",
             "capacity": 1_000_000_000, "refill_per_minute": 1_000_000_000},
            {"name": "pool_tokens", "kind": "bucket", "meter": "total_tokens",
             "capacity": 100_000_000_000_u64, "refill_per_minute": 100_000_000_000_u64},
        ],
    });
    put(address, token, "/v1/admin/pools/default", pool)
}

pub fn put(address: SocketAddr, token: &str, path: &str, mut body: Value) -> anyhow::Result<()> {
    body["reason"] = json!("measurement");
    let (status, reply) = process::request(address, "PUT", path, Some(token), &body.to_string())?;
    if status != 200 {
        bail!("PUT {path} was answered {status} {reply}");
    }
    Ok(())
}

fn cli(
    options: &Options,
    data: &Path,
    environment: &[(&'static str, String)],
    arguments: &[&str],
) -> anyhow::Result<String> {
    let mut program = Command::new(&options.binary);
    program
        .args(arguments)
        .arg("--data")
        .arg(data)
        .envs(environment.iter().map(|(name, value)| (name, value)));
    let done = program.output();
    let done = done.with_context(|| format!("cannot run {}", options.binary.display()))?;
    if !done.status.success() {
        bail!("{arguments:?} failed: {}", String::from_utf8_lossy(&done.stderr));
    }
    Ok(String::from_utf8(done.stdout)?.trim().to_owned())
}
