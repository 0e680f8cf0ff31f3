//! What happens around every call: a request id, the route, the caller, and
//! afterwards the log line, the metrics and the headers that all answers have.
//!
//! All requests come through [`front_door`]. It is not a chain of wrappers:
//! the check is the hot path, and one function has one cost.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use actix_web::dev::Payload;
use actix_web::http::Method;
use actix_web::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use actix_web::web::{self, Data};
use actix_web::{HttpRequest, HttpResponse};
use futures_util::FutureExt;

use super::State;
use super::auth;
use super::body;
use super::call::{Call, Head};
use super::console;
use super::cors;
use super::problem::{self, Form, Kind, Problem};
use super::reply::{Answer, Reply};
use super::routes::{self, Found};
use super::traced;
use crate::service::Caller;
use crate::traces::{self, Recording};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Header fields of a request may have this many bytes together.
const MAX_HEADER_BYTES: usize = 32 * 1024;

/// Answers every request.
pub async fn front_door(request: HttpRequest, payload: web::Payload, state: Data<State>) -> HttpResponse {
    let begun = Instant::now();
    let _in_flight = state.metrics.enter();
    let request_id = request_id(request.headers());
    let found = routes::find(request.method(), request.uri().path());
    let recording = traced::begin(&state, &request, &found);
    let mut trail = Trail { found, caller: None };

    let mut payload = Some(payload.into_inner());
    let answer = {
        let handling = pin!(handle(&request, &mut payload, &state, &mut trail, &request_id));
        traces::within(recording.as_ref(), guarded(handling, show(&request_id))).await
    };
    if let Some(mut unread) = payload {
        body::skip(request.headers(), &mut unread).await;
    }
    let reply = answer.unwrap_or_else(|problem| {
        problem.log_cause(show(&request_id));
        let uri = request.uri();
        let caller = trail.caller.as_deref();
        problem.into_reply(&Form::of(uri.path(), uri.query(), caller, show(&request_id)))
    });

    let duration = begun.elapsed();
    state.metrics.answered(trail.route_index(), reply.status, duration);
    log(&request, &trail, &reply, &request_id, recording.as_ref(), duration);
    if let Some(recording) = recording {
        traced::end(&state, recording, &request, &trail, &reply, &request_id);
    }
    let mut response = reply.into_response();
    let path = request.uri().path();
    if path.starts_with("/v1/") {
        response.headers_mut().insert(header::CACHE_CONTROL, NO_STORE);
        cors::add_headers(path, request.headers(), trail.caller.as_deref(), response.headers_mut());
    }
    response.headers_mut().insert(REQUEST_ID, request_id);
    response
}

/// A panic ends the call, not the worker, and the caller has an answer.
async fn guarded(handling: impl Future<Output = Answer>, request_id: &str) -> Answer {
    AssertUnwindSafe(handling).catch_unwind().await.unwrap_or_else(|_| {
        tracing::error!(request.id = request_id, "a handler panicked");
        Err(Problem::new(Kind::Internal, "The service met a fault of its own."))
    })
}

/// What became known about a request on its way, for the log and the metrics.
pub struct Trail {
    found: Found,
    caller: Option<Arc<Caller>>,
}

impl Trail {
    pub fn route_index(&self) -> Option<usize> {
        match self.found {
            Found::Route { index, .. } => Some(index),
            _ => None,
        }
    }

    pub fn route_name(&self) -> &'static str {
        match self.found {
            Found::Route { route, .. } => route.path,
            _ => "none",
        }
    }

    pub fn tenant_name(&self) -> Option<&str> {
        let tenant = self.caller.as_ref()?.tenant.as_ref()?;
        Some(tenant.id.as_str())
    }
}

/// The order of refusals: who are you, may you, is there such a thing, and
/// only then what the body says.
async fn handle(
    request: &HttpRequest,
    payload: &mut Option<Payload>,
    state: &Data<State>,
    trail: &mut Trail,
    request_id: &HeaderValue,
) -> Answer {
    refuse_long_headers(request.headers())?;
    let path = request.uri().path();
    if *request.method() == Method::OPTIONS && cors::is_for_browsers(path) {
        return Ok(cors::preflight(request.headers()));
    }
    let access = match trail.found {
        Found::Route { route, .. } => route.access,
        // Who may not come in learns nothing about what is there.
        _ if path.starts_with("/v1/") => auth::Access::AnyOf(&[]),
        _ => auth::Access::Public,
    };
    if !matches!(access, auth::Access::Public) {
        trail.caller = Some(auth::authenticate(request.headers(), &state.service).await?);
    }
    // Every call counts, also one that is refused for another reason.
    let let_in = trail.caller.as_deref().map_or(Ok(()), auth::let_in);
    let route = match &trail.found {
        Found::Route { route, .. } => *route,
        Found::OtherMethods(methods) => return Err(not_allowed(methods)),
        Found::Nothing if path.starts_with("/console/") => return Ok(console::nowhere()),
        Found::Nothing => return Err(Problem::not_found("path")),
    };
    if let Some(caller) = &trail.caller {
        auth::authorize(caller, access)?;
    }
    let_in?;
    problem::asked(path, request.uri().query())?;
    if let Some(tenant) = trail.caller.as_ref().and_then(|caller| caller.tenant.as_ref()) {
        let reads =
            route.path.starts_with("/v1/admin/") || ["/v1/holds", "/v1/me/usage"].contains(&route.path);
        if reads || tenant.test {
            state.service.catch_up(tenant, reads).await?;
        }
    }
    let call = Call {
        state: state.clone(),
        head: Head::Wire(request.clone()),
        payload: payload.take().unwrap_or(Payload::None),
        request_id: request_id.clone(),
        route,
        caller: trail.caller.clone(),
    };
    (route.handler)(call).await
}

