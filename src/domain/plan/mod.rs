//! Plan sheets: a plan is data, a list of limits.
//!
//! The types are here; reading them from documents, and writing them back, is
//! in one file each: `limit` (what sheets and pools share), `sheet`,
//! `pool`, `models`. `filter` matches names, `identity` says which limits
//! are the same limit, `compare` which of two sheets gives more, `overriding`
//! puts other numbers in a limit, `degrade` advises, `lint` finds what can never
//! bite.

mod compare;
mod degrade;
mod difference;
mod filter;
mod identity;
mod limit;
mod lint;
mod models;
mod overriding;
mod pool;
mod ramp;
mod sheet;
mod shipped;
mod words;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::ids::{Label, Name};
use super::quantity::Ppm;
use super::time::{Anchor, Period, Zone};

pub use degrade::{Advice, Degrade};
pub use difference::Difference;
pub use lint::LintWarning;
pub use models::{Model, Models};
pub use overriding::{Misfit, Override};
pub use ramp::Ramp;
pub use shipped::{Shipped, shipped};

/// Most limits of one sheet or pool.
pub const MAX_LIMITS: usize = 32;

/// A checked plan sheet.
#[derive(Debug, Clone, PartialEq)]
pub struct Sheet {
    pub id: Name,
    pub name: String,
    pub requires_verified: bool,
    /// How much of a cache-read token counts toward input and total.
    pub cache_read_weight: Ppm,
    pub per_call: PerCall,
    /// In the sheet's order, at most 32, names unique.
    pub limits: Vec<Limit>,
}

/// Caps of one call, in tokens; `None` is no cap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerCall {
    pub max_input_tokens: Option<u64>,
    pub max_output_tokens: Option<u64>,
}

/// One named rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    pub name: Label,
    pub scope: Scope,
    pub enforce: Enforce,
    pub filter: Filter,
    pub rule: Rule,
    /// Shares of a window at which a warning is given, ascending.
    pub warn_at: Vec<Ppm>,
    /// What is advised from a share on, ascending.
    pub degrade: Vec<Degrade>,
    pub visibility: Visibility,
}

/// Whose account a limit counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Scope {
    User = 0,
    Org = 1,
    Tenant = 2,
    Pool = 3,
}

/// What a limit does when it does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforce {
    /// Refuses.
    Hard,
    /// Admits and says `over: true`.
    Soft,
    /// Admits and only counts what it would have refused.
    Shadow,
}

/// What users are shown of a limit; backends and admins see all of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Visibility {
    #[default]
    Exact,
    /// Whole percents, and no amounts.
    Percent,
    /// Nothing, but that it refuses.
    Hidden,
}

/// Which checks a limit counts; empty lists match all.
/// Globs (`*`, `?`); model globs are kept in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    pub models: Vec<String>,
    pub features: Vec<String>,
}

/// What is counted. The set is open: a custom meter is fed by `amounts`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Meter {
    Requests,
    InputTokens,
    OutputTokens,
    TotalTokens,
    Credits,
    Custom(Label),
}

/// The kind of a limit with its figures.
#[derive(Debug, Clone, PartialEq)]
pub enum Rule {
    Bucket { meter: Meter, capacity: u64, refill_per_minute: u64 },
    Window { meter: Meter, limit: u64, period: Period, anchor: Anchor, zone: Option<Arc<Zone>> },
    Slots { limit: u64 },
    Rolling { meter: Meter, limit: u64, window_seconds: u32, guard_ms: u32 },
}

/// Shared upstream capacity: a vendor's limit for a model family.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    pub id: Name,
    /// Globs in lower case.
    pub models: Vec<String>,
    pub enforced: bool,
    pub margin: Ppm,
    pub counts: PoolCounts,
    pub interactive_share: Ppm,
    pub max_queue: u64,
    /// How fast its traffic may grow.
    pub ramp: Option<Ramp>,
    pub limits: Vec<PoolLimit>,
}

/// Whether a pool counts output as reserved at the start or as settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolCounts {
    Reserved,
    Actual,
}

/// A pool's limit: `limit.rule` holds the effective figures (margin and burst
/// share applied); the vendor's own figure is kept for capacity checks.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolLimit {
    pub limit: Limit,
    /// The vendor's figure per `window_seconds`, when given.
    pub vendor_limit: Option<u64>,
    pub window_seconds: u32,
    pub guard_ms: u32,
    pub burst_share: Ppm,
}
