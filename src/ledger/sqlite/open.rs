//! Opening the file: who may use it, in which mode, with which schema.

use std::path::Path;
use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection};

use super::error::{is_busy, unmigrated, unopened};
use crate::ledger::LedgerError;

pub(super) static MIGRATOR: Migrator = sqlx::migrate!("migrations/sqlite");

/// 'Appo', as the first migration sets it.
const APPLICATION_ID: i64 = 1_097_887_855;

/// How long a statement waits for another process that writes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Turning on WAL cannot be waited for in SQLite, so it is tried again when two
/// processes open a new file at the same moment.
const BUSY_TRIES: u32 = 100;
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// What a commit survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Every commit is on disk before it returns: it survives power loss.
    Commit,
    /// Commits are handed to the operating system: they survive kill -9, the
    /// last ones may be lost with the power. The file stays consistent.
    Os,
}

/// Options of the connection that writes.
pub(super) fn writing(path: &Path, durability: Durability) -> SqliteConnectOptions {
    let synchronous = match durability {
        Durability::Commit => SqliteSynchronous::Full,
        Durability::Os => SqliteSynchronous::Normal,
    };
    common(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(synchronous)
        .pragma("cache_size", "-32768")
        // Checkpoints run beside the writer (see `checkpoint`); this is the
        // bound should they ever fall behind, in pages of 4 KiB.
        .pragma("wal_autocheckpoint", "32768")
}

/// Options of a connection that reads beside the one that writes.
pub(super) fn reading(path: &Path) -> SqliteConnectOptions {
    common(path).pragma("query_only", "ON").pragma("cache_size", "-8192")
}

fn common(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(BUSY_TIMEOUT)
        .foreign_keys(true)
        // Statements on many rows keep a journal of their own, else a file.
        .pragma("temp_store", "MEMORY")
        .disable_statement_logging()
}

pub(super) async fn connect(
    path: &Path,
    options: &SqliteConnectOptions,
) -> Result<SqliteConnection, LedgerError> {
    for _ in 1..BUSY_TRIES {
        match options.connect().await {
            Err(error) if is_busy(&error) => tokio::time::sleep(BUSY_PAUSE).await,
            answer => return answer.map_err(|error| unopened(path, error)),
        }
    }
    options.connect().await.map_err(|error| unopened(path, error))
}

/// Brings the schema up to date, or says why the file is not for us.
pub(super) async fn migrate(path: &Path, connection: &mut SqliteConnection) -> Result<(), LedgerError> {
    // Usually there is nothing to do, and a busy server need not be disturbed.
    if is_current(path, connection).await? {
        return Ok(());
    }
    // Two processes may come here at once: the second waits, then finds the
    // work done. The driver's own steps become savepoints within.
    let begun = connection.begin_with("BEGIN IMMEDIATE").await;
    let mut transaction = begun.map_err(|error| unopened(path, error))?;
    refuse_strangers(path, &mut transaction).await?;
    let run = MIGRATOR.run_direct(None, &mut *transaction, false).await;
    run.map_err(|error| unmigrated(path, newest(), error))?;
    transaction.commit().await.map_err(|error| unopened(path, error))
}

/// Whether every migration of this program is in the file, and no other.
async fn is_current(path: &Path, connection: &mut SqliteConnection) -> Result<bool, LedgerError> {
    if !has_migrations(connection).await.map_err(|error| unopened(path, error))? {
        return Ok(false);
    }
    let applied: Vec<(i64, Vec<u8>)> =
        sqlx::query_as("SELECT version, checksum FROM _sqlx_migrations WHERE success ORDER BY version")
            .fetch_all(connection)
            .await
            .map_err(|error| unopened(path, error))?;
    let known = MIGRATOR.iter().map(|migration| (migration.version, migration.checksum.to_vec()));
    Ok(known.eq(applied))
}

pub(super) async fn has_migrations(connection: &mut SqliteConnection) -> sqlx::Result<bool> {
    let text = "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = '_sqlx_migrations')";
    sqlx::query_scalar(text).fetch_one(connection).await
}

/// The newest schema that this program knows.
pub(super) fn newest() -> i64 {
    MIGRATOR.iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// Another program's database must not get our tables.
pub(super) async fn refuse_strangers(
    path: &Path,
    connection: &mut SqliteConnection,
) -> Result<(), LedgerError> {
    let text = "SELECT application_id, (SELECT count(*) FROM sqlite_master) FROM pragma_application_id";
    let (application, tables): (i64, i64) =
        sqlx::query_as(text).fetch_one(connection).await.map_err(|error| unopened(path, error))?;
    let is_new = application == 0 && tables == 0;
    if application == APPLICATION_ID || is_new {
        return Ok(());
    }
    Err(LedgerError::Unusable(format!("{} is the database of another program", path.display())))
}
