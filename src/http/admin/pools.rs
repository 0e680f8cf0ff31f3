//! `/v1/admin/pools`: shared upstream capacity.

use serde_json::Value;

use super::{USUAL_PAGE, document, name_in_path};
use crate::domain::ids::Name;
use crate::http::body;
use crate::http::call::Call;
use crate::http::page::list;
use crate::http::problem::Problem;
use crate::http::quota::quota_rows;
use crate::http::reply::{Answer, Reply};
use crate::http::schema::{PoolList, PoolOpenRequest, PoolPutRequest, PoolReply};
use crate::service::tenancy::catalog_writes::PoolPut;
use crate::service::tenancy::reason::required_reason;
use crate::service::{PoolEntry, ServiceError};

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
    let catalog = call.tenant()?.catalog();
    let page = call.page(USUAL_PAGE)?;
    let (entries, last) = page.part(&catalog.pools, |entry| entry.pool.id.clone());
    let entries: Vec<&PoolEntry> = entries.into_iter().map(|entry| &**entry).collect();
    Ok(list(with_loads(&call, &entries).await?, last))
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
    shown(&call, &entry).await
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
    shown(&call, &entry).await
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
    shown(&call, &entry).await
}

async fn shown(call: &Call, entry: &PoolEntry) -> Answer {
    let body = with_loads(call, &[entry]).await?.pop().unwrap_or_default();
    Ok(Reply::json(&body).with_version(entry.version))
}

/// Pools with where their limits stand: `null` where nothing is counted, and while the store does
/// not say, since what else is known of them is wanted then most of all.
async fn with_loads(call: &Call, entries: &[&PoolEntry]) -> Result<Vec<Value>, Problem> {
    let (tenant, service) = (call.tenant()?, call.service());
    let loads = match service.pool_loads(tenant, entries).await {
        Ok(loads) => loads.into_iter().map(Some).collect(),
        Err(ServiceError::StoreUnavailable(_) | ServiceError::Overloaded) => vec![None; entries.len()],
        Err(error) => return Err(error.into()),
    };
    let now = tenant.now();
    let shown = entries.iter().zip(&loads).map(|(entry, load)| {
        let rows = load.as_ref().filter(|_| entry.pool.enforced).map(|rows| quota_rows(rows));
        let mut body = entry.to_json(now);
        body["load"] = serde_json::to_value(rows).unwrap_or_default();
        body
    });
    Ok(shown.collect())
}
