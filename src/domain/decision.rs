//! Verdicts and which refusal wins when several apply.

use super::cell::Standing;
use super::ids::Label;
use super::plan::{Enforce, Meter, Scope};
use super::time::Millis;

/// Why a call is refused, in the words callers see. A refusal is a value, not
/// an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    RequestIdReused,
    AlreadyFinished,
    UnknownUser,
    UserSuspended,
    UserUnverified,
    InputTooLarge,
    OutputTooLarge,
    ExceedsCapacity,
    DailyQuotaExhausted,
    WeeklyQuotaExhausted,
    MonthlyQuotaExhausted,
    QuotaExhausted,
    RequestRateExceeded,
    InputRateExceeded,
    OutputRateExceeded,
    TokenRateExceeded,
    CreditRateExceeded,
    ConcurrencyExceeded,
    UpstreamCapacityExceeded,
}

impl Code {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RequestIdReused => "request_id_reused",
            Self::AlreadyFinished => "already_finished",
            Self::UnknownUser => "unknown_user",
            Self::UserSuspended => "user_suspended",
            Self::UserUnverified => "user_unverified",
            Self::InputTooLarge => "input_too_large",
            Self::OutputTooLarge => "output_too_large",
            Self::ExceedsCapacity => "exceeds_capacity",
            Self::DailyQuotaExhausted => "daily_quota_exhausted",
            Self::WeeklyQuotaExhausted => "weekly_quota_exhausted",
            Self::MonthlyQuotaExhausted => "monthly_quota_exhausted",
            Self::QuotaExhausted => "quota_exhausted",
            Self::RequestRateExceeded => "request_rate_exceeded",
            Self::InputRateExceeded => "input_rate_exceeded",
            Self::OutputRateExceeded => "output_rate_exceeded",
            Self::TokenRateExceeded => "token_rate_exceeded",
            Self::CreditRateExceeded => "credit_rate_exceeded",
            Self::ConcurrencyExceeded => "concurrency_exceeded",
            Self::UpstreamCapacityExceeded => "upstream_capacity_exceeded",
        }
    }
}

/// One limit's row in a reply.
#[derive(Debug, Clone, PartialEq)]
pub struct LimitRow {
    pub name: Label,
    pub scope: Scope,
    /// `None` for slots.
    pub meter: Option<Meter>,
    pub enforce: Enforce,
    pub standing: Standing,
}

/// A threshold of `warn_at` that is reached: the highest one.
#[derive(Debug, Clone, PartialEq)]
pub struct Warning {
    pub limit: Label,
    pub ratio: super::quantity::Ppm,
    /// (used + held) / (limit + grants) in units of 1/100,000, half up.
    pub used_ratio: u64,
}

/// Why one limit does not let the call pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Violation {
    pub name: Label,
    pub scope: Scope,
    pub kind: &'static str,
    pub meter: Option<Meter>,
    pub limit: u64,
    pub remaining: u64,
    pub requested: u64,
    pub remedy: Remedy,
    /// The largest amount that passes now, by this limit alone.
    pub would_fit: u64,
}

/// What helps against a violation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Waiting this long helps, if nothing else happens.
    Wait { retry_after_ms: u64 },
    /// Nothing helps before the window ends; `None`: it never does.
    Reset { resets_at: Option<Millis> },
    /// The amount is more than the limit can ever give (`max`).
    Never { max: u64 },
}

/// A refused call, as the caller is told.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    pub code: Code,
    /// The limit that decides.
    pub limit: Option<Label>,
    /// For 413: the largest amount that could pass.
    pub max: Option<u64>,
    /// The deciding remedy.
    pub remedy: Option<Remedy>,
    /// Every failing limit, in the order of the reply's rows.
    pub violations: Vec<Violation>,
    /// For `already_finished`: the hold as it ended.
    pub hold: Option<std::sync::Arc<super::hold::Hold>>,
    /// The rows of the limits asked (for `RateLimit` headers).
    pub limits: Vec<LimitRow>,
}
