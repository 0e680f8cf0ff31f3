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

/// What held before the newest version of a plan that all users are on, or of
/// a pool.
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
        let mut history = Self::default();
        let mut rules: HashMap<CellId, WindowRule> = HashMap::new();
        for (index, version) in versions.iter().enumerate() {
            let since = version.takes_hold_at(version.written_at);
            let limits = version.sheet.limits.iter().zip(&version.cells);
            if index + 1 < versions.len() {
                history.add(since, limits.clone());
            }
            for (limit, cell) in limits {
                let Some(rule) = WindowRule::of(limit) else { continue };
                if let Some(before) = rules.insert(*cell, rule.clone()).filter(|before| *before != rule) {
                    history.windows.entry(*cell).or_default().push((since, before));
                }
            }
        }
        history
    }

    /// Adds the figures of a version that another one took the place of.
    pub(in crate::service) fn add<'l>(
        &mut self,
        since: Millis,
        limits: impl Iterator<Item = (&'l Limit, &'l CellId)>,
    ) {
        for (limit, cell) in limits {
            let Some((most, refill)) = numbers(&limit.rule) else { continue };
            let steps = self.figures.entry(*cell).or_default();
            if steps.last().is_some_and(|last| (last.most, last.refill) == (most, refill)) {
                continue;
            }
            let newest = &steps[(steps.len() + 1).saturating_sub(STEPS_MAX)..];
            *steps = newest.iter().copied().chain([FigureStep { most, refill, since }]).collect();
        }
    }

    /// The figures of a bucket or window before the newest version, oldest first.
    pub(in crate::service) fn figures(&self, cell: CellId) -> Option<&Arc<[FigureStep]>> {
        self.figures.get(&cell)
    }

    /// The rules of a window that held until the instants beside them.
    pub(super) fn windows(&self, cell: CellId) -> &[(Millis, WindowRule)] {
        self.windows.get(&cell).map_or(&[], Vec::as_slice)
    }
}
