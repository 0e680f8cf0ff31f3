//! Holds that are not finished: the tables, and what the tail knows better.

use futures_util::FutureExt;
use sqlx::Connection;
use sqlx::sqlite::SqliteConnection;

use super::SqliteLedger;
use crate::domain::charge::TenantRef;
use crate::domain::hold::Hold;
use crate::domain::time::Millis;
use crate::ledger::sql::doubts::{self, Walk};
use crate::ledger::sql::{Failure, read};
use crate::ledger::{DoubtPage, DoubtQuery, LedgerError};

impl SqliteLedger {
    pub(super) async fn doubtful_page(
        &self,
        tenant: TenantRef,
        query: DoubtQuery,
    ) -> Result<DoubtPage, LedgerError> {
        let now = query.now;
        let mut walk = Walk::new(tenant, query);
        loop {
            let question = walk.question();
            let since = walk.after().since;
            // A tail that says otherwise of any of them has the last word.
            let rows = self.whole_rows(|tail| tail.doubts(tenant, since, now), &question).await?;
            let mut holds = read::holds(rows)?;
            if self.is_overtaken(&holds) {
                holds = read::holds(self.journal.settled_rows(&question).await?)?;
            }
            if let Some(page) = walk.take(holds) {
                return Ok(page);
            }
        }
    }

    fn is_overtaken(&self, holds: &[Hold]) -> bool {
        let tail = self.journal.tail();
        holds.iter().any(|hold| tail.hold(&hold.id.0.to_be_bytes()).is_some())
    }
    /// Nothing is written out for the sake of a figure: what the tail knows better is taken off
    /// from what the tables have, and counted as it is.
    pub(super) async fn count_unfinished(
        &self,
        tenant: TenantRef,
        now: Millis,
    ) -> Result<[u64; 2], LedgerError> {
        self.journal.catch_up().await?;
        let states = self.journal.tail().states(tenant);
        let ids: Vec<[u8; 16]> = states.keys().copied().collect();
        let mut counts =
            self.read(move |connection| better_counted(connection, tenant, now, ids).boxed()).await?;
        for from in states.into_values().flatten() {
            counts[usize::from(from <= now.0)] += 1;
        }
        Ok(counts)
    }
}

/// What the tables count, without holds that somebody knows better.
async fn better_counted(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    now: Millis,
    better_known: Vec<[u8; 16]>,
) -> Result<[u64; 2], Failure> {
    // What is written meanwhile must not come between the two counts.
    let mut moment = connection.begin().await?;
    let mut counts = doubts::unfinished(&mut *moment, tenant, now).await?;
    let less = doubts::unfinished_of(&mut *moment, &better_known, now).await?;
    counts.iter_mut().zip(less).for_each(|(count, less)| *count -= less.min(*count));
    Ok(counts)
}
