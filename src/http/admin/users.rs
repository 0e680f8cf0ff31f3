//! `/v1/admin/users`: who is on record, on which plan.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::{document, list};
use crate::domain::ids::{Name, UserId};
use crate::http::call::Call;
use crate::http::problem::Problem;
use crate::http::reply::{Answer, Reply};
use crate::http::schema::{PlanChangeRequest, PlanChangedReply, UserList, UserPutRequest, UserReply};
use crate::ledger::{User, UserQuery};
use crate::service::Tenant;
use crate::service::users::{PlanChange, Profile, UserChange};

const PAGE: u32 = 50;
const MAX_PAGE: u32 = 500;

/// Lists users by id.
#[utoipa::path(
    get, path = "/v1/admin/users", operation_id = "list_users", tag = "admin",
    params(
        ("q" = Option<String>, Query, description = "A part of the id, byte for byte"),
        ("plan" = Option<String>, Query, description = "On this plan"),
        ("org" = Option<String>, Query, description = "Of this org"),
        ("limit" = Option<u32>, Query, description = "Most users of a page, 1-500, default 50"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of users", body = UserList)),
    security(("bearer" = ["admin:read"])),
)]
pub async fn all(call: Call) -> Answer {
    let limit = call.number_parameter("limit", 1..=MAX_PAGE)?.unwrap_or(PAGE);
    let after = call.parameter("cursor")?.map(|cursor| read_cursor(&cursor)).transpose()?;
    let query = UserQuery {
        after,
        contains: call.parameter("q")?.filter(|part| !part.is_empty()),
        plan: name_parameter(&call, "plan")?,
        org: name_parameter(&call, "org")?,
        limit,
    };
    let tenant = call.tenant()?;
    let page = call.service().registry.list_users(tenant, query).await?;
    let last = page.users.last().filter(|_| page.more);
    let next_cursor = last.map(|user| write_cursor(&user.id));
    Ok(list(page.users.iter().map(|user| user_view(tenant, user)).collect(), next_cursor))
}

/// Shows a user on record.
#[utoipa::path(
    get, path = "/v1/admin/users/{user}", operation_id = "get_user", tag = "admin",
    params(("user" = String, Path, description = "The user, percent-encoded")),
    responses(
        (status = 200, description = "The user", body = UserReply, headers(("ETag"))),
        (status = 404, description = "Not on record"),
    ),
    security(("bearer" = ["admin:read"])),
)]
pub async fn get(call: Call) -> Answer {
    let id = call.user()?;
    let tenant = call.tenant()?;
    let profile = call.service().registry.user(tenant, &id).await?;
    one(tenant, &profile, |_| {})
}

/// Changes a user, or puts one on record.
#[utoipa::path(
    put, path = "/v1/admin/users/{user}", operation_id = "put_user", tag = "admin",
    params(
        ("user" = String, Path, description = "The user, percent-encoded"),
        ("If-Match" = Option<String>, Header, description = "The version that is to be replaced"),
    ),
    request_body = UserPutRequest,
    responses(
        (status = 200, description = "The user", body = UserReply, headers(("ETag"))),
        (status = 404, description = "`unknown_plan`"),
        (status = 409, description = "`sequence_required`: the last change of plan was numbered"),
        (status = 412, description = "`changed_meanwhile`"),
    ),
    security(("bearer" = ["admin:write"])),
)]
pub async fn put(mut call: Call) -> Answer {
    let body = call.body().await?;
    let change = document(&body, UserChange::read)?;
    let id = call.user()?;
    let expected = call.expected_version()?;
    let tenant = call.tenant()?;
    let profile = call.service().put_user(tenant, &id, change, expected, &call.author()).await?;
    one(tenant, &profile, |_| {})
}

/// Moves a user to a plan.
#[utoipa::path(
    post, path = "/v1/admin/users/{user}/plan", operation_id = "change_user_plan", tag = "admin",
    params(("user" = String, Path, description = "The user, percent-encoded")),
    request_body = PlanChangeRequest,
    responses(
        (status = 200, description = "The user; `stale` when a newer change was on record", body = PlanChangedReply),
        (status = 404, description = "`unknown_plan`"),
        (status = 409, description = "`sequence_required`"),
    ),
    security(("bearer" = ["admin:write"])),
)]
pub async fn change_plan(mut call: Call) -> Answer {
    let body = call.body().await?;
    let change = document(&body, PlanChange::read)?;
    let id = call.user()?;
    let tenant = call.tenant()?;
    let changed = call.service().change_plan(tenant, &id, change, &call.author()).await?;
    one(tenant, &changed.user, |body| body["stale"] = changed.stale.into())
}

fn one(tenant: &Tenant, profile: &Profile, add: impl FnOnce(&mut Value)) -> Answer {
    let user = profile.user().ok_or_else(|| Problem::not_found("user"))?;
    let mut body = user_view(tenant, user);
    add(&mut body);
    Ok(Reply::json(&body).with_version(user.version))
}

fn user_view(tenant: &Tenant, user: &User) -> Value {
    let catalog = tenant.catalog();
    let version = catalog.plan(&user.plan).map(|plan| plan.version);
    let signals = user.signals.as_ref();
    json!({
        "user": user.id.as_str(),
        "plan": {"id": user.plan.as_str(), "version": version},
        "org": user.org.as_ref().map(Name::as_str),
        "verified": user.verified,
        "suspended": user.suspended,
        "zone": user.zone,
        "anchor_day": user.anchor_day,
        "signals": signals.map(|signals| json!({"device": signals.device, "address": signals.address})),
        "overrides": {},
        "grants": [],
        "pending": null,
        "created_at": user.created_at,
        "version": user.version,
    })
}

fn name_parameter(call: &Call, name: &str) -> Result<Option<Name>, Problem> {
    let text = call.parameter(name)?;
    let parse = |text: String| {
        Name::parse(&text).map_err(|error| Problem::invalid_part(&format!("query parameter {name}"), error))
    };
    text.map(parse).transpose()
}

/// A cursor is the last id shown: lists stay right whatever is added between
/// two pages. Callers need not know.
fn write_cursor(last: &UserId) -> String {
    URL_SAFE_NO_PAD.encode(last.as_str())
}

fn read_cursor(cursor: &str) -> Result<String, Problem> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok();
    let id = bytes.and_then(|bytes| String::from_utf8(bytes).ok()).filter(|id| UserId::parse(id).is_ok());
    id.ok_or_else(|| Problem::invalid_part("query parameter cursor", "is none that was given"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_leads_back_to_its_user_and_others_are_refused() {
        let id = UserId::parse("a/b:あ").unwrap();
        assert_eq!(read_cursor(&write_cursor(&id)).unwrap(), "a/b:あ");
        for bad in ["", "%%", "AA", "gICA"] {
            assert!(read_cursor(bad).is_err(), "{bad}");
        }
    }
}
