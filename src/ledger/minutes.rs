//! What features used, minute by minute.

use std::ops::Range;

use crate::domain::hold::Amounts;
use crate::domain::ids::Label;

/// What one feature's calls of a minute came to, by the minute of their admission
/// or refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MinuteRow {
    /// Minutes since 1970.
    pub minute: i64,
    /// `None`: calls that named none.
    pub feature: Option<Label>,
    pub amounts: Amounts,
    pub refusals: u64,
}

#[derive(Debug, Clone)]
pub struct MinutesQuery {
    pub minutes: Range<i64>,
    /// Rows after this minute and feature (empty: none).
    pub after: Option<(i64, String)>,
    pub limit: u32,
}
