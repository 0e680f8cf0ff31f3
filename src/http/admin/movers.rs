//! Who uses far more than they are used to.

use serde_json::{Value, json};

use crate::http::call::Call;
use crate::http::reply::{Answer, Reply};
use crate::http::schema::MoverList;
use crate::service::telling::movers::Moved;

const ROWS: u32 = 50;
const LEAST: u32 = 1_000;

/// Lists users whose last ten minutes are at least twice what they are used to, by
/// how many times: against their own average over the seven days before, of the five
/// minutes in which they were active. Users without a past come last, with
/// `"baseline": null`.
#[utoipa::path(
    get, path = "/v1/admin/movers", operation_id = "list_movers", tag = "admin",
    params(
        ("limit" = Option<u32>, Query, description = "Most rows, 1-500, default 50"),
        ("min" = Option<u64>, Query,
         description = "Total tokens of the last ten minutes below which nobody is listed, default 1000"),
    ),
    responses((status = 200, description = "Users, the largest move first", body = MoverList)),
    security(("bearer" = ["admin:read"])),
)]
pub async fn movers(call: Call) -> Answer {
    let tenant = call.tenant()?;
    let (limit, least) = call.query(|parameters| {
        let limit = parameters.number("limit", 1..=500);
        let least = parameters.number("min", 0..=u32::MAX);
        Some((limit.unwrap_or(ROWS), least.unwrap_or(LEAST)))
    })?;
    let movers = call.service().movers(tenant, least.into(), limit).await?;
    let rows: Vec<Value> = movers.rows.iter().map(view).collect();
    Ok(Reply::json(&json!({"data": rows, "next_cursor": null, "since": movers.since})))
}

fn view(row: &Moved) -> Value {
    json!({
        "user": row.mover.user,
        "plan": row.mover.plan,
        "requests": row.mover.requests,
        "total_tokens": row.mover.total_tokens,
        "baseline": row.baseline,
        "ratio": row.ratio,
    })
}
