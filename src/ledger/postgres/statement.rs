//! Statements on a Postgres connection.

use std::borrow::Cow;

use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Column, Postgres, Row, SqlSafeStr, SqlStr, TypeInfo};

use crate::ledger::sql::duplicates::duplicates;
use crate::ledger::sql::rankings::Texts;
use crate::ledger::sql::{Columns, Kind, ManyRows, Sql, Value};

type Query = sqlx::query::Query<'static, Postgres, PgArguments>;

impl Sql for PgConnection {
    type Row = PgRow;

    const USER_ACCOUNT: &'static str =
        "SELECT 0, state, CAST(NULL AS bigint), CAST(NULL AS bigint) FROM accounts
             WHERE tenant = $1 AND scope = $2 AND owner = $3
         UNION ALL SELECT 1, body, CAST(NULL AS bigint), CAST(NULL AS bigint) FROM holds
             WHERE tenant = $1 AND finished_at IS NULL AND user_id = $3
         UNION ALL SELECT 2, id, request, finished_at FROM holds WHERE tenant = $1 AND user_id = $3
             AND finished_at IS NOT NULL AND request IS NOT NULL AND finished_at >= $4";

    /// Parts told apart by their first column. Each reads one index backwards.
    const HISTORY: &'static str = "
SELECT * FROM (SELECT 0 AS part, body, CAST(NULL AS bigint), NULL, NULL, NULL, NULL,
        CAST(NULL AS bigint), NULL, NULL
    FROM holds
    WHERE tenant = $1 AND user_id = $2 AND id >= $3 AND id < $4 ORDER BY id DESC LIMIT $5) AS made
UNION ALL
SELECT * FROM (SELECT 1, body, CAST(NULL AS bigint), NULL, NULL, NULL, NULL,
        CAST(NULL AS bigint), NULL, NULL
    FROM holds
    WHERE tenant = $1 AND user_id = $2 AND finished_at >= $6 AND (finished_at, id) < ($7, $8)
    ORDER BY finished_at DESC, id DESC LIMIT $5) AS ended
UNION ALL
SELECT * FROM (SELECT 2, body, CAST(NULL AS bigint), NULL, NULL, NULL, NULL,
        CAST(NULL AS bigint), NULL, NULL
    FROM holds
    WHERE tenant = $1 AND user_id = $2 AND finished_at IS NULL AND doubtful_from >= $6
    AND doubtful_from <= $9 AND (doubtful_from, id) < ($10, $11)
    ORDER BY doubtful_from DESC, id DESC LIMIT $5) AS doubtful
UNION ALL
SELECT * FROM (SELECT 3, CAST(NULL AS bytea), number, action, target, old, new, written_at, written_by, reason
    FROM audit
    WHERE tenant = $1 AND target = $2 AND action >= 'user.' AND action < 'user/'
    AND written_at >= $6 AND (written_at, number) < ($12, $13)
    ORDER BY written_at DESC, number DESC LIMIT $5) AS changed
UNION ALL
SELECT 4, recent, CAST(NULL AS bigint), NULL, NULL, NULL, NULL, CAST(NULL AS bigint), NULL, NULL
    FROM refused WHERE tenant = $1 AND user_id = $2";

    const DUPLICATES_BY_DEVICE: &'static str =
        duplicates!("(CAST(signals AS json) ->> 'device') COLLATE \"C\"");
    const DUPLICATES_BY_ADDRESS: &'static str =
        duplicates!("(CAST(signals AS json) ->> 'address') COLLATE \"C\"");
    const VERSIONS_OF_MANY: &'static str = "SELECT users.id, users.version
         FROM json_array_elements_text(CAST($2 AS json)) AS asked (id)
         JOIN users ON users.tenant = $1 AND users.id = asked.id";
    const RECENT_OF_MANY: &'static str = "SELECT kept.tenant, kept.user_id, kept.recent
         FROM json_array_elements(CAST($1 AS json)) AS asked (pair)
         JOIN refused AS kept ON kept.tenant = CAST(asked.pair ->> 0 AS bigint)
         AND kept.user_id = asked.pair ->> 1";

