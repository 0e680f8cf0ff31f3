//! `/v1/admin/pools`: shared upstream capacity.

use super::{USUAL_PAGE, document, name_in_path};
use crate::domain::ids::Name;
use crate::http::body;
use crate::http::call::Call;
use crate::http::problem::Problem;
use crate::http::reply::{Answer, Reply};
use crate::http::schema::{PoolList, PoolOpenRequest, PoolPutRequest, PoolReply};
use crate::service::PoolEntry;
use crate::service::tenancy::catalog_writes::PoolPut;
use crate::service::tenancy::reason::required_reason;

/// Lists the pools in force, by id.
#[utoipa::path(
    get, path = "/v1/admin/pools", operation_id = "list_pools", tag = "admin",
    params(
        ("limit" = Option<u32>, Query, description = "Most pools of a page, 1-500, default 500"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of the pools in force", body = PoolList)),
    security(("bearer" = ["admin:read"])),
)]
pub async fn all(call: Call) -> Answer {
    let (catalog, now) = (call.tenant()?.catalog(), call.tenant()?.now());
    let page = call.page(USUAL_PAGE)?;
    Ok(page.of(&catalog.pools, |entry| entry.pool.id.clone(), |entry| entry.to_json(now)))
}

/// Shows a pool in force.
#[utoipa::path(
    get, path = "/v1/admin/pools/{id}", operation_id = "get_pool", tag = "admin",
    params(("id" = String, Path, description = "The pool")),
    responses(
        (status = 200, description = "The pool in force", body = PoolReply, headers(("ETag"))),
        (status = 404, description = "No such pool"),
    ),
    security(("bearer" = ["admin:read"])),
)]
pub async fn get(call: Call) -> Answer {
    let id = name_in_path(&call, "pool")?;
    let entry = call.tenant()?.catalog().pool(&id).cloned().ok_or_else(|| Problem::not_found("pool"))?;
    shown(&call, &entry)
}

/// Puts a new version of a pool in force.
#[utoipa::path(
    put, path = "/v1/admin/pools/{id}", operation_id = "put_pool", tag = "admin",
    params(
        ("id" = String, Path, description = "The pool"),
        ("If-Match" = Option<String>, Header, description = "The version that is to be replaced"),
    ),
    request_body = PoolPutRequest,
    responses(
        (status = 200, description = "The pool in force", body = PoolReply, headers(("ETag"))),
        (status = 412, description = "`changed_meanwhile`"),
    ),
    security(("bearer" = ["admin:write"])),
)]
pub async fn put(mut call: Call) -> Answer {
    let body = call.body().await?;
    let id = Name::parse(&call.segment("id")?)
        .map_err(|error| Problem::invalid_part("pool id in the path", error))?;
    let put = document(&body, |node| PoolPut::read(node, &id))?;
    let expected = call.expected_version()?;
    let registry = &call.service().registry;
    let entry = registry.put_pool(call.tenant()?, put, expected, &call.author()).await?;
    shown(&call, &entry)
}

/// Lets calls of a closed or paused pool through again.
#[utoipa::path(
    post, path = "/v1/admin/pools/{id}/open", operation_id = "open_pool", tag = "admin",
    params(("id" = String, Path, description = "The pool")),
    request_body = PoolOpenRequest,
    responses(
        (status = 200, description = "The pool, open", body = PoolReply, headers(("ETag"))),
        (status = 404, description = "No such pool"),
    ),
    security(("bearer" = ["admin:write"])),
)]
pub async fn open(mut call: Call) -> Answer {
    let body = call.body().await?;
    let reason = body::document(&body, required_reason)?;
    let id = name_in_path(&call, "pool")?;
    let entry = call.service().open_pool(call.tenant()?, &id, &call.author(), reason).await?;
    shown(&call, &entry)
}

fn shown(call: &Call, entry: &PoolEntry) -> Answer {
    Ok(Reply::json(&entry.to_json(call.tenant()?.now())).with_version(entry.version))
}
