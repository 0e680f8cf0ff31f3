//! What the stores of a server have, looked at from behind.

use sqlx::postgres::PgConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Row};

use super::Server;

/// The ledger's tables, whichever database has them.
pub enum Tables {
    File(SqliteConnection),
    Server(PgConnection),
}

impl Tables {
    pub async fn of(server: &Server) -> Self {
        match server.database_url() {
            Some(url) => Self::Server(PgConnection::connect(url).await.expect("it is there")),
            None => {
                let file = SqliteConnectOptions::new().filename(server.data.join("apportion.db"));
                Self::File(file.connect().await.expect("it is there"))
            }
        }
    }

    /// Those in which these bytes stand anywhere, by name.
    pub async fn with(&mut self, needle: &str) -> Vec<String> {
        let mut found = Vec::new();
        for (table, columns) in self.all().await {
            let any: Vec<String> = columns.iter().map(|column| self.has(column)).collect();
            let text = format!("SELECT EXISTS (SELECT 1 FROM \"{table}\" WHERE {})", any.join(" OR "));
            let text = AssertSqlSafe(text);
            let has: bool = match self {
                Self::File(file) => sqlx::query_scalar(text).bind(needle).fetch_one(file).await.unwrap(),
                Self::Server(server) => {
                    sqlx::query_scalar(text).bind(needle).fetch_one(server).await.unwrap()
                }
            };
            if has {
                found.push(table);
            }
        }
        found
    }

    /// Requests, input, output and total tokens of a user, by their days.
    pub async fn usage_of(&mut self, user: &str) -> [i64; 4] {
        let sums = ["requests", "input_tokens", "output_tokens", "total_tokens"]
            .map(|name| format!("CAST(sum({name}) AS BIGINT)"));
        let text =
            AssertSqlSafe(format!("SELECT {} FROM day_totals WHERE kind = 0 AND name = $1", sums.join(", ")));
        match self {
            Self::File(file) => {
                let row = sqlx::query(text).bind(user).fetch_one(file).await.unwrap();
                std::array::from_fn(|column| row.get(column))
            }
            Self::Server(server) => {
                let row = sqlx::query(text).bind(user).fetch_one(server).await.unwrap();
                std::array::from_fn(|column| row.get(column))
            }
        }
    }

    /// A condition for `$1` standing in a column of text or bytes.
    fn has(&self, column: &str) -> String {
        match self {
            Self::File(_) => format!("instr(CAST({column} AS BLOB), CAST($1 AS BLOB)) > 0"),
            Self::Server(_) => format!("position(convert_to($1, 'UTF8') IN {column}) > 0"),
        }
    }

    /// Each table with its columns, as bytes.
    async fn all(&mut self) -> Vec<(String, Vec<String>)> {
        let rows: Vec<(String, String)> = match self {
            Self::File(file) => {
                let text =
                    "SELECT m.name, '\"' || c.name || '\"' FROM sqlite_master m, pragma_table_info(m.name) c
                    WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%' ORDER BY m.name";
                sqlx::query_as(text).fetch_all(file).await.unwrap()
            }
            Self::Server(server) => {
                let text = "SELECT table_name::text, CASE data_type WHEN 'bytea' THEN format('%I', column_name)
                        ELSE format('convert_to(%I::text, ''UTF8'')', column_name) END
                    FROM information_schema.columns WHERE table_schema = current_schema() ORDER BY table_name";
                sqlx::query_as(text).fetch_all(server).await.unwrap()
            }
        };
        let mut tables: Vec<(String, Vec<String>)> = Vec::new();
        for (table, column) in rows {
            match tables.last_mut().filter(|(last, _)| *last == table) {
                Some((_, columns)) => columns.push(column),
                None => tables.push((table, vec![column])),
            }
        }
        tables
    }
}
