//! What is on record: the audit, a user's ledger, and our decisions beside
//! another limiter's.

use std::cmp::Reverse;

use serde_json::{Value, json};

use super::date;
use crate::domain::hold::Stage;
use crate::domain::ids::Label;
use crate::domain::time::Millis;
use crate::http::call::Call;
use crate::http::page::{Key, MAX_PAGE, Page, list, list_with};
use crate::http::reply::Answer;
use crate::http::schema::{AuditList, DecisionList, FeatureList, UserLedgerReply};
use crate::http::span::Span;
use crate::http::views::AmountsView;
use crate::ledger::{AuditEntry, AuditQuery, Comparison, MinuteRow, MinutesQuery, RefusalCount};
use crate::service::telling::records::{Event, HistoryPage, Kind, Place, What};

const PAGE: u32 = 50;
/// Days of which a reply counts refusals.
const COUNTED_DAYS: i32 = 31;
/// Minutes that are shown when no span is given.
const USUAL_MINUTES: i64 = 60;
/// Days of which decisions are compared at once.
const COMPARED_DAYS: i32 = 93;

/// Lists who changed what, when and why, newest first.
#[utoipa::path(
    get, path = "/v1/admin/audit", operation_id = "list_audit", tag = "admin",
    params(
        ("from" = Option<String>, Query, description = "A date in the tenant's zone or an instant"),
        ("to" = Option<String>, Query, description = "The same, not included"),
        ("by" = Option<String>, Query, description = "Of this author"),
        ("target" = Option<String>, Query, description = "Of what has this id"),
        ("limit" = Option<u32>, Query, description = "Most rows of a page, 1-500, default 50"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of the audit", body = AuditList)),
    security(("bearer" = ["admin:read"])),
)]
pub async fn audit(call: Call) -> Answer {
    let tenant = call.tenant()?;
    let zone = tenant.catalog().settings.zone.clone();
    let query = call.query(|parameters| {
        let page = Page::<Reverse<u64>>::read(parameters, PAGE);
        let span = Span::read(parameters, &zone);
        Some(AuditQuery {
            from: span.from.map(|from| from.at),
            to: span.to.map(|to| to.at),
            by: parameters.text("by"),
            target: parameters.text("target"),
            before: page.after.map(|Reverse(number)| number),
            limit: page.limit,
        })
    })?;
    let (entries, more) = call.service().audit(tenant, query).await?;
    let last = entries.last().filter(|_| more).map(|entry| Reverse(entry.number));
    Ok(list(entries.iter().map(audit_view).collect(), last))
}

pub(in crate::http) fn audit_view(entry: &AuditEntry) -> Value {
    json!({
        "at": entry.written.at,
        "by": entry.written.by,
        "action": entry.action,
        "target": entry.target,
        "before": document(entry.old.as_deref()),
        "after": document(entry.new.as_deref()),
        "reason": entry.written.reason,
    })
}

/// What stood on record as JSON, as JSON.
fn document(text: Option<&str>) -> Value {
    let parse = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()));
    text.map_or(Value::Null, parse)
}

/// Lists what happened to a user, newest first, and counts what was refused.
#[utoipa::path(
    get, path = "/v1/admin/users/{user}/ledger", operation_id = "get_user_ledger", tag = "admin",
    params(
        ("user" = String, Path, description = "The user, percent-encoded"),
        ("from" = Option<String>, Query, description = "A date in the tenant's zone or an instant"),
        ("to" = Option<String>, Query, description = "The same, not included"),
        ("limit" = Option<u32>, Query, description = "Most rows of a page, 1-500, default 50"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses(
        (status = 200, description = "A page of the user's ledger", body = UserLedgerReply),
        (status = 404, description = "Nothing is on record about this user"),
    ),
    security(("bearer" = ["admin:read"])),
)]
pub async fn user_ledger(call: Call) -> Answer {
    let user = call.user()?;
    let tenant = call.tenant()?;
    let zone = tenant.catalog().settings.zone.clone();
    let today = zone.local_day(tenant.now());
    let page = call.query(|parameters| {
        let page = Page::<Reverse<Place>>::read(parameters, PAGE);
        let span = Span::read(parameters, &zone);
        Some(HistoryPage {
            instants: span.instants(),
            before: page.after.map(|Reverse(place)| place),
            limit: page.limit as usize,
            days: span.last_days(today, COUNTED_DAYS),
        })
    })?;
    let history = call.service().user_history(tenant, &user, page).await?;
    let last = history.events.last().filter(|_| history.more).map(|event| Reverse(event.place));
    let refusals: Vec<Value> = history.refusals.iter().map(refusals_view).collect();
    let data = history.events.iter().map(event_view).collect();
    Ok(list_with(data, last, |body| body["refusals"] = refusals.into()))
}

