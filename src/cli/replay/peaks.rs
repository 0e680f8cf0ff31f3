//! How close admitted traffic came to each limit of a pool.
//!
//! Measured from what was admitted, so it says the same for a pool that is
//! enforced and for one that is only planned with.

use std::collections::VecDeque;

use crate::domain::plan::{Meter, Pool, PoolCounts, PoolLimit, Rule};
use crate::domain::time::{Millis, Period};

/// What one admitted call put on a pool, by meter.
#[derive(Debug, Clone, Copy, Default)]
pub struct Load {
    pub requests: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub credits: u64,
}

impl Load {
    fn of(&self, meter: &Meter) -> u64 {
        match meter {
            Meter::Requests => self.requests,
            Meter::InputTokens => self.input_tokens,
            Meter::OutputTokens => self.output_tokens,
            Meter::TotalTokens => self.input_tokens + self.output_tokens,
            Meter::Credits => self.credits,
            Meter::Custom(_) => 0,
        }
    }
}

/// The largest load that stood on one limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Peak {
    pub amount: u64,
    pub at: Option<Millis>,
}

/// Follows the loads on every limit of one pool.
pub struct PoolLoad {
    counts: PoolCounts,
    limits: Vec<LimitLoad>,
}

impl PoolLoad {
    pub fn new(pool: &Pool) -> Self {
        Self { counts: pool.counts, limits: pool.limits.iter().map(LimitLoad::new).collect() }
    }

    /// A call was admitted. Where the pool counts output as it comes, only
    /// the reserved output is left for later.
    pub fn admitted(&mut self, at: Millis, reserved: Load) {
        let load = match self.counts {
            PoolCounts::Reserved => reserved,
            PoolCounts::Actual => Load { output_tokens: 0, ..reserved },
        };
        for limit in &mut self.limits {
            limit.add(at, load, 1);
        }
    }

    /// A call was settled.
    pub fn settled(&mut self, at: Millis, used: Load) {
        let load = match self.counts {
            PoolCounts::Reserved => Load::default(),
            PoolCounts::Actual => Load { output_tokens: used.output_tokens, ..Load::default() },
        };
        for limit in &mut self.limits {
            limit.add(at, load, -1);
        }
    }

    /// In the order of the pool's limits: what the limit lets through in its
    /// window, and the peak.
    pub fn peaks(&self) -> impl Iterator<Item = (u64, Peak)> {
        self.limits.iter().map(|limit| (limit.allowed, limit.peak.clone()))
    }
}

struct LimitLoad {
    /// `None` for slots.
    meter: Option<Meter>,
    /// What passes in any window of `span_ms`.
    allowed: u64,
    /// `i64::MAX` for a window that never turns.
    span_ms: i64,
    recent: VecDeque<(Millis, u64)>,
    /// Sum of `recent`, or calls in flight.
    now: u64,
    peak: Peak,
}

impl LimitLoad {
    fn new(limit: &PoolLimit) -> Self {
        let span_ms = i64::from(limit.window_seconds) * 1_000;
        let (meter, allowed, span_ms) = match &limit.limit.rule {
            Rule::Bucket { meter, capacity, refill_per_minute } => {
                let refill = u128::from(*refill_per_minute) * span_ms as u128 / 60_000;
                (Some(meter.clone()), capacity.saturating_add(refill as u64), span_ms)
            }
            Rule::Rolling { meter, limit, window_seconds } => {
                (Some(meter.clone()), *limit, i64::from(*window_seconds) * 1_000)
            }
            Rule::Window { meter, limit, period, .. } => (Some(meter.clone()), *limit, period_ms(*period)),
            Rule::Slots { limit } => (None, *limit, 0),
        };
        let peak = Peak { amount: 0, at: None };
        Self { meter, allowed, span_ms, recent: VecDeque::new(), now: 0, peak }
    }

    fn add(&mut self, at: Millis, load: Load, calls: i64) {
        match &self.meter {
            None => self.now = self.now.saturating_add_signed(calls),
            Some(meter) => {
                let amount = load.of(meter);
                while self.recent.front().is_some_and(|(then, _)| at.0 - then.0 >= self.span_ms) {
                    self.now -= self.recent.pop_front().map_or(0, |(_, amount)| amount);
                }
                if amount > 0 {
                    self.recent.push_back((at, amount));
                    self.now += amount;
                }
            }
        }
        if self.now > self.peak.amount {
            self.peak = Peak { amount: self.now, at: Some(at) };
        }
    }
}

/// The seconds over which a limit's peak is summed; `None` for slots and for
/// windows, which are known by their period.
pub fn window_seconds(limit: &PoolLimit) -> Option<u32> {
    match &limit.limit.rule {
        Rule::Bucket { .. } => Some(limit.window_seconds),
        Rule::Rolling { window_seconds, .. } => Some(*window_seconds),
        Rule::Window { .. } | Rule::Slots { .. } => None,
    }
}

/// The shortest span in which a window of this period gives its whole limit
/// once, near enough for a report.
fn period_ms(period: Period) -> i64 {
    const DAY: i64 = 24 * 3_600_000;
    match period {
        Period::Day => DAY,
        Period::Week => 7 * DAY,
        Period::Month => 30 * DAY,
        other => other.fixed_len_ms().unwrap_or(i64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::document::Node;

    fn pool(counts: &str) -> Pool {
        let text = format!(
            "id = \"p\"\nmodels = [\"*\"]\nmargin = 0.5\ncounts = \"{counts}\"\n\
             [[limits]]\nname = \"output\"\nkind = \"bucket\"\nmeter = \"output_tokens\"\nvendor_limit = 1000\n\
             burst_share = 0.2\n\
             [[limits]]\nname = \"calls\"\nkind = \"slots\"\nlimit = 3\n"
        );
        Pool::read(&Node::from_toml(&text).unwrap()).unwrap()
    }

    fn load(output_tokens: u64) -> Load {
        Load { requests: 1, output_tokens, ..Load::default() }
    }

    #[test]
    fn the_peak_is_the_fullest_minute_anywhere() {
        let mut pool = PoolLoad::new(&pool("reserved"));
        for (second, output) in [(0, 100), (30, 100), (59, 200), (60, 50), (200, 10)] {
            pool.admitted(Millis(second * 1_000), load(output));
            pool.settled(Millis(second * 1_000 + 500), load(1));
        }
        let peaks: Vec<_> = pool.peaks().collect();
        assert_eq!(peaks[0], (500, Peak { amount: 400, at: Some(Millis(59_000)) }));
        assert_eq!(peaks[1], (3, Peak { amount: 1, at: Some(Millis(0)) }));
    }

    #[test]
    fn a_pool_that_counts_actual_output_is_loaded_at_the_settle() {
        let mut pool = PoolLoad::new(&pool("actual"));
        pool.admitted(Millis(0), load(400));
        pool.admitted(Millis(1), load(400));
        pool.settled(Millis(70_000), load(30));
        let peaks: Vec<_> = pool.peaks().collect();
        assert_eq!(peaks[0].1, Peak { amount: 30, at: Some(Millis(70_000)) });
        assert_eq!(peaks[1].1, Peak { amount: 2, at: Some(Millis(1)) });
    }
}
