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

use ahash::RandomState;
use parking_lot::{Mutex, MutexGuard, RwLock};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use tokio::sync::{Mutex as AsyncMutex, Notify};

use super::batch::Batch;
use super::checkpoint::Checkpoints;
use super::commit;
use super::connections::Writer;
use super::error::Failure;
use super::read::{Query, get};
use super::tail::{Frozen, Tail};
use crate::ledger::LedgerError;

/// When changes are written to the tables, and in which portions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Portions {
    /// Rows in memory from which on they are written.
    pub freeze_at: usize,
    /// Rows written in one transaction: a commit may have to wait for one.
    pub rows: usize,
}

impl Default for Portions {
    fn default() -> Self {
        Self { freeze_at: 16_000, rows: 256 }
    }
}

/// How often a commit looks for a free number.
const TRIES: usize = 100;
/// Commits wait for the tables when this many times `freeze_at` is in memory.
const BEHIND: usize = 3;

pub(super) struct Journal {
    writer: Arc<Writer>,
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
    /// How far the frozen layer is in the tables; held by whoever writes it.
    progress: AsyncMutex<Progress>,
    due: Arc<Notify>,
}

/// Rows of the frozen layer that are written.
#[derive(Debug, Default)]
struct Progress {
    holds: usize,
    accounts: usize,
}

impl Journal {
    pub fn new(writer: Arc<Writer>, checkpoints: Checkpoints, portions: Portions) -> Self {
        Self {
            writer,
            checkpoints,
            portions,
            tail: Mutex::default(),
            taken: RwLock::default(),
            is_ours: AtomicBool::new(false),
            is_unsure: AtomicBool::new(false),
            progress: AsyncMutex::default(),
            due: Arc::new(Notify::new()),
        }
    }

