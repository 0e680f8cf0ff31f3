//! What streams of quotas cost: memory, the time until a change is told, and
//! what the others notice of it. See `benches/README.md`.

#[allow(dead_code, reason = "shared with the load measurement")]
#[path = "../load/client.rs"]
mod client;
mod listeners;
#[allow(dead_code, reason = "shared with the load measurement")]
#[path = "../load/process.rs"]
mod process;
#[allow(dead_code, reason = "shared with the load measurement")]
#[path = "../load/requests.rs"]
mod requests;
#[allow(dead_code, reason = "shared with the other measurements")]
#[path = "../sheet.rs"]
mod sheet;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser;
use serde_json::{Value, json};

use crate::client::{Tally, Way, drive};
use crate::listeners::{Listeners, Times};
use crate::process::{Process, free_port, request};
use crate::requests::{Checks, Cycles, HoldText, Picks, SettleBatches, Work};
use crate::sheet::SHEET;

/// Measures streams of quotas on a server of its own.
///
/// cargo bench --bench streams -- [flags]
#[derive(Debug, Clone, Parser)]
#[command(name = "streams", disable_version_flag = true)]
struct Options {
    /// Streams, each of a user of its own; several numbers are measured one after another
    #[arg(long, value_delimiter = ',', default_value = "1000")]
    streams: Vec<usize>,
    /// Of those who listen, so many call as well
    #[arg(long, default_value_t = 1000)]
    callers: usize,
    /// Length of each load, in seconds
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Users of the load, who do not listen
    #[arg(long, default_value_t = 10_000)]
    users: usize,
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// "commit" or "os"
    #[arg(long, default_value = "commit")]
    durability: String,
    /// Requests a second of the load whose latency is shown
    #[arg(long, default_value_t = 2000)]
    rate: u64,
    /// Where the server keeps its data for the time of the run
    #[arg(long, default_value = env!("CARGO_TARGET_TMPDIR"))]
    scratch: PathBuf,
    /// The server's binary [default: the one built with this bench]
    #[arg(long, default_value = env!("CARGO_BIN_EXE_apportion"))]
    binary: PathBuf,
    /// `cargo bench` says so
    #[arg(long, hide = true)]
    bench: bool,
}

/// Streams that are opened and closed before memory is measured.
const WARM_UP: usize = 64;

