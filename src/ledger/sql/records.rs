//! Tenants, and the versioned records of what they set.

use super::audit::{self, AuditRow};
use super::read::named;
use super::{Columns, Failure, Sql, each, get, values};
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

pub const NEWEST_RECORDS: &str = select_records!(
    "body IS NOT NULL AND version = (SELECT max(version) FROM records AS other
        WHERE other.tenant = this.tenant AND other.kind = this.kind AND other.id = this.id)
     ORDER BY kind, id"
);
pub const VERSIONS: &str = select_records!("kind = $2 AND id = $3 ORDER BY version DESC");

pub async fn newest(connection: &mut impl Sql, tenant: Option<TenantRef>) -> Result<Vec<Record>, Failure> {
    each(&connection.rows(NEWEST_RECORDS, values![stored(tenant)]).await?, record)
}

pub async fn versions(
    connection: &mut impl Sql,
    tenant: Option<TenantRef>,
    kind: RecordKind,
    id: String,
) -> Result<Vec<Record>, Failure> {
    each(&connection.rows(VERSIONS, values![stored(tenant), kind.as_str(), id]).await?, record)
}

pub fn record(row: &impl Columns) -> Result<Record, LedgerError> {
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
pub async fn put(
    connection: &mut impl Sql,
    tenant: Option<TenantRef>,
    record: &Record,
) -> Result<(), Failure> {
    audit_version(connection, tenant, record).await?;
    let revision = audit::next_revision(connection).await?;
    Ok(append(connection, tenant, record, revision).await?)
}

/// Writes the audit row of a version that is about to come.
async fn audit_version(
    connection: &mut impl Sql,
    tenant: Option<TenantRef>,
    record: &Record,
) -> Result<(), Failure> {
    refuse_deleted(connection, stored(tenant)).await?;
    let text = "SELECT version, body FROM records WHERE tenant = $1 AND kind = $2 AND id = $3
                ORDER BY version DESC LIMIT 1";
    let values = values![stored(tenant), record.kind.as_str(), record.id.as_str()];
    let newest = connection.rows(text, values).await?;
    let (version, old): (u32, Option<&str>) = match newest.first() {
        Some(row) => (get(row, 0)?, get(row, 1)?),
        None => (0, None),
    };
    if version.checked_add(1) != Some(record.version) {
        return Err(LedgerError::Conflict.into());
    }
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

/// The key has the version in it: of two writers at once, one fails.
async fn append(
    connection: &mut impl Sql,
    tenant: Option<TenantRef>,
    record: &Record,
    revision: u64,
) -> sqlx::Result<()> {
    let text = "INSERT INTO records
                (tenant, kind, id, version, body, effective_at, written_at, written_by, reason, revision)
                VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
    let values = values![
        stored(tenant),
        record.kind.as_str(),
        record.id.as_str(),
        record.version,
        record.body.as_deref(),
        record.effective_at.0,
        record.written.at.0,
        record.written.by.as_str(),
        record.written.reason.as_deref(),
        revision.cast_signed()
    ];
    connection.execute(text, values).await?;
    Ok(())
}

const TENANTS: &str = "SELECT number, id, test, suspended, clock,
        EXISTS (SELECT 1 FROM users WHERE tenant = number AND erased = 1) FROM tenants ORDER BY number";

pub async fn tenants(connection: &mut impl Sql) -> Result<Vec<TenantRow>, Failure> {
    each(&connection.rows(TENANTS, values![]).await?, tenant)
}

pub fn tenant(row: &impl Columns) -> Result<TenantRow, LedgerError> {
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
pub async fn create_tenant(
    connection: &mut impl Sql,
    id: TenantId,
    test: bool,
    first: &[Record],
) -> Result<TenantRow, Failure> {
    let text = "INSERT INTO tenants (id, test) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING RETURNING number";
    let rows = connection.rows(text, values![id.as_str(), test]).await?;
    let Some(row) = rows.first() else { return Err(LedgerError::Conflict.into()) };
    let number = get(row, 0)?;
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
    let tenant = Some(TenantRef(number));
    let revision = audit::next_revision(connection).await?;
    for record in first {
        audit_version(connection, tenant, record).await?;
        append(connection, tenant, record, revision).await?;
    }
    Ok(TenantRow { number: TenantRef(number), id, test, suspended: false, clock: None, has_erased: false })
}

/// Whoever writes for a tenant that was deleted meanwhile comes too late.
pub async fn refuse_deleted(connection: &mut impl Sql, tenant: u32) -> Result<(), Failure> {
    let text = "SELECT number FROM deleted_tenants WHERE number = $1";
    match connection.rows(text, values![tenant]).await?.is_empty() {
        true => Ok(()),
        false => Err(LedgerError::Conflict.into()),
    }
}

/// Sets the clock and writes the audit row. `Conflict`: there is no such tenant
/// (any more).
pub async fn set_clock(
    connection: &mut impl Sql,
    tenant: TenantRef,
    now: Millis,
    written: &Written,
) -> Result<(), Failure> {
    let text = "SELECT id, clock FROM tenants WHERE number = $1";
    let rows = connection.rows_to_change(text, values![tenant.0]).await?;
    let Some(before) = rows.first() else { return Err(LedgerError::Conflict.into()) };
    let text = "UPDATE tenants SET clock = $2 WHERE number = $1";
    connection.execute(text, values![tenant.0, now.0]).await?;
    let shown = |now: Millis| serde_json::json!({ "now": now }).to_string();
    let row = AuditRow {
        tenant: tenant.0,
        action: "clock.set",
        target: get(before, 0)?,
        old: get::<Option<i64>>(before, 1)?.map(|at| shown(Millis(at))),
        new: Some(shown(now)),
        written,
    };
    audit::add(connection, row).await?;
    audit::next_revision(connection).await.map(drop)
}
