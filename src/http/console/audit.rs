//! Who changed what, when and why.

use askama::Template;
use serde::Deserialize;
use serde_json::Value;

use super::api::{Fault, List, Target, listed};
use super::figures::Clock;
use super::page::{Shell, show, show_with};
use super::rows::Audit;
use super::visit::{Shown, Visit};

/// A row with what stood there before and after.
#[derive(Debug, Clone, Deserialize)]
struct Row {
    #[serde(flatten)]
    audit: Audit,
    before: Value,
    after: Value,
}

impl Row {
    fn has_more(&self) -> bool {
        !(self.before.is_null() && self.after.is_null())
    }

    fn before_text(&self) -> String {
        pretty(&self.before)
    }

    fn after_text(&self) -> String {
        pretty(&self.after)
    }
}

/// A record as text, a field a line.
fn pretty(value: &Value) -> String {
    match value {
        Value::Null => "nothing".into(),
        value => serde_json::to_string_pretty(value).unwrap_or_default(),
    }
}

#[derive(Template)]
#[template(path = "audit.html")]
struct Page {
    shell: Shell,
    by: String,
    target: String,
    from: String,
    to: String,
    rows: Vec<Row>,
    fault: Option<Fault>,
    next: Option<String>,
    is_first: bool,
    start: String,
    clock: Clock,
}

pub async fn page(visit: Visit) -> Shown {
    let field = |name: &str| visit.query.get(name).to_owned();
    let (by, target, from, to) = (field("by"), field("target"), field("from"), field("to"));
    let cursor = field("cursor");
    let at = |path: &str| {
        let place = Target::new(path, &[]).with("by", &by).with("target", &target);
        place.with("from", &from).with("to", &to)
    };
    let (list, fault) =
        listed::<Row>(visit.api.get::<List<Row>>(at("/v1/admin/audit").with("cursor", &cursor)).await)?;
    let next = list.next_cursor.map(|next| at("/console/audit").with("cursor", &next).into());
    let (is_first, start) = (cursor.is_empty(), at("/console/audit").into());
    let (shell, clock, rows) = (visit.shell("Audit"), visit.clock(), list.data);
    let page = Page { shell, by, target, from, to, rows, fault, next, is_first, start, clock };
    match &page.fault {
        Some(fault) => show_with(&fault.clone(), &page),
        None => show(&page),
    }
}
