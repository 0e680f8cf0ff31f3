//! Erasing users: from an id to a pseudonym, and back.

use super::audit::{self, AuditRow};
use super::read::named;
use super::records::refuse_deleted;
use super::{Columns, Failure, Sql, each, get, values};
use super::{activity, tallies, totals};
use super::{users, webhooks};
use crate::domain::charge::TenantRef;
use crate::domain::hold::Hold;
use crate::domain::ids::{HoldId, UserId};
use crate::domain::time::Millis;
use crate::ledger::encoding::{audited_user, pack_hold, unpack_hold};
use crate::ledger::{Erasure, LedgerError, Written};

/// By their days, of which one seek each finds a user's rows: no index has them by
/// user.
pub const REFUSALS: &str = "WITH RECURSIVE days (day) AS (
     SELECT min(day) FROM refusals WHERE tenant = $1
     UNION ALL
     SELECT (SELECT min(day) FROM refusals WHERE tenant = $1 AND day > days.day)
     FROM days WHERE days.day IS NOT NULL)
 SELECT refusals.day, code, count FROM days CROSS JOIN refusals
 WHERE refusals.tenant = $1 AND refusals.day = days.day AND refusals.user_id = $2 LIMIT $3";

/// Gives a user's record to the pseudonym and notes that this is under way.
pub async fn begin(
    connection: &mut impl Sql,
    tenant: TenantRef,
    erasure: &Erasure,
    version: Option<u32>,
    written: &Written,
) -> Result<(), Failure> {
    refuse_deleted(connection, tenant.0).await?;
    let rows = connection.rows_to_change(users::USER, values![tenant.0, erasure.user.shared()]).await?;
    let user = rows.first().map(users::read).transpose()?.filter(|user| !user.erased);
    let Some(user) = user.filter(|user| version.is_none_or(|version| version == user.version)) else {
        return Err(LedgerError::Conflict.into());
    };
    remove_record(connection, tenant, &erasure.pseudonym).await?;
    let text = "UPDATE users SET id = $3, erased = 1, look_at = NULL, signals = NULL, version = version + 1
                WHERE tenant = $1 AND id = $2";
    let values = values![tenant.0, erasure.user.shared(), erasure.pseudonym.shared()];
    connection.execute(text, values).await?;
    note(connection, tenant, erasure, written.at).await?;
    webhooks::forget_user(connection, tenant, &erasure.user).await?;
    webhooks::rename_alerts(connection, tenant, &erasure.user, &erasure.pseudonym).await?;
    let old = Some(audited_user(&user).to_string());
    audit_row(connection, tenant, erasure, ("user.erase", old), written).await?;
    audit::next_revision(connection).await.map(drop)
}

/// Makes room for the record of another id.
async fn remove_record(connection: &mut impl Sql, tenant: TenantRef, id: &UserId) -> sqlx::Result<()> {
    let text = "DELETE FROM users WHERE tenant = $1 AND id = $2";
    connection.execute(text, values![tenant.0, id.shared()]).await.map(drop)
}

/// Notes that an erasure is under way.
pub async fn note(
    connection: &mut impl Sql,
    tenant: TenantRef,
    erasure: &Erasure,
    now: Millis,
) -> Result<(), Failure> {
    refuse_deleted(connection, tenant.0).await?;
    let text = "INSERT INTO erasures (tenant, user_id, pseudonym, begun_at) VALUES ($1, $2, $3, $4)
                ON CONFLICT (tenant, user_id) DO NOTHING";
    let values = values![tenant.0, erasure.user.shared(), erasure.pseudonym.shared(), now.0];
    connection.execute(text, values).await?;
    Ok(())
}

/// The audit outlives the erasure: it names the pseudonym.
async fn audit_row(
    connection: &mut impl Sql,
    tenant: TenantRef,
    erasure: &Erasure,
    (action, old): (&str, Option<String>),
    written: &Written,
) -> Result<(), Failure> {
    let target = erasure.pseudonym.as_str();
    let row = AuditRow { tenant: tenant.0, action, target, old, new: None, written };
    Ok(audit::add(connection, row).await?)
}

pub async fn under_way(connection: &mut impl Sql, tenant: TenantRef) -> Result<Vec<Erasure>, Failure> {
    let text = "SELECT user_id, pseudonym FROM erasures WHERE tenant = $1 ORDER BY begun_at, user_id";
    each(&connection.rows(text, values![tenant.0]).await?, erasure)
}

pub fn erasure(row: &impl Columns) -> Result<Erasure, LedgerError> {
    Ok(Erasure { user: named(UserId::parse(get(row, 0)?))?, pseudonym: named(UserId::parse(get(row, 1)?))? })
}

/// Renames the next rows: the holds first, then what is added up.
pub async fn rename_history(
    connection: &mut impl Sql,
    tenant: TenantRef,
    erasure: &Erasure,
    rows: u32,
) -> Result<Option<Vec<HoldId>>, Failure> {
    refuse_deleted(connection, tenant.0).await?;
    let holds = rename_holds(connection, tenant, erasure, rows).await?;
    activity::forget_user(connection, tenant, erasure).await?;
    let any = !holds.is_empty()
        || totals::rename(connection, tenant, erasure, rows).await?
        || rename_refusals(connection, tenant, erasure, rows).await?;
    Ok(any.then_some(holds))
}

