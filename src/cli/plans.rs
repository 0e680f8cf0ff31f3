//! `apportion plans check DIR`: reads a folder of plans as the server would.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use super::input::{PlanFaults, read_plans};
use super::say;

#[derive(Debug, Subcommand)]
pub enum PlansCommand {
    /// Check every sheet, pool and the models of a folder
    Check {
        /// The folder: DIR/*.toml, DIR/pools/*.toml, DIR/models.toml
        dir: PathBuf,
    },
}

/// Exit code 1 when a file has a fault, 2 when there is no such folder.
pub fn run(command: PlansCommand) -> anyhow::Result<ExitCode> {
    let PlansCommand::Check { dir } = command;
    let folder = match read_plans(&dir) {
        Ok(folder) => folder,
        Err(error) => {
            let Some(PlanFaults(faults)) = error.downcast_ref() else { return Err(error) };
            for fault in faults {
                say(format_args!("fault: {fault}"))?;
            }
            let found = count(faults.len(), "fault");
            say(format_args!("{found} found; nothing of this folder would be accepted"))?;
            return Ok(ExitCode::from(1));
        }
    };
    for warning in &folder.warnings {
        say(format_args!("warning: {warning}"))?;
    }
    say(format_args!(
        "{}, {}, {}: no fault, {}",
        count(folder.content.sheets.len(), "sheet"),
        count(folder.content.pools.len(), "pool"),
        count(folder.content.models.list().len(), "model"),
        count(folder.warnings.len(), "warning"),
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
