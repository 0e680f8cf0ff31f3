//! `/v1/admin/keys`: what signs a product's tokens, and its API keys.

use actix_web::http::StatusCode;
use secrecy::ExposeSecret;

use super::{USUAL_PAGE, document};
use crate::http::call::Call;
use crate::http::reply::{Answer, Reply};
use crate::http::schema::{CreatedKeyReply, KeyList, NewKeyRequest};
use crate::service::access::keys::NewKey;

/// Lists the keys in force by id, without secrets.
#[utoipa::path(
    get, path = "/v1/admin/keys", operation_id = "list_keys", tag = "admin",
    params(
        ("limit" = Option<u32>, Query, description = "Most keys of a page, 1-500, default 500"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of the keys in force", body = KeyList)),
    security(("bearer" = ["admin:read"])),
)]
pub async fn all(call: Call) -> Answer {
    let keys = call.service().registry.list_keys(call.tenant()?);
    let page = call.page(USUAL_PAGE)?;
    Ok(page.of(&keys, |key| key.kid.clone(), |key| key.to_json()))
}

/// Makes a key. A secret is shown this once.
#[utoipa::path(
    post, path = "/v1/admin/keys", operation_id = "create_key", tag = "admin",
    request_body = NewKeyRequest,
    responses((status = 201, description = "The key", body = CreatedKeyReply)),
    security(("bearer" = ["admin:write"])),
)]
pub async fn create(mut call: Call) -> Answer {
    let body = call.body().await?;
    let new = document(&body, NewKey::read)?;
    let created = call.service().registry.create_key(call.tenant()?, new, &call.author()).await?;
    let mut body = created.key.to_json();
    if let Some(secret) = &created.secret {
        body["secret"] = secret.expose_secret().into();
    }
    Ok(Reply::json(&body).with_status(StatusCode::CREATED))
}

/// Removes a key: what it signed, or itself, is no longer accepted.
#[utoipa::path(
    delete, path = "/v1/admin/keys/{kid}", operation_id = "delete_key", tag = "admin",
    params(("kid" = String, Path, description = "The key")),
    responses(
        (status = 204, description = "Removed"),
        (status = 404, description = "No such key"),
    ),
    security(("bearer" = ["admin:write"])),
)]
pub async fn delete(call: Call) -> Answer {
    let kid = call.segment("kid")?;
    call.service().registry.delete_key(Some(call.tenant()?), &kid, &call.author()).await?;
    Ok(Reply::no_content())
}
