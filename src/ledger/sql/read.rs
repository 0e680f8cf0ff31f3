//! Reading holds, accounts and usage.

use std::ops::Range;
use std::sync::Arc;

use crate::domain::charge::{AccountKey, TenantRef};
use crate::domain::hold::Hold;
use crate::domain::ids::{HoldId, InvalidId, RequestId, UserId};
use crate::domain::plan::Scope;
use crate::domain::time::Millis;
use crate::ledger::encoding::unpack_hold;
use crate::ledger::{
    DoubtKey, DuplicatesQuery, FeedQuery, Group, HistoryQuery, LedgerError, MinutesQuery, RankingQuery,
    StoredAccount,
};

use super::batch::stored_digest;
use super::doubts::{DOUBTFUL, DOUBTFUL_OF_USER};
use super::duplicates;
use super::feed;
use super::history;
use super::minutes;
use super::rankings;
use super::totals;
use super::value::Bind;
use super::{Columns, Failure, Sql, Value, get, values};

/// A question about holds, accounts or usage: one statement.
#[derive(Debug)]
pub enum Query {
    Account {
        key: AccountKey,
        requests_since: Millis,
    },
    Hold {
        tenant: TenantRef,
        id: HoldId,
    },
    HoldByRequest {
        tenant: TenantRef,
        user: UserId,
        digest: u64,
    },
    Doubtful {
        tenant: TenantRef,
        user: Option<UserId>,
        after: DoubtKey,
        before: Millis,
        limit: u32,
    },
    Usage {
        tenant: TenantRef,
        group: Group,
        days: Range<i32>,
    },
    History {
        tenant: TenantRef,
        query: HistoryQuery,
    },
    /// A user's holds with ids in between, both excluded, ascending.
    Made {
        tenant: TenantRef,
        user: UserId,
        after: HoldId,
        before: HoldId,
        limit: u32,
    },
    Duplicates {
        tenant: TenantRef,
        query: DuplicatesQuery,
    },
    Minutes {
        tenant: TenantRef,
        query: MinutesQuery,
    },
    Ranking {
        tenant: TenantRef,
        query: RankingQuery,
        today: i32,
        limit: u32,
    },
    Feed {
        tenant: TenantRef,
        query: FeedQuery,
    },
}

impl Query {
    pub async fn rows<C: Sql>(&self, connection: &mut C) -> sqlx::Result<Vec<C::Row>> {
        let (text, values) = self.statement::<C>();
        connection.rows(text, values).await
    }

    pub fn statement<C: Sql>(&self) -> (&'static str, Vec<Value>) {
        match self {
            Self::Account { key, requests_since } => {
                let text = match key.scope {
                    Scope::User => C::USER_ACCOUNT,
                    Scope::Org => ORG_ACCOUNT,
                    Scope::Tenant | Scope::Pool => WIDE_ACCOUNT,
                };
                let owner = Arc::clone(&key.owner);
                (text, values![key.tenant.0, key.scope as u8, owner, requests_since.0])
            }
            Self::Hold { tenant, id } => (HOLD, values![id.0.to_be_bytes(), tenant.0]),
            Self::HoldByRequest { tenant, user, digest } => {
                (HOLD_BY_REQUEST, values![tenant.0, user.shared(), stored_digest(*digest)])
            }
            Self::Doubtful { tenant, user, after, before, limit } => {
                let text = if user.is_some() { DOUBTFUL_OF_USER } else { DOUBTFUL };
                let hold = after.hold.0.to_be_bytes();
                let mut values = values![tenant.0, after.since.0, before.0, hold, *limit];
                values.extend(user.as_ref().map(|user| user.shared().bind()));
                (text, values)
            }
            Self::Usage { tenant, group, days } => totals::usage(*tenant, *group, days),
            Self::Made { tenant, user, after, before, limit } => {
                let (after, before) = (after.0.to_be_bytes(), before.0.to_be_bytes());
                (MADE, values![tenant.0, user.shared(), after, before, *limit])
            }
            Self::History { tenant, query } => (C::HISTORY, history::parameters(*tenant, query)),
            Self::Duplicates { tenant, query } => duplicates::statement::<C>(*tenant, query),
            Self::Minutes { tenant, query } => minutes::statement(*tenant, query),
            Self::Feed { tenant, query } => feed::statement(*tenant, *query),
            Self::Ranking { tenant, query, today, limit } => {
                rankings::statement::<C>(*tenant, query, *today, *limit)
            }
        }
    }
}

