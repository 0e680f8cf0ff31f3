//! A verdict, as it is behind those who wait in a pool's line.

use super::seen::Seen;
use super::{Ask, Remedy, Shortfall, Shortfalls, Verdict, asked, project, standings};
use crate::domain::account::Account;
use crate::domain::charge::Charge;
use crate::domain::line::Ahead;
use crate::domain::plan::Scope;
use crate::domain::taking::Taking;
use crate::domain::time::Millis;

/// What becomes of a verdict when others go first: nothing is taken, and waits
/// for the pool are longer by what those ask for. Beside it the wait for the
/// pool at best, if all that others hold came back now.
pub fn behind(
    verdict: Verdict,
    accounts: &[&Account],
    scopes: &[Scope],
    ask: &Ask,
    ahead: &Ahead,
    now: Millis,
) -> (Verdict, u64) {
    let of_pool = |charge: &Charge| scopes[usize::from(charge.account)] == Scope::Pool;
    let blocked = ahead.blocked && ask.taking == Taking::Enforced;
    let mut shortfalls = match &verdict {
        Verdict::Fits { .. } if !blocked => return (verdict, 0),
        Verdict::Fits { .. } => Shortfalls::new(),
        Verdict::Refused { shortfalls, .. } => shortfalls.clone(),
    };
    let projections = project(accounts, &ask.charges, now);
    let seen = |index: usize| {
        let charge = &ask.charges[index];
        let projection = &projections[usize::from(charge.account)];
        Some(Seen::new(projection, projection.place(index)?, charge, now))
    };
    let needed = |index: usize| ask.charges[index].demand.amount(ask.output_min);
    let longer = |index: usize| {
        let more = ahead.load.of(ask.charges[index].meter);
        seen(index).map_or(0, |seen| seen.time_for(more))
    };
    if blocked && !shortfalls.iter().any(|short| of_pool(&ask.charges[short.charge])) {
        let charges = asked(&ask.charges).filter(|(_, charge)| of_pool(charge)).map(|(index, _)| index);
        shortfalls.extend(charges.max_by_key(|index| (longer(*index), std::cmp::Reverse(*index))).map(
            |index| Shortfall {
                charge: index,
                requested: needed(index),
                remaining: seen(index).map_or(0, |seen| seen.stock()),
                would_fit: 0,
                remedy: Remedy::Wait { retry_after_ms: 0 },
            },
        ));
    }
    let mut at_best = 0;
    for short in shortfalls.iter_mut().filter(|short| of_pool(&ask.charges[short.charge])) {
        let longer = longer(short.charge);
        if let Remedy::Wait { retry_after_ms } = &mut short.remedy {
            *retry_after_ms = retry_after_ms.saturating_add(longer).max(1);
        }
        let best = seen(short.charge).map_or(0, |seen| seen.at_best(needed(short.charge)));
        at_best = at_best.max(best.saturating_add(longer));
    }
    let standings = standings(&projections, &ask.charges, now);
    (Verdict::Refused { shortfalls, standings }, at_best)
}
