//! The connections: one that writes, a few that read.

use std::path::Path;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use tokio::sync::{Mutex as AsyncMutex, Semaphore, SemaphorePermit};

use super::error::{Failure, failed};
use super::open;
use crate::ledger::LedgerError;

/// More readers than processors would only take turns.
const READERS_MAX: usize = 4;

/// The one connection that writes. Whoever holds the lock has it alone, so
/// this process never waits for itself in SQLite.
pub(super) struct Writer {
    path: Arc<Path>,
    options: SqliteConnectOptions,
    connection: AsyncMutex<Lane>,
}

enum Lane {
    Open(SqliteConnection),
    /// Given up after a failure; opened anew by the next write.
    Lost,
    Closed,
}

impl Writer {
    pub fn new(path: Arc<Path>, options: SqliteConnectOptions, connection: SqliteConnection) -> Self {
        Self { path, options, connection: AsyncMutex::new(Lane::Open(connection)) }
    }

    /// Runs `work` in one transaction: on record wholly when this returns
    /// `Ok`, else not at all. A caller that goes away rolls it back, unless
    /// the commit was under way.
    pub async fn write<T, W>(&self, work: W) -> Result<T, LedgerError>
    where
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, Failure>>,
    {
        let mut lane = self.connection.lock().await;
        for last_try in [false, true] {
            let connection = self.opened(&mut lane).await?;
            let error = match connection.begin_with("BEGIN IMMEDIATE").await {
                Ok(mut transaction) => {
                    let answer = work(&mut transaction).await.map_err(|failure| failure.at(&self.path))?;
                    transaction.commit().await.map_err(|error| failed(&self.path, error))?;
                    return Ok(answer);
                }
                Err(error) => error,
            };
            // SQLite ends a transaction by itself when the disk is full or
            // fails; the driver then believes it open for ever.
            if last_try || !is_unfit(&error) {
                return Err(failed(&self.path, error));
            }
            *lane = Lane::Lost;
        }
        Err(closed(&self.path))
    }

    /// Runs `work` on the connection that writes, outside of a transaction.
    pub async fn run<T, W>(&self, work: W) -> Result<T, LedgerError>
    where
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, Failure>>,
    {
        let mut lane = self.connection.lock().await;
        let connection = self.opened(&mut lane).await?;
        work(connection).await.map_err(|failure| failure.at(&self.path))
    }

    async fn opened<'l>(&self, lane: &'l mut Lane) -> Result<&'l mut SqliteConnection, LedgerError> {
        if let Lane::Lost = lane {
            *lane = Lane::Open(open::connect(&self.path, &self.options).await?);
        }
        match lane {
            Lane::Open(connection) => Ok(connection),
            Lane::Lost | Lane::Closed => Err(closed(&self.path)),
        }
    }

    pub async fn close(&self) {
        let mut lane = self.connection.lock().await;
        if let Lane::Open(connection) = std::mem::replace(&mut *lane, Lane::Closed)
            && let Err(error) = connection.close().await
        {
            tracing::warn!(error = &error as &dyn std::error::Error, "the ledger was not closed cleanly");
        }
    }
}

/// Whether a connection is of no use any more.
fn is_unfit(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::InvalidSavePointStatement | sqlx::Error::WorkerCrashed)
}

fn closed(path: &Path) -> LedgerError {
    LedgerError::Unavailable(format!("the ledger file {} is closed", path.display()).into())
}

/// Connections that read, opened when first needed.
pub(super) struct Readers {
    path: Arc<Path>,
    options: SqliteConnectOptions,
    free: Mutex<Vec<SqliteConnection>>,
    permits: Semaphore,
}

impl Readers {
    pub fn new(path: Arc<Path>, options: SqliteConnectOptions) -> Self {
        Self { path, options, free: Mutex::default(), permits: Semaphore::new(READERS_MAX) }
    }

    /// A connection for one statement: it sees what is committed now.
    pub async fn take(&self) -> Result<Reader<'_>, LedgerError> {
        let permit = self.permits.acquire().await.map_err(|_| closed(&self.path))?;
        let free = self.free.lock().pop();
        let connection = match free {
            Some(connection) => connection,
            None => open::connect(&self.path, &self.options).await?,
        };
        Ok(Reader { readers: self, connection: Some(connection), _permit: permit })
    }

    pub async fn close(&self) {
        self.permits.close();
        let free = std::mem::take(&mut *self.free.lock());
        for connection in free {
            connection.close().await.ok();
        }
    }
}

/// A reader on loan.
pub(super) struct Reader<'r> {
    readers: &'r Readers,
    connection: Option<SqliteConnection>,
    _permit: SemaphorePermit<'r>,
}

impl Reader<'_> {
    /// The connection for one statement. One that failed is not used again.
    pub async fn run<T, W>(mut self, work: W) -> Result<T, LedgerError>
    where
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, Failure>>,
    {
        let Some(connection) = &mut self.connection else { return Err(closed(&self.readers.path)) };
        let answer = work(connection).await;
        if answer.is_err() {
            self.connection = None;
        }
        answer.map_err(|failure| failure.at(&self.readers.path))
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take()
            && !self.readers.permits.is_closed()
        {
            self.readers.free.lock().push(connection);
        }
    }
}
