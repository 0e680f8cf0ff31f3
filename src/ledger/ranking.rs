//! Who used most: totals of users, orgs, features, models or plans over some days.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::LedgerError;
use crate::domain::hold::Amounts;
use crate::domain::time::Millis;

/// Rows of one part of a ranking that is kept.
pub const PART_ROWS: usize = 500;

/// Whose use is added up. On record by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Group {
    User = 0,
    Org = 1,
    Feature = 2,
    Model = 3,
    Plan = 4,
}

/// What one of a group used on a local day.
#[derive(Debug, Clone, PartialEq)]
pub struct UsageRow {
    pub day: i32,
    /// `None`: what had no org, feature or model.
    pub name: Option<String>,
    pub amounts: Amounts,
}

/// What the rows are ordered by, the most first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Figure {
    Requests,
    InputTokens,
    OutputTokens,
    TotalTokens,
    Credits,
    Refusals,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankingQuery {
    /// Days since 1970-01-01 in the tenant's zone.
    pub days: Range<i32>,
    pub group: Group,
    pub by: Figure,
}

/// Sums of one row or of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sums {
    pub requests: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub total_tokens: u64,
    pub credits: u64,
    pub refusals: u64,
}

/// What one user, org, feature, model or plan used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranked {
    /// `None`: what had no org, feature or model; of users, refusals that were not
    /// counted one by one.
    pub name: Option<String>,
    /// The present plan of a user or an org on record.
    pub plan: Option<String>,
    pub sums: Sums,
}

/// Rows in their order: the figure, descending, then the name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranking {
    pub rows: Vec<Ranked>,
    /// Of all rows, also of those that were not asked for.
    pub total: Sums,
    /// How many rows there are.
    pub count: u64,
}

/// A part of a ranking that was kept, so that its pages stay what they are
/// whatever is used meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptPart {
    pub made_at: Millis,
    pub query: RankingQuery,
    /// At most [`PART_ROWS`] rows; total and count are of the whole.
    pub ranking: Ranking,
}

const FORMAT: u8 = 1;

impl Sums {
    pub fn of(&self, figure: Figure) -> u64 {
        match figure {
            Figure::Requests => self.requests,
            Figure::InputTokens => self.input_tokens,
            Figure::OutputTokens => self.output_tokens,
            Figure::TotalTokens => self.total_tokens,
            Figure::Credits => self.credits,
            Figure::Refusals => self.refusals,
        }
    }

    pub fn amounts(&self) -> Amounts {
        let Self { requests, input_tokens, output_tokens, total_tokens, credits, refusals: _ } = *self;
        Amounts { requests, input_tokens, output_tokens, total_tokens, credits }
    }
}

impl KeptPart {
    pub(super) fn encode(&self) -> Result<Vec<u8>, LedgerError> {
        postcard::to_extend(self, vec![FORMAT])
            .map_err(|error| LedgerError::Corrupt(format!("a ranking cannot be packed: {error}")))
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, LedgerError> {
        let unreadable = || LedgerError::Corrupt("a ranking".into());
        match bytes.split_first() {
            Some((&FORMAT, fields)) => postcard::from_bytes(fields).map_err(|_| unreadable()),
            _ => Err(unreadable()),
        }
    }
}
