//! A plan with its versions: which of them holds for whom, and when.
//!
//! Every version is kept. Most replace the one before at once and for
//! everybody; one may wait until each user's running month ends, or be for
//! users to come alone, so two users of a plan may be on different versions.

use std::sync::Arc;

use smallvec::SmallVec;

use super::history::History;
use crate::domain::charge::CellId;
use crate::domain::document::Reader;
use crate::domain::ids::Name;
use crate::domain::plan::{Filter, Limit, Models, Scope, Sheet};
use crate::domain::time::Millis;
use crate::ledger::Record;
use crate::service::tenancy::settings::word;

/// Versions kept at hand besides those that somebody may still be on: the
/// figures that a bucket last ran with are among them.
const PAST_MAX: usize = 32;
/// No window of a month, however it was changed under way, is longer.
const LONGEST_MONTH_MS: i64 = 62 * 24 * 3_600_000;

/// A plan and its versions.
#[derive(Debug)]
pub struct Plan {
    pub id: Name,
    /// Ascending, at least one.
    versions: Vec<Arc<PlanVersion>>,
    /// From then on the newest version holds for everyone.
    settled_from: Millis,
    /// The limits whose running month says when a version takes hold; none
    /// where no version waits for months.
    months: SmallVec<[(Scope, CellId); 2]>,
    /// What the buckets ran with before the newest version, where it holds for
    /// everyone.
    history: History,
}

/// One version of a plan's sheet.
#[derive(Debug)]
pub struct PlanVersion {
    pub sheet: Sheet,
    pub version: u32,
    /// On the tenant's clock. A test clock may have been set back since.
    pub written_at: Millis,
    /// Orders versions and users that came at the same instant.
    revision: u64,
    pub terms: VersionTerms,
    /// The cell of each of the sheet's limits, in the sheet's order.
    pub cells: Vec<CellId>,
    /// The filter of each limit with aliases resolved, in the sheet's order.
    pub filters: Vec<Filter>,
}

/// For whom a version holds, and from when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionTerms {
    pub applies: Applies,
    pub to: Audience,
}

/// When a version takes hold of users who were there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applies {
    Now,
    At(Millis),
    /// When the running month of each of them ends.
    NextWindow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    Everyone,
    /// Users who come on record later than the version.
    NewUsers,
}

const AUDIENCES: [(&str, Audience); 2] =
    [("everyone", Audience::Everyone), ("new_users", Audience::NewUsers)];

/// An instant, with what orders events within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::service) struct Moment {
    pub at: Millis,
    pub revision: u64,
}

impl Moment {
    /// As it looks at `now`. What is on record has happened: what is later than
    /// `now` was written before a test clock was set back, and so before all
    /// that was written since.
    fn seen_at(self, now: Millis) -> Self {
        // Whoever is not on record comes after all who are.
        match self.at > now && self.revision != u64::MAX {
            true => Self { at: Millis(i64::MIN), ..self },
            false => self,
        }
    }
}

/// When somebody came on record, and to the plan.
#[derive(Debug, Clone, Copy)]
pub(in crate::service) struct Arrival {
    pub born: Moment,
    pub came: Moment,
}

impl Arrival {
    /// See [`Moment::seen_at`].
    pub fn seen_at(self, now: Millis) -> Self {
        Self { born: self.born.seen_at(now), came: self.came.seen_at(now) }
    }
}

impl VersionTerms {
    /// At once, for everyone.
    pub const PLAIN: Self = Self { applies: Applies::Now, to: Audience::Everyone };

    /// Writes the words of the API, which the stored record has too.
    pub(in crate::service) fn describe(self, body: &mut serde_json::Value) {
        body["applies"] = match self.applies {
            Applies::Now => "now".into(),
            Applies::At(at) => at.to_string().into(),
            Applies::NextWindow => "next_window".into(),
        };
        body["to"] = word(&AUDIENCES, self.to).into();
    }
}

impl Applies {
    /// Reads `now`, `next_window` or an instant; `None` when not given.
    pub(in crate::service) fn read(fields: &mut Reader<'_, '_>, name: &str) -> Option<Self> {
        fields.optional(name).parsed(|text| match text {
            "now" => Ok(Self::Now),
            "next_window" => Ok(Self::NextWindow),
            time => Millis::parse(time)
                .map(Self::At)
                .map_err(|_| "must be \"now\", \"next_window\" or a time such as 2026-12-01T00:00:00Z"),
        })
    }
}

