//! What every back end must do: one list of behaviours, run against each.

pub mod engine;
pub mod ledger;
