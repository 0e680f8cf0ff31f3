//! What a user, or an org with a sheet of its own, is entitled to, over time:
//! which version of which plan held from when, which holds now, which is to
//! come. Read off the record and the clock; nothing has to run for a change to
//! take hold.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::calendar::Calendar;
use super::plans::{Arrival, Plan, PlanVersion};
use crate::domain::charge::CellId;
use crate::domain::grant::Grant;
use crate::domain::ids::{Label, Name};
use crate::domain::plan::{Override, Rule, Scope, Sheet};
use crate::domain::time::{Anchor, Millis, Period, Zone};
use crate::ledger::{Month, Rights};
use crate::service::error::ServiceError;
use crate::service::tenancy::catalog::Catalog;

/// No window that ran when a rule changed longer ago still runs, nor does the
/// one after it.
pub(super) const REMEMBERED_MS: i64 = 130 * 24 * 3_600_000;

/// Grants by the name of their limit.
pub(super) type Grants = Vec<(Label, Arc<[Grant]>)>;

/// A limit by the month, and the month that its cell was last in; `None`:
/// nothing was ever taken, no month runs.
pub(super) type CellMonth = (CellId, Option<Month>);

/// A user or an org, as far as its limits go.
#[derive(Clone, Copy)]
pub(in crate::service) struct Holder<'a> {
    /// Whose limits: users' or orgs'.
    pub scope: Scope,
    /// `None`: an org without a sheet of its own.
    pub plan: Option<&'a Name>,
    pub arrival: Arrival,
    /// `None`: the tenant's.
    pub zone: Option<&'a Arc<Zone>>,
    pub anchor_day: u8,
    pub rights: &'a Rights,
    pub grants: &'a Grants,
    /// Of the limits that [`awaited`](Self::awaited) names, as the account has
    /// them. Without them months are told by the rules alone.
    pub months: &'a [CellMonth],
}

/// See the module's text.
#[derive(Clone)]
pub(in crate::service) struct Terms<'a> {
    /// Ascending; the last one holds now.
    regimes: SmallVec<[Regime<'a>; 1]>,
    /// What holds next, ascending.
    pub to_come: Vec<Regime<'a>>,
    /// One plan, whose newest version holds for everyone: its history is the
    /// holder's.
    is_plain: bool,
}

/// A version of a plan that holds from an instant on.
#[derive(Clone, Copy)]
pub(in crate::service) struct Regime<'a> {
    pub since: Millis,
    pub plan: &'a Plan,
    pub version: &'a Arc<PlanVersion>,
}

impl Regime<'_> {
    /// The plan's id with the version.
    pub fn named(&self) -> (Name, u32) {
        self.version.named()
    }
}

