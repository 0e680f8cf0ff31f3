//! Postgres' failures in the ledger's words. A database is named by its place:
//! passwords stand in its URL alone.

use sqlx::migrate::MigrateError;

use crate::ledger::LedgerError;
use crate::ledger::sql::Failure;

/// A failure with the database in which it happened.
#[derive(Debug, thiserror::Error)]
#[error("the ledger at {place} cannot be used now")]
struct DatabaseError {
    place: String,
    source: sqlx::Error,
}

// SQLSTATE codes.
const SERIALIZATION_FAILURE: &str = "40001";
const DEADLOCK: &str = "40P01";
const DATA_CORRUPTED: &str = "XX001";
const INDEX_CORRUPTED: &str = "XX002";

fn code(error: &sqlx::Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

/// Whether two transactions stood in each other's way, and this one had to go.
pub(super) fn is_collision(failure: &Failure) -> bool {
    let Failure::Sql(error) = failure else { return false };
    code(error).is_some_and(|code| [SERIALIZATION_FAILURE, DEADLOCK].contains(&&*code))
}

/// Whether the connection is lost, or the server is about to end it.
pub(super) fn is_broken(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => true,
        // Ended by an administrator, by a crash of another one, or starting.
        error => code(error).is_some_and(|code| code.starts_with("57P") || code.starts_with("08")),
    }
}

/// A failure while working with the database.
pub(super) fn failed(place: &str, failure: Failure) -> LedgerError {
    let error = match failure {
        Failure::Ledger(error) => return error,
        // Whoever came first has the key.
        failure if failure.is_taken() => return LedgerError::Conflict,
        Failure::Sql(error) => error,
    };
    let is_damage = code(&error).is_some_and(|code| [DATA_CORRUPTED, INDEX_CORRUPTED].contains(&&*code));
    let is_unread = matches!(
        error,
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_)
    );
    match is_damage || is_unread {
        true => LedgerError::Corrupt(format!("{place}: {error}")),
        false => LedgerError::Unavailable(Box::new(DatabaseError { place: place.to_owned(), source: error })),
    }
}

/// Nothing came back in time.
pub(super) fn silent(place: &str) -> LedgerError {
    LedgerError::Unavailable(format!("the ledger at {place} does not answer").into())
}

/// A failure while connecting: some of them do not pass by themselves.
pub(super) fn unopened(place: &str, error: sqlx::Error) -> LedgerError {
    let why = match code(&error).as_deref() {
        Some("28000" | "28P01") => "does not let us in",
        Some("3D000") => "does not exist",
        Some("42501") => "lacks rights that are needed",
        _ if matches!(error, sqlx::Error::Tls(_) | sqlx::Error::Configuration(_)) => "cannot be reached",
        _ => return failed(place, error.into()),
    };
    LedgerError::Unusable(format!("the ledger's database at {place} {why}: {error}"))
}

/// A schema that does not fit this program.
pub(super) fn unmigrated(place: &str, known: i64, error: MigrateError) -> LedgerError {
    match error {
        MigrateError::VersionMissing(version) => LedgerError::Unusable(format!(
            "the ledger at {place} has schema {version}, this program knows {known}: use the newer program"
        )),
        MigrateError::VersionMismatch(version) => LedgerError::Unusable(format!(
            "schema step {version} of the ledger at {place} is not the one this program knows"
        )),
        MigrateError::Dirty(version) => LedgerError::Unusable(format!(
            "schema step {version} of the ledger at {place} was never finished"
        )),
        MigrateError::Execute(error) => unopened(place, error),
        MigrateError::ExecuteMigration(error, version) => match is_broken(&error) {
            true => unopened(place, error),
            false => LedgerError::Unusable(format!(
                "schema step {version} cannot be taken in the ledger at {place}: {error}"
            )),
        },
        other => {
            LedgerError::Unusable(format!("the schema of the ledger at {place} cannot be read: {other}"))
        }
    }
}
