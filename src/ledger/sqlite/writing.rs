//! A frozen layer on its way into the tables.

use std::collections::HashSet;
use std::sync::Arc;

use sqlx::sqlite::SqliteConnection;

use super::commit::{self, Mark};
use super::tail::Frozen;
use crate::ledger::LedgerError;
use crate::ledger::sql::batch::{AccountRow, Batch, Blob, HoldRow, MinuteKey, Totals, UsageKey};
use crate::ledger::sql::commit::{write_accounts, write_holds, write_minutes};
use crate::ledger::sql::feed::{self, Feed};
use crate::ledger::sql::{Failure, get, totals};

/// As many rows as there are.
pub(super) const ALL: usize = usize::MAX;

/// What is to be written, in the order of the tables' keys: holds, then
/// accounts, then usage.
pub(super) struct Writing {
    newest: i64,
    holds: Vec<([u8; 16], Arc<HoldRow>)>,
    accounts: Vec<(AccountRow, Blob)>,
    usage: Vec<(UsageKey, Totals)>,
    /// Few; they come with the last portion, which takes their rows out of the
    /// journal: so they are added once.
    minutes: Vec<(MinuteKey, Totals)>,
    /// The same; so nobody sees an event whose hold is not written yet.
    feed: Feed,
    /// Holds and accounts that are written. How much of the usage is, tells the
    /// mark in the journal.
    pub done: usize,
}

/// What a portion came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Portion {
    /// So many holds and accounts are written by now; there is more to do.
    Partial { done: usize },
    /// The tables hold all of it.
    Whole,
}

impl Writing {
    /// `there`: the rows of the journal that are not in the tables. Usage of
    /// others is added already.
    pub fn of(frozen: &Frozen, there: &HashSet<i64>) -> Self {
        Self::counting(frozen, |row| there.contains(&row), |row, _| there.contains(&row))
    }

    fn counting(
        frozen: &Frozen,
        is_there: impl Fn(i64) -> bool,
        counts: impl Fn(i64, &UsageKey) -> bool,
    ) -> Self {
        Self {
            newest: frozen.newest,
            holds: frozen.holds_in_order(),
            accounts: frozen.accounts_in_order(),
            usage: frozen.usage_in_order(counts),
            minutes: frozen.minutes(&is_there),
            feed: frozen.feed(is_there),
            done: 0,
        }
    }

    /// Writes the next portion of at most `rows` rows, or [`ALL`], within the caller's
    /// transaction.
    pub async fn write(&self, connection: &mut SqliteConnection, rows: usize) -> Result<Portion, Failure> {
        // Another process may have written all of it, and more: then ours would
        // put back what was.
        if !commit::is_journaled(&mut *connection, self.newest).await? {
            return Ok(Portion::Whole);
        }
        let to = self.done.saturating_add(rows);
        let place = |at: usize| {
            let holds = at.min(self.holds.len());
            (holds, (at - holds).min(self.accounts.len()))
        };
        let ((holds, accounts), (holds_to, accounts_to)) = (place(self.done), place(to));
        write_holds(&mut *connection, &self.holds[holds..holds_to]).await?;
        write_accounts(&mut *connection, &self.accounts[accounts..accounts_to]).await?;
        let done = holds_to + accounts_to;
        match to.saturating_sub(done) {
            0 => Ok(Portion::Partial { done }),
            left => Ok(match self.write_rest(connection, if rows == ALL { ALL } else { left }).await? {
                true => Portion::Whole,
                false => Portion::Partial { done },
            }),
        }
    }

    /// Usage, and then what takes rows out of the journal. These are many pages: so they go in
    /// portions as well, marked as done. `true`: that was the last of it, and the journal is
    /// empty so far.
    async fn write_rest(&self, connection: &mut SqliteConnection, rows: usize) -> Result<bool, Failure> {
        let mark = Mark::read(&mut *connection).await?.filter(|mark| mark.newest == self.newest);
        let is_added = mark.as_ref().is_some_and(|mark| mark.is_whole);
        if !is_added {
            let from = mark.map_or(0, |mark| self.usage.partition_point(|(key, _)| *key <= mark.key));
            let to = from.saturating_add(rows).min(self.usage.len());
            totals::add_usage(&mut *connection, &self.usage[from..to]).await?;
            let is_whole = to == self.usage.len();
            if is_whole {
                write_minutes(&mut *connection, &self.minutes).await?;
                feed::append(&mut *connection, &self.feed).await?;
            }
            if rows != ALL {
                let key = self.usage[..to].last().map(|(key, _)| key.clone()).unwrap_or_default();
                Mark { newest: self.newest, key, is_whole }.write(connection).await?;
                return Ok(false);
            }
        }
        let is_last = rows == ALL || !commit::forget_some(&mut *connection, self.newest, rows).await?;
        if is_last {
            commit::forget(connection, self.newest).await?;
        }
        Ok(is_last)
    }
}

/// Writes everything that is in the journal to the tables, whoever put it
/// there.
pub(super) async fn write_journaled(connection: &mut SqliteConnection) -> Result<(), Failure> {
    let text = "SELECT number, body FROM journal WHERE number > 0 AND length(body) > 0 ORDER BY number";
    let rows = sqlx::query(text).fetch_all(&mut *connection).await?;
    let batches: Result<Vec<_>, LedgerError> =
        rows.iter().map(|row| Ok((get(row, 0)?, Batch::decode(get(row, 1)?)?))).collect();
    let frozen = Frozen::of(batches?);
    let mark = Mark::read(&mut *connection).await?;
    let is_added = |row: i64, key: &UsageKey| mark.as_ref().is_some_and(|mark| mark.covers(row, key));
    let is_done = |row: i64| mark.as_ref().is_some_and(|mark| mark.covers_all(row));
    let writing = Writing::counting(&frozen, |row| !is_done(row), |row, key| !is_added(row, key));
    writing.write(connection, ALL).await?;
    Ok(())
}
