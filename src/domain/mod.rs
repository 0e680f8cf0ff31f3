#![doc = include_str!("README.md")]

pub mod account;
pub mod capacity;
pub mod cell;
pub mod charge;
pub mod condition;
pub mod decision;
pub mod document;
pub mod grant;
pub mod hold;
pub mod ids;
pub mod line;
mod open;
pub mod plan;
pub mod price;
pub mod quantity;
pub mod slot;
pub mod spread;
pub mod step;
pub mod taking;
pub mod time;
pub mod upstream;
pub mod usage;
pub mod webhook;
