//! Browsers may read `/v1/me/*` from the origins that a tenant lists.
//!
//! No cookies are involved: a page needs a user token to get anything, so the
//! preflight, which carries none and can know no tenant, lets any page ask.

use actix_web::http::header::{self, HeaderMap, HeaderValue};

use super::reply::Reply;
use crate::service::Caller;

const EXPOSED: HeaderValue = HeaderValue::from_static(
    "Date, RateLimit, RateLimit-Policy, Retry-After, retry-after-ms, x-request-id, x-should-retry",
);

pub fn is_for_browsers(path: &str) -> bool {
    path.starts_with("/v1/me/")
}

/// 204 for a preflight of any origin.
pub fn preflight(headers: &HeaderMap) -> Reply {
    let origin = headers.get(header::ORIGIN).cloned().unwrap_or(HeaderValue::from_static("*"));
    Reply::no_content()
        .with_header(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin)
        .with_header(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET"))
        .with_header(
            header::ACCESS_CONTROL_ALLOW_HEADERS,
            HeaderValue::from_static("authorization, x-request-id"),
        )
        .with_header(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"))
        .with_header(header::VARY, HeaderValue::from_static("origin"))
}

/// Lets the page read the answer when its origin is on the tenant's list. An answer
/// to nobody in particular tells nothing of any tenant: every page may read that its
/// token is no good any more.
pub fn add_headers(path: &str, asked: &HeaderMap, caller: Option<&Caller>, answer: &mut HeaderMap) {
    if !is_for_browsers(path) {
        return;
    }
    let Some(origin) = asked.get(header::ORIGIN) else { return };
    answer.insert(header::VARY, HeaderValue::from_static("origin"));
    let text = origin.to_str().unwrap_or_default();
    let is_listed = |listed: &String| listed == "*" || listed.eq_ignore_ascii_case(text);
    let may_read = match caller {
        None => true,
        Some(caller) => caller
            .tenant
            .as_ref()
            .is_some_and(|tenant| tenant.catalog().settings.cors_origins.iter().any(is_listed)),
    };
    if may_read {
        answer.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        answer.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
}

#[cfg(test)]
mod tests {
    use actix_web::http::StatusCode;

    use super::*;

    #[test]
    fn a_preflight_is_answered_without_credentials() {
        let mut headers = HeaderMap::new();
        headers.insert(header::ORIGIN, HeaderValue::from_static("https://app.example"));
        let reply = preflight(&headers);
        assert_eq!(reply.status, StatusCode::NO_CONTENT);
        assert!(reply.headers.iter().any(|(name, value)| {
            *name == header::ACCESS_CONTROL_ALLOW_ORIGIN && value == "https://app.example"
        }));
    }
}
