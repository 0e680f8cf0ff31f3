//! A tenant's own limit on its calls, by the setting `requests_per_second`.
//!
//! It keeps one product from crowding out the others, or from running its own
//! backend into the ground; no plan and no account knows of it. It lives in
//! real time, also for test tenants: one whose clock stands must still be able
//! to move it.

use std::time::Instant;

use parking_lot::Mutex;

/// A bucket of one second's worth of calls, on this node alone; full at first.
#[derive(Debug, Default)]
pub(super) struct Ingress(Mutex<Option<Level>>);

#[derive(Debug)]
struct Level {
    /// In calls x [`UNIT`], so that any whole rate refills without remainder:
    /// by the rate each nanosecond.
    amount: u64,
    at: Instant,
}

/// One call: what a rate of 1 refills in a second.
const UNIT: u64 = 1_000_000_000;

impl Ingress {
    /// Takes one call at `now`, of `rate` (1 to 1,000,000) a second.
    ///
    /// # Errors
    /// In how many milliseconds there will be room for one; nothing is taken.
    pub fn take(&self, rate: u32, now: Instant) -> Result<(), u64> {
        let rate = u64::from(rate);
        let full = rate * UNIT;
        let mut place = self.0.lock();
        let level = place.get_or_insert(Level { amount: full, at: now });
        // Two threads may come here in another order than they read the clock.
        let passed = now.saturating_duration_since(level.at);
        let nanos = u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX);
        level.amount = level.amount.saturating_add(nanos.saturating_mul(rate)).min(full);
        level.at = level.at.max(now);
        if let Some(rest) = level.amount.checked_sub(UNIT) {
            level.amount = rest;
            return Ok(());
        }
        let nanos = (UNIT - level.amount).div_ceil(rate);
        Err(nanos.div_ceil(1_000_000).max(1))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_second_lets_in_a_second_s_worth_and_then_one_by_one() {
        let (ingress, start) = (Ingress::default(), Instant::now());
        for _ in 0..3 {
            ingress.take(3, start).unwrap();
        }
        assert_eq!(ingress.take(3, start), Err(334));
        let told = start + Duration::from_millis(334);
        assert_eq!(ingress.take(3, told - Duration::from_micros(700)), Err(1));
        ingress.take(3, told).unwrap();
        assert!(ingress.take(3, told).is_err());
        // A third of a second is no whole number of anything, and none is lost.
        let mut taken = 0;
        for ms in 334..=60_000 {
            taken += u32::from(ingress.take(3, start + Duration::from_millis(ms)).is_ok());
        }
        assert_eq!(4 + taken, 3 + 60 * 3);
    }

    #[test]
    fn a_pause_fills_it_once_and_another_rate_holds_from_then_on() {
        let (ingress, start) = (Ingress::default(), Instant::now());
        let later = start + Duration::from_secs(1 << 40);
        ingress.take(1_000_000, start).unwrap();
        for _ in 0..2 {
            ingress.take(2, later).unwrap();
        }
        assert_eq!(ingress.take(2, later), Err(500));
        assert_eq!(ingress.take(1_000, later), Err(1));
        assert_eq!(ingress.take(2, start), Err(500), "an earlier moment is none");
    }
}
