//! `/v1/admin/make-goods`: extra amounts for many users at once.

use actix_web::http::StatusCode;
use serde_json::{Value, json};

use super::{USUAL_PAGE, date, document};
use crate::domain::ids::Name;
use crate::http::call::Call;
use crate::http::problem::Problem;
use crate::http::reply::{Answer, Reply};
use crate::http::schema::{MakeGoodList, MakeGoodReply, MakeGoodRequest, ReasonRequest};
use crate::service::entitlement::making_good::{Asked, Chosen, Counts, Give, Kept, MakeGoodPut, State};
use crate::service::tenancy::reason::required_reason;

/// Gives an extra amount, or what a window has used, back to many users: once by the id.
#[utoipa::path(
    put, path = "/v1/admin/make-goods/{id}", operation_id = "make_good", tag = "admin",
    params(("id" = String, Path, description = "A name of your own: the same one gives once")),
    request_body = MakeGoodRequest,
    responses(
        (status = 200, description = "All of it is done, or with `dry_run` what it would come to", body = MakeGoodReply),
        (status = 202, description = "It goes on; ask for it again", body = MakeGoodReply),
        (status = 404, description = "`unknown_plan`"),
        (status = 422, description = "`request_id_reused`: the id stands for another one"),
    ),
    security(("bearer" = ["admin:write"])),
)]
pub async fn put(mut call: Call) -> Answer {
    let body = call.body().await?;
    let id = id_in_path(&call)?;
    let MakeGoodPut { asked, dry_run } = document(&body, MakeGoodPut::read)?;
    let (service, tenant) = (call.shared_service(), call.tenant()?);
    if dry_run {
        let counts = service.try_making_good(tenant, &asked).await?;
        return Ok(Reply::json(&view(&id, &asked, "dry_run", counts)));
    }
    let kept = service.make_good(tenant, id, asked, &call.author()).await?;
    Ok(one(&kept))
}

/// Takes back what is left of what was given.
#[utoipa::path(
    post, path = "/v1/admin/make-goods/{id}/undo", operation_id = "undo_make_good", tag = "admin",
    params(("id" = String, Path, description = "The make-good")),
    request_body = ReasonRequest,
    responses(
        (status = 200, description = "All of it is taken back; what was used of it stays used", body = MakeGoodReply),
        (status = 202, description = "It goes on; ask for it again", body = MakeGoodReply),
        (status = 404, description = "There is no such make-good"),
        (status = 412, description = "`changed_meanwhile`: it is still being given"),
    ),
    security(("bearer" = ["admin:write"])),
)]
pub async fn undo(mut call: Call) -> Answer {
    let body = call.body().await?;
    let id = id_in_path(&call)?;
    let reason = document(&body, |node| node.read(required_reason))?;
    let service = call.shared_service();
    Ok(one(&service.undo_make_good(call.tenant()?, &id, &call.author(), reason).await?))
}

/// Shows a make-good.
#[utoipa::path(
    get, path = "/v1/admin/make-goods/{id}", operation_id = "get_make_good", tag = "admin",
    params(("id" = String, Path, description = "The make-good")),
    responses(
        (status = 200, description = "What was asked for, and how far it is", body = MakeGoodReply),
        (status = 404, description = "There is no such make-good"),
    ),
    security(("bearer" = ["admin:read"])),
)]
pub async fn get(call: Call) -> Answer {
    let id = id_in_path(&call)?;
    let kept = call.service().make_good_kept(call.tenant()?, &id).await?;
    let kept = kept.ok_or_else(|| Problem::not_found("make-good"))?;
    Ok(one(&kept).with_status(StatusCode::OK))
}

/// Lists make-goods by id.
#[utoipa::path(
    get, path = "/v1/admin/make-goods", operation_id = "list_make_goods", tag = "admin",
    params(
        ("limit" = Option<u32>, Query, description = "Most of a page, 1-500, default 500"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of make-goods", body = MakeGoodList)),
    security(("bearer" = ["admin:read"])),
)]
pub async fn all(call: Call) -> Answer {
    let page = call.page(USUAL_PAGE)?;
    let all = call.service().make_goods(call.tenant()?).await?;
    Ok(page.of(&all, |kept| kept.id.clone(), |kept| kept_view(kept)))
}

fn id_in_path(call: &Call) -> Result<Name, Problem> {
    Name::parse(&call.segment("id")?).map_err(|error| Problem::invalid_part("id in the path", error))
}

fn one(kept: &Kept) -> Reply {
    let is_done = matches!(kept.made.state, State::Done | State::Undone);
    let status = if is_done { StatusCode::OK } else { StatusCode::ACCEPTED };
    Reply::json(&kept_view(kept)).with_status(status)
}

fn kept_view(kept: &Kept) -> Value {
    let made = &kept.made;
    let mut body = view(&kept.id, &made.asked, made.state.as_str(), made.counts);
    body["by"] = json!(made.by);
    body["began_at"] = json!(made.began_at);
    body
}

fn view(id: &Name, asked: &Asked, state: &str, counts: Counts) -> Value {
    let Chosen { plan, org, ids, refused } = &asked.users;
    let refused = refused
        .as_ref()
        .map(|refused| json!({"from": date(refused.from), "to": date(refused.to), "code": refused.code}));
    let (grant, reset) = match &asked.give {
        Give::Grant { limit, amount, expires_at } => {
            (json!({"limit": limit, "amount": amount, "expires_at": expires_at}), Value::Null)
        }
        Give::Reset { limit } => (Value::Null, json!({ "limit": limit })),
    };
    json!({
        "id": id,
        "state": state,
        "users": {"plan": plan, "org": org, "ids": ids.as_ref().map(Vec::len), "refused": refused},
        "grant": grant,
        "reset": reset,
        "reason": asked.reason,
        "matched": counts.matched,
        "given": counts.given,
        "skipped": counts.skipped,
        "amount": counts.amount,
        "undone": counts.undone,
    })
}
