//! How far the changes of an engine that runs apart are on record.

use super::records::refuse_deleted;
use super::{Columns, Failure, Sql, get, values};
use crate::domain::charge::TenantRef;
use crate::domain::slot::{Fence, Slot};
use crate::ledger::LedgerError;

/// The slot as it is, if it ever began.
pub async fn find(connection: &mut impl Sql, tenant: TenantRef) -> Result<Option<Slot>, Failure> {
    let text = "SELECT epoch, drained FROM slots WHERE tenant = $1";
    let rows = connection.rows(text, values![tenant.0]).await?;
    Ok(rows.first().map(read).transpose()?)
}

/// The slot, in epoch 1 if nobody else began.
pub async fn begin(connection: &mut impl Sql, tenant: TenantRef) -> Result<Slot, Failure> {
    refuse_deleted(connection, tenant.0).await?;
    // Changes nothing where there is a row, and returns it.
    let text = "INSERT INTO slots (tenant, epoch, drained) VALUES ($1, 1, 0)
                ON CONFLICT (tenant) DO UPDATE SET epoch = slots.epoch RETURNING epoch, drained";
    let rows = connection.rows(text, values![tenant.0]).await?;
    let row = rows.first().ok_or_else(|| LedgerError::Corrupt("a slot is missing".into()))?;
    Ok(read(row)?)
}

fn read(row: &impl Columns) -> Result<Slot, LedgerError> {
    let number = |at: usize| get::<i64>(row, at).map(i64::cast_unsigned);
    Ok(Slot { epoch: number(0)?, drained: number(1)? })
}

/// Ends an epoch, unless somebody has.
pub async fn renew(connection: &mut impl Sql, tenant: TenantRef, epoch: u64) -> Result<Slot, Failure> {
    begin(connection, tenant).await?;
    let text = "UPDATE slots SET epoch = epoch + 1 WHERE tenant = $1 AND epoch = $2";
    connection.execute(text, values![tenant.0, epoch.cast_signed()]).await?;
    begin(connection, tenant).await
}

/// Notes that changes are on record with the transaction at hand. `Fenced`:
/// they are not those that come next.
pub async fn move_on(connection: &mut impl Sql, fence: Option<Fence>) -> Result<(), Failure> {
    let Some(Fence { tenant, epoch, from, to }) = fence else { return Ok(()) };
    let text = "UPDATE slots SET drained = $4 WHERE tenant = $1 AND epoch = $2 AND drained = $3";
    let [epoch, from, to] = [epoch, from, to].map(u64::cast_signed);
    match connection.execute(text, values![tenant.0, epoch, from, to]).await? {
        0 => Err(LedgerError::Fenced.into()),
        _ => Ok(()),
    }
}
