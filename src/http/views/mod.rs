//! The shapes that several replies share: holds, limits, amounts.
//!
//! They borrow from the domain and are written straight into the body; nothing
//! is built in between.

mod hold;
mod limits;
pub mod rights;

pub use hold::{AmountsView, FinishedView, HoldReply, HoldView};
pub use limits::{
    GrantedView, LimitView, PercentView, PlanRef, Rows, WarningView, Warnings, WouldRefuseView,
    is_shown_to_users,
};

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_false(value: &bool) -> bool {
    !*value
}
