//! `apportion replay`: how an operator tries plans on past traffic.
//!
//! A trace of calls runs through the real service, on a test clock and a
//! private temporary store: each call is checked at its time and settled with
//! its true figures when it would have ended. Who made which call is not in a
//! trace, so users are drawn by a seeded rule.

mod draw;
mod outcome;
mod peaks;
mod report;
mod run;
mod trace;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::domain::capacity::parse_active;
use crate::domain::plan::shipped;

use super::input::{PlanNumbers, read_plans};
use super::{Usage, say};

pub use report::{grouped, percent};

/// More users than this are not worth a report.
const USERS_MAX: u32 = 1_000_000;

#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The trace: CSV with the columns TIMESTAMP,ContextTokens,GeneratedTokens
    file: PathBuf,
    /// How many users make the calls
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(USERS_MAX)))]
    users: u32,
    /// Which share of the users has which plan
    #[arg(long, value_name = "PLAN=SHARE,...", value_parser = parse_active,
          default_value = "free=70,standard=25,pro=5")]
    mix: PlanNumbers,
    /// Draws users and plans; the same seed gives the same report
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder of plans to try [default: the shipped plans]
    #[arg(long, value_name = "DIR")]
    plans: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Exit code 1 when the ledger's sums are not the report's.
pub fn run(args: ReplayArgs) -> anyhow::Result<ExitCode> {
    let content = match &args.plans {
        Some(dir) => read_plans(dir)?.content,
        None => shipped(),
    };
    for (index, (plan, _)) in args.mix.iter().enumerate() {
        if !content.sheets.iter().any(|sheet| sheet.id == *plan) {
            return Err(Usage(format!("--mix names {plan}, but there is no such plan")).into());
        }
        if args.mix[..index].iter().any(|(earlier, _)| earlier == plan) {
            return Err(Usage(format!("--mix names {plan} twice")).into());
        }
    }
    let shares = args.mix.iter().fold(0u64, |sum, (_, share)| sum.saturating_add(*share));
    if !(1..=1_000_000_000).contains(&shares) {
        return Err(Usage("the shares of --mix must add up to 1..1000000000".into()).into());
    }
    let calls = trace::read(&args.file)?;
    let file = args.file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let plan = run::Plan { file, calls, users: args.users, mix: args.mix, seed: args.seed, content };
    let report = super::runtime()?.block_on(run::replay(plan))?;
    if args.json {
        say(report.to_json()?)?;
    } else {
        say(report.to_text().trim_end())?;
    }
    Ok(ExitCode::from(if report.ledger.agrees { 0 } else { 1 }))
}
