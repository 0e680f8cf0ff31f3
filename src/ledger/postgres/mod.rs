//! The ledger in a Postgres database, for any number of nodes.

mod connections;
mod error;
mod looking;
mod open;
mod purging;
mod statement;

use std::collections::HashSet;

use ahash::RandomState;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::RwLock;
use sqlx::postgres::PgConnection;

use self::connections::Connections;
use self::open::Target;
use super::changes::new_origin;
use super::sql::batch::Batch;
use super::sql::doubts::Walk;
use super::sql::read::{self, Query};
use super::sql::{
    Failure, audit, changes, commit, conditions, deleting, erasing, history, orgs, pruning, records, slots,
    users, users_many, webhooks,
};
use super::{
    Answer, AuditEntry, AuditQuery, Change, Changed, Changes, DoubtPage, DoubtQuery, Erasure, History,
    HistoryQuery, Ledger, LedgerError, Note, Org, PoolCondition, Pruned, Pruning, Record, RecordKind,
    StoredAccount, TenantRow, User, UserQuery, Written,
};
use crate::domain::charge::{AccountKey, TenantRef};
use crate::domain::hold::Hold;
use crate::domain::ids::{HoldId, Name, RequestId, TenantId, UserId};
use crate::domain::slot::{Fence, Slot};
use crate::domain::time::Millis;

pub use looking::{PostgresLook, look_at_postgres};

/// The ledger in a Postgres database. Any number of processes may use it; what
/// each of them may commit is told by the fences.
pub struct PostgresLedger {
    connections: Connections,
    /// Tenants whose first hold is known to be on record.
    taken: RwLock<HashSet<u32, RandomState>>,
    /// Tells what was written here from what others wrote.
    origin: i64,
}

/// Runs work until it is done, or cannot be: again when the connection turns
/// out stale, or when it stood in the way of another one's.
macro_rules! attempt {
    ($attempts:expr, |$connection:ident| $work:expr) => {
        async move {
            let mut attempts = $attempts;
            loop {
                let mut session = attempts.session().await?;
                let $connection: &mut PgConnection = session.connection();
                let done = attempts.within($work).await;
                if let Some(answer) = attempts.end(session, done).await? {
                    return Ok(answer);
                }
            }
        }
        .boxed()
    };
}

/// One statement that reads.
macro_rules! read {
    ($self:ident, |$connection:ident| $work:expr) => {
        attempt!($self.connections.reading(), |$connection| $work)
    };
}

/// One statement that reads millions of rows.
macro_rules! survey {
    ($self:ident, |$connection:ident| $work:expr) => {
        attempt!($self.connections.surveying(), |$connection| $work)
    };
}

/// One transaction: on record wholly, or not at all.
macro_rules! write {
    ($self:ident, |$connection:ident| $work:expr) => {
        attempt!($self.connections.writing(), |$connection| $work)
    };
}

/// A write of which pollers hear: it tells what it has changed.
macro_rules! administer {
    ($self:ident, $changed:expr, |$connection:ident| $work:expr) => {{
        let changed = $changed;
        write!($self, |$connection| async {
            let answer = $work.await?;
            changes::tell($connection, $self.origin, &changed).await?;
            Ok::<_, Failure>(answer)
        })
    }};
}

// After the macros, which they use.
mod exports;
mod outbox;
mod reports;

impl PostgresLedger {
    /// Reaches the database and brings its schema up to date (safely beside
    /// other processes that do the same). At most `connections` are opened,
    /// at least two.
    ///
    /// # Errors
    /// `Unusable`, naming the database's place: it does not exist or does not
    /// let us in, is too old, or was written by a newer program; or the URL is
    /// none. `Unavailable`: nobody answers there now.
    pub async fn open(url: &str, connections: u32) -> Result<Self, LedgerError> {
        let target = Target::of(url)?;
        target.migrate().await?;
        Ok(Self {
            connections: Connections::new(target, connections),
            taken: RwLock::default(),
            origin: new_origin(),
        })
    }

