//! How close admitted traffic came to each limit of a pool.
//!
//! A call weighs what it holds, and once it is settled what it used, at the
//! time of its admission: as a bucket sees it, which gets back what was held
//! too much. So the fullest window of an enforced pool is within its limit (but
//! for overruns), and that of a pool for planning says what enforcing it would
//! have had to refuse.

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

/// The fullest window of one limit.
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

    /// A call was admitted; `call` grows from call to call. Where the pool
    /// counts output as it comes, the reserved output weighs nothing.
    pub fn admitted(&mut self, call: usize, at: Millis, reserved: Load) {
        let load = match self.counts {
            PoolCounts::Reserved => reserved,
            PoolCounts::Actual => Load { output_tokens: 0, ..reserved },
        };
        for limit in &mut self.limits {
            limit.begin(call, at, load);
        }
    }

    /// A call was settled.
    pub fn settled(&mut self, call: usize, at: Millis, used: Load) {
        for limit in &mut self.limits {
            match self.counts {
                PoolCounts::Reserved => limit.correct(call, at, used),
                PoolCounts::Actual => {
                    limit.add(call, at, Load { output_tokens: used.output_tokens, ..Load::default() })
                }
            }
            limit.end();
        }
    }

    /// In the order of the pool's limits: what the limit lets through in its
    /// window, and the peak.
    pub fn peaks(&self) -> impl Iterator<Item = (u64, Peak)> {
        self.limits.iter().map(|limit| (limit.allowed, limit.peak.clone()))
    }
}

struct Entry {
    at: Millis,
    call: usize,
    amount: u64,
}

struct LimitLoad {
    /// `None` for slots.
    meter: Option<Meter>,
    /// What passes in any window of `span_ms`.
    allowed: u64,
    /// `i64::MAX` for a window that never turns.
    span_ms: i64,
    /// Calls of the running window, in the order in which they came.
    recent: VecDeque<Entry>,
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
            Rule::Rolling { meter, limit, window_seconds, .. } => {
                (Some(meter.clone()), *limit, i64::from(*window_seconds) * 1_000)
            }
            Rule::Window { meter, limit, period, .. } => (Some(meter.clone()), *limit, period_ms(*period)),
            Rule::Slots { limit } => (None, *limit, 0),
        };
        let peak = Peak { amount: 0, at: None };
        Self { meter, allowed, span_ms, recent: VecDeque::new(), now: 0, peak }
    }

    fn begin(&mut self, call: usize, at: Millis, load: Load) {
        if self.meter.is_none() {
            self.now += 1;
            self.note_peak(at);
        }
        self.add(call, at, load);
    }

    fn end(&mut self) {
        if self.meter.is_none() {
            self.now = self.now.saturating_sub(1);
        }
    }

    fn add(&mut self, call: usize, at: Millis, load: Load) {
        let Some(meter) = &self.meter else { return };
        let amount = load.of(meter);
        self.forget_before(at);
        self.recent.push_back(Entry { at, call, amount });
        self.now += amount;
        self.note_peak(at);
    }

    /// Leaves only the window that ends at `at`.
    fn forget_before(&mut self, at: Millis) {
        while let Some(oldest) = self.recent.front()
            && at.0 - oldest.at.0 >= self.span_ms
        {
            self.now -= oldest.amount;
            self.recent.pop_front();
        }
    }

    /// What was held becomes what was used, if it is still in the window.
    fn correct(&mut self, call: usize, at: Millis, used: Load) {
        let Some(meter) = &self.meter else { return };
        let amount = used.of(meter);
        self.forget_before(at);
        let found = self.recent.binary_search_by_key(&call, |entry| entry.call);
        if let Some(entry) = found.ok().and_then(|index| self.recent.get_mut(index)) {
            self.now = self.now - entry.amount + amount;
            entry.amount = amount;
            self.note_peak(at);
        }
    }

    fn note_peak(&mut self, at: Millis) {
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
    fn a_call_weighs_what_it_holds_and_then_what_it_used() {
        let mut pool = PoolLoad::new(&pool("reserved"));
        pool.admitted(0, Millis(0), load(100));
        pool.admitted(1, Millis(30_000), load(100));
        pool.settled(0, Millis(40_000), load(30));
        pool.admitted(2, Millis(59_000), load(200));
        pool.admitted(3, Millis(60_000), load(20));
        pool.settled(2, Millis(61_000), load(205));
        pool.admitted(4, Millis(200_000), load(10));
        let peaks: Vec<_> = pool.peaks().collect();
        // 30 + 100 + 200 at second 59; later 100 + 205 + 20.
        assert_eq!(peaks[0], (500, Peak { amount: 330, at: Some(Millis(59_000)) }));
        assert_eq!(peaks[1], (3, Peak { amount: 3, at: Some(Millis(60_000)) }));
    }

    #[test]
    fn a_pool_that_counts_actual_output_is_loaded_at_the_settle() {
        let mut pool = PoolLoad::new(&pool("actual"));
        pool.admitted(0, Millis(0), load(400));
        pool.admitted(1, Millis(1), load(400));
        pool.settled(0, Millis(70_000), load(30));
        let peaks: Vec<_> = pool.peaks().collect();
        assert_eq!(peaks[0].1, Peak { amount: 30, at: Some(Millis(70_000)) });
        assert_eq!(peaks[1].1, Peak { amount: 2, at: Some(Millis(1)) });
    }
}
