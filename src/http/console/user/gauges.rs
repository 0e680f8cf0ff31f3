//! Limits as gauges.

use askama::Template;
use serde::Deserialize;

use super::{named, target};
use crate::domain::time::{Millis, Zone};
use crate::http::console::figures::{Clock, Count, Markup, bar};
use crate::http::console::page::show;
use crate::http::console::rows::PlanRef;
use crate::http::console::visit::{Shown, Visit};

/// Where a user or an org stands.
#[derive(Debug, Deserialize)]
pub struct Quota {
    pub state: String,
    pub next_call_at: Option<Millis>,
    pub upcoming: Option<Upcoming>,
    pub limits: Vec<Row>,
}

#[derive(Debug, Deserialize)]
pub struct Upcoming {
    pub plan: PlanRef,
    pub effective_at: Millis,
}

/// A limit; which of the figures there are depends on its kind.
#[derive(Debug, Deserialize)]
pub struct Row {
    pub name: String,
    pub scope: String,
    pub kind: String,
    pub meter: Option<String>,
    pub limit: Count,
    pub remaining: Count,
    #[serde(default)]
    pub granted: Count,
    #[serde(default)]
    pub used: Count,
    #[serde(default)]
    pub held: Count,
    #[serde(default)]
    pub in_use: Count,
    #[serde(default)]
    pub over_by: Count,
    pub refill_per_minute: Option<Count>,
    pub full_at: Option<Millis>,
    pub window: Option<Window>,
    pub window_seconds: Option<u64>,
    pub resets_at: Option<Millis>,
    pub state: String,
    pub forecast_exhausted_at: Option<Millis>,
    pub would_refuse: Option<Count>,
}

#[derive(Debug, Deserialize)]
pub struct Window {
    pub zone: Option<String>,
}

impl Row {
    pub fn meter_words(&self) -> String {
        self.meter.as_deref().unwrap_or("calls at once").replace('_', " ")
    }

    pub fn show(&self, value: &Count) -> Markup {
        value.of(self.meter.as_deref().unwrap_or_default())
    }

    /// All there is at the most.
    pub fn whole(&self) -> Count {
        Count(self.limit.0.saturating_add(self.granted.0))
    }

    pub fn whole_shown(&self) -> Markup {
        self.show(&self.whole())
    }

    /// What is gone: used, in use, or not refilled yet.
    pub fn gone(&self) -> Count {
        match self.kind.as_str() {
            "slots" => self.in_use,
            "bucket" => Count(self.limit.0.saturating_sub(self.remaining.0).saturating_sub(self.held.0)),
            _ => self.used,
        }
    }

    pub fn bar(&self) -> Markup {
        let whole = self.whole();
        let (gone, held) = (self.gone().part_of(&whole).0, self.held.part_of(&whole).0);
        let class = match (self.state.as_str(), gone + held) {
            ("exhausted", _) => "over",
            (_, part) if part >= 1.0 => "over",
            (_, part) if part >= 0.8 => "near",
            _ => "fill",
        };
        bar(&[(class, gone), ("held", held)])
    }

    pub fn has_held(&self) -> bool {
        !self.held.is_zero()
    }
}

#[derive(Template)]
#[template(path = "user_gauges.html")]
struct Gauges {
    quota: Quota,
    clock: Clock,
}

pub async fn part(visit: &Visit) -> Shown {
    let name = named(visit)?;
    let quota: Quota = visit.api.get(target("/v1/users/{}/quota", &name)).await?;
    let zone = quota.limits.iter().find_map(|row| Zone::parse(row.window.as_ref()?.zone.as_deref()?).ok());
    let clock = zone.map_or_else(|| visit.clock(), |zone| visit.clock_in(zone));
    show(&Gauges { quota, clock })
}
