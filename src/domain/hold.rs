//! A hold: what a check reserved, from which cells, and how it ended.

use serde::{Deserialize, Serialize};

use super::charge::{CellId, MeterCode, TenantRef};
use super::ids::{HoldId, Label, Name, RequestId, UserId};
use super::plan::PerCall;
use super::quantity::Ppm;
use super::time::Millis;

/// One reservation with everything that is needed to finish it exactly,
/// whatever the plan, the day or the prices are by then.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hold {
    pub id: HoldId,
    pub tenant: TenantRef,
    pub user: UserId,
    pub org: Option<Name>,
    pub pool: Option<Name>,
    pub request: Option<RequestMark>,
    pub plan: Name,
    pub plan_version: u32,
    /// The user was not on record: this step puts them there.
    pub admits_user: bool,
    pub models_version: u32,
    /// Canonical model name (aliases resolved), as asked for.
    pub model: Option<Name>,
    pub feature: Option<Label>,
    /// Of the lane that leaves a share of the pool to others.
    pub bulk: bool,
    pub created_at: Millis,
    pub expires_at: Millis,
    /// The lease last asked for, in seconds.
    pub lease_seconds: u32,
    /// No lease goes beyond this instant.
    pub lives_until: Millis,
    /// Day of admission in the tenant's zone, in days since 1970-01-01.
    pub day: i32,
    pub caps: Caps,
    pub cache_read_weight: Ppm,
    pub granted: Granted,
    pub reserved: Amounts,
    /// Custom meters: what the check took of each.
    pub amounts: Vec<(Label, u64)>,
    pub receipts: Vec<Receipt>,
    /// Output tokens reported while running; never goes down.
    pub progress: u64,
    /// Ids of the extends so far, so that none is taken twice; bounded.
    pub extends: Vec<RequestMark>,
    pub stage: Stage,
}

/// A caller's id for a logical call, with a digest of what it asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestMark {
    pub id: RequestId,
    pub fingerprint: [u8; 16],
}

/// Caps of the admission; an extend is judged by them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caps {
    pub per_call: PerCall,
    pub max_tokens_per_call: u64,
}

/// What the caller may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    pub input_tokens: u64,
    pub max_output_tokens: u64,
    /// Nothing is left of a window after this call.
    #[serde(rename = "final")]
    pub is_final: bool,
}

/// Amounts by built-in meter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amounts {
    pub requests: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub total_tokens: u64,
    pub credits: u64,
}

/// Which cell gave how much: the amount goes back there and nowhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The scope of the account; its owner is the hold's user, org or pool.
    pub scope: super::plan::Scope,
    pub cell: CellId,
    pub meter: MeterCode,
    pub reserved: u64,
    /// The window of admission, `[start, end)`; `None` for buckets, slots and
    /// windows that had not begun.
    pub window: Option<(Millis, Millis)>,
    /// How a window that had not begun would begin.
    pub opens: Option<Opening>,
}

/// A window that begins with its first take, and its length in ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Opening {
    Tiles { len: i64 },
    Session { len: i64 },
}

/// Where a hold stands in its one-way life.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Stage {
    /// Open; in doubt from `expires_at` on (read off the clock).
    Held,
    /// Told to be in doubt (`usage: unknown`) before the lease ended.
    InDoubt {
        since: Millis,
    },
    Settled(Box<Settlement>),
    Released {
        at: Millis,
        late: bool,
        reason: ReleaseReason,
        by: FinishedBy,
    },
}

/// How the usage of a settled hold was told and counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settlement {
    pub at: Millis,
    pub late: bool,
    pub by: FinishedBy,
    pub reported: Reported,
    /// What the limits took (cache weight applied, priced).
    pub counted: Amounts,
    pub amounts: Vec<(Label, u64)>,
}

/// Usage as the caller reported it, in tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reported {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cache_read_tokens: u64,
    pub cache_write_tokens: u64,
    /// The model that really served, canonical.
    pub model: Option<Name>,
    pub outcome: Option<String>,
    pub upstream: Option<Upstream>,
}

/// The vendor's side of a call, kept for support and billing disputes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upstream {
    pub request_id: Option<String>,
    pub status: Option<u16>,
    pub latency_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReleaseReason {
    NotSent,
    UpstreamRefused,
}

/// Who ended a hold. What a rule ended may be corrected once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FinishedBy {
    Caller,
    Rule,
    Admin,
}

/// The state a caller sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldState {
    Held,
    InDoubt,
    Settled,
    Released,
}

impl HoldState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::InDoubt => "in_doubt",
            Self::Settled => "settled",
            Self::Released => "released",
        }
    }
}

impl Hold {
    /// The state at `now`: a lease covers `[created_at, expires_at)`.
    pub fn state(&self, now: Millis) -> HoldState {
        match &self.stage {
            Stage::Held if now < self.expires_at => HoldState::Held,
            Stage::Held | Stage::InDoubt { .. } => HoldState::InDoubt,
            Stage::Settled(_) => HoldState::Settled,
            Stage::Released { .. } => HoldState::Released,
        }
    }

    /// Settled or released.
    pub fn is_finished(&self) -> bool {
        matches!(self.stage, Stage::Settled(_) | Stage::Released { .. })
    }

    /// When the hold finished; `None` while held or in doubt.
    pub fn finished_at(&self) -> Option<Millis> {
        match &self.stage {
            Stage::Settled(settlement) => Some(settlement.at),
            Stage::Released { at, .. } => Some(*at),
            _ => None,
        }
    }

    /// When the hold came, or comes, into doubt; `None` once finished.
    pub fn doubtful_from(&self) -> Option<Millis> {
        match &self.stage {
            Stage::Held => Some(self.expires_at),
            Stage::InDoubt { since } => Some((*since).min(self.expires_at)),
            _ => None,
        }
    }
}
