//! Moving the write-ahead log into the database, beside the hot path.
//!
//! SQLite would do it within a commit, which then takes many times as long. A
//! connection of its own does it without holding up the writer. It cannot
//! catch up with a writer that never pauses, and the log only starts anew once
//! all of it was moved and nobody reads in it: so when it has grown long, and
//! all but a few pages are moved and on disk, writer and readers pause for the
//! moment that the last ones take.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use super::connections::{Readers, Writer};
use super::error::failed;
use super::open;
use crate::ledger::LedgerError;

/// Pages of 4 KiB between two checkpoints.
const PAGES: usize = 2_000;
/// Pages in the log from which on it is to start anew.
const LONG_PAGES: i64 = 8_000;
/// Pages that may be left to move while all pause.
const FEW_PAGES: i64 = 64;
/// Of a log of which a reader holds more than this back nobody tries more, nor has all pause.
const HELD_BACK_PAGES: i64 = 2_000;
/// How often the log is gone through for that.
const PASSES: usize = 8;
/// How long a commit waits for those who read; who reads longer has the log
/// start anew at another time.
const READERS_PATIENCE: Duration = Duration::from_millis(5);

/// Wakes the task that runs checkpoints.
pub(super) struct Checkpoints {
    pages: AtomicUsize,
    due: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Checkpoints {
    pub fn start(
        path: Arc<Path>,
        options: SqliteConnectOptions,
        writer: Arc<Writer>,
        readers: Arc<Readers>,
    ) -> Self {
        let due = Arc::new(Notify::new());
        // Whoever is in its way is not waited for.
        let options = options.busy_timeout(Duration::ZERO);
        let mover = Mover { path, options, writer, readers, connection: None, file: None };
        let task = tokio::spawn(mover.run(Arc::clone(&due)));
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

struct Mover {
    path: Arc<Path>,
    options: SqliteConnectOptions,
    writer: Arc<Writer>,
    readers: Arc<Readers>,
    connection: Option<SqliteConnection>,
    /// The database, opened when the log is long for the first time and never closed: closing
    /// a file lets go of every lock that the process has on it, and SQLite's are such.
    file: Option<&'static File>,
}

/// The log, in pages.
struct Log {
    pages: i64,
    moved: i64,
}

impl Mover {
    async fn run(mut self, due: Arc<Notify>) {
        loop {
            due.notified().await;
            if let Err(error) = self.checkpoint().await {
                self.connection = None;
                tracing::warn!(error = &error as &dyn std::error::Error, "the ledger's log was not moved");
            }
        }
    }

    async fn checkpoint(&mut self) -> Result<(), LedgerError> {
        let mut log = self.move_log("PRAGMA wal_checkpoint(PASSIVE)").await?;
        if log.pages < LONG_PAGES {
            return Ok(());
        }
        // SQLite has the database on disk at the end of the log only, which is where all wait.
        for _ in 0..PASSES {
            self.sync().await?;
            let before = log.moved;
            log = self.move_log("PRAGMA wal_checkpoint(PASSIVE)").await?;
            if log.moved - before <= FEW_PAGES {
                break;
            }
        }
        if log.pages - log.moved > HELD_BACK_PAGES {
            return Ok(());
        }
        let (writer, readers) = (Arc::clone(&self.writer), Arc::clone(&self.readers));
        let _lane = writer.lane().await?;
        if let Ok(Ok(_pause)) = timeout(READERS_PATIENCE, readers.pause()).await {
            self.move_log("PRAGMA wal_checkpoint(RESTART)").await?;
        }
        Ok(())
    }

    /// Moves what can be moved without waiting for anybody.
    async fn move_log(&mut self, text: &'static str) -> Result<Log, LedgerError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => self.connection.insert(open::connect(&self.path, &self.options).await?),
        };
        let moved = sqlx::query_as(text).fetch_one(connection).await;
        let (_busy, pages, moved): (i64, i64, i64) = moved.map_err(|error| failed(&self.path, error))?;
        Ok(Log { pages, moved })
    }

    async fn sync(&mut self) -> Result<(), LedgerError> {
        let failed = |error| failed(&self.path, sqlx::Error::Io(error));
        let file = match self.file {
            Some(file) => file,
            None => self.file.insert(Box::leak(Box::new(File::open(&*self.path).map_err(failed)?))),
        };
        let file: &'static File = file;
        match spawn_blocking(move || file.sync_data()).await {
            Ok(synced) => synced.map_err(failed),
            Err(error) => Err(LedgerError::Unavailable(error.into())),
        }
    }
}
