//! Who makes which call: users by a seeded Zipf rule, plans by a mix.
//!
//! Whole numbers only, so that a seed gives the same draw on every machine.

/// A small generator with 64 bits of state (SplitMix64): one addition and
/// three mixing steps a number, enough for drawing users.
pub struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0..bound`; the bias of at most bound / 2^64 does not show.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// Zipf with exponent 1: the k-th user has the weight 1/k.
pub struct Zipf {
    /// Sums of the weights up to each user, in units of 2^-40.
    sums: Vec<u64>,
}

impl Zipf {
    /// `users` is at least 1.
    pub fn new(users: u32) -> Self {
        let weight = |rank: u64| (1 << 40) / rank;
        let sums = (1..=u64::from(users)).scan(0, |sum, rank| {
            *sum += weight(rank);
            Some(*sum)
        });
        Self { sums: sums.collect() }
    }

    /// The index of the next caller, 0 being the busiest user.
    pub fn draw(&self, draw: &mut Draw) -> usize {
        let total = self.sums.last().copied().unwrap_or(1);
        let at = draw.below(total);
        self.sums.partition_point(|sum| *sum <= at)
    }
}

/// Gives each of `users` an index into `shares`, in the exact proportions of
/// `shares` (largest remainders first), shuffled.
pub fn assign(users: u32, shares: &[u64], draw: &mut Draw) -> Vec<u16> {
    let total: u64 = shares.iter().sum();
    let exact = |share: u64| u128::from(share) * u128::from(users);
    let mut counts: Vec<u64> = shares.iter().map(|s| (exact(*s) / u128::from(total.max(1))) as u64).collect();
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(exact(shares[*index]) % u128::from(total.max(1))));
    let missing = u64::from(users) - counts.iter().sum::<u64>();
    for index in order.into_iter().take(missing as usize) {
        counts[index] += 1;
    }
    let mut plans: Vec<u16> = Vec::with_capacity(users as usize);
    for (index, count) in counts.iter().enumerate() {
        plans.extend(std::iter::repeat_n(index as u16, *count as usize));
    }
    for last in (1..plans.len()).rev() {
        plans.swap(last, draw.below(last as u64 + 1) as usize);
    }
    plans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_user_calls_twice_as_often_as_the_second() {
        let (zipf, mut draw) = (Zipf::new(100), Draw::new(7));
        let mut calls = [0u32; 100];
        for _ in 0..100_000 {
            calls[zipf.draw(&mut draw)] += 1;
        }
        assert!((190..210).contains(&(calls[0] * 100 / calls[1])), "{calls:?}");
        assert!(calls[99] > 0);
    }

    #[test]
    fn one_user_makes_every_call() {
        let (zipf, mut draw) = (Zipf::new(1), Draw::new(1));
        assert!((0..100).all(|_| zipf.draw(&mut draw) == 0));
    }

    #[test]
    fn plans_have_the_exact_shares_and_a_seed_repeats_them() {
        let plans = assign(200, &[70, 25, 5], &mut Draw::new(3));
        let count = |plan: u16| plans.iter().filter(|p| **p == plan).count();
        assert_eq!([count(0), count(1), count(2)], [140, 50, 10]);
        assert_eq!(plans, assign(200, &[70, 25, 5], &mut Draw::new(3)));
        assert_ne!(plans, assign(200, &[70, 25, 5], &mut Draw::new(4)));
        assert_eq!(assign(1, &[1, 1, 1], &mut Draw::new(1)).len(), 1);
        assert_eq!(assign(10, &[0, 1], &mut Draw::new(1)), [1; 10]);
    }
}