fn not_allowed(methods: &str) -> Problem {
    let problem = Problem::new(Kind::MethodNotAllowed, format!("This path takes {methods}."));
    match HeaderValue::from_str(methods) {
        Ok(allow) => problem.with_header(header::ALLOW, allow),
        Err(_) => problem,
    }
}

fn refuse_long_headers(headers: &HeaderMap) -> Result<(), Problem> {
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if bytes <= MAX_HEADER_BYTES {
        return Ok(());
    }
    let detail = format!("The header fields are larger than {MAX_HEADER_BYTES} bytes.");
    Err(Problem::new(Kind::HeadersTooLarge, detail).with_max(MAX_HEADER_BYTES as u64))
}

/// The caller's own id when it is harmless in logs, else a fresh one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let is_sane = |value: &&HeaderValue| {
        let allowed = |b: &u8| b.is_ascii_alphanumeric() || b"._:-/=+".contains(b);
        (1..=128).contains(&value.len()) && value.as_bytes().iter().all(allowed)
    };
    match headers.get(&REQUEST_ID).filter(is_sane) {
        Some(given) => given.clone(),
        None => fresh_id(),
    }
}

/// Unique in this process, and unlike those of others: a counter, mixed with a
/// number drawn at the first call.
fn fresh_id() -> HeaderValue {
    static SEED: std::sync::LazyLock<u64> = std::sync::LazyLock::new(|| {
        let mut seed = [0u8; 8];
        match getrandom::fill(&mut seed) {
            Ok(()) => u64::from_le_bytes(seed),
            Err(_) => std::process::id().into(),
        }
    });
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // One-to-one steps (odd multiplier, xor-shift), so no two ids are the same.
    let mut id = SEED.wrapping_add(NEXT.fetch_add(1, Relaxed)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    id ^= id >> 32;
    let mut text = *b"req_0000000000000000";
    for (index, digit) in text[4..].iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(id >> (60 - 4 * index)) as usize & 15];
    }
    HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("req_"))
}

fn show(id: &HeaderValue) -> &str {
    id.to_str().unwrap_or_default()
}

fn log(
    request: &HttpRequest,
    trail: &Trail,
    reply: &Reply,
    request_id: &HeaderValue,
    recording: Option<&Recording>,
    duration: Duration,
) {
    macro_rules! line {
        ($level:ident) => {
            tracing::$level!(
                request.id = show(request_id),
                trace.id = traced::trace_id(request.headers(), recording).map(display),
                http.request.method = method_name(request.method()),
                http.route = trail.route_name(),
                http.response.status_code = reply.status.as_u16(),
                tenant.id = trail.tenant_name(),
                error.code = reply.kind.map(|kind| kind.entry().code),
                limit.name = reply.about.limit.as_ref().map(|limit| limit.as_str()),
                hold.id = traced::about_hold(request, reply).map(display),
                duration_us = duration.as_micros() as u64,
                "answered"
            )
        };
    }
    // A limit that refuses is everyday work, like one that does not.
    let is_decision = reply.kind.is_some_and(|kind| kind.entry().status == 429);
    match reply.status {
        status if status.is_server_error() => line!(warn),
        status if status.is_client_error() && !is_decision => line!(info),
        _ => line!(debug),
    }
}

/// A bounded set of names: methods are the caller's text.
pub fn method_name(method: &Method) -> &str {
    let known = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"];
    if known.contains(&method.as_str()) { method.as_str() } else { "_OTHER" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_for(given: &str) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST_ID, HeaderValue::from_str(given).unwrap());
        request_id(&headers).to_str().unwrap().to_owned()
    }

    #[test]
    fn a_sane_request_id_is_kept_and_any_other_replaced() {
        assert_eq!(id_for("7f13-ab.c"), "7f13-ab.c");
        for bad in ["", "a b", "x\"y", &"a".repeat(129)] {
            assert!(id_for(bad).starts_with("req_"), "{bad}");
        }
        assert_ne!(id_for(""), id_for(""));
    }

    #[test]
    fn header_fields_have_a_bound_together() {
        let mut headers = HeaderMap::new();
        assert!(refuse_long_headers(&headers).is_ok());
        for _ in 0..5 {
            let value = HeaderValue::from_str(&"a".repeat(8000)).unwrap();
            headers.append(HeaderName::from_static("x-pad"), value);
        }
        assert_eq!(refuse_long_headers(&headers).unwrap_err().kind(), Kind::HeadersTooLarge);
    }

    #[actix_web::test]
    async fn a_panic_is_answered() {
        async fn broken() -> Answer {
            panic!("this text must not leave")
        }
        let reply = guarded(broken(), "req_1").await.unwrap_err().into_reply(&problem::PLAIN);
        assert_eq!(reply.status.as_u16(), 500);
        assert!(!String::from_utf8_lossy(&reply.body).contains("must not leave"));
    }
}
