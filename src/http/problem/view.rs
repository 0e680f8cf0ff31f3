//! The members of a problem on the wire.

use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::Parts;
use crate::domain::decision::{Remedy, Violation};
use crate::domain::document::Fault;
use crate::domain::time::Millis;
use crate::http::views::HoldView;
use crate::ledger::Failed;

/// RFC 9457 with our members. Which of the optional ones are there depends on
/// the code; their absence and `null` differ for `resets_at` only.
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemView<'a> {
    /// `/problems/<code>`: a page of this service.
    #[serde(rename = "type")]
    uri: &'static str,
    title: &'static str,
    status: u16,
    detail: &'a str,
    code: &'static str,
    retryable: bool,
    /// Names of the failing limits.
    #[serde(rename = "violated-policies", serialize_with = "names")]
    #[schema(value_type = Vec<String>)]
    violated: &'a [Violation],
    /// Every fault of an invalid request.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schema(value_type = Option<Vec<FaultView>>)]
    errors: &'a [Fault],
    /// The limit that decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'a str>,
    /// The largest figure that would be accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    max: Option<u64>,
    /// Every failing limit.
    #[serde(skip_serializing_if = "<[_]>::is_empty", serialize_with = "violations")]
    #[schema(value_type = Option<Vec<ViolationView>>)]
    violations: &'a [Violation],
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    /// `null`: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    resets_at: Option<Option<Millis>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<HoldView<'a>>,
}

impl<'a> ProblemView<'a> {
    pub(super) fn new(parts: &'a Parts, status: u16) -> Self {
        let entry = parts.kind.entry();
        let denied = parts.denied.as_ref();
        let violations = denied.map_or(&[][..], |denied| &denied.violations);
        Self {
            uri: entry.uri,
            title: entry.title,
            status,
            detail: &parts.detail,
            code: entry.code,
            retryable: entry.retryable,
            violated: violations,
            errors: &parts.faults,
            limit: denied.and_then(|denied| denied.limit.as_ref()).map(|limit| limit.as_str()),
            max: parts.max,
            violations,
            retry_after_ms: parts.retry_after_ms,
            resets_at: denied.and_then(|denied| denied.resets_at),
            hold: parts.hold.as_ref().map(|(hold, now)| HoldView::new(hold, *now)),
        }
    }
}

/// A fault: a JSON pointer into the body (empty for the whole, or for what
/// lies in the path or a header; `/` and the name for a query parameter) and
/// what is wrong there.
#[derive(Serialize, ToSchema)]
#[schema(as = Fault)]
pub struct FaultView {
    #[schema(example = "/max_output_tokens")]
    pub pointer: String,
    #[schema(example = "must be a whole number from 0 to 9007199254740991")]
    pub message: String,
}

/// A limit that does not let the call pass.
#[derive(Serialize, ToSchema)]
#[schema(as = Violation)]
pub struct ViolationView<'a> {
    name: &'a str,
    /// `user`, `org`, `tenant` or `pool`.
    scope: &'static str,
    /// `bucket`, `window`, `slots` or `rolling`.
    kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    meter: Option<&'a str>,
    limit: u64,
    remaining: u64,
    requested: u64,
    /// Waiting this long helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    /// Nothing helps before; `null`: nothing ever does.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    resets_at: Option<Option<Millis>>,
    /// The largest amount that this limit can ever give to one call.
    #[serde(skip_serializing_if = "Option::is_none")]
    max: Option<u64>,
    /// The largest amount that passes now, by this limit alone.
    would_fit: u64,
}

impl<'a> From<&'a Violation> for ViolationView<'a> {
    fn from(violation: &'a Violation) -> Self {
        Self {
            name: violation.name.as_str(),
            scope: violation.scope.as_str(),
            kind: violation.kind,
            meter: violation.meter.as_ref().map(|meter| meter.as_str()),
            limit: violation.limit,
            remaining: violation.remaining,
            requested: violation.requested,
            would_fit: violation.would_fit,
            ..Self::helped_by(violation.remedy)
        }
    }
}

/// As it was told then.
impl<'a> From<&'a Failed> for ViolationView<'a> {
    fn from(failed: &'a Failed) -> Self {
        Self {
            name: failed.name.as_str(),
            scope: failed.scope.as_str(),
            kind: &failed.kind,
            meter: failed.meter.as_ref().map(|meter| meter.as_str()),
            limit: failed.limit,
            remaining: failed.remaining,
            requested: failed.requested,
            would_fit: failed.would_fit,
            ..Self::helped_by(failed.remedy)
        }
    }
}

impl ViolationView<'_> {
    fn helped_by(remedy: Remedy) -> Self {
        let (retry_after_ms, resets_at, max) = match remedy {
            Remedy::Wait { retry_after_ms } => (Some(retry_after_ms), None, None),
            Remedy::Reset { resets_at } => (None, Some(resets_at), None),
            Remedy::Never { max } => (None, None, Some(max)),
        };
        let (name, scope, kind, meter) = ("", "", "", None);
        let (limit, remaining, requested, would_fit) = (0, 0, 0, 0);
        Self {
            name,
            scope,
            kind,
            meter,
            limit,
            remaining,
            requested,
            retry_after_ms,
            resets_at,
            max,
            would_fit,
        }
    }
}

fn names<S: Serializer>(violations: &&[Violation], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(violations.iter().map(|violation| violation.name.as_str()))
}

fn violations<S: Serializer>(violations: &&[Violation], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(violations.iter().map(ViolationView::from))
}
