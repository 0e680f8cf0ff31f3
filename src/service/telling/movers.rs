//! Who uses far more than they are used to.

use std::cmp::Ordering;

use crate::domain::time::Millis;
use crate::ledger::{Mover, MoversQuery, SLOT_MS};
use crate::service::{Service, ServiceError, Tenant};

/// The present five minutes and those before them: up to ten.
const LATE: i64 = 2;
/// Slots of seven days.
const WEEK: i64 = 7 * 288;
/// Users that are looked at, those with the most: so the cost is bounded.
const USERS_MAX: u32 = 5_000;
/// Less than this many times their own baseline moves nobody.
const RATIO_MIN: f64 = 2.0;

/// A list of movers.
#[derive(Debug)]
pub struct Movers {
    /// When the ten minutes began.
    pub since: Millis,
    /// By ratio, the largest first; then those without a past, by what they used.
    pub rows: Vec<Moved>,
}

#[derive(Debug)]
pub struct Moved {
    pub mover: Mover,
    /// Total tokens of ten minutes in which the user was active, on average over the
    /// seven days before; `None`: there were none.
    pub baseline: Option<u64>,
    pub ratio: Option<f64>,
}

impl Service {
    /// Users whose last ten minutes are more than what they are used to. `least`:
    /// total tokens below which nobody is looked at.
    pub async fn movers(&self, tenant: &Tenant, least: u64, limit: u32) -> Result<Movers, ServiceError> {
        self.flush_tallies().await?;
        let end = tenant.now().0.div_euclid(SLOT_MS) + 1;
        let slots = end - LATE..end;
        let (since, start) = (slots.start - WEEK, slots.start);
        let query = MoversQuery { slots, since, least, users: USERS_MAX };
        let found = self.ledger.movers(tenant.number, query).await?;
        let mut rows: Vec<Moved> = found.into_iter().map(Moved::of).collect();
        rows.retain(|row| row.ratio.is_none_or(|ratio| ratio >= RATIO_MIN));
        // The sort is stable: equal ones stay in the order of what they used.
        rows.sort_by(|a, b| match (a.ratio, b.ratio) {
            (Some(a), Some(b)) => b.total_cmp(&a),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => Ordering::Equal,
        });
        rows.truncate(limit as usize);
        Ok(Movers { since: Millis(start * SLOT_MS), rows })
    }
}

impl Moved {
    /// Only slots with use count for the baseline: whoever sleeps at night is not
    /// ten times as active every morning.
    fn of(mover: Mover) -> Self {
        if mover.before_slots == 0 || mover.before == 0 {
            return Self { mover, baseline: None, ratio: None };
        }
        let baseline = mover.before as f64 * LATE as f64 / mover.before_slots as f64;
        let ratio = (mover.total_tokens as f64 / baseline * 100.0).round() / 100.0;
        Self { baseline: Some(baseline.round() as u64), ratio: Some(ratio), mover }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(total_tokens: u64, before: u64, before_slots: u64) -> Moved {
        let (user, plan) = ("u".to_owned(), None);
        Moved::of(Mover { user, plan, requests: 1, total_tokens, before, before_slots })
    }

    #[test]
    fn idle_hours_do_not_lower_what_a_user_is_used_to() {
        // One busy hour a day for a week, always the same.
        let usual = moved(2_000, 84_000, 84);
        assert_eq!((usual.baseline, usual.ratio), (Some(2_000), Some(1.0)));
        assert_eq!(moved(20_000, 84_000, 84).ratio, Some(10.0));
        let new = moved(20_000, 0, 0);
        assert_eq!((new.baseline, new.ratio), (None, None));
    }
}
