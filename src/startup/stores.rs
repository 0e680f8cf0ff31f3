//! Which engine decides and which ledger remembers.

use std::sync::Arc;

use anyhow::Context;
use secrecy::ExposeSecret;

use super::DataDir;
use crate::config::{Config, Stores};
use crate::domain::charge::AccountKey;
use crate::domain::time::Millis;
use crate::engine::redis::{self, Redis, RedisChannel, RedisEngine, Severity};
use crate::engine::{Channel, Engine, MemoryEngine};
use crate::ledger::{Ledger, PostgresLedger, SqliteLedger};
use crate::service::Registry;

/// Connections of a node to Postgres: checks do not need any.
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
            Ok(Arc::new(ledger.context("the setting `database_url`")?))
        }
    }
}

/// What decides.
pub struct Deciding {
    pub engine: Arc<dyn Engine>,
    /// Where other nodes decide by it, too.
    pub channel: Option<Arc<dyn Channel>>,
}

/// Opens the engine. One that runs apart leads this node's clock from now on.
pub async fn engine(config: &Config, registry: &Arc<Registry>) -> anyhow::Result<Deciding> {
    let Stores::Shared { redis_url, answers, .. } = &config.stores else {
        let engine = Arc::new(MemoryEngine::new(config.max_idle_accounts));
        return Ok(Deciding { engine, channel: None });
    };
    let servers = Redis::connect(redis_url.expose_secret()).await.context("the setting `redis_url`")?;
    refuse_unfit(&servers).await?;
    let clock = servers.clone();
    registry.wall().follow_other(move || clock.server_ms().map(Millis));
    let installation = registry.installation().await?;
    let channel = Arc::new(RedisChannel::new(servers.clone(), installation));
    let options = redis::Options { answers: *answers, installation, ..redis::Options::default() };
    let engine = Arc::new(RedisEngine::new(servers, options));
    Ok(Deciding { engine, channel: Some(channel) })
}

/// What Redis has of an account.
pub async fn inspect(
    config: &Config,
    registry: &Arc<Registry>,
    key: &AccountKey,
) -> anyhow::Result<serde_json::Value> {
    let Stores::Shared { redis_url, .. } = &config.stores else { return Ok(serde_json::Value::Null) };
    let servers = Redis::connect(redis_url.expose_secret()).await.context("the setting `redis_url`")?;
    let installation = registry.installation().await?;
    let engine = RedisEngine::new(servers, redis::Options { installation, ..redis::Options::default() });
    Ok(engine.inspect(key).await?)
}

/// Says what is odd about the servers, and ends the start where accounts would
/// not be safe with them.
async fn refuse_unfit(redis: &Redis) -> anyhow::Result<()> {
    let mut errors = Vec::new();
    for finding in redis.check().await {
        match finding.severity {
            Severity::Error => errors.push(format!("{}: {}", finding.server, finding.text)),
            Severity::Warning => tracing::warn!(redis = finding.server, "{}", finding.text),
            Severity::Info => tracing::info!(redis = finding.server, "{}", finding.text),
        }
    }
    match errors.is_empty() {
        true => Ok(()),
        false => anyhow::bail!("Redis cannot be used as it is: {}", errors.join("; ")),
    }
}
