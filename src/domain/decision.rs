//! Verdicts and which refusal wins when several apply.

use std::cmp::Reverse;
use std::sync::Arc;

use super::cell::Standing;
use super::condition::PauseKind;
use super::ids::Label;
use super::plan::{Advice, Enforce, Limit, Meter, Rule, Scope, Visibility};
use super::quantity::{Ppm, add_saturating};
use super::step::{Shortfall, Shown};
use super::time::{Millis, Period, Zone};

pub use super::step::Remedy;

/// Why a call is refused, in the words callers see. A refusal is a value, not
/// an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    RequestIdReused,
    AlreadyFinished,
    UnknownUser,
    UserSuspended,
    UserUnverified,
    InputTooLarge,
    OutputTooLarge,
    ExceedsCapacity,
    DailyQuotaExhausted,
    WeeklyQuotaExhausted,
    MonthlyQuotaExhausted,
    QuotaExhausted,
    RequestRateExceeded,
    InputRateExceeded,
    OutputRateExceeded,
    TokenRateExceeded,
    CreditRateExceeded,
    ConcurrencyExceeded,
    UpstreamCapacityExceeded,
    /// As many wait for the pool as may.
    QueueFull,
    /// It waited for the pool as long as it said.
    QueueTimeout,
    UpstreamPaused,
}

impl Code {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RequestIdReused => "request_id_reused",
            Self::AlreadyFinished => "already_finished",
            Self::UnknownUser => "unknown_user",
            Self::UserSuspended => "user_suspended",
            Self::UserUnverified => "user_unverified",
            Self::InputTooLarge => "input_too_large",
            Self::OutputTooLarge => "output_too_large",
            Self::ExceedsCapacity => "exceeds_capacity",
            Self::DailyQuotaExhausted => "daily_quota_exhausted",
            Self::WeeklyQuotaExhausted => "weekly_quota_exhausted",
            Self::MonthlyQuotaExhausted => "monthly_quota_exhausted",
            Self::QuotaExhausted => "quota_exhausted",
            Self::RequestRateExceeded => "request_rate_exceeded",
            Self::InputRateExceeded => "input_rate_exceeded",
            Self::OutputRateExceeded => "output_rate_exceeded",
            Self::TokenRateExceeded => "token_rate_exceeded",
            Self::CreditRateExceeded => "credit_rate_exceeded",
            Self::ConcurrencyExceeded => "concurrency_exceeded",
            Self::UpstreamCapacityExceeded => "upstream_capacity_exceeded",
            Self::QueueFull => "queue_full",
            Self::QueueTimeout => "queue_timeout",
            Self::UpstreamPaused => "upstream_paused",
        }
    }
}

/// One limit's row in a reply.
#[derive(Debug, Clone, PartialEq)]
pub struct LimitRow {
    pub name: Label,
    pub scope: Scope,
    /// `None` for slots.
    pub meter: Option<Meter>,
    pub enforce: Enforce,
    pub standing: Standing,
    /// What a shadow limit would have refused so far.
    pub would_refuse: u32,
    /// The zone whose midnights border a calendar window.
    pub zone: Option<Arc<Zone>>,
    /// The length of windows that always last the same.
    pub window_seconds: Option<u32>,
    pub visibility: Visibility,
}

impl LimitRow {
    pub fn new(limit: &Limit, zone: Option<&Arc<Zone>>, shown: Shown) -> Self {
        let window_seconds = match &limit.rule {
            Rule::Window { period, .. } => period.fixed_len_ms().and_then(|ms| u32::try_from(ms / 1000).ok()),
            Rule::Rolling { window_seconds, .. } => Some(*window_seconds),
            Rule::Bucket { .. } | Rule::Slots { .. } => None,
        };
        Self {
            zone: zone.cloned(),
            window_seconds,
            name: limit.name.clone(),
            scope: limit.scope,
            meter: limit.rule.meter().cloned(),
            enforce: limit.enforce,
            visibility: limit.visibility,
            standing: shown.standing,
            would_refuse: shown.would_refuse,
        }
    }
}

/// A threshold that is reached: the highest one of `warn_at`, or of those from
/// which on something is advised.
#[derive(Debug, Clone, PartialEq)]
pub struct Warning {
    pub limit: Label,
    pub ratio: Ppm,
    /// (used + held) / (limit + grants), of what is no window the part that is
    /// gone, in units of 1/100,000, half up.
    pub used_ratio: u64,
    pub advice: Option<Advice>,
}

/// Why one limit does not let the call pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Violation {
    pub name: Label,
    pub scope: Scope,
    pub kind: &'static str,
    pub meter: Option<Meter>,
    pub limit: u64,
    pub remaining: u64,
    pub requested: u64,
    pub remedy: Remedy,
    /// The largest amount that passes now, by this limit alone.
    pub would_fit: u64,
}

