//! Users on record.

use super::audit::{self, AuditRow};
use super::read::{named, unnamed};
use super::records::refuse_deleted;
use super::{Columns, Failure, Sql, Value, each, get, values};
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
/// read all users of a tenant for the few of a plan. `replace` finds exact
/// bytes, on every back end.
macro_rules! page_of_users {
    ($from:literal, $which:literal) => {
        select_users!(
            $from,
            "id >= $2 AND id <= $7 AND erased = 0 AND ($3 IS NULL OR replace(id, $3, '') <> id)"
            $which " ORDER BY id LIMIT $6"
        )
    };
}

/// One of them, counted; an index is all that is read but for whether they are erased.
macro_rules! nth_of_users {
    ($from:literal, $which:literal) => {
        concat!(
            "SELECT id FROM ",
            $from,
            " WHERE tenant = $1 AND id >= $2 AND id <= $7 AND erased = 0",
            $which,
            " ORDER BY id LIMIT 1 OFFSET $6"
        )
    };
}

pub const USER: &str = select_users!("users", "id = $2");
pub const ALL: &str = page_of_users!("users", "");
pub const OF_PLAN: &str = page_of_users!("users INDEXED BY users_by_plan", " AND plan = $4");
pub const OF_ORG: &str =
    page_of_users!("users INDEXED BY users_by_org", " AND org = $5 AND ($4 IS NULL OR plan = $4)");

pub const NTH: &str = nth_of_users!("users", "");
pub const NTH_OF_PLAN: &str = nth_of_users!("users INDEXED BY users_by_plan", " AND plan = $4");
pub const NTH_OF_ORG: &str =
    nth_of_users!("users INDEXED BY users_by_org", " AND org = $5 AND ($4 IS NULL OR plan = $4)");

pub const TO_MOVE: &str =
    select_users!("users INDEXED BY users_by_change", "changes_at <= $2 ORDER BY changes_at LIMIT $3");

pub const ERASED_DUE: &str =
    select_users!("users INDEXED BY users_erased", "erased = 1 AND look_at <= $2 ORDER BY look_at LIMIT $3");

pub async fn erased_due(
    connection: &mut impl Sql,
    tenant: TenantRef,
    now: Millis,
    limit: u32,
) -> Result<Vec<User>, Failure> {
    each(&connection.rows(ERASED_DUE, values![tenant.0, now.0, limit]).await?, read)
}

pub async fn to_move(
    connection: &mut impl Sql,
    tenant: TenantRef,
    now: Millis,
    limit: u32,
) -> Result<Vec<User>, Failure> {
    each(&connection.rows(TO_MOVE, values![tenant.0, now.0, limit]).await?, read)
}

pub async fn user(
    connection: &mut impl Sql,
    tenant: TenantRef,
    id: &UserId,
) -> Result<Option<User>, Failure> {
    let rows = connection.rows(USER, values![tenant.0, id.shared()]).await?;
    Ok(rows.first().map(read).transpose()?)
}

pub async fn page(
    connection: &mut impl Sql,
    tenant: TenantRef,
    query: UserQuery,
) -> Result<Vec<User>, Failure> {
    let text = match (&query.plan, &query.org) {
        (_, Some(_)) => OF_ORG,
        (Some(_), None) => OF_PLAN,
        (None, None) => ALL,
    };
    let limit = query.limit;
    each(&connection.rows(text, of_query(tenant, query, limit)).await?, read)
}

pub async fn nth(
    connection: &mut impl Sql,
    tenant: TenantRef,
    query: UserQuery,
    nth: u32,
) -> Result<Option<String>, Failure> {
    let text = match (&query.plan, &query.org) {
        (_, Some(_)) => NTH_OF_ORG,
        (Some(_), None) => NTH_OF_PLAN,
        (None, None) => NTH,
    };
    let rows = connection.rows(text, of_query(tenant, query, nth)).await?;
    Ok(rows.first().map(|row| get::<&str>(row, 0).map(str::to_owned)).transpose()?)
}

/// Follows an id before all that are longer: none has a control character in it.
const NEXT: char = '\u{1}';
/// No id is longer, and none comes after the last character.
const LAST: char = '\u{10FFFF}';
const LONGEST: usize = 256 / LAST.len_utf8();