    fn tenants_without_holds(&self, batch: &Batch) -> Vec<u32> {
        let taken = self.taken.read();
        let tenants = batch.holds.values().map(|row| row.tenant);
        let mut new: Vec<u32> = tenants.filter(|tenant| !taken.contains(tenant)).collect();
        new.sort_unstable();
        new.dedup();
        new
    }

    async fn put(&self, batch: Batch, fence: Option<Fence>) -> Result<(), LedgerError> {
        if batch.is_empty() && fence.is_none() {
            return Ok(());
        }
        let firsts = self.tenants_without_holds(&batch);
        let (batch, new) = (&batch, &firsts);
        let written: BoxFuture<'_, Result<(), LedgerError>> =
            write!(self, |connection| store(connection, batch, new, fence));
        written.await?;
        if !firsts.is_empty() {
            self.taken.write().extend(firsts);
        }
        Ok(())
    }

    async fn rows<T>(
        &self,
        query: Query,
        make: impl Fn(Vec<sqlx::postgres::PgRow>) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        let query = &query;
        let rows: BoxFuture<'_, Result<_, LedgerError>> =
            read!(self, |connection| async move { Ok(query.rows(connection).await?) });
        make(rows.await?)
    }
}

/// Everybody writes in the same order, tables as well as rows: so nobody waits
/// for somebody who waits for them.
async fn store(
    connection: &mut PgConnection,
    batch: &Batch,
    firsts: &[u32],
    fence: Option<Fence>,
) -> Result<(), Failure> {
    slots::move_on(connection, fence).await?;
    commit::write_users(connection, &batch.users).await?;
    commit::write_taken(connection, firsts).await?;
    commit::write_batch(connection, batch).await?;
    webhooks::tell(connection, &batch.telling).await
}

