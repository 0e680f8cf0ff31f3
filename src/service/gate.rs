//! How much an engine apart from this process is asked at once.
//!
//! Every connection may bring an operation, and all of them queue on the way to
//! Redis. Once that queue is longer than an operation's patience, all that comes
//! out of it is too late: tries are repeated, and Redis works for nobody. So no
//! more go out than are answered in time, the others wait here a moment, in the
//! order in which they came, and who waits in vain is told so (503 `overloaded`)
//! before anything was asked for it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::ServiceError;

/// Operations on their way at once. At 2,000 operations a second the last of them
/// is answered in half a second; without a queue they are a million a second.
const ROOM: usize = 1000;
/// How long an operation waits for its turn: no longer than it may take then.
const PATIENCE: Duration = Duration::from_millis(500);

pub struct Gate {
    /// `None`: the engine is in this process, and nothing queues on the way.
    room: Option<Semaphore>,
    size: usize,
    patience: Duration,
    turned_away: AtomicU64,
}

impl Gate {
    pub(super) fn new(is_apart: bool) -> Self {
        Self::sized(is_apart.then_some(ROOM), PATIENCE)
    }

    fn sized(size: Option<usize>, patience: Duration) -> Self {
        let (room, size) = (size.map(Semaphore::new), size.unwrap_or(0));
        Self { room, size, patience, turned_away: AtomicU64::new(0) }
    }

    /// Waits for a turn, which lasts as long as what is answered lives.
    pub(super) async fn enter(&self) -> Result<Option<SemaphorePermit<'_>>, ServiceError> {
        let Some(room) = &self.room else { return Ok(None) };
        if let Ok(turn) = room.try_acquire() {
            return Ok(Some(turn));
        }
        match timeout(self.patience, room.acquire()).await {
            Ok(Ok(turn)) => Ok(Some(turn)),
            _ => {
                self.turned_away.fetch_add(1, Relaxed);
                Err(ServiceError::Overloaded)
            }
        }
    }

    /// Operations on their way.
    pub fn in_flight(&self) -> usize {
        self.room.as_ref().map_or(0, |room| self.size - room.available_permits())
    }

    /// Operations that waited in vain.
    pub fn turned_away(&self) -> u64 {
        self.turned_away.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_finds_no_room_in_time_is_turned_away_and_the_next_one_is_not() {
        let gate = Gate::sized(Some(2), Duration::ZERO);
        let (first, second) = (gate.enter().await.unwrap(), gate.enter().await.unwrap());
        assert!(matches!(gate.enter().await, Err(ServiceError::Overloaded)));
        assert_eq!((gate.in_flight(), gate.turned_away()), (2, 1));
        drop(first);
        assert!(gate.enter().await.is_ok());
        drop(second);
        assert_eq!((gate.in_flight(), gate.turned_away()), (0, 1));
    }

    #[tokio::test]
    async fn who_waits_is_let_in_when_somebody_leaves() {
        let gate = Gate::sized(Some(1), Duration::from_secs(60));
        let first = gate.enter().await.unwrap();
        let (second, ()) = tokio::join!(gate.enter(), async { drop(first) });
        assert!(second.unwrap().is_some());
    }

    #[tokio::test]
    async fn nobody_waits_for_an_engine_of_this_process() {
        let gate = Gate::sized(None, Duration::ZERO);
        assert!(gate.enter().await.unwrap().is_none());
        assert_eq!((gate.in_flight(), gate.turned_away()), (0, 0));
    }
}
