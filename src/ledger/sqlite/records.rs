//! Tenants, and the versioned records of what they set.

use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::audit::{self, AuditRow};
use super::error::Failure;
use super::read::{get, named};
use crate::domain::charge::TenantRef;
use crate::domain::ids::TenantId;
use crate::domain::time::Millis;
use crate::ledger::encoding::{audited_action, audited_body, audited_target};
use crate::ledger::{LedgerError, Record, RecordKind, TenantRow, Written};

/// How a record's tenant is stored: numbers begin at 1, 0 is no tenant.
fn stored(tenant: Option<TenantRef>) -> u32 {
    tenant.map_or(0, |tenant| tenant.0)
}

macro_rules! select_records {
    ($which:literal) => {
        concat!(
            "SELECT kind, id, version, body, effective_at, written_at, written_by, reason, revision
             FROM records AS this WHERE tenant = $1 AND ",
            $which
        )
    };
}

pub(super) const NEWEST_RECORDS: &str = select_records!(
    "body IS NOT NULL AND version = (SELECT max(version) FROM records AS other
        WHERE other.tenant = this.tenant AND other.kind = this.kind AND other.id = this.id)
     ORDER BY kind, id"
);
pub(super) const VERSIONS: &str = select_records!("kind = $2 AND id = $3 ORDER BY version DESC");

pub(super) async fn newest(
    connection: &mut SqliteConnection,
    tenant: Option<TenantRef>,
) -> sqlx::Result<Vec<SqliteRow>> {
    sqlx::query(NEWEST_RECORDS).bind(stored(tenant)).fetch_all(connection).await
}

pub(super) async fn versions(
    connection: &mut SqliteConnection,
    tenant: Option<TenantRef>,
    kind: RecordKind,
    id: String,
) -> sqlx::Result<Vec<SqliteRow>> {
    let query = sqlx::query(VERSIONS).bind(stored(tenant)).bind(kind.as_str()).bind(id);
    query.fetch_all(connection).await
}

pub(super) fn record(row: &SqliteRow) -> Result<Record, LedgerError> {
    Ok(Record {
        kind: RecordKind::parse(get(row, 0)?)?,
        id: get(row, 1)?,
        version: get(row, 2)?,
        body: get(row, 3)?,
        effective_at: Millis(get(row, 4)?),
        written: Written { at: Millis(get(row, 5)?), by: get(row, 6)?, reason: get(row, 7)? },
        revision: get::<i64>(row, 8)?.cast_unsigned(),
    })
}

/// Appends a version and its audit row. `Conflict`: the newest version is not
/// the one before it.
pub(super) async fn put(
    connection: &mut SqliteConnection,
    tenant: Option<TenantRef>,
    record: &Record,
) -> Result<(), Failure> {
    refuse_deleted(&mut *connection, stored(tenant)).await?;
    let text = "SELECT version, body FROM records WHERE tenant = $1 AND kind = $2 AND id = $3
                ORDER BY version DESC LIMIT 1";
    let query = sqlx::query(text).bind(stored(tenant)).bind(record.kind.as_str()).bind(record.id.as_str());
    let newest = query.fetch_optional(&mut *connection).await?;
    let (version, old) = match &newest {
        Some(row) => (row.try_get::<u32, _>(0)?, row.try_get::<Option<&str>, _>(1)?),
        None => (0, None),
    };
    if version.checked_add(1) != Some(record.version) {
        return Err(LedgerError::Conflict.into());
    }
    let text = "INSERT INTO records
                (tenant, kind, id, version, body, effective_at, written_at, written_by, reason, revision)
                VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
    let revision = audit::this_revision(&mut *connection).await?.cast_signed();
    let query = sqlx::query(text).bind(stored(tenant)).bind(record.kind.as_str()).bind(record.id.as_str());
    let query = query.bind(record.version).bind(record.body.as_deref()).bind(record.effective_at.0);
    let query = query.bind(record.written.at.0).bind(record.written.by.as_str());
    query.bind(record.written.reason.as_deref()).bind(revision).execute(&mut *connection).await?;
    let row = AuditRow {
        tenant: stored(tenant),
        action: audited_action(record),
        target: audited_target(record),
        old: audited_body(record.kind, old),
        new: audited_body(record.kind, record.body.as_deref()),
        written: &record.written,
    };
    Ok(audit::add(connection, row).await?)
}

