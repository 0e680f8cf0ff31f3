//! Writes that have nothing to do with holds.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::sqlite::SqliteConnection;

use super::SqliteLedger;
use crate::ledger::sql::{Failure, changes};
use crate::ledger::{Changed, LedgerError};

/// Pages that an administrative write changes: the row, its indexes, the audit,
/// the revision and what it changed.
const ADMINISTERED_PAGES: usize = 7;
/// And one of which no poller has to hear.
const BESIDE_PAGES: usize = 4;

impl SqliteLedger {
    /// Runs an administrative write; the revision goes up with it, and tells
    /// what has changed.
    pub(super) async fn administer<T, W>(&self, changed: Vec<Changed>, work: W) -> Result<T, LedgerError>
    where
        T: Send + Sync + 'static,
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, Failure>> + Send + 'static,
    {
        self.administer_as(|_| changed, work).await
    }

    /// The same for what the answer says has changed.
    pub(super) async fn administer_as<T, C, W>(&self, changed: C, work: W) -> Result<T, LedgerError>
    where
        T: Send + Sync + 'static,
        C: FnOnce(&T) -> Vec<Changed> + Send + 'static,
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, Failure>> + Send + 'static,
    {
        let origin = self.origin;
        self.writer
            .write(|connection| {
                async move {
                    let answer = work(&mut *connection).await?;
                    changes::tell(connection, origin, &changed(&answer)).await?;
                    Ok(answer)
                }
                .boxed()
            })
            .await
            .inspect(|_| self.journal.wrote(ADMINISTERED_PAGES))
    }

    /// Runs a write that no poller has to hear of.
    pub(super) async fn write_beside<T, W>(&self, work: W) -> Result<T, LedgerError>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, Failure>> + Send + 'static,
    {
        self.writer.write(work).await.inspect(|_| self.journal.wrote(BESIDE_PAGES))
    }
}
