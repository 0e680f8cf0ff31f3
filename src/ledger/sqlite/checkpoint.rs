//! Moving the write-ahead log into the database, beside the hot path.
//!
//! SQLite would do it within a commit, which then takes many times as long. A
//! connection of its own does it without holding up the writer. It cannot
//! catch up with a writer that never pauses, and the log only starts anew once
//! all of it was moved: so when it has grown long, the writer moves the last
//! few pages itself, between two commits.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::connections::Writer;
use super::error::failed;
use super::open;
use crate::ledger::LedgerError;

/// Pages of 4 KiB between two checkpoints.
const PAGES: usize = 2_000;
/// Pages in the log from which on the writer helps.
const LONG_PAGES: i64 = 8_000;

/// Wakes the task that runs checkpoints.
pub(super) struct Checkpoints {
    pages: AtomicUsize,
    due: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Checkpoints {
    pub fn start(path: Arc<Path>, options: SqliteConnectOptions, writer: Arc<Writer>) -> Self {
        let due = Arc::new(Notify::new());
        let task = tokio::spawn(run(path, options, writer, Arc::clone(&due)));
        Self { pages: AtomicUsize::new(0), due, task }
    }

    /// Counts pages that were written, roughly.
    pub fn wrote(&self, pages: usize) {
        if self.pages.fetch_add(pages, Relaxed) + pages >= PAGES {
            self.pages.store(0, Relaxed);
            self.due.notify_one();
        }
    }

    pub fn stop(&self) {
        self.task.abort();
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn run(path: Arc<Path>, options: SqliteConnectOptions, writer: Arc<Writer>, due: Arc<Notify>) {
    let mut connection = None;
    loop {
        due.notified().await;
        if let Err(error) = checkpoint(&path, &options, &writer, &mut connection).await {
            connection = None;
            tracing::warn!(error = &error as &dyn std::error::Error, "the ledger's log was not moved");
        }
    }
}

async fn checkpoint(
    path: &Path,
    options: &SqliteConnectOptions,
    writer: &Writer,
    connection: &mut Option<SqliteConnection>,
) -> Result<(), LedgerError> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(open::connect(path, options).await?),
    };
    let pages = move_log(connection).await.map_err(|error| failed(path, error))?;
    if pages >= LONG_PAGES {
        let mut lane = writer.lane().await?;
        let connection = lane.connection().map_err(|error| writer.failed(error))?;
        move_log(connection).await.map_err(|error| writer.failed(error))?;
    }
    Ok(())
}

/// Moves what can be moved without waiting for anybody; returns the log's
/// length in pages.
async fn move_log(connection: &mut SqliteConnection) -> sqlx::Result<i64> {
    let (_busy, pages, _moved): (i64, i64, i64) =
        sqlx::query_as("PRAGMA wal_checkpoint(PASSIVE)").fetch_one(connection).await?;
    Ok(pages)
}
