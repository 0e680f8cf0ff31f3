//! Statements on a SQLite connection.
//!
//! Many rows are one statement: a statement a row costs about ten times as
//! much, nearly all of it in handing each one to the connection's thread and
//! waiting for the answer. The number of rows in a text is a power of two, so
//! that few texts are ever prepared; parameters beyond the last row are left
//! out, are NULL thereby, and their rows fall to the filter.

use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{Row, Sqlite};

use super::ended;
use crate::ledger::sql::duplicates::duplicates;
use crate::ledger::sql::rankings::Texts;
use crate::ledger::sql::{Columns, ManyRows, Sql, Value};

type Query = sqlx::query::Query<'static, Sqlite, SqliteArguments>;

/// 2^7 rows: larger texts gain nothing.
const POWER_MAX: usize = ManyRows::TEXTS - 1;

impl Sql for SqliteConnection {
    type Row = SqliteRow;

    const USER_ACCOUNT: &'static str = ended::USER_ACCOUNT;
    const HISTORY: &'static str = ended::HISTORY;
    const DUPLICATES_BY_DEVICE: &'static str = duplicates!("json_extract(signals, '$.device')");
    const DUPLICATES_BY_ADDRESS: &'static str = duplicates!("json_extract(signals, '$.address')");
    const VERSIONS_OF_MANY: &'static str = "SELECT users.id, users.version FROM json_each($2) AS asked
         CROSS JOIN users ON users.tenant = $1 AND users.id = asked.value";
    const RECENT_OF_MANY: &'static str =
        "SELECT kept.tenant, kept.user_id, kept.recent FROM json_each($1) AS asked
         CROSS JOIN refused AS kept ON kept.tenant = json_extract(asked.value, '$[0]')
         AND kept.user_id = json_extract(asked.value, '$[1]')";

    const HOLDS_OF_MANY: &'static str =
        // By the ids alone: their index is the narrower one.
        "SELECT body FROM holds WHERE id IN (SELECT unhex(value) FROM json_each($2)) AND +tenant = $1";

    const PIECES_PARTS: &'static [&'static str] = &[""];
    const PIECES_BY: &'static str = "name";

    fn rankings() -> &'static Texts {
        static TEXTS: Texts = Texts::new();
        &TEXTS
    }

    async fn rows(&mut self, text: &'static str, values: Vec<Value>) -> sqlx::Result<Vec<SqliteRow>> {
        query(text, values).fetch_all(self).await
    }

    /// Nobody else writes while a transaction is open that does.
    async fn rows_to_change(
        &mut self,
        text: &'static str,
        values: Vec<Value>,
    ) -> sqlx::Result<Vec<SqliteRow>> {
        self.rows(text, values).await
    }

    async fn execute(&mut self, text: &'static str, values: Vec<Value>) -> sqlx::Result<u64> {
        Ok(query(text, values).execute(self).await?.rows_affected())
    }

    async fn write_rows(&mut self, table: &'static ManyRows, values: Vec<Value>) -> sqlx::Result<()> {
        let columns = table.columns.len();
        let mut left = values.len() / columns;
        let mut values = values.into_iter();
        while left > 0 {
            let power = (left.next_power_of_two().ilog2() as usize).min(POWER_MAX);
            let rows = left.min(1 << power);
            query(insert(table, power), values.by_ref().take(rows * columns)).execute(&mut *self).await?;
            left -= rows;
        }
        Ok(())
    }
}

fn query(text: &'static str, values: impl IntoIterator<Item = Value>) -> Query {
    values.into_iter().fold(sqlx::query(text), |query, value| match value {
        Value::Int(value) => query.bind(value),
        Value::Text(value) => query.bind(value),
        Value::Bytes(value) => query.bind(value.map(|bytes| bytes.to_vec())),
    })
}

/// What writes 2^`power` rows of a table.
fn insert(table: &'static ManyRows, power: usize) -> &'static str {
    table.texts[power].get_or_init(|| {
        let row = format!("({})", vec!["?"; table.columns.len()].join(","));
        let rows = vec![row; 1 << power].join(",");
        let tenant = 1 + table.columns.iter().take_while(|(name, _)| *name != "tenant").count();
        let conflict = table.conflict.replace("least(", "min(").replace("greatest(", "max(");
        format!(
            "{} SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL
             AND column{tenant} NOT IN (SELECT number FROM deleted_tenants) {conflict}",
            table.into()
        )
    })
}

impl Columns for SqliteRow {
    fn int(&self, at: usize) -> sqlx::Result<Option<i64>> {
        self.try_get(at)
    }

    fn text(&self, at: usize) -> sqlx::Result<Option<&str>> {
        self.try_get(at)
    }

    fn bytes(&self, at: usize) -> sqlx::Result<Option<&[u8]>> {
        self.try_get(at)
    }
}
