//! Grants: extra amounts on a window, used after the plan's own.
//!
//! A grant is one amount, however many windows it lasts for. While a window
//! runs, what is left of the grants that are alive counts on top of the limit;
//! when it ends, what it used beyond the limit is gone from them for good.

use serde::{Deserialize, Serialize};

use super::quantity::add_saturating;
use super::time::Millis;

/// An extra amount on the window limits of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Unique among the grants of an account, for ever.
    pub id: u32,
    pub amount: u64,
    pub given: Millis,
    /// The first instant at which it is no more; `None`: it lasts.
    pub expires_at: Option<Millis>,
}

impl Grant {
    /// Whether it counts at that instant: it covers `[given, expires_at)`.
    pub fn is_alive(&self, at: Millis) -> bool {
        self.given <= at && self.expires_at.is_none_or(|end| at < end)
    }
}

/// What is gone for good of each grant, by id; only those that paid are in it.
///
/// It belongs to the account and not to a cell: two limits of one name (that
/// of an earlier plan with another period, say) share their grants.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent(
    #[allow(clippy::box_collection, reason = "an account at rest must stay small")]
    Option<Box<Vec<(u32, u64)>>>,
);

impl Spent {
    /// What is gone, by id, in the order in which the grants first paid.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u32, u64)> + '_ {
        self.0.as_deref().map_or(&[][..], Vec::as_slice).iter().copied()
    }

    /// What is gone of the grant `id`.
    pub fn of(&self, id: u32) -> u64 {
        let paid = self.0.as_deref().into_iter().flatten().find(|(known, _)| *known == id);
        paid.map_or(0, |(_, amount)| *amount)
    }

    fn left(&self, grant: &Grant) -> u64 {
        grant.amount.saturating_sub(self.of(grant.id))
    }

    /// What `grants` add to a limit at `now`.
    pub fn granted(&self, grants: &[Grant], now: Millis) -> u64 {
        let alive = grants.iter().filter(|grant| grant.is_alive(now));
        alive.fold(0, |sum, grant| add_saturating(sum, self.left(grant)))
    }

    /// Takes `amount` for good from those of `grants` that are alive at `at`:
    /// from the one that expires first, as far as each reaches.
    pub fn pay(&mut self, grants: &[Grant], amount: u64, at: Millis) {
        let mut due = amount;
        let mut alive: Vec<&Grant> = grants.iter().filter(|grant| grant.is_alive(at)).collect();
        alive.sort_unstable_by_key(|grant| (grant.expires_at.is_none(), grant.expires_at, grant.id));
        for grant in alive {
            let paid = due.min(self.left(grant));
            if paid > 0 {
                self.add(grant.id, paid);
                due -= paid;
            }
        }
    }

    fn add(&mut self, id: u32, amount: u64) {
        let list = self.0.get_or_insert_default();
        match list.iter_mut().find(|(known, _)| *known == id) {
            Some((_, spent)) => *spent = add_saturating(*spent, amount),
            None => {
                list.reserve_exact(1);
                list.push((id, amount));
            }
        }
    }
}

impl FromIterator<(u32, u64)> for Spent {
    fn from_iter<I: IntoIterator<Item = (u32, u64)>>(gone: I) -> Self {
        let gone: Vec<_> = gone.into_iter().collect();
        Self(Some(gone).filter(|gone| !gone.is_empty()).map(Box::new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(id: u32, amount: u64, given: i64, expires_at: Option<i64>) -> Grant {
        Grant { id, amount, given: Millis(given), expires_at: expires_at.map(Millis) }
    }

    #[test]
    fn a_grant_covers_the_time_from_when_it_is_given_until_it_expires() {
        let grants = [grant(1, 10, 5, Some(9))];
        let granted = |at| Spent::default().granted(&grants, Millis(at));
        assert_eq!([4, 5, 8, 9].map(granted), [0, 10, 10, 0]);
    }

    #[test]
    fn the_grant_that_expires_first_pays_first_and_none_more_than_it_has() {
        let grants = [
            grant(4, 10, 0, None),
            grant(3, 10, 0, Some(50)),
            grant(2, 10, 0, Some(40)),
            grant(1, 10, 0, Some(40)),
            grant(5, 10, 0, Some(20)),
            grant(6, 10, 31, Some(32)),
        ];
        let mut spent = Spent::default();
        let mut paid = |amount| {
            spent.pay(&grants, amount, Millis(30));
            [1, 2, 3, 4, 5, 6].map(|id| spent.of(id))
        };
        assert_eq!(paid(0), [0; 6]);
        assert_eq!(paid(4), [4, 0, 0, 0, 0, 0]);
        assert_eq!(paid(7), [10, 1, 0, 0, 0, 0]);
        assert_eq!(paid(20), [10, 10, 10, 1, 0, 0]);
        assert_eq!(paid(1_000), [10, 10, 10, 10, 0, 0], "those not alive pay nothing");
        assert_eq!(spent.granted(&grants, Millis(30)), 0);
        assert_eq!(spent.granted(&grants, Millis(31)), 10);
    }
}
