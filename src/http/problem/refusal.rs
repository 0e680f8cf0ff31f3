//! Refusals of the decision as problems: precedence is the domain's, status
//! and wording are ours.

use actix_web::http::StatusCode;

use super::{Kind, Problem};
use crate::domain::decision::{Code, Refusal, Remedy, Violation};
use crate::domain::ids::Label;
use crate::domain::time::Millis;

/// What a refusal adds to a problem.
#[derive(Debug)]
pub(super) struct Denied {
    pub limit: Option<Label>,
    pub violations: Vec<Violation>,
    /// `Some(None)`: it never resets.
    pub resets_at: Option<Option<Millis>>,
}

impl From<Code> for Kind {
    fn from(code: Code) -> Self {
        match code {
            Code::RequestIdReused => Self::RequestIdReused,
            Code::AlreadyFinished => Self::AlreadyFinished,
            Code::UnknownUser => Self::UnknownUser,
            Code::UserSuspended => Self::UserSuspended,
            Code::UserUnverified => Self::UserUnverified,
            Code::InputTooLarge => Self::InputTooLarge,
            Code::OutputTooLarge => Self::OutputTooLarge,
            Code::ExceedsCapacity => Self::ExceedsCapacity,
            Code::DailyQuotaExhausted => Self::DailyQuotaExhausted,
            Code::WeeklyQuotaExhausted => Self::WeeklyQuotaExhausted,
            Code::MonthlyQuotaExhausted => Self::MonthlyQuotaExhausted,
            Code::QuotaExhausted => Self::QuotaExhausted,
            Code::RequestRateExceeded => Self::RequestRateExceeded,
            Code::InputRateExceeded => Self::InputRateExceeded,
            Code::OutputRateExceeded => Self::OutputRateExceeded,
            Code::TokenRateExceeded => Self::TokenRateExceeded,
            Code::CreditRateExceeded => Self::CreditRateExceeded,
            Code::ConcurrencyExceeded => Self::ConcurrencyExceeded,
            Code::UpstreamCapacityExceeded => Self::UpstreamCapacityExceeded,
            Code::QueueFull => Self::QueueFull,
            Code::QueueTimeout => Self::QueueTimeout,
            Code::UpstreamPaused => Self::UpstreamPaused,
        }
    }
}

impl Kind {
    /// An allowance that waiting does not bring back soon.
    pub(super) fn is_quota(self) -> bool {
        matches!(
            self,
            Self::DailyQuotaExhausted
                | Self::WeeklyQuotaExhausted
                | Self::MonthlyQuotaExhausted
                | Self::QuotaExhausted
        )
    }
}

impl Problem {
    /// The refusal as a problem. `denial_status` is the tenant's status for a
    /// spent allowance, `now` the time of the decision.
    pub fn refused(refusal: Refusal, denial_status: u16, now: Millis) -> Self {
        let kind = Kind::from(refusal.code);
        let mut problem = Self::new(kind, sentence(&refusal, kind));
        let parts = &mut problem.0;
        parts.max = refusal.max;
        parts.hold = refusal.hold.map(|hold| (hold, now));
        let mut resets_at = None;
        match refusal.remedy {
            Some(Remedy::Wait { retry_after_ms }) => parts.retry_after_ms = Some(retry_after_ms),
            Some(Remedy::Reset { resets_at: at }) => resets_at = Some(at),
            Some(Remedy::Never { max }) => parts.max = parts.max.or(Some(max)),
            None => {}
        }
        if kind.is_quota() {
            parts.status = StatusCode::from_u16(denial_status).ok();
        }
        parts.denied = Some(Denied { limit: refusal.limit, violations: refusal.violations, resets_at });
        problem
    }
}

/// The refusal in a sentence for people.
fn sentence(refusal: &Refusal, kind: Kind) -> String {
    let limit = refusal.limit.as_ref().map_or("a limit", |limit| limit.as_str());
    match (refusal.remedy, refusal.max) {
        (Some(Remedy::Wait { retry_after_ms }), _) if refusal.code == Code::UpstreamPaused => {
            paused(limit, &in_words(retry_after_ms))
        }
        (Some(Remedy::Wait { retry_after_ms }), _) => {
            let wait = in_words(retry_after_ms);
            format!("The limit {limit} has no room now; there will be room in {wait}.")
        }
        (Some(Remedy::Reset { resets_at: Some(at) }), _) => {
            format!("The limit {limit} is used up; it resets at {at}.")
        }
        (Some(Remedy::Reset { resets_at: None }), _) => {
            format!("The limit {limit} is used up and does not reset.")
        }
        (Some(Remedy::Never { max }), _) => {
            format!("The limit {limit} can never give more than {max} to one call.")
        }
        (None, Some(max)) => format!("{}: at most {max} tokens are allowed in one call.", kind.entry().title),
        (None, None) => plain_sentence(kind).into(),
    }
}

/// Why a pool's callers are held back.
fn paused(by: &str, wait: &str) -> String {
    match by {
        "closure" => "The vendor's spend limit is reached: calls go through again when the product's admin \
                      opens the pool, or the month turns."
            .into(),
        "brake" => format!("Bulk calls make room for interactive ones; ask again in {wait}."),
        _ => format!("The vendor behind this model said to wait; there will be room in {wait}."),
    }
}

