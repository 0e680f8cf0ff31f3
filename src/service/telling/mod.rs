//! What is told of it all: rows, records, tallies, and those who listen.

pub(super) mod actives;
pub(super) mod activity;
pub mod by_plan;
pub mod consumers;
pub(super) mod events;
pub(super) mod kept;
pub mod looking;
pub mod movers;
pub mod own_use;
pub(super) mod quota;
pub mod records;
pub mod refusals;
pub mod tallies;
pub mod tuning;
pub(super) mod watch;
pub mod watchers;
