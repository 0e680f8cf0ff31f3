//! Probes, metrics and documents: never limited, never about a tenant.

use std::sync::{Arc, LazyLock};

use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderValue};
use actix_web::web::Bytes;
use serde::Serialize;
use utoipa::ToSchema;

use super::call::Call;
use super::openapi;
use super::problem::{self, Problem};
use super::reply::{Answer, Reply};
use crate::domain::time::tz_version;

const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// Problem pages hold no script and load nothing.
const PAGE_POLICY: HeaderValue = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");

/// Whether the process answers or can decide.
#[derive(Serialize, ToSchema)]
pub struct Health {
    /// `ok`
    status: &'static str,
    /// Of the zone rules in use. Readiness only.
    #[serde(skip_serializing_if = "Option::is_none")]
    tz_version: Option<String>,
}

/// Tells that the process runs.
#[utoipa::path(
    get, path = "/livez", operation_id = "livez", tag = "health",
    responses((status = 200, description = "It runs", body = Health)),
)]
pub async fn livez(_call: Call) -> Answer {
    Ok(Reply::json(&Health { status: "ok", tz_version: None }))
}

/// Tells whether calls can be decided: the store answers.
#[utoipa::path(
    get, path = "/readyz", operation_id = "readyz", tag = "health",
    responses((status = 200, description = "Calls can be decided", body = Health)),
)]
pub async fn readyz(call: Call) -> Answer {
    call.service().ready().await?;
    Ok(Reply::json(&Health { status: "ok", tz_version: Some(tz_version()) }))
}

/// Metrics for Prometheus.
#[utoipa::path(
    get, path = "/metrics", operation_id = "metrics", tag = "health",
    responses((status = 200, description = "OpenMetrics text", body = String,
               content_type = "application/openmetrics-text")),
)]
pub async fn metrics(call: Call) -> Answer {
    Ok(Reply::bytes(OPEN_METRICS, call.state.metrics.render().into()))
}

/// This description.
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "openapi", tag = "documents",
    responses((status = 200, description = "OpenAPI 3.1", body = Object)),
)]
pub async fn openapi_json(_call: Call) -> Answer {
    static TEXT: LazyLock<Bytes> = LazyLock::new(|| openapi::json().into());
    Ok(Reply::bytes(HeaderValue::from_static("application/json"), TEXT.clone()))
}

/// What a problem's code means, for people.
#[utoipa::path(
    get, path = "/problems/{code}", operation_id = "problem_page", tag = "documents",
    params(("code" = String, Path, description = "The code of a problem")),
    responses(
        (status = 200, description = "A page", body = String, content_type = "text/html"),
        (status = 404, description = "There is no such code"),
    ),
)]
pub async fn problem_page(call: Call) -> Answer {
    match problem::page(&call.segment("code")?) {
        Some(html) => {
            Ok(Reply::bytes(HTML, html.into()).with_header(header::CONTENT_SECURITY_POLICY, PAGE_POLICY))
        }
        None => Err(Problem::not_found("code")),
    }
}

/// Leads to the pages of [`docs_file`], whose links are relative.
pub async fn docs(_call: Call) -> Answer {
    let home = HeaderValue::from_static("/docs/index.html");
    Ok(Reply::no_content().with_status(StatusCode::FOUND).with_header(header::LOCATION, home))
}

/// The API description to read and try; everything it needs is in the binary.
#[utoipa::path(
    get, path = "/docs/{file}", operation_id = "docs", tag = "documents",
    params(("file" = String, Path, description = "`index.html` and what it loads")),
    responses(
        (status = 200, description = "A file of the API browser", body = String, content_type = "text/html"),
        (status = 404, description = "There is no such file"),
    ),
)]
pub async fn docs_file(call: Call) -> Answer {
    static CONFIG: LazyLock<Arc<utoipa_swagger_ui::Config<'static>>> =
        LazyLock::new(|| Arc::new(utoipa_swagger_ui::Config::from("/openapi.json")));
    let name = call.segment("file")?;
    let Ok(Some(file)) = utoipa_swagger_ui::serve(&name, CONFIG.clone()) else {
        return Err(Problem::not_found("file"));
    };
    let content_type = HeaderValue::from_str(&file.content_type).unwrap_or(HTML);
    let reply = Reply::bytes(content_type, file.bytes.into_owned().into());
    match file.gzpipped {
        true => Ok(reply.with_header(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"))),
        false => Ok(reply),
    }
}
