//! `/v1/admin/settings`.

use super::versioned;
use crate::domain::document::Node;
use crate::http::call::Call;
use crate::http::problem::Problem;
use crate::http::reply::Answer;
use crate::http::schema::{SettingsPutRequest, SettingsReply};

/// Shows all settings.
#[utoipa::path(
    get, path = "/v1/admin/settings", operation_id = "get_settings", tag = "admin",
    responses((status = 200, description = "All settings in force", body = SettingsReply, headers(("ETag")))),
    security(("bearer" = ["admin:read"])),
)]
pub async fn get(call: Call) -> Answer {
    Ok(versioned(&call.service().registry.settings(call.tenant()?)))
}

/// Changes settings; those that are not named stay.
#[utoipa::path(
    put, path = "/v1/admin/settings", operation_id = "put_settings", tag = "admin",
    params(("If-Match" = Option<String>, Header, description = "The version that is to be replaced")),
    request_body = SettingsPutRequest,
    responses(
        (status = 200, description = "All settings in force", body = SettingsReply, headers(("ETag"))),
        (status = 412, description = "`changed_meanwhile`"),
    ),
    security(("bearer" = ["admin:write"])),
)]
pub async fn put(mut call: Call) -> Answer {
    let body = call.body().await?;
    let node = Node::from_json(&body).map_err(|fault| Problem::invalid(vec![fault]))?;
    let expected = call.expected_version()?;
    Ok(versioned(&call.service().put_settings(call.tenant()?, &node, expected, &call.author()).await?))
}
