//! Whether limits are asked, and what becomes of a call that does not fit.

use super::time::Millis;

/// Whether the limits may refuse what is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taking {
    /// What does not fit is refused, and nothing is taken.
    Enforced,
    /// What does not fit is told and taken in full all the same, so that the
    /// figures stay true.
    Shadowed,
    /// It has happened already: nobody is asked, and it is taken from the
    /// windows of this instant.
    Happened(Millis),
}

impl Taking {
    /// Whether the limits are asked at all.
    pub fn asks(self) -> bool {
        !matches!(self, Self::Happened(_))
    }
}
