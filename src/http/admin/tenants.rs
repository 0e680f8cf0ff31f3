//! `/v1/operator/tenants`: the products that this installation serves.

use std::sync::Arc;

use actix_web::http::StatusCode;
use serde_json::{Value, json};

use super::{USUAL_PAGE, document};
use crate::domain::ids::TenantId;
use crate::http::call::Call;
use crate::http::problem::Problem;
use crate::http::reply::{Answer, Reply};
use crate::http::schema::{NewTenantRequest, TenantList, TenantPutRequest, TenantReply};
use crate::service::Tenant;
use crate::service::tenancy::tenants::{NewTenant, TenantChange};

/// Lists the tenants, by id.
#[utoipa::path(
    get, path = "/v1/operator/tenants", operation_id = "list_tenants", tag = "operator",
    params(
        ("limit" = Option<u32>, Query, description = "Most tenants of a page, 1-500, default 500"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of tenants", body = TenantList)),
    security(("bearer" = ["operator"])),
)]
pub async fn all(call: Call) -> Answer {
    let tenants = call.service().registry.tenants();
    let page = call.page(USUAL_PAGE)?;
    Ok(page.of(&tenants, |tenant| tenant.id.clone(), |tenant| tenant_view(tenant)))
}

/// Creates a tenant with the shipped plans.
#[utoipa::path(
    post, path = "/v1/operator/tenants", operation_id = "create_tenant", tag = "operator",
    request_body = NewTenantRequest,
    responses(
        (status = 201, description = "The tenant", body = TenantReply),
        (status = 409, description = "`already_exists`"),
    ),
    security(("bearer" = ["operator"])),
)]
pub async fn create(mut call: Call) -> Answer {
    let body = call.body().await?;
    let new = document(&body, NewTenant::read)?;
    let registry = &call.service().registry;
    let tenant = registry.create_tenant(&new.id, new.test, new.zone, &call.author()).await?;
    if new.suspended {
        registry.change_tenant(&tenant, TenantChange::suspension(), &call.author()).await?;
    }
    Ok(Reply::json(&tenant_view(&tenant)).with_status(StatusCode::CREATED))
}

/// Shows a tenant.
#[utoipa::path(
    get, path = "/v1/operator/tenants/{id}", operation_id = "get_tenant", tag = "operator",
    params(("id" = String, Path, description = "The tenant")),
    responses(
        (status = 200, description = "The tenant", body = TenantReply),
        (status = 404, description = "No such tenant"),
    ),
    security(("bearer" = ["operator"])),
)]
pub async fn get(call: Call) -> Answer {
    Ok(Reply::json(&tenant_view(&*tenant_in_path(&call).await?)))
}

/// Changes a tenant, or suspends it. While it is suspended every call with its
/// credentials is refused with `tenant_suspended`.
#[utoipa::path(
    put, path = "/v1/operator/tenants/{id}", operation_id = "put_tenant", tag = "operator",
    params(("id" = String, Path, description = "The tenant")),
    request_body = TenantPutRequest,
    responses(
        (status = 200, description = "The tenant", body = TenantReply),
        (status = 404, description = "No such tenant"),
    ),
    security(("bearer" = ["operator"])),
)]
pub async fn put(mut call: Call) -> Answer {
    let body = call.body().await?;
    let tenant = tenant_in_path(&call).await?;
    let change = document(&body, |node| TenantChange::read(node, &tenant))?;
    call.service().registry.change_tenant(&tenant, change, &call.author()).await?;
    Ok(Reply::json(&tenant_view(&tenant)))
}

/// Deletes a tenant with all that it has. Its credentials end at once, its id
/// is free, its audit stays.
#[utoipa::path(
    delete, path = "/v1/operator/tenants/{id}", operation_id = "delete_tenant", tag = "operator",
    params(("id" = String, Path, description = "The tenant")),
    responses(
        (status = 204, description = "Deleted"),
        (status = 404, description = "No such tenant"),
    ),
    security(("bearer" = ["operator"])),
)]
pub async fn delete(call: Call) -> Answer {
    let tenant = tenant_in_path(&call).await?;
    call.service().delete_tenant(&tenant, &call.author()).await?;
    Ok(Reply::no_content())
}

async fn tenant_in_path(call: &Call) -> Result<Arc<Tenant>, Problem> {
    let id = TenantId::parse(&call.segment("id")?).map_err(|_| Problem::not_found("tenant"))?;
    Ok(call.service().registry.tenant(&id).await?)
}

fn tenant_view(tenant: &Tenant) -> Value {
    json!({
        "id": tenant.id.as_str(),
        "zone": tenant.catalog().settings.zone.name(),
        "test": tenant.test,
        "suspended": tenant.is_suspended(),
    })
}
