//! The condition of a pool: what its vendor said of it, and what follows for
//! those who want to call.
//!
//! A condition changes when somebody tells something, and is read off the clock
//! in between: a pause ends, a rate recovers and a closure is over without
//! anything having to run.

mod brake;
mod peaks;
mod rate;
mod turns;
mod waits;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use super::plan::Ramp;
use super::quantity::Ppm;
use super::time::Millis;
use super::upstream::Because;

pub use brake::{Brake, Outcome};
pub use peaks::Peaks;
pub use rate::{Rate, RateStep};
pub use turns::{Turns, Want};
pub use waits::{Waited, Waits};

/// A pause is made longer only by so much: the refusals of calls that were
/// under way when it began differ by a few ms.
const LONGER_MS: i64 = 100;
/// A refusal so soon after a pause is a repeated one.
const REPEATED_WITHIN_MS: i64 = 60_000;
/// How long the brake holds bulk calls back at a time.
pub const BRAKE_MS: i64 = 30_000;
/// How often callers of a closed pool are told to ask again: only a person
/// opens it, and one who waits within a request would do so in vain.
const ASK_AGAIN_MS: u64 = 300_000;

/// What is on record of a pool beside its sheet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// The last pause, also when it is over.
    pause: Option<Pausing>,
    closed: Option<Closed>,
    /// Bulk calls wait until then.
    bulk_until: Option<Millis>,
    rate: Rate,
    /// How busy it was, where its traffic may only grow so fast.
    peaks: Peaks,
    /// What held callers back of late, and does now.
    waits: Waits,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Pausing {
    from: Millis,
    until: Millis,
    /// The rate was lowered for a refusal in this pause: once is enough.
    lowered: bool,
}

/// Money is spent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    pub since: Millis,
    /// When the month turns, unless an admin opens it before.
    pub until: Millis,
    pub why: String,
}

/// Why nobody of a lane gets through now, and until when that is so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    pub until: Millis,
    pub kind: PauseKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PauseKind {
    /// The vendor said how long.
    #[serde(rename = "pause")]
    Paused,
    /// Money is spent.
    #[serde(rename = "closure")]
    Closed,
    /// Bulk calls make room for interactive ones.
    #[serde(rename = "brake")]
    Braked,
}

impl PauseKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Paused => "pause",
            Self::Closed => "closure",
            Self::Braked => "brake",
        }
    }
}

impl Pause {
    /// What a caller is told to wait at least.
    pub fn wait_ms(&self, now: Millis) -> u64 {
        let wait = (self.until.0 - now.0).max(1) as u64;
        match self.kind {
            PauseKind::Closed => wait.min(ASK_AGAIN_MS),
            PauseKind::Paused | PauseKind::Braked => wait,
        }
    }
}

impl Condition {
    /// Whether, and until when, calls of a lane wait: the one that ends last.
    pub fn paused(&self, now: Millis, bulk: bool) -> Option<Pause> {
        if let Some(closed) = self.closed(now) {
            return Some(Pause { until: closed.until, kind: PauseKind::Closed });
        }
        let pause = self.paused_until(now).map(|until| Pause { until, kind: PauseKind::Paused });
        let brake = self.bulk_until(now).filter(|_| bulk);
        let brake = brake.map(|until| Pause { until, kind: PauseKind::Braked });
        pause.into_iter().chain(brake).max_by_key(|pause| pause.until)
    }

    pub fn paused_until(&self, now: Millis) -> Option<Millis> {
        self.pause.map(|pause| pause.until).filter(|until| *until > now)
    }

    pub fn bulk_until(&self, now: Millis) -> Option<Millis> {
        self.bulk_until.filter(|until| *until > now)
    }

    pub fn closed(&self, now: Millis) -> Option<&Closed> {
        self.closed.as_ref().filter(|closed| closed.until > now)
    }

    pub fn rate(&self) -> &Rate {
        &self.rate
    }

    pub fn peaks(&self) -> &Peaks {
        &self.peaks
    }

    /// What held callers back of late, and does now.
    pub fn waited(&self) -> &Waits {
        &self.waits
    }

    /// Takes in how busy it was of late. `None`: that is known, or can wait
    /// until those who wait for the pool have had their turn.
    pub fn busy(&self, seen: &Peaks, ramp: &Ramp, now: Millis) -> Option<Self> {
        if self.paused(now, true).is_some() {
            return None;
        }
        Some(Self { peaks: self.peaks.with(seen, ramp, now)?, ..self.clone() })
    }

    /// The share of its rate that the pool has now.
    pub fn share(&self, now: Millis) -> Ppm {
        self.rate.share(now)
    }

    /// The vendor said to wait. `None`: that changes nothing.
    ///
    /// Of a pause that runs the first refusal says how long it is; another one
    /// in it, or soon after the last one, says that the rate is too high.
    pub fn waits(&self, until: Millis, because: Because, now: Millis) -> Option<Self> {
        let running = self.pause.filter(|pause| pause.from <= now && now < pause.until);
        let is_rate = because == Because::Rate;
        let pause = match running {
            Some(pause) => {
                let longer = until > pause.until.plus_ms(LONGER_MS);
                let lowers = is_rate && !pause.lowered;
                if !longer && !lowers {
                    return None;
                }
                Pausing { until: pause.until.max(until), lowered: pause.lowered || lowers, ..pause }
            }
            None => {
                let soon = |last: Pausing| now < last.until.plus_ms(REPEATED_WITHIN_MS);
                Pausing { from: now, until, lowered: is_rate && self.pause.is_some_and(soon) }
            }
        };
        let lowers = pause.lowered && !running.is_some_and(|running| running.lowered);
        let rate = match (lowers, is_rate) {
            (true, _) => self.rate.lowered(now, pause.until),
            (false, true) => self.rate.held(now, pause.until),
            (false, false) => self.rate.clone(),
        };
        let waits = match running {
            Some(_) => self.waits.clone().longer(PauseKind::Paused, pause.until),
            None => self.waits.clone().with(PauseKind::Paused, now, until),
        };
        Some(Self { pause: Some(pause), rate, waits, ..self.clone() })
    }

    /// Money is spent. `None`: that is known.
    pub fn closes(&self, why: &str, month_end: Millis, now: Millis) -> Option<Self> {
        if self.closed(now).is_some() {
            return None;
        }
        let closed = Closed { since: now, until: month_end, why: why.to_owned() };
        let waits = self.waits.clone().with(PauseKind::Closed, now, month_end);
        Some(Self { closed: Some(closed), waits, ..self.clone() })
    }

    /// An admin knows that calls get through again. `None`: they do already.
    /// The rate stays and recovers by itself.
    pub fn opens(&self, now: Millis) -> Option<Self> {
        let waits = self.closed(now).is_some() || self.paused(now, true).is_some();
        let over = self.waits.clone().over(now);
        let opened = Self { closed: None, bulk_until: None, pause: None, waits: over, ..self.clone() };
        waits.then_some(opened)
    }

    /// Interactive calls fare badly: bulk ones wait. `None`: they do already.
    pub fn brakes(&self, now: Millis) -> Option<Self> {
        let until = now.plus_ms(BRAKE_MS);
        let braked = || {
            let waits = self.waits.clone().with(PauseKind::Braked, now, until);
            Self { bulk_until: Some(until), waits, ..self.clone() }
        };
        self.bulk_until(now).is_none().then(braked)
    }
}
