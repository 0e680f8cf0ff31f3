//! Holds that are not finished: the tables, and what the tail knows better.

use std::collections::HashMap;

use futures_util::FutureExt;
use sqlx::Connection;
use sqlx::sqlite::SqliteConnection;

use super::SqliteLedger;
use super::tail::HoldState;
use crate::domain::charge::TenantRef;
use crate::domain::hold::Hold;
use crate::domain::ids::HoldId;
use crate::domain::time::Millis;
use crate::ledger::sql::doubts::{self, Walk};
use crate::ledger::sql::{Failure, listed, read};
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
        tenants: Vec<(TenantRef, Millis)>,
    ) -> Result<[u64; 2], LedgerError> {
        self.journal.catch_up().await?;
        let (mut states, frozen) = self.journal.tail().states();
        frozen.inspect(|frozen| frozen.note_states(&mut states));
        let mut known: HashMap<u32, Known> = HashMap::new();
        for (id, HoldState { tenant, doubtful_from }) in states {
            let known = known.entry(tenant).or_default();
            known.ids.push(HoldId(u128::from_be_bytes(id)));
            known.doubtful_from.extend(doubtful_from);
        }
        self.read(move |connection| better_counted(connection, tenants, known).boxed()).await
    }
}

/// What the tail knows of a tenant's holds.
#[derive(Default)]
struct Known {
    ids: Vec<HoldId>,
    /// Of the unfinished ones.
    doubtful_from: Vec<i64>,
}

/// Those of some holds (JSON, in hexadecimal digits) whose leases run, and those in doubt. By
/// the ids alone, however few holds are unfinished.
pub(super) const UNFINISHED_OF_MANY: &str = "SELECT
     coalesce(sum(doubtful_from > $2), 0), coalesce(sum(doubtful_from <= $2), 0)
     FROM holds WHERE id IN (SELECT unhex(value) FROM json_each($1)) AND +finished_at IS NULL";

/// The holds of all tenants: what the tables count without those that somebody knows better, and
/// these.
async fn better_counted(
    connection: &mut SqliteConnection,
    tenants: Vec<(TenantRef, Millis)>,
    mut known: HashMap<u32, Known>,
) -> Result<[u64; 2], Failure> {
    // What is written meanwhile must not come between the counts.
    let mut moment = connection.begin().await?;
    let mut sums = [0; 2];
    for (tenant, now) in tenants {
        let mut counts = doubts::unfinished(&mut *moment, tenant, now).await?;
        if let Some(Known { ids, doubtful_from }) = known.remove(&tenant.0) {
            let counted = sqlx::query_as(UNFINISHED_OF_MANY).bind(listed(ids.into_iter())).bind(now.0);
            let (running, doubtful): (i64, i64) = counted.fetch_one(&mut *moment).await?;
            let less = [running, doubtful].map(i64::cast_unsigned);
            counts.iter_mut().zip(less).for_each(|(count, less)| *count -= less.min(*count));
            doubtful_from.into_iter().for_each(|from| counts[usize::from(from <= now.0)] += 1);
        }
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    Ok(sums)
}
