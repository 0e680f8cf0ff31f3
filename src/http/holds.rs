//! `/v1/holds`: settle, release, extend and look up what a check reserved.
//!
//! Order of refusals: the body (400), then the hold (404), its state (409),
//! then what is asked of it (422).

use actix_web::http::header::HeaderValue;

use super::batch;
use super::body;
use super::call::Call;
use super::check::{IDEMPOTENCY_REPLAYED, MAX_LEASE_SECONDS};
use super::problem::{Kind, Problem};
use super::reply::{Answer, Reply};
use super::schema::{BatchReply, ExtendRequest, ReleaseRequest, SettleBatchRequest, SettleRequest};
use super::traced;
use super::usage::{FIGURES, read_notes, read_reported, usage_implausible};
use super::views::{FinishedView, HoldReply, HoldView, Rows, WouldRefuseView};
use crate::domain::document::Reader;
use crate::domain::hold::ReleaseReason;
use crate::domain::ids::{HoldId, RequestId, UserId};
use crate::domain::quantity::MAX_AMOUNT;
use crate::service::{
    ExtendCommand, FinishReply, Finished, ReleaseCommand, ServiceError, SettleCommand, SettleUsage,
};

/// Tells what a call really used, or that nobody knows.
#[utoipa::path(
    post, path = "/v1/holds/{id}/settle", operation_id = "settle_hold", tag = "holds",
    params(("id" = String, Path, description = "The hold")),
    request_body = SettleRequest,
    responses(
        (status = 200, description = "Settled, now or before in the same way", body = FinishedView),
        (status = 404, description = "No such hold"),
        (status = 409, description = "`already_finished` in another way, with the hold"),
        (status = 422, description = "`usage_implausible`: nothing was changed"),
    ),
    security(("bearer" = ["check"])),
)]
pub async fn settle(mut call: Call) -> Answer {
    let body = call.body().await?;
    let usage = body::document(&body, read_usage)?;
    let id = hold_id(&call)?;
    let finished = call.service().settle(call.tenant()?, SettleCommand { id, usage }).await?;
    finish(&call, finished)
}

/// Settles up to 100 holds, each on its own, in order.
#[utoipa::path(
    post, path = "/v1/holds/settle/batch", operation_id = "settle_batch", tag = "holds",
    request_body = SettleBatchRequest,
    responses((status = 200, description = "One result per settle, in order", body = BatchReply)),
    security(("bearer" = ["check"])),
)]
pub async fn settle_batch(mut call: Call) -> Answer {
    let body = call.batch_body().await?;
    let items = batch::read(&body, "settles", |fields| {
        let id = fields.required("id").text();
        let usage = read_usage(fields);
        Some(BatchItem { id: HoldId::parse(id?), usage: usage? })
    })?;
    traced::batch_of(items.len());
    let tenant = call.tenant()?;
    // Ids that cannot be of any hold are not worth a look-up.
    let known: Vec<bool> = items.iter().flatten().map(|item| item.id.is_some()).collect();
    let decide = async |items: Vec<BatchItem>| {
        let command = |item: BatchItem| Some(SettleCommand { id: item.id?, usage: item.usage });
        let commands = items.into_iter().filter_map(command).collect();
        let mut settled = call.service().settle_batch(tenant, commands).await.into_iter();
        let result = |known: &bool| match known {
            true => settled.next(),
            false => Some(Ok(FinishReply::NotFound)),
        };
        Ok(known.iter().map_while(result).collect())
    };
    let render = |_: usize, settled: Result<FinishReply, ServiceError>| finish(&call, settled?);
    batch::answer(items, decide, render, &call).await
}

struct BatchItem {
    id: Option<HoldId>,
    usage: SettleUsage,
}

