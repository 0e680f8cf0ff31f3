//! `apportion replay`: how an operator tries plans on past traffic.
//!
//! A trace of calls runs through the real service, on a test clock and a
//! private temporary store: each call is checked at its time and settled with
//! its true figures when it would have ended. Who made which call is not in a
//! trace, so users are drawn by a seeded rule.
//!
//! With `--against` the trace runs twice: under the plans of that folder,
//! enforced, as if another limiter decided; then in shadow under the plans to
//! be tried, with the other's decisions beside.

mod differences;
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
use crate::domain::plan::{Shipped, shipped};

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
    /// Folder of plans that decide as another limiter would: the plans to try
    /// run in shadow beside it, and the report tells where the two differ
    #[arg(long, value_name = "DIR")]
    against: Option<PathBuf>,
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
    let against = args.against.as_ref().map(|dir| read_plans(dir)).transpose()?;
    let sets = [Some(&content), against.as_ref().map(|files| &files.content)];
    for (index, (plan, _)) in args.mix.iter().enumerate() {
        let lacks = |content: &&Shipped| !content.sheets.iter().any(|sheet| sheet.id == *plan);
        if sets.iter().flatten().any(lacks) {
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
    let named = |dir: &Option<PathBuf>| match dir {
        Some(dir) => format!("the plans in {}", dir.display()),
        None => "the shipped plans".to_owned(),
    };
    let (plans, against_plans) = (named(&args.plans), named(&args.against));
    let plan = run::Plan { file, calls, users: args.users, mix: args.mix, seed: args.seed, plans, content };
    let runtime = super::runtime()?;
    let (json, text, agrees) = match against {
        None => {
            let report = runtime.block_on(run::replay(plan))?;
            (report.to_json()?, report.to_text(), report.ledger.agrees)
        }
        Some(theirs) => {
            let report = runtime.block_on(run::compare(plan, &theirs.content, &against_plans))?;
            (report.to_json()?, report.to_text(), report.ledger.agrees)
        }
    };
    say(if args.json { json.as_str() } else { text.trim_end() })?;
    Ok(ExitCode::from(if agrees { 0 } else { 1 }))
}
