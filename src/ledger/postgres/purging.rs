//! Removing what deleted tenants left.
//!
//! Every table with a column `tenant` is purged, the audit excepted: a table
//! that is added later is so, too, without being named here. Each of them has
//! an index that begins with it.

use sqlx::AssertSqlSafe;
use sqlx::postgres::PgConnection;

use crate::domain::charge::TenantRef;
use crate::ledger::sql::Failure;

/// Removes the next portion. `false`: there was nothing to remove.
pub(super) async fn purge(
    connection: &mut PgConnection,
    tenant: TenantRef,
    rows: u32,
) -> Result<bool, Failure> {
    for table in tables(connection).await? {
        let text = format!(
            "DELETE FROM {table} WHERE ctid = ANY (ARRAY (SELECT ctid FROM {table} WHERE tenant = $1 LIMIT $2))"
        );
        // A table's name as the database quotes it.
        let query = sqlx::query(AssertSqlSafe(text)).bind(i64::from(tenant.0)).bind(i64::from(rows));
        if query.execute(&mut *connection).await?.rows_affected() > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn tables(connection: &mut PgConnection) -> sqlx::Result<Vec<String>> {
    let text = "SELECT quote_ident(relname) FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
                WHERE relkind = 'r' AND relnamespace = CAST(current_schema() AS regnamespace)
                AND attname = 'tenant' AND relname <> 'audit' ORDER BY relname";
    sqlx::query_scalar(text).fetch_all(connection).await
}
