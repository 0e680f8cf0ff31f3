//! Which engine decides and which ledger remembers.

use std::sync::Arc;

use anyhow::Context;
use secrecy::ExposeSecret;

use super::DataDir;
use crate::config::{Config, Stores};
use crate::engine::{Engine, MemoryEngine};
use crate::ledger::{Ledger, PostgresLedger, SqliteLedger};
use crate::service::Registry;

/// Connections of a node to Postgres: what one node writes at a time is few.
const CONNECTIONS: u32 = 16;

/// Opens the ledger, bringing its schema up to date.
pub async fn ledger(dir: &DataDir, stores: &Stores) -> anyhow::Result<Arc<dyn Ledger>> {
    match stores {
        Stores::Embedded(durability) => {
            let path = dir.database();
            let ledger = SqliteLedger::open(&path, *durability).await;
            Ok(Arc::new(ledger.with_context(|| format!("cannot open the database {}", path.display()))?))
        }
        Stores::Shared { database_url, .. } => {
            let ledger = PostgresLedger::open(database_url.expose_secret(), CONNECTIONS).await;
            Ok(Arc::new(ledger.context("cannot open the database of `database_url`")?))
        }
    }
}

/// The engine. One that runs apart also leads this node's clock from now on.
pub async fn engine(config: &Config, registry: &Registry) -> anyhow::Result<Arc<dyn Engine>> {
    match &config.stores {
        Stores::Embedded(_) => Ok(Arc::new(MemoryEngine::new(config.max_idle_accounts))),
        Stores::Shared { .. } => {
            let _installation = registry.installation().await?;
            anyhow::bail!("not yet")
        }
    }
}
