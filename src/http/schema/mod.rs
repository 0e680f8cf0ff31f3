//! Shapes of bodies, for the API description only. Bodies are read field by
//! field (so that every fault is told), and these types say what may be there.
#![expect(dead_code, reason = "described, never built")]

mod admin;
mod calls;
mod catalog;
mod doubts;
mod events;
mod make_goods;
mod movers;
mod own_use;
mod preview;
mod records;
mod rights;
mod tuning;
mod webhooks;

pub use admin::*;
pub use calls::*;
pub use catalog::*;
pub use doubts::*;
pub use events::*;
pub use make_goods::*;
pub use movers::*;
pub use own_use::*;
pub use preview::*;
pub use records::*;
pub use rights::*;
pub use tuning::*;
pub use webhooks::*;
