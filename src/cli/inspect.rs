//! `apportion inspect user ID`: an account as it is kept, for people who look
//! for a fault. It changes nothing.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;

use crate::config::Stores;
use crate::domain::account::Account;
use crate::domain::charge::AccountKey;
use crate::domain::ids::{TenantId, UserId};
use crate::domain::plan::Scope;
use crate::domain::time::Millis;
use crate::engine::redis;
use crate::startup;

use super::{Common, say};

#[derive(Debug, Subcommand)]
pub enum InspectCommand {
    /// A user's account: cells, ended windows, what is gone of grants
    User(UserArgs),
}

#[derive(Debug, Args)]
pub struct UserArgs {
    #[arg(value_name = "ID", value_parser = UserId::parse)]
    user: UserId,
    #[arg(long, value_name = "ID", value_parser = TenantId::parse)]
    tenant: TenantId,
}

pub fn run(common: &Common, command: InspectCommand) -> anyhow::Result<ExitCode> {
    let InspectCommand::User(args) = command;
    let config = common.load(None)?;
    startup::runtime()?.block_on(async {
        let data = startup::open_existing(&config).await?;
        let tenant = data.registry.tenant(&args.tenant).await?;
        let key = AccountKey { tenant: tenant.number, scope: Scope::User, owner: args.user.shared() };
        let stored = data.ledger.account(key.clone(), Millis(i64::MAX)).await?;
        let unfinished = stored.unfinished.iter().map(|hold| &**hold);
        let recorded = Account::unpack(stored.state.as_deref(), key.scope, unfinished);
        let recorded = recorded.map_err(anyhow::Error::msg)?;
        let in_engine = match &config.stores {
            Stores::Embedded(_) => json!(null),
            Stores::Shared { .. } => startup::inspect_engine(&config, &data.registry, &key).await?,
        };
        let on_record = json!({
            "account": stored.state.is_some().then(|| redis::inspect_account(&recorded)),
            "unfinished_holds": stored.unfinished.len(),
        });
        data.ledger.close().await;
        say(format_args!("{:#}", json!({ "on_record": on_record, "in_redis": in_engine })))?;
        Ok(ExitCode::SUCCESS)
    })
}
