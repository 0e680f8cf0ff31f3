//! Statements that write many rows at once.
//!
//! One statement a batch and table: a statement a row costs about ten times as
//! much, nearly all of it in handing each one to the connection's thread and
//! waiting for the answer. The number of rows in a text is a power of two, so
//! that few texts are ever prepared; parameters beyond the last row are left
//! out, are NULL thereby, and their rows fall to the filter.

use std::sync::OnceLock;

use sqlx::Sqlite;
use sqlx::sqlite::{SqliteArguments, SqliteConnection};

type Query = sqlx::query::Query<'static, Sqlite, SqliteArguments>;

/// 2^7 rows: larger texts gain nothing.
const POWER_MAX: usize = 7;

pub(super) struct ManyRows {
    /// `INSERT INTO .. (..)`
    into: &'static str,
    columns: usize,
    /// The column with the row's tenant, counted from 1.
    tenant: usize,
    /// `ON CONFLICT ..`
    conflict: &'static str,
    texts: [OnceLock<String>; POWER_MAX + 1],
}

impl ManyRows {
    /// Rows of deleted tenants are left out: what was under way when their
    /// tenant was deleted does not come back.
    pub const fn new(into: &'static str, columns: usize, tenant: usize, conflict: &'static str) -> Self {
        Self { into, columns, tenant, conflict, texts: [const { OnceLock::new() }; POWER_MAX + 1] }
    }

    /// Writes `rows`; `bind` binds one row's columns in order, the first of
    /// them never NULL.
    pub async fn write<R>(
        &'static self,
        connection: &mut SqliteConnection,
        rows: impl ExactSizeIterator<Item = R>,
        bind: impl Fn(Query, R) -> Query,
    ) -> sqlx::Result<()> {
        let mut rows = rows;
        while rows.len() > 0 {
            let power = (rows.len().next_power_of_two().ilog2() as usize).min(POWER_MAX);
            let chunk = rows.by_ref().take(1 << power);
            let query = chunk.fold(sqlx::query(self.text(power)), &bind);
            query.execute(&mut *connection).await?;
        }
        Ok(())
    }

    fn text(&'static self, power: usize) -> &'static str {
        self.texts[power].get_or_init(|| {
            let row = format!("({})", vec!["?"; self.columns].join(","));
            let rows = vec![row; 1 << power].join(",");
            let Self { into, tenant, conflict, .. } = self;
            format!(
                "{into} SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL
                 AND column{tenant} NOT IN (SELECT number FROM deleted_tenants) {conflict}"
            )
        })
    }
}
