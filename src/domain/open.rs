//! The open holds of an account, in the order in which their leases end.
//!
//! A user has one or two, a pool or a tenant may have some ten thousand. The first node of a
//! tree has room for eleven, most of which nobody uses: so few are a list, and many a tree.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

use super::ids::HoldId;
use super::time::Millis;

/// When a lease ends, and whose it is.
pub(super) type Lease = (Millis, HoldId);

/// What an open hold occupies: (index of the cell, amount).
pub(super) type Parts = Box<[(u16, u64)]>;

/// More than so many are a tree, until there is none left.
const FEW: usize = 8;

/// See the module's text.
#[derive(Debug, Clone)]
pub(super) enum Open {
    /// Ascending.
    Few(Vec<(Lease, Parts)>),
    #[allow(clippy::box_collection, reason = "an account at rest would be larger otherwise")]
    Many(Box<BTreeMap<Lease, Parts>>),
}

impl Default for Open {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Open {
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Few(list) => list.is_empty(),
            Self::Many(tree) => tree.is_empty(),
        }
    }

    /// All of them, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (&Lease, &Parts)> {
        self.range(..)
    }

    /// Those whose lease has ended by `now`, ascending.
    pub fn until(&self, now: Millis) -> impl Iterator<Item = (&Lease, &Parts)> {
        self.range(..=last_of(now))
    }

    /// Those whose lease ends after `now`, ascending.
    pub fn after(&self, now: Millis) -> impl Iterator<Item = (&Lease, &Parts)> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.range((Excluded(last_of(now)), Unbounded))
    }

    fn range(&self, within: impl RangeBounds<Lease> + Clone) -> impl Iterator<Item = (&Lease, &Parts)> {
        let (list, tree) = match self {
            Self::Few(list) => (list.as_slice(), None),
            Self::Many(tree) => (&[][..], Some(tree.range(within.clone()))),
        };
        let few = list.iter().filter(move |(lease, _)| within.contains(lease));
        few.map(|(lease, parts)| (lease, parts)).chain(tree.into_iter().flatten())
    }

    /// When the last lease ends.
    pub fn last_end(&self) -> Option<Millis> {
        let last = match self {
            Self::Few(list) => list.last().map(|(lease, _)| lease),
            Self::Many(tree) => tree.last_key_value().map(|(lease, _)| lease),
        };
        last.map(|(end, _)| *end)
    }

    pub fn insert(&mut self, lease: Lease, parts: Parts) {
        match self {
            Self::Few(list) => match list.binary_search_by_key(&lease, |(known, _)| *known) {
                Ok(place) => list[place].1 = parts,
                Err(place) if list.len() < FEW => {
                    if list.len() == list.capacity() {
                        // Nearly always one is all: by itself a list begins with room for four.
                        list.reserve_exact(list.len().max(1));
                    }
                    list.insert(place, (lease, parts));
                }
                Err(_) => {
                    let mut tree: BTreeMap<Lease, Parts> = list.drain(..).collect();
                    tree.insert(lease, parts);
                    *self = Self::Many(Box::new(tree));
                }
            },
            Self::Many(tree) => _ = tree.insert(lease, parts),
        }
    }

    pub fn remove(&mut self, lease: Lease) {
        match self {
            Self::Few(list) => list.retain(|(known, _)| *known != lease),
            Self::Many(tree) => _ = tree.remove(&lease),
        }
        self.rest();
    }

    /// Drops those whose lease has ended by `now`.
    pub fn remove_until(&mut self, now: Millis) {
        match self {
            Self::Few(list) => list.retain(|((end, _), _)| *end > now),
            Self::Many(tree) => {
                while let Some(first) = tree.first_entry().filter(|first| first.key().0 <= now) {
                    first.remove();
                }
            }
        }
        self.rest();
    }

    /// Where nothing is, nothing is kept.
    fn rest(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }
}

/// The last lease that can end at `end`.
fn last_of(end: Millis) -> Lease {
    (end, HoldId(u128::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Insert(i64, u128, u64),
        Remove(i64, u128),
        RemoveUntil(i64),
    }

    /// Few ends and few ids, so that leases meet.
    fn step() -> impl Strategy<Value = Step> {
        let lease = || (0i64..12, 0u128..4);
        prop_oneof![
            6 => (lease(), 1u64..9).prop_map(|((end, id), amount)| Step::Insert(end, id, amount)),
            3 => lease().prop_map(|(end, id)| Step::Remove(end, id)),
            1 => (0i64..12).prop_map(Step::RemoveUntil),
        ]
    }

    fn told<'o>(leases: impl Iterator<Item = (&'o Lease, &'o Parts)>) -> Vec<(Lease, Parts)> {
        leases.map(|(lease, parts)| (*lease, parts.clone())).collect()
    }

    fn is_a_tree(open: &Open) -> bool {
        matches!(open, Open::Many(_))
    }

    proptest! {
        #[test]
        fn few_and_many_tell_the_same_as_a_tree(steps in proptest::collection::vec(step(), 1..80)) {
            let (mut open, mut tree) = (Open::default(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Insert(end, id, amount) => {
                        let (lease, parts): (Lease, Parts) = ((Millis(end), HoldId(id)), [(0, amount)].into());
                        open.insert(lease, parts.clone());
                        tree.insert(lease, parts);
                    }
                    Step::Remove(end, id) => {
                        open.remove((Millis(end), HoldId(id)));
                        tree.remove(&(Millis(end), HoldId(id)));
                    }
                    Step::RemoveUntil(now) => {
                        open.remove_until(Millis(now));
                        tree.retain(|(end, _), _| end.0 > now);
                    }
                }
                prop_assert_eq!(told(open.iter()), told(tree.iter()));
                prop_assert_eq!(open.is_empty(), tree.is_empty());
                prop_assert_eq!(open.last_end(), tree.keys().next_back().map(|(end, _)| *end));
                for now in [-1, 0, 5, 11, 12] {
                    let (before, after): (Vec<_>, Vec<_>) = tree.iter().partition(|((end, _), _)| end.0 <= now);
                    prop_assert_eq!(told(open.until(Millis(now))), told(before.into_iter()));
                    prop_assert_eq!(told(open.after(Millis(now))), told(after.into_iter()));
                }
            }
        }
    }

    #[test]
    fn a_list_becomes_a_tree_and_an_emptied_tree_is_gone() {
        let lease = |number: usize| (Millis(number as i64), HoldId(7));
        let mut open = Open::default();
        for number in 0..=FEW {
            assert!(!is_a_tree(&open), "{number} are few");
            open.insert(lease(number), [(0, 1)].into());
        }
        assert!(is_a_tree(&open));
        (1..=FEW).for_each(|number| open.remove(lease(number)));
        assert!(is_a_tree(&open) && !open.is_empty());
        open.remove_until(Millis(0));
        assert!(!is_a_tree(&open) && open.is_empty());
    }

    #[test]
    fn one_lease_has_room_for_one() {
        let mut open = Open::default();
        open.insert((Millis(1), HoldId(7)), Parts::default());
        assert!(matches!(&open, Open::Few(list) if list.capacity() == 1), "{open:?}");
        open.remove((Millis(1), HoldId(7)));
        assert!(matches!(&open, Open::Few(list) if list.capacity() == 0), "{open:?}");
    }
}
