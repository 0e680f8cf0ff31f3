//! Users on record.

use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::audit::{self, AuditRow};
use super::error::Failure;
use super::read::{get, named, unnamed};
use super::records::refuse_deleted;
use crate::domain::charge::TenantRef;
use crate::domain::ids::{Name, UserId};
use crate::domain::time::Millis;
use crate::ledger::encoding::{audited_user, audited_user_action, pack_rights, unpack_rights};
use crate::ledger::{LedgerError, Signals, User, UserQuery, Written};

macro_rules! select_users {
    ($from:literal, $($which:literal)*) => {
        concat!(
            "SELECT id, plan, plan_since, plan_sequence, org, verified, suspended, zone, anchor_day,
                    signals, created_at, version, rights, born, moved, erased
             FROM ",
            $from,
            " WHERE tenant = $1 AND ",
            $($which),*
        )
    };
}

/// Each page reads one index from `after` on. Without statistics SQLite would
/// read all users of a tenant for the few of a plan. `instr` finds exact bytes.
macro_rules! page_of_users {
    ($from:literal, $which:literal) => {
        select_users!(
            $from,
            "id > $2 AND erased = 0 AND ($3 IS NULL OR instr(id, $3) > 0)" $which " ORDER BY id LIMIT $6"
        )
    };
}

pub(super) const USER: &str = select_users!("users", "id = $2");
pub(super) const ALL: &str = page_of_users!("users", "");
pub(super) const OF_PLAN: &str = page_of_users!("users INDEXED BY users_by_plan", " AND plan = $4");
pub(super) const OF_ORG: &str =
    page_of_users!("users INDEXED BY users_by_org", " AND org = $5 AND ($4 IS NULL OR plan = $4)");

pub(super) const TO_MOVE: &str =
    select_users!("users INDEXED BY users_by_change", "changes_at <= $2 ORDER BY changes_at LIMIT $3");

pub(super) const ERASED_DUE: &str =
    select_users!("users INDEXED BY users_erased", "erased = 1 AND look_at <= $2 ORDER BY look_at LIMIT $3");

pub(super) async fn erased_due(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    now: Millis,
    limit: u32,
) -> sqlx::Result<Vec<SqliteRow>> {
    sqlx::query(ERASED_DUE).bind(tenant.0).bind(now.0).bind(limit).fetch_all(connection).await
}

pub(super) async fn to_move(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    now: Millis,
    limit: u32,
) -> sqlx::Result<Vec<SqliteRow>> {
    sqlx::query(TO_MOVE).bind(tenant.0).bind(now.0).bind(limit).fetch_all(connection).await
}

pub(super) async fn user(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    id: &UserId,
) -> sqlx::Result<Vec<SqliteRow>> {
    sqlx::query(USER).bind(tenant.0).bind(id.shared()).fetch_all(connection).await
}

pub(super) async fn page(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    query: UserQuery,
) -> sqlx::Result<Vec<SqliteRow>> {
    let text = match (&query.plan, &query.org) {
        (_, Some(_)) => OF_ORG,
        (Some(_), None) => OF_PLAN,
        (None, None) => ALL,
    };
    let rows = sqlx::query(text).bind(tenant.0).bind(query.after.unwrap_or_default()).bind(query.contains);
    let rows = rows.bind(query.plan.map(|plan| plan.shared())).bind(query.org.map(|org| org.shared()));
    rows.bind(query.limit).fetch_all(connection).await
}

