//! Opening the database: how to reach it, whether it will do, with which schema.

use std::str::FromStr;
use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection};

use super::error::{silent, unmigrated, unopened};
use crate::ledger::LedgerError;

pub(super) static MIGRATOR: Migrator = sqlx::migrate!("migrations/postgres");

/// How long the server works on a statement, and waits for a lock.
const STATEMENT_TIMEOUT: &str = "8s";
/// The same for what goes over millions of rows.
const SURVEY_TIMEOUT: &str = "30s";
const LOCK_TIMEOUT: &str = "4s";
/// How long a transaction of ours may do nothing: its node may be gone.
const IDLE_TIMEOUT: &str = "10s";

/// How long connecting may take.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long migrating may take, waiting for others included.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(300);

/// The oldest version that has all we use.
const VERSION_MIN: i32 = 130_000;

/// Parameters of a URL that are understood. Any other may be a mistake in
/// writing a password, and the driver would log it.
const PARAMETERS: [&str; 8] = [
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "host",
    "application_name",
    "options",
    "statement-cache-capacity",
];

/// Where a database is: without the password.
pub(super) struct Target {
    pub options: PgConnectOptions,
    pub place: String,
}

impl Target {
    /// # Errors
    /// `Unusable`, without a word of the URL: a password may be anywhere in it.
    pub fn of(url: &str) -> Result<Self, LedgerError> {
        let unusable = |why: &str| {
            LedgerError::Unusable(format!(
                "the ledger's URL {why}; it is of the form postgres://user:password@host:port/database?sslmode=verify-full"
            ))
        };
        if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
            return Err(unusable("is not one of Postgres"));
        }
        let parameters = url.split_once('?').map_or("", |(_, parameters)| parameters);
        let names = parameters.split('&').filter_map(|one| one.split('=').next());
        if !names.filter(|name| !name.is_empty()).all(|name| PARAMETERS.contains(&name)) {
            let known = PARAMETERS.join(", ");
            return Err(unusable(&format!("has a parameter that is not one of {known}")));
        }
        let parsed = PgConnectOptions::from_str(url);
        let options = parsed.map_err(|_| unusable("cannot be read (is the password percent-encoded?)"))?;
        let name = options.get_application_name().unwrap_or("apportion").to_owned();
        let options = options.application_name(&name).disable_statement_logging();
        let socket = options.get_socket().map(|path| path.display().to_string());
        let host = socket.unwrap_or_else(|| options.get_host().to_owned());
        let database = options.get_database().unwrap_or_else(|| options.get_username());
        let place = format!("{host}:{}/{database}", options.get_port());
        Ok(Self { options, place })
    }

    /// Options of the connections that work.
    pub fn working(&self) -> PgConnectOptions {
        self.options.clone().options([
            ("statement_timeout", STATEMENT_TIMEOUT),
            ("lock_timeout", LOCK_TIMEOUT),
            ("idle_in_transaction_session_timeout", IDLE_TIMEOUT),
        ])
    }

    /// Options of those that read millions of rows. Compiling such statements takes longer
    /// than it saves, and each question is planned for its own span: for any span, Postgres
    /// expects next to no rows.
    pub fn surveying(&self) -> PgConnectOptions {
        self.working().options([
            ("statement_timeout", SURVEY_TIMEOUT),
            ("jit", "off"),
            ("plan_cache_mode", "force_custom_plan"),
        ])
    }

    /// Brings the schema up to date, safely beside other processes that do the
    /// same.
    pub async fn migrate(&self) -> Result<(), LedgerError> {
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, self.options.connect()).await;
        let connected = connecting.map_err(|_| silent(&self.place))?;
        let mut connection = connected.map_err(|error| unopened(&self.place, error))?;
        let work = async {
            self.refuse_unfit(&mut connection).await?;
            // Usually there is nothing to do, and nobody need be waited for.
            if is_current(&mut connection).await.map_err(|error| unopened(&self.place, error))? {
                return Ok(());
            }
            // Under an advisory lock of this database: the second one waits,
            // then finds the work done.
            let run = MIGRATOR.run_direct(None, &mut connection, false).await;
            run.map_err(|error| unmigrated(&self.place, newest(), error))
        };
        tokio::time::timeout(MIGRATION_TIMEOUT, work).await.map_err(|_| silent(&self.place))??;
        connection.close().await.map_err(|error| unopened(&self.place, error))
    }

    pub async fn refuse_unfit(&self, connection: &mut PgConnection) -> Result<(), LedgerError> {
        let text = "SELECT CAST(current_setting('server_version_num') AS integer),
                           current_setting('server_encoding')";
        let asked = sqlx::query_as(text).fetch_one(connection).await;
        let (version, encoding): (i32, String) = asked.map_err(|error| unopened(&self.place, error))?;
        let place = &self.place;
        if version < VERSION_MIN {
            return Err(LedgerError::Unusable(format!(
                "the server of {place} is Postgres {}: {} or later is needed",
                version / 10_000,
                VERSION_MIN / 10_000
            )));
        }
        if encoding != "UTF8" {
            let why = format!("the database at {place} has the encoding {encoding}: UTF8 is needed");
            return Err(LedgerError::Unusable(why));
        }
        Ok(())
    }
}

/// Whether every migration of this program is in the database, and no other.
async fn is_current(connection: &mut PgConnection) -> sqlx::Result<bool> {
    let text = "SELECT to_regclass('_sqlx_migrations') IS NOT NULL";
    if !sqlx::query_scalar(text).fetch_one(&mut *connection).await? {
        return Ok(false);
    }
    let applied: Vec<(i64, Vec<u8>)> =
        sqlx::query_as("SELECT version, checksum FROM _sqlx_migrations WHERE success ORDER BY version")
            .fetch_all(connection)
            .await?;
    let known = MIGRATOR.iter().map(|migration| (migration.version, migration.checksum.to_vec()));
    Ok(known.eq(applied))
}

/// The newest schema that this program knows.
pub(super) fn newest() -> i64 {
    MIGRATOR.iter().map(|migration| migration.version).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_and_what_is_wrong_with_a_url_tell_no_password() {
        let target = Target::of("postgres://me:s3cret@db.example:5433/money?sslmode=disable").unwrap();
        assert_eq!(target.place, "db.example:5433/money");
        for bad in [
            "mysql://me:s3cret@db/money",
            "postgres://me:s3cret@db:port/money",
            "postgres://me:s3?cret@db/money",
            "postgres://me:x@db/money?pasword=s3cret",
            "postgres://me:x@db/money?sslmode=s3cret",
        ] {
            let Err(error) = Target::of(bad) else { panic!("{bad} was taken") };
            let told = format!("{error} {error:?}");
            assert!(!told.contains("s3") && told.contains("postgres://user:password@host"), "{told}");
        }
    }
}
