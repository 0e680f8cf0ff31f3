//! Reading holds, accounts and usage.

use std::sync::Arc;

use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::domain::charge::{AccountKey, TenantRef};
use crate::domain::hold::{Amounts, Hold};
use crate::domain::ids::{HoldId, InvalidId, Label, Name, RequestId, UserId};
use crate::domain::plan::Scope;
use crate::domain::time::Millis;
use crate::ledger::encoding::unpack_hold;
use crate::ledger::{DoubtKey, HistoryQuery, LedgerError, StoredAccount, UsageRow};

use super::batch::stored_digest;
use super::doubts::{DOUBTFUL, DOUBTFUL_OF_USER};
use super::history::{self, ended_late};

/// A question about holds, accounts or usage: one statement.
#[derive(Debug)]
pub(super) enum Query {
    Account { key: AccountKey, requests_since: Millis },
    Hold { tenant: TenantRef, id: HoldId },
    HoldByRequest { tenant: TenantRef, user: UserId, digest: u64 },
    Doubtful { tenant: TenantRef, user: Option<UserId>, after: DoubtKey, before: Millis, limit: u32 },
    Usage { tenant: TenantRef, from: i32, to: i32 },
    History { tenant: TenantRef, query: HistoryQuery },
}

impl Query {
    pub async fn rows(&self, connection: &mut SqliteConnection) -> sqlx::Result<Vec<SqliteRow>> {
        let query = match self {
            Self::Account { key, requests_since } => {
                let text = match key.scope {
                    Scope::User => USER_ACCOUNT,
                    Scope::Org => ORG_ACCOUNT,
                    Scope::Tenant | Scope::Pool => WIDE_ACCOUNT,
                };
                let query = sqlx::query(text).bind(key.tenant.0).bind(key.scope as u8);
                query.bind(Arc::clone(&key.owner)).bind(requests_since.0)
            }
            Self::Hold { tenant, id } => sqlx::query(HOLD).bind(id.0.to_be_bytes().to_vec()).bind(tenant.0),
            Self::HoldByRequest { tenant, user, digest } => {
                sqlx::query(HOLD_BY_REQUEST).bind(tenant.0).bind(user.shared()).bind(stored_digest(*digest))
            }
            Self::Doubtful { tenant, user, after, before, limit } => {
                let text = if user.is_some() { DOUBTFUL_OF_USER } else { DOUBTFUL };
                let query = sqlx::query(text).bind(tenant.0).bind(after.since.0).bind(before.0);
                let query = query.bind(after.hold.0.to_be_bytes().to_vec()).bind(*limit);
                match user {
                    Some(user) => query.bind(user.shared()),
                    None => query,
                }
            }
            Self::Usage { tenant, from, to } => sqlx::query(USAGE).bind(tenant.0).bind(*from).bind(*to),
            Self::History { tenant, query } => return history::rows(connection, *tenant, query).await,
        };
        query.fetch_all(connection).await
    }
}

/// Parts of an account, told apart by their first column. One statement sees
/// one moment: state, holds and request ids always fit together.
macro_rules! account_parts {
    ($holds:literal) => {
        concat!(
            "SELECT 0, state, NULL, NULL FROM accounts WHERE tenant = $1 AND scope = $2 AND owner = $3
             UNION ALL SELECT 1, body, NULL, NULL FROM holds WHERE tenant = $1 AND finished_at IS NULL",
            $holds
        )
    };
}

/// Whatever ended since then is young, or ended late.
pub(super) const USER_ACCOUNT: &str = concat!(
    account_parts!(" AND user_id = $3"),
    " UNION ALL SELECT 2, id, request, finished_at FROM holds INDEXED BY holds_by_user
      WHERE tenant = $1 AND user_id = $3 AND id >= unhex(printf('%012X', max($4 - 120000, 0)))
      AND request IS NOT NULL AND finished_at >= $4
      UNION ALL SELECT 2, id, request, finished_at FROM holds INDEXED BY holds_ended_late
      WHERE tenant = $1 AND user_id = $3 AND id < unhex(printf('%012X', max($4 - 120000, 0)))
      AND request IS NOT NULL AND finished_at >= $4 AND ",
    ended_late!()
);
pub(super) const ORG_ACCOUNT: &str = account_parts!(" AND org = $3");
/// A tenant's and a pool's unfinished holds are nearly all that there are.
pub(super) const WIDE_ACCOUNT: &str = account_parts!("");

