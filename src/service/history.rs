//! The figures that a plan's buckets and windows ran with, version by version.
//!
//! A cell is brought to now when somebody calls. If its plan changed more than
//! once since the last call, a bucket refilled by each version for as long as
//! that one held, and a window ended under the limit of its last instant.

use std::collections::HashMap;
use std::sync::Arc;

use super::catalog::Plan;
use crate::domain::charge::{CellId, FigureStep};
use crate::domain::plan::{Rule, Scope};

/// Steps kept of one limit: a plan that changes more often between two calls
/// of a user loses the oldest.
const STEPS_MAX: usize = 32;

/// What held before a version of a plan.
#[derive(Debug, Default, Clone)]
pub struct History(HashMap<CellId, Arc<[FigureStep]>>);

impl History {
    /// The history of the version after `plan`. A limit that a version leaves
    /// out goes on by its last figures, so that version adds no step.
    pub(super) fn after(plan: &Plan) -> Self {
        let mut history = plan.history.0.clone();
        for (limit, cell) in plan.sheet.limits.iter().zip(&plan.cells) {
            let (most, refill) = match limit.rule {
                Rule::Bucket { capacity, refill_per_minute, .. } => (capacity, refill_per_minute),
                Rule::Window { limit, .. } => (limit, 0),
                Rule::Slots { .. } | Rule::Rolling { .. } => continue,
            };
            if limit.scope != Scope::User {
                continue;
            }
            let step = FigureStep { most, refill, since: plan.effective_at };
            let before = history.get(cell).map_or(&[][..], |steps| &**steps);
            let kept = &before[before.len().saturating_sub(STEPS_MAX - 1)..];
            let steps = kept.iter().copied().chain([step]).collect();
            history.insert(*cell, steps);
        }
        Self(history)
    }

    /// The steps of a limit, oldest first; `None` when there are none.
    pub(super) fn steps(&self, cell: CellId) -> Option<&Arc<[FigureStep]>> {
        self.0.get(&cell)
    }
}
