//! Which holds are in doubt: the question and its pages.

use crate::domain::hold::Hold;
use crate::domain::ids::{HoldId, Label, Name, UserId};
use crate::domain::time::Millis;

/// What [`Ledger::doubts`](super::Ledger::doubts) looks for.
#[derive(Debug, Clone)]
pub struct DoubtQuery {
    /// Holds in doubt since then or earlier.
    pub now: Millis,
    pub filter: DoubtFilter,
    /// Only what comes after this place.
    pub after: Option<DoubtKey>,
    /// Holds of a page at most; at least 1.
    pub limit: u32,
}

/// What is not given does not matter.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DoubtFilter {
    pub user: Option<UserId>,
    /// As asked for at the check, canonical.
    pub model: Option<Name>,
    pub feature: Option<Label>,
    /// Of the check: `[from, to)`.
    pub from: Option<Millis>,
    pub to: Option<Millis>,
}

/// The place of a hold in doubt among all of them. It stays for as long as the
/// hold is in doubt, and what comes into doubt later comes behind it: so pages
/// have neither gaps nor repetitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DoubtKey {
    pub since: Millis,
    pub hold: HoldId,
}

/// Holds by their [`DoubtKey`].
#[derive(Debug, Default)]
pub struct DoubtPage {
    pub holds: Vec<Hold>,
    /// Where to go on. There may be a place with fewer holds than asked for,
    /// or with none: one call looks at a bounded number of them.
    pub next: Option<DoubtKey>,
}

impl DoubtKey {
    /// Behind all that came into doubt until then.
    pub fn end_of(since: Millis) -> Self {
        Self { since, hold: HoldId(u128::MAX) }
    }

    /// `None`: the hold is finished.
    pub fn of(hold: &Hold) -> Option<Self> {
        Some(Self { since: hold.doubtful_from()?, hold: hold.id })
    }
}

impl DoubtFilter {
    pub fn matches(&self, hold: &Hold) -> bool {
        self.user.as_ref().is_none_or(|user| *user == hold.user)
            && self.model.as_ref().is_none_or(|model| hold.model.as_ref() == Some(model))
            && self.feature.as_ref().is_none_or(|feature| hold.feature.as_ref() == Some(feature))
            && self.from.is_none_or(|from| from <= hold.created_at)
            && self.to.is_none_or(|to| hold.created_at < to)
    }

    /// Whether some of what it asks for is in the holds themselves alone.
    pub(super) fn looks_inside(&self) -> bool {
        self.model.is_some() || self.feature.is_some() || self.from.is_some() || self.to.is_some()
    }
}
