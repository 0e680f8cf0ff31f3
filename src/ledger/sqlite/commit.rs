//! The statements that write to the journal.

use std::collections::HashSet;

use sqlx::sqlite::SqliteConnection;

use crate::ledger::LedgerError;
use crate::ledger::sql::Failure;
use crate::ledger::sql::batch::UsageKey;

/// Appends a row to the journal. `false`: the row before is not the newest, so another process
/// commits as well. (Its number may be free all the same: rows are taken out.)
pub(super) async fn append(
    connection: &mut SqliteConnection,
    number: i64,
    body: &[u8],
) -> sqlx::Result<bool> {
    let text = "INSERT INTO journal (number, body)
                SELECT $1, $2 WHERE (SELECT coalesce(max(number), 0) FROM journal) = $1 - 1";
    let query = sqlx::query(text).bind(number).bind(body);
    Ok(query.execute(&mut *connection).await?.rows_affected() > 0)
}

/// The numbers of the journal's rows up to `newest` that are not in the tables.
/// (`length` does not read the bodies, a comparison would.)
pub(super) async fn journaled(connection: &mut SqliteConnection, newest: i64) -> sqlx::Result<HashSet<i64>> {
    let text = "SELECT number FROM journal WHERE number BETWEEN 1 AND $1 AND length(body) > 0";
    let numbers = sqlx::query_scalar(text).bind(newest).fetch_all(&mut *connection).await?;
    Ok(numbers.into_iter().collect())
}

/// Whether there are any such rows.
pub(super) async fn is_journaled(connection: &mut SqliteConnection, newest: i64) -> sqlx::Result<bool> {
    let text = "SELECT EXISTS (SELECT 1 FROM journal WHERE number BETWEEN 1 AND $1 AND length(body) > 0)";
    sqlx::query_scalar(text).bind(newest).fetch_one(&mut *connection).await
}

/// Takes rows out of the journal that are in the tables, and the mark with
/// them. The newest stays behind without a body, so that no number ever comes
/// twice.
pub(super) async fn forget(connection: &mut SqliteConnection, newest: i64) -> sqlx::Result<()> {
    let text = "DELETE FROM journal WHERE number < $1; UPDATE journal SET body = x'' WHERE number = $1";
    sqlx::query(text).bind(newest).execute(&mut *connection).await?;
    Ok(())
}

/// Takes the oldest of them out, as many as that. `false`: there are none before `newest`.
pub(super) async fn forget_some(
    connection: &mut SqliteConnection,
    newest: i64,
    rows: usize,
) -> sqlx::Result<bool> {
    let text = "DELETE FROM journal WHERE number IN
                (SELECT number FROM journal WHERE number > 0 AND number < $1 ORDER BY number LIMIT $2)";
    let query = sqlx::query(text).bind(newest).bind(i64::try_from(rows).unwrap_or(i64::MAX));
    Ok(query.execute(&mut *connection).await?.rows_affected() > 0)
}

/// How far the usage of the journal's rows up to `newest` is in its table. The
/// mark is the journal's row 0 and changes in the same transaction as the
/// table, so that usage is added once, whoever goes on.
#[derive(Debug)]
pub(super) struct Mark {
    pub newest: i64,
    /// Everything up to here is added.
    pub key: UsageKey,
    /// All else of these rows is, too: they only have to be taken out.
    pub is_whole: bool,
}

impl Mark {
    pub async fn read(connection: &mut SqliteConnection) -> Result<Option<Self>, Failure> {
        let query = sqlx::query_scalar("SELECT body FROM journal WHERE number = 0");
        let body: Option<Vec<u8>> = query.fetch_optional(&mut *connection).await?;
        let mark = body.map(|body| {
            let ((newest, key), rest) = postcard::take_from_bytes(&body)?;
            Ok(Self { newest, key, is_whole: !rest.is_empty() })
        });
        let mark = mark.transpose().map_err(|error: postcard::Error| unreadable(&error));
        Ok(mark?)
    }

    pub async fn write(&self, connection: &mut SqliteConnection) -> Result<(), Failure> {
        let body = postcard::to_stdvec(&(self.newest, &self.key));
        let mut body = body.map_err(|error| unreadable(&error))?;
        // A program of before leaves out what stands behind.
        body.extend(self.is_whole.then_some(1));
        let text = "INSERT INTO journal (number, body) VALUES (0, $1)
                    ON CONFLICT (number) DO UPDATE SET body = excluded.body";
        sqlx::query(text).bind(body).execute(&mut *connection).await?;
        Ok(())
    }

    /// Whether that part of a row is added.
    pub fn covers(&self, row: i64, key: &UsageKey) -> bool {
        row <= self.newest && (self.is_whole || *key <= self.key)
    }

    /// Whether all of a row is.
    pub fn covers_all(&self, row: i64) -> bool {
        row <= self.newest && self.is_whole
    }
}

fn unreadable(error: &postcard::Error) -> LedgerError {
    LedgerError::Corrupt(format!("the journal's mark: {error}"))
}
