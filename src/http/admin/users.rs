//! `/v1/admin/users`: who is on record, on which plan.

use actix_web::http::StatusCode;
use serde_json::{Value, json};

use super::document;
use crate::domain::ids::{Name, UserId};
use crate::http::call::Call;
use crate::http::page::{Page, list};
use crate::http::problem::Problem;
use crate::http::reply::{Answer, Reply};
use crate::http::schema::{
    EraseRequest, GrantReply, GrantRequest, OverridesRequest, PlanChangeRequest, PlanChangedReply, UserList,
    UserPutRequest, UserReply,
};
use crate::http::views::rights::{grant_view, grants_view, overrides_view, plan_view, upcoming_view};
use crate::ledger::UserQuery;
use crate::service::entitlement::moving::PlanChange;
use crate::service::entitlement::profiles::Profile;
use crate::service::entitlement::rights::{GrantPost, OverridesPut};
use crate::service::entitlement::users::UserChange;
use crate::service::upstream::capacity::PushedOver;
use crate::service::{Erase, Tenant};

const PAGE: u32 = 50;

/// Lists users by id.
#[utoipa::path(
    get, path = "/v1/admin/users", operation_id = "list_users", tag = "admin",
    params(
        ("prefix" = Option<String>, Query, description = "What the id begins with, byte for byte"),
        ("q" = Option<String>, Query, description = "A part of the id, byte for byte. A page looks at 50,000 ids, \
            of a plan or an org at 20,000: it may have few users, or none, and a `next_cursor` all the same"),
        ("plan" = Option<String>, Query, description = "On this plan"),
        ("org" = Option<String>, Query, description = "Of this org"),
        ("limit" = Option<u32>, Query, description = "Most users of a page, 1-500, default 50"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of users", body = UserList)),
    security(("bearer" = ["admin:read"])),
)]
pub async fn all(call: Call) -> Answer {
    let query = call.query(|parameters| {
        let page = Page::<UserId>::read(parameters, PAGE);
        Some(UserQuery {
            after: page.after.map(|user| user.as_str().to_owned()),
            prefix: parameters.text("prefix"),
            contains: parameters.text("q"),
            upto: None,
            plan: parameters.optional("plan", Name::parse),
            org: parameters.optional("org", Name::parse),
            limit: page.limit,
        })
    })?;
    let tenant = call.tenant()?;
    let page = call.service().list_users(tenant, query).await?;
    Ok(list(page.users.iter().map(|profile| user_view(tenant, profile)).collect(), page.next))
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
    let service = call.service();
    let from = service.registry.profile(tenant, &id).await?.headed_for(tenant);
    let profile = service.put_user(tenant, &id, change, expected, &call.author()).await?;
    let over = service.pushed_over_by_move(tenant, from, &profile).await;
    one(tenant, &profile, |body| warn_of(body, &over))
}

/// Erases a user's identity. What was used stays in the sums under a pseudonym,
/// and counts for whoever comes back under the id while its windows run.
#[utoipa::path(
    delete, path = "/v1/admin/users/{user}", operation_id = "erase_user", tag = "admin",
    params(
        ("user" = String, Path, description = "The user, percent-encoded"),
        ("If-Match" = Option<String>, Header, description = "The version that is to be erased"),
    ),
    request_body = Option<EraseRequest>,
    responses(
        (status = 204, description = "Erased"),
        (status = 404, description = "Not on record"),
        (status = 412, description = "`changed_meanwhile`"),
    ),
    security(("bearer" = ["admin:write"])),
)]
pub async fn erase(mut call: Call) -> Answer {
    let body = call.body().await?;
    let erase = if body.is_empty() { Erase::default() } else { document(&body, Erase::read)? };
    let id = call.user()?;
    let expected = call.expected_version()?;
    call.state.service.erase_user(call.tenant()?, &id, erase, expected, &call.author()).await?;
    Ok(Reply::no_content())
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
    let service = call.service();
    let from = service.registry.profile(tenant, &id).await?.headed_for(tenant);
    let changed = service.change_plan(tenant, &id, change, &call.author()).await?;
    let over = service.pushed_over_by_move(tenant, from, &changed.user).await;
    one(tenant, &changed.user, |body| {
        body["stale"] = changed.stale.into();
        warn_of(body, &over);
    })
}

