//! The queue of changes that are not on record yet, in the order in which
//! they happened.

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Change;

/// Changes handed over at once at most.
const BATCH: usize = 1000;

#[derive(Default)]
pub(super) struct Outbox {
    queue: Mutex<Queue>,
    filled: Notify,
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
        drop(queue);
        if first {
            self.filled.notify_one();
        }
        true
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
        match queue.changes.len() {
            0 => None,
            1..=BATCH => Some(std::mem::take(&mut queue.changes)),
            _ => Some(queue.changes.drain(..BATCH).collect()),
        }
    }

    /// Takes everything and refuses more until `accept_again`.
    pub fn reject_all(&self) -> Vec<Change> {
        let mut queue = self.queue.lock();
        queue.rejecting = true;
        std::mem::take(&mut queue.changes)
    }

    pub fn accept_again(&self) {
        self.queue.lock().rejecting = false;
    }
}
