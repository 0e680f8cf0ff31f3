//! What checks and settles take at a fixed rate over a long time, and while things
//! happen to the servers: a node is killed, a new one rolls in, all windows turn at once.
//! See `benches/README.md`.

mod calls;
#[allow(dead_code, reason = "shared with the load measurement")]
#[path = "../load/client.rs"]
mod client;
mod nodes;
#[allow(dead_code, reason = "shared with the load measurement")]
#[path = "../load/process.rs"]
mod process;
mod report;
#[allow(dead_code, reason = "shared with the load measurement")]
#[path = "../load/requests.rs"]
mod requests;
#[allow(dead_code, reason = "shared with the other measurements")]
#[path = "../sheet.rs"]
mod sheet;
#[allow(dead_code, reason = "shared with the load measurement")]
#[path = "../load/stores.rs"]
mod stores;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};

use crate::calls::{Calls, Outcome};
use crate::nodes::Nodes;
use crate::report::Report;

/// As in the server's binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Checks and settles at a fixed rate, whatever happens to the servers.
///
/// cargo bench --bench endure -- [flags]
#[derive(Debug, Clone, Parser)]
#[command(name = "endure", disable_version_flag = true)]
pub struct Options {
    /// Calls begun each second: a check, and the settle of its hold
    #[arg(long, default_value_t = 1000)]
    rate: u64,
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// A line is told each so many seconds
    #[arg(long, default_value_t = 10)]
    every: u64,
    /// From the answer to a check to the settle of its hold, in milliseconds
    #[arg(long, default_value_t = 200)]
    call_ms: u64,
    #[arg(long, default_value_t = 10_000)]
    users: usize,
    /// commit or os (one node); engine or ledger (any number on one Redis and Postgres)
    #[arg(long, default_value = "commit")]
    server: String,
    #[arg(long, default_value_t = 1)]
    nodes: usize,
    /// What happens in the middle
    #[arg(long, value_enum, default_value = "nothing")]
    event: Event,
    /// Settings of Redis, as on its command line
    #[arg(long, default_value = "--appendonly yes", allow_hyphen_values = true, value_delimiter = ' ')]
    redis_settings: Vec<String>,
    /// Where the servers keep their data for the time of the run
    #[arg(long, default_value = env!("CARGO_TARGET_TMPDIR"))]
    scratch: PathBuf,
    /// The server's binary [default: the one built with this bench]
    #[arg(long, default_value = env!("CARGO_BIN_EXE_apportion"))]
    binary: PathBuf,
    /// The binary that rolls in [default: the same]
    #[arg(long)]
    next_binary: Option<PathBuf>,
    /// `cargo bench` says so
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Event {
    Nothing,
    /// The last node is killed after a third of the time and started again after two.
    Kill,
    /// One node after the other is told to stop, and a new one takes its place.
    Roll,
    /// The clock of the tenant goes over midnight: all windows of a day turn at once.
    Turn,
}

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> anyhow::Result<()> {
    let mut nodes = Nodes::start(&options)?;
    nodes.meet_everybody(options.users)?;
    let (tell, told) = std::sync::mpsc::channel::<Outcome>();
    let calls = Arc::new(Calls::new(&nodes, &options));
    let asking = {
        let (calls, rate, length) = (Arc::clone(&calls), options.rate, Duration::from_secs(options.seconds));
        std::thread::spawn(move || calls.run(rate, length, tell))
    };
    let mut report = Report::new(Instant::now(), options.every);
    while !asking.is_finished() {
        std::thread::sleep(Duration::from_millis(100));
        nodes.see_to(options.event, report.elapsed(), options.seconds)?;
        report.take(told.try_iter());
        if report.is_due() {
            report.line(&nodes.look()?);
        }
    }
    asking.join().map_err(|_| anyhow::anyhow!("the asking thread panicked"))??;
    report.take(told.try_iter());
    report.end(&nodes.look()?);
    Ok(())
}