pub(super) fn read(row: &SqliteRow) -> Result<User, LedgerError> {
    let signals: Option<&str> = get(row, 9)?;
    let signals = signals.map(serde_json::from_str::<Signals>).transpose();
    Ok(User {
        id: named(UserId::parse(get(row, 0)?))?,
        plan: named(Name::parse(get(row, 1)?))?,
        plan_since: Millis(get(row, 2)?),
        plan_sequence: get::<Option<i64>>(row, 3)?.map(i64::cast_unsigned),
        org: get::<Option<&str>>(row, 4)?.map(Name::parse).transpose().map_err(unnamed)?,
        verified: get(row, 5)?,
        suspended: get(row, 6)?,
        zone: get(row, 7)?,
        anchor_day: get(row, 8)?,
        signals: signals.map_err(|error| LedgerError::Corrupt(format!("a user's signals: {error}")))?,
        created_at: Millis(get(row, 10)?),
        version: get(row, 11)?,
        rights: unpack_rights(get(row, 12)?)?,
        born: get::<i64>(row, 13)?.cast_unsigned(),
        moved: get::<i64>(row, 14)?.cast_unsigned(),
        erased: get(row, 15)?,
    })
}

/// Inserts or replaces a user and writes the audit row. `Conflict`: the stored
/// version is not the one before.
pub(super) async fn put(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    user: &User,
    written: &Written,
) -> Result<(), Failure> {
    refuse_deleted(&mut *connection, tenant.0).await?;
    let rows = self::user(connection, tenant, &user.id).await?;
    let old = rows.first().map(read).transpose()?;
    let version = old.as_ref().map_or(0, |old| old.version);
    if version.checked_add(1) != Some(user.version) {
        return Err(LedgerError::Conflict.into());
    }
    let row = AuditRow {
        tenant: tenant.0,
        action: audited_user_action(old.as_ref(), user),
        target: user.id.as_str(),
        old: old.as_ref().map(|old| audited_user(old).to_string()),
        new: Some(audited_user(user).to_string()),
        written,
    };
    store(connection, tenant, user, old.as_ref()).await?;
    Ok(audit::add(connection, row).await?)
}

async fn store(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    user: &User,
    old: Option<&User>,
) -> Result<(), Failure> {
    let text =
        "INSERT INTO users (tenant, id, plan, plan_since, plan_sequence, org, verified, suspended, zone,
                    anchor_day, signals, created_at, version, rights, changes_at, born, moved)
                VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
                ON CONFLICT (tenant, id) DO UPDATE SET plan = excluded.plan, plan_since = excluded.plan_since,
                    plan_sequence = excluded.plan_sequence, org = excluded.org, verified = excluded.verified,
                    suspended = excluded.suspended, zone = excluded.zone, anchor_day = excluded.anchor_day,
                    signals = excluded.signals, created_at = excluded.created_at, version = excluded.version,
                    rights = excluded.rights, changes_at = excluded.changes_at, moved = excluded.moved";
    let this = audit::this_revision(&mut *connection).await?;
    let same = |old: &User| (&old.plan, old.plan_since) == (&user.plan, user.plan_since);
    let (born, moved) = revisions(this, old.map(|old| (old.born, old.moved, same(old))));
    let signals = user.signals.as_ref().map(|signals| serde_json::json!(signals).to_string());
    let rights = user.rights.as_deref();
    let query = sqlx::query(text).bind(tenant.0).bind(user.id.shared()).bind(user.plan.shared());
    let query = query.bind(user.plan_since.0).bind(user.plan_sequence.map(u64::cast_signed));
    let query =
        query.bind(user.org.as_ref().map(|org| org.shared())).bind(user.verified).bind(user.suspended);
    let query = query.bind(user.zone.as_deref()).bind(user.anchor_day).bind(signals);
    let query = query.bind(user.created_at.0).bind(user.version).bind(pack_rights(rights)?);
    let query = query.bind(rights.and_then(|rights| rights.schedule.first()).map(|next| next.at.0));
    query.bind(born.cast_signed()).bind(moved.cast_signed()).execute(connection).await?;
    Ok(())
}

/// When a row came and when its plan last changed: now, unless it is the same.
/// `old`: both as stored, and whether the plan is the one of before.
pub(super) fn revisions(this: u64, old: Option<(u64, u64, bool)>) -> (u64, u64) {
    match old {
        None => (this, this),
        Some((born, moved, true)) => (born, moved),
        Some((born, _, false)) => (born, this),
    }
}
