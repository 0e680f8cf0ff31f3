//! One user: where they stand, what happened, and what can be done about it.

pub mod change;
pub mod gauges;
pub mod list;
pub mod why;

use std::collections::BTreeMap;
use std::sync::Arc;

use askama::Template;
use serde::Deserialize;

use super::api::{Fault, Target};
use super::figures::{Clock, Count, UserName, full};
use super::page::{Shell, show};
use super::part::Part;
use super::rows::PlanRef;
use super::visit::{Shown, Visit};
use crate::domain::time::{Millis, Zone};
use crate::service::Scopes;

/// A user on record.
#[derive(Debug, Clone, Deserialize)]
pub struct User {
    pub user: UserName,
    pub plan: PlanRef,
    pub org: Option<String>,
    pub verified: bool,
    pub suspended: bool,
    pub zone: Option<String>,
    pub anchor_day: Option<u8>,
    pub signals: Option<Signals>,
    pub overrides: BTreeMap<String, Override>,
    pub grants: Vec<Grant>,
    pub pending: Option<Pending>,
    pub created_at: Millis,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Signals {
    pub device: Option<String>,
    pub address: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Override {
    pub limit: Option<u64>,
    pub capacity: Option<u64>,
    pub refill_per_minute: Option<u64>,
    pub expires_at: Option<Millis>,
    pub by: String,
    pub reason: String,
}

impl Override {
    /// The numbers that hold in place of the plan's.
    pub fn numbers(&self) -> String {
        let named =
            [("limit", self.limit), ("capacity", self.capacity), ("a minute", self.refill_per_minute)];
        let given = named.into_iter().filter_map(|(name, number)| Some(format!("{name} {}", full(number?))));
        given.collect::<Vec<_>>().join(", ")
    }
}

#[derive(Debug, Clone, Deserialize)]
pub struct Grant {
    pub limit: String,
    pub amount: Count,
    pub expires_at: Option<Millis>,
    pub by: String,
    pub reason: String,
    pub given_at: Millis,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Pending {
    pub plan: PlanRef,
    pub effective_at: Millis,
}

/// Something that happened to a user.
#[derive(Debug, Clone, Deserialize)]
struct Event {
    at: Millis,
    kind: String,
    hold: Option<String>,
    code: Option<String>,
    limit: Option<String>,
    by: String,
    amounts: Option<Amounts>,
}

#[derive(Debug, Clone, Deserialize)]
struct Amounts {
    input_tokens: Count,
    output_tokens: Count,
    credits: super::figures::Credits,
}

#[derive(Debug, Clone, Deserialize)]
struct RefusedDay {
    day: String,
    code: String,
    count: Count,
}

#[derive(Debug, Deserialize)]
struct History {
    data: Vec<Event>,
    next_cursor: Option<String>,
    refusals: Vec<RefusedDay>,
}

/// The user that the path names.
pub fn named(visit: &Visit) -> Result<UserName, Fault> {
    Ok(UserName(visit.call.segment("user")?))
}

pub fn target(pattern: &str, user: &UserName) -> Target {
    Target::new(pattern, &[&user.0])
}

/// As it is on record; `None` for who is not.
pub async fn on_record(visit: &Visit, user: &UserName) -> Result<Option<User>, Fault> {
    match visit.api.get(target("/v1/admin/users/{}", user)).await {
        Ok(user) => Ok(Some(user)),
        Err(fault) if fault.status == 404 => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Times as the user's own clock shows them.
pub fn clock(visit: &Visit, user: Option<&User>) -> Clock {
    let zone: Option<Arc<Zone>> = user.and_then(|user| Zone::parse(user.zone.as_deref()?).ok());
    zone.map_or_else(|| visit.clock(), |zone| visit.clock_in(zone))
}

#[derive(Template)]
#[template(path = "user.html")]
struct Page {
    shell: Shell,
    name: UserName,
    record: Option<User>,
    gauges: Option<Part>,
    story: Part,
    clock: Clock,
}

pub async fn page(visit: Visit) -> Shown {
    let v = &visit;
    let name = named(v)?;
    let record = on_record(v, &name).await?;
    let path = |part: &str| String::from(target(&format!("/console/parts/users/{{}}/{part}"), &name));
    let gauges = match v.api.may(Scopes::QUOTA) {
        true => Some(Part::at_once(v, &path("gauges"), 3, gauges::part(v)).await),
        false => None,
    };
    let cursor = v.query.get("cursor").to_owned();
    // Older pages of the story stand still.
    let every = if cursor.is_empty() { 5 } else { 0 };
    let place = String::from(target("/console/parts/users/{}/story", &name).with("cursor", &cursor));
    let story = Part::at_once(v, &place, every, story(v)).await;
    let clock = clock(v, record.as_ref());
    show(&Page { shell: v.shell(name.0.as_str()), name, record, gauges, story, clock })
}

#[derive(Template)]
#[template(path = "user_story.html")]
struct Story {
    name: UserName,
    events: Vec<Event>,
    refusals: Vec<RefusedDay>,
    next: Option<String>,
    is_first: bool,
    clock: Clock,
}

impl Story {
    /// Where it is told why a call was refused.
    fn why(&self, event: &Event) -> String {
        target("/console/users/{}/why", &self.name).with("at", &event.at.to_string()).into()
    }
}

pub async fn story(visit: &Visit) -> Shown {
    let name = named(visit)?;
    let cursor = visit.query.get("cursor").to_owned();
    let ledger = target("/v1/admin/users/{}/ledger", &name).with("limit", "20").with("cursor", &cursor);
    let history: History = match visit.api.get(ledger).await {
        Err(fault) if fault.status == 404 => History { data: vec![], next_cursor: None, refusals: vec![] },
        other => other?,
    };
    let record = on_record(visit, &name).await?;
    let next =
        history.next_cursor.map(|next| target("/console/users/{}", &name).with("cursor", &next).into());
    let clock = clock(visit, record.as_ref());
    let mut refusals = history.refusals;
    refusals.truncate(10);
    show(&Story { name, events: history.data, refusals, next, is_first: cursor.is_empty(), clock })
}
