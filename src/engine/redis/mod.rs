#![doc = include_str!("README.md")]

mod address;
mod answers;
mod asking;
mod bytes;
mod calls;
mod channel;
mod checks;
mod connection;
mod draining;
mod engine;
mod error;
mod keeper;
mod keys;
mod line;
mod map;
mod reading;
mod record;
mod renaming;
mod script;
mod scripts;
mod slots;
mod state;
mod steps;
mod subscription;
mod taking;
mod topology;

#[cfg(test)]
mod twin_tests;

pub use channel::RedisChannel;
pub use checks::{Finding, Severity};
pub use connection::Generation;
pub use engine::{Options, RedisEngine};
pub use error::RedisError;
pub use map::{HashSlot, slot_of};
pub use script::Script;
pub use state::{inspect, inspect_account};
pub use subscription::{Heard, Subscription};
pub use topology::Redis;
