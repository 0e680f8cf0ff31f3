//! Calls of which nobody told the end, and how they end.

pub mod resolve;

use askama::Template;
use serde::Deserialize;

use super::api::{self, Fault, List, Target, listed};
use super::figures::{Clock, Count, Credits, UserName};
use super::form::Fields;
use super::page::{Shell, show, show_with};
use super::visit::{Shown, Visit};
use crate::domain::time::Millis;
use crate::http::problem::Kind;

/// By what the list is narrowed, as it stands in the address.
const FILTERS: [&str; 5] = ["user", "model", "feature", "from", "to"];

/// A hold in doubt.
#[derive(Debug, Clone, Deserialize)]
struct Doubt {
    id: String,
    user: UserName,
    request_id: Option<String>,
    model: Option<String>,
    feature: Option<String>,
    created_at: Millis,
    expires_at: Millis,
    reserved: Amounts,
    #[serde(default)]
    output_tokens_so_far: Option<Count>,
}

#[derive(Debug, Clone, Deserialize)]
struct Amounts {
    input_tokens: Count,
    output_tokens: Count,
    credits: Credits,
}

impl Doubt {
    /// Where it stands by itself. The list is asked for its user and moment, so that one hold is
    /// found as fast as many.
    fn page(&self) -> String {
        self.at("/console/doubts/{}")
    }

    fn at(&self, pattern: &str) -> String {
        let place = Target::new(pattern, &[&self.id]).with("user", &self.user.0);
        place.with("made", &self.created_at.to_string()).into()
    }
}

fn filtered(path: &str, fields: &Fields) -> Target {
    FILTERS.iter().fold(Target::new(path, &[]), |target, name| target.with(name, fields.get(name)))
}

#[derive(Template)]
#[template(path = "doubts.html")]
struct Page {
    shell: Shell,
    user: String,
    model: String,
    feature: String,
    from: String,
    to: String,
    rows: Vec<Doubt>,
    fault: Option<Fault>,
    next: Option<String>,
    is_first: bool,
    start: String,
    all: String,
    clock: Clock,
}

pub async fn page(visit: Visit) -> Shown {
    let field = |name: &str| visit.query.get(name).to_owned();
    let cursor = field("cursor");
    let question = filtered("/v1/admin/holds", &visit.query).with("cursor", &cursor);
    let (list, fault) = listed::<Doubt>(visit.api.get::<List<Doubt>>(question).await)?;
    let here = || filtered("/console/doubts", &visit.query);
    let page = Page {
        shell: visit.shell("In doubt"),
        user: field("user"),
        model: field("model"),
        feature: field("feature"),
        from: field("from"),
        to: field("to"),
        next: list.next_cursor.map(|next| here().with("cursor", &next).into()),
        is_first: cursor.is_empty(),
        start: here().into(),
        all: filtered("/console/doubts/all/resolve", &visit.query).into(),
        rows: list.data,
        fault,
        clock: visit.clock(),
    };
    match &page.fault {
        Some(fault) => show_with(&fault.clone(), &page),
        None => show(&page),
    }
}

/// The hold that the address names, while it is in doubt.
async fn named(visit: &Visit) -> Result<Doubt, Fault> {
    let id = visit.call.segment("id")?;
    let made = Millis::parse(visit.query.get("made")).map(|at| (at.to_string(), at.plus_ms(1).to_string()));
    let (from, to) = made.unwrap_or_default();
    let question = Target::new("/v1/admin/holds", &[]).with("user", visit.query.get("user"));
    let question = question.with("from", &from).with("to", &to).with("limit", "500");
    let list: List<Doubt> = visit.api.get(question).await?;
    let found = list.data.into_iter().find(|doubt| doubt.id == id);
    found.ok_or_else(|| {
        api::fault(Kind::NotFound, "This hold is not in doubt: its call was settled or released meanwhile.")
    })
}

/// What such calls usually take.
#[derive(Debug, Clone, Deserialize)]
struct Usual {
    feature: Option<String>,
    model: Option<String>,
    count: Count,
    p50: Option<Count>,
    p99: Option<Count>,
    max: Count,
}

#[derive(Template)]
#[template(path = "doubt.html")]
struct One {
    shell: Shell,
    doubt: Doubt,
    usual: Option<Usual>,
    resolve: String,
    clock: Clock,
}

/// What is known of one hold.
pub async fn one(visit: Visit) -> Shown {
    let doubt = named(&visit).await?;
    let outputs: List<Usual> = visit.api.get("/v1/admin/outputs?limit=500").await?;
    let is_alike = |usual: &Usual| usual.feature == doubt.feature && usual.model == doubt.model;
    let usual = outputs.data.into_iter().find(is_alike);
    let resolve = doubt.at("/console/doubts/{}/resolve");
    show(&One { shell: visit.shell("A hold in doubt"), usual, resolve, doubt, clock: visit.clock() })
}
