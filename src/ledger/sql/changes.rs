//! The log of what each revision changed.

use super::{Columns, Failure, Sql, audit, each, get, values};
use crate::domain::charge::TenantRef;
use crate::ledger::{Changed, Changes, LedgerError, Told, What};

/// Revisions whose changes stay.
const KEPT: i64 = 100_000;
/// The log is pruned once in so many revisions.
const PRUNED_EVERY: i64 = 256;

/// The last of a write, within its transaction, which has raised the revision:
/// what changed stands beside it.
pub async fn tell(connection: &mut impl Sql, origin: i64, changed: &[Changed]) -> Result<(), Failure> {
    let revision = audit::revision(connection).await?.cast_signed();
    for Changed { tenant, what } in changed {
        let text = "INSERT INTO changes (revision, owner, kind, id, origin) VALUES ($1, $2, $3, $4, $5)
                    ON CONFLICT (revision, owner, kind, id) DO NOTHING";
        let (kind, id) = what.stored();
        let owner = tenant.map_or(0, |tenant| tenant.0);
        connection.execute(text, values![revision, owner, kind, id, origin]).await?;
    }
    if revision % PRUNED_EVERY == 0 {
        let text = "DELETE FROM changes WHERE revision <= $1";
        connection.execute(text, values![revision - KEPT]).await?;
    }
    Ok(())
}

/// One statement, so that revision and rows are of one moment. At most `$2`
/// revisions are read; of one that is further behind, none.
pub const SINCE: &str = "SELECT value, changes.revision, owner, kind, id, origin
     FROM revision LEFT JOIN changes ON changes.revision > $1 AND value - $1 BETWEEN 1 AND $2
     ORDER BY changes.revision";

/// `origin`: of the process that asks.
pub async fn since(
    connection: &mut impl Sql,
    origin: i64,
    since: u64,
    limit: u32,
) -> Result<Changes, Failure> {
    let rows = connection.rows(SINCE, values![since.cast_signed(), limit]).await?;
    let upto = rows.first().map(|row| get::<i64>(row, 0)).transpose()?.unwrap_or(0).cast_unsigned();
    let told = each(&rows, |row| told(row, origin))?.into_iter().flatten().collect();
    let is_bounded = upto.saturating_sub(since) <= u64::from(limit);
    Ok(Changes::of(since, upto, is_bounded.then_some(told)))
}

/// `None`: the row is there for the revision alone.
fn told(row: &impl Columns, origin: i64) -> Result<Option<Told>, LedgerError> {
    let Some(revision) = get::<Option<i64>>(row, 1)? else { return Ok(None) };
    let owner: u32 = get(row, 2)?;
    let changed = Changed {
        tenant: (owner > 0).then_some(TenantRef(owner)),
        what: What::read(get(row, 3)?, get(row, 4)?)?,
    };
    Ok(Some(Told { revision: revision.cast_unsigned(), ours: get::<i64>(row, 5)? == origin, changed }))
}
