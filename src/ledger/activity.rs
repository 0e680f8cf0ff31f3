//! What users used of late, five minutes by five minutes.

use std::ops::Range;

use crate::domain::charge::TenantRef;
use crate::domain::ids::UserId;

/// Slots for which it stays: eight days.
pub const SLOTS_KEPT: i64 = 8 * 288;
pub const SLOT_MS: i64 = 300_000;

/// What a user's calls of one slot have come to since the last time it was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedSlot {
    pub tenant: TenantRef,
    pub user: UserId,
    /// Of the admission; slots since 1970.
    pub slot: i64,
    /// Requests, input, output, total tokens, credits; signed, for corrections.
    pub figures: [i64; 5],
}

/// Who used how much in some slots, and in those before.
#[derive(Debug, Clone)]
pub struct MoversQuery {
    pub slots: Range<i64>,
    /// The first of those before.
    pub since: i64,
    /// The least total tokens.
    pub least: u64,
    /// Users that are looked at: those with the most.
    pub users: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mover {
    pub user: String,
    /// The present one, if they are on record.
    pub plan: Option<String>,
    pub requests: u64,
    pub total_tokens: u64,
    /// Total tokens before, and in how many slots.
    pub before: u64,
    pub before_slots: u64,
}
