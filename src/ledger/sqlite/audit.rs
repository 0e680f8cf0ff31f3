//! What every write to tenants, users and records leaves behind, in its own
//! transaction: a row in the audit, and a higher revision (see `changes`).

use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::error::Failure;
use crate::domain::charge::TenantRef;
use crate::ledger::{Note, Written};

pub(super) struct AuditRow<'a> {
    /// 0: no tenant.
    pub tenant: u32,
    pub action: &'a str,
    pub target: &'a str,
    /// JSON; `None` where there was or is nothing, or nothing to be shown.
    pub old: Option<String>,
    pub new: Option<String>,
    pub written: &'a Written,
}

pub(super) async fn add(connection: &mut SqliteConnection, row: AuditRow<'_>) -> sqlx::Result<()> {
    let text = "INSERT INTO audit (tenant, written_at, written_by, action, target, old, new, reason)
                VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    let query = sqlx::query(text).bind(row.tenant).bind(row.written.at.0).bind(row.written.by.as_str());
    let query = query.bind(row.action).bind(row.target).bind(row.old).bind(row.new);
    query.bind(row.written.reason.as_deref()).execute(connection).await?;
    Ok(())
}

/// A row that stands by itself.
pub(super) async fn note(
    connection: &mut SqliteConnection,
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

/// The revision that the write at hand will have.
pub(super) async fn this_revision(connection: &mut SqliteConnection) -> sqlx::Result<u64> {
    let value: i64 = sqlx::query_scalar("SELECT value + 1 FROM revision").fetch_one(connection).await?;
    Ok(value.cast_unsigned())
}

pub(super) async fn revision(connection: &mut SqliteConnection) -> sqlx::Result<Vec<SqliteRow>> {
    sqlx::query("SELECT value FROM revision").fetch_all(connection).await
}
