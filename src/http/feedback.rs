//! `/v1/pools/{pool}/feedback`: what callers tell of the vendor behind a pool.

use serde_json::json;

use super::call::Call;
use super::problem::Problem;
use super::reply::{Answer, Reply};
use super::schema::{FeedbackReplyBody, FeedbackRequest};
use crate::domain::document::{Node, Reader};
use crate::domain::ids::Name;
use crate::domain::quantity::MAX_AMOUNT;
use crate::domain::upstream::{self, Meaning};
use crate::service::upstream::feedback::Feedback;

/// Headers that are looked at; those of vendors are some dozens.
const MAX_HEADERS: usize = 256;

/// Tells what the vendor answered: what it means for one call it means for all.
#[utoipa::path(
    post, path = "/v1/pools/{pool}/feedback", operation_id = "pool_feedback", tag = "checks",
    params(("pool" = String, Path, description = "The pool")),
    request_body = FeedbackRequest,
    responses(
        (status = 200, description = "What it means, and the pool's condition now", body = FeedbackReplyBody),
        (status = 404, description = "No such pool"),
    ),
    security(("bearer" = ["check"])),
)]
pub async fn tell(mut call: Call) -> Answer {
    let bytes = call.body().await?;
    let node = Node::from_json(&bytes).map_err(|fault| Problem::invalid(vec![fault]))?;
    // A body that the caller hands on as text may be JSON in itself.
    let inner = node.get("body").and_then(Node::as_text).map(str::to_owned);
    let mut feedback = node.read(read).map_err(Problem::invalid)?;
    if let Some(text) = &inner {
        feedback.answer.body = Some(match Node::from_json(text.as_bytes()) {
            Ok(node @ (Node::Table(_) | Node::List(_))) => upstream::Body::Json(node),
            _ => upstream::Body::Text(text),
        });
    }
    let pool = Name::parse(&call.segment("pool")?).map_err(|_| Problem::not_found("pool"))?;
    let told = call.service().feedback(call.tenant()?, &pool, &feedback, &call.author()).await?;
    let (meaning, because) = match &told.meaning {
        Meaning::Nothing => ("nothing", None),
        Meaning::Wait { .. } => ("wait", None),
        Meaning::Spent { why } => ("spent", Some(why.as_str())),
    };
    let corrected = told.corrected.iter().map(|(limit, left)| json!({"limit": limit.as_str(), "left": left}));
    Ok(Reply::json(&json!({
        "pool": told.pool.pool.id.as_str(),
        "meaning": meaning,
        "because": because,
        "corrected": corrected.collect::<Vec<_>>(),
        "condition": told.pool.condition_json(told.now),
    })))
}

fn read<'n>(fields: &mut Reader<'n, '_>) -> Option<Feedback<'n>> {
    let status = fields.required("status").number(100..=599u16);
    let headers = fields.optional("headers").table(|headers| Some(read_headers(headers)));
    let latency_ms = fields.optional("latency_ms").amount(MAX_AMOUNT);
    let bulk = fields.optional("priority").choice(&[("interactive", false), ("bulk", true)]);
    let body = fields.optional("body").node().map(|node| upstream::Body::Json(node.clone()));
    let answer = upstream::Answer { status: status?, headers, body };
    Some(Feedback { answer, bulk: bulk.unwrap_or(false), latency_ms })
}

/// As HTTP libraries hold them: a text, a number, or a list of texts of which
/// the first counts. Nothing that a vendor sends is a fault.
fn read_headers(headers: &mut Reader<'_, '_>) -> Vec<(String, String)> {
    let mut read = Vec::new();
    for name in headers.names() {
        let value = match headers.optional(name).node() {
            Some(Node::List(values)) => values.first(),
            value => value,
        };
        let value = match value {
            Some(Node::Text(text)) => text.to_string(),
            Some(Node::Integer(number)) => number.to_string(),
            Some(Node::Decimal(number)) => number.to_string(),
            None | Some(Node::Null) => continue,
            // It is there, and says nothing.
            Some(_) => String::new(),
        };
        if read.len() < MAX_HEADERS {
            read.push((name.to_ascii_lowercase(), value));
        }
    }
    read
}
