//! What is counted beside the changes, and what is read of it all together: for
//! people, and for what is learned.

use std::ops::Range;
use std::sync::Arc;

use super::{
    Answer, Comparison, Duplicate, DuplicatesQuery, Group, KeptPart, MinuteRow, MinutesQuery, Mover,
    MoversQuery, Output, PlanRefusals, Ranking, RankingQuery, RefusalCount, RefusedCall, SpreadQuery, Tally,
    UsageRow,
};
#[cfg(doc)]
use super::{OTHER, RECENT_MAX, THEIRS_MAX};
use crate::domain::charge::TenantRef;
use crate::domain::hold::Hold;
use crate::domain::ids::{HoldId, Name, UserId};
use crate::domain::time::Millis;

/// Unfinished holds are counted up to here.
pub const UNFINISHED_MAX: u32 = 1_000_000;

/// The part of the ledger that no decision waits for.
pub trait Reports: Send + Sync + 'static {
    /// Adds to the counters of refusals, comparisons and outputs. The last
    /// [`RECENT_MAX`] refusals of a user stay; of another limiter's words
    /// [`THEIRS_MAX`] a tenant and day, the others as [`OTHER`].
    fn add_tally(&self, tally: Arc<Tally>) -> Answer<'_, ()>;
    /// How many holds of some tenants are not finished, in all: those whose leases run, and
    /// those in doubt at the tenant's time. What came on record in the last moments may be
    /// missing, and no more than [`UNFINISHED_MAX`] of either are counted of a tenant.
    fn unfinished(&self, tenants: Vec<(TenantRef, Millis)>) -> Answer<'_, [u64; 2]>;
    /// A user's refusals by day and code, newest day first. To be asked for a
    /// few days.
    fn refusals(&self, tenant: TenantRef, user: UserId, days: Range<i32>) -> Answer<'_, Vec<RefusalCount>>;
    /// The refusals of a user that are kept one by one, oldest first.
    fn last_refusals(&self, tenant: TenantRef, user: UserId) -> Answer<'_, Vec<RefusedCall>>;
    /// Users who were refused on some days, by one code if one is given; ascending,
    /// at most `limit`.
    fn refused_users(
        &self,
        tenant: TenantRef,
        days: Range<i32>,
        code: Option<String>,
        limit: u32,
    ) -> Answer<'_, Vec<UserId>>;
    /// A user's holds that were made within `instants`, in the order of their ids,
    /// after `after`; booked use is not among them. At most `limit`.
    fn holds_made(
        &self,
        tenant: TenantRef,
        user: UserId,
        instants: Range<Millis>,
        after: Option<HoldId>,
        limit: u32,
    ) -> Answer<'_, Vec<Hold>>;
    /// By day, our word and theirs.
    fn comparisons(&self, tenant: TenantRef, days: Range<i32>) -> Answer<'_, Vec<Comparison>>;
    /// By plan the most users that were active in one of the slots. What is
    /// older than eight days goes as newer comes.
    fn active_peaks(&self, tenant: TenantRef, slots: Range<i64>) -> Answer<'_, Vec<(Name, u64)>>;
    /// Takes out some of the counters of days before `day`. `false`: there are
    /// no more.
    fn prune_tallies(&self, tenant: TenantRef, day: i32) -> Answer<'_, bool>;
    /// What features used, by minute and feature, ascending.
    fn minutes(&self, tenant: TenantRef, query: MinutesQuery) -> Answer<'_, Vec<MinuteRow>>;
    /// Takes out some of what is older than `minute`. `false`: there is no more.
    fn prune_minutes(&self, tenant: TenantRef, minute: i64) -> Answer<'_, bool>;
    /// Values of a signal that more than one user has, ascending. Erased users have none.
    fn duplicates(&self, tenant: TenantRef, query: DuplicatesQuery) -> Answer<'_, Vec<Duplicate>>;
    /// What each of a group used, by day and name, ascending.
    fn usage(&self, tenant: TenantRef, group: Group, days: Range<i32>) -> Answer<'_, Vec<UsageRow>>;
    /// Who used how much of late, the most first.
    fn movers(&self, tenant: TenantRef, query: MoversQuery) -> Answer<'_, Vec<Mover>>;
    /// Takes out some of what users used before `slot`. `false`: there is no more.
    fn prune_user_slots(&self, tenant: TenantRef, slot: i64) -> Answer<'_, bool>;
    /// How many of a plan's users used how much, ascending; of each the first three
    /// digits.
    fn spread(&self, tenant: TenantRef, query: SpreadQuery) -> Answer<'_, Vec<(u64, u64)>>;
    /// How often a plan's users were refused, by code and by any limit of theirs; how
    /// many of them on `least` days or more.
    fn plan_refusals(
        &self,
        tenant: TenantRef,
        plan: Name,
        days: Range<i32>,
        least: u32,
    ) -> Answer<'_, Vec<PlanRefusals>>;
    /// Who used most: the first `limit` rows. Of days after `today` there is next to
    /// nothing (where the zone was changed, say), so that they cost nothing.
    fn ranking(&self, tenant: TenantRef, query: RankingQuery, today: i32, limit: u32) -> Answer<'_, Ranking>;
    /// Keeps a ranking in its parts, for its later pages. Of those a tenant has, the
    /// oldest beyond a bound go, and all that were made before `since`.
    fn keep_ranking(
        &self,
        tenant: TenantRef,
        id: u128,
        parts: Arc<[KeptPart]>,
        since: Millis,
    ) -> Answer<'_, ()>;
    /// `None`: it is not kept (any more), or has no such part.
    fn ranking_part(&self, tenant: TenantRef, id: u128, part: u32) -> Answer<'_, Option<KeptPart>>;
    /// How long answers were since `day`, by feature and model, ascending.
    fn outputs(&self, tenant: TenantRef, day: i32) -> Answer<'_, Vec<Output>>;
    /// As [`prune_tallies`](Self::prune_tallies), of outputs alone.
    fn prune_outputs(&self, tenant: TenantRef, day: i32) -> Answer<'_, bool>;
}