/// A query's values: ids from `$2` to `$7`, both of them included.
fn of_query(tenant: TenantRef, query: UserQuery, number: u32) -> Vec<Value> {
    let last = |prefix: &str| format!("{prefix}{}", LAST.to_string().repeat(LONGEST));
    let prefix = query.prefix.unwrap_or_default();
    let (after, upto) = (query.after.map(|after| format!("{after}{NEXT}")), last(&prefix));
    values![
        tenant.0,
        after.unwrap_or_default().max(prefix),
        query.contains.filter(|part| !part.is_empty()),
        query.plan.map(|plan| plan.shared()),
        query.org.map(|org| org.shared()),
        number,
        query.upto.map_or(upto.clone(), |other| other.min(upto))
    ]
}

pub fn read(row: &impl Columns) -> Result<User, LedgerError> {
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

macro_rules! replaces {
    () => {
        "ON CONFLICT (tenant, id) DO UPDATE SET plan = excluded.plan, plan_since = excluded.plan_since,
            plan_sequence = excluded.plan_sequence, org = excluded.org, verified = excluded.verified,
            suspended = excluded.suspended, zone = excluded.zone, anchor_day = excluded.anchor_day,
            signals = excluded.signals, created_at = excluded.created_at, version = excluded.version,
            rights = excluded.rights, changes_at = excluded.changes_at, moved = excluded.moved
         WHERE users.version = excluded.version - 1"
    };
}

/// What becomes of a user who is there.
pub(super) const REPLACES: &str = replaces!();

/// Inserts or replaces a user and writes the audit row. `Conflict`: the stored
/// version is not the one before.
pub async fn put(
    connection: &mut impl Sql,
    tenant: TenantRef,
    user: &User,
    written: &Written,
) -> Result<(), Failure> {
    refuse_deleted(connection, tenant.0).await?;
    let rows = connection.rows_to_change(USER, values![tenant.0, user.id.shared()]).await?;
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
    audit::add(connection, row).await?;
    store(connection, tenant, user, old.as_ref()).await
}

async fn store(
    connection: &mut impl Sql,
    tenant: TenantRef,
    user: &User,
    old: Option<&User>,
) -> Result<(), Failure> {
    let text = concat!(
        "INSERT INTO users (tenant, id, plan, plan_since, plan_sequence, org, verified, suspended, zone,
         anchor_day, signals, created_at, version, rights, changes_at, born, moved)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17) ",
        replaces!()
    );
    let this = audit::next_revision(connection).await?;
    let same = |old: &User| (&old.plan, old.plan_since) == (&user.plan, user.plan_since);
    let revisions = revisions(this, old.map(|old| (old.born, old.moved, same(old))));
    // Another one may have come between: then there is nothing to write over.
    match connection.execute(text, columns(tenant, user, revisions)?).await? {
        0 => Err(LedgerError::Conflict.into()),
        _ => Ok(()),
    }
}

/// A user as the columns of a row; `revisions`: when it came, and its plan.
pub(super) fn columns(
    tenant: TenantRef,
    user: &User,
    (born, moved): (u64, u64),
) -> Result<Vec<Value>, LedgerError> {
    let signals = user.signals.as_ref().map(|signals| serde_json::json!(signals).to_string());
    let rights = user.rights.as_deref();
    Ok(values![
        tenant.0,
        user.id.shared(),
        user.plan.shared(),
        user.plan_since.0,
        user.plan_sequence.map(u64::cast_signed),
        user.org.as_ref().map(|org| org.shared()),
        user.verified,
        user.suspended,
        user.zone.as_deref(),
        user.anchor_day,
        signals,
        user.created_at.0,
        user.version,
        pack_rights(rights)?,
        rights.and_then(|rights| rights.schedule.first()).map(|next| next.at.0),
        born.cast_signed(),
        moved.cast_signed()
    ])
}

/// When a row came and when its plan last changed: now, unless it is the same.
/// `old`: both as stored, and whether the plan is the one of before.
pub fn revisions(this: u64, old: Option<(u64, u64, bool)>) -> (u64, u64) {
    match old {
        None => (this, this),
        Some((born, moved, true)) => (born, moved),
        Some((born, _, false)) => (born, this),
    }
}
