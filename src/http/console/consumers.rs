//! Who used most.

use actix_web::http::Method;
use actix_web::http::header::{self, HeaderValue};
use askama::Template;

use super::api::Target;
use super::figures::Clock;
use super::page::{Shell, show};
use super::part::Part;
use super::rows::{Consumer, Consumers};
use super::visit::{Shown, Visit};
use crate::domain::time::DAY_MS;

/// Meters by which rows can be ordered, with the heads of their columns.
const METERS: [(&str, &str); 6] = [
    ("requests", "Calls"),
    ("input_tokens", "Input"),
    ("output_tokens", "Output"),
    ("total_tokens", "Tokens"),
    ("credits", "Credits"),
    ("refusals", "Refused"),
];
const GROUPS: [(&str, &str); 5] =
    [("user", "Users"), ("org", "Orgs"), ("feature", "Features"), ("model", "Models"), ("plan", "Plans")];
/// Spans in days that one click chooses; 0: up to today, since the first of the month.
const SPANS: [(&str, &str); 4] =
    [("1", "Today"), ("7", "7 days"), ("30", "30 days"), ("month", "This month")];

/// What is asked for, as it stands in the address.
#[derive(Clone)]
struct Asked {
    span: String,
    from: String,
    to: String,
    by: String,
    group: String,
    cursor: String,
}

impl Asked {
    fn of(visit: &Visit) -> Self {
        let field = |name: &str, usual: &str| visit.query.given(name).unwrap_or(usual).to_owned();
        let own_span = visit.query.given("from").or(visit.query.given("to")).is_some();
        Self {
            span: if own_span { String::new() } else { field("span", "30") },
            from: field("from", ""),
            to: field("to", ""),
            by: field("by", "total_tokens"),
            group: field("group", "user"),
            cursor: field("cursor", ""),
        }
    }

    /// The first day, which the API counts from.
    fn first_day(&self, visit: &Visit) -> String {
        let clock = visit.clock();
        let today = clock.date(visit.now());
        match self.span.as_str() {
            "" => self.from.clone(),
            "month" => format!("{}-01", &today[..7]),
            days => match days.parse::<i64>() {
                Ok(days @ 1..=366) => clock.date(visit.now().plus_ms(-(days - 1) * DAY_MS)),
                _ => self.span.clone(),
            },
        }
    }

    fn target(&self, visit: &Visit) -> Target {
        let target = Target::new("/v1/admin/consumers", &[]).with("from", &self.first_day(visit));
        let target = target.with("to", &self.to).with("by", &self.by).with("group", &self.group);
        target.with("cursor", &self.cursor)
    }

    fn at(&self, path: &str) -> String {
        let target = Target::new(path, &[]).with("span", &self.span).with("from", &self.from);
        let target = target.with("to", &self.to).with("by", &self.by).with("group", &self.group);
        target.with("cursor", &self.cursor).into()
    }

    /// The page with this changed.
    fn page_with(&self, change: impl FnOnce(&mut Self)) -> String {
        let mut asked = Self { cursor: String::new(), ..self.clone() };
        change(&mut asked);
        asked.at("/console/consumers")
    }
}

/// A choice that is a link.
struct Choice {
    name: &'static str,
    link: String,
    is_chosen: bool,
}

#[derive(Template)]
#[template(path = "consumers.html")]
struct Page {
    shell: Shell,
    spans: Vec<Choice>,
    groups: Vec<Choice>,
    asked: Asked,
    csv: String,
    rows: Part,
}

pub async fn page(visit: Visit) -> Shown {
    let asked = Asked::of(&visit);
    let choice = |(span, name): (&'static str, &'static str)| Choice {
        name,
        link: asked.page_with(|asked| {
            (asked.span, asked.from, asked.to) = (span.into(), String::new(), String::new());
        }),
        is_chosen: asked.span == span,
    };
    let spans = SPANS.into_iter().map(choice).collect();
    let choice = |(group, name): (&'static str, &'static str)| Choice {
        name,
        link: asked.page_with(|asked| asked.group = group.into()),
        is_chosen: asked.group == group,
    };
    let groups = GROUPS.into_iter().map(choice).collect();
    let csv = Asked { cursor: String::new(), ..asked.clone() }.at("/console/consumers.csv");
    let rows = Part::later(&visit, &asked.at("/console/parts/consumers"), 0, rows(&visit)).await;
    show(&Page { shell: visit.shell("Top consumers"), spans, groups, asked, csv, rows })
}

/// The head of a column; the one that the rows are ordered by is marked.
struct Head {
    name: &'static str,
    link: String,
    is_order: bool,
}

#[derive(Template)]
#[template(path = "consumers_rows.html")]
struct Rows {
    list: Consumers,
    heads: Vec<Head>,
    what: &'static str,
    group: String,
    by: String,
    first: bool,
    next: Option<String>,
    start: String,
    has_usage: bool,
    clock: Clock,
}

impl Rows {
    /// Narrow screens show the column by which the rows are ordered.
    fn less(&self, meter: &str) -> &'static str {
        if self.by == meter { "" } else { " less" }
    }

    /// A row's name, and where more stands about it.
    fn name<'a>(&self, row: &'a Consumer) -> Option<&'a str> {
        let name = match self.group.as_str() {
            "org" => &row.org,
            "feature" => &row.feature,
            "model" => &row.model,
            "plan" => &row.plan,
            _ => return None,
        };
        name.as_deref()
    }
}

pub async fn rows(visit: &Visit) -> Shown {
    let asked = Asked::of(visit);
    let list: Consumers = visit.api.get(asked.target(visit)).await?;
    let head = |(meter, name): (&'static str, &'static str)| Head {
        name,
        link: asked.page_with(|asked| asked.by = meter.into()),
        is_order: asked.by == meter,
    };
    let next =
        list.next_cursor.clone().map(|cursor| Asked { cursor, ..asked.clone() }.at("/console/consumers"));
    let what = GROUPS.iter().find(|(group, _)| *group == asked.group).map_or("Rows", |(_, name)| name);
    show(&Rows {
        heads: METERS.into_iter().map(head).collect(),
        what,
        first: asked.cursor.is_empty(),
        next,
        start: asked.page_with(|_| {}),
        has_usage: list.data.iter().any(|row| row.quota_share.is_some()),
        group: asked.group,
        by: asked.by,
        list,
        clock: visit.clock(),
    })
}

/// The same as a file for spreadsheets.
pub async fn csv(visit: Visit) -> Shown {
    let target = Asked::of(&visit).target(&visit);
    let wanted = [(header::ACCEPT, HeaderValue::from_static("text/csv"))];
    let reply = visit.api.ask(Method::GET, target, None, &wanted).await?;
    let name = HeaderValue::from_static("attachment; filename=\"consumers.csv\"");
    Ok(reply.with_header(header::CONTENT_DISPOSITION, name))
}
