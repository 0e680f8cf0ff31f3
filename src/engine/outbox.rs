//! The queue of changes that are not on record yet, in the order in which
//! they happened.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Change;

/// Changes handed over at once at most.
const BATCH: usize = 1000;
/// Changes that may wait: where answers do not wait for the disk, this is what
/// keeps a slow one from filling the memory.
const WAITING_MAX: usize = 100_000;

#[derive(Default)]
pub(super) struct Outbox {
    queue: Mutex<Queue>,
    filled: Notify,
    /// The length of the queue, to be read without its lock.
    waiting: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    changes: Vec<Change>,
    /// A batch has failed and what was built on it is being forgotten.
    rejecting: bool,
}

impl Outbox {
    /// Queues a change; `false` while a failed batch is being undone. Called
    /// with the change's accounts locked, which fixes the order.
    pub fn push(&self, change: Change) -> bool {
        let mut queue = self.queue.lock();
        if queue.rejecting {
            return false;
        }
        queue.changes.push(change);
        let first = queue.changes.len() == 1;
        self.waiting.store(queue.changes.len(), Ordering::Relaxed);
        drop(queue);
        if first {
            self.filled.notify_one();
        }
        true
    }

    /// Whether the ledger is so far behind that nothing more should be taken.
    pub fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= WAITING_MAX
    }

    /// Waits for changes and takes them.
    pub async fn drain(&self) -> Vec<Change> {
        loop {
            if let Some(changes) = self.take() {
                return changes;
            }
            self.filled.notified().await;
        }
    }

    fn take(&self) -> Option<Vec<Change>> {
        let mut queue = self.queue.lock();
        let taken = match queue.changes.len() {
            0 => return None,
            1..=BATCH => std::mem::take(&mut queue.changes),
            _ => queue.changes.drain(..BATCH).collect(),
        };
        self.waiting.store(queue.changes.len(), Ordering::Relaxed);
        Some(taken)
    }

    /// Takes everything and refuses more until `accept_again`.
    pub fn reject_all(&self) -> Vec<Change> {
        let mut queue = self.queue.lock();
        queue.rejecting = true;
        self.waiting.store(0, Ordering::Relaxed);
        std::mem::take(&mut queue.changes)
    }

    pub fn accept_again(&self) {
        self.queue.lock().rejecting = false;
    }
}