/// Says that the vendor did no work: everything comes back.
#[utoipa::path(
    post, path = "/v1/holds/{id}/release", operation_id = "release_hold", tag = "holds",
    params(("id" = String, Path, description = "The hold")),
    request_body = Option<ReleaseRequest>,
    responses(
        (status = 200, description = "Released, now or before", body = FinishedView),
        (status = 404, description = "No such hold"),
        (status = 409, description = "`already_finished` or `has_progress`, with the hold"),
    ),
    security(("bearer" = ["check"])),
)]
pub async fn release(mut call: Call) -> Answer {
    let body = call.body().await?;
    let words = [("not_sent", ReleaseReason::NotSent), ("upstream_refused", ReleaseReason::UpstreamRefused)];
    let reason = body::optional_document(&body, |fields| {
        Some(fields.optional("reason").choice(&words).unwrap_or(ReleaseReason::NotSent))
    })?;
    let id = hold_id(&call)?;
    let finished = call.service().release(call.tenant()?, ReleaseCommand { id, reason }).await?;
    finish(&call, finished)
}

/// Renews the lease, reports progress, and may reserve more.
#[utoipa::path(
    post, path = "/v1/holds/{id}/extend", operation_id = "extend_hold", tag = "holds",
    params(
        ("id" = String, Path, description = "The hold"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition harmless."),
    ),
    request_body = Option<ExtendRequest>,
    responses(
        (status = 200, description = "Extended", body = FinishedView),
        (status = 402, description = "As 429, of a limit for whose end nobody waits, where `denial_status` says so"),
        (status = 403, description = "`forbidden`, `tenant_suspended`; as 402"),
        (status = 404, description = "No such hold"),
        (status = 409, description = "`lease_ended` or `already_finished`, with the hold"),
        (status = 413, description = "More than a cap or a limit can ever give"),
        (status = 422, description = "`request_id_reused`: the key was used with another body"),
        (status = 429, description = "No room for more, as for a check"),
    ),
    security(("bearer" = ["check"])),
)]
pub async fn extend(mut call: Call) -> Answer {
    let body = call.body().await?;
    let key = call.idempotency_key()?;
    let read = |fields: &mut Reader<'_, '_>| {
        let lease_seconds = fields.optional("lease_seconds").number(1..=MAX_LEASE_SECONDS);
        let add_output_tokens = fields.optional("add_output_tokens").amount(MAX_AMOUNT).unwrap_or(0);
        let output_tokens_so_far = fields.optional("output_tokens_so_far").amount(MAX_AMOUNT);
        Some((lease_seconds, add_output_tokens, output_tokens_so_far))
    };
    let (lease_seconds, add_output_tokens, output_tokens_so_far) = body::optional_document(&body, read)?;
    let id = hold_id(&call)?;
    let command = ExtendCommand { id, lease_seconds, add_output_tokens, output_tokens_so_far, key };
    let extended = call.service().extend(call.tenant()?, command).await?;
    finish(&call, extended)
}

/// Shows a hold.
#[utoipa::path(
    get, path = "/v1/holds/{id}", operation_id = "get_hold", tag = "holds",
    params(("id" = String, Path, description = "The hold")),
    responses(
        (status = 200, description = "The hold as it stands", body = HoldReply),
        (status = 404, description = "No such hold"),
    ),
    security(("bearer" = ["check"]), ("bearer" = ["quota"])),
)]
pub async fn get(call: Call) -> Answer {
    let id = hold_id(&call)?;
    match call.service().hold(call.tenant()?, id).await? {
        Some((hold, now)) => Ok(Reply::json(&HoldReply { hold: HoldView::new(&hold, now) })),
        None => Err(orphan(&call)),
    }
}

