//! The figures that a plan's buckets ran with, version by version.
//!
//! A bucket is brought to now when somebody calls. If its plan changed more
//! than once since the last call, it refilled by each version for as long as
//! that one held.

use std::collections::HashMap;
use std::sync::Arc;

use super::catalog::Plan;
use crate::domain::charge::{CellId, FigureStep};
use crate::domain::plan::{Rule, Scope};

/// Steps kept of one bucket: a plan that changes more often between two calls
/// of a user loses the oldest.
const STEPS_MAX: usize = 32;

/// What held before a version of a plan.
#[derive(Debug, Default, Clone)]
pub struct History(HashMap<CellId, Arc<[FigureStep]>>);

impl History {
    /// The history of the version after `plan`. A bucket that a version leaves
    /// out goes on at its last rate, so that version adds no step.
    pub(super) fn after(plan: &Plan) -> Self {
        let mut history = plan.history.0.clone();
        for (limit, cell) in plan.sheet.limits.iter().zip(&plan.cells) {
            let Rule::Bucket { capacity, refill_per_minute, .. } = limit.rule else { continue };
            if limit.scope != Scope::User {
                continue;
            }
            let step = FigureStep { capacity, refill: refill_per_minute, since: plan.effective_at };
            let before = history.get(cell).map_or(&[][..], |steps| &**steps);
            let kept = &before[before.len().saturating_sub(STEPS_MAX - 1)..];
            let steps = kept.iter().copied().chain([step]).collect();
            history.insert(*cell, steps);
        }
        Self(history)
    }

    /// The steps of a bucket, oldest first; `None` when there are none.
    pub(super) fn steps(&self, cell: CellId) -> Option<&Arc<[FigureStep]>> {
        self.0.get(&cell)
    }
}
