//! `POST /v1/check` and `/v1/check/batch`: may this call be made now?

use actix_web::http::header::{HeaderName, HeaderValue};
use serde::Serialize;
use utoipa::ToSchema;

use super::batch;
use super::body;
use super::call::Call;
use super::metrics::{Decided, Metrics};
use super::problem::Problem;
use super::rate_limit;
use super::reply::{Answer, Headers, Reply};
use super::schema::{BatchReply, CheckBatchRequest, CheckRequest};
use super::traced;
use super::views::{GrantedView, HoldView, LimitView, PlanRef, Rows, WarningView, Warnings, WouldRefuseView};
use crate::domain::decision::Refusal;
use crate::domain::document::Reader;
use crate::domain::ids::{Label, Name, RequestId, UserId};
use crate::domain::plan::Meter;
use crate::domain::quantity::MAX_AMOUNT;
use crate::service::tenancy::settings::Shape;
use crate::service::{
    Allowed, CheckCommand, CheckReply, MaxOutput, ServiceError, THEY_ALLOW, Tenant, WouldRefuse,
};

pub const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Longest lease a caller may ask for.
pub const MAX_LEASE_SECONDS: u32 = 3600;
const MAX_WAIT_MS: u32 = 60_000;
/// Most models of which one may serve.
const MAX_MODELS: usize = 8;
/// Most meters of one call's `amounts`.
const MAX_AMOUNTS: usize = 64;

/// Asks whether a user may make a call now, and holds the estimate.
#[utoipa::path(
    post, path = "/v1/check", operation_id = "check", tag = "checks",
    request_body = CheckRequest,
    params(("Idempotency-Key" = Option<String>, Header, description = "The `request_id`, quoted or bare.")),
    responses(
        (status = 200, description = "The call may be made", body = AllowView,
         headers(("RateLimit-Policy"), ("RateLimit"), ("Idempotency-Replayed"))),
        (status = 402, description = "As 429, of a limit for whose end nobody waits, where `denial_status` says so"),
        (status = 403, description = "`forbidden`, `tenant_suspended`; as 402"),
        (status = 404, description = "`unknown_user`"),
        (status = 409, description = "`already_finished`, with the hold"),
        (status = 413, description = "`body_too_large`, `input_too_large`, `output_too_large`, `exceeds_capacity`"),
        (status = 422, description = "`request_id_reused`"),
        (status = 429, description = "A limit has no room: `violations` names every one that fails"),
    ),
    security(("bearer" = ["check"])),
)]
pub async fn check(mut call: Call) -> Answer {
    let body = call.body().await?;
    let key = call.idempotency_key()?;
    let command = body::document(&body, |fields| read_check(fields, key.as_ref(), false))?;
    let tenant = call.tenant()?;
    let counted = Counted::new(&command, &call.state.metrics);
    let decided = match command.wait_ms {
        0 => call.service().check(tenant, command).await?,
        _ => super::waiting::check(&call, tenant, command).await?,
    };
    traced::decided(&decided);
    decision(decided, tenant, counted, call.form().shape)
}

/// Asks for up to 100 calls, each decided on its own, in order.
#[utoipa::path(
    post, path = "/v1/check/batch", operation_id = "check_batch", tag = "checks",
    request_body = CheckBatchRequest,
    responses((status = 200, description = "One result per check, in order", body = BatchReply)),
    security(("bearer" = ["check"])),
)]
pub async fn check_batch(mut call: Call) -> Answer {
    let body = call.batch_body().await?;
    let items = batch::read(&body, "checks", |fields| read_check(fields, None, true))?;
    traced::batch_of(items.len());
    let tenant = call.tenant()?;
    let counted: Vec<Option<Counted<'_>>> =
        items.iter().flatten().map(|command| Counted::new(command, &call.state.metrics)).collect();
    let shape = call.form().shape;
    let render = |index: usize, decided: Result<CheckReply, ServiceError>| {
        decision(decided?, tenant, counted[index], shape)
    };
    let decide = async |commands| Ok(call.service().check_batch(tenant, commands).await);
    batch::answer(items, decide, render, &call).await
}

