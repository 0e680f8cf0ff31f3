//! What tenants want to be told of, and telling it: the webhooks on record, the
//! messages for them, and the way out.

mod alerts;
mod changing;
mod doubts;
mod sending;
mod signing;
mod telling;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::RwLock;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::domain::charge::TenantRef;
use crate::domain::document::{Node, Reader};
use crate::domain::ids::UserId;
use crate::domain::time::Millis;
use crate::domain::webhook::EventKind;
use crate::ledger::{Message, Record};
use crate::outbound::Target;
use crate::service::error::ServiceError;
use crate::service::tenancy::catalog::{Catalog, Tenant, parse};

pub(in crate::service) use alerts::Told;
pub use changing::{NewSecret, SecretPost, WebhookPost, WebhookPut};

/// Letters and digits of a message's id.
const ID_DIGITS: usize = 32;

/// Where a tenant wants to be told of what.
#[derive(Debug, Clone)]
pub struct Webhook {
    pub id: Arc<str>,
    pub url: Target,
    pub events: Vec<EventKind>,
    pub description: Option<String>,
    /// Nothing is sent to one that is not.
    pub enabled: bool,
    /// Of its secret, which is made from this.
    generation: u32,
    /// Until when the secret before is good as well, by the clock on the wall.
    previous_until: Option<Millis>,
    /// From when it is told of what it is told of now.
    pub(in crate::service) since: Millis,
    pub created_at: Millis,
    pub version: u32,
}

/// What concerns all webhooks of a process.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Something is to be sent.
    pub(in crate::service) due: Notify,
    /// Tenants that have webhooks.
    tenants: RwLock<HashMap<TenantRef, Arc<Tenant>, ahash::RandomState>>,
    pub delivered: AtomicU64,
    pub failed: AtomicU64,
    /// Put aside.
    pub dead: AtomicU64,
    /// Messages that wait to be sent, by whomever, as last counted.
    pub waiting: AtomicU64,
}

impl Outbox {
    /// A tenant that has webhooks.
    pub(in crate::service) fn tenant(&self, number: TenantRef) -> Option<Arc<Tenant>> {
        self.tenants.read().get(&number).cloned()
    }

    pub(in crate::service) fn tenants(&self) -> Vec<Arc<Tenant>> {
        self.tenants.read().values().cloned().collect()
    }

    /// A tenant's records were read.
    pub(in crate::service) fn look_at(&self, tenant: &Arc<Tenant>) {
        if tenant.is_deleted() || tenant.catalog().webhooks.is_empty() {
            if self.tenants.read().contains_key(&tenant.number) {
                self.tenants.write().remove(&tenant.number);
            }
        } else {
            self.tenants.write().insert(tenant.number, Arc::clone(tenant));
        }
    }
}

/// Something that happened.
pub(in crate::service) struct Event {
    pub kind: EventKind,
    /// What makes it the one that it is, within its tenant and kind.
    pub identity: String,
    /// Whom it is about.
    pub user: Option<UserId>,
    pub at: Millis,
    pub data: Value,
}

impl Webhook {
    /// Reads what [`stored`](Self::stored) wrote.
    pub(in crate::service) fn read(record: &Record) -> Result<Self, ServiceError> {
        parse(record, |node: &Node<'_>| {
            node.read(|fields: &mut Reader<'_, '_>| {
                let url = fields.required("url").parsed(Target::parse);
                let events = changing::read_events(fields);
                let description = fields.optional("description").text().map(str::to_owned);
                let enabled = fields.required("enabled").flag();
                let generation = fields.required("generation").number(1..=u32::MAX);
                let previous_until = fields.optional("previous_until").parsed(Millis::parse);
                let since = fields.required("since").parsed(Millis::parse);
                let created_at = fields.required("created_at").parsed(Millis::parse);
                Some(Self {
                    id: record.id.as_str().into(),
                    url: url?,
                    events: events?,
                    description,
                    enabled: enabled?,
                    generation: generation?,
                    previous_until,
                    since: since?,
                    created_at: created_at?,
                    version: record.version,
                })
            })
        })
    }

    fn stored(&self) -> String {
        let mut body = self.settings_json();
        body["generation"] = self.generation.into();
        body["previous_until"] = self.previous_until.map(|at| at.to_string()).into();
        body["since"] = self.since.to_string().into();
        body.to_string()
    }

    fn settings_json(&self) -> Value {
        let events: Vec<&str> = self.events.iter().map(|kind| kind.as_str()).collect();
        json!({
            "url": self.url.as_str(),
            "events": events,
            "description": self.description,
            "enabled": self.enabled,
            "created_at": self.created_at.to_string(),
        })
    }

    /// As the API shows it: without the secret.
    pub fn to_json(&self) -> Value {
        let mut body = self.settings_json();
        body["id"] = (*self.id).into();
        body["overlap_until"] = self.previous_until.map(|at| at.to_string()).into();
        body["version"] = self.version.into();
        body
    }

    fn wants(&self, kind: EventKind) -> bool {
        self.enabled && self.events.contains(&kind)
    }
}

impl Catalog {
    pub fn webhook(&self, id: &str) -> Option<&Arc<Webhook>> {
        self.webhooks.iter().find(|webhook| *webhook.id == *id)
    }

    /// Whether anybody wants to be told of this.
    pub(in crate::service) fn tells(&self, kind: EventKind) -> bool {
        self.webhooks.iter().any(|webhook| webhook.wants(kind))
    }
}

impl Tenant {
    /// An event as messages for all who want it. `wall`: now by the clock on the
    /// wall.
    pub(in crate::service) fn messages(&self, event: &Event, wall: Millis) -> Vec<Message> {
        let catalog = self.catalog();
        let wanting = catalog.webhooks.iter().filter(|webhook| webhook.wants(event.kind));
        let wanting: Vec<&Arc<Webhook>> = wanting.collect();
        match wanting.is_empty() {
            true => Vec::new(),
            false => self.messages_to(&wanting, event, wall),
        }
    }

    /// The same for these webhooks.
    fn messages_to(&self, webhooks: &[&Arc<Webhook>], event: &Event, wall: Millis) -> Vec<Message> {
        let body = json!({
            "type": event.kind.as_str(),
            "timestamp": event.at.to_string(),
            "data": event.data,
        });
        let (body, id): (Arc<str>, Arc<str>) = (body.to_string().into(), self.message_id(event).into());
        let message = |webhook: &&Arc<Webhook>| Message {
            tenant: self.number,
            webhook: Arc::clone(&webhook.id),
            id: Arc::clone(&id),
            kind: event.kind,
            user: event.user.clone(),
            body: Arc::clone(&body),
            made_at: wall,
        };
        webhooks.iter().map(message).collect()
    }

    /// The same for the same event, whichever node tells it, and however often.
    fn message_id(&self, event: &Event) -> String {
        let mut hasher = blake3::Hasher::new_derive_key("apportion 2026-11 ids of webhooks' messages");
        hasher.update(&self.number.0.to_le_bytes());
        hasher.update(event.kind.as_str().as_bytes());
        hasher.update(b"\0");
        hasher.update(event.identity.as_bytes());
        let mut id = String::from("msg_");
        for byte in &hasher.finalize().as_bytes()[..ID_DIGITS / 2] {
            // Writing to a String cannot fail.
            let _ = write!(id, "{byte:02x}");
        }
        id
    }
}
