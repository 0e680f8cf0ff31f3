//! Decisions by plan, as metrics tell them.
//!
//! Ids of plans are tenants' own words: nobody bounds how many there are, and a
//! series of metrics is for ever. So the first [`PLANS_MAX`] that this process
//! meets are told by name, whoever's they are, and all others together: those in
//! use are met within minutes of a start. What each product's plans came to is
//! in its own reports, without a bound.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ahash::RandomState;
use parking_lot::{Mutex, RwLock};

use crate::domain::ids::Name;

/// Plans that are told by name.
pub const PLANS_MAX: usize = 64;
/// The name of the rest.
pub const OTHER: &str = "other";
/// The name of no plan: the user is unknown.
const NONE: &str = "none";

/// `allow` is what nearly all are, so that it has a counter of its own.
#[derive(Default)]
struct Counts {
    allowed: AtomicU64,
    /// Decision and code.
    others: Mutex<Vec<(&'static str, &'static str, u64)>>,
}

impl Counts {
    fn count(&self, decision: &'static str, code: &'static str) {
        if decision == code {
            self.allowed.fetch_add(1, Relaxed);
            return;
        }
        let mut others = self.others.lock();
        match others.iter_mut().find(|(d, c, _)| (*d, *c) == (decision, code)) {
            Some((_, _, count)) => *count += 1,
            None => others.push((decision, code, 1)),
        }
    }
}

#[derive(Default)]
pub struct ByPlan {
    known: RwLock<HashMap<Name, Arc<Counts>, RandomState>>,
    other: Counts,
    none: Counts,
}

impl ByPlan {
    /// A check was decided: `allow` and `allow`, or `refuse` or `would_refuse`
    /// and the code of the refusal.
    pub fn count(&self, plan: Option<&Name>, decision: &'static str, code: &'static str) {
        // A tenant's plan may have such a name: no series comes twice.
        let plan = match plan {
            Some(plan) if plan.as_str() == OTHER => return self.other.count(decision, code),
            Some(plan) if plan.as_str() != NONE => plan,
            _ => return self.none.count(decision, code),
        };
        {
            let known = self.known.read();
            if let Some(counts) = known.get(plan) {
                return counts.count(decision, code);
            }
            // With more plans than that, checks must not wait for each other's lock.
            if known.len() >= PLANS_MAX {
                drop(known);
                return self.other.count(decision, code);
            }
        }
        let mut known = self.known.write();
        if known.len() >= PLANS_MAX && !known.contains_key(plan) {
            drop(known);
            return self.other.count(decision, code);
        }
        known.entry(plan.clone()).or_default().count(decision, code);
    }

    /// Plan, decision, code and how often.
    pub fn all(&self) -> Vec<(Arc<str>, &'static str, &'static str, u64)> {
        let mut all = Vec::new();
        let mut tell = |plan: Arc<str>, counts: &Counts| {
            let allowed = counts.allowed.load(Relaxed);
            if allowed > 0 {
                all.push((Arc::clone(&plan), "allow", "allow", allowed));
            }
            let others = counts.others.lock();
            all.extend(others.iter().map(|(decision, code, count)| (plan.clone(), *decision, *code, *count)));
        };
        for (plan, counts) in &*self.known.read() {
            tell(plan.shared(), counts);
        }
        tell(OTHER.into(), &self.other);
        tell(NONE.into(), &self.none);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::parse(text).unwrap()
    }

    #[test]
    fn decisions_are_told_by_plan_up_to_a_bound() {
        let by_plan = ByPlan::default();
        for plan in 0..PLANS_MAX + 3 {
            by_plan.count(Some(&name(&format!("p{plan}"))), "allow", "allow");
        }
        by_plan.count(Some(&name("p0")), "allow", "allow");
        by_plan.count(Some(&name("p0")), "refuse", "daily_quota_exhausted");
        by_plan.count(Some(&name("p0")), "refuse", "daily_quota_exhausted");
        by_plan.count(None, "refuse", "unknown_user");
        let all = by_plan.all();
        let told = |plan: &str, code: &str| {
            let row = all.iter().find(|(p, _, c, _)| &**p == plan && *c == code);
            row.map(|(_, _, _, count)| *count)
        };
        assert_eq!(told("p0", "allow"), Some(2));
        assert_eq!(told("p0", "daily_quota_exhausted"), Some(2));
        assert_eq!(told(OTHER, "allow"), Some(3));
        assert_eq!(told(NONE, "unknown_user"), Some(1));
        assert_eq!(all.len(), PLANS_MAX + 3);
    }

    #[test]
    fn a_plan_that_is_called_other_makes_no_series_twice() {
        let by_plan = ByPlan::default();
        by_plan.count(Some(&name("other")), "allow", "allow");
        by_plan.count(None, "refuse", "unknown_user");
        let all = by_plan.all();
        assert_eq!(all.iter().filter(|(plan, ..)| &**plan == OTHER).count(), 1);
    }
}