/// A check as asked. `key` is the `Idempotency-Key` header.
fn read_check(fields: &mut Reader<'_, '_>, key: Option<&RequestId>, in_batch: bool) -> Option<CheckCommand> {
    let user = fields.required("user").parsed(UserId::parse);
    let request_id = read_request_id(fields, key);
    let (model, models) = read_models(fields);
    let feature = fields.optional("feature").parsed(Label::parse);
    let bulk = fields.optional("priority").choice(&[("interactive", false), ("bulk", true)]);
    let input_tokens = fields.optional("input_tokens").amount(MAX_AMOUNT).unwrap_or(0);
    let max_output = read_max_output(fields);
    let min_output_tokens = fields.optional("min_output_tokens").amount(MAX_AMOUNT);
    let lease_seconds = fields.optional("lease_seconds").number(1..=MAX_LEASE_SECONDS);
    if in_batch && fields.has("wait_ms") {
        fields.fault("wait_ms", "is not allowed in a batch");
    }
    let wait_ms = fields.optional("wait_ms").number(0..=MAX_WAIT_MS).unwrap_or(0);
    let dry_run = fields.optional("dry_run").flag().unwrap_or(false);
    let amounts = read_amounts(fields);
    let their_decision = fields.optional("their_decision").parsed(Label::parse);
    let max_output_tokens = match max_output {
        MaxOutput::Tokens(tokens) => Some(tokens),
        MaxOutput::Cap | MaxOutput::Auto => None,
    };
    if min_output_tokens.zip(max_output_tokens).is_some_and(|(min, max)| min > max) {
        fields.fault("min_output_tokens", "must not be above max_output_tokens");
    }
    let output = max_output_tokens.or(min_output_tokens).unwrap_or(0);
    if input_tokens + output > MAX_AMOUNT {
        fields
            .fault("max_output_tokens", format!("must not be above {MAX_AMOUNT} together with input_tokens"));
    }
    Some(CheckCommand {
        user: user?,
        request_id,
        model,
        models,
        feature,
        bulk: bulk.unwrap_or(false),
        input_tokens,
        max_output,
        min_output_tokens,
        lease_seconds,
        // A dry run waits for nothing.
        wait_ms: if dry_run { 0 } else { wait_ms },
        dry_run,
        amounts,
        their_decision,
    })
}

/// `max_output_tokens`: an amount, or `"auto"`.
fn read_max_output(fields: &mut Reader<'_, '_>) -> MaxOutput {
    if !fields.has("max_output_tokens") {
        return MaxOutput::Cap;
    }
    let field = fields.optional("max_output_tokens");
    if field.is_text() {
        // A text that is no such word is noted as a fault.
        return field.choice(&[("auto", MaxOutput::Auto)]).unwrap_or(MaxOutput::Cap);
    }
    field.amount(MAX_AMOUNT).map_or(MaxOutput::Cap, MaxOutput::Tokens)
}

/// One model, or a list of them of which the first is the caller's first choice.
fn read_models(fields: &mut Reader<'_, '_>) -> (Option<Name>, Option<Vec<Name>>) {
    let model = fields.optional("model").parsed(Name::parse);
    let mut named = 0;
    let models = fields.optional("models").list(MAX_MODELS, |model| {
        named += 1;
        model.parsed(Name::parse)
    });
    let Some(models) = models else { return (model, None) };
    if fields.has("model") {
        fields.fault("models", "is not allowed beside `model`");
    }
    if named == 0 {
        fields.fault("models", "must name at least one model");
    }
    match models.first().cloned() {
        Some(first) => (Some(first), Some(models)),
        None => (None, None),
    }
}

/// The body's id and the header's: either, or both when they are the same.
fn read_request_id(fields: &mut Reader<'_, '_>, key: Option<&RequestId>) -> Option<RequestId> {
    let in_body = fields.optional("request_id").parsed(RequestId::parse);
    if let (Some(body), Some(key)) = (&in_body, key)
        && body != key
    {
        fields.fault("request_id", "is not the one of the header Idempotency-Key");
    }
    in_body.or_else(|| key.cloned())
}

/// `amounts`: meters of the tenant's own with what the call takes of each.
pub fn read_amounts(fields: &mut Reader<'_, '_>) -> Vec<(Label, u64)> {
    let amounts = fields.optional("amounts").table(|meters| {
        let names = meters.names();
        if names.len() > MAX_AMOUNTS {
            meters.fault_here(format!("must have at most {MAX_AMOUNTS} meters"));
        }
        let mut amounts = Vec::with_capacity(names.len().min(MAX_AMOUNTS));
        for name in names {
            let amount = meters.optional(name).amount(MAX_AMOUNT);
            match Meter::parse(name) {
                Ok(Meter::Custom(label)) => amounts.extend(amount.map(|amount| (label, amount))),
                Ok(_) => meters.fault(name, "is a built-in meter, which the token fields feed"),
                Err(error) => meters.fault(name, format!("is no meter: {error}")),
            }
        }
        Some(amounts)
    });
    amounts.unwrap_or_default()
}

