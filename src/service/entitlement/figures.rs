//! The figures of a limit now, and those that a cell which nobody called for a
//! while must be brought through: earlier versions, moves, overrides that
//! began and ended, zones that changed.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use super::calendar::Calendar;
use super::history::{WindowRule, numbers};
use super::terms::{REMEMBERED_MS, Terms};
use crate::domain::charge::{CellId, Earlier, FigureStep, Figures, Span, SpanStep};
use crate::domain::plan::{Limit, Rule};
use crate::domain::time::{Anchor, Millis, Period, Zone};
use crate::service::calls::charging::{Source, Subject};

type Instants = SmallVec<[Millis; 8]>;

impl<'a> Subject<'a> {
    /// A limit's figures now, with those of before as far as its cell may not
    /// have seen them.
    pub(in crate::service) fn figures(
        &self,
        source: &Source<'_, 'a>,
        limit: &Limit,
        cell: CellId,
    ) -> (Figures, Option<Earlier>) {
        let rule = self.with_override(source, limit, self.now);
        match &*rule {
            Rule::Bucket { capacity, refill_per_minute, .. } => {
                let (since, earlier) = self.steps(source, limit, cell);
                (Figures::Bucket { capacity: *capacity, refill: *refill_per_minute, since }, earlier)
            }
            Rule::Window { limit: most, period, anchor, .. } => {
                let span = self.span(source, limit, *period, *anchor);
                let spans = self.earlier_spans(source, limit, cell, *period);
                // What a window may have been over by matters to grants alone.
                let has_grants =
                    source.holder.is_some_and(|holder| holder.grants_on(&limit.name, self.now).is_some());
                let (since, mut earlier) = match has_grants && source.own.is_some() {
                    true => self.steps(source, limit, cell),
                    false => (Millis(0), None),
                };
                if !spans.is_empty() {
                    earlier.get_or_insert_with(|| without_spans(Arc::default(), Millis(0))).spans = spans;
                }
                (Figures::Window { limit: *most, since, span }, earlier)
            }
            Rule::Slots { limit } => (Figures::Slots { limit: *limit }, None),
            Rule::Rolling { limit, .. } => {
                let window_ms = rule.rolling_ms().unwrap_or(0);
                (Figures::Rolling { limit: *limit, window_ms }, None)
            }
        }
    }

    /// From when a limit's figures hold, and the steps before that with the
    /// instant from which they are the holder's.
    fn steps(&self, source: &Source<'_, 'a>, limit: &Limit, cell: CellId) -> (Millis, Option<Earlier>) {
        // A shared cell runs with another caller's figures until now.
        let (Some(terms), Some(holder)) = (source.own, source.holder) else { return (self.now, None) };
        let entry = holder.rights.overrides.get(&limit.name);
        let present = terms.in_force();
        let came = holder.arrival.seen_at(self.now).came.at;
        if terms.is_plain() && entry.is_none() {
            let steps = present.plan.history().figures(cell);
            return (present.since, steps.map(|steps| without_spans(Arc::clone(steps), came)));
        }
        let mut instants: Instants = terms.regimes().iter().map(|regime| regime.since).collect();
        if terms.is_plain()
            && let Some(steps) = present.plan.history().figures(cell)
        {
            instants.extend(steps.iter().map(|step| step.since.max(came)));
        }
        if let Some(entry) = entry {
            instants.extend([Some(entry.set_at), entry.expires_at].into_iter().flatten());
        }
        let mut steps: Vec<FigureStep> = Vec::new();
        for since in self.until_now(instants) {
            let Some(rule) = self.rule_at(source, terms, cell, since) else { continue };
            let Some((most, refill)) = numbers(&rule) else { continue };
            if steps.last().is_none_or(|last| (last.most, last.refill) != (most, refill)) {
                steps.push(FigureStep { most, refill, since });
            }
        }
        match steps.pop() {
            Some(last) => {
                (last.since, (!steps.is_empty()).then(|| without_spans(steps.into(), Millis(i64::MIN))))
            }
            None => (present.since, None),
        }
    }

    /// The changes of a bucket's figures that are known to come.
    pub(in crate::service) fn steps_to_come(
        &self,
        source: &Source<'_, 'a>,
        limit: &Limit,
        cell: CellId,
    ) -> Option<Arc<[FigureStep]>> {
        let (terms, holder) = (source.own?, source.holder?);
        let end = holder.rights.overrides.get(&limit.name).and_then(|entry| entry.expires_at);
        let end = end.filter(|end| *end > self.now);
        if (terms.to_come.is_empty() && end.is_none()) || !matches!(limit.rule, Rule::Bucket { .. }) {
            return None;
        }
        let mut instants: Instants = terms.to_come.iter().map(|regime| regime.since).chain(end).collect();
        instants.sort_unstable();
        let step = |since: &Millis| {
            let version = terms.will_be(*since).version;
            let rule = version.limit_of(cell).map(|held| self.with_override(source, held, *since))?;
            numbers(&rule).map(|(most, refill)| FigureStep { most, refill, since: *since })
        };
        Some(instants.iter().filter_map(step).collect())
    }

