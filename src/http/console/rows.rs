//! Rows of the API's lists, as far as pages show them.

use serde::Deserialize;
use serde_json::Value;

use super::figures::{Count, Credits, Part, UserName, span};
use super::user::gauges::Row;
use crate::domain::time::Millis;

/// A plan in a version.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PlanRef {
    pub id: String,
    pub version: u32,
}

/// One feature's calls of one minute.
#[derive(Debug, Clone, Deserialize)]
pub struct Minute {
    pub at: Millis,
    pub feature: Option<String>,
    pub requests: u64,
    pub refusals: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub total_tokens: u64,
    pub credits: u64,
}

/// Who used how much.
#[derive(Debug, Clone, Deserialize)]
pub struct Consumer {
    pub rank: u32,
    pub user: Option<UserName>,
    pub org: Option<String>,
    pub feature: Option<String>,
    pub model: Option<String>,
    pub plan: Option<String>,
    pub requests: Count,
    pub input_tokens: Count,
    pub output_tokens: Count,
    pub total_tokens: Count,
    pub credits: Credits,
    pub refusals: Count,
    pub share: Part,
    pub quota_share: Option<Part>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Consumers {
    pub data: Vec<Consumer>,
    pub from: String,
    pub to: String,
    pub count: Count,
    pub total: Sums,
    pub next_cursor: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Sums {
    pub requests: Count,
    pub input_tokens: Count,
    pub output_tokens: Count,
    pub total_tokens: Count,
    pub credits: Credits,
    pub refusals: Count,
}

/// Somebody who uses far more than they are used to.
#[derive(Debug, Clone, Deserialize)]
pub struct Mover {
    pub user: UserName,
    pub plan: Option<String>,
    pub total_tokens: Count,
    pub baseline: Option<Count>,
    pub ratio: Option<f64>,
}

impl Mover {
    /// How many times as much as usual.
    pub fn times(&self) -> Option<String> {
        self.ratio.map(|ratio| format!("{ratio:.1}\u{a0}×"))
    }
}

/// What somebody changed.
#[derive(Debug, Clone, Deserialize)]
pub struct Audit {
    pub at: Millis,
    pub by: String,
    pub action: String,
    pub target: String,
    pub reason: Option<String>,
    #[serde(default)]
    pub after: Option<Value>,
}

/// An action of the audit in words, where it is known.
pub fn words_of(action: &str) -> &str {
    match action {
        "plan.put" => "New version of plan",
        "pool.put" => "Pool changed",
        "pool.open" => "Pool opened",
        "models.put" => "Models changed",
        "settings.put" => "Settings changed",
        "user.put" => "User changed",
        "user.plan" => "Plan of user changed",
        "user.plan_stale" => "Late change of plan left aside for user",
        "user.erase" => "User erased",
        "user.return" => "Erased user came back",
        "hold.resolve" => "Hold in doubt resolved",
        "make_good.put" => "Made good",
        "webhook.put" => "Webhook changed",
        "webhook.delete" => "Webhook removed",
        "plan.delete" => "Plan removed",
        "pool.close" => "Vendor's spend limit closed pool",
        "pool.delete" => "Pool removed",
        "org.put" => "Org changed",
        "key.create" => "Key made",
        "key.delete" => "Key removed",
        "tenant.create" => "Product made",
        "tenant.suspend" => "Product suspended",
        "tenant.resume" => "Product let in again",
        "node.degraded" => "A node missed its store",
        "clock.set" => "Clock set",
        other => other,
    }
}

impl Audit {
    pub fn what(&self) -> &str {
        words_of(&self.action)
    }

    /// The outage that this is about.
    pub fn degraded(&self) -> Option<Degraded> {
        let after = self.after.as_ref().filter(|_| self.action == "node.degraded")?;
        Degraded::deserialize(after).ok()
    }

    /// What was changed, where the action does not say it already.
    pub fn of(&self) -> &str {
        if ["settings", "models"].contains(&self.target.as_str()) { "" } else { &self.target }
    }

    /// Where more stands about what was changed.
    pub fn link(&self) -> Option<String> {
        let (kind, _) = self.action.split_once('.')?;
        let id = crate::http::query::percent_encode(&self.target);
        match kind {
            "user" => Some(format!("/console/users/{id}")),
            "plan" => Some(format!("/console/plans/{id}")),
            "pool" => Some(format!("/console/capacity?pool={id}")),
            _ => None,
        }
    }
}

/// Upstream capacity and how it is.
#[derive(Debug, Deserialize)]
pub struct Pool {
    pub id: String,
    #[serde(default = "yes")]
    pub enforced: bool,
    #[serde(default)]
    pub models: Vec<String>,
    pub condition: Condition,
    /// Where its limits stand; `None` where nothing is counted, or nobody knows.
    #[serde(default)]
    pub load: Option<Vec<Row>>,
    #[serde(default)]
    pub pauses: Vec<Waited>,
}

/// A while in which a pool's callers waited.
#[derive(Debug, Deserialize)]
pub struct Waited {
    pub kind: String,
    pub from: Millis,
    pub until: Millis,
    pub times: u32,
}

impl Waited {
    pub fn length(&self) -> String {
        span(self.until.0 - self.from.0)
    }
}

/// A while in which a node went without its store.
#[derive(Debug, Deserialize)]
pub struct Degraded {
    pub from: Millis,
    pub until: Millis,
    pub admitted: Count,
    pub refused: Count,
}

impl Pool {
    pub fn rate_part(&self) -> Part {
        Part(self.condition.rate)
    }
}

fn yes() -> bool {
    true
}

#[derive(Debug, Clone, Deserialize)]
pub struct Condition {
    pub state: String,
    pub rate: f64,
    pub paused_until: Option<Millis>,
    pub bulk_paused_until: Option<Millis>,
    pub closed_since: Option<Millis>,
    pub closed_because: Option<String>,
}

/// How long answers were, and what was reserved for them.
#[derive(Debug, Clone, Deserialize)]
pub struct Output {
    pub feature: Option<String>,
    pub reserved_tokens: u64,
    pub used_tokens: u64,
}

impl Output {
    pub fn reserved(&self) -> Count {
        Count(self.reserved_tokens)
    }

    pub fn used(&self) -> Count {
        Count(self.used_tokens)
    }

    pub fn used_part(&self) -> Part {
        Count(self.used_tokens).part_of(&Count(self.reserved_tokens))
    }
}
