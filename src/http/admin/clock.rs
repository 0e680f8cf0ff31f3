//! `/v1/admin/clock`: the clock of a test tenant.

use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::time::Millis;
use crate::http::body;
use crate::http::call::Call;
use crate::http::reply::{Answer, Reply};
use crate::http::schema::ClockPutRequest;
use crate::service::Tenant;

/// A tenant's time.
#[derive(Serialize, ToSchema)]
#[schema(as = Clock)]
pub struct ClockView {
    #[schema(value_type = String, format = DateTime)]
    now: Millis,
    /// Whether the tenant has a clock that can be set.
    test: bool,
    /// Where it stands: the checks that wait on this node, after each of them
    /// has looked whether there is room by now.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<usize>,
    /// When one of them would look again, if nothing else happens before.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    next_look_at: Option<Millis>,
}

impl ClockView {
    async fn of(call: &Call, tenant: &Tenant) -> Self {
        let (now, test) = (tenant.now(), tenant.test);
        if !tenant.clock_stands() {
            return Self { now, test, waiting: None, next_look_at: None };
        }
        let resting = call.service().at_rest(tenant).await;
        Self { now, test, waiting: Some(resting.waiting), next_look_at: resting.looks_at }
    }
}

/// Reads the tenant's time.
#[utoipa::path(
    get, path = "/v1/admin/clock", operation_id = "get_clock", tag = "admin",
    responses((status = 200, description = "Its own clock, or real time", body = ClockView)),
    security(("bearer" = ["admin:read"])),
)]
pub async fn get(call: Call) -> Answer {
    let tenant = call.tenant()?;
    Ok(Reply::json(&ClockView::of(&call, tenant).await))
}

/// Sets the clock of a test tenant, on which it then stands.
#[utoipa::path(
    put, path = "/v1/admin/clock", operation_id = "put_clock", tag = "admin",
    request_body = ClockPutRequest,
    responses(
        (status = 200, description = "It stands there now", body = ClockView),
        (status = 409, description = "`clock_backwards`"),
    ),
    security(("bearer" = ["admin:write"])),
)]
pub async fn put(mut call: Call) -> Answer {
    let body = call.body().await?;
    let now = body::document(&body, |fields| fields.required("now").parsed(Millis::parse))?;
    let tenant = call.tenant()?;
    call.service().set_clock(tenant, now, &call.author()).await?;
    Ok(Reply::json(&ClockView::of(&call, tenant).await))
}
