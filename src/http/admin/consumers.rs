//! Who used most, and who may be one and the same.

use std::ops::Range;

use actix_web::http::header::{ACCEPT, CONTENT_DISPOSITION, HeaderValue};
use serde_json::{Value, json};

use super::date;
use crate::http::call::Call;
use crate::http::page::{Key, Page, list, list_with};
use crate::http::problem::{Kind, Problem};
use crate::http::query::Parameters;
use crate::http::reply::{Answer, Reply};
use crate::http::schema::{ConsumerList, DuplicateList};
use crate::http::span::Span;
use crate::ledger::{Duplicate, DuplicatesQuery, Figure, Group, RankingQuery, Signal, Sums};
use crate::service::telling::consumers::{Consumer, Consumers, Expected, LISTED_MAX, Place};

const PAGE: u32 = 50;
/// Days that are counted when no span is given.
const USUAL_DAYS: i32 = 31;
/// Most days of a span.
const DAYS_MAX: usize = 366;

const GROUPS: [(&str, Group); 5] = [
    ("user", Group::User),
    ("org", Group::Org),
    ("feature", Group::Feature),
    ("model", Group::Model),
    ("plan", Group::Plan),
];
const SIGNALS: [(&str, Signal); 2] = [("device", Signal::Device), ("address", Signal::Address)];
/// Users that are named of those who share something.
const NAMED_USERS: u32 = 50;
const FIGURES: [(&str, Figure); 6] = [
    ("total_tokens", Figure::TotalTokens),
    ("input_tokens", Figure::InputTokens),
    ("output_tokens", Figure::OutputTokens),
    ("requests", Figure::Requests),
    ("credits", Figure::Credits),
    ("refusals", Figure::Refusals),
];

/// Lists who used most, the largest first.
#[utoipa::path(
    get, path = "/v1/admin/consumers", operation_id = "list_consumers", tag = "admin",
    params(
        ("from" = Option<String>, Query,
         description = "A date in the tenant's zone or an instant of that day; default: 30 days before the last one. Whole days are counted"),
        ("to" = Option<String>, Query, description = "The same, not included; at most 366 days after `from`; default: after today"),
        ("by" = Option<String>, Query,
         description = "`total_tokens` (default), `input_tokens`, `output_tokens`, `requests`, `credits`, `refusals`"),
        ("group" = Option<String>, Query, description = "`user` (default), `org`, `feature`, `model`, `plan`"),
        ("limit" = Option<u32>, Query, description = "Most rows of a page, 1-500, default 50; as CSV 1-100000, default all"),
        ("cursor" = Option<String>, Query,
         description = "`next_cursor` of the page before: order and figures are those of the first page, for 10 minutes and up to its 10,000th row"),
        ("Accept" = Option<String>, Header, description = "`text/csv`: all rows at once, as CSV that spreadsheets can open safely"),
    ),
    responses(
        (status = 200, description = "A page of consumers", content((ConsumerList = "application/json"), (String = "text/csv"))),
        (status = 410, description = "`cursor_expired`: ask for the first page again"),
    ),
    security(("bearer" = ["admin:read"])),
)]
pub async fn consumers(call: Call) -> Answer {
    let tenant = call.tenant()?;
    let as_csv = wants_csv(call.headers().get(ACCEPT));
    let zone = tenant.catalog().settings.zone.clone();
    let today = zone.local_day(tenant.now());
    let (asked, expected, query) = call.query(|parameters| {
        let asked = if as_csv {
            Asked::All(parameters.number("limit", 1..=LISTED_MAX))
        } else {
            let page = Page::<Place>::read(parameters, PAGE);
            Asked::Page(page.after, page.limit)
        };
        let by = parameters.optional("by", |text| choice(text, &FIGURES));
        let group = parameters.optional("group", |text| choice(text, &GROUPS));
        let span = Span::read(parameters, &zone);
        let days = days(parameters, &span, today)?;
        let expected =
            Expected { from: span.from.map(|from| from.day), to: span.to.map(|to| to.day), group, by };
        let (group, by) = (group.unwrap_or(Group::User), by.unwrap_or(Figure::TotalTokens));
        Some((asked, expected, RankingQuery { days, group, by }))
    })?;
    let service = call.service();
    let consumers = match asked {
        Asked::All(limit) => return csv(&service.all_consumers(tenant, query, limit).await?),
        Asked::Page(None, limit) => service.consumers(tenant, query, limit).await?,
        Asked::Page(Some(place), limit) => service.more_consumers(tenant, place, expected, limit).await?,
    };
    Ok(page(&consumers))
}

enum Asked {
    All(Option<u32>),
    Page(Option<Place>, u32),
}

