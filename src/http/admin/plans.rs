//! `/v1/admin/plans`: sheets in force, new versions, and all versions.

use std::cmp::Reverse;
use std::sync::Arc;

use serde_json::json;

use super::{USUAL_PAGE, document};
use crate::domain::ids::Name;
use crate::domain::plan::Difference;
use crate::http::call::Call;
use crate::http::problem::Problem;
use crate::http::reply::{Answer, Reply};
use crate::http::schema::{PlanList, PlanPutRequest, PlanReply, PlanRestoreRequest, PlanVersions};
use crate::ledger::Written;
use crate::service::tenancy::catalog_writes::PlanPut;
use crate::service::upstream::capacity::PushedOver;
use crate::service::{Plan, PlanVersion, ServiceError};

/// Lists the plans in force, by id.
#[utoipa::path(
    get, path = "/v1/admin/plans", operation_id = "list_plans", tag = "admin",
    params(
        ("limit" = Option<u32>, Query, description = "Most plans of a page, 1-500, default 500"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of the plans in force", body = PlanList)),
    security(("bearer" = ["admin:read"])),
)]
pub async fn all(call: Call) -> Answer {
    let catalog = call.tenant()?.catalog();
    let page = call.page(USUAL_PAGE)?;
    let view = |plan: &&Arc<Plan>| plan.newest().to_json(&catalog);
    Ok(page.of(catalog.plans.values(), |plan| plan.id.clone(), view))
}

/// Shows a plan in force.
#[utoipa::path(
    get, path = "/v1/admin/plans/{id}", operation_id = "get_plan", tag = "admin",
    params(("id" = String, Path, description = "The plan")),
    responses(
        (status = 200, description = "The sheet in force", body = PlanReply, headers(("ETag"))),
        (status = 404, description = "`unknown_plan`"),
    ),
    security(("bearer" = ["admin:read"])),
)]
pub async fn get(call: Call) -> Answer {
    let id = plan_in_path(&call)?;
    let catalog = call.tenant()?.catalog();
    let newest = catalog.plan(&id).ok_or(ServiceError::UnknownPlan)?.newest();
    Ok(Reply::json(&newest.to_json(&catalog)).with_version(newest.version))
}

/// Puts a new version of a plan in force.
#[utoipa::path(
    put, path = "/v1/admin/plans/{id}", operation_id = "put_plan", tag = "admin",
    params(
        ("id" = String, Path, description = "The plan"),
        ("If-Match" = Option<String>, Header, description = "The version that is to be replaced"),
    ),
    request_body = PlanPutRequest,
    responses(
        (status = 200, description = "The sheet in force, with warnings of what can never bite", body = PlanReply,
         headers(("ETag"))),
        (status = 412, description = "`changed_meanwhile`"),
    ),
    security(("bearer" = ["admin:write"])),
)]
pub async fn put(mut call: Call) -> Answer {
    let body = call.body().await?;
    let id = Name::parse(&call.segment("id")?)
        .map_err(|error| Problem::invalid_part("plan id in the path", error))?;
    let put = document(&body, |node| PlanPut::read(node, &id))?;
    put_in_force(&call, put).await
}

/// Lists every version of a plan, newest first.
#[utoipa::path(
    get, path = "/v1/admin/plans/{id}/versions", operation_id = "list_plan_versions", tag = "admin",
    params(
        ("id" = String, Path, description = "The plan"),
        ("limit" = Option<u32>, Query, description = "Most versions of a page, 1-500, default 500"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses(
        (status = 200, description = "A page of versions", body = PlanVersions),
        (status = 404, description = "`unknown_plan`"),
    ),
    security(("bearer" = ["admin:read"])),
)]
pub async fn versions(call: Call) -> Answer {
    let page = call.page(USUAL_PAGE)?;
    let id = plan_in_path(&call)?;
    let versions = call.service().registry.plan_versions(call.tenant()?, &id).await?;
    let catalog = call.tenant()?.catalog();
    let before = versions.iter().skip(1).map(Some).chain([None]);
    let rows: Vec<_> = versions.iter().zip(before).collect();
    let view = |((version, written), before): &(&(PlanVersion, Written), Option<&(PlanVersion, Written)>)| {
        let mut body = version.to_json(&catalog);
        body["written_at"] = json!(written.at);
        body["written_by"] = json!(written.by);
        body["reason"] = json!(written.reason);
        body["changes"] = before.map_or(json!([]), |(before, _)| {
            let differences = before.sheet.differences_to(&version.sheet);
            let row = |of: &Difference| json!({"path": of.path, "before": of.before, "after": of.after});
            differences.iter().map(row).collect()
        });
        body
    };
    Ok(page.of(&rows, |((version, _), _)| Reverse(version.version), |row| view(row)))
}

/// Puts the sheet of an earlier version in force again, as a new version.
#[utoipa::path(
    post, path = "/v1/admin/plans/{id}/versions/{version}/restore", operation_id = "restore_plan", tag = "admin",
    params(
        ("id" = String, Path, description = "The plan"),
        ("version" = u32, Path, description = "The version whose sheet is to hold again"),
        ("If-Match" = Option<String>, Header, description = "The version that is to be replaced"),
    ),
    request_body = PlanRestoreRequest,
    responses(
        (status = 200, description = "The sheet in force, with warnings as after a PUT", body = PlanReply, headers(("ETag"))),
        (status = 404, description = "`unknown_plan`, or no such version"),
        (status = 412, description = "`changed_meanwhile`"),
    ),
    security(("bearer" = ["admin:write"])),
)]
pub async fn restore(mut call: Call) -> Answer {
    let body = call.body().await?;
    let id = plan_in_path(&call)?;
    let version = call.segment("version")?.parse::<u32>().map_err(|_| Problem::not_found("version"))?;
    let versions = call.service().registry.plan_versions(call.tenant()?, &id).await?;
    let found = versions.into_iter().find(|(known, _)| known.version == version);
    let (found, _) = found.ok_or_else(|| Problem::not_found("version"))?;
    let put = document(&body, |node| PlanPut::restore(node, found))?;
    put_in_force(&call, put).await
}

async fn put_in_force(call: &Call, put: PlanPut) -> Answer {
    let expected = call.expected_version()?;
    let (written, over) = call.service().put_plan(call.tenant()?, put, expected, &call.author()).await?;
    let mut body = written.plan.to_json(&call.tenant()?.catalog());
    let warnings = written.warnings.iter().map(|warning| json!(warning));
    body["warnings"] = warnings.chain(over.iter().map(PushedOver::to_json)).collect();
    Ok(Reply::json(&body).with_version(written.plan.version))
}

pub(super) fn plan_in_path(call: &Call) -> Result<Name, Problem> {
    Ok(Name::parse(&call.segment("id")?).map_err(|_| ServiceError::UnknownPlan)?)
}
