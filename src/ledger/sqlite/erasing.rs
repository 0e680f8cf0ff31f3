//! Erasing users: from an id to a pseudonym, and back.

use std::sync::Arc;

use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::audit::{self, AuditRow};
use super::batch::{Totals, UsageKey};
use super::commit;
use super::error::Failure;
use super::read::{get, named};
use super::records::refuse_deleted;
use super::users;
use crate::domain::charge::TenantRef;
use crate::domain::hold::Hold;
use crate::domain::ids::UserId;
use crate::domain::time::Millis;
use crate::ledger::encoding::{audited_user, pack_hold, unpack_hold};
use crate::ledger::{Erasure, LedgerError, Written};

/// A table by its days, of which one seek each finds a user's rows: no index
/// has them by user.
macro_rules! by_days {
    ($table:literal, $rest:literal) => {
        concat!(
            "WITH RECURSIVE days (day) AS (
                 SELECT min(day) FROM ",
            $table,
            " WHERE tenant = $1
                 UNION ALL
                 SELECT (SELECT min(day) FROM ",
            $table,
            " WHERE tenant = $1 AND day > days.day) FROM days WHERE days.day IS NOT NULL)
             ",
            $rest
        )
    };
}

pub(super) const USAGE: &str = by_days!(
    "usage",
    "SELECT usage.day, model, org, plan, feature, requests, input_tokens, output_tokens, total_tokens, credits
     FROM days CROSS JOIN usage ON usage.tenant = $1 AND usage.day = days.day AND usage.user_id = $2 LIMIT $3"
);

pub(super) const REFUSALS: &str = by_days!(
    "refusals",
    "SELECT refusals.day, code, count
     FROM days CROSS JOIN refusals
         ON refusals.tenant = $1 AND refusals.day = days.day AND refusals.user_id = $2 LIMIT $3"
);

/// Gives a user's record to the pseudonym and notes that this is under way.
pub(super) async fn begin(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    erasure: &Erasure,
    version: Option<u32>,
    written: &Written,
) -> Result<(), Failure> {
    refuse_deleted(&mut *connection, tenant.0).await?;
    let rows = users::user(&mut *connection, tenant, &erasure.user).await?;
    let user = rows.first().map(users::read).transpose()?.filter(|user| !user.erased);
    let Some(user) = user.filter(|user| version.is_none_or(|version| version == user.version)) else {
        return Err(LedgerError::Conflict.into());
    };
    let text = "UPDATE OR REPLACE users SET id = $3, erased = 1, look_at = NULL, signals = NULL,
                    version = version + 1 WHERE tenant = $1 AND id = $2";
    let query = sqlx::query(text).bind(tenant.0).bind(erasure.user.shared());
    query.bind(erasure.pseudonym.shared()).execute(&mut *connection).await?;
    note(&mut *connection, tenant, erasure, written.at).await?;
    let old = Some(audited_user(&user).to_string());
    audit_row(connection, tenant, erasure, ("user.erase", old), written).await
}

/// Notes that an erasure is under way.
pub(super) async fn note(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    erasure: &Erasure,
    now: Millis,
) -> Result<(), Failure> {
    refuse_deleted(&mut *connection, tenant.0).await?;
    let text = "INSERT INTO erasures (tenant, user_id, pseudonym, begun_at) VALUES ($1, $2, $3, $4)
                ON CONFLICT (tenant, user_id) DO NOTHING";
    let query = sqlx::query(text).bind(tenant.0).bind(erasure.user.shared());
    query.bind(erasure.pseudonym.shared()).bind(now.0).execute(connection).await?;
    Ok(())
}

/// The audit outlives the erasure: it names the pseudonym.
async fn audit_row(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    erasure: &Erasure,
    (action, old): (&str, Option<String>),
    written: &Written,
) -> Result<(), Failure> {
    let target = erasure.pseudonym.as_str();
    let row = AuditRow { tenant: tenant.0, action, target, old, new: None, written };
    Ok(audit::add(connection, row).await?)
}

pub(super) async fn under_way(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
) -> sqlx::Result<Vec<SqliteRow>> {
    let text = "SELECT user_id, pseudonym FROM erasures WHERE tenant = $1 ORDER BY begun_at, user_id";
    sqlx::query(text).bind(tenant.0).fetch_all(connection).await
}

pub(super) fn erasure(row: &SqliteRow) -> Result<Erasure, LedgerError> {
    Ok(Erasure { user: named(UserId::parse(get(row, 0)?))?, pseudonym: named(UserId::parse(get(row, 1)?))? })
}

/// Renames the next rows: the holds first, then what is added up.
pub(super) async fn rename_history(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    erasure: &Erasure,
    rows: u32,
) -> Result<bool, Failure> {
    refuse_deleted(&mut *connection, tenant.0).await?;
    Ok(rename_holds(&mut *connection, tenant, erasure, rows).await?
        || rename_usage(&mut *connection, tenant, erasure, rows).await?
        || rename_refusals(&mut *connection, tenant, erasure, rows).await?)
}

async fn rename_holds(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    erasure: &Erasure,
    rows: u32,
) -> Result<bool, Failure> {
    let text =
        "SELECT id, body FROM holds INDEXED BY holds_by_user WHERE tenant = $1 AND user_id = $2 LIMIT $3";
    let query = sqlx::query(text).bind(tenant.0).bind(erasure.user.shared()).bind(rows);
    let found = query.fetch_all(&mut *connection).await?;
    for row in &found {
        let (id, body): (Vec<u8>, Vec<u8>) = (row.try_get(0)?, row.try_get(1)?);
        let hold = unpack_hold(&body)?;
        let hold = Hold { user: erasure.pseudonym.clone(), admits_user: false, ..hold };
        let query = sqlx::query("UPDATE holds SET user_id = $2, body = $3 WHERE id = $1").bind(id);
        query.bind(hold.user.shared()).bind(pack_hold(&hold)?).execute(&mut *connection).await?;
    }
    Ok(!found.is_empty())
}

async fn rename_usage(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    erasure: &Erasure,
    rows: u32,
) -> Result<bool, Failure> {
    let query = sqlx::query(USAGE).bind(tenant.0).bind(erasure.user.shared()).bind(rows);
    let found = query.fetch_all(&mut *connection).await?;
    let mut added = Vec::with_capacity(found.len());
    for row in &found {
        let name = |at: usize| get::<&str>(row, at).map(Arc::from);
        let key = UsageKey {
            tenant: tenant.0,
            day: get(row, 0)?,
            user: erasure.pseudonym.shared(),
            model: name(1)?,
            org: name(2)?,
            plan: name(3)?,
            feature: name(4)?,
        };
        let figures = [get(row, 5)?, get(row, 6)?, get(row, 7)?, get(row, 8)?, get(row, 9)?];
        let text = "DELETE FROM usage WHERE tenant = $1 AND day = $2 AND user_id = $3 AND model = $4
                    AND org = $5 AND plan = $6 AND feature = $7";
        let query = sqlx::query(text).bind(tenant.0).bind(key.day).bind(erasure.user.shared());
        let query = query.bind(key.model.clone()).bind(key.org.clone()).bind(key.plan.clone());
        query.bind(key.feature.clone()).execute(&mut *connection).await?;
        added.push((key, Totals(figures)));
    }
    commit::write_usage(connection, &added).await?;
    Ok(!added.is_empty())
}

async fn rename_refusals(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    erasure: &Erasure,
    rows: u32,
) -> Result<bool, Failure> {
    let (user, pseudonym) = (erasure.user.shared(), erasure.pseudonym.shared());
    let query = sqlx::query(REFUSALS).bind(tenant.0).bind(user.clone()).bind(rows);
    let found = query.fetch_all(&mut *connection).await?;
    for row in &found {
        let (day, code, count): (i64, String, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let text = "INSERT INTO refusals (tenant, day, user_id, code, count) VALUES ($1, $2, $3, $4, $5)
                    ON CONFLICT (tenant, day, user_id, code)
                    DO UPDATE SET count = min(9007199254740991, refusals.count + excluded.count)";
        let query = sqlx::query(text).bind(tenant.0).bind(day).bind(pseudonym.clone()).bind(&code);
        query.bind(count).execute(&mut *connection).await?;
        let text = "DELETE FROM refusals WHERE tenant = $1 AND day = $2 AND user_id = $3 AND code = $4";
        let query = sqlx::query(text).bind(tenant.0).bind(day).bind(user.clone()).bind(&code);
        query.execute(&mut *connection).await?;
    }
    // The newer of two lists of last refusals stays.
    let text = "UPDATE OR REPLACE refused SET user_id = $3 WHERE tenant = $1 AND user_id = $2";
    sqlx::query(text).bind(tenant.0).bind(user).bind(pseudonym).execute(connection).await?;
    Ok(!found.is_empty())
}

/// Nothing is left to do. A check that knew nothing of the user may have put
/// them on record while their account was on its way.
pub(super) async fn end(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    erasure: &Erasure,
    at: Option<Millis>,
) -> Result<(), Failure> {
    let query = sqlx::query(
        "DELETE FROM users WHERE tenant = $1 AND id = $2 AND EXISTS (
             SELECT 1 FROM users WHERE tenant = $1 AND id = $3 AND erased = 1)",
    )
    .bind(tenant.0);
    query.bind(erasure.user.shared()).bind(erasure.pseudonym.shared()).execute(&mut *connection).await?;
    look_at(&mut *connection, tenant, &erasure.pseudonym, at).await?;
    under_way_no_more(connection, tenant, erasure).await
}

async fn under_way_no_more(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    erasure: &Erasure,
) -> Result<(), Failure> {
    let query = sqlx::query("DELETE FROM erasures WHERE tenant = $1 AND user_id = $2").bind(tenant.0);
    query.bind(erasure.user.shared()).execute(connection).await?;
    Ok(())
}

pub(super) async fn return_user(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    erasure: &Erasure,
    written: &Written,
) -> Result<(), Failure> {
    let text = "UPDATE OR REPLACE users SET id = $3, erased = 0, look_at = NULL, version = version + 1
                WHERE tenant = $1 AND id = $2 AND erased = 1";
    let query = sqlx::query(text).bind(tenant.0).bind(erasure.pseudonym.shared());
    let done = query.bind(erasure.user.shared()).execute(&mut *connection).await?;
    if done.rows_affected() == 0 {
        return Err(LedgerError::Conflict.into());
    }
    under_way_no_more(&mut *connection, tenant, erasure).await?;
    audit_row(connection, tenant, erasure, ("user.return", None), written).await
}

pub(super) async fn look_at(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    pseudonym: &UserId,
    at: Option<Millis>,
) -> Result<(), Failure> {
    let text = "UPDATE users SET look_at = $3 WHERE tenant = $1 AND id = $2 AND erased = 1";
    let query = sqlx::query(text).bind(tenant.0).bind(pseudonym.shared()).bind(at.map(|at| at.0));
    query.execute(connection).await?;
    Ok(())
}

pub(super) async fn forget(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    pseudonym: &UserId,
) -> Result<(), Failure> {
    let query = sqlx::query("DELETE FROM users WHERE tenant = $1 AND id = $2 AND erased = 1");
    query.bind(tenant.0).bind(pseudonym.shared()).execute(&mut *connection).await?;
    let query = sqlx::query("DELETE FROM accounts WHERE tenant = $1 AND scope = 0 AND owner = $2");
    query.bind(tenant.0).bind(pseudonym.shared()).execute(connection).await?;
    Ok(())
}
