//! The ledger in one SQLite file, for a server that needs no other service.

mod administering;
mod backup;
mod checkpoint;
mod commit;
mod connections;
mod doubts;
mod ended;
mod error;
mod exports;
mod inspect;
mod journal;
mod open;
mod outbox;
mod purging;
mod reports;
mod statement;
mod tail;
mod writing;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use self::checkpoint::Checkpoints;
use self::connections::{Readers, Writer};
use self::journal::{Journal, Portions};
use self::tail::Tail;
use super::changes::new_origin;
use super::encoding::unpack_hold;
use super::sql::batch::Batch;
use super::sql::read::{self, Query};
use super::sql::{
    Failure, audit, changes, conditions, deleting, erasing, history, orgs, records, slots, users, users_many,
};
use super::{
    Answer, AuditEntry, AuditQuery, Change, Changed, Changes, DoubtPage, DoubtQuery, Erasure, History,
    HistoryQuery, Ledger, LedgerError, Note, Org, PoolCondition, Pruned, Pruning, Record, RecordKind,
    StoredAccount, TenantRow, User, UserQuery, Written,
};
use crate::domain::charge::{AccountKey, TenantRef};
use crate::domain::hold::Hold;
use crate::domain::ids::{HoldId, Name, RequestId, TenantId, UserId};
use crate::domain::plan::Scope;
use crate::domain::slot::{Fence, Slot};
use crate::domain::time::Millis;

pub use backup::back_up;
pub use inspect::{Inspection, inspect};
pub use open::Durability;

/// How often a question is asked again because rows moved meanwhile.
const TRIES: usize = 3;

/// The ledger in a SQLite file. Any number of processes may have the file
/// open; one of them commits holds, all may write users and records.
pub struct SqliteLedger {
    writer: Arc<Writer>,
    readers: Arc<Readers>,
    journal: Arc<Journal>,
    /// Tells what was written here from what others wrote.
    origin: i64,
}

impl SqliteLedger {
    /// Opens the file, creates it where it is missing, and brings its schema
    /// up to date (safely beside other processes that do the same).
    ///
    /// # Errors
    /// `Unusable`, naming the file: it cannot be opened or written, is no
    /// database or another program's, or was written by a newer program.
    /// `Unavailable`: another process kept it locked, or the disk is full.
    pub async fn open(path: &Path, durability: Durability) -> Result<Self, LedgerError> {
        Self::open_with(path, durability, Portions::default()).await
    }

    async fn open_with(path: &Path, durability: Durability, portions: Portions) -> Result<Self, LedgerError> {
        let options = open::writing(path, durability);
        let mut connection = open::connect(path, &options).await?;
        open::migrate(path, &mut connection).await?;
        let path: Arc<Path> = path.into();
        let writer = Arc::new(Writer::new(Arc::clone(&path), options.clone(), connection));
        let readers = Arc::new(Readers::new(Arc::clone(&path), open::reading(&path)));
        let checkpoints = Checkpoints::start(path, options, Arc::clone(&writer), Arc::clone(&readers));
        let journal =
            Arc::new(Journal::new(Arc::clone(&writer), Arc::clone(&readers), checkpoints, portions));
        journal.start();
        Ok(Self { writer, readers, journal, origin: new_origin() })
    }

    /// Runs one statement that has nothing to do with holds.
    async fn read<T, W>(&self, work: W) -> Result<T, LedgerError>
    where
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, Failure>>,
    {
        self.readers.take().await?.run(work).await
    }

    /// The rows of one statement about holds, accounts or usage. `touched`
    /// tells whether the tail has anything that the tables then lack.
    async fn whole_rows(
        &self,
        touched: impl Fn(&Tail) -> bool,
        query: &Query,
    ) -> Result<Vec<SqliteRow>, LedgerError> {
        self.journal.catch_up().await?;
        for _ in 0..TRIES {
            let moves = {
                let tail = self.journal.tail();
                if touched(&tail) {
                    break;
                }
                tail.moves()
            };
            let rows = self.readers.take().await?.rows(query).await?;
            if self.journal.tail().moves() == moves {
                return Ok(rows);
            }
        }
        self.journal.settled_rows(query).await
    }
}

