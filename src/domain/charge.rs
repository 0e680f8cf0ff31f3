//! What one check asks of which cell: the form in which plans reach an engine.
//!
//! A charge carries every figure that the decision needs, so an engine knows
//! no plans, no calendars and no bodies.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::grant::Grant;
use super::hold::Opening;
use super::plan::{Enforce, Meter, Scope};
use super::quantity::MAX_AMOUNT;
use super::time::Millis;

/// The short number a tenant has in this installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TenantRef(pub u32);

/// Names an account: limits of one owner, decided under one lock.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountKey {
    pub tenant: TenantRef,
    pub scope: Scope,
    /// User, org or pool id; empty for the tenant's own account.
    pub owner: Arc<str>,
}

impl AccountKey {
    /// Whether one sheet alone says what the account's limits are.
    pub fn is_ones_own(&self) -> bool {
        matches!(self.scope, Scope::User | Scope::Pool)
    }
}

/// Names a cell within an account: a hash of everything that makes two limits
/// the same limit (name, kind, meter, period, scope, filter).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CellId(pub u64);

/// One limit's demand on one cell.
#[derive(Debug, Clone)]
pub struct Charge {
    /// Index into the operation's accounts.
    pub account: u8,
    pub cell: CellId,
    pub meter: MeterCode,
    pub figures: Figures,
    pub demand: Demand,
    pub enforce: Enforce,
    /// Whether the call matches the limit. One that does not is carried all
    /// the same where its figures must reach the cell.
    pub asked: bool,
    /// The rules that held before `figures` did, since the cell may last have
    /// run; `None` for nearly all.
    pub earlier: Option<Earlier>,
    /// What was ever granted on a window, as long as a window that it may have
    /// to pay for is not over and done with; `None` for nearly all.
    pub grants: Option<Arc<[Grant]>>,
    /// Figures of a bucket that are known to come, ascending: waits are told by
    /// them. `None` for nearly all.
    pub to_come: Option<Arc<[FigureStep]>>,
    /// Whether the figures stay in the cell. In an account that several sheets
    /// share, only an admitted check may leave its own behind.
    pub switches: bool,
    /// Stock that must be left behind (a bulk call in a shared pool).
    pub keep: u64,
}

/// Figures that a bucket or a window ran with for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FigureStep {
    /// A bucket's capacity, a window's limit.
    pub most: u64,
    /// A bucket's tokens per minute; nothing to a window.
    pub refill: u64,
    pub since: Millis,
}

/// A rule of borders that ended: the windows around its last instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanStep {
    /// When another rule took its place. A window of the old rule that runs
    /// then still ends as it began.
    pub at: Millis,
    /// The old rule, with the borders around `at`.
    pub span: Span,
}

/// The rules of a limit that held for a user before those of now.
#[derive(Debug, Clone)]
pub struct Earlier {
    /// Ascending.
    pub steps: Arc<[FigureStep]>,
    /// From when the user has been under these steps.
    pub from: Millis,
    /// Ascending; of calendar windows whose zone or anchor changed. The cell
    /// tells which of them it has seen: those change nothing.
    pub spans: Box<[SpanStep]>,
}

impl Charge {
    /// The changes of the figures of a bucket or window after `at`, in order,
    /// the present ones last. Empty for other charges.
    pub fn steps_after(&self, at: Millis) -> SmallVec<[FigureStep; 2]> {
        let (most, refill, since) = match self.figures {
            Figures::Bucket { capacity, refill, since } => (capacity, refill, since),
            Figures::Window { limit, since, .. } => (limit, 0, since),
            Figures::Slots { .. } | Figures::Rolling { .. } | Figures::Kept => return SmallVec::new(),
        };
        let mut steps: SmallVec<[FigureStep; 2]> = SmallVec::new();
        steps.push(FigureStep { most, refill, since });
        // Back in time. No version held longer than until the next one came,
        // also where a test clock was set back behind the first versions.
        let mut until = since;
        if let Some(earlier) = &self.earlier {
            for step in earlier.steps.iter().rev() {
                until = step.since.max(earlier.from).min(until);
                steps.push(FigureStep { since: until, ..*step });
                // This one held at `at`; those before it did so earlier.
                if until <= at {
                    break;
                }
            }
        }
        steps.reverse();
        steps
    }

    /// The limit of a window as it was at `at`, without grants; `None` when it
    /// was no limit then.
    pub fn limit_at(&self, at: Millis) -> Option<u64> {
        let steps = self.steps_after(at);
        steps.iter().rev().find(|step| step.since <= at).map(|step| step.most)
    }

    /// The rules of a window's borders up to `now`, in order, each with the
    /// instant to which it holds.
    pub fn spans_until(&self, now: Millis) -> impl Iterator<Item = (Millis, Span)> + '_ {
        let spans = self.earlier.as_ref().map_or(&[][..], |earlier| &earlier.spans);
        let past = spans.iter().take_while(move |step| step.at <= now).map(|step| (step.at, step.span));
        let present = self.figures.span().map(|span| (now, span));
        // A charge that is no window has no borders, whatever it was before.
        present.is_some().then_some(past).into_iter().flatten().chain(present)
    }

    pub fn grants(&self) -> &[Grant] {
        self.grants.as_deref().unwrap_or_default()
    }

    /// Whether the account is the caller's own side (not the shared pool).
    pub fn account_is_callers(&self, scopes: &[Scope]) -> bool {
        scopes[usize::from(self.account)] != Scope::Pool
    }
}

