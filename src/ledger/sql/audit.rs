//! What every write to tenants, users and records leaves behind, in its own
//! transaction: a row in the audit, and a higher revision (see `changes`).

use super::{Failure, Sql, get, values};
use crate::domain::charge::TenantRef;
use crate::ledger::{LedgerError, Note, Written};

pub struct AuditRow<'a> {
    /// 0: no tenant.
    pub tenant: u32,
    pub action: &'a str,
    pub target: &'a str,
    /// JSON; `None` where there was or is nothing, or nothing to be shown.
    pub old: Option<String>,
    pub new: Option<String>,
    pub written: &'a Written,
}

pub async fn add(connection: &mut impl Sql, row: AuditRow<'_>) -> sqlx::Result<()> {
    let text = "INSERT INTO audit (tenant, written_at, written_by, action, target, old, new, reason)
                VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    let Written { at, by, reason } = row.written;
    let values =
        values![row.tenant, at.0, by.as_str(), row.action, row.target, row.old, row.new, reason.as_deref()];
    connection.execute(text, values).await?;
    Ok(())
}

/// A row that stands by itself.
pub async fn note(
    connection: &mut impl Sql,
    tenant: TenantRef,
    note: &Note,
    written: &Written,
) -> Result<(), Failure> {
    let text = |value: &Option<serde_json::Value>| value.as_ref().map(ToString::to_string);
    let row = AuditRow {
        tenant: tenant.0,
        action: note.action,
        target: &note.target,
        old: text(&note.before),
        new: text(&note.after),
        written,
    };
    Ok(add(connection, row).await?)
}

/// Raises the revision and returns the one that the write at hand has. Once a
/// write, whatever it is made of (pollers count their own writes), and as late
/// as may be: until the transaction ends, other writes wait here. So whoever
/// sees a revision sees everything up to it.
pub async fn next_revision(connection: &mut impl Sql) -> Result<u64, Failure> {
    let text = "UPDATE revision SET value = value + 1 RETURNING value";
    one_revision(&connection.rows(text, values![]).await?)
}

/// Writes what is there already: a lock alone would not tell of a disk that is
/// full.
pub async fn rewrite_revision(connection: &mut impl Sql) -> Result<(), Failure> {
    connection.execute("UPDATE revision SET value = value", values![]).await?;
    Ok(())
}

pub async fn revision(connection: &mut impl Sql) -> Result<u64, Failure> {
    one_revision(&connection.rows("SELECT value FROM revision", values![]).await?)
}

fn one_revision(rows: &[impl super::Columns]) -> Result<u64, Failure> {
    let row = rows.first().ok_or_else(|| LedgerError::Corrupt("the revision is missing".into()))?;
    Ok(get::<i64>(row, 0)?.cast_unsigned())
}
