//! What a refusal leaves behind in memory, and what it rests on.

use std::sync::Arc;

use super::Take;
use super::entry::{Guards, Pins, State};
use crate::domain::plan::{Enforce, Scope};
use crate::domain::step::{Ask, Shortfalls, Standings};
use crate::domain::time::Millis;

/// Whether one of the accounts may have a change that is not on record: queued
/// changes hold on to their accounts, as do the shard, this operation and the
/// owners of open holds. Others at work on them only make it wait in vain.
pub(super) fn rests_on_unrecorded(pins: &Pins, guards: &Guards<'_>) -> bool {
    pins.0.iter().zip(guards).any(|(entry, state)| Arc::strong_count(entry) > 2 + state.holds.len())
}

/// See [`Promises`].
pub(super) fn spread_pool_waits(
    guards: &mut Guards<'_>,
    take: &Take,
    shortfalls: &mut Shortfalls,
    now: Millis,
) {
    let pool = take.accounts.iter().position(|key| key.scope == Scope::Pool);
    let Some(pool) = pool.filter(|pool| {
        shortfalls.iter().any(|short| usize::from(take.ask.charges[short.charge].account) == *pool)
    }) else {
        return;
    };
    let State { promises, account, .. } = &mut *guards[pool];
    let promises = promises.get_or_insert_default();
    promises.spread(pool as u8, account, &take.accounts[0].owner, &take.ask.charges, shortfalls, now);
}

/// A shadow limit counts refused checks too; that is a tally for people and
/// no part of any decision.
pub(super) fn count_shadow_refusals(guards: &mut Guards<'_>, ask: &Ask, standings: &Standings) {
    let shadows = ask.charges.iter().zip(standings);
    for (charge, shown) in shadows.filter(|(charge, _)| charge.asked && charge.enforce == Enforce::Shadow) {
        let room = shown.standing.remaining().saturating_sub(charge.keep);
        if charge.demand.amount(ask.output_min) > room {
            guards[usize::from(charge.account)].account.count_would_refuse(charge.cell);
        }
    }
}
