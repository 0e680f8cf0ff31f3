//! Orgs on record.

use super::audit::{self, AuditRow};
use super::read::{named, unnamed};
use super::users::revisions;
use super::{Columns, Failure, Sql, each, get, values};
use crate::domain::charge::TenantRef;
use crate::domain::ids::Name;
use crate::domain::time::Millis;
use crate::ledger::encoding::{audited_org, pack_rights, unpack_rights};
use crate::ledger::{LedgerError, Org, Written};

pub const ORG: &str = "SELECT id, plan, plan_since, zone, rights, created_at, born, moved, version
     FROM orgs WHERE tenant = $1 AND id = $2";

pub async fn org(connection: &mut impl Sql, tenant: TenantRef, id: &Name) -> Result<Option<Org>, Failure> {
    let rows = connection.rows(ORG, values![tenant.0, id.shared()]).await?;
    Ok(rows.first().map(read).transpose()?)
}

const PAGE: &str = "SELECT id, plan, plan_since, zone, rights, created_at, born, moved, version
     FROM orgs WHERE tenant = $1 AND id > $2 ORDER BY id LIMIT $3";

/// Orgs by id, after `after`.
pub async fn page(
    connection: &mut impl Sql,
    tenant: TenantRef,
    after: Option<&Name>,
    limit: u32,
) -> Result<Vec<Org>, Failure> {
    let after = after.map(|after| after.shared()).unwrap_or_default();
    each(&connection.rows(PAGE, values![tenant.0, after, limit]).await?, read)
}

pub fn read(row: &impl Columns) -> Result<Org, LedgerError> {
    Ok(Org {
        id: named(Name::parse(get(row, 0)?))?,
        plan: get::<Option<&str>>(row, 1)?.map(Name::parse).transpose().map_err(unnamed)?,
        plan_since: Millis(get(row, 2)?),
        zone: get(row, 3)?,
        rights: unpack_rights(get(row, 4)?)?,
        created_at: Millis(get(row, 5)?),
        born: get::<i64>(row, 6)?.cast_unsigned(),
        moved: get::<i64>(row, 7)?.cast_unsigned(),
        version: get(row, 8)?,
    })
}

/// Inserts or replaces an org and writes the audit row. `Conflict`: the stored
/// version is not the one before.
pub async fn put(
    connection: &mut impl Sql,
    tenant: TenantRef,
    org: &Org,
    written: &Written,
) -> Result<(), Failure> {
    let rows = connection.rows_to_change(ORG, values![tenant.0, org.id.shared()]).await?;
    let old = rows.first().map(read).transpose()?;
    let version = old.as_ref().map_or(0, |old| old.version);
    if version.checked_add(1) != Some(org.version) {
        return Err(LedgerError::Conflict.into());
    }
    let row = AuditRow {
        tenant: tenant.0,
        action: "org.put",
        target: org.id.as_str(),
        old: old.as_ref().map(|old| audited_org(old).to_string()),
        new: Some(audited_org(org).to_string()),
        written,
    };
    audit::add(connection, row).await?;
    let this = audit::next_revision(connection).await?;
    let same = |old: &Org| (old.plan.as_ref(), old.plan_since) == (org.plan.as_ref(), org.plan_since);
    let (born, moved) = revisions(this, old.as_ref().map(|old| (old.born, old.moved, same(old))));
    let text =
        "INSERT INTO orgs (tenant, id, plan, plan_since, zone, rights, created_at, born, moved, version)
                VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
                ON CONFLICT (tenant, id) DO UPDATE SET plan = excluded.plan, plan_since = excluded.plan_since,
                    zone = excluded.zone, rights = excluded.rights, moved = excluded.moved,
                    version = excluded.version
                WHERE orgs.version = excluded.version - 1";
    let values = values![
        tenant.0,
        org.id.shared(),
        org.plan.as_ref().map(|plan| plan.shared()),
        org.plan_since.0,
        org.zone.as_deref(),
        pack_rights(org.rights.as_deref())?,
        org.created_at.0,
        born.cast_signed(),
        moved.cast_signed(),
        org.version
    ];
    // Another one may have come between: then there is nothing to write over.
    match connection.execute(text, values).await? {
        0 => Err(LedgerError::Conflict.into()),
        _ => Ok(()),
    }
}
