//! Users who share a device or an address, as their product tells it.

use std::ops::Range;

/// What users may have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    Device,
    Address,
}

#[derive(Debug, Clone)]
pub struct DuplicatesQuery {
    pub signal: Signal,
    /// Values after this one.
    pub after: Option<String>,
    /// Values.
    pub limit: u32,
    /// Users that are named of each value.
    pub users: u32,
    /// Days of which the use is added up.
    pub days: Range<i32>,
}

/// A value that more than one user has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Duplicate {
    pub value: String,
    /// Who used most comes first.
    pub users: Vec<String>,
    /// How many users there are, named or not.
    pub count: u64,
    /// Of all of them.
    pub total_tokens: u64,
}
