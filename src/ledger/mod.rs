#![doc = include_str!("README.md")]

mod activity;
mod changes;
mod doubt;
mod duplicates;
mod encoding;
mod exports;
mod feed;
mod history;
mod minutes;
mod packing;
mod postgres;
mod ranking;
mod refused;
mod reports;
mod rights;
mod sql;
mod sqlite;
mod tallies;
mod tuning;
mod webhooks;

pub use activity::{Mover, MoversQuery, SLOT_MS, SLOTS_KEPT, UsedSlot};
pub use changes::{Bucket, Changed, Changes, Told, What};
pub use doubt::{DoubtFilter, DoubtKey, DoubtPage, DoubtQuery};
pub use duplicates::{Duplicate, DuplicatesQuery, Signal};
pub use encoding::unpack_hold;
pub use exports::Exports;
pub use feed::{FeedEvent, FeedMark, FeedPage, FeedQuery};
pub use history::{AuditEntry, AuditQuery, Edge, History, HistoryQuery};
pub use minutes::{MinuteRow, MinutesQuery};
pub use postgres::{PostgresLedger, PostgresLook, look_at_postgres};
pub use ranking::{Figure, Group, KeptPart, PART_ROWS, Ranked, Ranking, RankingQuery, Sums, UsageRow};
pub use reports::{Reports, UNFINISHED_MAX};
pub use rights::{Granting, Month, Move, Overridden, Rights};
pub use sqlite::{Durability, Inspection, SqliteLedger, back_up, inspect};
pub use tallies::{
    ActiveUsers, Comparison, FAILED_MAX, Failed, Grounds, OTHER, OTHERS, Output, RECENT_MAX, RefusalCount,
    RefusedCall, RefusedGroup, RefusedMinute, RefusedUser, THEIRS_MAX, Tally, Word,
};
pub use webhooks::{
    Alert, DeliveriesQuery, Delivery, DeliveryState, Keeping, Message, Telling, ToldDoubts, Tried, Webhooks,
    Write,
};

pub use tuning::{PlanRefusals, SpreadQuery, Used};

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::domain::charge::{AccountKey, TenantRef};
use crate::domain::hold::Hold;
use crate::domain::ids::{HoldId, Name, RequestId, TenantId, UserId};
use crate::domain::slot::{Fence, Slot};
use crate::domain::time::Millis;

/// Why the ledger could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// Away, full, locked or read-only: the same call may succeed later.
    #[error("the ledger is not available")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The record was changed since the caller read it.
    #[error("the record was changed meanwhile")]
    Conflict,
    /// The changes are not those that come next: another process has recorded
    /// them, or their epoch is over. Nothing was written.
    #[error("the changes are not those that come next")]
    Fenced,
    /// A stored value cannot be read.
    #[error("the ledger holds a value that cannot be read: {0}")]
    Corrupt(String),
    /// The file cannot be used at all (no database, newer schema, other owner).
    #[error("{0}")]
    Unusable(String),
}

pub type Answer<'a, T> = BoxFuture<'a, Result<T, LedgerError>>;

/// One step of one hold, in the order in which the engine took it. A batch is
/// on record wholly or not at all.
#[derive(Debug, Clone, Default)]
pub struct Change {
    /// The hold as it stands after the step (inserted or replaced by id). Where
    /// it admits its user, they come on record too, unless they are. `None`: the
    /// step was about accounts alone.
    pub hold: Option<Arc<Hold>>,
    /// What the step adds to the day's totals (signed: corrections).
    pub usage: Option<UsageDelta>,
    /// The step is an event of the feed.
    pub event: Option<FeedMark>,
    /// The packed state of every account the step touched.
    /// No bytes: the account is no more.
    pub accounts: Vec<(AccountKey, Arc<[u8]>)>,
    /// Holds that have another user from now on, as they stand.
    pub moved: Vec<Arc<Hold>>,
}

/// Difference to the totals of `hold.day` and its month: of the hold's user, org,
/// plan and feature, and of `model`; in the meters' units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageDelta {
    pub model: Option<Name>,
    pub requests: i64,
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub total_tokens: i64,
    pub credits: i64,
}

/// An account as last committed, with what belongs to it.
#[derive(Debug, Default)]
pub struct StoredAccount {
    /// `None`: this account was never touched.
    pub state: Option<Vec<u8>>,
    /// Every hold with a receipt on this account that is neither settled nor
    /// released.
    pub unfinished: Vec<Arc<Hold>>,
    /// Request ids of this user (scope user only): digest, hold, when the hold
    /// finished (`None` while unfinished). Those finished before `since` are
    /// left out.
    pub requests: Vec<(u64, HoldId, Option<Millis>)>,
}