/// Reads `to`; everyone when not given.
pub(in crate::service) fn read_audience(fields: &mut Reader<'_, '_>) -> Audience {
    fields.optional("to").choice(&AUDIENCES).unwrap_or(Audience::Everyone)
}

impl PlanVersion {
    /// `models` resolve the aliases in filters.
    pub(in crate::service) fn new(sheet: Sheet, record: VersionRecord, models: &Models) -> Self {
        let cells = sheet.limits.iter().map(Limit::cell).collect();
        let filters = sheet.limits.iter().map(|limit| limit.filter.resolved(models)).collect();
        let VersionRecord { version, written_at, revision, terms } = record;
        Self { sheet, version, written_at, revision, terms, cells, filters }
    }

    /// The plan's id with the version.
    pub fn named(&self) -> (Name, u32) {
        (self.sheet.id.clone(), self.version)
    }

    /// The same version by another list of models.
    pub(in crate::service) fn with_models(&self, models: &Models) -> Self {
        let Self { version, written_at, revision, terms, .. } = *self;
        Self::new(self.sheet.clone(), VersionRecord { version, written_at, revision, terms }, models)
    }

    /// The limit that fills `cell`, if this version has it.
    pub(super) fn limit_of(&self, cell: CellId) -> Option<&Limit> {
        self.cells.iter().position(|known| *known == cell).map(|place| &self.sheet.limits[place])
    }

    fn is_plain(&self) -> bool {
        self.terms.to == Audience::Everyone && self.terms.applies != Applies::NextWindow
    }

    /// When it takes hold of those who come new, seen from `now`.
    pub(in crate::service) fn takes_hold_at(&self, now: Millis) -> Millis {
        let written = self.written(now).at;
        match self.terms.applies {
            Applies::At(at) => at.max(written),
            Applies::Now | Applies::NextWindow => written,
        }
    }

    fn written(&self, now: Millis) -> Moment {
        Moment { at: self.written_at, revision: self.revision }.seen_at(now)
    }
}

/// What a record tells of a version besides its sheet.
#[derive(Debug, Clone, Copy)]
pub(in crate::service) struct VersionRecord {
    pub version: u32,
    pub written_at: Millis,
    pub revision: u64,
    pub terms: VersionTerms,
}

impl VersionRecord {
    pub fn of(record: &Record, terms: VersionTerms) -> Self {
        Self { version: record.version, written_at: record.written.at, revision: record.revision, terms }
    }
}

impl Plan {
    /// `versions` ascend; there is at least one.
    pub(in crate::service) fn new(id: Name, mut versions: Vec<Arc<PlanVersion>>) -> Self {
        let needed = versions.iter().rposition(|version| version.terms.to == Audience::Everyone);
        let spare = needed.unwrap_or(0).saturating_sub(PAST_MAX);
        versions.drain(..spare);
        let history = History::of(&versions);
        let settled_from = settled_from(&versions);
        let months = months_of(&versions);
        Self { id, versions, settled_from, months, history }
    }

    /// The version last written, whomever it holds for.
    pub fn newest(&self) -> &Arc<PlanVersion> {
        &self.versions[self.versions.len() - 1]
    }

    pub(in crate::service) fn versions(&self) -> &[Arc<PlanVersion>] {
        &self.versions
    }

    /// The version that holds at `now` for whoever comes then.
    pub fn current(&self, now: Millis) -> &Arc<PlanVersion> {
        // What was written has been written, also where a test clock was set
        // back behind it.
        let holds = |version: &&Arc<PlanVersion>| match version.terms.applies {
            Applies::At(at) => at <= now,
            Applies::Now | Applies::NextWindow => true,
        };
        self.versions.iter().rev().find(holds).unwrap_or(&self.versions[0])
    }

    /// The versions that hold at `now` for somebody, or would if there were
    /// anybody, newest first: those who were there before one that waits, or is
    /// for new users alone, are on one before it.
    pub(in crate::service) fn held_at(&self, now: Millis) -> SmallVec<[&Arc<PlanVersion>; 2]> {
        let mut held = SmallVec::new();
        // What was still to come when another was written for everyone never comes.
        let mut last = now;
        for version in self.versions.iter().rev() {
            if matches!(version.terms.applies, Applies::At(at) if at > last) {
                continue;
            }
            held.push(version);
            if version.terms.to == Audience::Everyone {
                let waits_until = version.written_at.plus_ms(LONGEST_MONTH_MS);
                if version.terms.applies != Applies::NextWindow || waits_until <= now {
                    break;
                }
                last = last.min(version.written_at);
            }
        }
        held
    }

