//! What the bodies of refusals say.

use super::moment::read_duration;
use crate::domain::document::Node;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Says {
    Nothing,
    /// Calls come too fast; of this axis, if it is named.
    TooFast(Option<String>),
    /// So many milliseconds.
    Wait(i64),
    /// The day's allowance is used up.
    DayIsSpent,
    /// Money is spent, or an allowance that only money brings back.
    Spent(String),
}

/// Codes and types of errors that no wait helps against.
const SPENT: [&str; 8] = [
    "insufficient_quota",
    "credit_balance_exhausted",
    "organization_spend_limit_exceeded",
    "project_spend_limit_exceeded",
    "organization_usage_limit_exceeded",
    "enforced_spend_limit_reached",
    "billing_error",
    "billing_hard_limit_reached",
];
/// Sentences that say the same where the code does not.
const SPENT_SENTENCES: [&str; 2] = ["specified api usage limits", "exceeded your current quota"];
const TOO_FAST: [&str; 3] = ["rate_limit_exceeded", "too_many_requests", "429"];
/// What `type` names beside such a code.
const AXES: [&str; 4] = ["requests", "tokens", "input-tokens", "output-tokens"];

pub fn of_json(body: &Node<'_>) -> Says {
    let error = match body {
        // Some gateways wrap the error into a list of one.
        Node::List(items) => items.first().and_then(|item| item.get("error")),
        _ => body.get("error"),
    };
    let Some(error) = error else { return body.as_text().map_or(Says::Nothing, of_text) };
    let text = |node: Option<&Node<'_>>| node.and_then(Node::as_text).unwrap_or_default().to_owned();
    let (code, kind) = (text(error.get("code")), text(error.get("type")));
    let inner = text(error.get("details").and_then(|details| details.get("error_code")));
    if let Some(word) = [&inner, &code, &kind].into_iter().find(|word| SPENT.contains(&word.as_str())) {
        return Says::Spent(word.clone());
    }
    if text(error.get("status")) == "RESOURCE_EXHAUSTED" {
        return of_google(error);
    }
    match of_text(&text(error.get("message"))) {
        Says::Spent(why) => Says::Spent(why),
        _ if TOO_FAST.contains(&code.as_str()) => {
            Says::TooFast(AXES.contains(&kind.as_str()).then_some(kind))
        }
        said => said,
    }
}

/// The id of the quota tells whether waiting helps; the delay does not.
fn of_google(error: &Node<'_>) -> Says {
    let mut delay = None;
    let details = match error.get("details") {
        Some(Node::List(details)) => details.as_slice(),
        _ => &[],
    };
    for detail in details {
        if let Some(Node::List(violations)) = detail.get("violations") {
            let by_day = |violation: &Node<'_>| {
                violation.get("quotaId").and_then(Node::as_text).is_some_and(|id| id.contains("PerDay"))
            };
            if violations.iter().any(by_day) {
                return Says::DayIsSpent;
            }
        }
        delay = delay.or_else(|| detail.get("retryDelay").and_then(Node::as_text).and_then(read_duration));
    }
    delay.map_or(Says::TooFast(None), Says::Wait)
}

pub fn of_text(text: &str) -> Says {
    let lower = text.to_ascii_lowercase();
    if SPENT_SENTENCES.iter().any(|sentence| lower.contains(sentence)) {
        return Says::Spent("a usage limit of the vendor's is reached".into());
    }
    match ["rate limit is exceeded", "too many requests"].iter().any(|words| lower.contains(words)) {
        true => Says::TooFast(None),
        false => Says::Nothing,
    }
}
