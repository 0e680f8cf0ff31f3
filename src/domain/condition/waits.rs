//! What held a pool's callers back of late: a bounded story beside the condition
//! of now.

use serde::{Deserialize, Serialize};

use super::PauseKind;
use crate::domain::time::Millis;

/// Waits that are remembered, of all kinds together.
const MOST: usize = 32;
/// One of the same kind so soon after another one is told with it.
const TOGETHER_MS: i64 = 60_000;

/// A while in which callers waited, once or several times close to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waited {
    pub kind: PauseKind,
    pub from: Millis,
    /// May be to come.
    pub until: Millis,
    pub times: u32,
}

/// The latest last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Waits(Vec<Waited>);

impl Waits {
    pub fn latest_first(&self) -> impl Iterator<Item = &Waited> {
        self.0.iter().rev()
    }

    /// With one that begins.
    pub fn with(mut self, kind: PauseKind, from: Millis, until: Millis) -> Self {
        match self.0.iter_mut().rev().find(|known| known.kind == kind) {
            Some(known) if from < known.until.plus_ms(TOGETHER_MS) => {
                known.until = known.until.max(until);
                known.times = known.times.saturating_add(1);
            }
            _ => {
                self.0.push(Waited { kind, from, until, times: 1 });
                let over = self.0.len().saturating_sub(MOST);
                self.0.drain(..over);
            }
        }
        self
    }

    /// With the last one of that kind as long as it is now.
    pub fn longer(mut self, kind: PauseKind, until: Millis) -> Self {
        if let Some(known) = self.0.iter_mut().rev().find(|known| known.kind == kind) {
            known.until = known.until.max(until);
        }
        self
    }

    /// With those over that were not.
    pub fn over(mut self, now: Millis) -> Self {
        self.0.iter_mut().for_each(|known| known.until = known.until.min(now.max(known.from)));
        self
    }
}
