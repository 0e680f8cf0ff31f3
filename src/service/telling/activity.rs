//! What users use, five minutes by five minutes, counted as it comes on record.
//!
//! Told to the ledger every ten seconds, and before anybody asks: no decision depends
//! on it, and a user of many calls is one row.

use std::collections::HashMap;

use ahash::RandomState;
use parking_lot::Mutex;

use crate::domain::charge::TenantRef;
use crate::domain::ids::UserId;
use crate::ledger::{Change, SLOT_MS, Tally, UsedSlot};

/// Users and slots that are counted until the next flush; what is beyond is not.
const SLOTS_MAX: usize = 500_000;
/// Rows written in one transaction, so that commits find their way between.
const AT_ONCE: usize = 256;

type Key = (TenantRef, UserId, i64);

#[derive(Default)]
pub(super) struct Activity {
    slots: Mutex<HashMap<Key, [i64; 5], RandomState>>,
}

/// What a batch of changes adds, to be counted once it is on record.
pub(in crate::service) fn used(changes: &[Change]) -> Vec<UsedSlot> {
    let of = |change: &Change| {
        let (hold, usage) = (change.hold.as_ref()?, change.usage.as_ref()?);
        Some(UsedSlot {
            tenant: hold.tenant,
            user: hold.user.clone(),
            slot: hold.created_at.0.div_euclid(SLOT_MS),
            figures: [
                usage.requests,
                usage.input_tokens,
                usage.output_tokens,
                usage.total_tokens,
                usage.credits,
            ],
        })
    };
    changes.iter().filter_map(of).collect()
}

impl Activity {
    pub fn add(&self, used: Vec<UsedSlot>) {
        if used.is_empty() {
            return;
        }
        let mut slots = self.slots.lock();
        for UsedSlot { tenant, user, slot, figures } in used {
            let key = (tenant, user, slot);
            if slots.len() >= SLOTS_MAX && !slots.contains_key(&key) {
                continue;
            }
            let sums = slots.entry(key).or_default();
            sums.iter_mut().zip(figures).for_each(|(sum, figure)| *sum = sum.saturating_add(figure));
        }
    }

    /// What was counted since the last time, in pieces of one transaction each.
    pub fn take(&self) -> Vec<Tally> {
        let slots = std::mem::take(&mut *self.slots.lock());
        let row = |((tenant, user, slot), figures)| UsedSlot { tenant, user, slot, figures };
        let mut used: Vec<UsedSlot> = slots.into_iter().map(row).collect();
        // Neighbours in the table come together.
        used.sort_unstable_by(|a, b| (a.tenant, &a.user, a.slot).cmp(&(b.tenant, &b.user, b.slot)));
        used.chunks(AT_ONCE).map(|used| Tally { used: used.to_vec(), ..Tally::default() }).collect()
    }
}
