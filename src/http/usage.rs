//! `POST /v1/usage`: use that had no hold. It is never refused for quota: it
//! happened.

use std::borrow::Cow;

use serde::Serialize;
use utoipa::ToSchema;

use super::batch::MAX_ITEMS;
use super::body;
use super::call::Call;
use super::check::read_amounts;
use super::problem::{FaultView, Kind, Problem};
use super::reply::{Answer, Reply};
use super::schema::UsageBody;
use crate::domain::document::{Fault, Node, Reader};
use crate::domain::hold::{Reported, Upstream};
use crate::domain::ids::{Label, Name, RequestId, UserId};
use crate::domain::quantity::MAX_AMOUNT;
use crate::domain::time::Millis;
use crate::domain::usage::{self, Figures};
use crate::service::{UsageCommand, UsageResult, UsageStatus};

const MAX_OUTCOME_BYTES: usize = 64;
const MAX_UPSTREAM_ID_BYTES: usize = 256;

/// Records use that had no hold, once per `id`.
#[utoipa::path(
    post, path = "/v1/usage", operation_id = "record_usage", tag = "usage",
    request_body = UsageBody,
    responses(
        (status = 200, description = "One result per item, in order", body = UsageReply),
        (status = 422, description = "`usage_implausible`: nothing was changed"),
    ),
    security(("bearer" = ["check"])),
)]
pub async fn record(mut call: Call) -> Answer {
    let body = call.batch_body().await?;
    let node = Node::from_json(&body).map_err(|fault| Problem::invalid(vec![fault]))?;
    let is_list = node.get("items").is_some();
    if !is_list && body.len() > body::MAX_BODY {
        return Err(body::too_large(body::MAX_BODY));
    }
    let commands = if is_list {
        node.read(|fields| {
            if matches!(node.get("items"), Some(Node::List(items)) if items.is_empty()) {
                fields.fault("items", "must have at least 1 item");
            }
            fields.required("items").list(MAX_ITEMS, |item| item.table(read_item))
        })
    } else {
        node.read(|fields| read_item(fields).map(|item| vec![item]))
    };
    let commands = commands.map_err(Problem::invalid)?;
    let results = call.service().record_usage(call.tenant()?, commands).await?;
    for result in &results {
        match result.status {
            UsageStatus::Implausible { .. } => call.state.metrics.usage_implausible(),
            UsageStatus::Duplicate => call.state.metrics.duplicate("usage"),
            UsageStatus::Recorded | UsageStatus::Invalid(_) => {}
        }
    }
    if !is_list && let [only] = results.as_slice() {
        match &only.status {
            UsageStatus::Invalid(faults) => return Err(Problem::invalid(faults.clone())),
            UsageStatus::Implausible { field, max } => return Err(usage_implausible(field, *max)),
            UsageStatus::Recorded | UsageStatus::Duplicate => {}
        }
    }
    let results = results.iter().map(ResultView::from).collect();
    Ok(Reply::json(&UsageReply { results }))
}

fn read_item(fields: &mut Reader<'_, '_>) -> Option<UsageCommand> {
    let id = fields.required("id").parsed(RequestId::parse);
    let user = fields.required("user").parsed(UserId::parse);
    let feature = fields.optional("feature").parsed(Label::parse);
    let at = fields.optional("at").parsed(Millis::parse);
    let (reported, amounts) = read_reported(fields)?;
    let model = reported.model.clone();
    Some(UsageCommand { id: id?, user: user?, model, feature, reported, amounts, at })
}

/// The fields of figures of our own.
pub const FIGURES: [&str; 4] = ["input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"];

/// The figures of a settle or of a use without hold.
pub fn read_reported(fields: &mut Reader<'_, '_>) -> Option<(Reported, Vec<(Label, u64)>)> {
    let figures = if fields.has("usage_format") { read_verbatim(fields) } else { read_figures(fields) };
    let (model, outcome, upstream) = read_notes(fields);
    let amounts = read_amounts(fields);
    let Figures { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens } = figures?;
    let reported = Reported {
        input_tokens,
        output_tokens,
        cache_read_tokens,
        cache_write_tokens,
        model,
        outcome,
        upstream,
    };
    Some((reported, amounts))
}

fn read_figures(fields: &mut Reader<'_, '_>) -> Option<Figures> {
    let input_tokens = fields.required("input_tokens").amount(MAX_AMOUNT);
    let output_tokens = fields.required("output_tokens").amount(MAX_AMOUNT);
    let cache_read_tokens = fields.optional("cache_read_tokens").amount(MAX_AMOUNT).unwrap_or(0);
    let cache_write_tokens = fields.optional("cache_write_tokens").amount(MAX_AMOUNT).unwrap_or(0);
    if input_tokens.is_some_and(|input| cache_read_tokens + cache_write_tokens > input) {
        let field = if cache_read_tokens > 0 { "cache_read_tokens" } else { "cache_write_tokens" };
        fields.fault(
            field,
            "must be part of input_tokens: cache reads and writes together are at most the input",
        );
    }
    let (input_tokens, output_tokens) = (input_tokens?, output_tokens?);
    Some(Figures { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens })
}