fn main() -> ExitCode {
    let options = Options::parse();
    for streams in &options.streams {
        if let Err(error) = run(&options, *streams) {
            eprintln!("error: {error:#}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// What a load met.
#[derive(Default)]
struct Load {
    per_second: Vec<f64>,
    cpu_us: Vec<f64>,
    /// At a fixed rate.
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
}

fn run(options: &Options, streams: usize) -> anyhow::Result<()> {
    let scratch = tempfile::Builder::new().prefix("streams-").tempdir_in(&options.scratch)?;
    let bench = Bench::start(options, scratch.path(), streams)?;
    let callers = options.callers.min(streams);
    // What is allocated once is there before anything is measured.
    drop(bench.listen(WARM_UP)?);
    bench.wait_until_nobody_listens()?;
    let rss_before = bench.rss()?;
    let opening = Instant::now();
    let mut listeners = bench.listen(streams)?;
    let opened = opening.elapsed();
    let rss_with = bench.rss()?;
    let by_client = (rss_with as f64 - rss_before as f64) / streams as f64;
    println!("{streams} streams, {}:", options.durability);
    println!("  opened, each with its first quota, in {:.2} s", opened.as_secs_f64());
    println!("  memory: {:.1} kB a stream ({:.1} MB before)", by_client / 1e3, rss_before as f64 / 1e6);
    let times = listeners.call(&bench.token, callers, options.seconds * options.rounds as f64)?;
    tell("  a change is told", times);
    // A hang-up right after an event is noticed late.
    std::thread::sleep(Duration::from_millis(200));
    drop(listeners);
    let noticed = bench.wait_until_nobody_listens()?;
    println!("  all hung up: the last one was noticed after {:.1} s", noticed.as_secs_f64());
    bench.meet_everybody(streams)?;

    let (mut none, mut silent, mut busy) = (Load::default(), Load::default(), Load::default());
    let mut told = Times::default();
    for _ in 0..options.rounds {
        bench.load(&mut none, &AtomicU64::new(0))?;
        let mut listeners = bench.listen(streams)?;
        bench.load(&mut silent, &listeners.answers)?;
        let calling = listeners.begin_calling(&bench.token, callers)?;
        bench.load(&mut busy, &listeners.answers)?;
        told.add(listeners.end_calling(calling)?);
        drop(listeners);
        bench.wait_until_nobody_listens()?;
    }
    tell("  and beside the load", told);
    for (name, load) in [("nobody listens", none), ("they listen", silent), ("they listen and call", busy)] {
        println!(
            "  {name}: {:.0} requests/s, CPU {:.1} us a request; at {}/s p50 {:.0} us, p99 {:.0} us",
            median(load.per_second),
            median(load.cpu_us),
            options.rate,
            median(load.p50_us),
            median(load.p99_us),
        );
    }
    Ok(())
}

fn tell(what: &str, mut times: Times) {
    println!(
        "{what} (after the settle was sent): p50 {:.2} ms, p99 {:.2} ms; its answer: p50 {:.2} ms, p99 {:.2} ms; \
         {} settles, {:.0}/s",
        times.told(0.5),
        times.told(0.99),
        times.answered(0.5),
        times.answered(0.99),
        times.count(),
        times.per_second(),
    );
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A server with one tenant, whose limits never refuse.
struct Bench<'o> {
    options: &'o Options,
    process: Process,
    /// Of a backend.
    token: String,
    /// Of a key that signs tokens of users.
    kid: String,
    secret: String,
}

impl<'o> Bench<'o> {
    fn start(options: &'o Options, data: &Path, streams: usize) -> anyhow::Result<Self> {
        cli(options, data, &["tenant", "create", "bench"])?;
        let scope = "check admin:read admin:write";
        let minted = ["token", "mint", "--tenant", "bench", "--scope", scope, "--ttl", "7d"];
        let token = cli(options, data, &minted)?;
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let mut program = Command::new(&options.binary);
        program.args(["serve", "--listen", &address.to_string(), "--data"]).arg(data);
        program.env("APPORTION_DURABILITY", &options.durability).env("APPORTION_LOG", "warn");
        program.env("APPORTION_MAX_STREAMS", (2 * streams).to_string());
        let process = Process::start(program, address, "/readyz", &data.join("server.log"))?;
        let mut bench =
            Self { options, process, token, kid: String::new(), secret: "0123456789abcdef".repeat(4) };
        let mut sheet: Value = serde_json::from_str(SHEET)?;
        sheet["reason"] = json!("measurement");
        bench.admin("PUT", "/v1/admin/plans/bench", sheet)?;
        bench.admin(
            "PUT",
            "/v1/admin/settings",
            json!({"default_plan": "bench", "reason": "measurement"}),
        )?;
        let key = json!({"kind": "jwt", "algorithm": "HS256", "public_key": bench.secret, "scopes": ["me"]});
        let key = bench.admin("POST", "/v1/admin/keys", key)?;
        bench.kid = key["kid"].as_str().context("a key has an id")?.to_owned();
        Ok(bench)
    }

    fn admin(&self, method: &str, path: &str, body: Value) -> anyhow::Result<Value> {
        let (status, reply) =
            request(self.process.address, method, path, Some(&self.token), &body.to_string())?;
        if !(200..300).contains(&status) {
            bail!("{method} {path} was answered {status} {reply}");
        }
        Ok(serde_json::from_str(&reply)?)
    }

    fn listen(&self, streams: usize) -> anyhow::Result<Listeners> {
        Listeners::open(self.process.address, &self.secret, &self.kid, streams)
    }

    /// Waits until the server has noticed that everybody hung up; gives how
    /// long that took.
    fn wait_until_nobody_listens(&self) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        loop {
            let (_, metrics) = request(self.process.address, "GET", "/metrics", None, "")?;
            if metrics.lines().any(|line| line == "apportion_quota_streams 0") {
                return Ok(begun.elapsed());
            }
            if begun.elapsed() > Duration::from_secs(120) {
                bail!("streams stay open after two minutes");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn rss(&self) -> anyhow::Result<u64> {
        self.process.wait_until_idle()?;
        self.process.rss()
    }

    /// Everybody calls once, so that all accounts are in memory.
    fn meet_everybody(&self, streams: usize) -> anyhow::Result<()> {
        let users = self.options.users.max(streams);
        let way = Way { keeps_holds: true, seconds: None, ..self.way() };
        let tally = drive(way, Checks::some(&self.token, Picks::spread(users, users), users))?;
        self.settle_all(check_all(tally)?.holds)
    }

    fn settle_all(&self, holds: Vec<HoldText>) -> anyhow::Result<()> {
        let way = Way { connections: 4, seconds: None, ..self.way() };
        check_all(drive(way, SettleBatches::new(&self.token, holds))?).map(drop)
    }

    /// Checks and settles in turn: at full speed for the rate, and at a fixed
    /// rate for the latency. Others may call beside it; `answers` counts what
    /// they were answered.
    fn load(&self, load: &mut Load, answers: &AtomicU64) -> anyhow::Result<()> {
        let (before, answered) = (self.process.cpu()?, answers.load(Relaxed));
        let tally = self.cycle(0)?;
        let items = tally.items + answers.load(Relaxed) - answered;
        load.cpu_us.push(self.process.cpu()?.since(before).total() / items as f64);
        load.per_second.push(tally.items as f64 / tally.seconds);
        let mut tally = self.cycle(self.options.rate)?;
        load.p50_us.push(tally.quantile(0.5));
        load.p99_us.push(tally.quantile(0.99));
        Ok(())
    }

    fn cycle(&self, rate: u64) -> anyhow::Result<Tally> {
        let checks = Checks::new(&self.token, Picks::new(self.options.users, 0.0, 7), None);
        let work = Arc::new(Mutex::new(Cycles::new(checks, &self.token, 4 * self.options.connections)));
        let way = Way { keeps_holds: true, rate, ..self.way() };
        let tally = check_all(drive(way, Shared(Arc::clone(&work)))?)?;
        let rest = work.lock().unwrap_or_else(PoisonError::into_inner).rest();
        self.settle_all(rest)?;
        Ok(tally)
    }

    fn way(&self) -> Way {
        Way {
            address: self.process.address,
            connections: self.options.connections,
            seconds: Some(self.options.seconds),
            rate: 0,
            status: 200,
            keeps_holds: false,
        }
    }
}

/// Work whose rest is wanted afterwards.
struct Shared(Arc<Mutex<Cycles>>);

impl Work for Shared {
    fn next(&mut self, request: &mut Vec<u8>) -> Option<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).next(request)
    }

    fn made(&mut self, hold: HoldText) -> Option<HoldText> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).made(hold)
    }
}

fn check_all(tally: Tally) -> anyhow::Result<Tally> {
    match tally.one_wrong {
        Some(wrong) => bail!("{} answers such as {wrong}", tally.wrong),
        None => Ok(tally),
    }
}

fn cli(options: &Options, data: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let done = Command::new(&options.binary).args(arguments).arg("--data").arg(data).output();
    let done = done.with_context(|| format!("cannot run {}", options.binary.display()))?;
    if !done.status.success() {
        bail!("{arguments:?} failed: {}", String::from_utf8_lossy(&done.stderr));
    }
    Ok(String::from_utf8(done.stdout)?.trim().to_owned())
}
