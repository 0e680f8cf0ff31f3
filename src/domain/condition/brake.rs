//! How interactive calls of a pool have fared of late.

use crate::domain::time::Millis;

/// The last minute, second by second.
const SECONDS: usize = 60;
/// A call that took longer is slow.
const SLOW_MS: u64 = 3_500;
/// One slow call is an accident, whatever share of a quiet minute it is.
const SLOW_MIN: u32 = 3;

/// How one call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// The vendor turned it away.
    pub rejected: bool,
    pub latency_ms: Option<u64>,
}

/// Counts of the last minute. They are one node's: each node sees a sample of
/// the calls, and what it finds is told to all.
#[derive(Debug)]
pub struct Brake {
    seconds: [Second; SECONDS],
}

#[derive(Debug, Clone, Copy, Default)]
struct Second {
    /// Since 1970.
    at: i64,
    calls: u32,
    rejected: u32,
    timed: u32,
    slow: u32,
}

impl Default for Brake {
    fn default() -> Self {
        Self { seconds: [Second::default(); SECONDS] }
    }
}

impl Brake {
    pub fn note(&mut self, outcome: Outcome, now: Millis) {
        let at = now.0.div_euclid(1000);
        let second = &mut self.seconds[at.rem_euclid(SECONDS as i64) as usize];
        if second.at != at {
            *second = Second { at, ..Second::default() };
        }
        second.calls += 1;
        second.rejected += u32::from(outcome.rejected);
        second.timed += u32::from(outcome.latency_ms.is_some());
        second.slow += u32::from(outcome.latency_ms.is_some_and(|ms| ms > SLOW_MS));
    }

    /// Whether more than 0.5 % of the calls were turned away, or more than 5 %
    /// were slow: the 95th percentile lies above the bound then.
    pub fn trips(&self, now: Millis) -> bool {
        let at = now.0.div_euclid(1000);
        let recent = self.seconds.iter().filter(|second| (at - SECONDS as i64 + 1..=at).contains(&second.at));
        let mut sum = Second::default();
        for second in recent {
            sum.calls += second.calls;
            sum.rejected += second.rejected;
            sum.timed += second.timed;
            sum.slow += second.slow;
        }
        let many_rejected = u64::from(sum.rejected) * 1000 > u64::from(sum.calls) * 5;
        let many_slow = sum.slow >= SLOW_MIN && u64::from(sum.slow) * 100 > u64::from(sum.timed) * 5;
        many_rejected || many_slow
    }
}
