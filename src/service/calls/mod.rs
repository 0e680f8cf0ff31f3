//! What a call does: admission, the holds it opens, and their ends.

pub(super) mod accounts;
pub(super) mod admissible;
pub(super) mod admission;
pub(super) mod candidates;
pub(super) mod charging;
pub mod doubt;
pub(super) mod extending;
pub(super) mod finishing;
pub(super) mod shadow;
pub(super) mod slots;
pub(super) mod usage;
