//! The figures that a plan's limits had, version by version.
//!
//! A cell is brought to now when somebody calls. If its plan changed since the
//! last call, a bucket refilled by each version for as long as that one held,
//! and a window ended by the rule that held then.

use std::collections::HashMap;
use std::sync::Arc;

use super::plans::PlanVersion;
use crate::domain::charge::{CellId, FigureStep};
use crate::domain::plan::{Limit, Rule};
use crate::domain::time::{Anchor, Millis, Zone};

/// Steps kept of one cell: a plan that changes more often between two calls of
/// a user loses the oldest.
const STEPS_MAX: usize = 32;

/// What held before the newest version of a plan that all users are on.
#[derive(Debug, Default, Clone)]
pub struct History {
    figures: HashMap<CellId, Arc<[FigureStep]>>,
    windows: HashMap<CellId, Vec<(Millis, WindowRule)>>,
}

/// What a sheet says of a calendar window's borders.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WindowRule {
    pub zone: Option<Arc<Zone>>,
    pub anchor: Anchor,
}

/// What a [`FigureStep`] keeps of a rule; `None` for rules that know no past.
pub(super) fn numbers(rule: &Rule) -> Option<(u64, u64)> {
    match rule {
        Rule::Bucket { capacity, refill_per_minute, .. } => Some((*capacity, *refill_per_minute)),
        Rule::Window { limit, .. } => Some((*limit, 0)),
        Rule::Slots { .. } | Rule::Rolling { .. } => None,
    }
}

impl WindowRule {
    /// `None` for limits that are no calendar window.
    pub fn of(limit: &Limit) -> Option<Self> {
        match &limit.rule {
            Rule::Window { zone, anchor, period, .. } if period.is_calendar() => {
                Some(Self { zone: zone.clone(), anchor: *anchor })
            }
            _ => None,
        }
    }
}

impl History {
    /// `versions` ascend. A cell that a version leaves out goes on as it was,
    /// so that version adds no step.
    pub(super) fn of(versions: &[Arc<PlanVersion>]) -> Self {
        let mut steps: HashMap<CellId, Vec<FigureStep>> = HashMap::new();
        let mut windows: HashMap<CellId, Vec<(Millis, WindowRule)>> = HashMap::new();
        let mut rules: HashMap<CellId, WindowRule> = HashMap::new();
        for (index, version) in versions.iter().enumerate() {
            let since = version.takes_hold_at();
            for (limit, cell) in version.sheet.limits.iter().zip(&version.cells) {
                if let Some((most, refill)) = numbers(&limit.rule).filter(|_| index + 1 < versions.len()) {
                    steps.entry(*cell).or_default().push(FigureStep { most, refill, since });
                }
                let Some(rule) = WindowRule::of(limit) else { continue };
                if let Some(before) = rules.insert(*cell, rule.clone()).filter(|before| *before != rule) {
                    windows.entry(*cell).or_default().push((since, before));
                }
            }
        }
        let newest = |steps: Vec<FigureStep>| steps[steps.len().saturating_sub(STEPS_MAX)..].into();
        Self { figures: steps.into_iter().map(|(cell, steps)| (cell, newest(steps))).collect(), windows }
    }

    /// The figures of a bucket or window before the newest version, oldest first.
    pub(super) fn figures(&self, cell: CellId) -> Option<&Arc<[FigureStep]>> {
        self.figures.get(&cell)
    }

    /// The rules of a window that held until the instants beside them.
    pub(super) fn windows(&self, cell: CellId) -> &[(Millis, WindowRule)] {
        self.windows.get(&cell).map_or(&[], Vec::as_slice)
    }
}
