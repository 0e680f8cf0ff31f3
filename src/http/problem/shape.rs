//! Problems in the form of a vendor, for clients that understand it already.
//!
//! A product that hands a refusal on to its own client, or to one of the
//! vendor's SDKs, asks for it with `?shape=`. What decides about a retry (the
//! status, `retry-after`, `x-should-retry`) is the same in every form: the
//! SDKs look at these and never at the body.

use std::borrow::Cow;

use actix_web::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Kind, Parts, Problem};
use crate::domain::time::Millis;
use crate::http::query::Query;
use crate::http::reply::json_bytes;
use crate::service::Caller;
use crate::service::tenancy::settings::Shape;

/// The tenant's own bound is not known before the caller is.
const DEFAULT_MAX_AUTO_RETRY_SECONDS: u64 = 60;

/// Routes of a call: a tenant's own `shape` is about their refusals. Who
/// administers or looks gets problems unless the query says otherwise.
const CALLS: [&str; 4] = ["/v1/check", "/v1/holds", "/v1/usage", "/v1/pools/"];

/// Most faults of one message.
const FAULTS_TOLD: usize = 10;

/// As problems, where no caller is asked what they like.
pub const PLAIN: Form<'static> =
    Form { shape: None, max_auto_retry_seconds: DEFAULT_MAX_AUTO_RETRY_SECONDS, request_id: "" };

/// In which form a caller is told what went wrong.
#[derive(Debug, Clone, Copy)]
pub struct Form<'a> {
    /// `None`: as problems.
    pub shape: Option<Shape>,
    pub max_auto_retry_seconds: u64,
    /// As it stands in the answer.
    pub request_id: &'a str,
}

impl<'a> Form<'a> {
    /// What the query says, else what the caller's tenant says.
    pub fn of(path: &str, query: Option<&str>, caller: Option<&Caller>, request_id: &'a str) -> Self {
        let catalog = caller.and_then(|caller| caller.tenant.as_ref()).map(|tenant| tenant.catalog());
        let settings = catalog.as_ref().map(|catalog| &catalog.settings);
        let of_call = CALLS.iter().any(|start| path.starts_with(start));
        let usual = settings.filter(|_| of_call).and_then(|settings| settings.shape);
        let max = settings.map(|settings| settings.max_auto_retry_seconds.into());
        Self {
            shape: asked(path, query).ok().flatten().unwrap_or(usual),
            max_auto_retry_seconds: max.unwrap_or(DEFAULT_MAX_AUTO_RETRY_SECONDS),
            request_id,
        }
    }
}

/// `shape` of the query; `None`: it says nothing about it.
///
/// # Errors
/// There is no such form.
pub fn asked(path: &str, query: Option<&str>) -> Result<Option<Option<Shape>>, Problem> {
    let Some(query) = query.filter(|_| path.starts_with("/v1/")) else { return Ok(None) };
    let read = Query(query).read(|parameters| Some(parameters.optional("shape", Shape::parse)));
    read.map_err(Problem::invalid_query)
}

/// The body in the vendor's form.
pub(super) fn body(shape: Shape, parts: &Parts, status: StatusCode, request_id: &str) -> Vec<u8> {
    let details = Details::new(parts);
    let message = message(parts);
    match shape {
        Shape::OpenAi => {
            let (kind, code) = openai_words(parts.kind, status);
            let param = parts.faults.iter().find(|fault| !fault.pointer.is_empty());
            let param = param.map(|fault| fault.pointer[1..].replace('/', "."));
            json_bytes(&ShapedProblem::OpenAi { error: OpenAiError { message, kind, param, code, details } })
        }
        Shape::Anthropic => {
            let kind = anthropic_type(status);
            let error = AnthropicError { kind, message, details };
            json_bytes(&ShapedProblem::Anthropic { kind: "error", error, request_id })
        }
    }
}

/// The sentence, with the faults: these forms have no list for them.
fn message(parts: &Parts) -> Cow<'_, str> {
    if parts.faults.len() < 2 {
        return Cow::Borrowed(&parts.detail);
    }
    let faults: Vec<String> = parts.faults.iter().take(FAULTS_TOLD).map(ToString::to_string).collect();
    let more = if parts.faults.len() > FAULTS_TOLD { "; ..." } else { "." };
    format!("{}: {}{more}", parts.detail.trim_end_matches('.'), faults.join("; ")).into()
}

/// `type` and `code` of an OpenAI error.
fn openai_words(kind: Kind, status: StatusCode) -> (&'static str, &'static str) {
    let code = kind.entry().code;
    match status.as_u16() {
        _ if kind.is_quota() => ("insufficient_quota", "insufficient_quota"),
        429 => (axis(kind), "rate_limit_exceeded"),
        401 => ("invalid_request_error", "invalid_api_key"),
        500.. => ("server_error", code),
        _ => ("invalid_request_error", code),
    }
}

/// What there is too much of.
fn axis(kind: Kind) -> &'static str {
    match kind {
        Kind::InputRateExceeded
        | Kind::OutputRateExceeded
        | Kind::TokenRateExceeded
        | Kind::CreditRateExceeded => "tokens",
        _ => "requests",
    }
}

fn anthropic_type(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 => "timeout_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    }
}

