//! The service held against a second, slow one.

mod calendar_tests;
mod changes;
mod family;
mod found;
mod generate;
pub mod oracle;
mod oracle_tests;
mod random;
pub mod rng;
mod second;
mod set_ups;
mod stage;
mod world;
