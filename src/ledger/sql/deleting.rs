//! Suspending and deleting tenants. What deleted ones left is removed as each
//! back end does it best.

use super::audit::{self, AuditRow};
use super::{Columns, Failure, Sql, each, get, values};
use crate::domain::charge::TenantRef;
use crate::domain::time::Millis;
use crate::ledger::{LedgerError, Written};

/// Id and suspension; `Conflict`: there is no such tenant (any more).
async fn find(connection: &mut impl Sql, tenant: TenantRef) -> Result<(String, bool), Failure> {
    let text = "SELECT id, suspended FROM tenants WHERE number = $1";
    let rows = connection.rows_to_change(text, values![tenant.0]).await?;
    let row = rows.first().ok_or(LedgerError::Conflict)?;
    Ok((get(row, 0)?, get(row, 1)?))
}

pub async fn suspend(
    connection: &mut impl Sql,
    tenant: TenantRef,
    suspended: bool,
    written: &Written,
) -> Result<(), Failure> {
    let (id, before) = find(connection, tenant).await?;
    if before != suspended {
        let text = "UPDATE tenants SET suspended = $2 WHERE number = $1";
        connection.execute(text, values![tenant.0, suspended]).await?;
        audit_suspension(connection, tenant, &id, (before, suspended), written).await?;
    }
    audit::next_revision(connection).await.map(drop)
}

async fn audit_suspension(
    connection: &mut impl Sql,
    tenant: TenantRef,
    id: &str,
    (before, suspended): (bool, bool),
    written: &Written,
) -> sqlx::Result<()> {
    let shown = |suspended: bool| Some(serde_json::json!({ "suspended": suspended }).to_string());
    let row = AuditRow {
        tenant: tenant.0,
        action: if suspended { "tenant.suspend" } else { "tenant.resume" },
        target: id,
        old: shown(before),
        new: shown(suspended),
        written,
    };
    audit::add(connection, row).await
}

/// From now on its id is free, and nothing of it comes into the tables.
pub async fn delete(connection: &mut impl Sql, tenant: TenantRef, written: &Written) -> Result<(), Failure> {
    let (id, _) = find(connection, tenant).await?;
    connection.execute("DELETE FROM tenants WHERE number = $1", values![tenant.0]).await?;
    let text = "INSERT INTO deleted_tenants (number, deleted_at) VALUES ($1, $2)";
    connection.execute(text, values![tenant.0, written.at.0]).await?;
    let row =
        AuditRow { tenant: tenant.0, action: "tenant.delete", target: &id, old: None, new: None, written };
    audit::add(connection, row).await?;
    audit::next_revision(connection).await.map(drop)
}

pub async fn deleted(connection: &mut impl Sql) -> Result<Vec<(TenantRef, Millis)>, Failure> {
    let text = "SELECT number, deleted_at FROM deleted_tenants WHERE purged = 0 ORDER BY number";
    each(&connection.rows(text, values![]).await?, read_deleted)
}

pub fn read_deleted(row: &impl Columns) -> Result<(TenantRef, Millis), LedgerError> {
    Ok((TenantRef(get(row, 0)?), Millis(get(row, 1)?)))
}

pub async fn end(connection: &mut impl Sql, tenant: TenantRef) -> Result<(), Failure> {
    let text = "UPDATE deleted_tenants SET purged = 1 WHERE number = $1";
    connection.execute(text, values![tenant.0]).await?;
    Ok(())
}
