//! The log of what each revision changed.

use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::read::get;
use crate::domain::charge::TenantRef;
use crate::ledger::{Changed, Changes, LedgerError, Told, What};

/// Revisions whose changes stay.
const KEPT: i64 = 100_000;
/// The log is pruned once in so many revisions.
const PRUNED_EVERY: i64 = 256;

/// Once a write, whatever it is made of, and within its transaction: the
/// revision grows by one, and what changed stands beside it.
pub(super) async fn tell(
    connection: &mut SqliteConnection,
    origin: i64,
    changed: &[Changed],
) -> sqlx::Result<()> {
    let query = sqlx::query_scalar("UPDATE revision SET value = value + 1 RETURNING value");
    let revision: i64 = query.fetch_one(&mut *connection).await?;
    for Changed { tenant, what } in changed {
        let text = "INSERT OR IGNORE INTO changes (revision, owner, kind, id, origin)
                    VALUES ($1, $2, $3, $4, $5)";
        let (kind, id) = what.stored();
        let query = sqlx::query(text).bind(revision).bind(tenant.map_or(0, |tenant| tenant.0));
        query.bind(kind).bind(id).bind(origin).execute(&mut *connection).await?;
    }
    if revision % PRUNED_EVERY == 0 {
        let query = sqlx::query("DELETE FROM changes WHERE revision <= $1").bind(revision - KEPT);
        query.execute(connection).await?;
    }
    Ok(())
}

/// One statement, so that revision and rows are of one moment. At most `$2`
/// revisions are read; of one that is further behind, none.
pub(super) const SINCE: &str = "SELECT value, changes.revision, owner, kind, id, origin
     FROM revision LEFT JOIN changes ON changes.revision > $1 AND value - $1 BETWEEN 1 AND $2
     ORDER BY changes.revision";

pub(super) async fn since(
    connection: &mut SqliteConnection,
    revision: u64,
    limit: u32,
) -> sqlx::Result<Vec<SqliteRow>> {
    sqlx::query(SINCE).bind(revision.cast_signed()).bind(limit).fetch_all(connection).await
}

pub(super) fn read(rows: &[SqliteRow], origin: i64, since: u64, limit: u32) -> Result<Changes, LedgerError> {
    let upto = rows.first().map(|row| get::<i64>(row, 0)).transpose()?.unwrap_or(0).cast_unsigned();
    let told: Result<Vec<Told>, LedgerError> =
        rows.iter().filter_map(|row| told(row, origin).transpose()).collect();
    let is_bounded = upto.saturating_sub(since) <= u64::from(limit);
    let told = told?;
    Ok(Changes::of(since, upto, is_bounded.then_some(told)))
}

/// `None`: the row is there for the revision alone.
fn told(row: &SqliteRow, origin: i64) -> Result<Option<Told>, LedgerError> {
    let Some(revision) = get::<Option<i64>>(row, 1)? else { return Ok(None) };
    let owner: u32 = get(row, 2)?;
    let changed = Changed {
        tenant: (owner > 0).then_some(TenantRef(owner)),
        what: What::read(get(row, 3)?, get(row, 4)?)?,
    };
    Ok(Some(Told { revision: revision.cast_unsigned(), ours: get::<i64>(row, 5)? == origin, changed }))
}
