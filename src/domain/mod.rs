#![doc = include_str!("README.md")]

pub mod ids;
pub mod quantity;
pub mod time;
pub mod document;
pub mod plan;
pub mod price;
pub mod capacity;
pub mod cell;
pub mod charge;
pub mod account;
pub mod step;
pub mod hold;
pub mod decision;

#[cfg(test)]
mod cell_tests;
#[cfg(test)]
mod step_tests;
