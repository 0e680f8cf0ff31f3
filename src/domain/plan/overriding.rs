//! Numbers that stand in the place of a plan's, for one user or org.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Rule;
use crate::domain::document::Reader;
use crate::domain::quantity::{MAX_AMOUNT, MAX_BUCKET, MAX_SLOTS};

/// Numbers for one limit; what is `None` is as the plan says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Override {
    /// Of a window, or slots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Of a bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
    /// Of a bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refill_per_minute: Option<u64>,
}

/// A number that a limit cannot have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// The field of the override.
    pub field: &'static str,
    /// To be read after the field's name.
    pub message: String,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.field, self.message)
    }
}

impl Override {
    /// Reads the numbers of a table `{"limit"}` or `{"capacity",
    /// "refill_per_minute"}`, at least one. Whether they are those of the
    /// limit's kind is asked of [`Override::fits`].
    pub fn read(r: &mut Reader<'_, '_>) -> Option<Self> {
        let given = ["limit", "capacity", "refill_per_minute"].iter().filter(|name| r.has(name)).count();
        let numbers = Self {
            limit: r.optional("limit").amount(MAX_AMOUNT),
            capacity: r.optional("capacity").amount(MAX_BUCKET),
            refill_per_minute: r.optional("refill_per_minute").amount(MAX_BUCKET),
        };
        if given == 0 {
            r.fault_here("must have limit, or capacity or refill_per_minute");
            return None;
        }
        Some(numbers)
    }

    /// Whether every number is one of that rule's, and the rule with them is
    /// one that a sheet could have.
    pub fn fits(&self, rule: &Rule) -> Result<(), Misfit> {
        let misfit = |field, message: String| Err(Misfit { field, message });
        let Rule::Bucket { capacity, refill_per_minute, .. } = rule else {
            let foreign = [("capacity", self.capacity), ("refill_per_minute", self.refill_per_minute)];
            if let Some((field, _)) = foreign.into_iter().find(|(_, number)| number.is_some()) {
                return misfit(field, format!("is of buckets, and this is {}: give limit", a_kind(rule)));
            }
            return match (rule, self.limit) {
                (Rule::Slots { .. }, Some(limit)) if limit > MAX_SLOTS => {
                    misfit("limit", format!("must be a whole number from 0 to {MAX_SLOTS}"))
                }
                _ => Ok(()),
            };
        };
        if self.limit.is_some() {
            return misfit("limit", "is not of buckets: give capacity or refill_per_minute".into());
        }
        let capacity = self.capacity.unwrap_or(*capacity);
        if capacity > 0 && self.refill_per_minute.unwrap_or(*refill_per_minute) == 0 {
            let (field, message) = match self.refill_per_minute {
                Some(_) => ("refill_per_minute", "may be 0 only when capacity is 0"),
                None => ("capacity", "may be above 0 only with a refill_per_minute above 0"),
            };
            return misfit(field, message.into());
        }
        Ok(())
    }
}

fn a_kind(rule: &Rule) -> &'static str {
    match rule {
        Rule::Bucket { .. } => "a bucket",
        Rule::Window { .. } => "a window",
        Rule::Slots { .. } => "slots",
        Rule::Rolling { .. } => "a rolling limit",
    }
}

impl Rule {
    /// The rule with the numbers of an override in place of its own. The plan
    /// may have changed since they were given: numbers that this kind does not
    /// have are left aside, and so are all where together they make no rule.
    pub fn overridden(&self, numbers: &Override) -> Self {
        let mut rule = self.clone();
        match &mut rule {
            Self::Bucket { capacity, refill_per_minute, .. } => {
                let whole = numbers.capacity.unwrap_or(*capacity);
                let refill = numbers.refill_per_minute.unwrap_or(*refill_per_minute);
                if whole == 0 || refill > 0 {
                    (*capacity, *refill_per_minute) = (whole, refill);
                }
            }
            Self::Window { limit, .. } | Self::Rolling { limit, .. } => {
                *limit = numbers.limit.unwrap_or(*limit);
            }
            Self::Slots { limit } => {
                *limit = numbers.limit.filter(|given| *given <= MAX_SLOTS).unwrap_or(*limit);
            }
        }
        rule
    }
}
