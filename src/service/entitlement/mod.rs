//! Who is entitled to what: plans and their versions, users and orgs, and what
//! holds for one of them now.

pub mod calendar;
pub(super) mod erasing;
pub(super) mod figures;
pub mod history;
pub mod making_good;
pub mod moving;
pub mod orgs;
pub mod plans;
pub mod preview;
pub mod profiles;
pub mod rights;
pub(super) mod subject;
pub(super) mod terms;
pub(super) mod touching;
pub mod users;
