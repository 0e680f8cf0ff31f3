//! Why a user was refused: the figures of that moment, and what was changed around it.

use askama::Template;
use serde::Deserialize;

use super::{clock, named, on_record, target};
use crate::domain::time::Millis;
use crate::http::console::api::{Fault, List};
use crate::http::console::figures::{Clock, Count, UserName};
use crate::http::console::page::{Shell, show};
use crate::http::console::rows::Audit;
use crate::http::console::visit::{Shown, Visit};

/// As many are told of at once.
const SHOWN: &str = "5";

#[derive(Debug, Deserialize)]
struct Refusal {
    at: Millis,
    code: String,
    limit: Option<String>,
    plan: Option<Held>,
    asked: Option<Asked>,
    violations: Option<Vec<Violation>>,
    changed_before: Vec<Audit>,
    changed_since: Vec<Audit>,
}

#[derive(Debug, Deserialize)]
struct Held {
    id: String,
    version: u32,
    written_at: Option<Millis>,
    written_by: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Asked {
    model: Option<String>,
    feature: Option<String>,
    lane: String,
    input_tokens: Count,
    max_output_tokens: Option<Count>,
}

#[derive(Debug, Deserialize)]
struct Violation {
    name: String,
    scope: String,
    meter: Option<String>,
    limit: Count,
    remaining: Count,
    requested: Count,
    would_fit: Count,
    resets_at: Option<Millis>,
    retry_after_ms: Option<i64>,
}

impl Violation {
    fn wait(&self) -> Option<String> {
        self.retry_after_ms.map(crate::http::console::figures::span)
    }

    fn meter_words(&self) -> String {
        self.meter.as_deref().unwrap_or("calls at once").replace('_', " ")
    }
}

#[derive(Template)]
#[template(path = "user_why.html")]
struct Page {
    shell: Shell,
    name: UserName,
    /// As the field wants it: local, to the second.
    at: String,
    fault: Option<Fault>,
    refusals: Vec<Refusal>,
    clock: Clock,
}

pub async fn page(visit: Visit) -> Shown {
    let name = named(&visit)?;
    let record = on_record(&visit, &name).await?;
    let clock = clock(&visit, record.as_ref());
    let asked = visit.query.get("at");
    // From a link it is an instant, from the form a local time.
    let at = Millis::parse(asked).ok().or_else(|| clock.moment(asked));
    let text = at.map_or_else(|| asked.to_owned(), |at| at.to_string());
    let refusals = target("/v1/admin/users/{}/refusals", &name).with("at", &text).with("limit", SHOWN);
    let found: Result<List<Refusal>, Fault> = visit.api.get(refusals).await;
    let (refusals, fault) = match found {
        Ok(list) => (list.data, None),
        Err(fault) if fault.status == 404 => (Vec::new(), None),
        Err(fault) if fault.status == 400 => (Vec::new(), Some(fault)),
        Err(fault) => return Err(fault),
    };
    let at = at.map(|at| clock.field(at)).unwrap_or_default();
    show(&Page { shell: visit.shell("Why refused"), name, at, fault, refusals, clock })
}