impl<'a> Holder<'a> {
    /// The plans that the record names.
    pub fn plans(&self) -> impl Iterator<Item = &'a Name> {
        self.plan.into_iter().chain(self.rights.schedule.iter().map(|to_come| &to_come.plan))
    }

    /// The terms of `plan` (the holder's, or the tenant's default one).
    ///
    /// # Errors
    /// `UnknownPlan`.
    pub fn terms(&self, plan: &Name, catalog: &'a Catalog, now: Millis) -> Result<Terms<'a>, ServiceError> {
        let arrival = self.arrival.seen_at(now);
        let came = arrival.came.at;
        let present = catalog.plan(plan).ok_or(ServiceError::UnknownPlan)?;
        if self.rights.schedule.is_empty() && present.is_settled(now) {
            let version = present.newest();
            let since = version.takes_hold_at(now).max(came).min(now);
            let regimes = smallvec![Regime { since, plan: present, version }];
            return Ok(Terms { regimes, to_come: Vec::new(), is_plain: true });
        }
        let mut all: SmallVec<[Regime<'a>; 4]> = SmallVec::new();
        let stays = self.rights.schedule.iter().map(|to_come| (to_come.at, &to_come.plan));
        for (start, name) in std::iter::once((came.min(now), plan)).chain(stays) {
            // A plan is never deleted; one that is missing leaves the one before.
            let Some(plan) = catalog.plan(name) else { continue };
            all.retain(|regime| regime.since < start);
            let mut arrival = arrival;
            if start > came {
                (arrival.came.at, arrival.came.revision) = (start, 0);
            }
            let month_end = |sheet: &Sheet, at: Millis| self.month_end(sheet, catalog, at, now);
            let steps = plan.timeline(arrival, now, month_end);
            let held = steps.iter().rposition(|(since, _)| *since <= start).unwrap_or(0);
            let later = steps[held..].iter();
            all.extend(later.map(|(since, version)| Regime { since: (*since).max(start), plan, version }));
        }
        let held = all.iter().take_while(|regime| regime.since <= now).count().max(1);
        let to_come = all.drain(held..).collect();
        Ok(Terms { regimes: all.into_iter().collect(), to_come, is_plain: false })
    }

    /// The limits whose month a version of the holder's plans waits for, or did
    /// not long ago.
    pub fn awaited(&self, catalog: &'a Catalog, now: Millis) -> impl Iterator<Item = CellId> {
        let (scope, arrival) = (self.scope, self.arrival.seen_at(now));
        let plans = self.plan.into_iter().chain(self.rights.schedule.iter().map(|to_come| &to_come.plan));
        let plans = plans.filter_map(|plan| catalog.plan(plan));
        plans.filter(move |plan| plan.waits_for(arrival, now)).flat_map(move |plan| plan.months(scope))
    }

    /// When the month that runs at `at` ends: that of the sheet's first limit
    /// by the month, else the calendar's.
    pub fn month_end(&self, sheet: &Sheet, catalog: &Catalog, at: Millis, now: Millis) -> Millis {
        let limit = sheet.month_limit(self.scope).map(|limit| (limit.cell(), &limit.rule));
        let Some((cell, Rule::Window { zone: own, anchor, .. })) = limit else {
            // No window runs: nothing is to be kept.
            let zone = self.zone.unwrap_or(&catalog.settings.zone);
            return Calendar.borders(zone, Period::Month, 1, at).end;
        };
        let fixed = own.as_ref().or(self.zone);
        let anchor_day = match anchor {
            Anchor::Calendar => 1,
            Anchor::User => self.anchor_day,
        };
        // The borders around `at`, by the zone of an instant.
        let borders = |by: Millis, at: Millis| {
            let zone = fixed.unwrap_or_else(|| catalog.zone_at(by, now));
            Calendar.borders(zone, Period::Month, anchor_day, at)
        };
        let changes = catalog.zones.iter().map(|(until, _)| *until).filter(|_| fixed.is_none());
        let stored = self.months.iter().find(|(known, _)| *known == cell).map(|(_, month)| *month);
        if stored == Some(None) {
            // No window runs that would be kept: the month is that of the rule of now.
            let changes = changes.filter(|change| at < *change && *change <= now);
            return changes.fold(borders(at, at).end, |end, change| match change < end {
                true => borders(change, at).end.max(change),
                false => end,
            });
        }
        let stored = stored.flatten();
        // Changes of the rule since then leave the month that ran to its end.
        let known = stored.into_iter().chain(self.rights.month).find(|month| at >= month.start);
        let since = known.map_or(at.plus_ms(-REMEMBERED_MS), |month| month.start);
        let changes = changes.map(|until| Millis(until.0 - 1)).filter(|change| (since..at).contains(change));
        let min_len = Period::Month.min_len_ms();
        let mut end = known.map(|month| month.end);
        for instant in changes.chain([at]) {
            end = Some(match end {
                Some(end) if instant < end => end,
                Some(end) => borders(instant, instant).following(end, min_len).1,
                None => borders(instant, instant).end,
            });
        }
        let end = end.unwrap_or_else(|| borders(at, at).end);
        match stored {
            // One month follows another without a gap, and none is shorter.
            Some(month) if at < month.start && month.start < end.plus_ms(min_len) => month.start,
            _ => end,
        }
    }

    /// What stands in place of a limit's numbers at `at`, seen from `now`.
    pub fn overridden(&self, limit: &Label, at: Millis, now: Millis) -> Option<&'a Override> {
        if self.rights.overrides.is_empty() {
            return None;
        }
        let entry = self.rights.overrides.get(limit)?;
        entry.holds_at(at, now).then_some(&entry.numbers)
    }

    /// When what stands in place of the plan's numbers, or beside them, next
    /// changes.
    pub fn next_end(&self, now: Millis) -> Option<Millis> {
        let overrides = self.rights.overrides.values().filter_map(|entry| entry.expires_at);
        let grants = self.rights.grants.iter().filter_map(|entry| entry.grant.expires_at);
        overrides.chain(grants).filter(|end| *end > now).min()
    }

    pub fn grants_on(&self, limit: &Label, now: Millis) -> Option<Arc<[Grant]>> {
        let (_, grants) = self.grants.iter().find(|(name, _)| name == limit)?;
        if grants.iter().all(|grant| grant.given <= now) {
            return Some(Arc::clone(grants));
        }
        // Given before a test clock was set back, and so before anything was taken.
        let seen = |grant: &Grant| match grant.given > now {
            true => Grant { given: Millis(i64::MIN), ..*grant },
            false => *grant,
        };
        Some(grants.iter().map(seen).collect())
    }
}

impl<'a> Terms<'a> {
    /// A version that holds for ever, for those whose plan is gone.
    pub fn always(plan: &'a Plan) -> Self {
        let regime = Regime { since: Millis(0), plan, version: plan.newest() };
        Self { regimes: smallvec![regime], to_come: Vec::new(), is_plain: true }
    }

    /// What holds now.
    pub fn in_force(&self) -> Regime<'a> {
        self.regimes[self.regimes.len() - 1]
    }

    pub fn version(&self) -> &'a PlanVersion {
        self.in_force().version
    }

    pub fn regimes(&self) -> &[Regime<'a>] {
        &self.regimes
    }

    pub fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// What will hold at `at`, as far as is known now.
    pub fn will_be(&self, at: Millis) -> Regime<'a> {
        let by_then = self.to_come.iter().rev().find(|regime| regime.since <= at);
        by_then.copied().unwrap_or_else(|| self.in_force())
    }

    /// What held at `at`; of the time before anything did, the first.
    pub fn at(&self, at: Millis) -> Regime<'a> {
        let before = self.regimes.iter().rev().find(|regime| regime.since <= at);
        *before.unwrap_or(&self.regimes[0])
    }
}
