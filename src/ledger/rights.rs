//! What a user or an org has besides the plan.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::domain::grant::Grant;
use crate::domain::ids::{Label, Name, RequestId};
use crate::domain::plan::Override;
use crate::domain::time::Millis;

/// Moves to come, overrides and grants. Stored as JSON.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rights {
    /// Plans to come, ascending.
    pub schedule: Vec<Move>,
    /// By the limit's name.
    pub overrides: BTreeMap<Label, Overridden>,
    /// By id, ascending.
    pub grants: Vec<Granting>,
    /// Grants ever made: an id is never given twice.
    pub grants_made: u32,
    /// The month that ran when the zone or the anchor last changed; it ends as
    /// it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub month: Option<Month>,
}

/// A window `[start, end)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Month {
    pub start: Millis,
    pub end: Millis,
}

/// A change of plan to come.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Move {
    pub at: Millis,
    pub plan: Name,
}

/// Numbers that stand in place of the plan's, in `[set_at, expires_at)`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Overridden {
    pub numbers: Override,
    pub expires_at: Option<Millis>,
    pub set_at: Millis,
    pub by: String,
    pub reason: String,
}

/// An extra amount on a window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Granting {
    #[serde(flatten)]
    pub grant: Grant,
    /// The limit's name.
    pub limit: Label,
    pub by: String,
    pub reason: String,
    /// The caller's `Idempotency-Key`: the same one gives once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<RequestId>,
}

impl Rights {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Overridden {
    /// Whether it stands at `at`, seen from `now`: what was written has been
    /// written, also where a test clock was set back behind it.
    pub fn holds_at(&self, at: Millis, now: Millis) -> bool {
        let is_set = self.set_at <= at || self.set_at > now;
        is_set && self.expires_at.is_none_or(|end| at < end)
    }
}
