//! The statements that write changes: into the journal, and into the tables.

use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sqlx::sqlite::SqliteConnection;

use super::batch::{AccountRow, Blob, HoldRow, NewUsers, Totals, UsageKey};
use super::error::Failure;
use super::statement::ManyRows;
use crate::ledger::LedgerError;

static HOLDS: ManyRows = ManyRows::new(
    "INSERT INTO holds (id, tenant, user_id, org, request, finished_at, doubtful_from, body)",
    8,
    2,
    "ON CONFLICT (id) DO UPDATE SET finished_at = excluded.finished_at,
         doubtful_from = excluded.doubtful_from, body = excluded.body",
);

static ACCOUNTS: ManyRows = ManyRows::new(
    "INSERT INTO accounts (tenant, scope, owner, state)",
    4,
    1,
    "ON CONFLICT (tenant, scope, owner) DO UPDATE SET state = excluded.state",
);

/// Both figures are within +-(2^53 - 1), so the sum cannot overflow before it
/// is cut.
macro_rules! add_usage {
    ($($figure:literal),*) => {
        concat!(
            "ON CONFLICT (tenant, day, user_id, model, org, plan, feature) DO UPDATE SET tenant = usage.tenant",
            $(", ", $figure, " = max(-9007199254740991, min(9007199254740991, usage.", $figure,
              " + excluded.", $figure, "))"),*
        )
    };
}

static USAGE: ManyRows = ManyRows::new(
    "INSERT INTO usage (tenant, day, user_id, model, org, plan, feature,
         requests, input_tokens, output_tokens, total_tokens, credits)",
    12,
    1,
    add_usage!("requests", "input_tokens", "output_tokens", "total_tokens", "credits"),
);

/// Whoever was put on record meanwhile stays as they are.
static USERS: ManyRows = ManyRows::new(
    "INSERT INTO users (tenant, id, plan, plan_since, created_at, verified, suspended, version, born, moved)",
    10,
    1,
    "ON CONFLICT (tenant, id) DO NOTHING",
);

pub(super) async fn write_holds(
    connection: &mut SqliteConnection,
    holds: &[([u8; 16], Arc<HoldRow>)],
) -> sqlx::Result<()> {
    HOLDS
        .write(connection, holds.iter(), |query, (id, row)| {
            let query = query.bind(id.to_vec()).bind(row.tenant).bind(row.user.clone()).bind(row.org.clone());
            let query = query.bind(row.request).bind(row.finished_at).bind(row.doubtful_from);
            query.bind(row.body.0.to_vec())
        })
        .await
}

pub(super) async fn write_accounts(
    connection: &mut SqliteConnection,
    accounts: &[(AccountRow, Blob)],
) -> sqlx::Result<()> {
    ACCOUNTS
        .write(connection, accounts.iter(), |query, (key, state)| {
            query.bind(key.tenant).bind(key.scope).bind(key.owner.clone()).bind(state.0.to_vec())
        })
        .await
}

/// Gives holds that are in the table to the users of their rows.
pub(super) async fn give_holds(
    connection: &mut SqliteConnection,
    holds: impl Iterator<Item = (&[u8; 16], &HoldRow)>,
) -> sqlx::Result<()> {
    for (id, row) in holds {
        let query = sqlx::query("UPDATE holds SET user_id = $2 WHERE id = $1").bind(id.to_vec());
        query.bind(row.user.clone()).execute(&mut *connection).await?;
    }
    Ok(())
}

pub(super) async fn remove_account(connection: &mut SqliteConnection, key: &AccountRow) -> sqlx::Result<()> {
    let query = sqlx::query("DELETE FROM accounts WHERE tenant = $1 AND scope = $2 AND owner = $3");
    query.bind(key.tenant).bind(key.scope).bind(key.owner.clone()).execute(connection).await?;
    Ok(())
}

pub(super) async fn write_usage(
    connection: &mut SqliteConnection,
    usage: &[(UsageKey, Totals)],
) -> sqlx::Result<()> {
    USAGE
        .write(connection, usage.iter(), |query, (key, totals)| {
            let query = query.bind(key.tenant).bind(key.day).bind(key.user.clone()).bind(key.model.clone());
            let query = query.bind(key.org.clone()).bind(key.plan.clone()).bind(key.feature.clone());
            totals.0.into_iter().fold(query, |query, figure| query.bind(figure))
        })
        .await
}

