//! Two nodes that decide by one Redis and remember in one Postgres, and what goes wrong around
//! them: whatever dies, stands still, forgets or lags, each figure is the sum of the holds that
//! callers can find, and nothing that was answered and is on record is ever lost.
//!
//! `pair` starts the nodes as processes, `load` lets callers work with both, `truth` compares
//! every figure there is afterwards. Each test prints a line of a table (`--nocapture`).

mod clocks;
mod cluster;
mod commands;
mod engine;
mod failover;
mod ledger;
mod load;
mod pair;
mod parallel;
mod processes;
mod truth;

pub use load::Load;
pub use pair::Pair;
pub use truth::{Loss, check, eventually, every_key_ends};
