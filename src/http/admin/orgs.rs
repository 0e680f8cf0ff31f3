//! `/v1/admin/orgs`: limits that users of an org share.

use actix_web::http::StatusCode;
use serde_json::{Value, json};

use super::document;
use crate::domain::ids::Name;
use crate::http::call::Call;
use crate::http::problem::Problem;
use crate::http::quota::QuotaReply;
use crate::http::reply::{Answer, Reply};
use crate::http::schema::{GrantReply, GrantRequest, OrgPutRequest, OrgReply, OverridesRequest};
use crate::http::views::rights::{grant_view, grants_view, overrides_view, plan_view};
use crate::service::Tenant;
use crate::service::entitlement::orgs::OrgChange;
use crate::service::entitlement::profiles::OrgProfile;
use crate::service::entitlement::rights::{GrantPost, OverridesPut};

/// Shows an org on record.
#[utoipa::path(
    get, path = "/v1/admin/orgs/{org}", operation_id = "get_org", tag = "admin",
    params(("org" = String, Path, description = "The org, percent-encoded")),
    responses(
        (status = 200, description = "The org", body = OrgReply, headers(("ETag"))),
        (status = 404, description = "Not on record"),
    ),
    security(("bearer" = ["admin:read"])),
)]
pub async fn get(call: Call) -> Answer {
    let id = org_in_path(&call).map_err(|_| Problem::not_found("org"))?;
    let tenant = call.tenant()?;
    one(tenant, &*call.service().registry.org(tenant, &id).await?)
}

/// Changes an org, or puts one on record.
#[utoipa::path(
    put, path = "/v1/admin/orgs/{org}", operation_id = "put_org", tag = "admin",
    params(
        ("org" = String, Path, description = "The org, percent-encoded"),
        ("If-Match" = Option<String>, Header, description = "The version that is to be replaced"),
    ),
    request_body = OrgPutRequest,
    responses(
        (status = 200, description = "The org", body = OrgReply, headers(("ETag"))),
        (status = 404, description = "`unknown_plan`"),
        (status = 412, description = "`changed_meanwhile`"),
    ),
    security(("bearer" = ["admin:write"])),
)]
pub async fn put(mut call: Call) -> Answer {
    let body = call.body().await?;
    let change = document(&body, OrgChange::read)?;
    let id = org_in_path(&call)?;
    let expected = call.expected_version()?;
    let tenant = call.tenant()?;
    one(tenant, &*call.service().put_org(tenant, &id, &change, expected, &call.author()).await?)
}

/// Shows where an org's limits stand.
#[utoipa::path(
    get, path = "/v1/admin/orgs/{org}/quota", operation_id = "get_org_quota", tag = "admin",
    params(("org" = String, Path, description = "The org, percent-encoded")),
    responses((status = 200, description = "Every limit of scope org, of the org's own sheet, else of the default \
        plan; `org` stands in place of `user`", body = QuotaReply)),
    security(("bearer" = ["admin:read"])),
)]
pub async fn quota(call: Call) -> Answer {
    let id = org_in_path(&call)?;
    let quota = call.service().org_quota(call.tenant()?, &id).await?;
    Ok(Reply::json(&QuotaReply::of_org(&quota)))
}

/// Sets an org's overrides: numbers in place of the sheet's.
#[utoipa::path(
    put, path = "/v1/admin/orgs/{org}/overrides", operation_id = "put_org_overrides", tag = "admin",
    params(
        ("org" = String, Path, description = "The org, percent-encoded"),
        ("If-Match" = Option<String>, Header, description = "The org's version that is to be replaced"),
    ),
    request_body = OverridesRequest,
    responses(
        (status = 200, description = "The org", body = OrgReply, headers(("ETag"))),
        (status = 412, description = "`changed_meanwhile`"),
    ),
    security(("bearer" = ["admin:write"])),
)]
pub async fn put_overrides(mut call: Call) -> Answer {
    let body = call.body().await?;
    let put = document(&body, OverridesPut::read)?;
    let id = org_in_path(&call)?;
    let expected = call.expected_version()?;
    let tenant = call.tenant()?;
    one(tenant, &*call.service().put_org_overrides(tenant, &id, &put, expected, &call.author()).await?)
}

/// Gives an org an extra amount on a window.
#[utoipa::path(
    post, path = "/v1/admin/orgs/{org}/grants", operation_id = "grant_org", tag = "admin",
    params(
        ("org" = String, Path, description = "The org, percent-encoded"),
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
    let id = org_in_path(&call)?;
    let granting = call.service().grant_org(call.tenant()?, &id, &post, &call.author()).await?;
    Ok(Reply::json(&grant_view(&granting)).with_status(StatusCode::CREATED))
}

fn org_in_path(call: &Call) -> Result<Name, Problem> {
    Name::parse(&call.segment("org")?).map_err(|error| Problem::invalid_part("org in the path", error))
}

fn one(tenant: &Tenant, profile: &OrgProfile) -> Answer {
    let org = profile.org().ok_or_else(|| Problem::not_found("org"))?;
    Ok(Reply::json(&org_view(tenant, profile)).with_version(org.version))
}

fn org_view(tenant: &Tenant, profile: &OrgProfile) -> Value {
    let Some(org) = profile.org() else { return Value::Null };
    let now = tenant.now();
    let rights = org.rights.as_deref();
    json!({
        "org": org.id.as_str(),
        "plan": profile.plan_in_force(tenant).as_ref().map(plan_view),
        "zone": org.zone,
        "overrides": overrides_view(rights, now),
        "grants": grants_view(rights, now),
        "created_at": org.created_at,
        "version": org.version,
    })
}
