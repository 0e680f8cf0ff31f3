//! What is on record, for whoever looks into it: a user's history, the audit,
//! comparisons with another limiter.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use crate::domain::hold::{FinishedBy, Hold, ReleaseReason, Stage};
use crate::domain::ids::UserId;
use crate::domain::time::Millis;
use crate::ledger::{
    AuditEntry, AuditQuery, Comparison, Duplicate, DuplicatesQuery, Edge, History, HistoryQuery, MinuteRow,
    MinutesQuery, RefusalCount, RefusedCall,
};
use crate::service::tenancy::catalog::Tenant;
use crate::service::{Service, ServiceError};

/// What happened to a user, in the order in which it is shown of one instant:
/// a hold is made before it ends, and what was changed before that came first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Changed,
    Checked,
    InDoubt,
    /// Settled or released.
    Ended,
    Refused,
}

/// The place of a row in a user's history; later rows are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub at: Millis,
    pub kind: Kind,
    /// Of the hold, the audit row or the refusal.
    pub id: u128,
}

/// A row of a user's history.
#[derive(Debug, Clone)]
pub struct Event {
    pub place: Place,
    pub what: What,
}

#[derive(Debug, Clone)]
pub enum What {
    /// The event is one of the hold's.
    Hold(Arc<Hold>),
    Changed(AuditEntry),
    Refused(RefusedCall),
}

/// What is asked of a user's history.
#[derive(Debug, Clone)]
pub struct HistoryPage {
    /// Half-open.
    pub instants: Range<Millis>,
    /// The last place of the page before.
    pub before: Option<Place>,
    pub limit: usize,
    /// Days of which refusals are counted.
    pub days: Range<i32>,
}

/// A part of a user's history, newest first.
#[derive(Debug)]
pub struct UserHistory {
    pub events: Vec<Event>,
    pub more: bool,
    /// Newest day first.
    pub refusals: Vec<RefusalCount>,
}

impl Service {
    /// A page of what is on record about a user.
    ///
    /// # Errors
    /// `NotFound`: nothing is on record.
    pub async fn user_history(
        &self,
        tenant: &Tenant,
        user: &UserId,
        page: HistoryPage,
    ) -> Result<UserHistory, ServiceError> {
        self.flush_tallies().await?;
        let (events, more) = self.events(tenant, user, &page).await?;
        let refusals = self.ledger.refusals(tenant.number, user.clone(), page.days).await?;
        let is_known = !events.is_empty()
            || !refusals.is_empty()
            || self.registry.profile(tenant, user).await?.is_known()
            || self.has_history(tenant, user).await?;
        match is_known {
            true => Ok(UserHistory { events, more, refusals }),
            false => Err(ServiceError::NotFound("user")),
        }
    }

    async fn has_history(&self, tenant: &Tenant, user: &UserId) -> Result<bool, ServiceError> {
        let all = HistoryPage { instants: Millis(0)..Millis::MAX, before: None, limit: 1, days: 0..0 };
        Ok(!self.events(tenant, user, &all).await?.0.is_empty())
    }

    /// The events of a page, and whether there are more.
    async fn events(
        &self,
        tenant: &Tenant,
        user: &UserId,
        page: &HistoryPage,
    ) -> Result<(Vec<Event>, bool), ServiceError> {
        // Exclusive: nothing has this place.
        let end = Place { at: page.instants.end, kind: Kind::Changed, id: 0 };
        let mut before = page.before.map_or(end, |before| before.min(end));
        let mut events = Vec::new();
        let wanted = page.limit + 1;
        let now = tenant.now();
        loop {
            let query = HistoryQuery {
                user: user.clone(),
                from: page.instants.start,
                now,
                made: before.edge_of(Kind::Checked),
                ended: before.edge_of(Kind::Ended),
                doubtful: before.edge_of(Kind::InDoubt),
                changed: before.edge_of(Kind::Changed),
                limit: u32::try_from(wanted).unwrap_or(u32::MAX),
            };
            let history = self.ledger.history(tenant.number, query).await?;
            let complete_from = complete_from(&history, wanted);
            let from = Place { at: page.instants.start, kind: Kind::Changed, id: 0 };
            let mut found = merge(history, from, before);
            found.retain(|event| complete_from.is_none_or(|place| event.place >= place));
            events.append(&mut found);
            if events.len() >= wanted {
                events.truncate(page.limit);
                return Ok((events, true));
            }
            match complete_from {
                Some(place) => before = place,
                None => return Ok((events, false)),
            }
        }
    }

    /// A page of a tenant's audit, newest first, and whether there is more.
    pub async fn audit(
        &self,
        tenant: &Tenant,
        query: AuditQuery,
    ) -> Result<(Vec<AuditEntry>, bool), ServiceError> {
        let limit = query.limit as usize;
        let one_more = AuditQuery { limit: query.limit.saturating_add(1), ..query };
        let mut entries = self.ledger.audit(tenant.number, one_more).await?;
        let more = entries.len() > limit;
        entries.truncate(limit);
        Ok((entries, more))
    }

    /// What features used, minute by minute.
    pub async fn features(
        &self,
        tenant: &Tenant,
        query: MinutesQuery,
    ) -> Result<Vec<MinuteRow>, ServiceError> {
        self.flush_tallies().await?;
        Ok(self.ledger.minutes(tenant.number, query).await?)
    }

    /// Values of a signal that more than one user has, and what they used together.
    pub async fn duplicates(
        &self,
        tenant: &Tenant,
        query: DuplicatesQuery,
    ) -> Result<Vec<Duplicate>, ServiceError> {
        Ok(self.ledger.duplicates(tenant.number, query).await?)
    }

