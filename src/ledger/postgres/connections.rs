//! Connections to the database: as many as were allowed, and no more.
//!
//! Some write and some read, so that long questions do not hold up commits; and a few
//! are for surveys, so that nobody waits behind those.
//! Whatever is asked has an end: a server that is gone is told about within
//! seconds, and used again as soon as it is back.

use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{Executor, Postgres};
use tokio::time::timeout;

use super::error::{failed, is_broken, is_collision, silent};
use super::open::{CONNECT_TIMEOUT, Target};
use crate::ledger::LedgerError;
use crate::ledger::sql::Failure;

/// Longer than the server takes to give up a statement.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for what goes over millions of rows.
const SURVEY_TIMEOUT: Duration = Duration::from_secs(35);
/// Connections that nobody uses are closed after that long.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// How often a piece of work is done anew that collided with another's.
const COLLISIONS_MAX: u32 = 5;

/// What a transaction sees is decided statement by statement. Where two of them
/// might overtake each other, the statements themselves look twice.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

pub(super) struct Connections {
    place: String,
    writers: PgPool,
    readers: PgPool,
    surveyors: PgPool,
    /// All that may have gone stale while nobody used them.
    stale_max: u32,
}

impl Connections {
    /// At most `max` connections, opened when they are needed.
    pub fn new(target: Target, max: u32) -> Self {
        let pool = |max: u32, options: PgConnectOptions, patience: Duration| {
            PgPoolOptions::new()
                .max_connections(max.max(1))
                .acquire_timeout(patience)
                .idle_timeout(IDLE_TIMEOUT)
                // A question more for each one: what is stale is found by use.
                .test_before_acquire(false)
                .connect_lazy_with(options)
        };
        let (writing, surveying) = (max / 2, max / 8);
        let writers = pool(writing, target.working(), CONNECT_TIMEOUT);
        let readers = pool(max - writing - surveying, target.working(), CONNECT_TIMEOUT);
        let surveyors = pool(surveying, target.surveying(), SURVEY_TIMEOUT);
        Self { place: target.place, writers, readers, surveyors, stale_max: max }
    }

    pub async fn close(&self) {
        let closing = async {
            self.writers.close().await;
            self.readers.close().await;
            self.surveyors.close().await;
        };
        if timeout(ANSWER_TIMEOUT, closing).await.is_err() {
            tracing::warn!(place = self.place, "the ledger's connections were not closed in time");
        }
    }

    /// For work that reads in one statement.
    pub fn reading(&self) -> Attempts<'_> {
        self.attempts(Purpose::Read, ANSWER_TIMEOUT)
    }

    /// For work that reads millions of rows: few at a time, and they may take long.
    pub fn surveying(&self) -> Attempts<'_> {
        self.attempts(Purpose::Survey, SURVEY_TIMEOUT)
    }

    /// For work in one transaction.
    pub fn writing(&self) -> Attempts<'_> {
        self.attempts(Purpose::Write, ANSWER_TIMEOUT)
    }

    fn attempts(&self, purpose: Purpose, patience: Duration) -> Attempts<'_> {
        Attempts { connections: self, purpose, patience, stale_left: self.stale_max, collisions: 0 }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Read,
    Survey,
    Write,
}

/// A piece of work, until it is done or cannot be.
pub(super) struct Attempts<'c> {
    connections: &'c Connections,
    purpose: Purpose,
    /// How long the work may take.
    patience: Duration,
    stale_left: u32,
    collisions: u32,
}

impl Attempts<'_> {
    /// A connection to work with; for work that writes, in a transaction.
    pub async fn session(&mut self) -> Result<Session, LedgerError> {
        loop {
            let pool = match self.purpose {
                Purpose::Read => &self.connections.readers,
                Purpose::Survey => &self.connections.surveyors,
                Purpose::Write => &self.connections.writers,
            };
            let connection = pool.acquire().await.map_err(|error| self.failed(error.into()))?;
            let mut session = Session { connection, is_sound: false };
            if self.purpose != Purpose::Write {
                return Ok(session);
            }
            match within(ANSWER_TIMEOUT, async { Ok(session.connection.execute(BEGIN).await?) }).await {
                Ok(_) => return Ok(session),
                Err(failure) => self.again(failure)?,
            }
        }
    }

    /// Work that is given up when nothing comes back.
    pub async fn within<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        within(self.patience, work).await
    }

    /// Ends a session. `None`: the work is to be done again.
    pub async fn end<T>(
        &mut self,
        mut session: Session,
        done: Result<T, Failure>,
    ) -> Result<Option<T>, LedgerError> {
        let is_answered = !matches!(&done, Err(Failure::Sql(error)) if is_broken(error))
            && !matches!(&done, Err(Failure::Ledger(LedgerError::Unavailable(_))));
        if is_answered && self.purpose == Purpose::Write {
            let end = if done.is_ok() { "COMMIT" } else { "ROLLBACK" };
            let ended = within(ANSWER_TIMEOUT, async { Ok(session.connection.execute(end).await?) }).await;
            session.is_sound = ended.is_ok();
            // Whether a commit came to pass is not known: the caller asks.
            if let (Ok(_), Err(failure)) = (&done, ended) {
                return Err(self.failed(failure));
            }
        } else {
            session.is_sound = is_answered;
        }
        match done {
            Ok(answer) => Ok(Some(answer)),
            Err(failure) => self.again(failure).map(|()| None),
        }
    }

    /// `Ok` where the same work may succeed at once: it stood in another's way,
    /// or the connection had been stale and nothing had been asked for yet.
    fn again(&mut self, failure: Failure) -> Result<(), LedgerError> {
        if is_collision(&failure) && self.collisions < COLLISIONS_MAX {
            self.collisions += 1;
            return Ok(());
        }
        let is_stale = matches!(&failure, Failure::Sql(error) if is_broken(error));
        if is_stale && self.stale_left > 0 {
            self.stale_left -= 1;
            return Ok(());
        }
        Err(self.failed(failure))
    }

    fn failed(&self, failure: Failure) -> LedgerError {
        match failure {
            Failure::Sql(sqlx::Error::PoolTimedOut) => silent(&self.connections.place),
            failure => failed(&self.connections.place, failure),
        }
    }
}

/// A connection on loan. One that was left in the middle of something is
/// closed, and with it ends whatever was under way.
pub(super) struct Session {
    connection: PoolConnection<Postgres>,
    is_sound: bool,
}

impl Session {
    pub fn connection(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.is_sound {
            self.connection.close_on_drop();
        }
    }
}

/// Work that is given up when nothing comes back.
async fn within<T>(patience: Duration, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    match timeout(patience, work).await {
        Ok(answer) => answer,
        Err(_) => Err(LedgerError::Unavailable("the ledger does not answer".into()).into()),
    }
}
