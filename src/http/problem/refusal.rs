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
        }
    }
}

impl Kind {
    /// An allowance that waiting does not bring back soon.
    fn is_quota(self) -> bool {
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
        (Some(Remedy::Wait { retry_after_ms }), _) => {
            format!("The limit {limit} has no room now; there will be room in {retry_after_ms} ms.")
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
