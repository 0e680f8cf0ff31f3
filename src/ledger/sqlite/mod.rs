//! The ledger in one SQLite file, for a server that needs no other service.

mod audit;
mod batch;
mod checkpoint;
mod commit;
mod connections;
mod error;
mod inspect;
mod open;
mod read;
mod records;
mod statement;
mod users;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use ahash::RandomState;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, TryFutureExt};
use parking_lot::RwLock;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use self::batch::Batch;
use self::checkpoint::Checkpoints;
use self::connections::{Readers, Writer};
use self::error::Failure;
use super::{
    Answer, Change, Ledger, LedgerError, Record, RecordKind, StoredAccount, TenantRow, UsageRow, User,
    UserQuery, Written,
};
use crate::domain::charge::{AccountKey, TenantRef};
use crate::domain::hold::Hold;
use crate::domain::ids::{HoldId, RequestId, TenantId, UserId};
use crate::domain::time::Millis;

pub use inspect::{Inspection, inspect};
pub use open::Durability;

/// The ledger in a SQLite file. Any number of processes may have the file
/// open; each writes over one connection.
pub struct SqliteLedger {
    writer: Arc<Writer>,
    readers: Readers,
    checkpoints: Checkpoints,
    /// Tenants whose first hold is known to be on record.
    taken: RwLock<HashSet<u32, RandomState>>,
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
        let options = open::writing(path, durability);
        let mut connection = open::connect(path, &options).await?;
        open::migrate(path, &mut connection).await?;
        let path: Arc<Path> = path.into();
        let writer = Arc::new(Writer::new(Arc::clone(&path), options.clone(), connection));
        let checkpoints = Checkpoints::start(Arc::clone(&path), options, Arc::clone(&writer));
        let readers = Readers::new(Arc::clone(&path), open::reading(&path));
        Ok(Self { writer, readers, checkpoints, taken: RwLock::default() })
    }

    /// The rows of one statement, as of now.
    async fn rows<W>(&self, work: W) -> Result<Vec<SqliteRow>, LedgerError>
    where
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, sqlx::Result<Vec<SqliteRow>>>,
    {
        let reader = self.readers.take().await?;
        reader.run(|connection| work(connection).map_err(Failure::from).boxed()).await
    }

    /// Runs an administrative write; the revision goes up with it.
    async fn administer<T, W>(&self, work: W) -> Result<T, LedgerError>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, Failure>> + Send + 'static,
    {
        self.writer
            .write(|connection| {
                async move {
                    let answer = work(&mut *connection).await?;
                    audit::bump_revision(connection).await?;
                    Ok(answer)
                }
                .boxed()
            })
            .await
    }

    async fn commit_batch(&self, changes: &[Change]) -> Result<(), LedgerError> {
        let batch = Batch::of(changes)?;
        let rows = batch.holds.len() + batch.accounts.len() + batch.usage.len();
        let firsts = Arc::new(self.tenants_without_holds(&batch));
        let new = Arc::clone(&firsts);
        self.writer
            .write(|connection| {
                async move {
                    commit::write(&mut *connection, batch).await?;
                    Ok(commit::mark_taken(connection, &new).await?)
                }
                .boxed()
            })
            .await?;
        if !firsts.is_empty() {
            self.taken.write().extend(firsts.iter());
        }
        self.checkpoints.wrote(rows);
        Ok(())
    }

    fn tenants_without_holds(&self, batch: &Batch) -> Vec<u32> {
        let taken = self.taken.read();
        let tenants = batch.holds.values().map(|row| row.tenant);
        let mut new: Vec<u32> = tenants.filter(|tenant| !taken.contains(tenant)).collect();
        new.sort_unstable();
        new.dedup();
        new
    }
}