pub(super) async fn write_users(connection: &mut SqliteConnection, users: &NewUsers) -> sqlx::Result<()> {
    if users.is_empty() {
        return Ok(());
    }
    // They come after whatever was written last.
    let revision: i64 = sqlx::query_scalar("SELECT value FROM revision").fetch_one(&mut *connection).await?;
    USERS
        .write(connection, users.iter(), |query, ((tenant, id), new)| {
            let query = query.bind(*tenant).bind(id.clone()).bind(new.plan.clone());
            let query = query.bind(new.since).bind(new.since).bind(false).bind(false).bind(1);
            query.bind(revision).bind(revision)
        })
        .await
}

/// Notes tenants that have their first hold with this commit.
pub(super) async fn write_taken(connection: &mut SqliteConnection, tenants: &[u32]) -> sqlx::Result<()> {
    for tenant in tenants {
        let text = "INSERT INTO taken SELECT $1 WHERE $1 NOT IN (SELECT number FROM deleted_tenants)
                    ON CONFLICT (tenant) DO NOTHING";
        sqlx::query(text).bind(*tenant).execute(&mut *connection).await?;
    }
    Ok(())
}

/// Appends a row to the journal.
pub(super) async fn append(connection: &mut SqliteConnection, number: i64, body: &[u8]) -> sqlx::Result<()> {
    let query = sqlx::query("INSERT INTO journal (number, body) VALUES ($1, $2)").bind(number).bind(body);
    query.execute(connection).await?;
    Ok(())
}

/// The numbers of the journal's rows up to `newest` that are not in the tables.
/// (`length` does not read the bodies, a comparison would.)
pub(super) async fn journaled(connection: &mut SqliteConnection, newest: i64) -> sqlx::Result<HashSet<i64>> {
    let text = "SELECT number FROM journal WHERE number BETWEEN 1 AND $1 AND length(body) > 0";
    let numbers = sqlx::query_scalar(text).bind(newest).fetch_all(connection).await?;
    Ok(numbers.into_iter().collect())
}

/// Whether there are any such rows.
pub(super) async fn is_journaled(connection: &mut SqliteConnection, newest: i64) -> sqlx::Result<bool> {
    let text = "SELECT EXISTS (SELECT 1 FROM journal WHERE number BETWEEN 1 AND $1 AND length(body) > 0)";
    sqlx::query_scalar(text).bind(newest).fetch_one(connection).await
}

/// Takes rows out of the journal that are in the tables, and the mark with
/// them. The newest stays behind without a body, so that no number ever comes
/// twice.
pub(super) async fn forget(connection: &mut SqliteConnection, newest: i64) -> sqlx::Result<()> {
    let text = "DELETE FROM journal WHERE number < $1; UPDATE journal SET body = x'' WHERE number = $1";
    sqlx::query(text).bind(newest).execute(connection).await?;
    Ok(())
}

/// How far the usage of the journal's rows up to `newest` is in its table. The
/// mark is the journal's row 0 and changes in the same transaction as the
/// table, so that usage is added once, whoever goes on.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Mark {
    pub newest: i64,
    /// Everything up to here is added.
    pub key: UsageKey,
}

impl Mark {
    pub async fn read(connection: &mut SqliteConnection) -> Result<Option<Self>, Failure> {
        let query = sqlx::query_scalar("SELECT body FROM journal WHERE number = 0");
        let body: Option<Vec<u8>> = query.fetch_optional(connection).await?;
        let mark = body.map(|body| postcard::from_bytes(&body)).transpose();
        Ok(mark.map_err(|error| LedgerError::Corrupt(format!("the journal's mark: {error}")))?)
    }

    pub async fn write(&self, connection: &mut SqliteConnection) -> Result<(), Failure> {
        let body = postcard::to_stdvec(self)
            .map_err(|error| LedgerError::Corrupt(format!("the journal's mark: {error}")))?;
        let text = "INSERT INTO journal (number, body) VALUES (0, $1)
                    ON CONFLICT (number) DO UPDATE SET body = excluded.body";
        sqlx::query(text).bind(body).execute(connection).await?;
        Ok(())
    }

    /// Whether that part of a row is added.
    pub fn covers(&self, row: i64, key: &UsageKey) -> bool {
        row <= self.newest && *key <= self.key
    }
}
