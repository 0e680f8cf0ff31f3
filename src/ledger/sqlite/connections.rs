//! The connections: one that writes, a few that read.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteRow};
use sqlx::{Connection, SqliteTransaction};
use tokio::sync::{Mutex as AsyncMutex, MutexGuard, Semaphore, SemaphorePermit};

use super::error;
use super::open;
use crate::ledger::LedgerError;
use crate::ledger::sql::read::Query;
use crate::ledger::sql::{Failure, Sql};

/// More readers than processors would only take turns.
const READERS_MAX: usize = 4;

/// The one connection that writes. Whoever has the lane has it alone, so this
/// process never waits for itself in SQLite.
pub(super) struct Writer {
    path: Arc<Path>,
    options: SqliteConnectOptions,
    connection: AsyncMutex<Slot>,
    /// The connection's thread has ended.
    is_lost: AtomicBool,
    /// When somebody last waited in vain for another process.
    in_vain: Mutex<Option<Instant>>,
}

enum Slot {
    Open(SqliteConnection),
    /// Given up after a failure; opened anew by the next write.
    Lost,
    Closed,
}

/// The connection that writes, held alone.
pub(super) struct Lane<'w> {
    slot: MutexGuard<'w, Slot>,
}

impl Writer {
    pub fn new(path: Arc<Path>, options: SqliteConnectOptions, connection: SqliteConnection) -> Self {
        let connection = AsyncMutex::new(Slot::Open(connection));
        Self { path, options, connection, is_lost: AtomicBool::new(false), in_vain: Mutex::default() }
    }

    /// Waits for the lane. Who stood behind somebody who waited for another process in
    /// vain has waited for it as well: else each in turn would, and the last one for
    /// minutes.
    pub async fn lane(&self) -> Result<Lane<'_>, LedgerError> {
        let begun = Instant::now();
        let mut slot = self.connection.lock().await;
        if self.in_vain.lock().is_some_and(|at| at > begun) {
            let path = self.path.display();
            return Err(LedgerError::Unavailable(format!("the ledger file {path} is locked").into()));
        }
        if let Slot::Open(connection) = &mut *slot {
            // A rollback may be under way, of a caller that went away. One that
            // fails is SQLite's own doing: it ends a transaction by itself when
            // the disk is full, and the driver believes it open for ever.
            let is_unfit = connection.is_in_transaction()
                && (connection.ping().await.is_err() || connection.is_in_transaction());
            if is_unfit || self.is_lost.swap(false, SeqCst) {
                *slot = Slot::Lost;
            }
        }
        if let Slot::Lost = *slot {
            *slot = Slot::Open(open::connect(&self.path, &self.options).await?);
        }
        match &*slot {
            Slot::Open(_) => Ok(Lane { slot }),
            Slot::Lost | Slot::Closed => Err(closed(&self.path)),
        }
    }

    /// Runs `work` in one transaction: on record wholly when this returns
    /// `Ok`, else not at all. A caller that goes away rolls it back, unless
    /// the commit was under way.
    pub async fn write<T, W>(&self, work: W) -> Result<T, LedgerError>
    where
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, Failure>>,
    {
        let mut lane = self.lane().await?;
        let mut transaction = lane.begin().await.map_err(|error| self.failed(error))?;
        let answer = work(&mut transaction).await.map_err(|error| self.failed(error))?;
        transaction.commit().await.map_err(|error| self.failed(error))?;
        Ok(answer)
    }

    /// The failure with the file's name.
    pub fn failed(&self, failure: impl Into<Failure>) -> LedgerError {
        let failure = failure.into();
        if let Failure::Sql(sqlx::Error::WorkerCrashed) = failure {
            self.is_lost.store(true, SeqCst);
        }
        if let Failure::Sql(error) = &failure
            && error::is_busy(error)
        {
            *self.in_vain.lock() = Some(Instant::now());
        }
        error::at(&self.path, failure)
    }

    pub async fn close(&self) {
        let mut slot = self.connection.lock().await;
        if let Slot::Open(connection) = std::mem::replace(&mut *slot, Slot::Closed)
            && let Err(error) = connection.close().await
        {
            tracing::warn!(error = &error as &dyn std::error::Error, "the ledger was not closed cleanly");
        }
    }
}

impl Lane<'_> {
    /// The connection, for a statement that is a transaction by itself.
    pub fn connection(&mut self) -> sqlx::Result<&mut SqliteConnection> {
        match &mut *self.slot {
            Slot::Open(connection) => Ok(connection),
            Slot::Lost | Slot::Closed => Err(sqlx::Error::WorkerCrashed),
        }
    }

    /// Begins a transaction; dropped without a commit it is rolled back.
    pub async fn begin(&mut self) -> sqlx::Result<SqliteTransaction<'_>> {
        self.connection()?.begin_with("BEGIN IMMEDIATE").await
    }
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

    /// Waits until nobody reads, and has nobody begin until it is dropped.
    pub async fn pause(&self) -> Result<SemaphorePermit<'_>, LedgerError> {
        self.permits.acquire_many(READERS_MAX as u32).await.map_err(|_| closed(&self.path))
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
    pub async fn rows(self, query: &Query) -> Result<Vec<SqliteRow>, LedgerError> {
        let (text, values) = query.statement::<SqliteConnection>();
        self.run(move |connection| async move { Ok(connection.rows(text, values).await?) }.boxed()).await
    }

    pub async fn run<T, W>(mut self, work: W) -> Result<T, LedgerError>
    where
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, Failure>>,
    {
        let Some(connection) = &mut self.connection else { return Err(closed(&self.readers.path)) };
        let answer = work(connection).await;
        answer.map_err(|failure| {
            // A connection that failed is not used again.
            if let Failure::Sql(_) = failure {
                self.connection = None;
            }
            error::at(&self.readers.path, failure)
        })
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
