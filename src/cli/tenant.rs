//! `apportion tenant create ID`: makes a tenant, also beside a running server.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Subcommand;

use crate::domain::ids::TenantId;
use crate::domain::time::Zone;
use crate::startup;

use super::{Common, say};

#[derive(Debug, Subcommand)]
pub enum TenantCommand {
    /// Create a tenant with the shipped plans
    Create {
        /// 1-63 of a-z, 0-9 and '-'
        #[arg(value_parser = TenantId::parse)]
        id: TenantId,
        /// Give it a clock of its own, which can be set (for tests)
        #[arg(long)]
        test: bool,
        /// Where its days begin, such as Asia/Tokyo [default: UTC]
        #[arg(long, value_parser = parse_zone)]
        zone: Option<Arc<Zone>>,
    },
}

fn parse_zone(text: &str) -> Result<Arc<Zone>, String> {
    Zone::parse(text)
}

pub fn run(common: &Common, command: TenantCommand) -> anyhow::Result<ExitCode> {
    let TenantCommand::Create { id, test, zone } = command;
    let config = common.load(None)?;
    super::runtime()?.block_on(async {
        let data = startup::open(&config).await?;
        let created = data.registry.create_tenant(&id, test, zone, "cli").await;
        data.ledger.close().await;
        created.with_context(|| format!("cannot create the tenant {id}"))?;
        say(format_args!("tenant {id} created"))?;
        Ok(ExitCode::SUCCESS)
    })
}
