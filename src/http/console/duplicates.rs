//! Users who share a device or an address. They are shown, and nothing is done to them.

use askama::Template;
use serde::Deserialize;

use super::api::{Fault, List, Target, listed};
use super::figures::{Count, UserName};
use super::page::{Shell, show, show_with};
use super::visit::{Shown, Visit};

const SIGNALS: [(&str, &str); 2] = [("device", "Device"), ("address", "Address")];

/// A value of the signal, with some of the users who have it.
#[derive(Debug, Clone, Deserialize)]
struct Row {
    signal: String,
    users: Vec<UserName>,
    count: Count,
    total_tokens: Count,
}

impl Row {
    /// Of how many users the row does not tell the names.
    fn others(&self) -> Option<Count> {
        let others = self.count.0.saturating_sub(self.users.len() as u64);
        (others > 0).then_some(Count(others))
    }
}

/// A choice that is a link.
struct Choice {
    name: &'static str,
    link: String,
    is_chosen: bool,
}

#[derive(Template)]
#[template(path = "duplicates.html")]
struct Page {
    shell: Shell,
    signal: String,
    signals: Vec<Choice>,
    from: String,
    to: String,
    rows: Vec<Row>,
    fault: Option<Fault>,
    next: Option<String>,
    is_first: bool,
    start: String,
}

pub async fn page(visit: Visit) -> Shown {
    let signal = visit.query.given("signal").unwrap_or("device").to_owned();
    let field = |name: &str| visit.query.get(name).to_owned();
    let (from, to, cursor) = (field("from"), field("to"), field("cursor"));
    let at = |path: &str, signal: &str| {
        Target::new(path, &[]).with("signal", signal).with("from", &from).with("to", &to)
    };
    let question = at("/v1/admin/duplicates", &signal).with("cursor", &cursor);
    let (list, fault) = listed::<Row>(visit.api.get::<List<Row>>(question).await)?;
    let here = |signal: &str| at("/console/duplicates", signal);
    let choice = |(value, name): (&'static str, &'static str)| Choice {
        name,
        link: here(value).into(),
        is_chosen: value == signal,
    };
    let page = Page {
        shell: visit.shell("Duplicates"),
        signals: SIGNALS.into_iter().map(choice).collect(),
        next: list.next_cursor.map(|next| here(&signal).with("cursor", &next).into()),
        is_first: cursor.is_empty(),
        start: here(&signal).into(),
        rows: list.data,
        signal,
        from,
        to,
        fault,
    };
    match &page.fault {
        Some(fault) => show_with(&fault.clone(), &page),
        None => show(&page),
    }
}
