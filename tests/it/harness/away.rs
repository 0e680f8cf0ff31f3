//! A store that is away for a while.

use std::path::Path;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Row as _};

/// The embedded ledger takes no writes until it is given back, however its service goes on. Reading
/// goes on: that is all that is left of a disk that is full.
pub struct Away {
    connection: SqliteConnection,
    triggers: Vec<String>,
}

impl Away {
    pub async fn take(data: &Path) -> Self {
        let options = SqliteConnectOptions::new().filename(data.join("apportion.db"));
        let mut connection = options.connect().await.expect("the database opens beside the service");
        let tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT GLOB '*sq*l*'";
        let tables = sqlx::query(tables).fetch_all(&mut connection).await.expect("a list of tables");
        let mut triggers = Vec::new();
        for table in tables {
            let table: String = table.get(0);
            for write in ["INSERT", "UPDATE", "DELETE"] {
                let trigger = format!("away_{table}_{write}");
                let statement = format!(
                    "CREATE TRIGGER {trigger} BEFORE {write} ON {table} \
                     BEGIN SELECT RAISE(ABORT, 'the store is away'); END"
                );
                let statement = sqlx::AssertSqlSafe(statement);
                sqlx::query(statement).execute(&mut connection).await.expect("a trigger");
                triggers.push(trigger);
            }
        }
        Self { connection, triggers }
    }

    pub async fn give_back(mut self) {
        for trigger in self.triggers {
            let statement = sqlx::AssertSqlSafe(format!("DROP TRIGGER {trigger}"));
            sqlx::query(statement).execute(&mut self.connection).await.expect("it is there");
        }
    }
}
