//! `/v1/admin/usage/events`: the feed that bills are made from.

use serde_json::{Map, Value, json};

use super::date;
use crate::domain::ids::{Label, Name};
use crate::http::call::Call;
use crate::http::page::{Key, Page, list_with};
use crate::http::reply::Answer;
use crate::http::schema::UsageEventList;
use crate::ledger::{FeedEvent, FeedPage, FeedQuery};

const PAGE: u32 = 100;

/// Lists what was used, in the order in which it came on record.
///
/// A hold has one event (`:1`) once it has finished, a released one with zeros; what
/// corrects it later (a hold that `in_doubt_after` ended is settled after all) comes as `:2`
/// with signed differences, and if another model served it than was charged, as `:2` for the one
/// and `:3` for the other. The sum of all events is what was used, also by model or day. Use
/// that was booked without a hold has its event too.
///
/// `next_cursor` is never null: ask again with it for what has come since, at once if
/// `more` is true. No event is missed or repeated on that way; whoever may have to ask with an
/// older cursor again keeps the first of each `id`.
#[utoipa::path(
    get, path = "/v1/admin/usage/events", operation_id = "list_usage_events", tag = "admin",
    params(
        ("after" = Option<String>, Query,
         description = "`next_cursor` of the page before (`cursor` is understood too); without it, from the oldest event that is kept"),
        ("limit" = Option<u32>, Query, description = "Most events of a page, 1-500, default 100"),
    ),
    responses(
        (status = 200, description = "A page of events", body = UsageEventList),
        (status = 410, description = "`cursor_expired`: what comes next is not kept any more"),
    ),
    security(("bearer" = ["admin:read"])),
)]
pub async fn usage(call: Call) -> Answer {
    let tenant = call.tenant()?;
    let query = call.query(|parameters| {
        let page = Page::<EventNumber>::read_after(parameters, PAGE);
        let is_given = page.after.is_some();
        let EventNumber(after, seal) = page.after.map_or(EventNumber(0, 0), |after| after);
        Some(FeedQuery { after: is_given.then_some(after), seal, limit: page.limit })
    })?;
    let (events, last, seal, more) = match call.service().usage_events(tenant, query).await? {
        FeedPage::Events { events, last, seal, more } => (events, last, seal, more),
        FeedPage::Gone => return Err(crate::service::ServiceError::CursorExpired.into()),
    };
    let data = events.iter().map(view).collect();
    Ok(list_with(data, Some(EventNumber(last, seal)), |body| body["more"] = more.into()))
}

pub(in crate::http) fn view(event: &FeedEvent) -> Value {
    let hold = &event.hold;
    let mut counted = Map::new();
    for (meter, amount) in [
        ("requests", event.requests),
        ("input_tokens", event.input_tokens),
        ("output_tokens", event.output_tokens),
        ("total_tokens", event.total_tokens),
        ("credits", event.credits),
    ] {
        counted.insert(meter.to_owned(), amount.into());
    }
    for (meter, amount) in &event.amounts {
        counted.insert(meter.as_str().to_owned(), (*amount).into());
    }
    json!({
        "id": format!("{}:{}", hold.id, event.part),
        "hold": hold.id.to_string(),
        "user": hold.user.as_str(),
        "org": hold.org.as_ref().map(Name::as_str),
        "plan": hold.plan.as_str(),
        "model": event.model.as_ref().map(Name::as_str),
        "feature": hold.feature.as_ref().map(Label::as_str),
        "at": hold.created_at,
        "day": date(hold.day),
        "counted": counted,
        "credits": event.credits,
    })
}

/// The number of an event, and its seal.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct EventNumber(u64, u64);

impl Key for EventNumber {
    const LIST: &'static str = "events";

    fn read(text: &str) -> Option<Self> {
        let (number, seal) = text.split_once('.')?;
        Some(Self(number.parse().ok()?, u64::from_str_radix(seal, 16).ok()?))
    }

    fn write(&self) -> String {
        format!("{}.{:x}", self.0, self.1)
    }
}