impl Ledger for SqliteLedger {
    fn commit(&self, changes: Vec<Change>) -> Answer<'_, ()> {
        async move { self.journal.commit(Batch::of(&changes)?, None).await }.boxed()
    }

    fn commit_fenced(&self, changes: Vec<Change>, fence: Fence) -> Answer<'_, ()> {
        async move { self.journal.commit(Batch::of(&changes)?, Some(fence)).await }.boxed()
    }

    fn slot(&self, tenant: TenantRef) -> Answer<'_, Slot> {
        async move {
            match self.read(move |c| slots::find(c, tenant).boxed()).await? {
                Some(slot) => Ok(slot),
                None => self.write_beside(move |c| slots::begin(c, tenant).boxed()).await,
            }
        }
        .boxed()
    }

    fn renew_slot(&self, tenant: TenantRef, epoch: u64) -> Answer<'_, Slot> {
        self.write_beside(move |c| slots::renew(c, tenant, epoch).boxed()).boxed()
    }

    fn account(&self, key: AccountKey, requests_since: Millis) -> Answer<'_, StoredAccount> {
        async move {
            let query = Query::Account { key: key.clone(), requests_since };
            let rows = self.whole_rows(|tail| tail.touches(&key), &query).await?;
            read::stored_account(&key, rows)
        }
        .boxed()
    }

    fn hold(&self, tenant: TenantRef, id: HoldId) -> Answer<'_, Option<Hold>> {
        async move {
            self.journal.catch_up().await?;
            let in_tail = self.journal.tail().hold(&id.0.to_be_bytes());
            if let Some(row) = in_tail {
                return (row.tenant == tenant.0).then(|| unpack_hold(&row.body.0)).transpose();
            }
            // What the tail lacks is in the tables, and one row is never half there.
            let rows = self.readers.take().await?.rows(&Query::Hold { tenant, id }).await?;
            Ok(read::holds(rows)?.pop())
        }
        .boxed()
    }

    fn hold_by_request(
        &self,
        tenant: TenantRef,
        user: UserId,
        request: RequestId,
    ) -> Answer<'_, Option<Hold>> {
        async move {
            let key = AccountKey { tenant, scope: Scope::User, owner: user.shared() };
            let query = Query::HoldByRequest { tenant, user, digest: request.digest() };
            let rows = self.whole_rows(|tail| tail.touches(&key), &query).await?;
            read::newest_of_request(rows, &request)
        }
        .boxed()
    }

    fn doubts(&self, tenant: TenantRef, query: DoubtQuery) -> Answer<'_, DoubtPage> {
        self.doubtful_page(tenant, query).boxed()
    }

    fn ever_taken(&self, tenant: TenantRef) -> Answer<'_, bool> {
        self.read(move |c| read::ever_taken(c, tenant).boxed()).boxed()
    }

    fn user(&self, tenant: TenantRef, id: UserId) -> Answer<'_, Option<User>> {
        self.read(move |c| async move { users::user(c, tenant, &id).await }.boxed()).boxed()
    }

    fn users(&self, tenant: TenantRef, query: UserQuery) -> Answer<'_, Vec<User>> {
        self.read(move |c| users::page(c, tenant, query).boxed()).boxed()
    }

    fn nth_user(&self, tenant: TenantRef, query: UserQuery, nth: u32) -> Answer<'_, Option<String>> {
        self.read(move |c| users::nth(c, tenant, query, nth).boxed()).boxed()
    }

    fn put_user(&self, tenant: TenantRef, user: User, written: Written) -> Answer<'_, ()> {
        let changed = vec![Changed::user(tenant, user.id.as_str())];
        self.administer(changed, move |c| async move { users::put(c, tenant, &user, &written).await }.boxed())
            .boxed()
    }

    fn put_users(&self, tenant: TenantRef, users: Vec<(User, User)>, written: Written) -> Answer<'_, ()> {
        let changed = Changed::users(tenant, users.iter().map(|(_, new)| new.id.as_str()));
        self.administer(changed, move |c| {
            async move { users_many::put(c, tenant, &users, &written).await }.boxed()
        })
        .boxed()
    }

    fn users_to_move(&self, tenant: TenantRef, now: Millis, limit: u32) -> Answer<'_, Vec<User>> {
        self.read(move |c| users::to_move(c, tenant, now, limit).boxed()).boxed()
    }

    fn erase_user(
        &self,
        tenant: TenantRef,
        erasure: Erasure,
        version: Option<u32>,
        written: Written,
    ) -> Answer<'_, ()> {
        self.administer(Changed::erased(tenant, &erasure), move |c| {
            async move { erasing::begin(c, tenant, &erasure, version, &written).await }.boxed()
        })
        .boxed()
    }

    fn erasures(&self, tenant: TenantRef) -> Answer<'_, Vec<Erasure>> {
        self.read(move |c| erasing::under_way(c, tenant).boxed()).boxed()
    }

    fn rename_history(
        &self,
        tenant: TenantRef,
        erasure: Erasure,
        rows: u32,
    ) -> Answer<'_, Option<Vec<HoldId>>> {
        self.write_beside(move |c| {
            async move { erasing::rename_history(c, tenant, &erasure, rows).await }.boxed()
        })
        .boxed()
    }

    fn end_erasure(&self, tenant: TenantRef, erasure: Erasure, look_at: Option<Millis>) -> Answer<'_, ()> {
        self.administer(Changed::erased(tenant, &erasure), move |c| {
            async move { erasing::end(c, tenant, &erasure, look_at).await }.boxed()
        })
        .boxed()
    }

    fn begin_return(&self, tenant: TenantRef, erasure: Erasure, now: Millis) -> Answer<'_, ()> {
        self.write_beside(move |c| async move { erasing::note(c, tenant, &erasure, now).await }.boxed())
            .boxed()
    }

    fn return_user(&self, tenant: TenantRef, erasure: Erasure, written: Written) -> Answer<'_, ()> {
        self.administer(Changed::erased(tenant, &erasure), move |c| {
            async move { erasing::return_user(c, tenant, &erasure, &written).await }.boxed()
        })
        .boxed()
    }

    fn erased_due(&self, tenant: TenantRef, now: Millis, limit: u32) -> Answer<'_, Vec<User>> {
        self.read(move |c| users::erased_due(c, tenant, now, limit).boxed()).boxed()
    }

    fn look_at_erased(&self, tenant: TenantRef, id: UserId, at: Option<Millis>) -> Answer<'_, ()> {
        self.write_beside(move |c| async move { erasing::look_at(c, tenant, &id, at).await }.boxed()).boxed()
    }

    fn forget_erased(&self, tenant: TenantRef, id: UserId) -> Answer<'_, ()> {
        let changed = vec![Changed::user(tenant, id.as_str())];
        self.administer(changed, move |c| async move { erasing::forget(c, tenant, &id).await }.boxed())
            .boxed()
    }

    fn org(&self, tenant: TenantRef, id: Name) -> Answer<'_, Option<Org>> {
        self.read(move |c| async move { orgs::org(c, tenant, &id).await }.boxed()).boxed()
    }

    fn put_org(&self, tenant: TenantRef, org: Org, written: Written) -> Answer<'_, ()> {
        let changed = vec![Changed::org(tenant, org.id.as_str())];
        self.administer(changed, move |c| async move { orgs::put(c, tenant, &org, &written).await }.boxed())
            .boxed()
    }

    fn tenants(&self) -> Answer<'_, Vec<TenantRow>> {
        self.read(move |c| records::tenants(c).boxed()).boxed()
    }

    fn create_tenant(&self, id: TenantId, test: bool, records: Vec<Record>) -> Answer<'_, TenantRow> {
        let changed = |row: &TenantRow| vec![Changed::tenant(row.number)];
        self.administer_as(changed, move |c| {
            async move { records::create_tenant(c, id, test, &records).await }.boxed()
        })
        .boxed()
    }

    fn set_clock(&self, tenant: TenantRef, now: Millis, written: Written) -> Answer<'_, ()> {
        self.administer(vec![Changed::tenant(tenant)], move |c| {
            async move { records::set_clock(c, tenant, now, &written).await }.boxed()
        })
        .boxed()
    }

    fn suspend_tenant(&self, tenant: TenantRef, suspended: bool, written: Written) -> Answer<'_, ()> {
        self.administer(vec![Changed::tenant(tenant)], move |c| {
            async move { deleting::suspend(c, tenant, suspended, &written).await }.boxed()
        })
        .boxed()
    }

    fn delete_tenant(&self, tenant: TenantRef, written: Written) -> Answer<'_, ()> {
        self.administer(vec![Changed::tenant(tenant)], move |c| {
            async move { deleting::delete(c, tenant, &written).await }.boxed()
        })
        .boxed()
    }

    fn deleted_tenants(&self) -> Answer<'_, Vec<(TenantRef, Millis)>> {
        self.read(move |c| deleting::deleted(c).boxed()).boxed()
    }

    fn purge_tenant(&self, tenant: TenantRef, rows: u32) -> Answer<'_, bool> {
        async move {
            let more = self.writer.write(move |c| purging::purge(c, tenant, rows).boxed()).await?;
            self.journal.wrote(rows as usize / 2);
            let is_journaled = !more && self.journal.tail().has(tenant);
            if is_journaled {
                // On its way to the tables, which leave it out.
                self.journal.write_out().await?;
            }
            Ok(more)
        }
        .boxed()
    }

    fn end_purge(&self, tenant: TenantRef) -> Answer<'_, ()> {
        self.writer.write(move |c| deleting::end(c, tenant).boxed()).boxed()
    }

    fn records(&self, tenant: Option<TenantRef>) -> Answer<'_, Vec<Record>> {
        self.read(move |c| records::newest(c, tenant).boxed()).boxed()
    }

    fn versions(&self, tenant: Option<TenantRef>, kind: RecordKind, id: String) -> Answer<'_, Vec<Record>> {
        self.read(move |c| records::versions(c, tenant, kind, id).boxed()).boxed()
    }

    fn put_record(&self, tenant: Option<TenantRef>, record: Record) -> Answer<'_, ()> {
        let changed = vec![Changed::record(tenant, record.kind, &record.id)];
        self.administer(changed, move |c| async move { records::put(c, tenant, &record).await }.boxed())
            .boxed()
    }

    fn conditions(&self, tenant: TenantRef) -> Answer<'_, Vec<PoolCondition>> {
        self.read(move |c| conditions::all(c, tenant).boxed()).boxed()
    }

    fn put_condition(
        &self,
        tenant: TenantRef,
        condition: PoolCondition,
        noted: Option<(Note, Written)>,
    ) -> Answer<'_, ()> {
        let changed = vec![Changed::record(Some(tenant), RecordKind::Pool, &condition.pool)];
        self.administer(changed, move |c| {
            async move { conditions::put(c, tenant, &condition, noted.as_ref()).await }.boxed()
        })
        .boxed()
    }

    fn note(&self, tenant: TenantRef, note: Note, written: Written) -> Answer<'_, ()> {
        self.write_beside(move |c| async move { audit::note(c, tenant, &note, &written).await }.boxed())
            .boxed()
    }

    fn audit(&self, tenant: TenantRef, query: AuditQuery) -> Answer<'_, Vec<AuditEntry>> {
        self.read(move |c| history::audit_rows(c, tenant, query).boxed()).boxed()
    }

    fn history(&self, tenant: TenantRef, query: HistoryQuery) -> Answer<'_, History> {
        async move {
            let key = AccountKey { tenant, scope: Scope::User, owner: query.user.shared() };
            let limit = query.limit;
            let query = Query::History { tenant, query };
            history::read(&self.whole_rows(|tail| tail.touches(&key), &query).await?, limit)
        }
        .boxed()
    }

    fn prune_holds(&self, asked: Pruning) -> Answer<'_, Pruned> {
        self.prune(asked).boxed()
    }

    fn revision(&self) -> Answer<'_, u64> {
        self.read(move |c| audit::revision(c).boxed()).boxed()
    }

    fn changes_since(&self, revision: u64, limit: u32) -> Answer<'_, Changes> {
        let origin = self.origin;
        self.read(move |c| changes::since(c, origin, revision, limit).boxed()).boxed()
    }

    fn takes_writes(&self) -> Answer<'_, ()> {
        self.write_beside(|c| audit::rewrite_revision(c).boxed()).boxed()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        async move {
            self.journal.close().await;
            self.readers.close().await;
            self.writer.close().await;
        }
        .boxed()
    }
}