impl Ledger for PostgresLedger {
    fn commit(&self, changes: Vec<Change>) -> Answer<'_, ()> {
        async move { self.put(Batch::of(&changes)?, None).await }.boxed()
    }

    fn commit_fenced(&self, changes: Vec<Change>, fence: Fence) -> Answer<'_, ()> {
        async move { self.put(Batch::of(&changes)?, Some(fence)).await }.boxed()
    }

    fn slot(&self, tenant: TenantRef) -> Answer<'_, Slot> {
        async move {
            let found: BoxFuture<'_, Result<_, LedgerError>> = read!(self, |c| slots::find(c, tenant));
            match found.await? {
                Some(slot) => Ok(slot),
                None => write!(self, |c| slots::begin(c, tenant)).await,
            }
        }
        .boxed()
    }

    fn renew_slot(&self, tenant: TenantRef, epoch: u64) -> Answer<'_, Slot> {
        write!(self, |c| slots::renew(c, tenant, epoch))
    }

    fn account(&self, key: AccountKey, requests_since: Millis) -> Answer<'_, StoredAccount> {
        async move {
            let query = Query::Account { key: key.clone(), requests_since };
            self.rows(query, |rows| read::stored_account(&key, rows)).await
        }
        .boxed()
    }

    fn hold(&self, tenant: TenantRef, id: HoldId) -> Answer<'_, Option<Hold>> {
        async move { self.rows(Query::Hold { tenant, id }, |rows| Ok(read::holds(rows)?.pop())).await }
            .boxed()
    }

    fn hold_by_request(
        &self,
        tenant: TenantRef,
        user: UserId,
        request: RequestId,
    ) -> Answer<'_, Option<Hold>> {
        async move {
            let query = Query::HoldByRequest { tenant, user, digest: request.digest() };
            self.rows(query, |rows| read::newest_of_request(rows, &request)).await
        }
        .boxed()
    }

    fn doubts(&self, tenant: TenantRef, query: DoubtQuery) -> Answer<'_, DoubtPage> {
        async move {
            let mut walk = Walk::new(tenant, query);
            loop {
                let holds = self.rows(walk.question(), read::holds).await?;
                if let Some(page) = walk.take(holds) {
                    return Ok(page);
                }
            }
        }
        .boxed()
    }

    fn ever_taken(&self, tenant: TenantRef) -> Answer<'_, bool> {
        read!(self, |c| read::ever_taken(c, tenant))
    }

    fn user(&self, tenant: TenantRef, id: UserId) -> Answer<'_, Option<User>> {
        read!(self, |c| users::user(c, tenant, &id))
    }

    fn users(&self, tenant: TenantRef, query: UserQuery) -> Answer<'_, Vec<User>> {
        read!(self, |c| users::page(c, tenant, query.clone()))
    }

    fn nth_user(&self, tenant: TenantRef, query: UserQuery, nth: u32) -> Answer<'_, Option<String>> {
        read!(self, |c| users::nth(c, tenant, query.clone(), nth))
    }

    fn put_user(&self, tenant: TenantRef, user: User, written: Written) -> Answer<'_, ()> {
        administer!(self, vec![Changed::user(tenant, user.id.as_str())], |c| users::put(
            c, tenant, &user, &written
        ))
    }

    fn put_users(&self, tenant: TenantRef, users: Vec<(User, User)>, written: Written) -> Answer<'_, ()> {
        let changed = Changed::users(tenant, users.iter().map(|(_, new)| new.id.as_str()));
        administer!(self, changed.clone(), |c| users_many::put(c, tenant, &users, &written))
    }

    fn users_to_move(&self, tenant: TenantRef, now: Millis, limit: u32) -> Answer<'_, Vec<User>> {
        read!(self, |c| users::to_move(c, tenant, now, limit))
    }

    fn erase_user(
        &self,
        tenant: TenantRef,
        erasure: Erasure,
        version: Option<u32>,
        written: Written,
    ) -> Answer<'_, ()> {
        administer!(self, Changed::erased(tenant, &erasure), |c| erasing::begin(
            c, tenant, &erasure, version, &written
        ))
    }

    fn erasures(&self, tenant: TenantRef) -> Answer<'_, Vec<Erasure>> {
        read!(self, |c| erasing::under_way(c, tenant))
    }

    fn rename_history(
        &self,
        tenant: TenantRef,
        erasure: Erasure,
        rows: u32,
    ) -> Answer<'_, Option<Vec<HoldId>>> {
        write!(self, |c| erasing::rename_history(c, tenant, &erasure, rows))
    }

    fn end_erasure(&self, tenant: TenantRef, erasure: Erasure, look_at: Option<Millis>) -> Answer<'_, ()> {
        administer!(self, Changed::erased(tenant, &erasure), |c| erasing::end(c, tenant, &erasure, look_at))
    }

    fn begin_return(&self, tenant: TenantRef, erasure: Erasure, now: Millis) -> Answer<'_, ()> {
        write!(self, |c| erasing::note(c, tenant, &erasure, now))
    }

    fn return_user(&self, tenant: TenantRef, erasure: Erasure, written: Written) -> Answer<'_, ()> {
        administer!(self, Changed::erased(tenant, &erasure), |c| erasing::return_user(
            c, tenant, &erasure, &written
        ))
    }

    fn erased_due(&self, tenant: TenantRef, now: Millis, limit: u32) -> Answer<'_, Vec<User>> {
        read!(self, |c| users::erased_due(c, tenant, now, limit))
    }

    fn look_at_erased(&self, tenant: TenantRef, id: UserId, at: Option<Millis>) -> Answer<'_, ()> {
        write!(self, |c| erasing::look_at(c, tenant, &id, at))
    }

    fn forget_erased(&self, tenant: TenantRef, id: UserId) -> Answer<'_, ()> {
        administer!(self, vec![Changed::user(tenant, id.as_str())], |c| erasing::forget(c, tenant, &id))
    }

    fn org(&self, tenant: TenantRef, id: Name) -> Answer<'_, Option<Org>> {
        read!(self, |c| orgs::org(c, tenant, &id))
    }

    fn put_org(&self, tenant: TenantRef, org: Org, written: Written) -> Answer<'_, ()> {
        administer!(self, vec![Changed::org(tenant, org.id.as_str())], |c| orgs::put(
            c, tenant, &org, &written
        ))
    }

    fn tenants(&self) -> Answer<'_, Vec<TenantRow>> {
        read!(self, |c| records::tenants(c))
    }

    fn create_tenant(&self, id: TenantId, test: bool, records: Vec<Record>) -> Answer<'_, TenantRow> {
        write!(self, |c| async {
            let row = records::create_tenant(c, id.clone(), test, &records).await?;
            changes::tell(c, self.origin, &[Changed::tenant(row.number)]).await?;
            Ok(row)
        })
    }

    fn set_clock(&self, tenant: TenantRef, now: Millis, written: Written) -> Answer<'_, ()> {
        administer!(self, vec![Changed::tenant(tenant)], |c| records::set_clock(c, tenant, now, &written))
    }

    fn suspend_tenant(&self, tenant: TenantRef, suspended: bool, written: Written) -> Answer<'_, ()> {
        administer!(self, vec![Changed::tenant(tenant)], |c| deleting::suspend(
            c, tenant, suspended, &written
        ))
    }

    fn delete_tenant(&self, tenant: TenantRef, written: Written) -> Answer<'_, ()> {
        administer!(self, vec![Changed::tenant(tenant)], |c| deleting::delete(c, tenant, &written))
    }

    fn deleted_tenants(&self) -> Answer<'_, Vec<(TenantRef, Millis)>> {
        read!(self, |c| deleting::deleted(c))
    }

    fn purge_tenant(&self, tenant: TenantRef, rows: u32) -> Answer<'_, bool> {
        write!(self, |c| purging::purge(c, tenant, rows))
    }

    fn end_purge(&self, tenant: TenantRef) -> Answer<'_, ()> {
        write!(self, |c| deleting::end(c, tenant))
    }

    fn records(&self, tenant: Option<TenantRef>) -> Answer<'_, Vec<Record>> {
        read!(self, |c| records::newest(c, tenant))
    }

    fn versions(&self, tenant: Option<TenantRef>, kind: RecordKind, id: String) -> Answer<'_, Vec<Record>> {
        read!(self, |c| records::versions(c, tenant, kind, id.clone()))
    }

    fn put_record(&self, tenant: Option<TenantRef>, record: Record) -> Answer<'_, ()> {
        administer!(self, vec![Changed::record(tenant, record.kind, &record.id)], |c| records::put(
            c, tenant, &record
        ))
    }

    fn conditions(&self, tenant: TenantRef) -> Answer<'_, Vec<PoolCondition>> {
        read!(self, |c| conditions::all(c, tenant))
    }

    fn put_condition(
        &self,
        tenant: TenantRef,
        condition: PoolCondition,
        noted: Option<(Note, Written)>,
    ) -> Answer<'_, ()> {
        administer!(self, vec![Changed::record(Some(tenant), RecordKind::Pool, &condition.pool)], |c| {
            conditions::put(c, tenant, &condition, noted.as_ref())
        })
    }

    fn note(&self, tenant: TenantRef, note: Note, written: Written) -> Answer<'_, ()> {
        write!(self, |c| audit::note(c, tenant, &note, &written))
    }

    fn audit(&self, tenant: TenantRef, query: AuditQuery) -> Answer<'_, Vec<AuditEntry>> {
        read!(self, |c| history::audit_rows(c, tenant, query.clone()))
    }

    fn history(&self, tenant: TenantRef, query: HistoryQuery) -> Answer<'_, History> {
        async move {
            let limit = query.limit;
            self.rows(Query::History { tenant, query }, |rows| history::read(&rows, limit)).await
        }
        .boxed()
    }

    fn prune_holds(&self, asked: Pruning) -> Answer<'_, Pruned> {
        async move {
            let found: BoxFuture<'_, Result<_, LedgerError>> =
                read!(self, |c| pruning::find(c, self.origin, &asked));
            match found.await? {
                Some(_) => write!(self, |c| pruning::step(c, self.origin, &asked)).await,
                None => Ok(Pruned::Nothing),
            }
        }
        .boxed()
    }

    fn revision(&self) -> Answer<'_, u64> {
        read!(self, |c| audit::revision(c))
    }

    fn changes_since(&self, revision: u64, limit: u32) -> Answer<'_, Changes> {
        read!(self, |c| changes::since(c, self.origin, revision, limit))
    }

    fn takes_writes(&self) -> Answer<'_, ()> {
        write!(self, |c| audit::rewrite_revision(c))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.connections.close().boxed()
    }
}
