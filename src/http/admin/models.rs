//! `/v1/admin/models`: aliases and prices.

use super::{document, versioned};
use crate::http::call::Call;
use crate::http::reply::Answer;
use crate::http::schema::{ModelsPutRequest, ModelsReply};
use crate::service::tenancy::catalog_writes::ModelsPut;

/// Shows the models with their aliases and prices.
#[utoipa::path(
    get, path = "/v1/admin/models", operation_id = "get_models", tag = "admin",
    responses((status = 200, description = "The models in force", body = ModelsReply, headers(("ETag")))),
    security(("bearer" = ["admin:read"])),
)]
pub async fn get(call: Call) -> Answer {
    Ok(versioned(&call.service().registry.models(call.tenant()?)))
}

/// Puts a new list of models in force.
#[utoipa::path(
    put, path = "/v1/admin/models", operation_id = "put_models", tag = "admin",
    params(("If-Match" = Option<String>, Header, description = "The version that is to be replaced")),
    request_body = ModelsPutRequest,
    responses(
        (status = 200, description = "The models in force", body = ModelsReply, headers(("ETag"))),
        (status = 412, description = "`changed_meanwhile`"),
    ),
    security(("bearer" = ["admin:write"])),
)]
pub async fn put(mut call: Call) -> Answer {
    // A long list of models is no call of everyday size.
    let body = call.batch_body().await?;
    let put = document(&body, ModelsPut::read)?;
    let expected = call.expected_version()?;
    let registry = &call.service().registry;
    Ok(versioned(&registry.put_models(call.tenant()?, put, expected, &call.author()).await?))
}
