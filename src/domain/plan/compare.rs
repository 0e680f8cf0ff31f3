//! Two sheets side by side: which of them gives more.

use super::{Enforce, Limit, Rule, Scope, Sheet};
use crate::domain::time::Period;

impl Sheet {
    /// Whether going from this sheet to `new` takes something away: a limit or
    /// cap that is in both becomes smaller, or a hard limit appears (also one
    /// that was soft or only counted before). Anything else is an upgrade.
    pub fn is_downgrade_to(&self, new: &Self) -> bool {
        let smaller = |old: Option<u64>, new: Option<u64>| old.zip(new).is_some_and(|(old, new)| new < old);
        if smaller(self.per_call.max_input_tokens, new.per_call.max_input_tokens)
            || smaller(self.per_call.max_output_tokens, new.per_call.max_output_tokens)
        {
            return true;
        }
        let old: Vec<_> = self.limits.iter().map(|limit| (limit.cell(), limit)).collect();
        new.limits.iter().any(|limit| {
            let cell = limit.cell();
            let before = old.iter().find(|(known, _)| *known == cell).map(|(_, before)| *before);
            let was_hard = before.is_some_and(|before| before.enforce == Enforce::Hard);
            (limit.enforce == Enforce::Hard && !was_hard)
                || before.is_some_and(|before| is_smaller(&before.rule, &limit.rule))
        })
    }

    /// The limit whose running window says when a month ends for a user (or an
    /// org) on this plan: the first `month` window of that scope, if any.
    pub fn month_limit(&self, scope: Scope) -> Option<&Limit> {
        self.limits.iter().find(|limit| {
            limit.scope == scope && matches!(limit.rule, Rule::Window { period: Period::Month, .. })
        })
    }
}

/// Whether a figure of the same limit went down.
fn is_smaller(old: &Rule, new: &Rule) -> bool {
    let refill = |rule: &Rule| match rule {
        Rule::Bucket { refill_per_minute, .. } => *refill_per_minute,
        Rule::Window { .. } | Rule::Slots { .. } | Rule::Rolling { .. } => 0,
    };
    new.most_at_once() < old.most_at_once() || refill(new) < refill(old)
}
