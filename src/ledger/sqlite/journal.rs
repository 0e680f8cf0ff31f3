//! The journal: the way of a commit onto the disk, and from there into the
//! tables.
//!
//! One process commits; whatever it knows of the journal is in its [`Tail`].
//! Others that read (the command line beside a server) find the journal's rows
//! and write them to the tables first, as does a process that starts after a
//! crash. The rows that are gone tell the first one about it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use ahash::RandomState;
use futures_util::FutureExt;
use parking_lot::{Mutex, MutexGuard, RwLock};
use sqlx::sqlite::SqliteRow;
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio::time::timeout;

use super::checkpoint::Checkpoints;
use super::commit;
use super::connections::{Readers, Writer};
use super::tail::Tail;
use super::writing::{ALL, Portion, Writing, write_journaled};
use crate::domain::slot::Fence;
use crate::ledger::LedgerError;
use crate::ledger::sql::Failure;
use crate::ledger::sql::batch::Batch;
use crate::ledger::sql::commit::{write_batch, write_taken, write_users};
use crate::ledger::sql::read::Query;
use crate::ledger::sql::slots::move_on;
use crate::ledger::sql::webhooks;

/// When changes are written to the tables, and in which portions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Portions {
    /// Rows in memory from which on they are written.
    pub freeze_at: usize,
    /// Rows written in one transaction: a commit may have to wait for one. More where rows come
    /// faster than that writes them.
    pub rows: usize,
    /// Where few rows come, they are written when they are older than this: whoever comes back
    /// after a while, and is no more in memory by then, would have to wait for them.
    pub at_leisure: Duration,
}

impl Default for Portions {
    fn default() -> Self {
        Self { freeze_at: 16_000, rows: 64, at_leisure: Duration::from_secs(10) }
    }
}

/// How often a commit looks for a free number.
const TRIES: usize = 100;
/// So many times as many rows a transaction while another `freeze_at` waits already.
const IN_HASTE: usize = 4;
/// Commits wait for the tables when this many times `freeze_at` is in memory.
const BEHIND: usize = 3;

pub(super) struct Journal {
    writer: Arc<Writer>,
    readers: Arc<Readers>,
    checkpoints: Checkpoints,
    portions: Portions,
    tail: Mutex<Tail>,
    /// Tenants whose first hold is known to be on record.
    taken: RwLock<HashSet<u32, RandomState>>,
    /// Whether this process commits: then nobody else does.
    is_ours: AtomicBool,
    /// Whether the tail may lack rows: after a commit of which nobody saw the
    /// end.
    is_unsure: AtomicBool,
    /// The frozen layer on its way into the tables, once that began; held by
    /// whoever writes it.
    writing: AsyncMutex<Option<Writing>>,
    due: Arc<Notify>,
}

/// Left behind by a commit of which nobody saw the end.
struct Unseen<'j> {
    is_unsure: &'j AtomicBool,
    is_seen: bool,
}

impl Drop for Unseen<'_> {
    fn drop(&mut self) {
        if !self.is_seen {
            self.is_unsure.store(true, SeqCst);
        }
    }
}

impl Journal {
    pub fn new(
        writer: Arc<Writer>,
        readers: Arc<Readers>,
        checkpoints: Checkpoints,
        portions: Portions,
    ) -> Self {
        Self {
            writer,
            readers,
            checkpoints,
            portions,
            tail: Mutex::default(),
            taken: RwLock::default(),
            is_ours: AtomicBool::new(false),
            is_unsure: AtomicBool::new(false),
            writing: AsyncMutex::default(),
            due: Arc::new(Notify::new()),
        }
    }

