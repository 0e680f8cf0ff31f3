//! What is counted beside the decisions: refusals, how another limiter would
//! have decided, and how long answers were.

use std::borrow::Cow;
use std::sync::Arc;

use super::{Group, UsedSlot};
use crate::domain::charge::TenantRef;
use crate::domain::ids::{Label, Name, UserId};
use crate::domain::plan::{Meter, Scope};
use crate::domain::spread::Spread;
use crate::domain::step::Remedy;
use crate::domain::time::Millis;

/// Refusals of a user that are kept one by one.
pub const RECENT_MAX: usize = 100;
/// Failing limits of a refusal that are kept.
pub const FAILED_MAX: usize = 4;
/// Different words of another limiter that are counted, by tenant and day.
pub const THEIRS_MAX: usize = 64;
/// Slots for which active users stay counted: eight days of five minutes.
pub const ACTIVE_KEPT: i64 = 8 * 288;
/// The word under which all others are counted.
pub const OTHER: &str = "other";

/// A word of ours while it is counted, a text once it was read back.
pub type Word = Cow<'static, str>;

/// What was counted since the last time. On record wholly or not at all.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tally {
    pub refused: Vec<RefusedUser>,
    pub compared: Vec<(TenantRef, Comparison)>,
    /// By local day.
    pub outputs: Vec<(TenantRef, i32, Output)>,
    pub minutes: Vec<RefusedMinute>,
    pub groups: Vec<RefusedGroup>,
    pub active: Vec<ActiveUsers>,
    pub used: Vec<UsedSlot>,
}

/// Users of a plan with a call in one slot of time, by digests that lie anywhere
/// with equal likelihood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveUsers {
    pub tenant: TenantRef,
    pub slot: i64,
    pub plan: Name,
    pub digests: Vec<u64>,
}

/// How long the answers of one feature by one model were.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Empty: the calls named none. [`OTHERS`]: of several that are not counted
    /// one by one.
    pub feature: Arc<str>,
    /// The same.
    pub model: Arc<str>,
    pub spread: Spread,
}

/// The feature and the model of those that are not counted one by one; no name
/// can be this.
pub const OTHERS: &str = "*";

/// Both parts of a sum are within 2^53, so that it does not overflow before it
/// is cut.
pub(super) fn stored(count: u64) -> i64 {
    count.min(1 << 53).cast_signed()
}

/// The refusals of one user.
#[derive(Debug, Clone, PartialEq)]
pub struct RefusedUser {
    pub tenant: TenantRef,
    /// `None`: of users who were not counted one by one.
    pub user: Option<UserId>,
    pub counts: Vec<RefusalCount>,
    /// The newest ones, oldest first.
    pub recent: Vec<RefusedCall>,
}

/// Refusals of calls of one feature in a minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedMinute {
    pub tenant: TenantRef,
    /// Minutes since 1970.
    pub minute: i64,
    pub feature: Option<Label>,
    pub count: u64,
}

/// Refusals of a local day in an org, of a feature or model, or under a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedGroup {
    pub tenant: TenantRef,
    pub day: i32,
    pub group: Group,
    /// `None`: there was none, or they were not counted one by one.
    pub name: Option<Arc<str>>,
    pub count: u64,
}

/// How many refusals of one code a local day has seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusalCount {
    /// Days since 1970-01-01 in the tenant's zone.
    pub day: i32,
    pub code: Word,
    pub count: u64,
}

/// One refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedCall {
    pub at: Millis,
    pub code: Word,
    /// The limit that decided, if one did.
    pub limit: Option<Arc<str>>,
    /// `None`: not kept, as of refusals counted by programs of before.
    pub grounds: Option<Box<Grounds>>,
}

/// What a refused call asked, and the figures that it was refused by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grounds {
    /// The plan's version that held; `None`: there was no plan.
    pub plan: Option<(Name, u32)>,
    pub model: Option<Name>,
    pub feature: Option<Label>,
    pub bulk: bool,
    pub input_tokens: u64,
    /// `None`: as much as was allowed.
    pub max_output_tokens: Option<u64>,
    pub min_output_tokens: Option<u64>,
    /// At most [`FAILED_MAX`] limits that did not let it pass.
    pub failed: Vec<Failed>,
}

/// A limit that did not let a call pass, as it stood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    pub name: Label,
    pub scope: Scope,
    /// `bucket`, `window`, `slots`, `rolling`, or what held a pool back.
    pub kind: Word,
    /// `None` for slots.
    pub meter: Option<Meter>,
    pub limit: u64,
    pub remaining: u64,
    pub requested: u64,
    pub remedy: Remedy,
    pub would_fit: u64,
}

/// Checks of a local day that we decided one way and another limiter one way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    pub day: i32,
    /// `allow` or our code.
    pub ours: Word,
    /// `allow`, or the cause that the other one gave.
    pub theirs: Arc<str>,
    pub checks: u64,
}