/// Finds the newest hold of a user's request id.
#[utoipa::path(
    get, path = "/v1/holds", operation_id = "find_hold", tag = "holds",
    params(
        ("user" = String, Query, description = "The user"),
        ("request_id" = String, Query, description = "The id that the check was made under"),
    ),
    responses(
        (status = 200, description = "The hold as it stands", body = HoldReply),
        (status = 404, description = "No such hold"),
    ),
    security(("bearer" = ["check"]), ("bearer" = ["quota"])),
)]
pub async fn find(call: Call) -> Answer {
    let (user, request_id) = call.query(|parameters| {
        let user = parameters.required("user", UserId::parse);
        let request_id = parameters.required("request_id", RequestId::parse);
        Some((user?, request_id?))
    })?;
    match call.service().hold_by_request(call.tenant()?, user, request_id).await? {
        Some((hold, now)) => Ok(Reply::json(&HoldReply { hold: HoldView::new(&hold, now) })),
        None => Err(Problem::not_found("hold")),
    }
}

/// The hold named in the path. What is no id of ours is nobody's hold.
pub fn hold_id(call: &Call) -> Result<HoldId, Problem> {
    HoldId::parse(&call.segment("id")?).ok_or_else(|| orphan(call))
}

fn orphan(call: &Call) -> Problem {
    call.state.metrics.orphan_hold();
    Problem::not_found("hold")
}

fn read_usage(fields: &mut Reader<'_, '_>) -> Option<SettleUsage> {
    if fields.optional("usage").is_table() {
        if !fields.has("usage_format") {
            fields.fault("usage_format", "is required beside a vendor's usage");
            return None;
        }
    } else if fields.optional("usage").choice(&[("unknown", ())]).is_some() {
        return read_unknown(fields);
    }
    let (reported, amounts) = read_reported(fields)?;
    Some(SettleUsage::Reported { reported, amounts })
}

fn read_unknown(fields: &mut Reader<'_, '_>) -> Option<SettleUsage> {
    for figure in FIGURES.into_iter().chain(["usage_format", "amounts"]) {
        if fields.has(figure) {
            fields.fault(figure, "must not be given when the usage is unknown");
        }
    }
    read_notes(fields);
    Some(SettleUsage::Unknown)
}

/// How the end of a hold, or the try of it, is answered.
pub fn finish(call: &Call, finished: FinishReply) -> Answer {
    let conflict = |kind, detail, hold, now| Err(Problem::new(kind, detail).with_hold(hold, now));
    match finished {
        FinishReply::Done(done) => {
            if done.replayed {
                call.state.metrics.duplicate("hold");
            }
            Ok(done_reply(&done))
        }
        FinishReply::NotFound => Err(orphan(call)),
        FinishReply::AlreadyFinished(hold, now) => {
            conflict(Kind::AlreadyFinished, "The hold was finished before, in another way.", hold, now)
        }
        FinishReply::HasProgress(hold, now) => {
            conflict(Kind::HasProgress, "Output was reported for this hold: settle it.", hold, now)
        }
        FinishReply::LeaseEnded(hold, now) => {
            conflict(Kind::LeaseEnded, "The hold's lease is over.", hold, now)
        }
        FinishReply::NotInDoubt(hold, now) => {
            conflict(Kind::NotInDoubt, "The hold's lease runs: its call may still be settled.", hold, now)
        }
        FinishReply::UsageImplausible { field, max } => {
            call.state.metrics.usage_implausible();
            Err(usage_implausible(field, max))
        }
        FinishReply::Refused(refusal) => {
            let tenant = call.tenant()?;
            Err(Problem::refused(refusal, tenant.catalog().settings.denial_status, tenant.now()))
        }
        FinishReply::RequestIdReused => {
            Err(Problem::new(Kind::RequestIdReused, "This key was used before with another body."))
        }
    }
}

fn done_reply(done: &Finished) -> Reply {
    let hold = HoldView::new(&done.hold, done.now);
    let would_refuse = done.would_refuse.as_ref().map(WouldRefuseView::from);
    let mut reply = Reply::json(&FinishedView { hold, limits: Rows(&done.limits), would_refuse });
    if done.replayed {
        reply.headers.push((IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true")));
    }
    reply
}
