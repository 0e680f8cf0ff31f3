//! Adding, changing and removing webhooks.

use std::sync::Arc;

use secrecy::SecretString;
use serde_json::{Value, json};

use super::{Event, Webhook};
use crate::domain::document::{Fault, Node, Reader};
use crate::domain::time::Millis;
use crate::domain::webhook::EventKind;
use crate::ledger::{DeliveriesQuery, Delivery, RecordKind};
use crate::outbound::{Reach, Target};
use crate::service::access::keys::new_kid;
use crate::service::error::ServiceError;
use crate::service::tenancy::catalog::{Catalog, Tenant};
use crate::service::tenancy::catalog_writes::{Made, Write};
use crate::service::tenancy::reason::optional_reason;
use crate::service::tenancy::registry::Registry;
use crate::service::{Service, new_hold_id};

/// Webhooks of a tenant.
const WEBHOOKS_MAX: usize = 50;
const DESCRIPTION_MAX: usize = 256;
/// How long the secret before a new one signs as well, unless one says.
const OVERLAP_S: u32 = 24 * 3600;
const OVERLAP_MAX_S: u32 = 30 * 24 * 3600;

/// What `POST webhooks` asks for.
#[derive(Debug)]
pub struct WebhookPost {
    url: Target,
    events: Vec<EventKind>,
    description: Option<String>,
    reason: Option<String>,
}

/// What `PUT webhooks/{id}` changes; what is missing stays.
#[derive(Debug, Clone, Default)]
pub struct WebhookPut {
    url: Option<Target>,
    events: Option<Vec<EventKind>>,
    /// `Some(None)`: it goes.
    description: Option<Option<String>>,
    enabled: Option<bool>,
    reason: Option<String>,
}

/// What `POST webhooks/{id}/secret` asks for.
#[derive(Debug)]
pub struct SecretPost {
    overlap_s: u32,
    reason: Option<String>,
}

/// A webhook with the secret by which its messages are signed from now on. It is
/// told now and never again.
pub struct NewSecret {
    pub webhook: Arc<Webhook>,
    pub secret: SecretString,
}

/// The field `events`: at least one, each once.
pub(super) fn read_events(fields: &mut Reader<'_, '_>) -> Option<Vec<EventKind>> {
    let max = 4 * EventKind::NAMED.len();
    let named = fields.required("events").list(max, |event| event.choice(&EventKind::NAMED))?;
    let mut events = Vec::with_capacity(named.len());
    for event in named {
        if !events.contains(&event) {
            events.push(event);
        }
    }
    if events.is_empty() {
        fields.fault("events", "must name at least one event");
        return None;
    }
    Some(events)
}

fn read_description(fields: &mut Reader<'_, '_>) -> Option<String> {
    fields.optional("description").text_up_to(DESCRIPTION_MAX).map(str::to_owned)
}

impl WebhookPost {
    /// Reads `{"url","events","description","reason"}`.
    pub fn read(node: &Node<'_>) -> Result<Self, Vec<Fault>> {
        node.read(|fields| {
            let url = fields.required("url").parsed(Target::parse);
            let events = read_events(fields);
            let (description, reason) = (read_description(fields), optional_reason(fields));
            Some(Self { url: url?, events: events?, description, reason })
        })
    }
}

impl WebhookPut {
    /// Reads `{"url","events","description","enabled","reason"}`.
    pub fn read(node: &Node<'_>) -> Result<Self, Vec<Fault>> {
        node.read(|fields| {
            let url = fields.optional("url").parsed(Target::parse);
            let events = if fields.has("events") { Some(read_events(fields)?) } else { None };
            let description = fields.is_null("description").then_some(None);
            let description = description.or_else(|| read_description(fields).map(Some));
            let enabled = fields.optional("enabled").flag();
            Some(Self { url, events, description, enabled, reason: optional_reason(fields) })
        })
    }

    fn apply(self, webhook: &mut Webhook, now: Millis) {
        if let Some(url) = self.url {
            webhook.url = url;
        }
        if let Some(description) = self.description {
            webhook.description = description;
        }
        let before = (webhook.enabled, webhook.events.clone());
        if let Some(enabled) = self.enabled {
            webhook.enabled = enabled;
        }
        if let Some(events) = self.events {
            webhook.events = events;
        }
        if before != (webhook.enabled, webhook.events.clone()) {
            webhook.since = now;
        }
    }
}

