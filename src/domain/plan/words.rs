//! The words that documents and replies use for meters, scopes and kinds.

use std::fmt;

use super::{Enforce, Meter, PoolCounts, Rule, Scope, Visibility};
use crate::domain::ids::{InvalidId, Label};
use crate::domain::quantity::MAX_AMOUNT;

impl Meter {
    /// A built-in meter, or a custom one of that name.
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        Ok(match text {
            "requests" => Self::Requests,
            "input_tokens" => Self::InputTokens,
            "output_tokens" => Self::OutputTokens,
            "total_tokens" => Self::TotalTokens,
            "credits" => Self::Credits,
            _ => Self::Custom(Label::parse(text)?),
        })
    }

    pub fn as_str(&self) -> &str {
        match self {
            Self::Requests => "requests",
            Self::InputTokens => "input_tokens",
            Self::OutputTokens => "output_tokens",
            Self::TotalTokens => "total_tokens",
            Self::Credits => "credits",
            Self::Custom(name) => name.as_str(),
        }
    }
}

impl fmt::Display for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Scope {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Org => "org",
            Self::Tenant => "tenant",
            Self::Pool => "pool",
        }
    }
}

impl Enforce {
    pub(super) const WORDS: [(&'static str, Self); 3] =
        [("hard", Self::Hard), ("soft", Self::Soft), ("shadow", Self::Shadow)];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hard => "hard",
            Self::Soft => "soft",
            Self::Shadow => "shadow",
        }
    }
}

impl Visibility {
    pub(super) const WORDS: [(&'static str, Self); 3] =
        [("exact", Self::Exact), ("percent", Self::Percent), ("hidden", Self::Hidden)];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Percent => "percent",
            Self::Hidden => "hidden",
        }
    }
}

impl PoolCounts {
    pub(super) const WORDS: [(&'static str, Self); 2] =
        [("reserved", Self::Reserved), ("actual", Self::Actual)];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Actual => "actual",
        }
    }
}

impl Rule {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Bucket { .. } => "bucket",
            Self::Window { .. } => "window",
            Self::Slots { .. } => "slots",
            Self::Rolling { .. } => "rolling",
        }
    }

    /// `None` for slots, which count calls in flight.
    pub fn meter(&self) -> Option<&Meter> {
        match self {
            Self::Bucket { meter, .. } | Self::Window { meter, .. } | Self::Rolling { meter, .. } => {
                Some(meter)
            }
            Self::Slots { .. } => None,
        }
    }

    /// How long a rolling limit counts what was taken, its guard included.
    pub fn rolling_ms(&self) -> Option<i64> {
        match self {
            Self::Rolling { window_seconds, guard_ms, .. } => {
                Some(i64::from(*window_seconds) * 1000 + i64::from(*guard_ms))
            }
            _ => None,
        }
    }

    /// The most that one call can ever be given: a bucket's capacity, the
    /// limit of the other kinds.
    pub fn most_at_once(&self) -> u64 {
        match self {
            Self::Bucket { capacity, .. } => *capacity,
            Self::Window { limit, .. } | Self::Slots { limit } | Self::Rolling { limit, .. } => *limit,
        }
    }
}

impl super::PerCall {
    /// What the largest call within these caps takes of `meter` (`None`: a
    /// slot). Without a cap a call is taken to have no tokens; credits depend
    /// on the model and count as none here.
    pub(super) fn largest(&self, meter: Option<&Meter>) -> u64 {
        let input = self.max_input_tokens.unwrap_or(0);
        let output = self.max_output_tokens.unwrap_or(0);
        match meter {
            None | Some(Meter::Requests) => 1,
            Some(Meter::InputTokens) => input,
            Some(Meter::OutputTokens) => output,
            Some(Meter::TotalTokens) => input.saturating_add(output).min(MAX_AMOUNT),
            Some(Meter::Credits | Meter::Custom(_)) => 0,
        }
    }
}
