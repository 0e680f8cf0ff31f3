//! How much a check costs over HTTP: the real server against a bare JSON
//! handler of the same framework, in the same run. See `benches/README.md`.

mod client;
mod echo;
mod open;
mod options;
mod overload;
mod process;
mod report;
mod requests;
mod rounds;
#[path = "../sheet.rs"]
mod sheet;
mod startup;
mod stores;
mod targets;

use std::process::ExitCode;

use clap::Parser;

use crate::options::Options;
use crate::rounds::Sample;
use crate::stores::Stores;
use crate::targets::{Target, Tokens};

/// As in the server's binary, so that the bare handler has no handicap.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Length of a check's reply when no real server is there to be asked.
const USUAL_REPLY_BYTES: usize = 2000;

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> anyhow::Result<ExitCode> {
    if let Some(port) = options.echo_server {
        echo::serve(port, options.worker_count(), options.reply_bytes)?;
        return Ok(ExitCode::SUCCESS);
    }
    if options.startup {
        startup::run(options)?;
        return Ok(ExitCode::SUCCESS);
    }
    if options.overload {
        overload::run(options)?;
        return Ok(ExitCode::SUCCESS);
    }
    if options.pin {
        process::move_to_core(1)?;
    }
    let mut targets = Vec::new();
    for durability in options.servers.iter().filter(|name| *name != "echo") {
        targets.push(Target::start(options, durability)?);
    }
    let reply_bytes = targets.first().map_or(Ok(USUAL_REPLY_BYTES), Target::reply_bytes)?;
    if options.servers.iter().any(|name| name == "echo") {
        let tokens = targets.first().map_or_else(stand_in_tokens, |target| target.tokens.clone());
        targets.insert(0, Target::start_echo(options, &tokens, reply_bytes)?);
    }
    for target in &targets {
        let stores = target.stores.as_ref().map(Stores::told).unwrap_or_default();
        eprintln!("{}: process {} on {}{stores}", target.name, target.process.pid(), target.address());
    }
    let samples = rounds::run(options, &targets, tell)?;
    let rows = report::rows(&samples);
    if options.json {
        println!("{:#}", report::json(options, reply_bytes, &samples, &rows));
    } else {
        println!("A check's reply has {reply_bytes} bytes. Medians of the rounds that count:\n");
        report::print(&rows);
    }
    let counts = rows.iter().all(|row| row.rounds > 0);
    Ok(if counts { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Of the length of a real one.
fn stand_in_tokens() -> Tokens {
    Tokens { open: "x".repeat(383), ..Tokens::default() }
}

fn tell(sample: &Sample) {
    eprintln!(
        "round {} {:>6} {:<12} {:>8.0}/s  CPU {:>6.2} us{}  p50 {:>6.0} us  p99 {:>7.0} us  RSS {:>5.0} MB",
        sample.round + 1,
        sample.server,
        sample.operation,
        sample.per_second,
        sample.cpu_us,
        match (sample.redis_us, sample.postgres_us) {
            (Some(redis), Some(postgres)) => format!(" Redis {redis:>5.2} Postgres {postgres:>5.2}"),
            _ => String::new(),
        },
        sample.p50_us,
        sample.p99_us,
        sample.rss as f64 / 1e6,
    );
    if let Some(wrong) = &sample.one_wrong {
        eprintln!("  does not count: {} answers such as {wrong}", sample.wrong);
    }
}
