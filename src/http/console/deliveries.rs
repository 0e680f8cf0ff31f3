//! Webhooks, and what became of what was sent to them.

use actix_web::http::Method;
use askama::Template;
use serde::Deserialize;
use serde_json::Value;

use super::api::{Fault, List, Target, listed};
use super::deed::sends;
use super::figures::Clock;
use super::page::{Shell, see, show, show_with};
use super::visit::{Shown, Visit};
use crate::domain::time::Millis;

const STATES: [(&str, &str); 4] =
    [("", "All"), ("pending", "On their way"), ("delivered", "Delivered"), ("dead", "Put aside")];

#[derive(Debug, Clone, Deserialize)]
struct Webhook {
    id: String,
    url: String,
    events: Vec<String>,
    description: Option<String>,
    enabled: bool,
    created_at: Millis,
}

#[derive(Template)]
#[template(path = "webhooks.html")]
struct All {
    shell: Shell,
    webhooks: Vec<Webhook>,
    clock: Clock,
}

pub async fn all(visit: Visit) -> Shown {
    let list: List<Webhook> = visit.api.get("/v1/admin/webhooks").await?;
    show(&All { shell: visit.shell("Webhooks"), webhooks: list.data, clock: visit.clock() })
}

/// A message and what became of it.
#[derive(Debug, Clone, Deserialize)]
struct Delivery {
    id: String,
    #[serde(rename = "type")]
    kind: String,
    state: String,
    tries: u32,
    last_status: Option<u32>,
    last_error: Option<String>,
    last_try_at: Option<Millis>,
    next_try_at: Option<Millis>,
    created_at: Millis,
    payload: Value,
}

impl Delivery {
    fn pretty(&self) -> String {
        serde_json::to_string_pretty(&self.payload).unwrap_or_default()
    }
}

/// A choice that is a link.
struct Choice {
    name: &'static str,
    link: String,
    is_chosen: bool,
}

#[derive(Template)]
#[template(path = "webhook.html")]
struct Page {
    shell: Shell,
    webhook: Webhook,
    states: Vec<Choice>,
    rows: Vec<Delivery>,
    fault: Option<Fault>,
    next: Option<String>,
    is_first: bool,
    start: String,
    clock: Clock,
}

/// The messages of one webhook. Its form sends one of them again, or a test.
pub async fn page(visit: Visit) -> Shown {
    let id = visit.call.segment("id")?;
    let webhook: Webhook = visit.api.get(Target::new("/v1/admin/webhooks/{}", &[&id])).await?;
    if sends(&visit) {
        return send(&visit, &id).await;
    }
    let field = |name: &str| visit.query.get(name).to_owned();
    let (state, cursor) = (field("state"), field("cursor"));
    let at = |pattern: &str, state: &str| Target::new(pattern, &[&id]).with("state", state);
    let question = at("/v1/admin/webhooks/{}/deliveries", &state).with("cursor", &cursor);
    let (list, fault) = listed::<Delivery>(visit.api.get::<List<Delivery>>(question).await)?;
    let here = |state: &str| at("/console/webhooks/{}", state);
    let choice = |(value, name): (&'static str, &'static str)| Choice {
        name,
        link: here(value).into(),
        is_chosen: value == state,
    };
    let page = Page {
        shell: visit.shell("Webhook"),
        webhook,
        states: STATES.into_iter().map(choice).collect(),
        next: list.next_cursor.map(|next| here(&state).with("cursor", &next).into()),
        is_first: cursor.is_empty(),
        start: here(&state).into(),
        rows: list.data,
        fault,
        clock: visit.clock(),
    };
    match &page.fault {
        Some(fault) => show_with(&fault.clone(), &page),
        None => show(&page),
    }
}

async fn send(visit: &Visit, id: &str) -> Shown {
    let target = match visit.form.given("message") {
        Some(message) => Target::new("/v1/admin/webhooks/{}/deliveries/{}/retry", &[id, message]),
        None => Target::new("/v1/admin/webhooks/{}/test", &[id]),
    };
    visit.api.send::<Value>(Method::POST, target, None).await?;
    Ok(see(&String::from(Target::new("/console/webhooks/{}", &[id]).with("done", "sent"))))
}
