//! What is handed on to others.

use futures_util::FutureExt;

use super::SqliteLedger;
use crate::domain::charge::TenantRef;
use crate::domain::ids::Name;
use crate::ledger::sql::read::Query;
use crate::ledger::sql::{feed, orgs};
use crate::ledger::{Answer, Exports, FeedPage, FeedQuery, Org};

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

    fn orgs(&self, tenant: TenantRef, after: Option<Name>, limit: u32) -> Answer<'_, Vec<Org>> {
        self.read(move |c| async move { orgs::page(c, tenant, after.as_ref(), limit).await }.boxed()).boxed()
    }
}
