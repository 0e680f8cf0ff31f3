//! A pool's ramp: some vendors turn away traffic that grows too fast, however
//! far from their limits it is.

use serde_json::{Value, json};

use super::{Enforce, Filter, Limit, Meter, Rule, Scope, Visibility, limit};
use crate::domain::document::Reader;
use crate::domain::ids::Label;
use crate::domain::quantity::{MAX_AMOUNT, Ppm};

/// What is taken of a meter in any minute grows by no more than a share of it
/// every so many minutes, once it is above a floor.
#[derive(Debug, Clone, PartialEq)]
pub struct Ramp {
    pub meter: Meter,
    /// So much in any minute is always allowed.
    pub floor: u64,
    pub growth: Ppm,
    pub minutes: u32,
}

/// How its row is called.
const NAME: &str = "ramp";
const DEFAULT_GROWTH: Ppm = Ppm(500_000);
const DEFAULT_MINUTES: u32 = 15;
const MAX_MINUTES: u32 = 60;

impl Ramp {
    pub(super) fn read(r: &mut Reader<'_, '_>) -> Option<Self> {
        let meter = match r.has("meter") {
            true => limit::read_meter(r),
            false => Some(Meter::InputTokens),
        };
        let floor = r.required("floor").number(1..=MAX_AMOUNT);
        let growth = match r.has("growth") {
            true => r.optional("growth").share(),
            false => Some(DEFAULT_GROWTH),
        };
        if growth == Some(Ppm(0)) {
            r.fault("growth", "must be more than 0: what never grows is a limit");
        }
        let minutes = r.optional("minutes").number(1..=MAX_MINUTES).unwrap_or(DEFAULT_MINUTES);
        Some(Self { meter: meter?, floor: floor?, growth: growth?, minutes })
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "meter": self.meter.as_str(),
            "floor": self.floor,
            "growth": self.growth.as_f64(),
            "minutes": self.minutes,
        })
    }

    /// Whether a limit of the same pool would be taken for it.
    pub(super) fn has_name(name: &Label) -> bool {
        name.as_str() == NAME
    }

    /// The limit of any minute that it comes to, by its floor.
    pub fn limit(&self) -> Option<Limit> {
        Some(Limit {
            name: Label::parse(NAME).ok()?,
            scope: Scope::Pool,
            enforce: Enforce::Hard,
            filter: Filter::default(),
            rule: Rule::Rolling {
                meter: self.meter.clone(),
                limit: self.floor,
                window_seconds: 60,
                guard_ms: 0,
            },
            warn_at: Vec::new(),
            degrade: Vec::new(),
            visibility: Visibility::Exact,
        })
    }

    /// The most that a minute may have if the busiest one before had `peak`.
    pub fn after(&self, peak: u64) -> u64 {
        let peak = peak.min(MAX_AMOUNT);
        self.floor.max(peak.saturating_add(self.growth.of_rounded_down(peak))).min(MAX_AMOUNT)
    }
}