    /// The versions that hold for somebody at `now`, and those to come.
    pub(super) fn live_at(&self, now: Millis) -> impl Iterator<Item = &Arc<PlanVersion>> {
        let oldest = self.held_at(now).last().map_or(0, |version| version.version);
        self.versions.iter().filter(move |version| version.version >= oldest)
    }

    /// The version that held at an instant for those who have been there all
    /// the time, where every version is for everyone; seen from `now`.
    pub(super) fn version_at(&self, at: Millis, now: Millis) -> &Arc<PlanVersion> {
        let held = self.versions.iter().rev().find(|version| version.takes_hold_at(now) <= at);
        held.unwrap_or(&self.versions[0])
    }

    /// Whether the newest version holds for everyone.
    pub(super) fn is_settled(&self, now: Millis) -> bool {
        self.settled_from <= now
    }

    /// Whether a version waits, or waited not long ago, for the months of those
    /// who came at `arrival`, as that looks at `now`.
    pub(super) fn waits_for(&self, arrival: Arrival, now: Millis) -> bool {
        let came = arrival.came.max(arrival.born);
        let waits = |version: &Arc<PlanVersion>| {
            version.terms.applies == Applies::NextWindow
                && now < version.written_at.plus_ms(LONGEST_MONTH_MS)
                && came < version.written(now)
        };
        !self.is_settled(now) && self.versions.iter().any(waits)
    }

    /// The limits whose running month may say when that is.
    pub(super) fn months(&self, scope: Scope) -> impl Iterator<Item = CellId> {
        self.months.iter().filter(move |(of, _)| *of == scope).map(|(_, cell)| *cell)
    }

    pub(in crate::service) fn history(&self) -> &History {
        &self.history
    }

    /// The versions that hold for somebody, with when each takes hold,
    /// ascending; `arrival` as it looks at `now`. `month_end` tells when their
    /// running month ends, by the sheet that holds, seen from an instant.
    pub(super) fn timeline(
        &self,
        arrival: Arrival,
        now: Millis,
        month_end: impl Fn(&Sheet, Millis) -> Millis,
    ) -> SmallVec<[(Millis, &Arc<PlanVersion>); 4]> {
        let mut steps: SmallVec<[(Millis, &Arc<PlanVersion>); 4]> = SmallVec::new();
        for version in &self.versions {
            let written = version.written(now);
            if !steps.is_empty() && version.terms.to == Audience::NewUsers && arrival.born < written {
                continue;
            }
            // What still waits when a newer version is written never comes.
            while steps.len() > 1 && steps.last().is_some_and(|(since, _)| *since > written.at) {
                steps.pop();
            }
            let Some((_, before)) = steps.last().copied() else {
                steps.push((Millis(i64::MIN), version));
                continue;
            };
            let from = match version.terms.applies {
                Applies::Now => written.at,
                Applies::At(at) => at.max(written.at),
                // Who is not on record comes with the next call.
                Applies::NextWindow if arrival.came.max(arrival.born) >= written => written.at,
                Applies::NextWindow => month_end(&before.sheet, version.written_at),
            };
            steps.push((from, version));
        }
        steps
    }
}

/// See [`Plan::months`].
fn months_of(versions: &[Arc<PlanVersion>]) -> SmallVec<[(Scope, CellId); 2]> {
    let mut months = SmallVec::new();
    if versions.iter().any(|version| version.terms.applies == Applies::NextWindow) {
        let scopes = || [Scope::User, Scope::Org].into_iter();
        for (version, scope) in versions.iter().flat_map(|version| scopes().map(move |s| (version, s))) {
            let month = version.sheet.month_limit(scope).map(|limit| (scope, limit.cell()));
            months.extend(month.filter(|month| !months.contains(month)));
        }
    }
    months
}

/// See [`Plan::settled_from`].
fn settled_from(versions: &[Arc<PlanVersion>]) -> Millis {
    let Some((newest, _)) = versions.split_last() else { return Millis(i64::MIN) };
    if newest.terms.to == Audience::NewUsers {
        return Millis::MAX;
    }
    if versions.len() == 1 {
        return Millis(i64::MIN);
    }
    let from = |version: &Arc<PlanVersion>| match (version.is_plain(), version.terms.applies) {
        // After that nobody's bucket remembers the way there.
        (false, _) => version.written_at.plus_ms(LONGEST_MONTH_MS),
        (true, Applies::At(at)) => at,
        (true, _) => Millis(i64::MIN),
    };
    versions.iter().map(from).max().unwrap_or(Millis(i64::MIN))
}
