//! How the users of a plan stand to its limits.

use std::ops::Range;

use crate::domain::ids::Name;

/// What the users of a plan are counted by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Used {
    /// What each used in these local days.
    Days(Range<i32>),
    /// What each used in this month (since 1970).
    Month(i32),
    /// The most that each used in one of these five minutes.
    Peaks(Range<i64>),
}

/// How much the users of a plan used, of one meter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpreadQuery {
    /// The present plan.
    pub plan: Name,
    pub used: Used,
    pub by: super::Figure,
}

/// Refusals of a plan's present users, by code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanRefusals {
    /// `None`: of any limit of theirs.
    pub code: Option<String>,
    pub refusals: u64,
    pub users: u64,
    /// Of these, on how many days at least: the users of the query's `days_min`.
    pub blocked: u64,
}