async fn rename_holds(
    connection: &mut impl Sql,
    tenant: TenantRef,
    erasure: &Erasure,
    rows: u32,
) -> Result<Vec<HoldId>, Failure> {
    let text =
        "SELECT id, body FROM holds INDEXED BY holds_by_user WHERE tenant = $1 AND user_id = $2 LIMIT $3";
    let found = connection.rows_to_change(text, values![tenant.0, erasure.user.shared(), rows]).await?;
    let mut renamed = Vec::with_capacity(found.len());
    for row in &found {
        let (id, body): (Vec<u8>, &[u8]) = (get(row, 0)?, get(row, 1)?);
        let hold = unpack_hold(body)?;
        let hold = Hold { user: erasure.pseudonym.clone(), admits_user: false, ..hold };
        renamed.push(hold.id);
        let text = "UPDATE holds SET user_id = $2, body = $3 WHERE id = $1";
        connection.execute(text, values![id, hold.user.shared(), pack_hold(&hold)?]).await?;
    }
    Ok(renamed)
}

async fn rename_refusals(
    connection: &mut impl Sql,
    tenant: TenantRef,
    erasure: &Erasure,
    rows: u32,
) -> Result<bool, Failure> {
    let (user, pseudonym) = (erasure.user.shared(), erasure.pseudonym.shared());
    let mut added = Vec::new();
    let found = connection.rows(REFUSALS, values![tenant.0, user.clone(), rows]).await?;
    for row in &found {
        let (day, code, count): (i64, &str, i64) = (get(row, 0)?, get(row, 1)?, get(row, 2)?);
        added.extend(values![tenant.0, day, pseudonym.clone(), code, count]);
        let text = "DELETE FROM refusals WHERE tenant = $1 AND day = $2 AND user_id = $3 AND code = $4";
        connection.execute(text, values![tenant.0, day, user.clone(), code]).await?;
    }
    connection.write_rows(&tallies::REFUSALS, added).await?;
    // The newer of two lists of last refusals stays.
    let text = "DELETE FROM refused WHERE tenant = $1 AND user_id = $3
                AND EXISTS (SELECT 1 FROM refused WHERE tenant = $1 AND user_id = $2)";
    connection.execute(text, values![tenant.0, user.clone(), pseudonym.clone()]).await?;
    let text = "UPDATE refused SET user_id = $3 WHERE tenant = $1 AND user_id = $2";
    connection.execute(text, values![tenant.0, user, pseudonym]).await?;
    Ok(!found.is_empty())
}

/// Nothing is left to do. A check that knew nothing of the user may have put
/// them on record while their account was on its way.
pub async fn end(
    connection: &mut impl Sql,
    tenant: TenantRef,
    erasure: &Erasure,
    at: Option<Millis>,
) -> Result<(), Failure> {
    let text = "DELETE FROM users WHERE tenant = $1 AND id = $2 AND EXISTS (
                    SELECT 1 FROM users WHERE tenant = $1 AND id = $3 AND erased = 1)";
    let values = values![tenant.0, erasure.user.shared(), erasure.pseudonym.shared()];
    connection.execute(text, values).await?;
    look_at(connection, tenant, &erasure.pseudonym, at).await?;
    // What was on its way when the erasure began may have come.
    webhooks::forget_user(connection, tenant, &erasure.user).await?;
    under_way_no_more(connection, tenant, erasure).await?;
    audit::next_revision(connection).await.map(drop)
}

async fn under_way_no_more(
    connection: &mut impl Sql,
    tenant: TenantRef,
    erasure: &Erasure,
) -> Result<(), Failure> {
    let text = "DELETE FROM erasures WHERE tenant = $1 AND user_id = $2";
    connection.execute(text, values![tenant.0, erasure.user.shared()]).await?;
    Ok(())
}

pub async fn return_user(
    connection: &mut impl Sql,
    tenant: TenantRef,
    erasure: &Erasure,
    written: &Written,
) -> Result<(), Failure> {
    remove_record(connection, tenant, &erasure.user).await?;
    let text = "UPDATE users SET id = $3, erased = 0, look_at = NULL, version = version + 1
                WHERE tenant = $1 AND id = $2 AND erased = 1";
    let values = values![tenant.0, erasure.pseudonym.shared(), erasure.user.shared()];
    if connection.execute(text, values).await? == 0 {
        return Err(LedgerError::Conflict.into());
    }
    webhooks::rename_alerts(connection, tenant, &erasure.pseudonym, &erasure.user).await?;
    under_way_no_more(connection, tenant, erasure).await?;
    audit_row(connection, tenant, erasure, ("user.return", None), written).await?;
    audit::next_revision(connection).await.map(drop)
}

pub async fn look_at(
    connection: &mut impl Sql,
    tenant: TenantRef,
    pseudonym: &UserId,
    at: Option<Millis>,
) -> Result<(), Failure> {
    let text = "UPDATE users SET look_at = $3 WHERE tenant = $1 AND id = $2 AND erased = 1";
    connection.execute(text, values![tenant.0, pseudonym.shared(), at.map(|at| at.0)]).await?;
    Ok(())
}

pub async fn forget(connection: &mut impl Sql, tenant: TenantRef, pseudonym: &UserId) -> Result<(), Failure> {
    let text = "DELETE FROM users WHERE tenant = $1 AND id = $2 AND erased = 1";
    connection.execute(text, values![tenant.0, pseudonym.shared()]).await?;
    let text = "DELETE FROM accounts WHERE tenant = $1 AND scope = 0 AND owner = $2";
    connection.execute(text, values![tenant.0, pseudonym.shared()]).await?;
    webhooks::forget_alerts(connection, tenant, pseudonym).await?;
    audit::next_revision(connection).await.map(drop)
}
