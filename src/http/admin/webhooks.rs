//! `/v1/admin/webhooks`: where a tenant wants to be told of what, and what
//! became of it.

use actix_web::http::StatusCode;
use secrecy::ExposeSecret;
use serde_json::{Value, json};

use super::{USUAL_PAGE, document};
use crate::domain::time::Millis;
use crate::http::body;
use crate::http::call::Call;
use crate::http::page::{Key, Page, list};
use crate::http::reply::{Answer, Reply};
use crate::http::schema::{
    DeliveryList, DeliveryReply, WebhookList, WebhookPostRequest, WebhookPutRequest, WebhookReply,
    WebhookSecretReply, WebhookSecretRequest,
};
use crate::ledger::{DeliveriesQuery, Delivery, DeliveryState};
use crate::service::ServiceError;
use crate::service::webhooks::{NewSecret, SecretPost, Webhook, WebhookPost, WebhookPut};

const PAGE: u32 = 50;

/// Lists the webhooks by id, without secrets.
#[utoipa::path(
    get, path = "/v1/admin/webhooks", operation_id = "list_webhooks", tag = "admin",
    params(
        ("limit" = Option<u32>, Query, description = "Most webhooks of a page, 1-500, default 500"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of webhooks", body = WebhookList)),
    security(("bearer" = ["admin:read"])),
)]
pub async fn all(call: Call) -> Answer {
    let catalog = call.tenant()?.catalog();
    let page = call.page(USUAL_PAGE)?;
    Ok(page.of(&catalog.webhooks, |webhook| ById(webhook.id.to_string()), |webhook| webhook.to_json()))
}

/// Adds a webhook. Its secret is shown this once.
#[utoipa::path(
    post, path = "/v1/admin/webhooks", operation_id = "create_webhook", tag = "admin",
    request_body = WebhookPostRequest,
    responses((status = 201, description = "The webhook", body = WebhookSecretReply, headers(("ETag")))),
    security(("bearer" = ["admin:write"])),
)]
pub async fn create(mut call: Call) -> Answer {
    let body = call.body().await?;
    let post = document(&body, WebhookPost::read)?;
    let new = call.service().add_webhook(call.tenant()?, post, &call.author()).await?;
    Ok(with_secret(&new).with_status(StatusCode::CREATED))
}

/// Shows a webhook.
#[utoipa::path(
    get, path = "/v1/admin/webhooks/{id}", operation_id = "get_webhook", tag = "admin",
    params(("id" = String, Path, description = "The webhook")),
    responses(
        (status = 200, description = "The webhook", body = WebhookReply, headers(("ETag"))),
        (status = 404, description = "No such webhook"),
    ),
    security(("bearer" = ["admin:read"])),
)]
pub async fn get(call: Call) -> Answer {
    let id = call.segment("id")?;
    let webhook = call.tenant()?.catalog().webhook(&id).cloned();
    Ok(shown(&*webhook.ok_or(ServiceError::NotFound("webhook"))?))
}

/// Changes a webhook; missing fields stay. To one that is not `enabled`
/// nothing is sent.
#[utoipa::path(
    put, path = "/v1/admin/webhooks/{id}", operation_id = "put_webhook", tag = "admin",
    params(
        ("id" = String, Path, description = "The webhook"),
        ("If-Match" = Option<String>, Header, description = "The version that is to be replaced"),
    ),
    request_body = WebhookPutRequest,
    responses(
        (status = 200, description = "The webhook", body = WebhookReply, headers(("ETag"))),
        (status = 404, description = "No such webhook"),
        (status = 412, description = "`changed_meanwhile`"),
    ),
    security(("bearer" = ["admin:write"])),
)]
pub async fn put(mut call: Call) -> Answer {
    let body = call.body().await?;
    let put = document(&body, WebhookPut::read)?;
    let (id, expected) = (call.segment("id")?, call.expected_version()?);
    let webhook = call.service().put_webhook(call.tenant()?, &id, put, expected, &call.author()).await?;
    Ok(shown(&webhook))
}

/// Removes a webhook, with what waits to be sent to it.
#[utoipa::path(
    delete, path = "/v1/admin/webhooks/{id}", operation_id = "delete_webhook", tag = "admin",
    params(
        ("id" = String, Path, description = "The webhook"),
        ("If-Match" = Option<String>, Header, description = "The version that is to be removed"),
    ),
    responses(
        (status = 204, description = "Removed"),
        (status = 404, description = "No such webhook"),
        (status = 412, description = "`changed_meanwhile`"),
    ),
    security(("bearer" = ["admin:write"])),
)]
pub async fn delete(call: Call) -> Answer {
    let (id, expected) = (call.segment("id")?, call.expected_version()?);
    call.service().remove_webhook(call.tenant()?, &id, expected, &call.author()).await?;
    Ok(Reply::no_content())
}

/// Makes a new secret, shown this once. For `overlap_seconds` messages are
/// signed with the one before as well.
#[utoipa::path(
    post, path = "/v1/admin/webhooks/{id}/secret", operation_id = "renew_webhook_secret", tag = "admin",
    params(("id" = String, Path, description = "The webhook")),
    request_body = Option<WebhookSecretRequest>,
    responses(
        (status = 200, description = "The webhook with its new secret", body = WebhookSecretReply,
         headers(("ETag"))),
        (status = 404, description = "No such webhook"),
    ),
    security(("bearer" = ["admin:write"])),
)]
pub async fn renew_secret(mut call: Call) -> Answer {
    let body = call.body().await?;
    let post = body::optional_document(&body, SecretPost::read)?;
    let id = call.segment("id")?;
    let new = call.service().renew_webhook_secret(call.tenant()?, &id, post, &call.author()).await?;
    Ok(with_secret(&new))
}