    /// A limit's rule with the numbers that stand in place of its own at `at`.
    fn with_override<'l>(&self, source: &Source<'_, 'a>, held: &'l Limit, at: Millis) -> Cow<'l, Rule> {
        match source.holder.and_then(|holder| holder.overridden(&held.name, at, self.now)) {
            Some(numbers) => Cow::Owned(held.rule.overridden(numbers)),
            None => Cow::Borrowed(&held.rule),
        }
    }

    /// A limit's rule as it stood at an instant; `None` where the plan of then
    /// did not have it.
    fn rule_at(
        &self,
        source: &Source<'_, 'a>,
        terms: &Terms<'a>,
        cell: CellId,
        at: Millis,
    ) -> Option<Cow<'a, Rule>> {
        let held = match terms.is_plain() {
            true => terms.in_force().plan.version_at(at, self.now).limit_of(cell)?,
            false => terms.at(at).version.limit_of(cell)?,
        };
        Some(self.with_override(source, held, at))
    }

    /// Ascending, each once, none to come.
    fn until_now(&self, mut instants: Instants) -> Instants {
        instants.retain(|at| *at <= self.now);
        instants.sort_unstable();
        instants.dedup();
        instants
    }

    fn span(&self, source: &Source<'_, 'a>, limit: &Limit, period: Period, anchor: Anchor) -> Span {
        if let Some(len) = period.fixed_len_ms() {
            return match period {
                Period::SessionHours(_) => Span::Session { len },
                _ => Span::Tiles { len },
            };
        }
        if period == Period::Lifetime {
            return Span::Lifetime;
        }
        self.calendar_span(source, self.window_zone(source, limit), period, anchor, self.now)
    }

    fn calendar_span(
        &self,
        source: &Source<'_, 'a>,
        zone: &Arc<Zone>,
        period: Period,
        anchor: Anchor,
        at: Millis,
    ) -> Span {
        let anchor_day = match anchor {
            Anchor::Calendar => 1,
            Anchor::User => source.holder.map_or(1, |holder| holder.anchor_day),
        };
        let borders = Calendar.borders(zone, period, anchor_day, at);
        Span::Calendar {
            start: borders.start,
            end: borders.end,
            next_end: borders.next_end,
            min_len: period.min_len_ms(),
        }
    }

    /// The rules of a calendar window that ended not long ago: a change of the
    /// tenant's zone, or of the limit's own zone or anchor. (Those of a user or
    /// an org are in the cell already: see `touching`.)
    fn earlier_spans(
        &self,
        source: &Source<'_, 'a>,
        limit: &Limit,
        cell: CellId,
        period: Period,
    ) -> Box<[SpanStep]> {
        let own_changes = source.own.map_or(&[][..], |terms| terms.in_force().plan.history().windows(cell));
        let is_plain = source.own.is_none_or(Terms::is_plain);
        if !period.is_calendar() || (self.catalog.zones.is_empty() && own_changes.is_empty() && is_plain) {
            return Box::default();
        }
        let mut instants: Instants = self.catalog.zones.iter().map(|(until, _)| *until).collect();
        instants.extend(own_changes.iter().map(|(until, _)| *until));
        if let Some(terms) = source.own.filter(|terms| !terms.is_plain()) {
            instants.extend(terms.regimes().iter().map(|regime| regime.since));
        }
        let oldest = self.now.plus_ms(-REMEMBERED_MS);
        let mut steps = Vec::new();
        for at in self.until_now(instants).into_iter().filter(|at| *at > oldest) {
            let before = self.borders_rule(source, limit, cell, Millis(at.0 - 1));
            if before != self.borders_rule(source, limit, cell, at) {
                let last = if self.was_written(source, at) { at } else { Millis(at.0 - 1) };
                let span = self.calendar_span(source, before.0, period, before.1, last);
                steps.push(SpanStep { at: last, span });
            }
        }
        steps.into()
    }

    /// Whether what holds from an instant was written then, and not before: a
    /// window that begins at that very instant had begun when it came.
    fn was_written(&self, source: &Source<'_, 'a>, at: Millis) -> bool {
        let version = source.own.map(|terms| match terms.is_plain() {
            true => terms.in_force().plan.version_at(at, self.now),
            false => terms.at(at).version,
        });
        self.catalog.zones.iter().any(|(until, _)| *until == at)
            || version.is_some_and(|version| version.written_at == at)
    }

    /// By which zone and anchor a calendar window ran at an instant.
    fn borders_rule<'l>(
        &'l self,
        source: &'l Source<'_, 'a>,
        limit: &'l Limit,
        cell: CellId,
        at: Millis,
    ) -> (&'l Arc<Zone>, Anchor) {
        let held = match source.own {
            Some(terms) if terms.is_plain() => terms.in_force().plan.version_at(at, self.now).limit_of(cell),
            Some(terms) => terms.at(at).version.limit_of(cell),
            None => None,
        };
        let (own, anchor) = match &held.unwrap_or(limit).rule {
            Rule::Window { zone, anchor, .. } => (zone.as_ref(), *anchor),
            _ => (None, Anchor::Calendar),
        };
        let holders = source.holder.and_then(|holder| holder.zone);
        (own.or(holders).unwrap_or_else(|| self.catalog.zone_at(at, self.now)), anchor)
    }

    /// The limit's own zone, else the user's or org's, else the tenant's.
    fn window_zone<'l>(&self, source: &Source<'_, 'a>, limit: &'l Limit) -> &'l Arc<Zone>
    where
        'a: 'l,
    {
        let own = match &limit.rule {
            Rule::Window { zone, .. } => zone.as_ref(),
            _ => None,
        };
        own.or(source.holder.and_then(|holder| holder.zone)).unwrap_or(&self.catalog.settings.zone)
    }

    /// The zone of a calendar window; `None` for other limits.
    pub(in crate::service) fn zone_of(
        &self,
        source: &Source<'_, 'a>,
        limit: &'a Limit,
    ) -> Option<&'a Arc<Zone>> {
        WindowRule::of(limit).map(|_| self.window_zone(source, limit))
    }
}

pub(in crate::service) fn without_spans(steps: Arc<[FigureStep]>, from: Millis) -> Earlier {
    Earlier { steps, from, spans: Box::default() }
}
