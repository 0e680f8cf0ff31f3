//! The feed of usage, for those who hand it on.

use crate::ledger::{FeedPage, FeedQuery};
use crate::service::tenancy::catalog::Tenant;
use crate::service::{Service, ServiceError};

impl Service {
    /// Events that came on record after another one, in their order.
    ///
    /// # Errors
    /// `CursorExpired`: what comes next is not kept any more.
    pub async fn usage_events(&self, tenant: &Tenant, query: FeedQuery) -> Result<FeedPage, ServiceError> {
        match self.ledger.feed(tenant.number, query).await? {
            FeedPage::Gone => Err(ServiceError::CursorExpired),
            page => Ok(page),
        }
    }
}
