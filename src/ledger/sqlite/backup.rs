//! A copy of the file as it stands at one moment, also from under a running server.

use std::path::Path;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};

use super::error::{failed, unopened};
use super::open;
use crate::ledger::LedgerError;

/// Writes all that was committed when this began to `target`, a new file that is
/// on disk when this returns. Nobody who writes meanwhile is kept waiting.
///
/// # Errors
/// `Unusable`, naming the file: it cannot be opened, is no database or another
/// program's. `Unavailable`: the copy could not be written.
pub async fn back_up(path: &Path, target: &Path) -> Result<(), LedgerError> {
    let options = SqliteConnectOptions::new().filename(path).read_only(true).disable_statement_logging();
    let mut connection = options.connect().await.map_err(|error| unopened(path, error))?;
    open::refuse_strangers(path, &mut connection).await?;
    let copied = sqlx::query("VACUUM INTO $1").bind(target.to_string_lossy()).execute(&mut connection).await;
    copied.map_err(|error| failed(target, error))?;
    connection.close().await.map_err(|error| unopened(path, error))?;
    // SQLite does not wait for the disk here.
    let synced = std::fs::File::open(target).and_then(|file| file.sync_all());
    synced.map_err(|error| failed(target, sqlx::Error::Io(error)))
}