    /// Our decisions beside another limiter's, by day.
    pub async fn decisions(
        &self,
        tenant: &Tenant,
        days: Range<i32>,
    ) -> Result<Vec<Comparison>, ServiceError> {
        self.flush_tallies().await?;
        Ok(self.ledger.comparisons(tenant.number, days).await?)
    }
}

impl Place {
    /// Where this place stands among the events of one kind.
    fn edge_of(self, kind: Kind) -> Edge {
        let id = match kind.cmp(&self.kind) {
            Ordering::Less => u128::MAX,
            Ordering::Equal => self.id,
            Ordering::Greater => 0,
        };
        Edge { at: self.at, id }
    }

    /// Ids begin with the instant at which the hold was made.
    fn of_made(hold: &Hold) -> Self {
        Self { at: Millis((hold.id.0 >> 80) as i64), kind: Kind::Checked, id: hold.id.0 }
    }

    fn of_end(hold: &Hold) -> Option<Self> {
        Some(Self { at: hold.finished_at()?, kind: Kind::Ended, id: hold.id.0 })
    }

    fn of_doubt(hold: &Hold) -> Option<Self> {
        Some(Self { at: hold.doubtful_from()?, kind: Kind::InDoubt, id: hold.id.0 })
    }

    fn of_change(entry: &AuditEntry) -> Self {
        Self { at: entry.written.at, kind: Kind::Changed, id: entry.number.into() }
    }
}

/// The place from which on nothing is missing: a source that gave as much as
/// it was asked for has more behind its last row.
fn complete_from(history: &History, limit: usize) -> Option<Place> {
    fn last<T>(rows: &[T], limit: usize, place: impl Fn(&T) -> Option<Place>) -> Option<Place> {
        rows.last().filter(|_| rows.len() >= limit).and_then(place)
    }
    let lasts = [
        last(&history.made, limit, |hold| Some(Place::of_made(hold))),
        last(&history.ended, limit, Place::of_end),
        last(&history.doubtful, limit, Place::of_doubt),
        last(&history.changed, limit, |entry| Some(Place::of_change(entry))),
    ];
    lasts.into_iter().flatten().max()
}

/// All events of `history` within the places, newest first.
fn merge(history: History, from: Place, before: Place) -> Vec<Event> {
    let of_hold = |place: Option<Place>, hold: Hold| {
        place.map(|place| Event { place, what: What::Hold(Arc::new(hold)) })
    };
    // Use that was booked was never asked for: it has no lease.
    let checked = history.made.into_iter().filter(|hold| hold.expires_at > hold.created_at);
    let made = checked.filter_map(|hold| of_hold(Some(Place::of_made(&hold)), hold));
    let ended = history.ended.into_iter().filter_map(|hold| of_hold(Place::of_end(&hold), hold));
    let doubtful = history.doubtful.into_iter().filter_map(|hold| of_hold(Place::of_doubt(&hold), hold));
    let changed = history
        .changed
        .into_iter()
        .map(|entry| Event { place: Place::of_change(&entry), what: What::Changed(entry) });
    let refused = history.refused.into_iter().map(|(number, call)| Event {
        place: Place { at: call.at, kind: Kind::Refused, id: number.into() },
        what: What::Refused(call),
    });
    let all = made.chain(ended).chain(doubtful).chain(changed).chain(refused);
    let mut events: Vec<Event> = all.filter(|event| event.place >= from && event.place < before).collect();
    events.sort_by_key(|event| std::cmp::Reverse(event.place));
    events
}

impl Event {
    /// The word for it.
    pub fn kind(&self) -> &'static str {
        match (self.place.kind, &self.what) {
            (Kind::Ended, What::Hold(hold)) if matches!(hold.stage, Stage::Released { .. }) => "released",
            (Kind::Ended, _) => "settled",
            (Kind::Checked, _) => "checked",
            (Kind::InDoubt, _) => "in_doubt",
            (Kind::Refused, _) => "refused",
            (Kind::Changed, _) => "changed",
        }
    }

    /// Of a refusal its code, of a release its reason, of a change what was
    /// done.
    pub fn code(&self) -> Option<&str> {
        match &self.what {
            What::Refused(call) => Some(&call.code),
            What::Changed(entry) => Some(&entry.action),
            What::Hold(hold) => match (self.place.kind, &hold.stage) {
                (Kind::Ended, Stage::Released { reason: ReleaseReason::NotSent, .. }) => Some("not_sent"),
                (Kind::Ended, Stage::Released { reason: ReleaseReason::UpstreamRefused, .. }) => {
                    Some("upstream_refused")
                }
                _ => None,
            },
        }
    }

    /// Who did it: `caller`, `rule`, `admin`, or the author of a change.
    pub fn by(&self) -> &str {
        match &self.what {
            What::Refused(_) => "rule",
            What::Changed(entry) => &entry.written.by,
            What::Hold(hold) => match (self.place.kind, &hold.stage) {
                (Kind::Ended, Stage::Settled(settlement)) => finisher(settlement.by),
                (Kind::Ended, Stage::Released { by, .. }) => finisher(*by),
                // Told to be in doubt, or left until the lease was over.
                (Kind::InDoubt, Stage::InDoubt { since }) if *since < hold.expires_at => "caller",
                (Kind::InDoubt, _) => "rule",
                _ => "caller",
            },
        }
    }
}

fn finisher(by: FinishedBy) -> &'static str {
    match by {
        FinishedBy::Caller => "caller",
        FinishedBy::Rule => "rule",
        FinishedBy::Admin => "admin",
    }
}