/// A problem as the vendor tells its own (`?shape=`).
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum ShapedProblem<'a> {
    #[schema(title = "OpenAiProblem")]
    OpenAi { error: OpenAiError<'a> },
    #[schema(title = "AnthropicProblem")]
    Anthropic {
        /// `error`
        #[serde(rename = "type")]
        kind: &'static str,
        error: AnthropicError<'a>,
        request_id: &'a str,
    },
}

#[derive(Serialize, ToSchema)]
pub struct OpenAiError<'a> {
    message: Cow<'a, str>,
    /// `insufficient_quota`, `requests`, `tokens`, `invalid_request_error` or `server_error`.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The first field that is at fault.
    #[schema(required = true)]
    param: Option<String>,
    /// `insufficient_quota`, `rate_limit_exceeded`, `invalid_api_key`, else the problem's own.
    code: &'static str,
    details: Details<'a>,
}

#[derive(Serialize, ToSchema)]
pub struct AnthropicError<'a> {
    /// `rate_limit_error`, `invalid_request_error`, ...: by the status.
    #[serde(rename = "type")]
    kind: &'static str,
    message: Cow<'a, str>,
    details: Details<'a>,
}

/// What the vendor's form has no word for.
#[derive(Serialize, ToSchema)]
#[schema(as = ShapedDetails)]
pub struct Details<'a> {
    /// The problem's `code`.
    error_code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    /// `null`: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    resets_at: Option<Option<Millis>>,
}

impl<'a> Details<'a> {
    fn new(parts: &'a Parts) -> Self {
        let denied = parts.denied.as_ref();
        Self {
            error_code: parts.kind.entry().code,
            limit: denied.and_then(|denied| denied.limit.as_ref()).map(|limit| limit.as_str()),
            max: parts.max,
            retry_after_ms: parts.retry_after_ms,
            resets_at: denied.and_then(|denied| denied.resets_at),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::domain::document::Fault;
    use crate::http::problem::catalogue::CATALOGUE;

    fn told(problem: Problem, shape: Shape) -> (u16, Value) {
        let reply = problem.into_reply(&Form { shape: Some(shape), request_id: "req_1", ..PLAIN });
        assert_eq!(reply.content_type, "application/json");
        (reply.status.as_u16(), serde_json::from_slice(&reply.body).unwrap())
    }

    #[test]
    fn every_code_has_its_words_in_both_forms() {
        for entry in CATALOGUE {
            let (status, body) = told(Problem::new(entry.kind, "A sentence."), Shape::OpenAi);
            assert_eq!(status, entry.status);
            let error = &body["error"];
            assert_eq!((&error["message"], &error["param"]), (&json!("A sentence."), &Value::Null));
            assert_eq!(error["details"]["error_code"], entry.code);
            let code = match (entry.status, entry.retryable) {
                (429, true) => "rate_limit_exceeded",
                (429, false) => "insufficient_quota",
                (401, _) => "invalid_api_key",
                _ => entry.code,
            };
            assert_eq!(error["code"], code, "{}", entry.code);
            let kind = match entry.status {
                429 if entry.retryable && error["type"] == "tokens" => "tokens",
                429 if entry.retryable => "requests",
                429 => "insufficient_quota",
                500.. => "server_error",
                _ => "invalid_request_error",
            };
            assert_eq!(error["type"], kind, "{}", entry.code);

            let (status, body) = told(Problem::new(entry.kind, "A sentence."), Shape::Anthropic);
            assert_eq!(
                (status, &body["type"], &body["request_id"]),
                (entry.status, &json!("error"), &json!("req_1"))
            );
            let error = &body["error"];
            assert_eq!(
                (&error["message"], &error["details"]["error_code"]),
                (&json!("A sentence."), &json!(entry.code))
            );
            let is_rate = error["type"] == "rate_limit_error";
            assert_eq!(is_rate, entry.status == 429, "{}", entry.code);
        }
    }

    #[test]
    fn faults_are_told_in_the_sentence_and_the_first_field_by_name() {
        let fault = |pointer: &str| Fault { pointer: pointer.into(), message: "is wrong".into() };
        let (_, body) = told(Problem::invalid(vec![fault("/amounts/images"), fault("/user")]), Shape::OpenAi);
        assert_eq!(body["error"]["param"], "amounts.images");
        let message = "The body has 2 faults: /amounts/images: is wrong; /user: is wrong.";
        assert_eq!(body["error"]["message"], message);
        let many = vec![fault("/user"); 1000];
        let (_, body) = told(Problem::invalid(many), Shape::Anthropic);
        assert!(
            body["error"]["message"].as_str().is_some_and(|text| text.len() < 300 && text.ends_with("; ..."))
        );
    }

    #[test]
    fn the_query_names_a_form_of_ours_or_is_told_so() {
        assert!(matches!(asked("/v1/check", None), Ok(None)));
        assert!(matches!(asked("/v1/check", Some("x=1")), Ok(None)));
        assert!(matches!(asked("/v1/check", Some("shape=none")), Ok(Some(None))));
        assert!(matches!(asked("/v1/check", Some("shape=openai")), Ok(Some(Some(Shape::OpenAi)))));
        for bad in ["shape=gemini", "shape=", "shape=openai&shape=none"] {
            assert!(asked("/v1/check", Some(bad)).is_err(), "{bad}");
        }
        assert!(matches!(asked("/livez", Some("shape=gemini")), Ok(None)));
    }
}