/// Parts of an account, told apart by their first column. One statement sees
/// one moment: state, holds and request ids always fit together.
macro_rules! account_parts {
    ($holds:literal) => {
        concat!(
            "SELECT 0, state, CAST(NULL AS bigint), CAST(NULL AS bigint) FROM accounts
             WHERE tenant = $1 AND scope = $2 AND owner = $3
             UNION ALL SELECT 1, body, CAST(NULL AS bigint), CAST(NULL AS bigint) FROM holds
             WHERE tenant = $1 AND finished_at IS NULL",
            $holds
        )
    };
}

pub const ORG_ACCOUNT: &str = account_parts!(" AND org = $3");
/// A tenant's and a pool's unfinished holds are nearly all that there are.
pub const WIDE_ACCOUNT: &str = account_parts!("");

/// Puts an account together from its parts.
pub fn stored_account<R: Columns>(key: &AccountKey, rows: Vec<R>) -> Result<StoredAccount, LedgerError> {
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

/// Whether the account has to know the hold: it is its user's, or has a receipt
/// on it. (A user's hold may have none there: no limit of the plan counts it.)
fn touches(hold: &Hold, key: &AccountKey) -> bool {
    let is_owner = match key.scope {
        Scope::User => return true,
        Scope::Pool => hold.pool.as_ref().is_some_and(|pool| pool.as_str() == &*key.owner),
        Scope::Org | Scope::Tenant => true,
    };
    is_owner && hold.receipts.iter().any(|receipt| receipt.scope == key.scope)
}

pub const HOLD: &str = "SELECT body FROM holds WHERE id = $1 AND tenant = $2";

/// The index alone finds the digest among the user's holds.
pub const HOLD_BY_REQUEST: &str =
    "SELECT body FROM holds INDEXED BY holds_by_user WHERE tenant = $1 AND user_id = $2 AND request = $3";

pub const MADE: &str = "SELECT body FROM holds INDEXED BY holds_by_user
     WHERE tenant = $1 AND user_id = $2 AND id > $3 AND id < $4 ORDER BY id LIMIT $5";

/// The newest of the holds whose request id is the one asked for and not just
/// one of the same digest.
pub fn newest_of_request<R: Columns>(rows: Vec<R>, request: &RequestId) -> Result<Option<Hold>, LedgerError> {
    let holds =
        holds(rows)?.into_iter().filter(|hold| hold.request.as_ref().is_some_and(|mark| mark.id == *request));
    Ok(holds.max_by_key(|hold| (hold.created_at, hold.id)))
}

pub fn holds<R: Columns>(rows: Vec<R>) -> Result<Vec<Hold>, LedgerError> {
    rows.iter().map(|row| unpack_hold(get(row, 0)?)).collect()
}

/// An identifier as stored: it was valid when it was written.
pub fn named<T>(parsed: Result<T, InvalidId>) -> Result<T, LedgerError> {
    parsed.map_err(unnamed)
}

pub fn unnamed(error: InvalidId) -> LedgerError {
    LedgerError::Corrupt(format!("a stored name {error}"))
}

pub(super) fn hold_id(bytes: &[u8]) -> Result<HoldId, LedgerError> {
    let bytes = bytes.try_into().map_err(|_| LedgerError::Corrupt("a hold's id is not 16 bytes".into()))?;
    Ok(HoldId(u128::from_be_bytes(bytes)))
}

pub async fn ever_taken(connection: &mut impl Sql, tenant: TenantRef) -> Result<bool, Failure> {
    let rows = connection.rows("SELECT tenant FROM taken WHERE tenant = $1", values![tenant.0]).await?;
    Ok(!rows.is_empty())
}