    pub fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock()
    }

    /// Puts a batch on record.
    pub async fn commit(&self, mut batch: Batch) -> Result<(), LedgerError> {
        if batch.holds.is_empty() {
            return Ok(());
        }
        self.catch_up().await?;
        while self.rows() >= BEHIND * self.portions.freeze_at {
            self.write_portion().await?;
        }
        let body = batch.encode()?;
        let firsts = self.tenants_without_holds(&batch);
        let mut tries = 0;
        // The next number is taken if another process commits too, against the
        // rules: slow then, not wrong.
        while let Err(failure) = self.append(&mut batch, &body, &firsts).await {
            tries += 1;
            if !failure.is_taken() || tries == TRIES {
                return Err(self.writer.failed(failure));
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

    async fn append(&self, batch: &mut Batch, body: &[u8], firsts: &[u32]) -> Result<(), Failure> {
        let mut lane = self.writer.lane().await?;
        let number = self.tail().newest() + 1;
        self.is_unsure.store(true, SeqCst);
        // One statement is a transaction by itself: no BEGIN, no COMMIT.
        if batch.users.is_empty() && firsts.is_empty() {
            commit::append(lane.connection()?, number, body).await?;
        } else {
            let mut transaction = lane.begin().await?;
            commit::append(&mut transaction, number, body).await?;
            commit::write_users(&mut transaction, &batch.users).await?;
            commit::write_taken(&mut transaction, firsts).await?;
            transaction.commit().await?;
        }
        // Still in the lane: whoever has it finds tail and journal agree.
        self.tail().add(number, std::mem::take(batch));
        self.is_unsure.store(false, SeqCst);
        Ok(())
    }

    /// Sees to it that the tail knows all of the journal, by writing what it
    /// does not know to the tables.
    pub async fn catch_up(&self) -> Result<(), LedgerError> {
        if self.is_ours.load(SeqCst) && !self.is_unsure.load(SeqCst) {
            return Ok(());
        }
        let mut progress = self.progress.lock().await;
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
            *progress = Progress::default();
        }
        self.is_unsure.store(false, SeqCst);
        Ok(())
    }

    /// Writes the next portion of the tail to the tables. `false`: there is
    /// none.
    pub async fn write_portion(&self) -> Result<bool, LedgerError> {
        let mut progress = self.progress.lock().await;
        self.next_portion(&mut progress).await
    }

    async fn next_portion(&self, progress: &mut Progress) -> Result<bool, LedgerError> {
        let Some(frozen) = self.tail().next_to_write() else { return Ok(false) };
        let next = Progress {
            holds: frozen.holds.len().min(progress.holds + self.portions.rows),
            accounts: match progress.holds < frozen.holds.len() {
                true => 0,
                false => frozen.accounts.len().min(progress.accounts + self.portions.rows),
            },
        };
        let rows = next.holds + next.accounts - progress.holds - progress.accounts;
        let work = async {
            let mut lane = self.writer.lane().await?;
            let mut transaction = lane.begin().await?;
            // Another process may have written all of it, and more: then ours
            // would put back what was.
            let is_ours = commit::is_journaled(&mut transaction, frozen.newest).await?;
            match rows {
                _ if !is_ours => {}
                0 => write_all(&mut transaction, &frozen, progress).await?,
                _ => write_rows(&mut transaction, &frozen, progress, &next).await?,
            }
            transaction.commit().await?;
            Ok::<_, Failure>(is_ours && rows > 0)
        };
        let is_partial = work.await.map_err(|failure| self.writer.failed(failure))?;
        if is_partial {
            *progress = next;
        } else {
            *progress = Progress::default();
            self.tail().written();
        }
        self.checkpoints.wrote(rows / 2);
        Ok(true)
    }

    /// Writes the tail to the tables whenever there is enough of it, for as
    /// long as anybody holds the journal.
    pub fn start(self: &Arc<Self>) {
        let (journal, due) = (Arc::downgrade(self), Arc::clone(&self.due));
        tokio::spawn(async move {
            loop {
                due.notified().await;
                let Some(journal) = journal.upgrade() else { return };
                if let Err(error) = journal.write_due().await {
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
        let mut progress = self.progress.lock().await;
        // Most of it in portions, so that commits find their way between.
        while self.is_large() {
            self.next_portion(&mut progress).await?;
        }
        let mut lane = self.writer.lane().await?;
        let rest = self.tail().next_to_write();
        let work = async {
            let mut transaction = lane.begin().await?;
            if let Some(rest) = &rest
                && commit::is_journaled(&mut transaction, rest.newest).await?
            {
                write_all(&mut transaction, rest, &progress).await?;
            }
            let rows = query.rows(&mut transaction).await?;
            transaction.commit().await?;
            Ok::<_, Failure>(rows)
        };
        let rows = work.await.map_err(|failure| self.writer.failed(failure))?;
        if rest.is_some() {
            *progress = Progress::default();
            self.tail().written();
        }
        Ok(rows)
    }

    fn is_large(&self) -> bool {
        let tail = self.tail();
        tail.is_frozen() || tail.rows() > self.portions.rows
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

async fn write_rows(
    connection: &mut SqliteConnection,
    frozen: &Frozen,
    from: &Progress,
    to: &Progress,
) -> sqlx::Result<()> {
    commit::write_holds(&mut *connection, &frozen.holds[from.holds..to.holds]).await?;
    commit::write_accounts(connection, &frozen.accounts[from.accounts..to.accounts]).await
}

/// Writes what is not written yet, adds the usage, and takes the rows out of
/// the journal, in one transaction: so usage is added once.
async fn write_all(connection: &mut SqliteConnection, frozen: &Frozen, from: &Progress) -> sqlx::Result<()> {
    let all = Progress { holds: frozen.holds.len(), accounts: frozen.accounts.len() };
    write_rows(&mut *connection, frozen, from, &all).await?;
    let there = commit::journaled(&mut *connection, frozen.newest).await?;
    commit::write_usage(&mut *connection, frozen.usage(&there)).await?;
    commit::forget(connection, frozen.newest).await
}

/// Writes everything that is in the journal to the tables.
async fn write_journaled(connection: &mut SqliteConnection) -> Result<(), Failure> {
    let text = "SELECT number, body FROM journal WHERE length(body) > 0 ORDER BY number";
    let rows = sqlx::query(text).fetch_all(&mut *connection).await?;
    let batches: Result<Vec<_>, LedgerError> =
        rows.iter().map(|row| Ok((get(row, 0)?, Batch::decode(get(row, 1)?)?))).collect();
    let batches = batches?;
    if batches.is_empty() {
        return Ok(());
    }
    Ok(write_all(connection, &Frozen::of(batches), &Progress::default()).await?)
}
