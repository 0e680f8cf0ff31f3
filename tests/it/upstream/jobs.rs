//! The jobs of the scenarios: sizes that add up to stated sums, the same in every run.

use super::world::{Job, Stream};
use crate::model::oracle::calendar::Ms;

/// A generator whose numbers are the same everywhere.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Evenly from `[0, below)`.
    pub fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below
    }
}

/// `count` sizes between half and one and a half of their mean, `sum` in all.
pub fn sizes(count: usize, sum: i64, dice: &mut Dice) -> Vec<i64> {
    let mean = sum / count as i64;
    let mut sizes: Vec<i64> = (0..count).map(|_| mean / 2 + dice.below(mean as u64) as i64).collect();
    let mut rest = sum - sizes.iter().sum::<i64>();
    for turn in (0..count).cycle() {
        if rest == 0 {
            break;
        }
        sizes[turn] += rest.signum();
        rest -= rest.signum();
    }
    sizes
}

/// Sixty jobs with 40,294 tokens of input and 12,511 of output, all there at once.
pub fn sixty() -> Vec<Stream> {
    let mut dice = Dice::new(60);
    let inputs = sizes(60, 40_294, &mut dice);
    let outputs = sizes(60, 12_511, &mut dice);
    let job = |(input, output): (i64, i64)| vec![Job { max_output: 1024, ..call(input, output) }];
    inputs.into_iter().zip(outputs).map(job).collect()
}

/// Forty-eight of them as bulk, twelve interactive: one every two seconds from the first on.
pub fn two_lanes() -> Vec<Stream> {
    let mut streams = sixty();
    for (nth, job) in streams.iter_mut().map(|stream| &mut stream[0]).enumerate() {
        job.bulk = nth < 48;
        job.at = if job.bulk { 0 } else { 1000 + 2000 * (nth as Ms - 48) };
    }
    streams
}

/// The same without lanes.
pub fn one_lane() -> Vec<Stream> {
    let mut streams = two_lanes();
    streams.iter_mut().flatten().for_each(|job| job.bulk = false);
    streams
}

/// Calls of one size, all there at once.
pub fn alike(count: usize, input: i64, output: i64) -> Vec<Stream> {
    vec![vec![call(input, output)]; count]
}

/// A call that says exactly how much it will generate.
pub fn call(input: i64, output: i64) -> Job {
    Job { at: 0, bulk: false, input, max_output: output, output, runs_ms: runs_ms(output), models: &[] }
}

/// How long a model takes: a start, then 250 tokens a second.
pub fn runs_ms(output: i64) -> Ms {
    200 + 4 * output
}
