//! What is handed on to others.

use super::{Answer, FeedPage, FeedQuery, Org};
use crate::domain::charge::TenantRef;
use crate::domain::ids::Name;

/// The part of the ledger that other programs follow.
pub trait Exports: Send + Sync + 'static {
    /// What finished, in the order in which it came on record. Whoever goes on from the
    /// last event of a page misses none and sees none twice, whatever comes meanwhile.
    /// Events go before their holds do.
    fn feed(&self, tenant: TenantRef, query: FeedQuery) -> Answer<'_, FeedPage>;
    /// Orgs by id, after `after`.
    fn orgs(&self, tenant: TenantRef, after: Option<Name>, limit: u32) -> Answer<'_, Vec<Org>>;
}
