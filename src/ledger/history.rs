//! What is on record about a user, and about what was changed.

use super::Written;
use super::tallies::RefusedCall;
use crate::domain::hold::Hold;
use crate::domain::ids::UserId;
use crate::domain::time::Millis;

/// Where a list that runs backwards goes on: before this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edge {
    pub at: Millis,
    /// Of what happened at that instant, what has a lower id: 0 is nothing,
    /// the largest number everything.
    pub id: u128,
}

/// What a page of a user's history reads: of each source at most `limit`,
/// newest first, not before `from`.
#[derive(Debug, Clone)]
pub struct HistoryQuery {
    pub user: UserId,
    pub from: Millis,
    /// A hold is in doubt from its lease's end on.
    pub now: Millis,
    pub made: Edge,
    pub ended: Edge,
    pub doubtful: Edge,
    pub changed: Edge,
    pub limit: u32,
}

/// Parts of a user's history at one moment, each newest first.
#[derive(Debug, Default)]
pub struct History {
    /// By id, which begins with the instant of a hold's making. (The ids of
    /// booked usage are not made of time: they may turn up anywhere in here.)
    pub made: Vec<Hold>,
    /// Settled or released, by when.
    pub ended: Vec<Hold>,
    /// Neither, and in doubt, by since when.
    pub doubtful: Vec<Hold>,
    /// Audit rows of the user, by time and number.
    pub changed: Vec<AuditEntry>,
    /// All that are kept, oldest first, with their numbers.
    pub refused: Vec<(u64, RefusedCall)>,
}

/// What a page of the audit reads.
#[derive(Debug, Clone, Default)]
pub struct AuditQuery {
    pub from: Option<Millis>,
    /// Exclusive.
    pub to: Option<Millis>,
    pub by: Option<String>,
    pub target: Option<String>,
    /// Rows of a lower number; `None`: from the newest on.
    pub before: Option<u64>,
    pub limit: u32,
}

/// A row of the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Grows from row to row.
    pub number: u64,
    pub action: String,
    /// The id of what was changed.
    pub target: String,
    /// JSON; `None` where there was or is nothing, or nothing to be shown.
    pub old: Option<String>,
    pub new: Option<String>,
    pub written: Written,
}