/// A user on record.
#[derive(Debug, Clone, PartialEq)]
pub struct User {
    pub id: UserId,
    pub plan: Name,
    /// From when the present plan's figures hold.
    pub plan_since: Millis,
    /// The sequence of the last numbered plan change.
    pub plan_sequence: Option<u64>,
    pub org: Option<Name>,
    pub verified: bool,
    pub suspended: bool,
    /// IANA name; `None`: the tenant's.
    pub zone: Option<String>,
    /// 1-31; `None` is 1.
    pub anchor_day: Option<u8>,
    /// `device` and `address`, as the tenant gave them.
    pub signals: Option<Signals>,
    /// Boxed, since most users have none.
    pub rights: Option<Box<Rights>>,
    pub created_at: Millis,
    /// The identity is erased: the id is a pseudonym, and the record stays for
    /// as long as what was taken counts.
    pub erased: bool,
    /// The revision at which the user came on record; the ledger fills it in.
    pub born: u64,
    /// The revision at which the plan last changed; the ledger fills it in.
    pub moved: u64,
    pub version: u32,
}

/// A user whose identity is erased, and the name under which the amounts stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Erasure {
    pub user: UserId,
    pub pseudonym: UserId,
}

/// An org on record: users who share the limits of scope `org`.
#[derive(Debug, Clone, PartialEq)]
pub struct Org {
    pub id: Name,
    /// The org's own sheet; `None`: each caller's.
    pub plan: Option<Name>,
    /// From when the present plan's figures hold.
    pub plan_since: Millis,
    /// IANA name; `None`: the tenant's.
    pub zone: Option<String>,
    pub rights: Option<Box<Rights>>,
    pub created_at: Millis,
    /// As a user's.
    pub born: u64,
    pub moved: u64,
    pub version: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Signals {
    pub device: Option<String>,
    pub address: Option<String>,
}

/// A tenant on record.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantRow {
    pub number: TenantRef,
    pub id: TenantId,
    pub test: bool,
    pub suspended: bool,
    /// A test tenant's clock once it was set.
    pub clock: Option<Millis>,
    /// There are records of erased users.
    pub has_erased: bool,
}

/// Kinds of versioned records. Every version is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecordKind {
    Plan,
    Pool,
    Models,
    Settings,
    Key,
    /// Extra amounts for many users at once.
    MakeGood,
    Webhook,
}

/// One version of a plan, pool, the models, the settings, a key, a make-good or a webhook.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    pub kind: RecordKind,
    /// Plan id, pool id, kid, the id of a make-good or a webhook; empty for models and settings.
    pub id: String,
    pub version: u32,
    /// JSON; `None` marks a deletion.
    pub body: Option<String>,
    pub effective_at: Millis,
    pub written: Written,
    /// The revision at which it was written; the ledger fills it in.
    pub revision: u64,
}

/// The condition of a pool, as the service keeps it: what stands beside its
/// record and changes far more often. Only the newest version is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolCondition {
    pub pool: String,
    pub version: u32,
    /// JSON.
    pub body: String,
}

/// Who wrote, when and why: also the audit row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    pub at: Millis,
    pub by: String,
    pub reason: Option<String>,
}

/// A row of the audit about what is neither a user nor a record.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// What was done, such as `hold.resolve`.
    pub action: &'static str,
    /// What it was done to.
    pub target: String,
    /// `None` where there was or is nothing, or nothing to be shown.
    pub before: Option<serde_json::Value>,
    pub after: Option<serde_json::Value>,
}

/// The durable truth. Every method is atomic; what has returned `Ok` survives
/// kill -9 (and power loss with durability `commit`).
pub trait Ledger: Reports + Exports + Webhooks {
    /// Writes all changes in one transaction.
    fn commit(&self, changes: Vec<Change>) -> Answer<'_, ()>;
    /// As [`commit`](Self::commit), and in the same transaction the slot on
    /// record goes on from `from` to `to`.
    ///
    /// # Errors
    /// `Fenced`: the slot on record is not at `from` of the fence's epoch.
    fn commit_fenced(&self, changes: Vec<Change>, fence: Fence) -> Answer<'_, ()>;
    /// A tenant's slot; the first time, epoch 1 begins.
    fn slot(&self, tenant: TenantRef) -> Answer<'_, Slot>;
    /// Ends an epoch: the next one begins, where it has not. Answers the slot
    /// as it is then.
    fn renew_slot(&self, tenant: TenantRef, epoch: u64) -> Answer<'_, Slot>;
    /// Reads an account; `requests_since`: see [`StoredAccount::requests`].
    fn account(&self, key: AccountKey, requests_since: Millis) -> Answer<'_, StoredAccount>;
    fn hold(&self, tenant: TenantRef, id: HoldId) -> Answer<'_, Option<Hold>>;
    /// The newest hold of this user with this request id.
    fn hold_by_request(
        &self,
        tenant: TenantRef,
        user: UserId,
        request: RequestId,
    ) -> Answer<'_, Option<Hold>>;
    /// A page of the holds in doubt that a filter names; see [`DoubtPage`].
    fn doubts(&self, tenant: TenantRef, query: DoubtQuery) -> Answer<'_, DoubtPage>;
    /// Whether any hold of the tenant was ever recorded.
    fn ever_taken(&self, tenant: TenantRef) -> Answer<'_, bool>;