/// Sends a message of type `webhook.test`.
#[utoipa::path(
    post, path = "/v1/admin/webhooks/{id}/test", operation_id = "test_webhook", tag = "admin",
    params(("id" = String, Path, description = "The webhook")),
    responses(
        (status = 202, description = "The message, on its way", body = DeliveryReply),
        (status = 404, description = "No such webhook"),
    ),
    security(("bearer" = ["admin:write"])),
)]
pub async fn test(mut call: Call) -> Answer {
    let body = call.body().await?;
    body::optional_document(&body, |_| Some(()))?;
    let told = call.service().test_webhook(call.tenant()?, &call.segment("id")?).await?;
    Ok(Reply::json(&delivery(&told)).with_status(StatusCode::ACCEPTED))
}

/// Lists what was, and is to be, sent to a webhook, newest first.
#[utoipa::path(
    get, path = "/v1/admin/webhooks/{id}/deliveries", operation_id = "list_deliveries", tag = "admin",
    params(
        ("id" = String, Path, description = "The webhook"),
        ("state" = Option<String>, Query, description = "`pending`, `delivered` or `dead`"),
        ("limit" = Option<u32>, Query, description = "Most messages of a page, 1-500, default 50"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses(
        (status = 200, description = "A page of messages", body = DeliveryList),
        (status = 404, description = "No such webhook"),
    ),
    security(("bearer" = ["admin:read"])),
)]
pub async fn deliveries(call: Call) -> Answer {
    let webhook = call.segment("id")?;
    let (query, limit) = call.query(|parameters| {
        let page = Page::<Newest>::read(parameters, PAGE);
        let named = |text: &str| DeliveryState::NAMED.iter().find(|(name, _)| *name == text);
        let state = parameters.optional("state", |text| {
            named(text).map(|(_, state)| *state).ok_or("must be one of: pending, delivered, dead")
        });
        let before = page.after.map(|Newest(at, id)| (at, id));
        Some((DeliveriesQuery { webhook, state, before, limit: page.limit + 1 }, page.limit as usize))
    })?;
    let mut found = call.service().deliveries(call.tenant()?, query).await?;
    let more = found.len() > limit;
    found.truncate(limit);
    let place = |last: &Delivery| Newest(last.message.made_at, last.message.id.to_string());
    let last = found.last().filter(|_| more).map(place);
    Ok(list(found.iter().map(delivery).collect(), last))
}

/// Sends a message again, now and with all its tries, whatever became of it.
#[utoipa::path(
    post, path = "/v1/admin/webhooks/{id}/deliveries/{message}/retry", operation_id = "retry_delivery",
    tag = "admin",
    params(
        ("id" = String, Path, description = "The webhook"),
        ("message" = String, Path, description = "The message"),
    ),
    responses(
        (status = 202, description = "The message, on its way", body = DeliveryReply),
        (status = 404, description = "No such webhook or message"),
    ),
    security(("bearer" = ["admin:write"])),
)]
pub async fn retry(mut call: Call) -> Answer {
    let body = call.body().await?;
    body::optional_document(&body, |_| Some(()))?;
    let (webhook, message) = (call.segment("id")?, call.segment("message")?);
    let sent = call.service().send_again(call.tenant()?, &webhook, &message).await?;
    Ok(Reply::json(&delivery(&sent)).with_status(StatusCode::ACCEPTED))
}

fn shown(webhook: &Webhook) -> Reply {
    Reply::json(&webhook.to_json()).with_version(webhook.version)
}

fn with_secret(new: &NewSecret) -> Reply {
    let mut body = new.webhook.to_json();
    body["secret"] = new.secret.expose_secret().into();
    Reply::json(&body).with_version(new.webhook.version)
}

fn delivery(delivery: &Delivery) -> Value {
    let message = &delivery.message;
    let at = |at: Option<Millis>| at.map(|at| at.to_string());
    json!({
        "id": *message.id,
        "type": message.kind.as_str(),
        "state": delivery.state.as_str(),
        "tries": delivery.tries,
        "last_status": delivery.status,
        "last_error": delivery.error,
        "last_try_at": at(delivery.last_at),
        "next_try_at": at(delivery.next_at),
        "created_at": message.made_at.to_string(),
        "payload": serde_json::from_str::<Value>(&message.body).unwrap_or_default(),
    })
}

/// A webhook's id.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct ById(String);

impl Key for ById {
    const LIST: &'static str = "webhooks";

    fn read(text: &str) -> Option<Self> {
        Some(Self(text.to_owned()))
    }

    fn write(&self) -> String {
        self.0.clone()
    }
}

/// When a message was made, and its id.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Newest(Millis, String);

impl Key for Newest {
    const LIST: &'static str = "deliveries";

    fn read(text: &str) -> Option<Self> {
        let (at, id) = text.split_once('.')?;
        Some(Self(Millis(at.parse().ok()?), id.to_owned()))
    }

    fn write(&self) -> String {
        format!("{}.{}", self.0.0, self.1)
    }
}
