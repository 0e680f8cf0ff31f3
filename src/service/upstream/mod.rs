//! What the vendors say and allow: the condition of pools, and what fits them.

pub mod capacity;
pub mod conditions;
pub mod feedback;
pub(super) mod pausing;
mod ramping;
