//! What is counted beside the changes, and what is read of it all together.

use std::ops::Range;
use std::sync::Arc;

use futures_util::FutureExt;

use super::SqliteLedger;
use crate::domain::charge::{AccountKey, TenantRef};
use crate::domain::hold::Hold;
use crate::domain::ids::{HoldId, Name, UserId};
use crate::domain::plan::Scope;
use crate::domain::time::Millis;
use crate::ledger::sql::read::{self, Query};
use crate::ledger::sql::{
    active, activity, duplicates, history, minutes, outputs, rankings, tallies, totals, tuning, users_many,
};
use crate::ledger::{
    Answer, Comparison, Duplicate, DuplicatesQuery, Group, KeptPart, MinuteRow, MinutesQuery, Mover,
    MoversQuery, Output, PlanRefusals, Ranking, RankingQuery, RefusalCount, RefusedCall, Reports,
    SpreadQuery, Tally, UsageRow,
};

impl Reports for SqliteLedger {
    fn add_tally(&self, tally: Arc<Tally>) -> Answer<'_, ()> {
        self.write_beside(move |c| async move { tallies::add(c, &tally).await }.boxed()).boxed()
    }

    fn unfinished(&self, tenants: Vec<(TenantRef, Millis)>) -> Answer<'_, [u64; 2]> {
        self.count_unfinished(tenants).boxed()
    }

    fn refusals(&self, tenant: TenantRef, user: UserId, days: Range<i32>) -> Answer<'_, Vec<RefusalCount>> {
        self.read(move |c| tallies::refusals_of(c, tenant, user, days).boxed()).boxed()
    }

    fn last_refusals(&self, tenant: TenantRef, user: UserId) -> Answer<'_, Vec<RefusedCall>> {
        self.read(move |c| tallies::last_refusals(c, tenant, user).boxed()).boxed()
    }

    fn refused_users(
        &self,
        tenant: TenantRef,
        days: Range<i32>,
        code: Option<String>,
        limit: u32,
    ) -> Answer<'_, Vec<UserId>> {
        self.read(move |c| users_many::refused(c, tenant, days, code, limit).boxed()).boxed()
    }

    fn holds_made(
        &self,
        tenant: TenantRef,
        user: UserId,
        instants: Range<Millis>,
        after: Option<HoldId>,
        limit: u32,
    ) -> Answer<'_, Vec<Hold>> {
        async move {
            let key = AccountKey { tenant, scope: Scope::User, owner: user.shared() };
            let query = history::made(tenant, user, &instants, after, limit);
            read::holds(self.whole_rows(|tail| tail.touches(&key), &query).await?)
        }
        .boxed()
    }

    fn comparisons(&self, tenant: TenantRef, days: Range<i32>) -> Answer<'_, Vec<Comparison>> {
        self.read(move |c| tallies::comparisons(c, tenant, days).boxed()).boxed()
    }

    fn active_peaks(&self, tenant: TenantRef, slots: Range<i64>) -> Answer<'_, Vec<(Name, u64)>> {
        self.read(move |c| active::peaks(c, tenant, slots).boxed()).boxed()
    }

    fn prune_tallies(&self, tenant: TenantRef, day: i32) -> Answer<'_, bool> {
        self.write_beside(move |c| tallies::prune(c, tenant, day).boxed()).boxed()
    }

    fn minutes(&self, tenant: TenantRef, query: MinutesQuery) -> Answer<'_, Vec<MinuteRow>> {
        async move {
            let query = Query::Minutes { tenant, query };
            let rows = self.whole_rows(|tail| !tail.is_empty(), &query).await?;
            rows.iter().map(minutes::row).collect()
        }
        .boxed()
    }

    fn prune_minutes(&self, tenant: TenantRef, minute: i64) -> Answer<'_, bool> {
        self.write_beside(move |c| minutes::prune(c, tenant, minute).boxed()).boxed()
    }

    fn duplicates(&self, tenant: TenantRef, query: DuplicatesQuery) -> Answer<'_, Vec<Duplicate>> {
        async move {
            let query = Query::Duplicates { tenant, query };
            duplicates::gather(&self.whole_rows(|tail| !tail.is_empty(), &query).await?)
        }
        .boxed()
    }

    fn usage(&self, tenant: TenantRef, group: Group, days: Range<i32>) -> Answer<'_, Vec<UsageRow>> {
        async move {
            let query = Query::Usage { tenant, group, days };
            let rows = self.whole_rows(|tail| !tail.is_empty(), &query).await?;
            rows.iter().map(totals::usage_row).collect()
        }
        .boxed()
    }

    fn movers(&self, tenant: TenantRef, query: MoversQuery) -> Answer<'_, Vec<Mover>> {
        self.read(move |c| async move { activity::movers(c, tenant, &query).await }.boxed()).boxed()
    }

    fn prune_user_slots(&self, tenant: TenantRef, slot: i64) -> Answer<'_, bool> {
        self.write_beside(move |c| activity::prune(c, tenant, slot).boxed()).boxed()
    }

    /// What the journal has is written out first; what comes meanwhile may be in it.
    fn spread(&self, tenant: TenantRef, query: SpreadQuery) -> Answer<'_, Vec<(u64, u64)>> {
        async move {
            self.journal.catch_up().await?;
            self.journal.write_out().await?;
            self.read(move |c| async move { tuning::spread(c, tenant, &query).await }.boxed()).await
        }
        .boxed()
    }

    fn plan_refusals(
        &self,
        tenant: TenantRef,
        plan: Name,
        days: Range<i32>,
        least: u32,
    ) -> Answer<'_, Vec<PlanRefusals>> {
        self.read(move |c| async move { tuning::refusals(c, tenant, &plan, &days, least).await }.boxed())
            .boxed()
    }

    fn ranking(&self, tenant: TenantRef, query: RankingQuery, today: i32, limit: u32) -> Answer<'_, Ranking> {
        async move {
            let query = Query::Ranking { tenant, query, today, limit };
            rankings::ranking(&self.whole_rows(|tail| !tail.is_empty(), &query).await?)
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
        self.write_beside(move |c| async move { rankings::keep(c, tenant, id, &parts, since).await }.boxed())
            .boxed()
    }

    fn ranking_part(&self, tenant: TenantRef, id: u128, part: u32) -> Answer<'_, Option<KeptPart>> {
        self.read(move |c| rankings::part(c, tenant, id, part).boxed()).boxed()
    }

    fn outputs(&self, tenant: TenantRef, day: i32) -> Answer<'_, Vec<Output>> {
        self.read(move |c| outputs::since(c, tenant, day).boxed()).boxed()
    }

    fn prune_outputs(&self, tenant: TenantRef, day: i32) -> Answer<'_, bool> {
        self.write_beside(move |c| outputs::prune(c, tenant, day).boxed()).boxed()
    }
}
