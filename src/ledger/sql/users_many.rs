//! Users who are changed many at once: a few statements for all of them.

use std::collections::HashMap;

use super::Kind::{Int, Text};
use super::audit;
use super::records::refuse_deleted;
use super::users::{self, revisions};
use super::{Failure, ManyRows, Sql, get, values};
use crate::domain::charge::TenantRef;
use crate::domain::ids::UserId;
use crate::ledger::encoding::{audited_user, audited_user_action};
use crate::ledger::{LedgerError, User, Written};

static RIGHTS: ManyRows = ManyRows::new(
    "users",
    &[
        ("tenant", Int),
        ("id", Text),
        ("plan", Text),
        ("plan_since", Int),
        ("plan_sequence", Int),
        ("org", Text),
        ("verified", Int),
        ("suspended", Int),
        ("zone", Text),
        ("anchor_day", Int),
        ("signals", Text),
        ("created_at", Int),
        ("version", Int),
        ("rights", Text),
        ("changes_at", Int),
        ("born", Int),
        ("moved", Int),
    ],
    users::REPLACES,
);

static AUDIT: ManyRows = ManyRows::new(
    "audit",
    &[
        ("tenant", Int),
        ("written_at", Int),
        ("written_by", Text),
        ("action", Text),
        ("target", Text),
        ("old", Text),
        ("new", Text),
        ("reason", Text),
    ],
    "",
);

/// Replaces users, each as it was read and as it is to be. `Conflict`: one of them is
/// not as it was read.
pub async fn put<C: Sql>(
    connection: &mut C,
    tenant: TenantRef,
    users: &[(User, User)],
    written: &Written,
) -> Result<(), Failure> {
    if users.is_empty() {
        return Ok(());
    }
    refuse_deleted(connection, tenant.0).await?;
    let ids: Vec<&str> = users.iter().map(|(old, _)| old.id.as_str()).collect();
    let ids = serde_json::json!(ids).to_string();
    let rows = connection.rows_to_change(C::VERSIONS_OF_MANY, values![tenant.0, ids]).await?;
    let stored: HashMap<&str, u32> =
        rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect::<Result<_, LedgerError>>()?;
    let is_as_read = |(old, new): &(User, User)| {
        stored.get(old.id.as_str()) == Some(&old.version) && old.version.checked_add(1) == Some(new.version)
    };
    if !users.iter().all(is_as_read) {
        return Err(LedgerError::Conflict.into());
    }
    let entries = users.iter().flat_map(|(old, new)| {
        let (before, after) = (audited_user(old).to_string(), audited_user(new).to_string());
        let action = audited_user_action(Some(old), new);
        let (by, reason) = (written.by.as_str(), written.reason.as_deref());
        values![tenant.0, written.at.0, by, action, new.id.as_str(), before, after, reason]
    });
    connection.write_rows(&AUDIT, entries.collect()).await?;
    let this = audit::next_revision(connection).await?;
    let mut rows = Vec::with_capacity(RIGHTS.columns.len() * users.len());
    for (old, new) in users {
        let same = (&old.plan, old.plan_since) == (&new.plan, new.plan_since);
        rows.extend(users::columns(tenant, new, revisions(this, Some((old.born, old.moved, same))))?);
    }
    Ok(connection.write_rows(&RIGHTS, rows).await?)
}

const REFUSED: &str = "SELECT DISTINCT user_id FROM refusals WHERE tenant = $1 AND day >= $2 AND day < $3
     AND ($4 IS NULL OR code = $4) AND user_id <> '' ORDER BY user_id LIMIT $5";

/// Users who were refused on some days, by one code if one is given; ascending.
pub async fn refused(
    connection: &mut impl Sql,
    tenant: TenantRef,
    days: std::ops::Range<i32>,
    code: Option<String>,
    limit: u32,
) -> Result<Vec<UserId>, Failure> {
    let rows = connection.rows(REFUSED, values![tenant.0, days.start, days.end, code, limit]).await?;
    super::each(&rows, |row| super::read::named(UserId::parse(get(row, 0)?)))
}
