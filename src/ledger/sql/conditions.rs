//! The conditions of pools.

use super::audit;
use super::records::refuse_deleted;
use super::{Columns, Failure, Sql, each, get, values};
use crate::domain::charge::TenantRef;
use crate::ledger::{LedgerError, Note, PoolCondition, Written};

pub const CONDITIONS: &str = "SELECT pool, version, body FROM conditions WHERE tenant = $1 ORDER BY pool";
const ONE: &str = "SELECT pool, version, body FROM conditions WHERE tenant = $1 AND pool = $2";

pub async fn all(connection: &mut impl Sql, tenant: TenantRef) -> Result<Vec<PoolCondition>, Failure> {
    each(&connection.rows(CONDITIONS, values![tenant.0]).await?, read)
}

pub fn read(row: &impl Columns) -> Result<PoolCondition, LedgerError> {
    Ok(PoolCondition { pool: get(row, 0)?, version: get(row, 1)?, body: get(row, 2)? })
}

/// Inserts or replaces. `Conflict`: the stored version is not the one before.
pub async fn put(
    connection: &mut impl Sql,
    tenant: TenantRef,
    condition: &PoolCondition,
    noted: Option<&(Note, Written)>,
) -> Result<(), Failure> {
    refuse_deleted(connection, tenant.0).await?;
    let rows = connection.rows_to_change(ONE, values![tenant.0, condition.pool.as_str()]).await?;
    let version = rows.first().map(read).transpose()?.map_or(0, |known| known.version);
    if version.checked_add(1) != Some(condition.version) {
        return Err(LedgerError::Conflict.into());
    }
    if let Some((note, written)) = noted {
        audit::note(connection, tenant, note, written).await?;
    }
    audit::next_revision(connection).await?;
    let text = "INSERT INTO conditions (tenant, pool, version, body) VALUES ($1, $2, $3, $4)
                ON CONFLICT (tenant, pool) DO UPDATE SET version = excluded.version, body = excluded.body
                WHERE conditions.version = excluded.version - 1";
    let values = values![tenant.0, condition.pool.as_str(), condition.version, condition.body.as_str()];
    // Another one may have come between: then there is nothing to write over.
    match connection.execute(text, values).await? {
        0 => Err(LedgerError::Conflict.into()),
        _ => Ok(()),
    }
}
