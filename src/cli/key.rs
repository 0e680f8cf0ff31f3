//! `apportion key list` and `key remove`: the keys that may grant tokens, also
//! beside a running server. Operators' keys have no other door.

use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Subcommand};

use crate::domain::ids::TenantId;
use crate::service::{Registry, ServiceError, Tenant};
use crate::startup;

use super::{Common, say};

#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// List the keys in force, one a line: id, kind, scopes, when it was made
    List {
        #[command(flatten)]
        owner: Owner,
    },
    /// Remove a key; its tokens end within a second on a running server
    Remove {
        /// The key's id (`kid`)
        kid: String,
        #[command(flatten)]
        owner: Owner,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Owner {
    /// Whose keys: a tenant's
    #[arg(long, value_name = "ID", value_parser = TenantId::parse)]
    tenant: Option<TenantId>,
    /// Whose keys: the operators'
    #[arg(long)]
    operator: bool,
}

pub fn run(common: &Common, command: KeyCommand) -> anyhow::Result<ExitCode> {
    let config = common.load(None)?;
    super::runtime()?.block_on(async {
        let data = startup::open_existing(&config).await?;
        let done = match command {
            KeyCommand::List { owner } => list(&data.registry, &owner).await,
            KeyCommand::Remove { kid, owner } => remove(&data.registry, &owner, &kid).await,
        };
        data.ledger.close().await;
        done
    })
}

async fn list(registry: &Registry, owner: &Owner) -> anyhow::Result<ExitCode> {
    let keys = match owner.find(registry).await? {
        Some(tenant) => registry.list_keys(&tenant),
        None => registry.list_operator_keys(),
    };
    for key in keys {
        let shown = key.to_json();
        let kind = shown["algorithm"].as_str().unwrap_or("api");
        let scopes = key.scopes.names().join(" ");
        say(format_args!("{}\t{kind}\t{scopes}\t{}", key.kid, key.created_at))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn remove(registry: &Registry, owner: &Owner, kid: &str) -> anyhow::Result<ExitCode> {
    let tenant = owner.find(registry).await?;
    registry.delete_key(tenant.as_ref(), kid, "cli").await?;
    say(format_args!("key {kid} removed"))?;
    Ok(ExitCode::SUCCESS)
}

impl Owner {
    async fn find(&self, registry: &Registry) -> Result<Option<Arc<Tenant>>, ServiceError> {
        match &self.tenant {
            Some(id) => registry.tenant(id).await.map(Some),
            None => Ok(None),
        }
    }
}
