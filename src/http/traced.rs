//! The span of a call, in the words of OpenTelemetry's conventions for HTTP
//! servers. What a path, a query or a body says is not in it: of paths, the
//! route alone, for ids of users stand in them.

use std::borrow::Cow;

use actix_web::HttpRequest;
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};

use super::State;
use super::auth::Access;
use super::middleware::Trail;
use super::reply::Reply;
use super::routes::Found;
use crate::domain::ids::HoldId;
use crate::service::{Allowed, CheckReply};
use crate::traces::{self, Attribute, Context, Recording, TraceId, Value};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Names of hosts are no longer.
const HOST_MAX: usize = 255;

/// Where the call comes from, if its header fields say so properly.
fn parent(headers: &HeaderMap) -> Option<Context> {
    let mut parents = headers.get_all(&TRACEPARENT);
    let parent = parents.next()?.to_str().ok()?;
    if parents.next().is_some() {
        return None;
    }
    let states = headers.get_all(&TRACESTATE).filter_map(|value| value.to_str().ok());
    Context::read(parent, states)
}

/// The trace that a call belongs to, whoever records it.
pub fn trace_id(headers: &HeaderMap, recording: Option<&Recording>) -> Option<TraceId> {
    match recording {
        Some(recording) => Some(recording.trace_id()),
        None => parent(headers).map(|parent| parent.trace_id()),
    }
}

/// Begins a span, if traces are sent and this call is to be in one.
pub fn begin(state: &State, request: &HttpRequest, found: &Found) -> Option<Recording> {
    let tracer = state.tracer.as_ref()?;
    // Probes and pages are in traces of others alone.
    let is_work = || matches!(found, Found::Route { route, .. } if !matches!(route.access, Access::Public));
    tracer.begin(parent(request.headers()), is_work)
}

/// Ends it with what became of the call.
pub fn end(
    state: &State,
    recording: Recording,
    request: &HttpRequest,
    trail: &Trail,
    reply: &Reply,
    request_id: &HeaderValue,
) {
    let Some(tracer) = &state.tracer else { return };
    let method = super::middleware::method_name(request.method());
    let route = trail.route_index().map(|_| trail.route_name());
    let (scheme, address, port) = asked_at(request);
    recording.note([
        ("http.request.method", Value::from(method.to_owned())),
        ("http.response.status_code", reply.status.as_u16().into()),
        ("url.scheme", scheme.into()),
        ("network.protocol.name", "http".into()),
        ("apportion.request.id", request_id.to_str().unwrap_or_default().to_owned().into()),
    ]);
    let failed = reply.status.is_server_error();
    let code = reply.kind.map(|kind| kind.entry().code);
    let hold = about_hold(request, reply);
    let more: [Option<Attribute>; 9] = [
        route.map(|route| ("http.route", route.into())),
        route.map(|route| ("url.path", route.into())),
        address.map(|address| ("server.address", address.into())),
        port.map(|port| ("server.port", port.into())),
        code.map(|code| ("apportion.code", code.into())),
        code.filter(|_| failed).map(|code| ("error.type", code.into())),
        trail.tenant_name().map(|tenant| ("apportion.tenant.id", tenant.to_owned().into())),
        reply.about.limit.as_ref().map(|limit| ("apportion.limit.name", limit.to_string().into())),
        hold.map(|hold| ("apportion.hold.id", hold.to_string().into())),
    ];
    recording.note(more.into_iter().flatten());
    // The conventions' word where the method is not known.
    let verb = if method == "_OTHER" { "HTTP" } else { method };
    let name: Cow<'static, str> = match route {
        Some(route) => format!("{verb} {route}").into(),
        None => verb.to_owned().into(),
    };
    tracer.end(recording, name, failed);
}

/// The hold that a call made, met or named.
pub fn about_hold(request: &HttpRequest, reply: &Reply) -> Option<HoldId> {
    let named = || HoldId::parse(request.uri().path().strip_prefix("/v1/holds/")?.split('/').next()?);
    reply.about.hold.or_else(named)
}

/// The scheme, host and port that the caller asked.
fn asked_at(request: &HttpRequest) -> (&'static str, Option<String>, Option<u16>) {
    let asked = request.connection_info();
    let scheme = if asked.scheme() == "https" { "https" } else { "http" };
    let (host, port) = match asked.host().rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()),
        _ => (asked.host(), None),
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._[]:".contains(c);
    let is_sound = (1..=HOST_MAX).contains(&host.len()) && host.chars().all(is_name);
    (scheme, is_sound.then(|| host.to_owned()), port)
}

/// What was decided, for the call's trace.
pub fn decided(decided: &CheckReply) {
    let decision = match decided {
        CheckReply::Allowed(Allowed { would_refuse: Some(_), .. }) => "would_refuse",
        CheckReply::Allowed(_) => "allow",
        CheckReply::Refused(_) => "refuse",
    };
    traces::note(|| [("apportion.decision", decision.into())]);
    if let CheckReply::Allowed(Allowed { plan: (id, version), .. }) = decided {
        traces::note(|| {
            [("apportion.plan.id", id.to_string().into()), ("apportion.plan.version", (*version).into())]
        });
    }
}

/// How many items a batch has.
pub fn batch_of(items: usize) {
    traces::note(|| [("apportion.batch.items", u32::try_from(items).unwrap_or(u32::MAX).into())]);
}
