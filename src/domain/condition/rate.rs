//! The share of its rate that a pool has, and how it comes back.

use serde::{Deserialize, Serialize};

use crate::domain::charge::FigureStep;
use crate::domain::quantity::Ppm;
use crate::domain::time::Millis;

/// What a repeated refusal leaves of the rate.
const LOWERED: Ppm = Ppm(800_000);
/// It is never lower than this share of the whole.
const LEAST: Ppm = Ppm(100_000);
/// So much of the whole comes back every so often without a refusal.
const RISES_BY: u32 = 50_000;
const RISES_EVERY_MS: i64 = 60_000;
/// Steps of before that are kept, for cells that nobody called since.
const PAST_MAX: usize = 8;
/// After so long at the whole rate nothing of before is remembered.
const FORGOTTEN_MS: i64 = 3_600_000;

/// From an instant on, this share of the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateStep {
    pub since: Millis,
    pub share: Ppm,
}

/// A pool's rate over time: the whole, unless a step says otherwise. The way
/// back is laid down with the fall, so that nothing has to run for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rate {
    /// Ascending.
    steps: Vec<RateStep>,
}

impl Rate {
    pub fn share(&self, at: Millis) -> Ppm {
        self.steps.iter().rev().find(|step| step.since <= at).map_or(Ppm::ONE, |step| step.share)
    }

    /// A figure at the rate of an instant. What is more than nothing stays so.
    pub fn scaled(&self, figure: u64, at: Millis) -> u64 {
        scaled(figure, self.share(at))
    }

    /// Whether the rate is, or was of late, another one than the whole.
    pub fn matters(&self, now: Millis) -> bool {
        self.steps.last().is_some_and(|last| now < last.since.plus_ms(FORGOTTEN_MS))
    }

    /// Lower from `now` on; it rises again from `rises_after` on.
    pub fn lowered(&self, now: Millis, rises_after: Millis) -> Self {
        let share = LEAST.max(Ppm(LOWERED.of_rounded_down(self.share(now).0.into()) as u32));
        self.from(now, share, rises_after)
    }

    /// As it is now until `rises_after`, where it would have risen.
    pub fn held(&self, now: Millis, rises_after: Millis) -> Self {
        match self.share(now) {
            Ppm::ONE => self.clone(),
            share => self.from(now, share, rises_after),
        }
    }

    fn from(&self, now: Millis, share: Ppm, rises_after: Millis) -> Self {
        let past = self.steps.iter().filter(|step| step.since < now && self.matters(now));
        let mut steps: Vec<RateStep> = past.copied().collect();
        steps.drain(..steps.len().saturating_sub(PAST_MAX));
        steps.push(RateStep { since: now, share });
        let mut next = RateStep { since: rises_after.max(now), share };
        while next.share < Ppm::ONE {
            let share = Ppm((next.share.0 + RISES_BY).min(Ppm::ONE.0));
            next = RateStep { since: next.since.plus_ms(RISES_EVERY_MS), share };
            steps.push(next);
        }
        Self { steps }
    }

    /// The figures that a bucket of the pool has over time: `whole` are those
    /// at the whole rate (ascending, at least one).
    pub fn figures(&self, whole: &[FigureStep]) -> Vec<FigureStep> {
        let Some(first) = whole.first() else { return Vec::new() };
        let mut instants: Vec<Millis> = whole.iter().map(|step| step.since).collect();
        instants.extend(self.steps.iter().map(|step| step.since).filter(|since| *since > first.since));
        instants.sort_unstable();
        instants.dedup();
        let mut figures: Vec<FigureStep> = Vec::with_capacity(instants.len());
        for since in instants {
            let Some(step) = whole.iter().rev().find(|step| step.since <= since) else { continue };
            let share = self.share(since);
            let (most, refill) = (scaled(step.most, share), scaled(step.refill, share));
            if figures.last().is_none_or(|last| (last.most, last.refill) != (most, refill)) {
                figures.push(FigureStep { most, refill, since });
            }
        }
        figures
    }
}

fn scaled(figure: u64, share: Ppm) -> u64 {
    share.of_rounded_down(figure).max(u64::from(figure > 0))
}
