//! What is handed on to others.

use futures_util::FutureExt;

use super::SqliteLedger;
use crate::domain::charge::TenantRef;
use crate::ledger::sql::feed;
use crate::ledger::sql::read::Query;
use crate::ledger::{Answer, Exports, FeedPage, FeedQuery};

impl Exports for SqliteLedger {
    fn feed(&self, tenant: TenantRef, query: FeedQuery) -> Answer<'_, FeedPage> {
        async move {
            let asked = Query::Feed { tenant, query };
            let rows = self.whole_rows(|tail| tail.has_events(tenant), &asked).await?;
            let found = feed::found(&rows, query)?;
            self.read(move |c| found.with_holds(c, tenant).boxed()).await
        }
        .boxed()
    }
}
