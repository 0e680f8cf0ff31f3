//! `apportion migrate`: brings the database to this version's schema.

use std::process::ExitCode;

use crate::startup;

use super::{Common, say};

pub fn run(common: &Common) -> anyhow::Result<ExitCode> {
    let config = common.load(None)?;
    super::runtime()?.block_on(async {
        let ledger = startup::open_ledger(&config).await?;
        ledger.close().await;
        say(format_args!("the database in {} has this version's schema", config.data.display()))?;
        Ok(ExitCode::SUCCESS)
    })
}
