//! `/v1/admin/plans/{id}/preview`: what a sheet would do to those who are on the plan.

use serde_json::{Value, json};

use super::document;
use super::plans::plan_in_path;
use crate::http::call::Call;
use crate::http::reply::{Answer, Reply};
use crate::http::schema::{PreviewReply, PreviewRequest};
use crate::service::entitlement::preview::{Effect, Felt, Preview, PreviewPost};

/// Tells what a sheet would have done in the last days to those on the plan.
#[utoipa::path(
    post, path = "/v1/admin/plans/{id}/preview", operation_id = "preview_plan", tag = "admin",
    params(("id" = String, Path, description = "The plan")),
    request_body = PreviewRequest,
    responses(
        (status = 200, description = "Who would be over, refused, relieved; nothing is changed", body = PreviewReply),
        (status = 404, description = "`unknown_plan`"),
    ),
    security(("bearer" = ["admin:read"])),
)]
pub async fn preview(mut call: Call) -> Answer {
    let body = call.body().await?;
    let id = plan_in_path(&call)?;
    let post = document(&body, |node| PreviewPost::read(node, &id))?;
    let preview = call.service().preview(call.tenant()?, &id, post).await?;
    Ok(Reply::json(&view(&preview)))
}

fn view(preview: &Preview) -> Value {
    let Preview { version, from, to, users_on_plan, users, calls, is_cut, over, refused, relieved, most } =
        preview;
    json!({
        "version": version,
        "from": from,
        "to": to,
        "users_on_plan": users_on_plan,
        "users": users,
        "calls": calls,
        "complete": !is_cut,
        "over": {"users": over.users, "by_limit": over.by},
        "refused": effect(refused),
        "relieved": effect(relieved),
        "most": most.iter().map(felt).collect::<Vec<_>>(),
    })
}

fn effect(effect: &Effect) -> Value {
    json!({"users": effect.users, "calls": effect.calls, "by_code": effect.by})
}

fn felt(felt: &Felt) -> Value {
    json!({"user": felt.user, "over": felt.over, "refused": felt.refused, "relieved": felt.relieved})
}