/// A refused call, as the caller is told.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    pub code: Code,
    /// The limit that decides.
    pub limit: Option<Label>,
    /// For 413: the largest amount that could pass.
    pub max: Option<u64>,
    /// The deciding remedy.
    pub remedy: Option<Remedy>,
    /// Every failing limit, in the order of the reply's rows.
    pub violations: Vec<Violation>,
    /// For `already_finished`: the hold as it ended.
    pub hold: Option<Arc<super::hold::Hold>>,
    /// The rows of the limits asked (for `RateLimit` headers).
    pub limits: Vec<LimitRow>,
}

impl Refusal {
    /// A refusal that no limit gives.
    pub fn plain(code: Code) -> Self {
        Self { code, limit: None, max: None, remedy: None, violations: vec![], hold: None, limits: vec![] }
    }

    /// No limit stands in the way, and none was asked: for
    /// [`paused`](Self::paused).
    pub fn nothing() -> Self {
        Self::plain(Code::UpstreamPaused)
    }

    /// The refusal of a call whose pool waits for its vendor, where the limits
    /// would have answered `by_limits`: what no wait helps against is told, else
    /// the longest wait.
    pub fn paused(by: PauseKind, retry_after_ms: u64, by_limits: Self) -> Self {
        match by_limits.remedy {
            Some(Remedy::Never { .. } | Remedy::Reset { .. }) => return by_limits,
            Some(Remedy::Wait { .. }) | None => {}
        }
        // What the pool lacks besides is a part of the same wait.
        let (by_pool, by_own): (Vec<&Violation>, Vec<&Violation>) =
            by_limits.violations.iter().partition(|violation| violation.scope == Scope::Pool);
        let longest = |violations: &[&Violation]| {
            let waits = violations.iter().map(|violation| match violation.remedy {
                Remedy::Wait { retry_after_ms } => retry_after_ms,
                Remedy::Never { .. } | Remedy::Reset { .. } => 0,
            });
            waits.max().unwrap_or(0)
        };
        let retry_after_ms = retry_after_ms.max(longest(&by_pool));
        let is_longest = retry_after_ms >= longest(&by_own);
        let pause = Remedy::Wait { retry_after_ms };
        let violation = Violation {
            name: Label::parse(by.as_str()).expect("a valid name"),
            scope: Scope::Pool,
            kind: by.as_str(),
            meter: None,
            limit: 0,
            remaining: 0,
            requested: 1,
            remedy: pause,
            would_fit: 0,
        };
        let mut refusal = by_limits;
        if is_longest {
            (refusal.code, refusal.limit, refusal.remedy) =
                (Code::UpstreamPaused, Some(violation.name.clone()), Some(pause));
        }
        refusal.violations.push(violation);
        refusal
    }
}

/// How long a pool without any stock is waited for, in ms: nothing says when
/// its figures change, but an upstream refusal is always worth another try.
const EMPTY_POOL_WAIT_MS: u64 = 60_000;

/// Turns the charges that did not fit into the refusal the caller is told.
/// `limits` are the limits of the charges, `rows` their reply rows.
pub fn refuse(limits: &[&Limit], rows: Vec<LimitRow>, shortfalls: &[Shortfall], now: Millis) -> Refusal {
    let mut violations: Vec<(usize, Violation)> = shortfalls
        .iter()
        .map(|short| (short.charge, violation(limits[short.charge], &rows[short.charge], short, now)))
        .collect();
    let never = |violation: &Violation| matches!(violation.remedy, Remedy::Never { .. });
    if violations.iter().any(|(_, violation)| never(violation)) {
        violations.retain(|(_, violation)| never(violation));
    }
    let decider = violations.iter().min_by_key(|(index, violation)| {
        let period = Reverse(period_ms(&limits[*index].rule));
        let (row, size) = match violation.remedy {
            Remedy::Never { max } => (0, max),
            Remedy::Reset { resets_at } => (1, u64::MAX - resets_at.map_or(u64::MAX, |at| at.0 as u64)),
            Remedy::Wait { retry_after_ms } => (2, u64::MAX - retry_after_ms),
        };
        (row, size, period, violation.scope, *index)
    });
    let Some((index, decider)) = decider else { return Refusal::plain(Code::QuotaExhausted) };
    Refusal {
        code: code(limits[*index], decider.remedy),
        limit: Some(decider.name.clone()),
        max: match decider.remedy {
            Remedy::Never { max } => Some(max),
            _ => None,
        },
        remedy: Some(decider.remedy),
        violations: violations.iter().map(|(_, violation)| violation.clone()).collect(),
        hold: None,
        limits: rows,
    }
}

