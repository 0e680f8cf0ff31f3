//! What callers ask of holds and what they are told, in the domain's words.

use std::sync::Arc;

use crate::domain::decision::{Code, LimitRow, Refusal, Warning};
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
    /// The model, or the first of `models`.
    pub model: Option<Name>,
    /// Models of which the first that is allowed serves; at least one.
    pub models: Option<Vec<Name>>,
    pub feature: Option<Label>,
    pub bulk: bool,
    pub input_tokens: u64,
    pub max_output: MaxOutput,
    pub min_output_tokens: Option<u64>,
    pub lease_seconds: Option<u32>,
    /// How long it may wait for a pool, or for a slot.
    pub wait_ms: u32,
    pub dry_run: bool,
    pub amounts: Vec<(Label, u64)>,
    /// What another limiter decided: [`THEY_ALLOW`], else why it refused.
    pub their_decision: Option<Label>,
}

/// How much output a check asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxOutput {
    /// As much as the plan allows.
    Cap,
    /// As much as calls like it are likely to take at most.
    Auto,
    Tokens(u64),
}

/// The word for an admitted call, ours and in `their_decision`.
pub const THEY_ALLOW: &str = "allow";

#[derive(Debug)]
pub enum CheckReply {
    Allowed(Allowed),
    Refused(Refusal),
}

impl CheckReply {
    /// What the plans decided, whether it was enforced or not: [`THEY_ALLOW`]
    /// or a refusal's code. `None` where nothing was decided: the request id
    /// was answered before.
    pub fn decided(&self) -> Option<&'static str> {
        match self {
            Self::Allowed(allowed) if allowed.replayed => None,
            Self::Allowed(Allowed { would_refuse: Some(refused), .. }) => Some(refused.code.as_str()),
            Self::Allowed(_) => Some(THEY_ALLOW),
            Self::Refused(refusal) => match refusal.code {
                Code::RequestIdReused | Code::AlreadyFinished => None,
                code => Some(code.as_str()),
            },
        }
    }
}

/// A refusal that was not enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WouldRefuse {
    pub code: Code,
    /// The limit that decides; `None` where none does.
    pub limit: Option<Label>,
}

impl WouldRefuse {
    /// The vendor said to wait.
    pub(super) const PAUSED: Self = Self { code: Code::UpstreamPaused, limit: None };
}

impl From<Refusal> for WouldRefuse {
    fn from(refusal: Refusal) -> Self {
        Self { code: refusal.code, limit: refusal.limit }
    }
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
    /// What enforcement would have refused it for.
    pub would_refuse: Option<WouldRefuse>,
    /// The most output was left to us.
    pub auto_output: bool,
    /// Admitted without the store, which is away.
    pub degraded: bool,
    /// There, if the caller gave a choice of models.
    pub choice: Option<Choice>,
}

/// Which of a caller's models serves.
#[derive(Debug)]
pub struct Choice {
    /// As the caller wrote it.
    pub model: Name,
    /// It is not the first one.
    pub substituted: bool,
    /// Why not those before it; empty when a call is repeated.
    pub because: Vec<(Name, WouldRefuse)>,
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
    /// An admin's resolve of a hold whose lease runs.
    NotInDoubt(Arc<Hold>, Millis),
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
    /// What enforcement would have refused an extend for.
    pub would_refuse: Option<WouldRefuse>,
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
    /// The user or the org.
    pub owner: Arc<str>,
    /// Whose limits are among the user's.
    pub org: Option<Name>,
    /// `None`: an org without a sheet of its own.
    pub plan: Option<(Name, u32)>,
    pub per_call: PerCall,
    pub cache_read_weight: Ppm,
    pub limits: Vec<(LimitRow, QuotaState)>,
    pub state: CallState,
    pub next_call_at: Option<Millis>,
    /// When the next lease ends that one of the limits counts.
    pub next_lease_end: Option<Millis>,
    pub upcoming: Option<Upcoming>,
    /// When another version, an override's end or a grant's end changes what
    /// the limits say.
    pub next_terms: Option<Millis>,
    pub now: Millis,
}

/// A plan, or a version of it, that is to come.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Upcoming {
    pub plan: (Name, u32),
    pub effective_at: Millis,
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