fn event_view(event: &Event) -> Value {
    let mut row = json!({
        "at": event.place.at,
        "kind": event.kind(),
        "hold": null,
        "code": event.code(),
        "amounts": null,
        "by": event.by(),
    });
    match &event.what {
        What::Hold(hold) => {
            row["hold"] = hold.id.to_string().into();
            row["amounts"] = match (event.place.kind, &hold.stage) {
                (Kind::Ended, Stage::Settled(settled)) => {
                    json!(AmountsView::new(settled.counted, settled.amounts.as_slice()))
                }
                // All of it came back.
                (Kind::Ended, _) => Value::Null,
                _ => json!(AmountsView::new(hold.reserved, hold.amounts.as_slice())),
            };
        }
        What::Refused(call) => row["limit"] = json!(call.limit),
        What::Changed(_) => {}
    }
    row
}

fn refusals_view(row: &RefusalCount) -> Value {
    json!({"day": date(row.day), "code": row.code, "count": row.count})
}

/// Counts checks by what we decided and what another limiter did.
#[utoipa::path(
    get, path = "/v1/admin/decisions", operation_id = "compare_decisions", tag = "admin",
    params(
        ("from" = Option<String>, Query,
         description = "A date in the tenant's zone or an instant of that day; default: 30 days before the last one"),
        ("to" = Option<String>, Query, description = "The same, not included; at most 93 days after `from`"),
        ("limit" = Option<u32>, Query, description = "Most rows of a page, 1-500, default 500"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of the comparison, by day", body = DecisionList)),
    security(("bearer" = ["admin:read"])),
)]
pub async fn decisions(call: Call) -> Answer {
    let tenant = call.tenant()?;
    let zone = tenant.catalog().settings.zone.clone();
    let today = zone.local_day(tenant.now());
    let (page, days) = call.query(|parameters| {
        let page = Page::<Compared>::read(parameters, MAX_PAGE);
        let span = Span::read(parameters, &zone);
        let end = span.days().end.min(today + 1);
        let days = match span.from {
            Some(from) => from.day.min(end)..end,
            None => span.last_days(today, COUNTED_DAYS),
        };
        if days.len() > COMPARED_DAYS as usize {
            return parameters.fault("from", format!("must be at most {COMPARED_DAYS} days before to"));
        }
        Some((page, days))
    })?;
    let rows = call.service().decisions(tenant, days).await?;
    Ok(page.of(&rows, |row| Compared::of(row), |row| decision_view(row)))
}

fn decision_view(row: &Comparison) -> Value {
    json!({"day": date(row.day), "ours": row.ours, "theirs": &*row.theirs, "checks": row.checks})
}

