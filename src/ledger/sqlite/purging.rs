//! Removing what deleted tenants left, and old holds.
//!
//! Every table with a column `tenant` is purged, the audit excepted: a table
//! that is added later is so, too, without being named here.

use futures_util::FutureExt;
use sqlx::AssertSqlSafe;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::SqliteLedger;
use crate::domain::charge::TenantRef;
use crate::ledger::sql::{Failure, pruning};
use crate::ledger::{LedgerError, Pruned, Pruning};

impl SqliteLedger {
    /// The tables are gone through, so a walk begins with writing out what they
    /// lack.
    pub(super) async fn prune(&self, asked: Pruning) -> Result<Pruned, LedgerError> {
        let origin = self.origin;
        let found = self.read(move |c| async move { pruning::find(c, origin, &asked).await }.boxed()).await?;
        let Some(walk) = found else { return Ok(Pruned::Nothing) };
        if walk.is_at_its_start() {
            self.journal.catch_up().await?;
            self.journal.write_out().await?;
        }
        let pruned =
            self.writer.write(move |c| async move { pruning::step(c, origin, &asked).await }.boxed()).await?;
        if let Pruned::Rows(removed) = pruned {
            // Each one's entry by user; what else it had, its neighbours have too.
            self.journal.wrote(removed as usize);
        }
        Ok(pruned)
    }
}

/// Removes the next portion. `false`: there was nothing to remove.
pub(super) async fn purge(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    rows: u32,
) -> Result<bool, Failure> {
    if purge_holds(&mut *connection, tenant, rows).await? {
        return Ok(true);
    }
    for table in tables(&mut *connection).await? {
        if table.purge(&mut *connection, tenant, rows).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Looks through the next `rows` holds, whosever they are: an index of every
/// tenant's holds would cost each commit a page for the sake of this. `false`:
/// the table was looked through to its end. Nothing is added behind us.
async fn purge_holds(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    rows: u32,
) -> Result<bool, Failure> {
    let query = sqlx::query_scalar("SELECT holds_done FROM deleted_tenants WHERE number = $1").bind(tenant.0);
    let Some(done): Option<i64> = query.fetch_optional(&mut *connection).await? else { return Ok(false) };
    let text = "SELECT rowid FROM holds WHERE rowid > $1 ORDER BY rowid LIMIT 1 OFFSET $2";
    let query = sqlx::query_scalar(text).bind(done).bind(rows.saturating_sub(1));
    let to: Option<i64> = match query.fetch_optional(&mut *connection).await? {
        Some(row) => Some(row),
        None => {
            let query = sqlx::query_scalar("SELECT max(rowid) FROM holds WHERE rowid > $1").bind(done);
            query.fetch_one(&mut *connection).await?
        }
    };
    let Some(to) = to else { return Ok(false) };
    let query = sqlx::query("DELETE FROM holds WHERE rowid > $1 AND rowid <= $2 AND tenant = $3");
    query.bind(done).bind(to).bind(tenant.0).execute(&mut *connection).await?;
    let query = sqlx::query("UPDATE deleted_tenants SET holds_done = $2 WHERE number = $1");
    query.bind(tenant.0).bind(to).execute(&mut *connection).await?;
    Ok(true)
}

/// A table with a column `tenant`, by the schema's own names.
pub(super) struct Table {
    pub name: String,
    /// Its primary key, when that is what the table is ordered by.
    key: Option<String>,
}

/// Every table that is purged by its tenant.
pub(super) async fn tables(connection: &mut SqliteConnection) -> sqlx::Result<Vec<Table>> {
    let text = "SELECT name, wr, (SELECT group_concat('\"' || name || '\"', ', ' ORDER BY pk)
                    FROM pragma_table_info(this.name) WHERE pk > 0)
                FROM pragma_table_list AS this
                WHERE type = 'table' AND name NOT IN ('audit', 'holds')
                    AND EXISTS (SELECT 1 FROM pragma_table_info(this.name) WHERE name = 'tenant')
                ORDER BY name";
    let rows = sqlx::query(text).fetch_all(&mut *connection).await?;
    let table = |row: &SqliteRow| -> sqlx::Result<Table> {
        let (without_rowid, key): (bool, Option<String>) = (row.try_get(1)?, row.try_get(2)?);
        Ok(Table { name: row.try_get(0)?, key: key.filter(|_| without_rowid) })
    };
    rows.iter().map(table).collect()
}

impl Table {
    async fn purge(
        &self,
        connection: &mut SqliteConnection,
        tenant: TenantRef,
        rows: u32,
    ) -> sqlx::Result<bool> {
        for text in self.statements() {
            let query = sqlx::query(AssertSqlSafe(text)).bind(tenant.0).bind(rows);
            if query.execute(&mut *connection).await?.rows_affected() > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What removes `$2` rows of the tenant `$1` at most; the first that finds
    /// any has done it.
    pub fn statements(&self) -> Vec<String> {
        let name = &self.name;
        let Some(key) = &self.key else {
            let some = format!("SELECT rowid FROM \"{name}\" WHERE tenant = $1 LIMIT $2");
            return vec![format!("DELETE FROM \"{name}\" WHERE rowid IN ({some})")];
        };
        // Up to a key found beforehand: row values in an IN are looked up by
        // their first column alone.
        let last = format!(
            "SELECT {key} FROM \"{name}\" WHERE tenant = $1 ORDER BY {key} LIMIT 1 OFFSET max($2, 1) - 1"
        );
        let up_to = format!("DELETE FROM \"{name}\" WHERE tenant = $1 AND ({key}) <= ({last})");
        // Fewer than that many are left.
        vec![up_to, format!("DELETE FROM \"{name}\" WHERE tenant = $1 AND $2 >= 0")]
    }
}