/// Puts an account together from its parts.
pub(super) fn stored_account(key: &AccountKey, rows: Vec<SqliteRow>) -> Result<StoredAccount, LedgerError> {
    let mut stored = StoredAccount::default();
    for row in rows {
        match get::<i64>(&row, 0)? {
            0 => stored.state = Some(get(&row, 1)?),
            1 => {
                let hold = unpack_hold(get(&row, 1)?)?;
                if let Some(mark) = hold.request.as_ref().filter(|_| key.scope == Scope::User) {
                    stored.requests.push((mark.id.digest(), hold.id, None));
                }
                if touches(&hold, key) {
                    stored.unfinished.push(hold.into());
                }
            }
            _ => {
                let digest: i64 = get(&row, 2)?;
                stored.requests.push((
                    digest.cast_unsigned(),
                    hold_id(get(&row, 1)?)?,
                    Some(Millis(get(&row, 3)?)),
                ));
            }
        }
    }
    Ok(stored)
}

/// Whether the hold has a receipt on the account.
fn touches(hold: &Hold, key: &AccountKey) -> bool {
    let is_owner = match key.scope {
        Scope::Pool => hold.pool.as_ref().is_some_and(|pool| pool.as_str() == &*key.owner),
        Scope::User | Scope::Org | Scope::Tenant => true,
    };
    is_owner && hold.receipts.iter().any(|receipt| receipt.scope == key.scope)
}

pub(super) const HOLD: &str = "SELECT body FROM holds WHERE id = $1 AND tenant = $2";

/// The index alone finds the digest among the user's holds.
pub(super) const HOLD_BY_REQUEST: &str =
    "SELECT body FROM holds INDEXED BY holds_by_user WHERE tenant = $1 AND user_id = $2 AND request = $3";

/// The newest of the holds whose request id is the one asked for and not just
/// one of the same digest.
pub(super) fn newest_of_request(
    rows: Vec<SqliteRow>,
    request: &RequestId,
) -> Result<Option<Hold>, LedgerError> {
    let holds =
        holds(rows)?.into_iter().filter(|hold| hold.request.as_ref().is_some_and(|mark| mark.id == *request));
    Ok(holds.max_by_key(|hold| (hold.created_at, hold.id)))
}

pub(super) fn holds(rows: Vec<SqliteRow>) -> Result<Vec<Hold>, LedgerError> {
    rows.iter().map(|row| unpack_hold(get(row, 0)?)).collect()
}

pub(super) const USAGE: &str =
    "SELECT day, user_id, org, plan, model, feature, requests, input_tokens, output_tokens, total_tokens, credits
     FROM usage WHERE tenant = $1 AND day >= $2 AND day < $3
     ORDER BY day, user_id, model, org, plan, feature";

pub(super) fn usage_row(row: &SqliteRow) -> Result<UsageRow, LedgerError> {
    // Below zero only between a correction and what it corrects.
    let amount = |at: usize| get::<i64>(row, at).map(|sum| sum.max(0).cast_unsigned());
    let or_none = |at: usize| get::<&str>(row, at).map(|text| Some(text).filter(|text| !text.is_empty()));
    Ok(UsageRow {
        day: get(row, 0)?,
        user: named(UserId::parse(get(row, 1)?))?,
        org: or_none(2)?.map(Name::parse).transpose().map_err(unnamed)?,
        plan: named(Name::parse(get(row, 3)?))?,
        model: or_none(4)?.map(Name::parse).transpose().map_err(unnamed)?,
        feature: or_none(5)?.map(Label::parse).transpose().map_err(unnamed)?,
        amounts: Amounts {
            requests: amount(6)?,
            input_tokens: amount(7)?,
            output_tokens: amount(8)?,
            total_tokens: amount(9)?,
            credits: amount(10)?,
        },
    })
}

/// A column's value, or what is wrong with it.
pub(super) fn get<'r, T>(row: &'r SqliteRow, at: usize) -> Result<T, LedgerError>
where
    T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    row.try_get(at).map_err(|error| LedgerError::Corrupt(error.to_string()))
}

/// An identifier as stored: it was valid when it was written.
pub(super) fn named<T>(parsed: Result<T, InvalidId>) -> Result<T, LedgerError> {
    parsed.map_err(unnamed)
}

pub(super) fn unnamed(error: InvalidId) -> LedgerError {
    LedgerError::Corrupt(format!("a stored name {error}"))
}

fn hold_id(bytes: &[u8]) -> Result<HoldId, LedgerError> {
    let bytes = bytes.try_into().map_err(|_| LedgerError::Corrupt("a hold's id is not 16 bytes".into()))?;
    Ok(HoldId(u128::from_be_bytes(bytes)))
}

pub(super) async fn ever_taken(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
) -> sqlx::Result<Vec<SqliteRow>> {
    sqlx::query("SELECT 1 FROM taken WHERE tenant = $1").bind(tenant.0).fetch_all(connection).await
}
