//! What is counted beside the changes, and what is read of it all together.

use std::ops::Range;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::postgres::{PgConnection, PgRow};

use super::PostgresLedger;
use crate::domain::charge::TenantRef;
use crate::domain::hold::Hold;
use crate::domain::ids::{HoldId, Name, UserId};
use crate::domain::time::Millis;
use crate::ledger::sql::read::{self, Query};
use crate::ledger::sql::{
    Failure, Sql, active, activity, doubts, duplicates, history, minutes, outputs, rankings, tallies, totals,
    tuning, users_many,
};
use crate::ledger::{
    Answer, Comparison, Duplicate, DuplicatesQuery, Group, KeptPart, LedgerError, MinuteRow, MinutesQuery,
    Mover, MoversQuery, Output, PlanRefusals, Ranking, RankingQuery, RefusalCount, RefusedCall, Reports,
    SpreadQuery, Tally, UsageRow,
};

/// Asks with room for the names of 1,000,000 users in two parts (each process hashes in twice
/// this much). Other surveys would with it be hashed by one process instead of sorted by several.
async fn with_room(connection: &mut PgConnection, query: &Query) -> Result<Vec<PgRow>, Failure> {
    connection.execute("SET work_mem = '96MB'", Vec::new()).await?;
    let rows = query.rows(connection).await;
    // Also after a statement that was given up, whose failure is the one to be told.
    let reset = connection.execute("RESET work_mem", Vec::new()).await;
    let rows = rows?;
    reset?;
    Ok(rows)
}

impl Reports for PostgresLedger {
    fn add_tally(&self, tally: Arc<Tally>) -> Answer<'_, ()> {
        write!(self, |c| tallies::add(c, &tally))
    }

    fn unfinished(&self, tenants: Vec<(TenantRef, Millis)>) -> Answer<'_, [u64; 2]> {
        async move {
            let mut sums = [0; 2];
            for (tenant, now) in tenants {
                let counts: BoxFuture<'_, Result<_, LedgerError>> =
                    read!(self, |c| doubts::unfinished(c, tenant, now));
                sums.iter_mut().zip(counts.await?).for_each(|(sum, count)| *sum += count);
            }
            Ok(sums)
        }
        .boxed()
    }

    fn refusals(&self, tenant: TenantRef, user: UserId, days: Range<i32>) -> Answer<'_, Vec<RefusalCount>> {
        read!(self, |c| tallies::refusals_of(c, tenant, user.clone(), days.clone()))
    }

    fn last_refusals(&self, tenant: TenantRef, user: UserId) -> Answer<'_, Vec<RefusedCall>> {
        read!(self, |c| tallies::last_refusals(c, tenant, user.clone()))
    }

    fn refused_users(
        &self,
        tenant: TenantRef,
        days: Range<i32>,
        code: Option<String>,
        limit: u32,
    ) -> Answer<'_, Vec<UserId>> {
        read!(self, |c| users_many::refused(c, tenant, days.clone(), code.clone(), limit))
    }

    fn holds_made(
        &self,
        tenant: TenantRef,
        user: UserId,
        instants: Range<Millis>,
        after: Option<HoldId>,
        limit: u32,
    ) -> Answer<'_, Vec<Hold>> {
        self.rows(history::made(tenant, user, &instants, after, limit), read::holds).boxed()
    }

    fn comparisons(&self, tenant: TenantRef, days: Range<i32>) -> Answer<'_, Vec<Comparison>> {
        read!(self, |c| tallies::comparisons(c, tenant, days.clone()))
    }

    fn active_peaks(&self, tenant: TenantRef, slots: Range<i64>) -> Answer<'_, Vec<(Name, u64)>> {
        read!(self, |c| active::peaks(c, tenant, slots.clone()))
    }

    fn prune_tallies(&self, tenant: TenantRef, day: i32) -> Answer<'_, bool> {
        write!(self, |c| tallies::prune(c, tenant, day))
    }

    fn minutes(&self, tenant: TenantRef, query: MinutesQuery) -> Answer<'_, Vec<MinuteRow>> {
        let query = Query::Minutes { tenant, query };
        async move { self.rows(query, |rows| rows.iter().map(minutes::row).collect()).await }.boxed()
    }

    fn prune_minutes(&self, tenant: TenantRef, minute: i64) -> Answer<'_, bool> {
        write!(self, |c| minutes::prune(c, tenant, minute))
    }

    fn duplicates(&self, tenant: TenantRef, query: DuplicatesQuery) -> Answer<'_, Vec<Duplicate>> {
        async move {
            let query = Query::Duplicates { tenant, query };
            self.rows(query, |rows| duplicates::gather(&rows)).await
        }
        .boxed()
    }

    fn usage(&self, tenant: TenantRef, group: Group, days: Range<i32>) -> Answer<'_, Vec<UsageRow>> {
        let query = Query::Usage { tenant, group, days };
        async move { self.rows(query, |rows| rows.iter().map(totals::usage_row).collect()).await }.boxed()
    }

    fn movers(&self, tenant: TenantRef, query: MoversQuery) -> Answer<'_, Vec<Mover>> {
        survey!(self, |c| activity::movers(c, tenant, &query))
    }

    fn prune_user_slots(&self, tenant: TenantRef, slot: i64) -> Answer<'_, bool> {
        write!(self, |c| activity::prune(c, tenant, slot))
    }

    fn spread(&self, tenant: TenantRef, query: SpreadQuery) -> Answer<'_, Vec<(u64, u64)>> {
        survey!(self, |c| tuning::spread(c, tenant, &query))
    }

    fn plan_refusals(
        &self,
        tenant: TenantRef,
        plan: Name,
        days: Range<i32>,
        least: u32,
    ) -> Answer<'_, Vec<PlanRefusals>> {
        survey!(self, |c| tuning::refusals(c, tenant, &plan, &days, least))
    }

    fn ranking(&self, tenant: TenantRef, query: RankingQuery, today: i32, limit: u32) -> Answer<'_, Ranking> {
        async move {
            let query = &Query::Ranking { tenant, query, today, limit };
            let rows: BoxFuture<'_, Result<_, LedgerError>> = survey!(self, |c| with_room(c, query));
            rankings::ranking(&rows.await?)
        }
        .boxed()
    }

    fn keep_ranking(
        &self,
        tenant: TenantRef,
        id: u128,
        parts: Arc<[KeptPart]>,
        since: Millis,
    ) -> Answer<'_, ()> {
        write!(self, |c| rankings::keep(c, tenant, id, &parts, since))
    }

    fn ranking_part(&self, tenant: TenantRef, id: u128, part: u32) -> Answer<'_, Option<KeptPart>> {
        read!(self, |c| rankings::part(c, tenant, id, part))
    }

    fn outputs(&self, tenant: TenantRef, day: i32) -> Answer<'_, Vec<Output>> {
        read!(self, |c| outputs::since(c, tenant, day))
    }

    fn prune_outputs(&self, tenant: TenantRef, day: i32) -> Answer<'_, bool> {
        write!(self, |c| outputs::prune(c, tenant, day))
    }
}