/// Lists what features used, minute by minute.
#[utoipa::path(
    get, path = "/v1/admin/features", operation_id = "list_features", tag = "admin",
    params(
        ("from" = Option<String>, Query,
         description = "A date in the tenant's zone or an instant, whose minute counts whole; default: an hour before `to`"),
        ("to" = Option<String>, Query, description = "The same, not included; default: the end of this minute"),
        ("limit" = Option<u32>, Query, description = "Most rows of a page, 1-500, default 500"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of minutes", body = FeatureList)),
    security(("bearer" = ["admin:read"])),
)]
pub async fn features(call: Call) -> Answer {
    let tenant = call.tenant()?;
    let zone = tenant.catalog().settings.zone.clone();
    let this = minute_of(tenant.now());
    let query = call.query(|parameters| {
        let page = Page::<OfMinute>::read(parameters, MAX_PAGE);
        let span = Span::read(parameters, &zone);
        let end = span.to.map_or(this + 1, |to| minute_of(to.at.plus_ms(-1)) + 1);
        let start = span.from.map_or(end - USUAL_MINUTES, |from| minute_of(from.at));
        let after = page.after.map(|OfMinute(minute, feature)| (minute, feature));
        // One more, to tell whether there are any.
        Some(MinutesQuery { minutes: start.min(end)..end, after, limit: page.limit + 1 })
    })?;
    let limit = query.limit as usize - 1;
    let mut rows = call.service().features(tenant, query).await?;
    let more = rows.len() > limit;
    rows.truncate(limit);
    let feature = |row: &MinuteRow| row.feature.as_ref().map(ToString::to_string).unwrap_or_default();
    let last = rows.last().filter(|_| more).map(|row| OfMinute(row.minute, feature(row)));
    Ok(list(rows.iter().map(feature_view).collect(), last))
}

fn minute_of(at: Millis) -> i64 {
    at.0.div_euclid(60_000)
}

fn feature_view(row: &MinuteRow) -> Value {
    json!({
        "at": Millis(row.minute * 60_000),
        "feature": row.feature.as_ref().map(Label::as_str),
        "requests": row.amounts.requests,
        "input_tokens": row.amounts.input_tokens,
        "output_tokens": row.amounts.output_tokens,
        "total_tokens": row.amounts.total_tokens,
        "credits": row.amounts.credits,
        "refusals": row.refusals,
    })
}

/// A minute and a feature, empty for none.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct OfMinute(i64, String);

impl Key for OfMinute {
    const LIST: &'static str = "features";

    fn read(text: &str) -> Option<Self> {
        let (minute, feature) = text.split_once('.')?;
        Some(Self(minute.parse().ok()?, feature.to_owned()))
    }

    fn write(&self) -> String {
        format!("{}.{}", self.0, self.1)
    }
}

/// The place of a row of decisions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Compared {
    day: i32,
    ours: String,
    theirs: String,
}

impl Compared {
    fn of(row: &Comparison) -> Self {
        Self { day: row.day, ours: row.ours.to_string(), theirs: row.theirs.to_string() }
    }
}

impl Key for Compared {
    const LIST: &'static str = "decisions";

    fn read(text: &str) -> Option<Self> {
        let (day, words) = text.split_once('.')?;
        let (ours, theirs) = words.split_once('.')?;
        Some(Self { day: day.parse().ok()?, ours: ours.to_owned(), theirs: theirs.to_owned() })
    }

    fn write(&self) -> String {
        format!("{}.{}.{}", self.day, self.ours, self.theirs)
    }
}

const KINDS: [Kind; 5] = [Kind::Changed, Kind::Checked, Kind::InDoubt, Kind::Ended, Kind::Refused];

/// A place in a user's ledger, newest first.
impl Key for Reverse<Place> {
    const LIST: &'static str = "ledger";

    fn read(text: &str) -> Option<Self> {
        let (at, rest) = text.split_once('.')?;
        let (kind, id) = rest.split_once('.')?;
        let at = at.parse().ok().filter(|at| (0..=Millis::MAX.0).contains(at)).map(Millis)?;
        let kind = *KINDS.get(kind.parse::<usize>().ok()?)?;
        Some(Self(Place { at, kind, id: id.parse().ok()? }))
    }

    fn write(&self) -> String {
        let Self(Place { at, kind, id }) = self;
        format!("{}.{}.{id}", at.0, *kind as u8)
    }
}
