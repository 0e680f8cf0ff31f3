//! How far the ledger has followed an engine that runs apart from it.
//!
//! Such an engine numbers the changes of a tenant (its *slot*) one after the
//! other. The ledger knows the number up to which it has them. An epoch begins
//! whenever a slot had to be built anew from the ledger: what still comes from
//! the one before is of no use to anybody.

use super::charge::TenantRef;

/// A slot as the ledger knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// 1 or more.
    pub epoch: u64,
    /// The number of the last change on record.
    pub drained: u64,
}

/// A change of a slot, or the last of those that a statement is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    pub tenant: TenantRef,
    pub epoch: u64,
    pub number: u64,
}

impl Position {
    /// Whether the slot on record has come this far, or beyond it in a later
    /// epoch.
    pub fn is_in(&self, slot: Slot) -> bool {
        slot.epoch > self.epoch || (slot.epoch == self.epoch && slot.drained >= self.number)
    }
}

/// Which changes a batch holds: those after `from`, up to `to`. It may come on
/// record only where the ledger stands at `from` of that epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence {
    pub tenant: TenantRef,
    pub epoch: u64,
    pub from: u64,
    pub to: u64,
}