    const HOLDS_OF_MANY: &'static str = "SELECT body FROM holds WHERE tenant = $1 AND id = ANY (ARRAY
         (SELECT decode(asked, 'hex') FROM json_array_elements_text(CAST($2 AS json)) AS asked))";

    /// Two: as many processes as help each question, with the defaults. Both read all pieces, but
    /// each puts only its own names into its groups, and none has to be merged.
    const PIECES_PARTS: &'static [&'static str] = &[" AND hashtext(name) < 0", " AND hashtext(name) >= 0"];
    /// Kinds are all the same. Groups of pieces put together are taken for 200, those of two columns
    /// for 200 times 200: which is nearer to what there may be, and has no part grouped twice.
    const PIECES_BY: &'static str = "name, kind";

    fn rankings() -> &'static Texts {
        static TEXTS: Texts = Texts::new();
        &TEXTS
    }

    async fn rows(&mut self, text: &'static str, values: Vec<Value>) -> sqlx::Result<Vec<PgRow>> {
        query(without_hints(text), values).fetch_all(self).await
    }

    async fn rows_to_change(&mut self, text: &'static str, values: Vec<Value>) -> sqlx::Result<Vec<PgRow>> {
        let text = format!("{} FOR UPDATE", without_hints(text));
        query(text.into(), values).fetch_all(self).await
    }

    async fn execute(&mut self, text: &'static str, values: Vec<Value>) -> sqlx::Result<u64> {
        Ok(query(without_hints(text), values).execute(self).await?.rows_affected())
    }

    /// One statement, however many rows: a column is one parameter.
    async fn write_rows(&mut self, table: &'static ManyRows, values: Vec<Value>) -> sqlx::Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        let mut query = sqlx::query(insert(table));
        for (at, (_, kind)) in table.columns.iter().enumerate() {
            let column = values.iter().skip(at).step_by(table.columns.len());
            query = match kind {
                Kind::Int => query.bind(column.map(int).collect::<Vec<_>>()),
                Kind::Text => query.bind(column.map(text).collect::<Vec<_>>()),
                Kind::Bytes => query.bind(column.map(bytes).collect::<Vec<_>>()),
            };
        }
        query.execute(self).await?;
        Ok(())
    }
}

/// What writes rows to a table from one array a column.
fn insert(table: &'static ManyRows) -> &'static str {
    table.unnest.get_or_init(|| {
        let arrays = table.columns.iter().enumerate().map(|(at, (_, kind))| {
            let of = match kind {
                Kind::Int => "bigint",
                Kind::Text => "text",
                Kind::Bytes => "bytea",
            };
            format!("${}::{of}[]", at + 1)
        });
        let (names, arrays) = (table.names(), arrays.collect::<Vec<_>>().join(", "));
        format!(
            "{} SELECT {names} FROM unnest({arrays}) AS new ({names})
             WHERE tenant NOT IN (SELECT number FROM deleted_tenants) {}",
            table.into(),
            table.conflict
        )
    })
}

fn query(text: Cow<'static, str>, values: Vec<Value>) -> Query {
    let text: SqlStr = match text {
        Cow::Borrowed(text) => text.into_sql_str(),
        // Made of our own texts alone.
        Cow::Owned(text) => AssertSqlSafe(text).into_sql_str(),
    };
    values.iter().fold(sqlx::query(text), |query, value| match value {
        Value::Int(_) => query.bind(int(value)),
        Value::Text(_) => query.bind(self::text(value)),
        Value::Bytes(_) => query.bind(bytes(value)),
    })
}

/// Postgres takes no hints.
fn without_hints(text: &'static str) -> Cow<'static, str> {
    const HINT: &str = " INDEXED BY ";
    if !text.contains(HINT) {
        return text.into();
    }
    let mut parts = text.split(HINT);
    let mut bare = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        bare.push_str(&part[part.find(char::is_whitespace).unwrap_or(part.len())..]);
    }
    bare.into()
}

fn int(value: &Value) -> Option<i64> {
    match value {
        Value::Int(value) => *value,
        Value::Text(_) | Value::Bytes(_) => None,
    }
}

/// Postgres' texts cannot hold NUL, and nothing that has a meaning does.
fn text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::Text(Some(text)) if text.contains('\0') => Some(text.replace('\0', "\u{FFFD}").into()),
        Value::Text(text) => text.as_deref().map(Cow::Borrowed),
        Value::Int(_) | Value::Bytes(_) => None,
    }
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::Bytes(bytes) => bytes.as_deref(),
        Value::Int(_) | Value::Text(_) => None,
    }
}

impl Columns for PgRow {
    /// Of whatever width, and what a condition comes to.
    fn int(&self, at: usize) -> sqlx::Result<Option<i64>> {
        match self.try_column(at)?.type_info().name() {
            "BOOL" => Ok(self.try_get::<Option<bool>, _>(at)?.map(i64::from)),
            "INT2" => Ok(self.try_get::<Option<i16>, _>(at)?.map(i64::from)),
            "INT4" => Ok(self.try_get::<Option<i32>, _>(at)?.map(i64::from)),
            _ => self.try_get(at),
        }
    }

    fn text(&self, at: usize) -> sqlx::Result<Option<&str>> {
        self.try_get(at)
    }

    fn bytes(&self, at: usize) -> sqlx::Result<Option<&[u8]>> {
        self.try_get(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_taken_out() {
        let text = "SELECT a FROM b INDEXED BY c WHERE d UNION SELECT a FROM e INDEXED BY f\n WHERE g";
        assert_eq!(without_hints(text), "SELECT a FROM b WHERE d UNION SELECT a FROM e\n WHERE g");
        assert!(matches!(without_hints("SELECT 1"), Cow::Borrowed("SELECT 1")));
    }
}