    pub fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock()
    }

    /// Counts pages that were written beside the journal.
    pub fn wrote(&self, pages: usize) {
        self.checkpoints.wrote(pages);
    }

    /// Puts a batch on record, if the fence lets it.
    pub async fn commit(self: &Arc<Self>, mut batch: Batch, fence: Option<Fence>) -> Result<(), LedgerError> {
        if batch.is_empty() && fence.is_none() {
            return Ok(());
        }
        if batch.moves_anything() {
            // To its end, even if the caller goes away: the tail must hear of it.
            let journal = Arc::clone(self);
            let work = tokio::spawn(async move { journal.commit_to_tables(batch, fence).await });
            return work.await.map_err(|error| LedgerError::Unavailable(error.into()))?;
        }
        self.catch_up().await?;
        while self.rows() >= BEHIND * self.portions.freeze_at {
            self.write_portion().await?;
        }
        let body = batch.encode()?;
        let firsts = self.tenants_without_holds(&batch);
        let mut tries = 0;
        // Another process may commit too, against the rules: slow then, not wrong.
        while !self
            .append(&mut batch, fence, &body, &firsts)
            .await
            .map_err(|error| self.writer.failed(error))?
        {
            tries += 1;
            if tries == TRIES {
                return Err(LedgerError::Unavailable("another process commits without a pause".into()));
            }
            self.catch_up().await?;
        }
        self.is_ours.store(true, SeqCst);
        if !firsts.is_empty() {
            self.taken.write().extend(firsts);
        }
        self.checkpoints.wrote(body.len() / 4096 + 1);
        if self.rows() >= self.portions.freeze_at {
            self.due.notify_one();
        }
        Ok(())
    }

    /// Puts a batch on record that gives holds or an account to somebody else:
    /// all that is in the journal, then the batch, goes to the tables. Such
    /// batches are rare, and the tables alone can say whose a hold was before.
    async fn commit_to_tables(&self, batch: Batch, fence: Option<Fence>) -> Result<(), LedgerError> {
        self.catch_up().await?;
        let firsts = self.tenants_without_holds(&batch);
        let mut writing = self.writing.lock().await;
        self.write_all_but_little(&mut writing).await?;
        let mut lane = self.writer.lane().await?;
        let rest = self.tail().next_to_write();
        let work = async {
            let mut transaction = lane.begin().await?;
            if let Some(rest) = &rest {
                let there = commit::journaled(&mut transaction, rest.newest).await?;
                Writing::of(rest, &there).write(&mut transaction, ALL).await?;
            }
            move_on(&mut *transaction, fence).await?;
            write_users(&mut *transaction, &batch.users).await?;
            write_taken(&mut *transaction, &firsts).await?;
            let rows = batch.holds.len() + batch.accounts.len();
            write_batch(&mut *transaction, &batch).await?;
            webhooks::tell(&mut *transaction, &batch.telling).await?;
            transaction.commit().await?;
            Ok::<_, Failure>(rows)
        };
        let rows = work.await.map_err(|failure| self.writer.failed(failure))?;
        if rest.is_some() {
            self.tail().written();
        }
        *writing = None;
        self.is_ours.store(true, SeqCst);
        self.taken.write().extend(firsts);
        self.checkpoints.wrote(rows);
        Ok(())
    }

    fn rows(&self) -> usize {
        self.tail().rows()
    }

    fn tenants_without_holds(&self, batch: &Batch) -> Vec<u32> {
        let taken = self.taken.read();
        let tenants = batch.holds.values().map(|row| row.tenant);
        let mut new: Vec<u32> = tenants.filter(|tenant| !taken.contains(tenant)).collect();
        new.sort_unstable();
        new.dedup();
        new
    }

    /// `false`: the tail lacks rows of the journal, and finds them when it catches up.
    async fn append(
        &self,
        batch: &mut Batch,
        fence: Option<Fence>,
        body: &[u8],
        firsts: &[u32],
    ) -> Result<bool, Failure> {
        let mut lane = self.writer.lane().await?;
        let number = self.tail().newest() + 1;
        let mut unseen = Unseen { is_unsure: &self.is_unsure, is_seen: false };
        // One statement is a transaction by itself: no BEGIN, no COMMIT.
        let is_alone = batch.users.is_empty() && batch.telling.is_empty() && firsts.is_empty();
        if is_alone && fence.is_none() {
            if !commit::append(lane.connection()?, number, body).await? {
                return Ok(false);
            }
        } else {
            let mut transaction = lane.begin().await?;
            if !commit::append(&mut transaction, number, body).await? {
                return Ok(false);
            }
            move_on(&mut *transaction, fence).await?;
            write_users(&mut *transaction, &batch.users).await?;
            write_taken(&mut *transaction, firsts).await?;
            webhooks::tell(&mut *transaction, &batch.telling).await?;
            transaction.commit().await?;
        }
        // Still in the lane: whoever has it finds tail and journal agree.
        self.tail().add(number, std::mem::take(batch));
        unseen.is_seen = true;
        Ok(true)
    }

    /// Sees to it that the tail knows all of the journal, by writing what it
    /// does not know to the tables.
    pub async fn catch_up(&self) -> Result<(), LedgerError> {
        if self.is_ours.load(SeqCst) && !self.is_unsure.load(SeqCst) {
            return Ok(());
        }
        let mut writing = self.writing.lock().await;
        let mut lane = self.writer.lane().await?;
        let known = self.tail().newest();
        let work = async {
            let connection = lane.connection()?;
            let text = "SELECT coalesce(max(number), 0) FROM journal";
            let newest: i64 = sqlx::query_scalar(text).fetch_one(connection).await?;
            if newest > known {
                let mut transaction = lane.begin().await?;
                write_journaled(&mut transaction).await?;
                transaction.commit().await?;
            }
            Ok::<_, Failure>(newest)
        };
        let newest = work.await.map_err(|failure| self.writer.failed(failure))?;
        if newest > known {
            self.tail().all_written(newest);
            *writing = None;
        }
        self.is_unsure.store(false, SeqCst);
        Ok(())
    }

    /// Writes the next portion of the tail to the tables. `false`: there is
    /// none.
    pub async fn write_portion(&self) -> Result<bool, LedgerError> {
        let mut writing = self.writing.lock().await;
        self.next_portion(&mut writing).await
    }

    async fn next_portion(&self, slot: &mut Option<Writing>) -> Result<bool, LedgerError> {
        let failed = |failure: Failure| self.writer.failed(failure);
        let writing = match slot {
            Some(writing) => writing,
            None => {
                let Some(frozen) = self.tail().next_to_write() else { return Ok(false) };
                let there = self.journaled(frozen.newest).await?;
                slot.insert(Writing::of(&frozen, &there))
            }
        };
        let is_behind = self.rows() >= self.portions.freeze_at;
        let rows = self.portions.rows * if is_behind { IN_HASTE } else { 1 };
        let work = async {
            let mut lane = self.writer.lane().await?;
            let mut transaction = lane.begin().await?;
            let portion = writing.write(&mut transaction, rows).await?;
            transaction.commit().await?;
            Ok(portion)
        };
        match work.await.map_err(failed)? {
            Portion::Partial { done } => writing.done = done,
            Portion::Whole => {
                *slot = None;
                self.tail().written();
            }
        }
        self.checkpoints.wrote(rows / 2);
        Ok(true)
    }

    /// Beside the writer, since it takes its time: all up to the tail's newest is committed.
    async fn journaled(&self, newest: i64) -> Result<HashSet<i64>, LedgerError> {
        let reader = self.readers.take().await?;
        reader.run(move |c| async move { Ok(commit::journaled(c, newest).await?) }.boxed()).await
    }

    /// Writes the tail to the tables whenever there is enough of it or it is old, for
    /// as long as anybody holds the journal.
    pub fn start(self: &Arc<Self>) {
        let (journal, due, at_leisure) =
            (Arc::downgrade(self), Arc::clone(&self.due), self.portions.at_leisure);
        tokio::spawn(async move {
            let mut old = 0;
            loop {
                let is_enough = timeout(at_leisure, due.notified()).await.is_ok();
                let Some(journal) = journal.upgrade() else { return };
                let newest = journal.tail().newest();
                let written = match is_enough {
                    true => journal.write_due().await,
                    false => journal.write_up_to(old).await,
                };
                old = newest;
                if let Err(error) = written {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "the journal was not written out"
                    );
                }
            }
        });
    }

    async fn write_due(&self) -> Result<(), LedgerError> {
        while self.is_due() {
            self.write_portion().await?;
        }
        Ok(())
    }

    fn is_due(&self) -> bool {
        let tail = self.tail();
        tail.is_frozen() || tail.rows() >= self.portions.freeze_at
    }

    /// The rows of `query`, from tables that lack nothing: what the tail still
    /// has is written to them, and `query` runs in the same transaction.
    pub async fn settled_rows(&self, query: &Query) -> Result<Vec<SqliteRow>, LedgerError> {
        let mut writing = self.writing.lock().await;
        self.write_all_but_little(&mut writing).await?;
        let mut lane = self.writer.lane().await?;
        let rest = self.tail().next_to_write();
        let work = async {
            let mut transaction = lane.begin().await?;
            if let Some(rest) = &rest {
                let there = commit::journaled(&mut transaction, rest.newest).await?;
                Writing::of(rest, &there).write(&mut transaction, ALL).await?;
            }
            let rows = query.rows(&mut *transaction).await?;
            transaction.commit().await?;
            Ok::<_, Failure>(rows)
        };
        let rows = work.await.map_err(|failure| self.writer.failed(failure))?;
        if rest.is_some() {
            self.tail().written();
        }
        Ok(rows)
    }

    /// In portions, so that commits find their way between.
    async fn write_all_but_little(&self, writing: &mut Option<Writing>) -> Result<(), LedgerError> {
        while self.is_large() {
            self.next_portion(writing).await?;
        }
        Ok(())
    }

    fn is_large(&self) -> bool {
        let tail = self.tail();
        tail.is_frozen() || tail.rows() > self.portions.rows
    }

    /// Writes to the tables what is on record by now.
    pub async fn write_out(&self) -> Result<(), LedgerError> {
        let newest = self.tail().newest();
        self.write_up_to(newest).await
    }

    async fn write_up_to(&self, row: i64) -> Result<(), LedgerError> {
        while self.lacks(row) && self.write_portion().await? {}
        Ok(())
    }

    fn lacks(&self, row: i64) -> bool {
        self.tail().lacks(row)
    }

    /// Writes all of the tail to the tables and ends.
    pub async fn close(&self) {
        let written = async {
            while self.write_portion().await? {}
            Ok::<_, LedgerError>(())
        };
        // It is on record: the next start writes it.
        if let Err(error) = written.await {
            tracing::warn!(error = &error as &dyn std::error::Error, "the journal was not written out");
        }
        self.checkpoints.stop();
    }
}
