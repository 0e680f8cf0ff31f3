//! What is told of a run: a line for each piece of it, and all of it at the end.

use std::time::{Duration, Instant};

use crate::calls::Outcome;
use crate::nodes::Look;

pub struct Report {
    begun: Instant,
    every: Duration,
    due: Instant,
    now: Piece,
    whole: Piece,
    /// p99 of check and settle together in the worst second so far.
    second: (Instant, Vec<u32>),
    worst_second: u32,
}

/// Times in us.
#[derive(Default)]
struct Piece {
    checks: Vec<u32>,
    settles: Vec<u32>,
    both: Vec<u32>,
    again: u32,
    lost: u32,
}

impl Piece {
    fn add(&mut self, outcome: Outcome) {
        self.checks.push(outcome.check_us);
        if let Some(settle_us) = outcome.settle_us {
            self.settles.push(settle_us);
            self.both.push(outcome.check_us.saturating_add(settle_us));
        }
        self.again += outcome.again;
        self.lost += u32::from(outcome.is_lost);
    }

    fn figures(&mut self) -> String {
        let columns = [("check", &mut self.checks), ("settle", &mut self.settles), ("both", &mut self.both)];
        let texts = columns.map(|(name, times)| {
            let [p50, p99, p999, most] = [0.5, 0.99, 0.999, 1.0].map(|share| quantile(times, share) / 1e3);
            format!("{name} {p50:.2} / {p99:.2} / {p999:.1} / {most:.0} ms")
        });
        let (calls, again, lost) = (self.checks.len(), self.again, self.lost);
        format!("{calls} calls, {}, sent again {again}, lost {lost}", texts.join(", "))
    }
}

/// The time within which this share of the answers came.
fn quantile(times: &mut [u32], share: f64) -> f64 {
    let Some(last) = times.len().checked_sub(1) else { return f64::NAN };
    let place = ((times.len() as f64 * share) as usize).min(last);
    f64::from(*times.select_nth_unstable(place).1)
}

impl Report {
    pub fn new(begun: Instant, every: u64) -> Self {
        println!("each: p50 / p99 / p99.9 / longest");
        let every = Duration::from_secs(every.max(1));
        Self {
            begun,
            every,
            due: begun + every,
            now: Piece::default(),
            whole: Piece::default(),
            second: (begun, Vec::new()),
            worst_second: 0,
        }
    }

    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    pub fn take(&mut self, outcomes: impl Iterator<Item = Outcome>) {
        for outcome in outcomes {
            self.now.add(outcome);
            self.whole.add(outcome);
            self.second.1.push(outcome.check_us.saturating_add(outcome.settle_us.unwrap_or_default()));
        }
        if self.second.0.elapsed() >= Duration::from_secs(1) {
            let (_, mut times) = std::mem::replace(&mut self.second, (Instant::now(), Vec::new()));
            // The first ones meet cold caches and new connections.
            if self.elapsed() > self.every.min(Duration::from_secs(5)) && !times.is_empty() {
                self.worst_second = self.worst_second.max(quantile(&mut times, 0.99) as u32);
            }
        }
    }

    pub fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    pub fn line(&mut self, look: &Look) {
        self.due += self.every;
        let mut piece = std::mem::take(&mut self.now);
        println!("{:>5} s: {}; {look}", self.elapsed().as_secs(), piece.figures());
    }

    pub fn end(&mut self, look: &Look) {
        println!("whole: {}; {look}", self.whole.figures());
        println!("worst second: p99 of both {:.1} ms", f64::from(self.worst_second) / 1e3);
    }
}
