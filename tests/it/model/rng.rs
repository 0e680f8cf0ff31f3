//! A small seeded generator (splitmix64), so that a printed seed brings a run back on any machine.

#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A whole number from `low` to `high`, both possible.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        let span = u64::try_from(high - low).expect("low <= high") + 1;
        low + i64::try_from(self.next() % span).expect("a small span")
    }

    pub fn chance(&mut self, percent: i64) -> bool {
        self.between(0, 99) < percent
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let last = i64::try_from(from.len()).expect("short") - 1;
        &from[usize::try_from(self.between(0, last)).expect("not negative")]
    }

    /// A place in a list of weights.
    pub fn weighted(&mut self, weights: &[i64]) -> usize {
        let mut left = self.between(0, weights.iter().sum::<i64>() - 1);
        for (n, weight) in weights.iter().enumerate() {
            if left < *weight {
                return n;
            }
            left -= weight;
        }
        unreachable!("the weights add up")
    }
}