/// Sets a user's overrides: numbers in place of the plan's.
#[utoipa::path(
    put, path = "/v1/admin/users/{user}/overrides", operation_id = "put_user_overrides", tag = "admin",
    params(
        ("user" = String, Path, description = "The user, percent-encoded"),
        ("If-Match" = Option<String>, Header, description = "The user's version that is to be replaced"),
    ),
    request_body = OverridesRequest,
    responses(
        (status = 200, description = "The user", body = UserReply, headers(("ETag"))),
        (status = 412, description = "`changed_meanwhile`"),
    ),
    security(("bearer" = ["admin:write"])),
)]
pub async fn put_overrides(mut call: Call) -> Answer {
    let body = call.body().await?;
    let put = document(&body, OverridesPut::read)?;
    let id = call.user()?;
    let expected = call.expected_version()?;
    let tenant = call.tenant()?;
    let profile = call.service().put_overrides(tenant, &id, &put, expected, &call.author()).await?;
    one(tenant, &profile, |_| {})
}

/// Gives a user an extra amount on a window, used after the plan's own.
#[utoipa::path(
    post, path = "/v1/admin/users/{user}/grants", operation_id = "grant_user", tag = "admin",
    params(
        ("user" = String, Path, description = "The user, percent-encoded"),
        ("Idempotency-Key" = Option<String>, Header, description = "The same key gives once"),
    ),
    request_body = GrantRequest,
    responses(
        (status = 201, description = "The grant", body = GrantReply),
        (status = 422, description = "`request_id_reused`"),
    ),
    security(("bearer" = ["admin:write"])),
)]
pub async fn grant(mut call: Call) -> Answer {
    let body = call.body().await?;
    let mut post = document(&body, GrantPost::read)?;
    post.key = call.idempotency_key()?;
    let id = call.user()?;
    let tenant = call.tenant()?;
    let granting = call.service().grant(tenant, &id, &post, &call.author()).await?;
    Ok(Reply::json(&grant_view(&granting)).with_status(StatusCode::CREATED))
}

/// Says which pools a change of plan pushes over; without any, there is no field.
fn warn_of(body: &mut Value, over: &[PushedOver]) {
    if !over.is_empty() {
        body["warnings"] = over.iter().map(PushedOver::to_json).collect();
    }
}

fn one(tenant: &Tenant, profile: &Profile, add: impl FnOnce(&mut Value)) -> Answer {
    let user = profile.user().ok_or_else(|| Problem::not_found("user"))?;
    let mut body = user_view(tenant, profile);
    add(&mut body);
    Ok(Reply::json(&body).with_version(user.version))
}

fn user_view(tenant: &Tenant, profile: &Profile) -> Value {
    let Some(user) = profile.user() else { return Value::Null };
    let entitled = profile.entitlement(tenant);
    let signals = user.signals.as_ref();
    json!({
        "user": user.id.as_str(),
        "plan": plan_view(&entitled.plan),
        "org": user.org.as_ref().map(Name::as_str),
        "verified": user.verified,
        "suspended": user.suspended,
        "zone": user.zone,
        "anchor_day": user.anchor_day,
        "signals": signals.map(|signals| json!({"device": signals.device, "address": signals.address})),
        "overrides": overrides_view(user.rights.as_deref(), entitled.now),
        "grants": grants_view(user.rights.as_deref(), entitled.now),
        "pending": entitled.pending.first().map(|next| json!({
            "plan": plan_view(&next.plan),
            "effective_at": next.effective_at,
            "then": entitled.pending.get(1).map(upcoming_view),
        })),
        "created_at": user.created_at,
        "version": user.version,
    })
}
