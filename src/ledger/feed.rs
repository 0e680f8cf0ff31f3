//! The feed: what finished, in the order in which it came on record.

use serde::{Deserialize, Serialize};

use crate::domain::hold::Hold;
use crate::domain::ids::{Label, Name};

/// That a step of a hold is an event of the feed. Its figures are those that the step
/// adds to the day's totals; without any it counts nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedMark {
    /// 1 is the end of a hold; what corrects it follows.
    pub part: u8,
    /// What the step adds to the tenant's own meters.
    pub amounts: Vec<(Label, i64)>,
}

/// An event as it stands on record: all that the hold cannot tell any more once it is
/// corrected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FeedEntry {
    pub hold: [u8; 16],
    pub part: u8,
    /// Requests, input, output, total tokens, credits.
    pub figures: [i64; 5],
    pub model: Served,
    pub amounts: Vec<(Label, i64)>,
}

/// Which model an event counts for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Served {
    /// That of the check, or none if it named none.
    AsAsked,
    Other(Option<Name>),
}

/// An event with the hold that it is about, as that stands now.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedEvent {
    pub number: u64,
    pub part: u8,
    pub hold: Hold,
    pub model: Option<Name>,
    pub requests: i64,
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub total_tokens: i64,
    pub credits: i64,
    /// The tenant's own meters.
    pub amounts: Vec<(Label, i64)>,
}

#[derive(Debug, Clone, Copy)]
pub struct FeedQuery {
    /// The number of the last event that is known; `None`: from the oldest that is kept.
    pub after: Option<u64>,
    /// The seal that came with it: whether the event of that number still is the one
    /// that was shown. 0: none is known.
    pub seal: u64,
    pub limit: u32,
}

/// A part of the feed.
#[derive(Debug, Clone, PartialEq)]
pub enum FeedPage {
    Events {
        /// Without a gap, from behind what was asked for.
        events: Vec<FeedEvent>,
        /// Where to go on.
        last: u64,
        /// Of the last event: numbers are given again after a backup was restored, or to
        /// a tenant who is made anew, and another event then has another seal.
        seal: u64,
        /// Whether there is more already.
        more: bool,
    },
    /// What comes next is not kept any more, or the number was never given.
    Gone,
}
