//! The real service on a free port, and a client with one method for each endpoint.

mod away;
pub mod behind;
mod client;
pub mod collector;
pub mod compare;
pub mod events;
pub mod lasting;
mod office;
mod pair;
pub mod postgres;
pub mod proxy;
pub mod receiver;
pub mod redis;
mod reply;
mod server;
pub mod sheets;
pub mod signer;
pub mod stores;
mod tenant;
pub mod vectors;
pub mod vendor;

pub use away::Away;
pub use client::{Client, percent};
pub use events::Events;
pub use pair::Pair;
pub use receiver::Receiver;
pub use reply::{Reply, row};
pub use server::{Server, binary, cli, number_from_env};
pub use tenant::Tenant;
