//! What callers ask of holds and what they are told, in the domain's words.

use std::sync::Arc;

use crate::domain::decision::{LimitRow, Refusal, Warning};
use crate::domain::document::Fault;
use crate::domain::hold::{Granted, Hold, ReleaseReason, Reported};
use crate::domain::ids::{HoldId, Label, Name, RequestId, UserId};
use crate::domain::plan::PerCall;
use crate::domain::quantity::Ppm;
use crate::domain::time::Millis;

/// May this user make this call now?
#[derive(Debug, Clone)]
pub struct CheckCommand {
    pub user: UserId,
    pub request_id: Option<RequestId>,
    pub model: Option<Name>,
    pub feature: Option<Label>,
    pub bulk: bool,
    pub input_tokens: u64,
    pub max_output_tokens: Option<u64>,
    pub min_output_tokens: Option<u64>,
    pub lease_seconds: Option<u32>,
    pub dry_run: bool,
    pub amounts: Vec<(Label, u64)>,
}

#[derive(Debug)]
pub enum CheckReply {
    Allowed(Allowed),
    Refused(Refusal),
}

#[derive(Debug)]
pub struct Allowed {
    /// `None` on a dry run.
    pub hold: Option<Arc<Hold>>,
    pub now: Millis,
    /// The request id stood for this hold already.
    pub replayed: bool,
    pub granted: Granted,
    /// Id and version.
    pub plan: (Name, u32),
    pub limits: Vec<LimitRow>,
    pub warnings: Vec<Warning>,
}

#[derive(Debug, Clone)]
pub struct SettleCommand {
    pub id: HoldId,
    pub usage: SettleUsage,
}

#[derive(Debug, Clone)]
pub enum SettleUsage {
    Unknown,
    Reported {
        reported: Reported,
        /// Corrections of custom meters.
        amounts: Vec<(Label, u64)>,
    },
}

#[derive(Debug, Clone)]
pub struct ReleaseCommand {
    pub id: HoldId,
    pub reason: ReleaseReason,
}

#[derive(Debug, Clone)]
pub struct ExtendCommand {
    pub id: HoldId,
    pub lease_seconds: Option<u32>,
    pub add_output_tokens: u64,
    pub output_tokens_so_far: Option<u64>,
    pub key: Option<RequestId>,
}

#[derive(Debug)]
pub enum FinishReply {
    Done(Finished),
    /// No hold of this tenant has that id.
    NotFound,
    AlreadyFinished(Arc<Hold>, Millis),
    HasProgress(Arc<Hold>, Millis),
    LeaseEnded(Arc<Hold>, Millis),
    /// A figure beyond the tenant's `max_tokens_per_call`.
    UsageImplausible {
        field: &'static str,
        max: u64,
    },
    /// An extend that the limits do not allow.
    Refused(Refusal),
    /// The extend's key was used with another body.
    RequestIdReused,
}

#[derive(Debug)]
pub struct Finished {
    pub hold: Arc<Hold>,
    pub now: Millis,
    pub limits: Vec<LimitRow>,
    /// Told again: the step was taken before.
    pub replayed: bool,
}

/// Use that had no hold.
#[derive(Debug, Clone)]
pub struct UsageCommand {
    pub id: RequestId,
    pub user: UserId,
    pub model: Option<Name>,
    pub feature: Option<Label>,
    pub reported: Reported,
    pub amounts: Vec<(Label, u64)>,
    pub at: Option<Millis>,
}

#[derive(Debug)]
pub struct UsageResult {
    pub id: RequestId,
    pub status: UsageStatus,
}

#[derive(Debug)]
pub enum UsageStatus {
    Recorded,
    /// The first body of an id won before.
    Duplicate,
    Invalid(Vec<Fault>),
    /// A figure beyond the tenant's `max_tokens_per_call`.
    Implausible {
        field: &'static str,
        max: u64,
    },
}

/// What a user has left.
#[derive(Debug)]
pub struct QuotaView {
    pub user: UserId,
    /// Whose limits are among the user's.
    pub org: Option<Name>,
    pub plan: (Name, u32),
    pub per_call: PerCall,
    pub cache_read_weight: Ppm,
    pub limits: Vec<(LimitRow, QuotaState)>,
    pub state: CallState,
    pub next_call_at: Option<Millis>,
    /// When the next lease ends that one of the limits counts.
    pub next_lease_end: Option<Millis>,
    pub now: Millis,
}

/// Whether a call of one request and one token would pass one limit.
#[derive(Debug, Clone, Copy)]
pub struct QuotaState {
    pub state: CallState,
    /// `None` when it passes now, and when nothing says when it will.
    pub next_call_at: Option<Millis>,
    /// At the pace so far; `None` unless within the running window.
    pub forecast_exhausted_at: Option<Millis>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallState {
    Ok,
    Waiting,
    Exhausted,
}

impl CallState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Waiting => "waiting",
            Self::Exhausted => "exhausted",
        }
    }
}
