//! What all nodes of one installation have in common, on record once.

use serde::{Deserialize, Serialize};

use crate::ledger::{LedgerError, Record, RecordKind, Written};
use crate::service::{Registry, ServiceError, random};

/// The first node writes it, the others compare.
#[derive(Debug, Serialize, Deserialize)]
struct Installation {
    /// Hexadecimal; keeps installations apart that share a Redis.
    id: String,
    /// Tells the servers' secrets apart.
    server_key: String,
}

const RECORD: &str = "installation";

impl Registry {
    /// The number of the installation that this ledger belongs to.
    ///
    /// # Errors
    /// `Corrupt` when this node has another secret than the first one: API keys
    /// and pseudonyms would be others here.
    pub async fn installation(&self) -> Result<u64, ServiceError> {
        let on_record = match self.recorded_installation().await? {
            Some(on_record) => on_record,
            None => self.record_installation().await?,
        };
        self.compare_key(&on_record)?;
        u64::from_str_radix(&on_record.id, 16).map_err(|error| ServiceError::Corrupt(error.to_string()))
    }

    /// Whether this node has the secret of the others, if there are any. Changes nothing.
    ///
    /// # Errors
    /// As [`installation`](Self::installation).
    pub async fn has_the_common_key(&self) -> Result<(), ServiceError> {
        let on_record = self.recorded_installation().await?;
        on_record.map_or(Ok(()), |on_record| self.compare_key(&on_record))
    }

    fn compare_key(&self, on_record: &Installation) -> Result<(), ServiceError> {
        if on_record.server_key == self.files.fingerprint() {
            return Ok(());
        }
        Err(ServiceError::Corrupt(
            "this node's server key is not that of the other nodes: give it theirs \
             (the file keys/server.key of the first node's data directory) as APPORTION_SERVER_KEY"
                .into(),
        ))
    }

    async fn recorded_installation(&self) -> Result<Option<Installation>, ServiceError> {
        let versions = self.ledger.versions(None, RecordKind::Settings, RECORD.into()).await?;
        let body = versions.into_iter().next().and_then(|record| record.body);
        let parsed = body.map(|body| serde_json::from_str(&body)).transpose();
        parsed.map_err(|error| ServiceError::Corrupt(format!("{RECORD}: {error}")))
    }

    async fn record_installation(&self) -> Result<Installation, ServiceError> {
        let id = format!("{:016x}", u128::from_le_bytes(random::bytes()) as u64);
        let installation = Installation { id, server_key: self.files.fingerprint() };
        let body = serde_json::to_string(&installation);
        let now = self.wall.now();
        let record = Record {
            kind: RecordKind::Settings,
            id: RECORD.into(),
            version: 1,
            body: Some(body.map_err(|error| ServiceError::Corrupt(error.to_string()))?),
            effective_at: now,
            written: Written { at: now, by: "first start".into(), reason: None },
            revision: 0,
        };
        match self.writer.put_record(None, record).await {
            Ok(()) => Ok(installation),
            // Another node started at the same moment.
            Err(LedgerError::Conflict) => self
                .recorded_installation()
                .await?
                .ok_or_else(|| ServiceError::Corrupt(format!("{RECORD}: neither there nor to be made"))),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::service::tenancy::bench::Bench;

    #[tokio::test]
    async fn all_nodes_know_one_number() {
        let bench = Bench::new().await;
        let first = bench.registry.installation().await.unwrap();
        assert_eq!(bench.other().await.installation().await.unwrap(), first);
        assert_ne!(Bench::new().await.registry.installation().await.unwrap(), first);
    }

    #[tokio::test]
    async fn a_node_with_another_secret_is_told_what_to_do() {
        let bench = Bench::new().await;
        bench.registry.installation().await.unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let stranger = Bench::open(&bench.ledger, &elsewhere, true).await;
        stranger.has_the_common_key().await.unwrap_err();
        bench.registry.has_the_common_key().await.unwrap();
        let error = stranger.installation().await.unwrap_err();
        assert!(error.to_string().contains("APPORTION_SERVER_KEY"), "{error}");
    }
}
