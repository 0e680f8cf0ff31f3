//! Counting different users, on several nodes, without keeping who they are.

/// The users that are counted one by one.
const EXACT: usize = 1024;

/// How many different users there are, by digests that lie anywhere with equal
/// likelihood: only the least are kept. Up to 1,024 users the count is exact;
/// beyond, how close the least lie together tells how many there are (within 3 %
/// in two of three cases). Two of them are united by their digests, so that a
/// user whom both have seen counts once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headcount {
    /// Ascending.
    least: Vec<u64>,
}

impl Headcount {
    /// Counts a user; `false`: that changes nothing.
    pub fn add(&mut self, digest: u64) -> bool {
        let Err(place) = self.least.binary_search(&digest) else { return false };
        if place >= EXACT {
            return false;
        }
        self.least.insert(place, digest);
        self.least.truncate(EXACT);
        true
    }

    pub fn count(&self) -> u64 {
        match self.least.get(EXACT - 1) {
            Some(last) => {
                let users = ((EXACT as u128 - 1) << 64) / u128::from(*last).max(1);
                u64::try_from(users).unwrap_or(u64::MAX).max(EXACT as u64)
            }
            None => self.least.len() as u64,
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        self.least.iter().flat_map(|digest| digest.to_le_bytes()).collect()
    }

    /// What [`to_bytes`](Self::to_bytes) told; `None`: it is nothing of the kind.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (digests, rest) = bytes.as_chunks();
        let least: Vec<u64> = digests.iter().map(|digest| u64::from_le_bytes(*digest)).collect();
        let is_whole = rest.is_empty() && least.len() <= EXACT && least.is_sorted();
        is_whole.then_some(Self { least })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Digests that lie anywhere.
    fn digest(user: u64) -> u64 {
        let hash = blake3::hash(&user.to_le_bytes());
        u64::from_le_bytes(std::array::from_fn(|i| hash.as_bytes()[i]))
    }

    fn of(users: std::ops::Range<u64>) -> Headcount {
        let mut count = Headcount::default();
        users.for_each(|user| _ = count.add(digest(user)));
        count
    }

    #[test]
    fn few_are_counted_one_by_one_and_many_closely() {
        for users in [0, 1, 60, 1023, 1024] {
            assert_eq!(of(0..users).count(), users);
        }
        for users in [1025, 5_000, 100_000] {
            let counted = of(0..users).count();
            assert!(counted.abs_diff(users) < users / 10, "{counted} for {users}");
        }
    }

    #[test]
    fn who_was_seen_twice_counts_once_whoever_saw_them() {
        let mut all = of(0..700);
        assert!(!all.clone().add(digest(3)));
        for other in [of(600..900), of(0..900)] {
            other.least.iter().for_each(|digest| _ = all.add(*digest));
            assert_eq!(all.count(), 900);
        }
        assert_eq!(Headcount::from_bytes(&all.to_bytes()), Some(all));
        assert_eq!(Headcount::from_bytes(&[1, 2, 3]), None);
    }
}
