//! Errors and refusals as RFC 9457 problems: the only place that knows both
//! what went wrong and the status for it.
//!
//! A [`Problem`] may arise anywhere in a handler; it becomes an answer once,
//! in [`Problem::into_reply`], where the tenant's retry policy is known.

mod catalogue;
mod error;
mod pages;
mod refusal;
mod shape;
mod view;

use std::borrow::Cow;
use std::sync::Arc;

use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderName, HeaderValue};

use super::reply::{About, Headers, JSON, Reply, json_bytes};
use crate::domain::document::Fault;
use crate::domain::hold::Hold;
use crate::domain::time::Millis;
use crate::service::ServiceError;

pub use catalogue::Kind;
pub use pages::page;
pub use shape::{Form, PLAIN, ShapedProblem, asked};
pub use view::{FaultView, ProblemView, ViolationView};

use refusal::Denied;

const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// The wait told with a 503: about what a restart of the store takes.
const OUTAGE_WAIT_MS: u64 = 1000;

/// A problem on its way out.
#[derive(Debug)]
pub struct Problem(Box<Parts>);

#[derive(Debug)]
struct Parts {
    kind: Kind,
    detail: Cow<'static, str>,
    /// The tenant's own status for this kind of refusal.
    status: Option<StatusCode>,
    faults: Vec<Fault>,
    max: Option<u64>,
    retry_after_ms: Option<u64>,
    hold: Option<(Arc<Hold>, Millis)>,
    denied: Option<Denied>,
    /// What brought it about: for the log only.
    cause: Option<ServiceError>,
    headers: Headers,
}

impl Problem {
    pub fn new(kind: Kind, detail: impl Into<Cow<'static, str>>) -> Self {
        let outage = kind.entry().status == 503;
        Self(Box::new(Parts {
            kind,
            detail: detail.into(),
            status: None,
            faults: Vec::new(),
            max: None,
            retry_after_ms: outage.then_some(OUTAGE_WAIT_MS),
            hold: None,
            denied: None,
            cause: None,
            headers: Headers::new(),
        }))
    }

    /// A body with faults.
    pub fn invalid(faults: Vec<Fault>) -> Self {
        let detail: Cow<'static, str> = match faults.as_slice() {
            [one] if one.pointer.is_empty() => format!("The body {}.", one.message).into(),
            [one] => format!("{} {}.", one.pointer, one.message).into(),
            many => format!("The body has {} faults.", many.len()).into(),
        };
        let mut problem = Self::new(Kind::InvalidRequest, detail);
        problem.0.faults = faults;
        problem
    }

    /// Query parameters with faults; a pointer is `/` and the parameter's name.
    pub fn invalid_query(faults: Vec<Fault>) -> Self {
        let detail: Cow<'static, str> = match faults.as_slice() {
            [one] => {
                format!("The query parameter {} {}.", one.pointer.trim_start_matches('/'), one.message).into()
            }
            many => format!("The query has {} faults.", many.len()).into(),
        };
        Self::new(Kind::InvalidRequest, detail).with_faults(faults)
    }

    /// A fault outside of the body and the query: in the path or a header.
    pub fn invalid_part(part: &str, message: impl std::fmt::Display) -> Self {
        let message = format!("{part} {message}");
        let mut problem = Self::new(Kind::InvalidRequest, format!("The {message}."));
        problem.0.faults = vec![Fault::of_document(message)];
        problem
    }

    pub fn not_found(what: &str) -> Self {
        Self::new(Kind::NotFound, format!("There is no such {what}."))
    }

    /// Carries `max`: the largest figure that would have been accepted.
    pub fn with_max(mut self, max: u64) -> Self {
        self.0.max = Some(max);
        self
    }

    /// Carries the time after which the same call will be let in.
    pub fn with_retry_after(mut self, wait_ms: u64) -> Self {
        self.0.retry_after_ms = Some(wait_ms);
        self
    }

    pub fn with_faults(mut self, faults: Vec<Fault>) -> Self {
        self.0.faults = faults;
        self
    }

    /// Carries the hold as it stands at `now`.
    pub fn with_hold(mut self, hold: Arc<Hold>, now: Millis) -> Self {
        self.0.hold = Some((hold, now));
        self
    }

    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.headers.push((name, value));
        self
    }

    fn caused_by(mut self, cause: ServiceError) -> Self {
        self.0.cause = Some(cause);
        self
    }

    /// Logs what brought the problem about, once, with the id that the caller
    /// can name.
    pub fn log_cause(&self, request_id: &str) {
        let Some(cause) = &self.0.cause else { return };
        let error = cause as &dyn std::error::Error;
        match self.status().is_server_error() {
            true => tracing::error!(request.id = request_id, error, "a call could not be served"),
            false => tracing::debug!(request.id = request_id, error, "a call was refused"),
        }
    }

    pub fn with_headers(mut self, headers: Headers) -> Self {
        self.0.headers.extend(headers);
        self
    }

    #[cfg(test)]
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    fn status(&self) -> StatusCode {
        let usual = StatusCode::from_u16(self.0.kind.entry().status);
        self.0.status.unwrap_or(usual.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR))
    }

    /// The answer. A client is told to retry by itself only when that helps
    /// and the wait is at most `max_auto_retry_seconds`.
    pub fn into_reply(self, form: &Form<'_>) -> Reply {
        let status = self.status();
        let (media_type, body) = match form.shape {
            Some(shape) => (JSON, shape::body(shape, &self.0, status, form.request_id)),
            None => (PROBLEM_JSON, json_bytes(&ProblemView::new(&self.0, status.as_u16()))),
        };
        let parts = *self.0;
        let wait_ms = parts.retry_after_ms.filter(|_| parts.kind.entry().retryable);
        let mut headers = parts.headers;
        if let Some(wait_ms) = wait_ms {
            headers.push((header::RETRY_AFTER, HeaderValue::from(wait_ms.div_ceil(1000).max(1))));
            headers.push((RETRY_AFTER_MS, HeaderValue::from(wait_ms)));
        }
        let short = wait_ms.unwrap_or(0) <= form.max_auto_retry_seconds.saturating_mul(1000);
        let should_retry = if parts.kind.entry().retryable && short { "true" } else { "false" };
        headers.push((SHOULD_RETRY, HeaderValue::from_static(should_retry)));
        let about = About {
            hold: parts.hold.map(|(hold, _)| hold.id),
            limit: parts.denied.and_then(|denied| denied.limit),
        };
        Reply { status, kind: Some(parts.kind), about, headers, ..Reply::bytes(media_type, body.into()) }
    }
}
