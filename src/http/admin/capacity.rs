//! `POST /v1/admin/capacity/check`: do the plans fit what the vendor allows?

use super::document;
use crate::http::call::Call;
use crate::http::reply::{Answer, Reply};
use crate::http::schema::{CapacityReply, CapacityRequest};
use crate::service::upstream::capacity::CapacityQuestion;

/// Holds the plans, at a number of active users each, against a pool. Without
/// `active` the measured peak counts: the most users of each plan with an admitted
/// check within the same five minutes of the last seven days.
#[utoipa::path(
    post, path = "/v1/admin/capacity/check", operation_id = "check_capacity", tag = "admin",
    request_body = CapacityRequest,
    responses((status = 200, description = "Demand against what is allowed, by meter", body = CapacityReply)),
    security(("bearer" = ["admin:read"])),
)]
pub async fn check(mut call: Call) -> Answer {
    let body = call.body().await?;
    let question = document(&body, CapacityQuestion::read)?;
    let (report, measured) = call.service().check_capacity(call.tenant()?, &question).await?;
    let mut body = serde_json::to_value(report).unwrap_or_default();
    body["measured"] = measured.into();
    Ok(Reply::json(&body))
}
