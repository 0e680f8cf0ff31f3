//! SQLite's failures in the ledger's words.

use std::path::{Path, PathBuf};

use sqlx::migrate::MigrateError;

use crate::ledger::LedgerError;
use crate::ledger::sql::Failure;

/// A failure with the file in which it happened.
#[derive(Debug, thiserror::Error)]
#[error("the ledger file {} cannot be used now", path.display())]
struct FileError {
    path: PathBuf,
    source: sqlx::Error,
}

/// The failure with the file's name.
pub(super) fn at(path: &Path, failure: Failure) -> LedgerError {
    match failure {
        Failure::Sql(error) => failed(path, error),
        Failure::Ledger(error) => error,
    }
}

// Primary result codes of SQLite.
const BUSY: i32 = 5;
const CORRUPT: i32 = 11;
const CANNOT_OPEN: i32 = 14;
const NO_DATABASE: i32 = 26;

/// The primary result code, when it was SQLite that failed.
fn code(error: &sqlx::Error) -> Option<i32> {
    let extended: i32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(extended & 0xff)
}

pub(super) fn is_busy(error: &sqlx::Error) -> bool {
    code(error) == Some(BUSY)
}

/// A failure while working with an open file.
pub(super) fn failed(path: &Path, error: sqlx::Error) -> LedgerError {
    match (&error, code(&error)) {
        (_, Some(CORRUPT | NO_DATABASE)) => LedgerError::Corrupt(format!("{}: {error}", path.display())),
        (sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_), _) => {
            LedgerError::Corrupt(format!("{}: {error}", path.display()))
        }
        _ => LedgerError::Unavailable(Box::new(FileError { path: path.to_owned(), source: error })),
    }
}

/// A failure while opening the file: most of them do not pass by themselves.
pub(super) fn unopened(path: &Path, error: sqlx::Error) -> LedgerError {
    let shown = path.display();
    match code(&error) {
        Some(CANNOT_OPEN) => {
            LedgerError::Unusable(format!("the ledger file {shown} cannot be opened: {error}"))
        }
        Some(NO_DATABASE) => LedgerError::Unusable(format!("{shown} is no SQLite database")),
        Some(CORRUPT) => LedgerError::Unusable(format!("the ledger file {shown} is damaged: {error}")),
        _ => failed(path, error),
    }
}

/// A schema that does not fit this program.
pub(super) fn unmigrated(path: &Path, known: i64, error: MigrateError) -> LedgerError {
    let shown = path.display();
    match error {
        MigrateError::VersionMissing(version) => LedgerError::Unusable(format!(
            "the ledger file {shown} has schema {version}, this program knows {known}: use the newer program"
        )),
        MigrateError::VersionMismatch(version) => LedgerError::Unusable(format!(
            "schema step {version} of the ledger file {shown} is not the one this program knows"
        )),
        MigrateError::Dirty(version) => LedgerError::Unusable(format!(
            "schema step {version} of the ledger file {shown} was never finished"
        )),
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => unopened(path, error),
        other => {
            LedgerError::Unusable(format!("the schema of the ledger file {shown} cannot be read: {other}"))
        }
    }
}
