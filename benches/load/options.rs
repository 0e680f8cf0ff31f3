//! The command line of the load measurement.

use std::path::PathBuf;

use clap::Parser;

/// Measures the server over HTTP, against a bare JSON handler in the same run.
///
/// cargo bench --bench load -- [flags]
#[derive(Debug, Clone, Parser)]
#[command(name = "load", disable_version_flag = true)]
pub struct Options {
    /// Length of each operation's run in each round, in seconds
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    #[arg(long, default_value_t = 10_000)]
    pub users: usize,
    /// Exponent of the popularity of users; 0: all the same
    #[arg(long, default_value_t = 0.0)]
    pub zipf: f64,
    #[arg(long, default_value_t = 64)]
    pub connections: usize,
    /// Requests a second at most (0: as fast as they are answered)
    #[arg(long, default_value_t = 0)]
    pub rate: u64,
    /// Serve on the first core and ask from the second, each alone there
    #[arg(long)]
    pub pin: bool,
    /// Threads that serve requests [default: as many as cores; 1 with --pin]
    #[arg(long)]
    pub workers: Option<usize>,
    /// Which servers: echo, commit, os, and on a Redis and Postgres of their own engine, ledger;
    /// os:PATH is that of another binary
    #[arg(long, value_delimiter = ',', default_value = "echo,commit,os")]
    pub servers: Vec<String>,
    /// Which operations: cycle, check, settle, check_id, batch, settle_batch, refused, strange, quota
    #[arg(long, value_delimiter = ',', default_value = "cycle,check,settle,check_id,batch,settle_batch")]
    pub operations: Vec<String>,
    /// Also measure checks that a limit refuses
    #[arg(long)]
    pub refused: bool,
    /// Also measure GET /v1/users/{user}/quota
    #[arg(long)]
    pub quota: bool,
    /// Limits of the plan
    #[arg(long, default_value_t = 8)]
    pub limits: usize,
    /// Calls of each user that stay open all the time
    #[arg(long, default_value_t = 0)]
    pub open: usize,
    /// All calls are counted on one pool as well, which never refuses
    #[arg(long)]
    pub pool: bool,
    /// Settings of Redis, as on its command line
    #[arg(long, default_value = "--appendonly yes", allow_hyphen_values = true, value_delimiter = ' ')]
    pub redis_settings: Vec<String>,
    /// Print one JSON document with every figure
    #[arg(long)]
    pub json: bool,
    /// Where the servers keep their data for the time of the run
    #[arg(long, default_value = env!("CARGO_TARGET_TMPDIR"))]
    pub scratch: PathBuf,
    /// The server's binary [default: the one built with this bench]
    #[arg(long, default_value = env!("CARGO_BIN_EXE_apportion"))]
    pub binary: PathBuf,
    /// Measure a start with --users known users instead
    #[arg(long)]
    pub startup: bool,
    /// Offer each server (but echo) more than it can do instead, and flood one tenant
    #[arg(long)]
    pub overload: bool,
    /// How much more, in capacities
    #[arg(long, default_value_t = 2.0)]
    pub times: f64,
    /// For so long, in seconds
    #[arg(long, default_value_t = 20.0)]
    pub overload_seconds: f64,
    /// Requests that are on their way at once at most while too much is offered
    #[arg(long, default_value_t = 2000)]
    pub overload_connections: usize,
    /// Be the bare JSON handler on this port
    #[arg(long, hide = true)]
    pub echo_server: Option<u16>,
    /// Bytes of its reply
    #[arg(long, hide = true, default_value_t = 900)]
    pub reply_bytes: usize,
    /// `cargo bench` says so
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    pub fn worker_count(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(2, |count| count.get());
        self.workers.unwrap_or_else(|| if self.pin { 1 } else { cores() })
    }

    /// The operations asked for, in the order in which they run.
    pub fn wants(&self, operation: &str) -> bool {
        self.operations.iter().any(|asked| asked == operation)
            || (matches!(operation, "refused" | "strange") && self.refused)
            || (operation == "quota" && self.quota)
    }
}