/// The answer to a decision; a refusal is a problem from here on.
fn decision(
    decided: CheckReply,
    tenant: &Tenant,
    counted: Option<Counted<'_>>,
    shape: Option<Shape>,
) -> Answer {
    if let Some(counted) = counted {
        counted.count(&decided);
    }
    match decided {
        CheckReply::Allowed(allowed) => Ok(allow(&allowed, shape)),
        CheckReply::Refused(refusal) => Err(refused(refusal, tenant, shape)),
    }
}

/// A check to be counted once it is decided.
#[derive(Clone, Copy)]
struct Counted<'a> {
    metrics: &'a Metrics,
    /// Whether another limiter lets it pass, if the caller said so.
    they_allow: Option<bool>,
}

impl<'a> Counted<'a> {
    /// `None`: dry runs do not count.
    fn new(command: &CheckCommand, metrics: &'a Metrics) -> Option<Self> {
        let they_allow = command.their_decision.as_ref().map(|theirs| theirs.as_str() == THEY_ALLOW);
        (!command.dry_run).then_some(Self { metrics, they_allow })
    }

    fn count(self, decided: &CheckReply) {
        self.metrics.decided(match decided {
            CheckReply::Allowed(allowed) => match &allowed.would_refuse {
                Some(refused) => Decided::WouldRefuse(refused.code.into()),
                None => Decided::Allowed,
            },
            CheckReply::Refused(refusal) => Decided::Refused(refusal.code.into()),
        });
        match decided {
            CheckReply::Refused(refusal) => {
                let failed = refusal.violations.iter();
                failed.for_each(|limit| self.metrics.limit_hit(limit.kind, limit.scope.as_str()));
            }
            CheckReply::Allowed(allowed) if allowed.replayed => self.metrics.duplicate("check"),
            CheckReply::Allowed(_) => {}
        }
        if let (Some(ours), Some(they_allow)) = (decided.decided(), self.they_allow) {
            self.metrics.compared(ours == THEY_ALLOW, they_allow);
        }
    }
}

fn allow(allowed: &Allowed, shape: Option<Shape>) -> Reply {
    let mut reply = Reply::json(&AllowView {
        decision: "allow",
        hold: allowed.hold.as_ref().map(|hold| HoldView::new(hold, allowed.now)),
        granted: GrantView::new(allowed),
        because: allowed.choice.iter().flat_map(|choice| &choice.because).map(BecauseView::from).collect(),
        plan: PlanRef::from(&allowed.plan),
        limits: Rows(&allowed.limits),
        warnings: Warnings(&allowed.warnings),
        would_refuse: allowed.would_refuse.as_ref().map(WouldRefuseView::from),
        degraded: allowed.degraded,
    });
    reply.about.hold = allowed.hold.as_ref().map(|hold| hold.id);
    rate_limit::push_headers(&mut reply.headers, &allowed.limits, allowed.now, shape);
    if allowed.replayed {
        reply.headers.push((IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true")));
    }
    reply
}

fn refused(refusal: Refusal, tenant: &Tenant, shape: Option<Shape>) -> Problem {
    let now = tenant.now();
    let mut headers = Headers::with_capacity(8);
    rate_limit::push_headers(&mut headers, &refusal.limits, now, shape);
    Problem::refused(refusal, tenant.catalog().settings.denial_status, now).with_headers(headers)
}

/// The call may be made.
#[derive(Serialize, ToSchema)]
#[schema(as = Allow)]
pub struct AllowView<'a> {
    /// `allow`
    decision: &'static str,
    /// Absent on a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<HoldView<'a>>,
    granted: GrantView<'a>,
    /// Why the call is not served by the models before the granted one. Absent
    /// when it is served by the first, and when the answer is repeated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    because: Vec<BecauseView<'a>>,
    plan: PlanRef<'a>,
    #[schema(value_type = Vec<LimitView>)]
    limits: Rows<'a>,
    #[schema(value_type = Vec<WarningView>)]
    warnings: Warnings<'a>,
    /// Of a user who is decided and not refused: the refusal that enforcement
    /// would have been. Absent when the call would have passed anyway.
    #[serde(skip_serializing_if = "Option::is_none")]
    would_refuse: Option<WouldRefuseView<'a>>,
    /// The store is away: this node admitted the call by itself and books it
    /// later. How the limits stand is not known. Absent otherwise.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    degraded: bool,
}

/// What the caller may use, and by which of the models it named.
#[derive(Serialize, ToSchema)]
#[schema(as = GrantedModel)]
struct GrantView<'a> {
    #[serde(flatten)]
    granted: GrantedView,
    /// With `models`: the one that serves, as the caller wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "sonnet")]
    model: Option<&'a str>,
    /// With `models`: whether it is not the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    substituted: Option<bool>,
    /// `max_output_tokens` was `auto`: tell the model what is granted. Absent
    /// otherwise.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    auto: bool,
}

