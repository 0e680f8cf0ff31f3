//! A registry to try things on.

use std::sync::Arc;

use super::fake_ledger::FakeLedger;
use crate::domain::ids::TenantId;

/// A registry over a fresh ledger, with its folder of keys.
pub struct Bench {
    pub ledger: Arc<FakeLedger>,
    pub registry: Arc<crate::service::Registry>,
    dir: tempfile::TempDir,
}

impl Bench {
    pub async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let ledger = FakeLedger::open(&Arc::default());
        let registry = Self::open(&ledger, &dir, true).await;
        Self { ledger, registry, dir }
    }

    /// Another process on the same ledger and keys.
    pub async fn other(&self) -> Arc<crate::service::Registry> {
        Self::open(&FakeLedger::open(&self.ledger.store), &self.dir, true).await
    }

    /// A process that others can reach.
    pub async fn exposed(&self) -> Arc<crate::service::Registry> {
        Self::open(&FakeLedger::open(&self.ledger.store), &self.dir, false).await
    }

    pub async fn open(
        ledger: &Arc<FakeLedger>,
        dir: &tempfile::TempDir,
        accept_generated_keys: bool,
    ) -> Arc<crate::service::Registry> {
        let options = crate::service::RegistryOptions {
            server_key: None,
            keys_dir: dir.path().join("keys"),
            accept_generated_keys,
            allow_private_targets: true,
        };
        let wall = Arc::new(super::clock::WallClock::new());
        crate::service::Registry::open(ledger.clone(), wall, options).await.expect("an empty ledger opens")
    }

    /// A tenant with the shipped plans.
    pub async fn tenant(&self, id: &str) -> Arc<crate::service::Tenant> {
        self.make(id, false).await
    }

    /// A tenant with a clock of its own.
    pub async fn test_tenant(&self, id: &str) -> Arc<crate::service::Tenant> {
        self.make(id, true).await
    }

    async fn make(&self, id: &str, test: bool) -> Arc<crate::service::Tenant> {
        let id = TenantId::parse(id).expect("a tenant id");
        self.registry.create_tenant(&id, test, None, "test").await.expect("a new tenant")
    }
}