impl SecretPost {
    /// Reads `{"overlap_seconds","reason"}`.
    pub fn read(fields: &mut Reader<'_, '_>) -> Option<Self> {
        let overlap = fields.optional("overlap_seconds").number(0..=OVERLAP_MAX_S);
        Some(Self { overlap_s: overlap.unwrap_or(OVERLAP_S), reason: optional_reason(fields) })
    }
}

impl Registry {
    /// # Errors
    /// `Invalid` when the tenant has too many webhooks.
    async fn add_webhook(
        &self,
        tenant: &Arc<Tenant>,
        post: WebhookPost,
        by: &str,
    ) -> Result<NewSecret, ServiceError> {
        let id = format!("wh_{}", new_kid()?);
        let WebhookPost { url, events, description, reason } = post;
        let now = tenant.now();
        let new = Webhook {
            id: id.as_str().into(),
            url,
            events,
            description,
            enabled: true,
            generation: 1,
            previous_until: None,
            since: now,
            created_at: now,
            version: 0,
        };
        let room = |catalog: &Catalog| match catalog.webhooks.len() >= WEBHOOKS_MAX {
            true => Err(ServiceError::invalid(
                "",
                format!("there are {WEBHOOKS_MAX} webhooks already: remove one"),
            )),
            false => Ok(Made::body(new.stored())),
        };
        let write = Write { kind: RecordKind::Webhook, id: &id, expected: None, by, reason };
        let catalog = self.write_made(tenant, write, |catalog, _| room(catalog)).await?;
        self.with_secret(tenant, catalog.webhook(&id))
    }

    /// Changes a webhook that there is.
    async fn change_webhook(
        &self,
        tenant: &Arc<Tenant>,
        id: &str,
        expected: Option<u32>,
        (by, reason): (&str, Option<String>),
        change: impl Fn(&mut Webhook) + Send + Sync,
    ) -> Result<Arc<Webhook>, ServiceError> {
        let write = Write { kind: RecordKind::Webhook, id, expected, by, reason };
        let make = |catalog: &Catalog, _: u32| {
            let mut webhook = Webhook::clone(catalog.webhook(id).ok_or(ServiceError::NotFound("webhook"))?);
            change(&mut webhook);
            Ok(Made::body(webhook.stored()))
        };
        let catalog = self.write_made(tenant, write, make).await?;
        catalog.webhook(id).cloned().ok_or(ServiceError::NotFound("webhook"))
    }

    fn with_secret(
        &self,
        tenant: &Tenant,
        webhook: Option<&Arc<Webhook>>,
    ) -> Result<NewSecret, ServiceError> {
        let webhook = webhook.cloned().ok_or(ServiceError::NotFound("webhook"))?;
        let secret = webhook.secret(tenant.number, &self.files);
        Ok(NewSecret { webhook, secret })
    }

    /// No more is sent to a receiver that says it is gone.
    pub(super) async fn disable_webhook(&self, tenant: &Arc<Tenant>, id: &str) -> Result<(), ServiceError> {
        let why = ("webhooks", Some("its receiver answered 410 Gone".to_owned()));
        self.change_webhook(tenant, id, None, why, |webhook| webhook.enabled = false).await.map(drop)
    }
}

impl Service {
    /// Puts a webhook on record.
    ///
    /// # Errors
    /// `Invalid`: the URL leads to a private address and must not, or there are
    /// too many.
    pub async fn add_webhook(
        &self,
        tenant: &Arc<Tenant>,
        post: WebhookPost,
        by: &str,
    ) -> Result<NewSecret, ServiceError> {
        self.check_target(tenant, &post.url).await?;
        self.registry.add_webhook(tenant, post, by).await
    }

    /// Changes a webhook.
    ///
    /// # Errors
    /// `NotFound`; `ChangedMeanwhile` when it is not at version `expected`;
    /// `Invalid` as for [`add_webhook`](Self::add_webhook).
    pub async fn put_webhook(
        &self,
        tenant: &Arc<Tenant>,
        id: &str,
        put: WebhookPut,
        expected: Option<u32>,
        by: &str,
    ) -> Result<Arc<Webhook>, ServiceError> {
        if let Some(url) = &put.url {
            self.check_target(tenant, url).await?;
        }
        let why = (by, put.reason.clone());
        let change = |webhook: &mut Webhook| put.clone().apply(webhook, tenant.now());
        self.registry.change_webhook(tenant, id, expected, why, change).await
    }

