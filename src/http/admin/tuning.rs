//! How the users of a plan stand to its limits.

use serde_json::{Value, json};

use super::date;
use super::plans::plan_in_path;
use crate::http::call::Call;
use crate::http::reply::{Answer, Reply};
use crate::http::schema::TuningReply;
use crate::service::telling::tuning::{LimitUse, Tuning};

/// Tells how much of each limit the present users of a plan used in its last whole
/// period, and how many were refused, so that limits can be set to what is used.
#[utoipa::path(
    get, path = "/v1/admin/plans/{id}/tuning", operation_id = "get_plan_tuning", tag = "admin",
    params(("id" = String, Path, description = "The plan")),
    responses(
        (status = 200, description = "Use over limit, and refusals of the last seven days", body = TuningReply),
        (status = 404, description = "`unknown_plan`"),
    ),
    security(("bearer" = ["admin:read"])),
)]
pub async fn get(call: Call) -> Answer {
    let id = plan_in_path(&call)?;
    let tuning = call.service().tuning(call.tenant()?, &id).await?;
    let limits: Vec<Value> = tuning.limits.iter().map(|limit| limit_view(limit, &tuning)).collect();
    let refusals = tuning.refusals.iter().filter_map(|row| {
        let code = row.code.as_ref()?;
        Some(
            json!({"code": code, "refusals": row.refusals, "users": row.users, "blocked_users": row.blocked}),
        )
    });
    let blocked = tuning.refusals.iter().find(|row| row.code.is_none()).map_or(0, |row| row.blocked);
    Ok(Reply::json(&json!({
        "plan": {"id": tuning.plan.as_str(), "version": tuning.version},
        "limits": limits,
        "refusals": refusals.collect::<Vec<_>>(),
        "blocked_users": blocked,
        "from": date(tuning.days.start),
        "to": date(tuning.days.end),
    })))
}

fn limit_view(row: &LimitUse, tuning: &Tuning) -> Value {
    let of_code = tuning.refusals.iter().find(|of| of.code.as_deref() == Some(row.code));
    let mut view = json!({
        "name": row.limit.name.as_str(),
        "code": row.code,
        "blocked_users": of_code.map_or(0, |of| of.blocked),
        "of": null, "users": null, "p50": null, "p90": null, "p99": null, "reason": null,
    });
    match &row.used {
        Ok(used) => {
            view["of"] = used.of.into();
            view["users"] = used.users.into();
            if let Some([p50, p90, p99]) = used.quantiles {
                view["p50"] = p50.into();
                view["p90"] = p90.into();
                view["p99"] = p99.into();
            }
        }
        Err(reason) => view["reason"] = (*reason).into(),
    }
    view
}