fn wants_csv(accept: Option<&HeaderValue>) -> bool {
    let types = accept.and_then(|value| value.to_str().ok()).unwrap_or_default().split(',');
    let wanted = types.filter_map(|part| {
        let mut parts = part.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let quality = parts.find_map(|part| part.strip_prefix("q=")).map_or(Ok(1.0), str::parse::<f64>);
        let is_wanted = quality.is_ok_and(|quality| quality > 0.0);
        (is_wanted && ["text/csv", "application/json", "*/*"].contains(&&*name)).then_some(name)
    });
    wanted.into_iter().next().is_some_and(|first| first == "text/csv")
}

fn choice<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, String> {
    words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        format!("must be one of {}", words.join(", "))
    })
}

fn word<T: PartialEq>(value: T, words: &[(&'static str, T)]) -> &'static str {
    words.iter().find(|(_, known)| *known == value).map_or("", |(word, _)| word)
}

fn page(consumers: &Consumers) -> Reply {
    let group = consumers.query.group;
    let rows = consumers.rows.iter().zip(consumers.before + 1..);
    let data = rows.map(|(row, rank)| row_view(row, rank, group)).collect();
    list_with(data, consumers.next, |body| {
        body["from"] = date(consumers.query.days.start).into();
        body["to"] = date(consumers.query.days.end).into();
        body["group"] = word(group, &GROUPS).into();
        body["by"] = word(consumers.query.by, &FIGURES).into();
        body["count"] = consumers.count.into();
        body["total"] = Value::Object(sums_view(&consumers.total));
    })
}

fn row_view(row: &Consumer, rank: u32, group: Group) -> Value {
    let mut view = serde_json::Map::new();
    view.insert("rank".into(), rank.into());
    view.insert(word(group, &GROUPS).into(), json!(row.ranked.name));
    if matches!(group, Group::User | Group::Org) {
        view.insert("plan".into(), json!(row.ranked.plan));
    }
    view.extend(sums_view(&row.ranked.sums));
    view.insert("share".into(), row.share.into());
    view.insert("quota_share".into(), json!(row.quota_share));
    Value::Object(view)
}

fn sums_view(sums: &Sums) -> serde_json::Map<String, Value> {
    let Sums { requests, input_tokens, output_tokens, total_tokens, credits, refusals } = *sums;
    let mut view = serde_json::Map::new();
    let figures = [
        ("requests", requests),
        ("input_tokens", input_tokens),
        ("output_tokens", output_tokens),
        ("total_tokens", total_tokens),
        ("credits", credits),
        ("refusals", refusals),
    ];
    view.extend(figures.map(|(name, figure)| (name.to_owned(), figure.into())));
    view
}

fn csv(consumers: &Consumers) -> Answer {
    let bytes = csv_bytes(consumers).map_err(|error| {
        tracing::error!(%error, "a list could not be written");
        Problem::new(Kind::Internal, "The list could not be written.")
    })?;
    let days = &consumers.query.days;
    let file = format!("attachment; filename=\"consumers-{}-{}.csv\"", date(days.start), date(days.end));
    let reply = Reply::bytes(HeaderValue::from_static("text/csv; charset=utf-8"), bytes.into());
    Ok(match HeaderValue::try_from(file) {
        Ok(file) => reply.with_header(CONTENT_DISPOSITION, file),
        Err(_) => reply,
    })
}

fn csv_bytes(consumers: &Consumers) -> csv::Result<Vec<u8>> {
    let group = consumers.query.group;
    let mut bytes = Vec::new();
    let mut writer = csv::Writer::from_writer(&mut bytes);
    writer.write_field("rank")?;
    writer.write_field(word(group, &GROUPS))?;
    let has_plan = matches!(group, Group::User | Group::Org);
    writer.write_record(has_plan.then_some("plan").into_iter().chain(CSV_FIGURES))?;
    for (row, rank) in consumers.rows.iter().zip(1_u32..) {
        writer.write_field(rank.to_string())?;
        writer.write_field(safe_cell(row.ranked.name.as_deref()))?;
        if has_plan {
            writer.write_field(safe_cell(row.ranked.plan.as_deref()))?;
        }
        let Sums { requests, input_tokens, output_tokens, total_tokens, credits, refusals } = row.ranked.sums;
        let sums = [requests, input_tokens, output_tokens, total_tokens, credits, refusals];
        let quota_share = row.quota_share.map(|share| share.to_string()).unwrap_or_default();
        let sums = sums.into_iter().map(|sum| sum.to_string());
        writer.write_record(sums.chain([row.share.to_string(), quota_share]))?;
    }
    writer.flush()?;
    drop(writer);
    Ok(bytes)
}

const CSV_FIGURES: [&str; 8] = [
    "requests",
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "credits",
    "refusals",
    "share",
    "quota_share",
];

/// A text that no spreadsheet takes for a formula: those begin with one of these
/// characters, and an apostrophe before it says that it is a text. Some spreadsheets
/// begin a new cell at a semicolon or a tab, too.
fn safe_cell(text: Option<&str>) -> String {
    let mut safe = String::new();
    let mut begins = true;
    for letter in text.unwrap_or_default().chars() {
        let is_formula =
            matches!(letter, '=' | '+' | '-' | '@' | '\t' | '\r' | '\n' | '＝' | '＋' | '－' | '＠');
        if begins && is_formula {
            safe.push('\'');
        }
        safe.push(letter);
        begins = matches!(letter, ';' | '\t' | '\r' | '\n');
    }
    safe
}

/// Lists what more than one user has in common: nobody is banned for it.
#[utoipa::path(
    get, path = "/v1/admin/duplicates", operation_id = "list_duplicates", tag = "admin",
    params(
        ("signal" = String, Query, description = "`device` or `address`, as users' `signals` tell it"),
        ("from" = Option<String>, Query,
         description = "Of which days the use is added up: as for consumers, a date in the tenant's zone or an instant of that day"),
        ("to" = Option<String>, Query, description = "The same, not included"),
        ("limit" = Option<u32>, Query, description = "Most rows of a page, 1-500, default 50"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of what users share", body = DuplicateList)),
    security(("bearer" = ["admin:read"])),
)]
pub async fn duplicates(call: Call) -> Answer {
    let tenant = call.tenant()?;
    let zone = tenant.catalog().settings.zone.clone();
    let today = zone.local_day(tenant.now());
    let query = call.query(|parameters| {
        let page = Page::<Shared>::read(parameters, PAGE);
        let signal = parameters.required("signal", |text| choice(text, &SIGNALS));
        let span = Span::read(parameters, &zone);
        let days = days(parameters, &span, today);
        // One more, to tell whether there are any.
        let (after, limit) = (page.after.map(|Shared(value)| value), page.limit + 1);
        Some(DuplicatesQuery { signal: signal?, after, limit, users: NAMED_USERS, days: days? })
    })?;
    let limit = query.limit as usize - 1;
    let mut found = call.service().duplicates(tenant, query).await?;
    let more = found.len() > limit;
    found.truncate(limit);
    let last = found.last().filter(|_| more).map(|last| Shared(last.value.clone()));
    let view = |row: &Duplicate| json!({"signal": row.value, "users": row.users, "count": row.count, "total_tokens": row.total_tokens});
    Ok(list(found.iter().map(view).collect(), last))
}

/// The days of a span, which without a beginning are the last ones before its end.
fn days(parameters: &mut Parameters<'_>, span: &Span, today: i32) -> Option<Range<i32>> {
    let end = span.to.map_or(today + 1, |to| to.day);
    let start = span.from.map_or(end.saturating_sub(USUAL_DAYS), |from| from.day.min(end));
    match (start..end).len() > DAYS_MAX {
        true => parameters.fault("from", format!("must be at most {DAYS_MAX} days before to")),
        false => Some(start..end),
    }
}

/// What users share, as the place of a row.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Shared(String);

impl Key for Shared {
    const LIST: &'static str = "duplicates";

    fn read(text: &str) -> Option<Self> {
        Some(Self(text.to_owned()))
    }

    fn write(&self) -> String {
        self.0.clone()
    }
}

impl Key for Place {
    const LIST: &'static str = "consumers";

    fn read(text: &str) -> Option<Self> {
        let (ranking, row) = text.split_once('.')?;
        Some(Self { ranking: u128::from_str_radix(ranking, 16).ok()?, row: row.parse().ok()? })
    }

    fn write(&self) -> String {
        format!("{:x}.{}", self.ranking, self.row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_is_given_to_those_who_ask_for_it_before_json() {
        let wants = |text: &'static str| wants_csv(Some(&HeaderValue::from_static(text)));
        assert!(wants("text/csv") && wants("text/html, text/csv;q=0.9, */*"));
        assert!(wants("TEXT/CSV; q=1") && !wants("text/csv;q=0, application/json"));
        assert!(!wants("*/*") && !wants("application/json, text/csv") && !wants("") && !wants_csv(None));
    }

    #[test]
    fn no_cell_is_a_formula() {
        for text in ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "＝1"] {
            assert_eq!(safe_cell(Some(text)), format!("'{text}"));
        }
        assert_eq!(safe_cell(Some("u_1=2")), "u_1=2");
        assert_eq!(safe_cell(Some(";=1;-2; =3")), ";'=1;'-2; =3");
        assert_eq!(safe_cell(Some("\t=1")), "'\t'=1");
    }
}