impl Ledger for SqliteLedger {
    fn commit(&self, changes: Vec<Change>) -> Answer<'_, ()> {
        async move { self.commit_batch(&changes).await }.boxed()
    }

    fn account(&self, key: AccountKey, requests_since: Millis) -> Answer<'_, StoredAccount> {
        async move {
            let asked = key.clone();
            let rows =
                self.rows(|c| async move { read::account(c, &asked, requests_since).await }.boxed()).await?;
            read::stored_account(&key, rows)
        }
        .boxed()
    }

    fn hold(&self, tenant: TenantRef, id: HoldId) -> Answer<'_, Option<Hold>> {
        async move {
            let rows = self.rows(|c| read::hold(c, tenant, id).boxed()).await?;
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
            let asked = request.clone();
            let rows = self
                .rows(|c| async move { read::hold_by_request(c, tenant, &user, &asked).await }.boxed())
                .await?;
            read::newest_of_request(rows, &request)
        }
        .boxed()
    }

    fn doubtful(&self, tenant: TenantRef, before: Millis, limit: u32) -> Answer<'_, Vec<Hold>> {
        async move { read::holds(self.rows(|c| read::doubtful(c, tenant, before, limit).boxed()).await?) }
            .boxed()
    }

    fn ever_taken(&self, tenant: TenantRef) -> Answer<'_, bool> {
        async move { Ok(!self.rows(|c| read::ever_taken(c, tenant).boxed()).await?.is_empty()) }.boxed()
    }

    fn usage(&self, tenant: TenantRef, from: i32, to: i32) -> Answer<'_, Vec<UsageRow>> {
        async move {
            let rows = self.rows(|c| read::usage(c, tenant, from, to).boxed()).await?;
            rows.iter().map(read::usage_row).collect()
        }
        .boxed()
    }

    fn user(&self, tenant: TenantRef, id: UserId) -> Answer<'_, Option<User>> {
        async move {
            let rows = self.rows(|c| async move { users::user(c, tenant, &id).await }.boxed()).await?;
            rows.first().map(users::read).transpose()
        }
        .boxed()
    }

    fn users(&self, tenant: TenantRef, query: UserQuery) -> Answer<'_, Vec<User>> {
        async move {
            let rows = self.rows(|c| users::page(c, tenant, query).boxed()).await?;
            rows.iter().map(users::read).collect()
        }
        .boxed()
    }

    fn put_user(&self, tenant: TenantRef, user: User, written: Written) -> Answer<'_, ()> {
        self.administer(move |c| async move { users::put(c, tenant, &user, &written).await }.boxed()).boxed()
    }

    fn tenants(&self) -> Answer<'_, Vec<TenantRow>> {
        async move {
            let rows = self.rows(|c| records::tenants(c).boxed()).await?;
            rows.iter().map(records::tenant).collect()
        }
        .boxed()
    }

    fn create_tenant(&self, id: TenantId, test: bool, records: Vec<Record>) -> Answer<'_, TenantRow> {
        self.administer(move |c| async move { records::create_tenant(c, id, test, &records).await }.boxed())
            .boxed()
    }

    fn set_clock(&self, tenant: TenantRef, now: Millis) -> Answer<'_, ()> {
        self.administer(move |c| records::set_clock(c, tenant, now).boxed()).boxed()
    }

    fn records(&self, tenant: Option<TenantRef>) -> Answer<'_, Vec<Record>> {
        async move {
            let rows = self.rows(|c| records::newest(c, tenant).boxed()).await?;
            rows.iter().map(records::record).collect()
        }
        .boxed()
    }

    fn versions(&self, tenant: Option<TenantRef>, kind: RecordKind, id: String) -> Answer<'_, Vec<Record>> {
        async move {
            let rows = self.rows(|c| records::versions(c, tenant, kind, id).boxed()).await?;
            rows.iter().map(records::record).collect()
        }
        .boxed()
    }

    fn put_record(&self, tenant: Option<TenantRef>, record: Record) -> Answer<'_, ()> {
        self.administer(move |c| async move { records::put(c, tenant, &record).await }.boxed()).boxed()
    }

    fn revision(&self) -> Answer<'_, u64> {
        async move {
            let rows = self.rows(|c| audit::revision(c).boxed()).await?;
            let value: i64 = rows.first().map(|row| read::get(row, 0)).transpose()?.unwrap_or(0);
            Ok(value.cast_unsigned())
        }
        .boxed()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        async move {
            self.checkpoints.stop();
            self.readers.close().await;
            self.writer.close().await;
        }
        .boxed()
    }
}
