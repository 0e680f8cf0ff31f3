//! Killed in the middle, crowded from all sides: the figures stay right.

mod backup;
mod deletion;
mod exporter;
mod exporting;
mod kill;
mod nodes;
mod outage;
mod parallel;
mod postgres;
pub mod process;
mod rights;
mod rotation;
pub mod soak;
mod stop;
mod store;
mod versions;
mod webhooks;
