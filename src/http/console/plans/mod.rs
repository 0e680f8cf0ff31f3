//! Plans: their sheets side by side, one by one, and what became of them.

pub mod edit;
pub mod restore;

use std::collections::BTreeMap;

use askama::Template;
use serde::Deserialize;
use serde_json::Value;
use tokio::join;

use super::api::{Fault, List, Target};
use super::figures::{Clock, Count, Part as Share};
use super::page::{Shell, see, show};
use super::part::Part;
use super::sheets::{Sheet, Warning};
use super::visit::{Shown, Visit};
use crate::domain::time::Millis;

/// The plan that the path names.
fn named(visit: &Visit) -> Result<String, Fault> {
    Ok(visit.call.segment("id")?)
}

fn page_of(id: &str) -> String {
    Target::new("/console/plans/{}", &[id]).into()
}

#[derive(Template)]
#[template(path = "plans.html")]
struct Plans {
    shell: Shell,
    sheets: Vec<Sheet>,
    rows: Vec<Row>,
    usual: Option<String>,
}

/// A limit in all sheets.
struct Row {
    name: String,
    cells: Vec<Option<String>>,
}

#[derive(Deserialize)]
struct Settings {
    default_plan: Option<String>,
}

pub async fn all(visit: Visit) -> Shown {
    let (sheets, settings) = join!(
        visit.api.get::<List<Sheet>>("/v1/admin/plans"),
        visit.api.get::<Settings>("/v1/admin/settings")
    );
    let (mut sheets, usual) = (sheets?.data, settings?.default_plan);
    // The one that comes first for users stands first.
    sheets.sort_by_key(|sheet| (usual.as_deref() != Some(sheet.id.as_str()), sheet.id.clone()));
    let mut names: Vec<&str> = Vec::new();
    for limit in sheets.iter().flat_map(|sheet| &sheet.limits) {
        if !names.contains(&limit.name.as_str()) {
            names.push(&limit.name);
        }
    }
    let cells = |name: &str| sheets.iter().map(|sheet| Some(sheet.limit(name)?.sentence())).collect();
    let rows = names.iter().map(|name| Row { name: (*name).to_owned(), cells: cells(name) }).collect();
    show(&Plans { shell: visit.shell("Plans"), rows, sheets, usual })
}

/// To the empty form of a plan that is to be made.
pub async fn new(visit: Visit) -> Shown {
    match visit.query.given("id") {
        Some(id) => Ok(see(&String::from(Target::new("/console/plans/{}/edit", &[id])))),
        None => Ok(see("/console/plans")),
    }
}

#[derive(Template)]
#[template(path = "plan.html")]
struct Page {
    shell: Shell,
    sheet: Sheet,
    path: String,
    limits: Part,
    versions: Vec<Version>,
    clock: Clock,
}

/// A version, and what it changed.
#[derive(Deserialize)]
struct Version {
    version: u32,
    written_at: Millis,
    written_by: String,
    reason: Option<String>,
    applies: String,
    to: String,
    effective_at: Millis,
    changes: Vec<Change>,
}

#[derive(Deserialize)]
struct Change {
    path: String,
    before: Value,
    after: Value,
}

impl Change {
    fn what(&self) -> String {
        self.path.trim_start_matches('/').replace('/', " › ")
    }

    fn before(&self) -> String {
        words(&self.before)
    }

    fn after(&self) -> String {
        words(&self.after)
    }
}

/// A value as people write it.
fn words(value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        Value::String(text) => text.clone(),
        Value::Number(number) => number.as_u64().map_or_else(|| number.to_string(), super::figures::full),
        other => other.to_string(),
    }
}

pub async fn page(visit: Visit) -> Shown {
    let id = named(&visit)?;
    let (sheet, versions) = join!(
        visit.api.get::<Sheet>(Target::new("/v1/admin/plans/{}", &[&id])),
        visit
            .api
            .get::<List<Version>>(Target::new("/v1/admin/plans/{}/versions", &[&id]).with("limit", "30")),
    );
    let (sheet, versions) = (sheet?, versions?.data);
    let bare = show(&Limits { sheet: &sheet, tuning: None, filling: true });
    let place: String = Target::new("/console/parts/plans/{}/limits", &[&id]).into();
    let limits = Part::over(&visit, &place, bare, limits(&visit)).await;
    let (shell, clock) = (visit.shell(sheet.title()), visit.clock());
    show(&Page { shell, path: page_of(&id), limits, versions, clock, sheet })
}

#[derive(Deserialize)]
struct Tuning {
    from: String,
    to: String,
    limits: Vec<Tuned>,
    blocked_users: Count,
}

/// How users stand to a limit.
#[derive(Deserialize)]
struct Tuned {
    name: String,
    of: Option<String>,
    p50: Option<Share>,
    p90: Option<Share>,
    p99: Option<Share>,
    users: Option<Count>,
    blocked_users: Count,
    reason: Option<String>,
}

impl Tuned {
    fn parts(&self) -> [Option<Share>; 3] {
        [self.p50, self.p90, self.p99]
    }
}

#[derive(Template)]
#[template(path = "plan_limits.html")]
struct Limits<'a> {
    sheet: &'a Sheet,
    tuning: Option<(Tuning, BTreeMap<String, usize>)>,
    filling: bool,
}

impl Limits<'_> {
    fn tuned(&self, name: &str) -> Option<&Tuned> {
        let (tuning, places) = self.tuning.as_ref()?;
        tuning.limits.get(*places.get(name)?)
    }
}

/// The limits with how the plan's users stand to them.
pub async fn limits(visit: &Visit) -> Shown {
    let id = named(visit)?;
    let sheet: Sheet = visit.api.get(Target::new("/v1/admin/plans/{}", &[&id])).await?;
    let tuning: Tuning = visit.api.get(Target::new("/v1/admin/plans/{}/tuning", &[&id])).await?;
    let places = tuning.limits.iter().enumerate().map(|(place, limit)| (limit.name.clone(), place)).collect();
    show(&Limits { sheet: &sheet, tuning: Some((tuning, places)), filling: false })
}

/// What a version that was not written yet would warn of.
fn warnings(sheet: &Sheet) -> &[Warning] {
    sheet.warnings.as_deref().unwrap_or_default()
}