const TENANTS: &str = "SELECT number, id, test, suspended, clock,
        EXISTS (SELECT 1 FROM users WHERE tenant = number AND erased = 1) FROM tenants ORDER BY number";

pub(super) async fn tenants(connection: &mut SqliteConnection) -> sqlx::Result<Vec<SqliteRow>> {
    sqlx::query(TENANTS).fetch_all(connection).await
}

pub(super) fn tenant(row: &SqliteRow) -> Result<TenantRow, LedgerError> {
    Ok(TenantRow {
        number: TenantRef(get(row, 0)?),
        id: named(TenantId::parse(get(row, 1)?))?,
        test: get(row, 2)?,
        suspended: get(row, 3)?,
        clock: get::<Option<i64>>(row, 4)?.map(Millis),
        has_erased: get(row, 5)?,
    })
}

/// Gives a new tenant its number and its first records. `Conflict`: the id is
/// taken.
pub(super) async fn create_tenant(
    connection: &mut SqliteConnection,
    id: TenantId,
    test: bool,
    first: &[Record],
) -> Result<TenantRow, Failure> {
    let text = "INSERT INTO tenants (id, test) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING RETURNING number";
    let query = sqlx::query_scalar(text).bind(id.as_str()).bind(test);
    let Some(number) = query.fetch_optional(&mut *connection).await? else {
        return Err(LedgerError::Conflict.into());
    };
    // Whoever wrote the first records made the tenant.
    let nobody = Written { at: Millis(0), by: String::new(), reason: None };
    let row = AuditRow {
        tenant: number,
        action: "tenant.create",
        target: id.as_str(),
        old: None,
        new: Some(serde_json::json!({ "test": test }).to_string()),
        written: first.first().map_or(&nobody, |record| &record.written),
    };
    audit::add(connection, row).await?;
    for record in first {
        put(connection, Some(TenantRef(number)), record).await?;
    }
    Ok(TenantRow { number: TenantRef(number), id, test, suspended: false, clock: None, has_erased: false })
}

/// Whoever writes for a tenant that was deleted meanwhile comes too late.
pub(super) async fn refuse_deleted(connection: &mut SqliteConnection, tenant: u32) -> Result<(), Failure> {
    let text = "SELECT EXISTS (SELECT 1 FROM deleted_tenants WHERE number = $1)";
    match sqlx::query_scalar(text).bind(tenant).fetch_one(connection).await? {
        true => Err(LedgerError::Conflict.into()),
        false => Ok(()),
    }
}

/// Sets the clock and writes the audit row. `Conflict`: there is no such tenant
/// (any more).
pub(super) async fn set_clock(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    now: Millis,
    written: &Written,
) -> Result<(), Failure> {
    let text = "SELECT id, clock FROM tenants WHERE number = $1";
    let query = sqlx::query(text).bind(tenant.0).fetch_optional(&mut *connection);
    let Some(before) = query.await? else { return Err(LedgerError::Conflict.into()) };
    let query = sqlx::query("UPDATE tenants SET clock = $2 WHERE number = $1").bind(tenant.0).bind(now.0);
    query.execute(&mut *connection).await?;
    let shown = |now: Millis| serde_json::json!({ "now": now }).to_string();
    let row = AuditRow {
        tenant: tenant.0,
        action: "clock.set",
        target: get(&before, 0)?,
        old: get::<Option<i64>>(&before, 1)?.map(|at| shown(Millis(at))),
        new: Some(shown(now)),
        written,
    };
    Ok(audit::add(connection, row).await?)
}