impl<'a> GrantView<'a> {
    fn new(allowed: &'a Allowed) -> Self {
        let choice = allowed.choice.as_ref();
        Self {
            granted: allowed.granted.into(),
            model: choice.map(|choice| choice.model.as_str()),
            substituted: choice.map(|choice| choice.substituted),
            auto: allowed.auto_output,
        }
    }
}

/// What refused a model.
#[derive(Serialize, ToSchema)]
#[schema(as = Because)]
struct BecauseView<'a> {
    #[schema(example = "opus")]
    model: &'a str,
    #[serde(flatten)]
    refused: WouldRefuseView<'a>,
}

impl<'a> From<&'a (Name, WouldRefuse)> for BecauseView<'a> {
    fn from((model, refused): &'a (Name, WouldRefuse)) -> Self {
        Self { model: model.as_str(), refused: refused.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<CheckCommand, Vec<String>> {
        let node = crate::domain::document::Node::from_json(body.as_bytes()).unwrap();
        let faults = |faults: Vec<crate::domain::document::Fault>| {
            faults.into_iter().map(|fault| fault.pointer).collect::<Vec<_>>()
        };
        node.read(|fields| read_check(fields, None, false)).map_err(faults)
    }

    #[test]
    fn only_a_user_is_required() {
        let command = read(r#"{"user":"u"}"#).unwrap();
        assert_eq!((command.input_tokens, command.max_output), (0, MaxOutput::Cap));
        assert!(!command.bulk && !command.dry_run && command.amounts.is_empty());
    }

    #[test]
    fn hostile_numbers_never_pass() {
        for bad in ["-1", "1.5", "\"100\"", "1e3", "true", "9007199254740992", "[]", "1.0"] {
            for field in ["input_tokens", "max_output_tokens", "min_output_tokens"] {
                let body = format!(r#"{{"user":"u","{field}":{bad}}}"#);
                assert_eq!(read(&body).unwrap_err(), [format!("/{field}")], "{body}");
            }
        }
    }

    #[test]
    fn every_fault_is_told_at_once() {
        let faults =
            read(r#"{"user":"a","user":"b","tenant":"x","lease_seconds":0,"amounts":{"requests":1}}"#);
        let mut faults = faults.unwrap_err();
        faults.sort();
        assert_eq!(faults, ["/amounts/requests", "/lease_seconds", "/tenant", "/user"]);
    }

    #[test]
    fn the_least_output_is_at_most_the_most() {
        assert_eq!(read(r#"{"user":"u","max_output_tokens":1,"min_output_tokens":2}"#).unwrap_err().len(), 1);
        let auto = read(r#"{"user":"u","max_output_tokens":"auto","min_output_tokens":2}"#).unwrap();
        assert_eq!((auto.max_output, auto.min_output_tokens), (MaxOutput::Auto, Some(2)));
        for bad in [r#""Auto""#, r#""512""#, "true"] {
            let body = format!(r#"{{"user":"u","max_output_tokens":{bad}}}"#);
            assert_eq!(read(&body).unwrap_err(), ["/max_output_tokens"], "{bad}");
        }
        let sum = r#"{"user":"u","input_tokens":9007199254740991,"max_output_tokens":1}"#;
        assert_eq!(read(sum).unwrap_err(), ["/max_output_tokens"]);
    }

    #[test]
    fn header_and_body_name_the_same_request() {
        let node = crate::domain::document::Node::from_json(br#"{"user":"u","request_id":"a"}"#).unwrap();
        let with = |key: &str| {
            let key = RequestId::parse(key).unwrap();
            node.read(|fields| read_check(fields, Some(&key), false))
        };
        assert_eq!(with("a").unwrap().request_id.unwrap().as_str(), "a");
        assert!(with("b").is_err());
    }
}
