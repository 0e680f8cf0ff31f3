//! What one user of a plan can draw: the sustained rate and the worst window.

use crate::domain::plan::{Enforce, Filter, Limit, Meter, Rule, Scope, Sheet};
use crate::domain::time;

const MINUTE_MS: u128 = 60_000;
const DAY_MS: u128 = 24 * 60 * MINUTE_MS;

/// What one user can draw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// For ever, per minute or per window.
    pub rate: u128,
    /// In the worst window: what is stored and what is refilled meanwhile.
    pub burst: u128,
    /// The limit or limits that make it.
    pub by: String,
}

/// What a rate is counted per.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Period {
    /// Rates per minute; the worst window is this long.
    Minute { window_seconds: u32 },
    /// Windows of a limit that is no rate: what fits in one of them.
    Window(time::Period),
    /// Calls in flight.
    AtOnce,
}

impl Period {
    pub const MINUTE: Self = Self::Minute { window_seconds: 60 };

    pub fn words(self) -> Option<String> {
        Some(match self {
            Self::Minute { .. } => "minute".into(),
            Self::Window(time::Period::Day) => "day".into(),
            Self::Window(time::Period::Week) => "week".into(),
            Self::Window(time::Period::Month) => "month".into(),
            Self::Window(time::Period::Lifetime) => "lifetime".into(),
            Self::Window(time::Period::Hours(n) | time::Period::SessionHours(n)) => format!("{n} hours"),
            Self::Window(time::Period::Days(n)) => format!("{n} days"),
            Self::AtOnce => return None,
        })
    }

    /// Whether the worst window differs from the sustained rate.
    pub fn stores(self) -> bool {
        matches!(self, Self::Minute { .. })
    }
}

/// What one user of `sheet` can draw of `meter` (`None`: slots) with the calls
/// that `pool` counts; `None` when no limit bounds it.
///
/// A limit of its own meter decides. Only without one do tokens follow from
/// the calls and what each may take, or from the total.
pub fn flow(sheet: &Sheet, meter: Option<&Meter>, pool: &Filter, per: Period) -> Option<Flow> {
    let Some(meter) = meter else { return slots(sheet, pool) };
    own(sheet, meter, pool, per).or_else(|| {
        let by_calls = by_calls(sheet, meter, pool, per);
        let by_other_meters = match meter {
            Meter::InputTokens | Meter::OutputTokens => own(sheet, &Meter::TotalTokens, pool, per),
            Meter::TotalTokens => sum(
                flow(sheet, Some(&Meter::InputTokens), pool, per),
                flow(sheet, Some(&Meter::OutputTokens), pool, per),
            ),
            _ => None,
        };
        by_calls.into_iter().chain(by_other_meters).min_by_key(|flow| flow.rate)
    })
}

/// The hard limits of the user's own account that every call of the pool must
/// pass. What users share (org, tenant) says nothing about one of them.
fn binding<'s>(sheet: &'s Sheet, pool: &'s Filter) -> impl Iterator<Item = &'s Limit> {
    sheet.limits.iter().filter(|limit| {
        limit.enforce == Enforce::Hard && limit.scope == Scope::User && limit.filter.covers(pool)
    })
}

fn slots(sheet: &Sheet, pool: &Filter) -> Option<Flow> {
    let slots = binding(sheet, pool).filter_map(|limit| match limit.rule {
        Rule::Slots { limit: n } => {
            Some(Flow { rate: n.into(), burst: n.into(), by: limit.name.to_string() })
        }
        _ => None,
    });
    slots.min_by_key(|flow| flow.rate)
}

fn own(sheet: &Sheet, meter: &Meter, pool: &Filter, per: Period) -> Option<Flow> {
    let flows = || {
        let limits = binding(sheet, pool).filter(|limit| limit.rule.meter() == Some(meter));
        limits.filter_map(|limit| single(limit, per))
    };
    // The tightest in the long run need not be the tightest in the worst window.
    let burst = flows().map(|flow| flow.burst).min()?;
    let tightest = flows().min_by_key(|flow| flow.rate)?;
    Some(Flow { burst, ..tightest })
}

/// What one limit lets through, by itself.
fn single(limit: &Limit, per: Period) -> Option<Flow> {
    let by = limit.name.to_string();
    match (&limit.rule, per) {
        (Rule::Bucket { capacity, refill_per_minute, .. }, Period::Minute { window_seconds }) => {
            let refill = u128::from(*refill_per_minute);
            let meanwhile = (refill * u128::from(window_seconds)).div_ceil(60);
            Some(Flow { rate: refill, burst: u128::from(*capacity) + meanwhile, by })
        }
        (Rule::Bucket { refill_per_minute, .. }, Period::Window(period)) => {
            let rate = u128::from(*refill_per_minute) * usual_ms(period)? / MINUTE_MS;
            Some(Flow { rate, burst: rate, by })
        }
        (Rule::Window { limit, period: ours, .. }, Period::Window(theirs)) => {
            let windows = match (usual_ms(*ours), usual_ms(theirs)) {
                (None, _) => 1,
                (Some(_), None) => return None,
                (Some(ours), Some(theirs)) => theirs.div_ceil(ours),
            };
            let rate = u128::from(*limit) * windows;
            Some(Flow { rate, burst: rate, by })
        }
        _ => None,
    }
}

/// Calls times what one call may take.
fn by_calls(sheet: &Sheet, meter: &Meter, pool: &Filter, per: Period) -> Option<Flow> {
    let caps = &sheet.per_call;
    let (cap, words) = match meter {
        Meter::InputTokens => (caps.max_input_tokens?, "max_input_tokens"),
        Meter::OutputTokens => (caps.max_output_tokens?, "max_output_tokens"),
        _ => return None,
    };
    let calls = own(sheet, &Meter::Requests, pool, per)?;
    let cap = u128::from(cap);
    Some(Flow {
        rate: calls.rate.saturating_mul(cap),
        burst: calls.burst.saturating_mul(cap),
        by: format!("{} x {words}", calls.by),
    })
}

fn sum(a: Option<Flow>, b: Option<Flow>) -> Option<Flow> {
    let (a, b) = (a?, b?);
    Some(Flow {
        rate: a.rate.saturating_add(b.rate),
        burst: a.burst.saturating_add(b.burst),
        by: format!("{} + {}", a.by, b.by),
    })
}

/// The usual length of a period; `None`: it never ends.
fn usual_ms(period: time::Period) -> Option<u128> {
    Some(match period {
        time::Period::Day => DAY_MS,
        time::Period::Week => 7 * DAY_MS,
        time::Period::Month => 31 * DAY_MS,
        _ => u128::from(period.fixed_len_ms()?.unsigned_abs()),
    })
}
