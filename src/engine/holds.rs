//! The holds of an account by their ids, which stand in the holds themselves: with a copy of
//! each id beside it a table would take four times as much, and most accounts with a call at
//! work have one hold.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use super::entry::AsIs;
use crate::domain::hold::Hold;
use crate::domain::ids::HoldId;

/// See the module's text.
#[derive(Default)]
pub(super) struct Holds(HashSet<ById, BuildHasherDefault<AsIs>>);

/// Equal to whatever has its id.
struct ById(Arc<Hold>);

impl Borrow<HoldId> for ById {
    fn borrow(&self) -> &HoldId {
        &self.0.id
    }
}

impl Hash for ById {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.id.hash(state);
    }
}

impl PartialEq for ById {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for ById {}

impl Holds {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, id: HoldId) -> bool {
        self.0.contains(&id)
    }

    pub fn get(&self, id: HoldId) -> Option<&Arc<Hold>> {
        self.0.get(&id).map(|hold| &hold.0)
    }

    /// Puts a hold in the place of what it was before.
    pub fn put(&mut self, hold: Arc<Hold>) {
        self.0.replace(ById(hold));
    }

    /// Where nothing is left, no table is kept.
    pub fn remove(&mut self, id: HoldId) {
        self.0.remove(&id);
        if self.0.is_empty() {
            self.0.shrink_to_fit();
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Hold>> {
        self.0.iter().map(|hold| &hold.0)
    }
}

impl FromIterator<Arc<Hold>> for Holds {
    fn from_iter<I: IntoIterator<Item = Arc<Hold>>>(holds: I) -> Self {
        Self(holds.into_iter().map(ById).collect())
    }
}
