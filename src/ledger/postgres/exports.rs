//! What is handed on to others.

use futures_util::FutureExt;
use sqlx::postgres::PgConnection;

use super::PostgresLedger;
use crate::domain::charge::TenantRef;
use crate::domain::ids::Name;
use crate::ledger::sql::read::Query;
use crate::ledger::sql::{feed, orgs};
use crate::ledger::{Answer, Exports, FeedPage, FeedQuery, Org};

impl Exports for PostgresLedger {
    fn feed(&self, tenant: TenantRef, query: FeedQuery) -> Answer<'_, FeedPage> {
        read!(self, |c| async {
            let rows = Query::Feed { tenant, query }.rows(c).await?;
            feed::found(&rows, query)?.with_holds(c, tenant).await
        })
    }

    fn orgs(&self, tenant: TenantRef, after: Option<Name>, limit: u32) -> Answer<'_, Vec<Org>> {
        read!(self, |c| orgs::page(c, tenant, after.as_ref(), limit))
    }
}
