//! The way to Redis: which primary has a slot, and a connection to it.
//!
//! One tenant is one slot, so every call goes to one primary. The routing is
//! our own, over the plain connections of the `redis` crate, because its
//! cluster client repeats calls silently and does not tell over which
//! connection an answer came; the engine must know both.

mod address;
mod checks;
mod connection;
mod error;
mod keeper;
mod map;
mod script;
mod subscription;
mod topology;

pub use checks::{Finding, Severity};
pub use connection::Generation;
pub use error::RedisError;
pub use map::{HashSlot, slot_of};
pub use script::Script;
pub use subscription::{Heard, Subscription};
pub use topology::Redis;
