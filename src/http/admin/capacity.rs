//! `POST /v1/admin/capacity/check`: do the plans fit what the vendor allows?

use super::document;
use crate::http::call::Call;
use crate::http::reply::{Answer, Reply};
use crate::http::schema::{CapacityReply, CapacityRequest};
use crate::service::upstream::capacity::CapacityQuestion;

/// Holds the plans, at a number of active users each, against a pool.
#[utoipa::path(
    post, path = "/v1/admin/capacity/check", operation_id = "check_capacity", tag = "admin",
    request_body = CapacityRequest,
    responses((status = 200, description = "Demand against what is allowed, by meter", body = CapacityReply)),
    security(("bearer" = ["admin:read"])),
)]
pub async fn check(mut call: Call) -> Answer {
    let body = call.body().await?;
    let question = document(&body, CapacityQuestion::read)?;
    Ok(Reply::json(&call.service().registry.check_capacity(call.tenant()?, &question)?))
}