    fn user(&self, tenant: TenantRef, id: UserId) -> Answer<'_, Option<User>>;
    /// Users by id, ascending, after `after`; `contains` matches a part of the
    /// id, byte for byte. Erased ones are left out.
    fn users(&self, tenant: TenantRef, query: UserQuery) -> Answer<'_, Vec<User>>;
    /// The id of the `nth` user, from 0 on, of those that `query` is about, whatever it says of
    /// what ids contain.
    fn nth_user(&self, tenant: TenantRef, query: UserQuery, nth: u32) -> Answer<'_, Option<String>>;
    /// Inserts or replaces; `user.version` must be the stored one + 1 (0 = not
    /// stored), else `Conflict`. Writes the audit row.
    fn put_user(&self, tenant: TenantRef, user: User, written: Written) -> Answer<'_, ()>;
    /// Replaces users who are on record, all or none, as [`put_user`](Self::put_user)
    /// does one: each as it was read, and as it is to be. `Conflict`: one of them is
    /// not as it was read. The revision grows by 1.
    fn put_users(&self, tenant: TenantRef, users: Vec<(User, User)>, written: Written) -> Answer<'_, ()>;
    /// Users with a move of plan that came at `now` or before, by when it came.
    fn users_to_move(&self, tenant: TenantRef, now: Millis, limit: u32) -> Answer<'_, Vec<User>>;

    /// Begins an erasure: the record goes over to the pseudonym, its signals
    /// go, and the erasure is under way. `Conflict`: the user is not on record,
    /// or not at `version`. Writes the audit row, which names the pseudonym.
    fn erase_user(
        &self,
        tenant: TenantRef,
        erasure: Erasure,
        version: Option<u32>,
        written: Written,
    ) -> Answer<'_, ()>;
    /// Erasures under way.
    fn erasures(&self, tenant: TenantRef) -> Answer<'_, Vec<Erasure>>;
    /// Gives the next rows about the user (finished holds, usage, refusals) to
    /// the pseudonym, about `rows` at most, and tells which holds were among
    /// them. `None`: there was nothing left.
    fn rename_history(
        &self,
        tenant: TenantRef,
        erasure: Erasure,
        rows: u32,
    ) -> Answer<'_, Option<Vec<HoldId>>>;
    /// Ends an erasure; a record of the user that came meanwhile goes. The
    /// revision grows, as with [`forget_erased`](Self::forget_erased).
    /// `look_at`: see [`erased_due`](Self::erased_due).
    fn end_erasure(&self, tenant: TenantRef, erasure: Erasure, look_at: Option<Millis>) -> Answer<'_, ()>;
    /// An erased user is about to come back: until the record has, an erasure
    /// is under way (again).
    fn begin_return(&self, tenant: TenantRef, erasure: Erasure, now: Millis) -> Answer<'_, ()>;
    /// The record goes back to the user's own id, and no erasure is under way
    /// any more. `Conflict`: there is no such record of an erased user. Writes
    /// the audit row, which names the pseudonym.
    fn return_user(&self, tenant: TenantRef, erasure: Erasure, written: Written) -> Answer<'_, ()>;
    /// Erased users to look at by `now`: what they took may not count any more.
    fn erased_due(&self, tenant: TenantRef, now: Millis, limit: u32) -> Answer<'_, Vec<User>>;
    /// When to look at an erased user next; `None`: never.
    fn look_at_erased(&self, tenant: TenantRef, id: UserId, at: Option<Millis>) -> Answer<'_, ()>;
    /// Removes the record and the account of an erased user.
    fn forget_erased(&self, tenant: TenantRef, id: UserId) -> Answer<'_, ()>;

    fn org(&self, tenant: TenantRef, id: Name) -> Answer<'_, Option<Org>>;
    /// As [`put_user`](Self::put_user).
    fn put_org(&self, tenant: TenantRef, org: Org, written: Written) -> Answer<'_, ()>;

