//! The command line: one file for each subcommand.
//!
//! Exit codes: 0 done; 1 the answer is no, or it failed; 2 the call itself is
//! wrong (an unknown flag, a bad setting, a folder that is not there).

mod backup;
mod capacity;
mod doctor;
mod export;
mod input;
mod inspect;
mod key;
mod migrate;
mod openapi;
mod plans;
mod ready;
mod replay;
mod serve;
mod tenant;
mod token;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::{Config, ConfigError, Flags};

/// Per-user plans in front of every model call: check, hold, settle.
///
/// Without a subcommand: serve.
#[derive(Debug, Parser)]
#[command(name = "apportion", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    common: Common,
}

/// Flags that every subcommand takes.
#[derive(Debug, Args)]
struct Common {
    /// Directory of the database and the keys [default: ./data]
    #[arg(long, global = true, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Settings file (TOML)
    #[arg(long, global = true, value_name = "FILE", env = "APPORTION_CONFIG")]
    config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server
    Serve(serve::ServeArgs),
    /// Create tenants
    #[command(subcommand)]
    Tenant(tenant::TenantCommand),
    /// Look after the keys that may grant tokens
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Make tokens
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Show an account as it is kept
    #[command(subcommand)]
    Inspect(inspect::InspectCommand),
    /// Bring the database to this version's schema
    Migrate,
    /// Copy the ledger and the keys, also from under a running server
    Backup(backup::BackupArgs),
    /// Look after plan sheets
    #[command(subcommand)]
    Plans(plans::PlansCommand),
    /// Compare what plans may use with what the upstream allows
    Capacity(capacity::CapacityArgs),
    /// Try plan sheets on a trace of past calls
    Replay(replay::ReplayArgs),
    /// Write everything that is kept of a tenant to a file, one JSON object a line
    Export(export::ExportArgs),
    /// Print the OpenAPI document
    Openapi,
    /// Ask the running server whether it can decide (for health checks)
    Ready,
    /// Say in plain words what is wrong with this installation
    Doctor,
}

/// The call itself is wrong: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

impl Common {
    fn load(&self, listen: Option<String>) -> Result<Config, ConfigError> {
        Config::load(self.config.as_deref(), &Flags { listen, data: self.data.clone() })
    }
}

/// Runs the command line `arguments` (the program's name first).
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(with_default_command(arguments)) {
        Ok(cli) => cli,
        Err(error) => {
            // clap prints help and versions to standard output with code 0,
            // faults to standard error with code 2. A closed pipe is no news.
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    match dispatch(cli) {
        Ok(code) => code,
        Err(error) => {
            complain(&error);
            let usage = error.is::<Usage>() || error.is::<ConfigError>();
            ExitCode::from(if usage { 2 } else { 1 })
        }
    }
}

fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    let common = cli.common;
    match cli.command {
        Command::Serve(args) => serve::run(&common, args),
        Command::Tenant(command) => tenant::run(&common, command),
        Command::Key(command) => key::run(&common, command),
        Command::Token(command) => token::run(&common, command),
        Command::Inspect(command) => inspect::run(&common, command),
        Command::Migrate => migrate::run(&common),
        Command::Backup(args) => backup::run(&common, args),
        Command::Plans(command) => plans::run(command),
        Command::Capacity(args) => capacity::run(&common, args),
        Command::Replay(args) => replay::run(args),
        Command::Export(args) => export::run(&common, args),
        Command::Openapi => openapi::run(),
        Command::Ready => ready::run(&common),
        Command::Doctor => doctor::run(&common),
    }
}

/// `apportion` and `apportion --listen ...` mean `apportion serve ...`.
fn with_default_command(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<_> = arguments.into_iter().collect();
    let mut rest = arguments.iter().skip(1).map(|argument| argument.to_string_lossy());
    let serves = loop {
        match rest.next().as_deref() {
            None => break true,
            Some("-h" | "--help" | "-V" | "--version") => break false,
            Some("--data" | "--config" | "--listen") => _ = rest.next(),
            Some(text) if text.starts_with('-') => {}
            Some(_) => break false,
        }
    };
    if serves {
        arguments.insert(1.min(arguments.len()), "serve".into());
    }
    arguments
}

/// Prints an error and what brought it about, outermost first.
fn complain(error: &anyhow::Error) {
    eprintln!("error: {error}");
    for cause in error.chain().skip(1) {
        eprintln!("  because: {cause}");
    }
}

/// Writes a line to standard output. That nobody reads it any more (`| head`)
/// is no failure.
fn say(line: impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// A runtime for one command that needs no more than one thread.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(arguments: &[&str]) -> Vec<OsString> {
        arguments.iter().map(Into::into).collect()
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn no_subcommand_means_serve() {
        assert_eq!(with_default_command(words(&["apportion"])), words(&["apportion", "serve"]));
        let given = words(&["apportion", "--data", "x"]);
        assert_eq!(with_default_command(given), words(&["apportion", "serve", "--data", "x"]));
        for kept in [
            vec!["apportion", "doctor"],
            vec!["apportion", "--version"],
            vec!["apportion", "--data", "x", "doctor"],
        ] {
            assert_eq!(with_default_command(words(&kept)), words(&kept));
        }
    }

    #[test]
    fn flags_may_stand_before_or_after_the_subcommand() {
        for line in [["apportion", "doctor", "--data", "d"], ["apportion", "--data", "d", "doctor"]] {
            let cli = Cli::try_parse_from(line).unwrap();
            assert_eq!(cli.common.data, Some("d".into()));
        }
    }
}
