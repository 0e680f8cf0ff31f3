//! What deleted tenants left: it goes in portions, so that nobody waits.
//!
//! A tenant is marked as deleted first. From then on its credentials are
//! nobody's and the ledger takes nothing of it any more, so that what is open
//! in memory is never written back. Whatever ends this process, the next one
//! goes on where it stopped.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::service::{Service, ServiceError, Tenant};

/// How often we look for what came late.
const EVERY: Duration = Duration::from_secs(5);
/// Rows removed in one go.
const AT_ONCE: u32 = 500;
/// Nothing that began before a tenant was deleted still runs after this.
const AFTERMATH_MS: i64 = 600_000;

impl Service {
    /// Deletes a tenant: its credentials end at once, its id is free, and what
    /// it left is on its way out. The audit stays.
    ///
    /// # Errors
    /// `NotFound` when somebody else was faster; `StoreUnavailable`.
    pub async fn delete_tenant(&self, tenant: &Arc<Tenant>, by: &str) -> Result<(), ServiceError> {
        self.registry.delete_tenant(tenant, by).await?;
        self.plain(|| self.engine.forget_tenant(tenant.number)).await?;
        self.purge_due.notify_one();
        Ok(())
    }

    /// Starts removing what deleted tenants left; abort the task to stop.
    pub fn start_purging(self: &Arc<Self>) -> JoinHandle<()> {
        let service = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                if let Err(error) = service.purge_deleted().await {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "cannot remove what deleted tenants left");
                }
                tokio::select! {
                    () = service.purge_due.notified() => {}
                    () = tokio::time::sleep(EVERY) => {}
                }
            }
        })
    }

    async fn purge_deleted(&self) -> Result<(), ServiceError> {
        for (tenant, deleted_at) in self.ledger.deleted_tenants().await? {
            self.plain(|| self.engine.forget_tenant(tenant)).await?;
            // The list of its keys goes with the rows.
            self.registry.forget_private_keys(tenant).await?;
            while self.ledger.purge_tenant(tenant, AT_ONCE).await? {
                tokio::task::yield_now().await;
            }
            if deleted_at.plus_ms(AFTERMATH_MS) < self.registry.wall().now() {
                self.ledger.end_purge(tenant).await?;
            }
        }
        Ok(())
    }
}
