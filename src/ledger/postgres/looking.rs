//! Looking at a database without changing it.

use std::time::{Duration, Instant};

use sqlx::postgres::PgConnection;
use sqlx::{ConnectOptions, Connection, Row};

use super::error::{silent, unopened};
use super::open::{CONNECT_TIMEOUT, Target, newest};
use crate::ledger::LedgerError;

/// An answer that takes longer is worth a word.
const SLOW: Duration = Duration::from_millis(10);
/// Connections that a node opens at most.
const OF_A_NODE: i64 = 16;

/// What there is to say about a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresLook {
    /// Where it is, without the password.
    pub place: String,
    pub version: String,
    /// The newest schema step that it has; 0: none yet. `None`: it may not be read.
    pub schema: Option<i64>,
    /// The newest that this program knows.
    pub schema_known: i64,
    /// What keeps a node from working with it.
    pub bad: Vec<String>,
    /// What deserves a look.
    pub odd: Vec<String>,
}

/// # Errors
/// As when a ledger is opened there.
pub async fn look_at_postgres(url: &str) -> Result<PostgresLook, LedgerError> {
    let target = Target::of(url)?;
    let connecting = tokio::time::timeout(CONNECT_TIMEOUT, target.options.connect()).await;
    let connected = connecting.map_err(|_| silent(&target.place))?;
    let mut connection = connected.map_err(|error| unopened(&target.place, error))?;
    target.refuse_unfit(&mut connection).await?;
    let look = look(&target.place, &mut connection).await;
    let look = look.map_err(|error| unopened(&target.place, error))?;
    connection.close().await.map_err(|error| unopened(&target.place, error))?;
    Ok(look)
}

async fn look(place: &str, connection: &mut PgConnection) -> sqlx::Result<PostgresLook> {
    let (mut bad, mut odd) = (Vec::new(), Vec::new());
    let row = sqlx::query(
        "SELECT split_part(current_setting('server_version'), ' ', 1),
                pg_is_in_recovery(),
                current_setting('default_transaction_read_only') = 'on',
                coalesce(has_schema_privilege(current_schema(), 'CREATE'), false),
                current_setting('fsync') = 'on' AND current_setting('synchronous_commit') <> 'off',
                CAST(current_setting('max_connections') AS bigint)
                  - CAST(current_setting('superuser_reserved_connections') AS bigint)
                  - (SELECT count(*) FROM pg_stat_activity WHERE datname IS NOT NULL),
                to_regclass('_sqlx_migrations') IS NOT NULL,
                to_regclass('holds') IS NULL OR has_table_privilege(to_regclass('holds'), 'INSERT'),
                coalesce(has_table_privilege(to_regclass('_sqlx_migrations'), 'SELECT'), false)",
    );
    let row = row.fetch_one(&mut *connection).await?;
    let is = |column: usize| row.try_get::<bool, _>(column);
    if is(1)? {
        bad.push("it is a replica, which takes no writes: give the URL of its primary".to_owned());
    } else if is(2)? {
        bad.push("it takes no writes (default_transaction_read_only is on)".to_owned());
    }
    if !is(4)? {
        odd.push(
            "fsync or synchronous_commit is off: what it says is on record may be gone after a power loss"
                .to_owned(),
        );
    }
    let free: i64 = row.try_get(5)?;
    if free < OF_A_NODE {
        odd.push(format!(
            "{} more connections can be opened; a node opens up to {OF_A_NODE}: raise max_connections",
            free.max(0)
        ));
    }
    if !is(7)? {
        bad.push(
            "its tables are another role's: use the role that made them, or GRANT it all on them".to_owned(),
        );
    }
    let schema = match (is(6)?, is(8)?) {
        (false, _) => Some(0),
        (true, false) => None,
        (true, true) => {
            let newest = "SELECT coalesce(max(version), 0) FROM _sqlx_migrations WHERE success";
            Some(sqlx::query_scalar(newest).fetch_one(&mut *connection).await?)
        }
    };
    if schema.is_some_and(|schema| schema < newest()) && !is(3)? {
        bad.push("this role may not make tables: run `apportion migrate` as the owner, or GRANT CREATE on its schema".to_owned());
    }
    let took = quickest_answer(connection).await?;
    if took > SLOW {
        odd.push(format!("an answer takes {} ms: put it nearer to the nodes", took.as_millis()));
    }
    Ok(PostgresLook {
        place: place.to_owned(),
        version: row.try_get(0)?,
        schema,
        schema_known: newest(),
        bad,
        odd,
    })
}

async fn quickest_answer(connection: &mut PgConnection) -> sqlx::Result<Duration> {
    let mut quickest = Duration::MAX;
    for _ in 0..5 {
        let from = Instant::now();
        sqlx::query("SELECT 1").execute(&mut *connection).await?;
        quickest = quickest.min(from.elapsed());
    }
    Ok(quickest)
}