    fn tenants(&self) -> Answer<'_, Vec<TenantRow>>;
    /// Creates a tenant with its first records, all or nothing. `Conflict`:
    /// the id is taken.
    fn create_tenant(&self, id: TenantId, test: bool, records: Vec<Record>) -> Answer<'_, TenantRow>;
    /// Writes the audit row.
    fn set_clock(&self, tenant: TenantRef, now: Millis, written: Written) -> Answer<'_, ()>;
    /// Suspends a tenant, or ends that. Writes the audit row, unless it is so
    /// already. `Conflict`: there is no such tenant (any more).
    fn suspend_tenant(&self, tenant: TenantRef, suspended: bool, written: Written) -> Answer<'_, ()>;
    /// Deletes a tenant: from now on nothing of it comes on record any more,
    /// and its id is free. Its rows stay until they are purged; the audit
    /// stays for good. `Conflict`: there is no such tenant (any more).
    fn delete_tenant(&self, tenant: TenantRef, written: Written) -> Answer<'_, ()>;
    /// Deleted tenants of which something may be left, and when each of them
    /// was deleted.
    fn deleted_tenants(&self) -> Answer<'_, Vec<(TenantRef, Millis)>>;
    /// Removes the next rows of a deleted tenant, about `rows` at most: a
    /// commit may have to wait for one such portion. `false`: nothing was left.
    fn purge_tenant(&self, tenant: TenantRef, rows: u32) -> Answer<'_, bool>;
    /// Notes that nothing of a deleted tenant is left, nor can come.
    fn end_purge(&self, tenant: TenantRef) -> Answer<'_, ()>;

    /// The newest version of every record of the tenant that is not deleted;
    /// `None` for what belongs to no tenant (operator keys).
    fn records(&self, tenant: Option<TenantRef>) -> Answer<'_, Vec<Record>>;
    /// All versions of one record, newest first.
    fn versions(&self, tenant: Option<TenantRef>, kind: RecordKind, id: String) -> Answer<'_, Vec<Record>>;
    /// Appends a version: `record.version` must be the newest + 1, else
    /// `Conflict`. Writes the audit row.
    fn put_record(&self, tenant: Option<TenantRef>, record: Record) -> Answer<'_, ()>;
    /// The condition of every pool of the tenant that has one, by pool.
    fn conditions(&self, tenant: TenantRef) -> Answer<'_, Vec<PoolCondition>>;
    /// Inserts or replaces; `condition.version` must be the stored one + 1 (0 =
    /// not stored), else `Conflict`. Others are told that the pool has changed.
    /// `noted`: the audit row to write with it, if any.
    fn put_condition(
        &self,
        tenant: TenantRef,
        condition: PoolCondition,
        noted: Option<(Note, Written)>,
    ) -> Answer<'_, ()>;
    /// Appends a row to the audit. The revision stays: nothing else changed.
    fn note(&self, tenant: TenantRef, note: Note, written: Written) -> Answer<'_, ()>;
    /// Rows of a tenant's audit, newest first.
    fn audit(&self, tenant: TenantRef, query: AuditQuery) -> Answer<'_, Vec<AuditEntry>>;
    /// A part of what is on record about a user.
    fn history(&self, tenant: TenantRef, query: HistoryQuery) -> Answer<'_, History>;

    /// Removes old holds, one step of a walk through all of them: finished ones
    /// that ended longer ago than they are kept, by their tenant's clock. Any
    /// process may ask; one at a time is at it, and each goes on where the walk
    /// was. A commit may have to wait for one step.
    fn prune_holds(&self, asked: Pruning) -> Answer<'_, Pruned>;
    /// Grows with every write to tenants, users and records, by whichever
    /// process: a cheap question for pollers.
    fn revision(&self) -> Answer<'_, u64>;
    /// What was written since a revision, if that is at most `limit` revisions
    /// back: the same question for pollers, with an answer that need not be
    /// read up. Revisions are in the order in which writes come to be seen.
    fn changes_since(&self, revision: u64, limit: u32) -> Answer<'_, Changes>;
    /// Whether it would take a write now.
    fn takes_writes(&self) -> Answer<'_, ()>;
    /// Flushes and closes.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// Which holds are old, and how they are looked for.
#[derive(Debug, Clone, Copy)]
pub struct Pruning {
    /// For tenants without a clock of their own, and for the walk itself.
    pub now: Millis,
    /// How long a finished hold is kept.
    pub keep_ms: i64,
    /// Holds looked at in one step.
    pub rows: u32,
    /// From the end of one walk to the beginning of the next.
    pub every_ms: i64,
}

/// What a step of the walk came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pruned {
    /// The walk has ended, none is due, or another process is at it.
    Nothing,
    /// So many holds went; there may be more.
    Rows(u64),
}

/// What `users` lists.
#[derive(Debug, Clone, Default)]
pub struct UserQuery {
    pub after: Option<String>,
    /// Ids that begin so: a range of the index.
    pub prefix: Option<String>,
    /// Ids with that in them: every one is looked at.
    pub contains: Option<String>,
    /// The last id that may be among them.
    pub upto: Option<String>,
    pub plan: Option<Name>,
    pub org: Option<Name>,
    pub limit: u32,
}
