//! Looking at a file without changing it.

use std::path::Path;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};

use super::error::unopened;
use super::open;
use crate::ledger::LedgerError;

/// What there is to say about a ledger file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// The file's newest schema step; 0: none yet.
    pub schema: i64,
    /// The newest that this program knows.
    pub schema_known: i64,
    /// What SQLite finds wrong, if anything.
    pub damage: Option<String>,
}

/// Reads the schema's version and checks the file's structure, also beside a
/// running server. `None`: there is no file.
///
/// # Errors
/// `Unusable`, naming the file: it cannot be opened, is no database or another
/// program's.
pub async fn inspect(path: &Path) -> Result<Option<Inspection>, LedgerError> {
    if !path.exists() {
        return Ok(None);
    }
    let options = SqliteConnectOptions::new().filename(path).read_only(true).disable_statement_logging();
    let mut connection = options.connect().await.map_err(|error| unopened(path, error))?;
    open::refuse_strangers(path, &mut connection).await?;
    let found = look(&mut connection).await.map_err(|error| unopened(path, error))?;
    connection.close().await.map_err(|error| unopened(path, error))?;
    Ok(Some(found))
}

async fn look(connection: &mut SqliteConnection) -> sqlx::Result<Inspection> {
    let schema = match open::has_migrations(connection).await? {
        true => {
            let newest =
                sqlx::query_scalar("SELECT coalesce(max(version), 0) FROM _sqlx_migrations WHERE success");
            newest.fetch_one(&mut *connection).await?
        }
        false => 0,
    };
    let verdict: String = sqlx::query_scalar("PRAGMA quick_check(1)").fetch_one(connection).await?;
    let damage = (verdict != "ok").then_some(verdict);
    Ok(Inspection { schema, schema_known: open::newest(), damage })
}