fn violation(limit: &Limit, row: &LimitRow, short: &Shortfall, now: Millis) -> Violation {
    let remedy = match short.remedy {
        Remedy::Reset { resets_at } if limit.scope == Scope::Pool => {
            let wait = resets_at.map(|at| (at.0 - now.0).max(1) as u64);
            Remedy::Wait { retry_after_ms: wait.unwrap_or(EMPTY_POOL_WAIT_MS) }
        }
        remedy => remedy,
    };
    Violation {
        name: row.name.clone(),
        scope: row.scope,
        kind: row.standing.kind(),
        meter: row.meter.clone(),
        limit: row.standing.limit(),
        remaining: short.remaining,
        requested: short.requested,
        remedy,
        would_fit: short.would_fit,
    }
}

/// What a limit refuses with when it is used up for now.
pub fn usual_code(limit: &Limit) -> Code {
    match limit.rule {
        Rule::Window { .. } => code(limit, Remedy::Reset { resets_at: None }),
        _ => code(limit, Remedy::Wait { retry_after_ms: 0 }),
    }
}

fn code(limit: &Limit, remedy: Remedy) -> Code {
    match (remedy, &limit.rule) {
        (Remedy::Never { .. }, _) => Code::ExceedsCapacity,
        _ if limit.scope == Scope::Pool => Code::UpstreamCapacityExceeded,
        (Remedy::Reset { .. }, Rule::Window { period, .. }) => match period {
            Period::Day => Code::DailyQuotaExhausted,
            Period::Week => Code::WeeklyQuotaExhausted,
            Period::Month => Code::MonthlyQuotaExhausted,
            _ => Code::QuotaExhausted,
        },
        (Remedy::Reset { .. }, _) => Code::QuotaExhausted,
        (Remedy::Wait { .. }, rule) => match rule.meter() {
            None => Code::ConcurrencyExceeded,
            Some(Meter::InputTokens) => Code::InputRateExceeded,
            Some(Meter::OutputTokens) => Code::OutputRateExceeded,
            Some(Meter::TotalTokens) => Code::TokenRateExceeded,
            Some(Meter::Credits) => Code::CreditRateExceeded,
            // Custom meters are used up at once, like requests.
            Some(Meter::Requests | Meter::Custom(_)) => Code::RequestRateExceeded,
        },
    }
}

/// The nominal length of a limit's period, for ties; 0 where it has none.
fn period_ms(rule: &Rule) -> u64 {
    const HOUR: u64 = 3_600_000;
    match rule {
        Rule::Window { period, .. } => match period {
            Period::Day => 24 * HOUR,
            Period::Week => 7 * 24 * HOUR,
            Period::Month => 30 * 24 * HOUR,
            Period::Hours(n) | Period::SessionHours(n) => u64::from(*n) * HOUR,
            Period::Days(n) => u64::from(*n) * 24 * HOUR,
            Period::Lifetime => u64::MAX,
        },
        _ => 0,
    }
}

/// The highest thresholds that what is taken of a limit has reached: of those
/// that warn, and of those that advise. One warning where they are the same.
pub fn warnings(limit: &Limit, row: &LimitRow) -> Vec<Warning> {
    let (taken, whole) = taken_of(&row.standing);
    let reached = |ratio: &Ppm| whole > 0 && taken * 1_000_000 >= u128::from(ratio.0) * whole;
    let warned = limit.warn_at.iter().copied().filter(reached).max();
    let advised = limit.degrade.iter().rfind(|degrade| reached(&degrade.at));
    let warning = |ratio: Ppm, advice: Option<&Advice>| {
        let used_ratio = (taken * 200_000 + whole) / (2 * whole);
        Warning { limit: row.name.clone(), ratio, used_ratio: used_ratio as u64, advice: advice.cloned() }
    };
    let plain = warned.filter(|ratio| advised.is_none_or(|degrade| degrade.at != *ratio));
    let plain = plain.map(|ratio| warning(ratio, None));
    plain.into_iter().chain(advised.map(|degrade| warning(degrade.at, Some(&degrade.advice)))).collect()
}

/// What is taken of a limit, and of how much.
fn taken_of(standing: &Standing) -> (u128, u128) {
    let (taken, whole) = match *standing {
        Standing::Window { limit, granted, used, held, .. } => {
            return (u128::from(used) + u128::from(held), add_saturating(limit, granted).into());
        }
        Standing::Bucket { capacity, remaining, .. } => (capacity.saturating_sub(remaining), capacity),
        Standing::Slots { limit, in_use, .. } => (in_use, limit),
        Standing::Rolling { limit, used, .. } => (used, limit),
    };
    (taken.into(), whole.into())
}