    /// Makes a new secret; for a while messages are signed with the one before
    /// as well.
    pub async fn renew_webhook_secret(
        &self,
        tenant: &Arc<Tenant>,
        id: &str,
        post: SecretPost,
        by: &str,
    ) -> Result<NewSecret, ServiceError> {
        let until = self.registry.wall.now().plus_ms(i64::from(post.overlap_s) * 1000);
        let renew = |webhook: &mut Webhook| {
            webhook.generation += 1;
            webhook.previous_until = (post.overlap_s > 0).then_some(until);
        };
        let webhook = self.registry.change_webhook(tenant, id, None, (by, post.reason), renew).await?;
        self.registry.with_secret(tenant, Some(&webhook))
    }

    /// Removes a webhook, with what waits to be sent to it.
    pub async fn remove_webhook(
        &self,
        tenant: &Arc<Tenant>,
        id: &str,
        expected: Option<u32>,
        by: &str,
    ) -> Result<(), ServiceError> {
        let write = Write { kind: RecordKind::Webhook, id, expected, by, reason: None };
        let make = |catalog: &Catalog, _: u32| match catalog.webhook(id) {
            Some(_) => Ok(Made::deletion()),
            None => Err(ServiceError::NotFound("webhook")),
        };
        self.registry.write_made(tenant, write, make).await?;
        // What is made of what happens just now is removed when it is due.
        Ok(self.ledger.forget_webhook(tenant.number, id.to_owned()).await?)
    }

    async fn check_target(&self, tenant: &Tenant, url: &Target) -> Result<(), ServiceError> {
        if self.registry.reach(tenant) == Reach::Anywhere || self.courier.is_public(url).await {
            return Ok(());
        }
        let fault = "must lead to a public address, unless the setting allow_private_targets is on";
        Err(ServiceError::invalid("/url", fault))
    }

    /// A page of what was, and is to be, sent to a webhook, newest first.
    pub async fn deliveries(
        &self,
        tenant: &Tenant,
        query: DeliveriesQuery,
    ) -> Result<Vec<Delivery>, ServiceError> {
        found(tenant, &query.webhook)?;
        Ok(self.ledger.deliveries(tenant.number, query).await?)
    }

    /// Sends a message again, whatever became of it: now, and with all its tries.
    pub async fn send_again(
        &self,
        tenant: &Tenant,
        webhook: &str,
        id: &str,
    ) -> Result<Delivery, ServiceError> {
        found(tenant, webhook)?;
        let now = self.registry.wall.now();
        let sent = self.ledger.send_again(tenant.number, webhook.to_owned(), id.to_owned(), now).await?;
        self.registry.outbox.due.notify_one();
        sent.ok_or(ServiceError::NotFound("delivery"))
    }

    /// Sends a message to a webhook that tells of nothing.
    pub async fn test_webhook(&self, tenant: &Tenant, webhook: &str) -> Result<Delivery, ServiceError> {
        let webhook = found(tenant, webhook)?;
        let data: Value = json!({ "webhook": *webhook.id, "tenant": tenant.id.as_str() });
        let (at, wall) = (tenant.now(), self.registry.wall.now());
        let identity = new_hold_id(wall).to_string();
        let event = Event { kind: EventKind::Test, identity, user: None, at, data };
        let messages = tenant.messages_to(&[&webhook], &event, wall);
        let id = messages.first().map(|message| message.id.to_string()).unwrap_or_default();
        self.ledger.tell(messages).await?;
        self.registry.outbox.due.notify_one();
        let query = DeliveriesQuery {
            webhook: webhook.id.to_string(),
            state: None,
            before: Some((wall, format!("{id}~"))),
            limit: 1,
        };
        let told = self.ledger.deliveries(tenant.number, query).await?;
        told.into_iter().find(|told| *told.message.id == *id).ok_or(ServiceError::NotFound("delivery"))
    }
}

fn found(tenant: &Tenant, webhook: &str) -> Result<Arc<Webhook>, ServiceError> {
    tenant.catalog().webhook(webhook).cloned().ok_or(ServiceError::NotFound("webhook"))
}