/// The vendor's own report in place of the figures.
fn read_verbatim(fields: &mut Reader<'_, '_>) -> Option<Figures> {
    for figure in FIGURES {
        if fields.has(figure) {
            fields.fault(figure, "must not be given beside usage_format: `usage` has the figures");
        }
    }
    let format = fields.optional("usage_format").choice(&usage::FORMATS);
    let usage = fields.required("usage");
    match format {
        Some(format) => format.read(usage),
        None => {
            usage.node();
            None
        }
    }
}

/// What is told beside the figures: the model that served, the outcome, and
/// the vendor's side of the call.
pub fn read_notes(fields: &mut Reader<'_, '_>) -> (Option<Name>, Option<String>, Option<Upstream>) {
    let model = fields.optional("model").parsed(Name::parse);
    let outcome = fields.optional("outcome").text_up_to(MAX_OUTCOME_BYTES).map(str::to_owned);
    let upstream = fields.optional("upstream").table(|fields| Some(read_upstream(fields)));
    (model, outcome, upstream)
}

fn read_upstream(fields: &mut Reader<'_, '_>) -> Upstream {
    Upstream {
        request_id: fields.optional("request_id").text_up_to(MAX_UPSTREAM_ID_BYTES).map(str::to_owned),
        status: fields.optional("status").number(100..=599u16),
        latency_ms: fields.optional("latency_ms").amount(MAX_AMOUNT),
    }
}

/// A figure beyond belief: nothing was changed.
pub fn usage_implausible(field: &str, max: u64) -> Problem {
    let detail = format!("{field} is above {max}, the most that the product takes for one call.");
    Problem::new(Kind::UsageImplausible, detail).with_max(max).with_faults(vec![above(field, max)])
}

fn above(field: &str, max: u64) -> Fault {
    Fault { pointer: format!("/{field}"), message: format!("must be at most {max}") }
}

#[derive(Serialize, ToSchema)]
pub struct UsageReply<'a> {
    results: Vec<ResultView<'a>>,
}

/// What became of one item.
#[derive(Serialize, ToSchema)]
#[schema(as = UsageResult)]
pub struct ResultView<'a> {
    id: &'a str,
    /// `recorded`, `duplicate` (recorded before) or `invalid`.
    status: &'static str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schema(value_type = Option<Vec<FaultView>>)]
    errors: Cow<'a, [Fault]>,
}

impl<'a> From<&'a UsageResult> for ResultView<'a> {
    fn from(result: &'a UsageResult) -> Self {
        let (status, errors) = match &result.status {
            UsageStatus::Recorded => ("recorded", Cow::Borrowed(&[][..])),
            UsageStatus::Duplicate => ("duplicate", Cow::Borrowed(&[][..])),
            UsageStatus::Invalid(faults) => ("invalid", Cow::Borrowed(&faults[..])),
            UsageStatus::Implausible { field, max } => ("invalid", Cow::Owned(vec![above(field, *max)])),
        };
        Self { id: result.id.as_str(), status, errors }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(body: &str) -> Vec<String> {
        let node = Node::from_json(body.as_bytes()).unwrap();
        let read = node.read(read_reported);
        read.err().unwrap_or_default().into_iter().map(|fault| fault.pointer).collect()
    }

    #[test]
    fn cached_tokens_are_part_of_the_input() {
        assert_eq!(faults(r#"{"input_tokens":10339,"output_tokens":0,"cache_read_tokens":10318}"#), [""; 0]);
        let more = r#"{"input_tokens":10339,"output_tokens":0,"cache_read_tokens":11000}"#;
        assert_eq!(faults(more), ["/cache_read_tokens"]);
        let both = r#"{"input_tokens":10,"output_tokens":0,"cache_read_tokens":6,"cache_write_tokens":5}"#;
        assert_eq!(faults(both), ["/cache_read_tokens"]);
        let writes = r#"{"input_tokens":10,"output_tokens":0,"cache_write_tokens":11}"#;
        assert_eq!(faults(writes), ["/cache_write_tokens"]);
    }

    #[test]
    fn missing_usage_is_not_zero() {
        assert_eq!(faults("{}"), ["/input_tokens", "/output_tokens"]);
        assert_eq!(faults(r#"{"input_tokens":100,"output_tokens":-5000}"#), ["/output_tokens"]);
    }
}