fn plain_sentence(kind: Kind) -> &'static str {
    match kind {
        Kind::RequestIdReused => "This request id was used before with another body.",
        Kind::AlreadyFinished => "The call of this request id is already finished.",
        Kind::UnknownUser => "The user is not known, and there is no default plan.",
        Kind::UserSuspended => "The user is suspended.",
        Kind::UserUnverified => "The user's plan is for verified users.",
        _ => kind.entry().title,
    }
}

/// A wait for people: whole units, rounded up.
fn in_words(wait_ms: u64) -> String {
    match wait_ms {
        0..1_000 => format!("{wait_ms} ms"),
        1_000..120_000 => format!("{} s", wait_ms.div_ceil(1_000)),
        120_000..7_200_000 => format!("{} minutes", wait_ms.div_ceil(60_000)),
        _ => format!("{} hours", wait_ms.div_ceil(3_600_000)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::domain::plan::{Meter, Scope};
    use crate::http::problem::PLAIN;
    use crate::http::reply::Reply;

    fn violation(remedy: Remedy) -> Violation {
        Violation {
            name: Label::parse("tokens").unwrap(),
            scope: Scope::User,
            kind: "window",
            meter: Some(Meter::TotalTokens),
            limit: 10,
            remaining: 1,
            requested: 5,
            remedy,
            would_fit: 1,
        }
    }

    fn reply(code: Code, remedy: Remedy, denial_status: u16) -> (Reply, Value) {
        let refusal = Refusal {
            code,
            limit: Some(Label::parse("tokens").unwrap()),
            max: None,
            remedy: Some(remedy),
            violations: vec![violation(remedy)],
            hold: None,
            limits: vec![],
        };
        let reply = Problem::refused(refusal, denial_status, Millis(0)).into_reply(&PLAIN);
        let body = serde_json::from_slice(&reply.body).unwrap();
        (reply, body)
    }

    fn header<'r>(reply: &'r Reply, name: &str) -> Option<&'r str> {
        reply.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.to_str().unwrap())
    }

    #[test]
    fn a_short_wait_is_told_in_whole_seconds_and_in_ms() {
        let (reply, body) = reply(Code::OutputRateExceeded, Remedy::Wait { retry_after_ms: 1300 }, 403);
        assert_eq!(reply.status.as_u16(), 429);
        assert_eq!(header(&reply, "retry-after"), Some("2"));
        assert_eq!(header(&reply, "retry-after-ms"), Some("1300"));
        assert_eq!(header(&reply, "x-should-retry"), Some("true"));
        assert_eq!(body["retry_after_ms"], 1300);
        assert_eq!(body["violated-policies"], json!(["tokens"]));
        assert_eq!(body["violations"][0]["would_fit"], 1);
        assert_eq!(body.get("resets_at"), None);
    }

    #[test]
    fn no_sdk_is_told_to_sleep_for_an_hour() {
        let (reply, body) = reply(Code::ConcurrencyExceeded, Remedy::Wait { retry_after_ms: 60_001 }, 429);
        assert_eq!(header(&reply, "retry-after"), Some("61"));
        assert_eq!(header(&reply, "x-should-retry"), Some("false"));
        assert_eq!(body["retryable"], true);
    }

    #[test]
    fn a_spent_allowance_names_no_wait_and_takes_the_tenants_status() {
        let resets_at = Some(Millis(1000));
        let (reply, body) = reply(Code::MonthlyQuotaExhausted, Remedy::Reset { resets_at }, 402);
        assert_eq!((reply.status.as_u16(), &body["status"]), (402, &json!(402)));
        assert_eq!((header(&reply, "retry-after"), header(&reply, "retry-after-ms")), (None, None));
        assert_eq!(header(&reply, "x-should-retry"), Some("false"));
        assert_eq!(body["resets_at"], "1970-01-01T00:00:01.000Z");
        assert_eq!(body.get("retry_after_ms"), None);
    }

    #[test]
    fn what_never_resets_says_so() {
        let (_, body) = reply(Code::QuotaExhausted, Remedy::Reset { resets_at: None }, 429);
        assert!(body.as_object().unwrap().contains_key("resets_at"));
        assert_eq!((&body["resets_at"], &body["violations"][0]["resets_at"]), (&Value::Null, &Value::Null));
    }

    #[test]
    fn every_code_of_the_domain_keeps_its_name() {
        for code in [
            Code::RequestIdReused,
            Code::AlreadyFinished,
            Code::UnknownUser,
            Code::UserSuspended,
            Code::UserUnverified,
            Code::InputTooLarge,
            Code::OutputTooLarge,
            Code::ExceedsCapacity,
            Code::DailyQuotaExhausted,
            Code::WeeklyQuotaExhausted,
            Code::MonthlyQuotaExhausted,
            Code::QuotaExhausted,
            Code::RequestRateExceeded,
            Code::InputRateExceeded,
            Code::OutputRateExceeded,
            Code::TokenRateExceeded,
            Code::CreditRateExceeded,
            Code::ConcurrencyExceeded,
            Code::UpstreamCapacityExceeded,
            Code::UpstreamPaused,
        ] {
            assert_eq!(Kind::from(code).entry().code, code.as_str());
        }
    }
}
