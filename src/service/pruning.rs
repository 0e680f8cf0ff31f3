//! Old holds go after a time, in small steps, so that nobody waits for it.
//!
//! What a finished hold's row is for (the same answer to the same request id, a
//! late settle or correction, a user's history) ends before the shortest time
//! for which it can be kept; no sum and no account is ever made of such rows.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Service, ServiceError};
use crate::ledger::{Pruned, Pruning};

/// How often a node asks whether a walk is due.
const LOOK: Duration = Duration::from_secs(60);
/// From the end of a walk to the beginning of the next, in ms.
const EVERY_MS: i64 = 6 * 3_600_000;
/// Holds looked at in one step: a commit may have to wait for it.
const AT_ONCE: u32 = 200;
/// After a step, everybody else has the ledger for so many times as long.
const REST: u32 = 3;
/// A test clock that goes on and on begins a walk so often at most.
const PAUSE: Duration = Duration::from_secs(1);

impl Service {
    /// Starts removing holds that finished longer ago; abort the task to stop.
    pub fn start_pruning(self: &Arc<Self>, keep: Duration) -> JoinHandle<()> {
        let service = Arc::clone(self);
        tokio::spawn(async move {
            let mut every_ms = EVERY_MS;
            loop {
                if let Err(error) = service.prune_holds(keep, every_ms).await {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "cannot remove old holds");
                }
                every_ms = tokio::select! {
                    () = service.test_clock_moved.notified() => {
                        tokio::time::sleep(PAUSE).await;
                        0
                    }
                    () = tokio::time::sleep(LOOK) => EVERY_MS,
                };
            }
        })
    }

    /// Goes through the holds once, if nobody has for `every_ms`.
    async fn prune_holds(&self, keep: Duration, every_ms: i64) -> Result<(), ServiceError> {
        let keep_ms = i64::try_from(keep.as_millis()).unwrap_or(i64::MAX);
        let mut removed = 0;
        loop {
            let (now, begun) = (self.registry.wall().now(), Instant::now());
            let asked = Pruning { now, keep_ms, rows: AT_ONCE, every_ms };
            let Pruned::Rows(rows) = self.ledger.prune_holds(asked).await? else { break };
            removed += rows;
            self.pruned_holds.fetch_add(rows, Ordering::Relaxed);
            tokio::time::sleep(begun.elapsed() * REST).await;
        }
        if removed > 0 {
            tracing::info!(holds.removed = removed, "removed old holds");
        }
        Ok(())
    }

    /// How many old holds this node has removed.
    pub fn pruned_holds(&self) -> u64 {
        self.pruned_holds.load(Ordering::Relaxed)
    }
}