impl Figures {
    /// How the window begins and ends, if it is one.
    pub fn span(&self) -> Option<Span> {
        match self {
            Self::Window { span, .. } => Some(*span),
            _ => None,
        }
    }

    /// The most the limit itself can ever give at once; grants come on top.
    pub fn ceiling(&self) -> u64 {
        match self {
            Self::Bucket { capacity, .. } => *capacity,
            Self::Window { limit, .. } | Self::Slots { limit } | Self::Rolling { limit, .. } => *limit,
            Self::Kept => u64::MAX,
        }
    }

    /// Milliseconds that the limit needs to let `amount` through, once it is
    /// used up.
    pub fn time_for(&self, amount: u64) -> u64 {
        let (time, gives) = match self {
            Self::Bucket { refill, .. } => (60_000, *refill),
            Self::Rolling { limit, window_ms } => (window_ms.unsigned_abs(), *limit),
            Self::Window { .. } | Self::Slots { .. } | Self::Kept => return 0,
        };
        amount.saturating_mul(time).div_ceil(gives.max(1))
    }
}

/// A meter as a number, so that receipts stay small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeterCode(pub u8);

impl MeterCode {
    pub const REQUESTS: Self = Self(0);
    pub const INPUT: Self = Self(1);
    pub const OUTPUT: Self = Self(2);
    pub const TOTAL: Self = Self(3);
    pub const CREDITS: Self = Self(4);
    pub const SLOTS: Self = Self(5);
    /// Input where it counts when a call starts, as vendors do: taken at once,
    /// held by nobody.
    pub const INPUT_AT_START: Self = Self(255);
    const CUSTOM: u8 = 6;

    /// The n-th custom meter of the hold's `amounts`.
    pub fn custom(index: usize) -> Self {
        Self(Self::CUSTOM + index as u8)
    }

    pub fn custom_index(self) -> Option<usize> {
        let index = self.0.checked_sub(Self::CUSTOM).filter(|_| self != Self::INPUT_AT_START);
        index.map(usize::from)
    }

    /// The code of a built-in meter; `None` for a custom one.
    pub fn built_in(meter: &Meter) -> Option<Self> {
        match meter {
            Meter::Requests => Some(Self::REQUESTS),
            Meter::InputTokens => Some(Self::INPUT),
            Meter::OutputTokens => Some(Self::OUTPUT),
            Meter::TotalTokens => Some(Self::TOTAL),
            Meter::Credits => Some(Self::CREDITS),
            Meter::Custom(_) => None,
        }
    }

    /// Whether a check holds this meter's amount until the settle. Requests
    /// and custom amounts are used up at once.
    pub fn is_held(self) -> bool {
        matches!(self, Self::INPUT | Self::OUTPUT | Self::TOTAL | Self::CREDITS)
    }
}

/// The figures of a limit at the moment of the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figures {
    /// Tokens and tokens per minute, in force since `since`.
    Bucket {
        capacity: u64,
        refill: u64,
        since: Millis,
    },
    /// `limit` without grants, in force since `since`.
    Window {
        limit: u64,
        since: Millis,
        span: Span,
    },
    Slots {
        limit: u64,
    },
    /// `limit` in any span of `window_ms`, which has the guard in it.
    Rolling {
        limit: u64,
        window_ms: i64,
    },
    /// The limit is gone from the plan: its cell goes on as it was.
    Kept,
}

/// How a window begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    /// Borders around now by the calendar rule in force. A running window that
    /// was opened under another rule ends as stored; the next one then ends at
    /// the first border at least `min_len` ms after it began.
    Calendar {
        start: Millis,
        end: Millis,
        next_end: Millis,
        min_len: i64,
    },
    /// Windows of `len` ms that tile from the first take.
    Tiles {
        len: i64,
    },
    /// A window of `len` ms that opens at a take when none is open.
    Session {
        len: i64,
    },
    Lifetime,
}

impl Span {
    /// How a window of this span begins, if a take opens it.
    pub fn opening(self) -> Option<Opening> {
        match self {
            Self::Tiles { len } => Some(Opening::Tiles { len }),
            Self::Session { len } => Some(Opening::Session { len }),
            Self::Calendar { .. } | Self::Lifetime => None,
        }
    }
}

impl From<Opening> for Span {
    fn from(opening: Opening) -> Self {
        match opening {
            Opening::Tiles { len } => Self::Tiles { len },
            Opening::Session { len } => Self::Session { len },
        }
    }
}

/// An amount as a function of the output tokens granted:
/// `ceil((fixed + per_output x output) / unit)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    pub fixed: u128,
    pub per_output: u64,
    pub unit: u64,
}

impl Demand {
    pub const NONE: Self = Self::fixed(0);

    pub const fn fixed(amount: u64) -> Self {
        Self { fixed: amount as u128, per_output: 0, unit: 1 }
    }

    /// Saturates just above any limit.
    pub fn amount(&self, output: u64) -> u64 {
        let sum = self.fixed + u128::from(self.per_output) * u128::from(output);
        sum.div_ceil(u128::from(self.unit)).min(u128::from(MAX_AMOUNT) + 1) as u64
    }

    /// The largest output whose amount is at most `available`; `None` when
    /// not even no output fits.
    pub fn largest_output(&self, available: u64) -> Option<u64> {
        let room = u128::from(available) * u128::from(self.unit);
        let room = room.checked_sub(self.fixed)?;
        match self.per_output {
            0 => Some(u64::MAX),
            slope => Some(u64::try_from(room / u128::from(slope)).unwrap_or(u64::MAX)),
        }
    }
}
