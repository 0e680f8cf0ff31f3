//! Holds in doubt: the tables, and what the tail knows better.

use super::SqliteLedger;
use crate::domain::charge::TenantRef;
use crate::domain::hold::Hold;
use crate::ledger::sql::doubts::Walk;
use crate::ledger::sql::read;
use crate::ledger::{DoubtPage, DoubtQuery, LedgerError};

impl SqliteLedger {
    pub(super) async fn doubtful_page(
        &self,
        tenant: TenantRef,
        query: DoubtQuery,
    ) -> Result<DoubtPage, LedgerError> {
        let now = query.now;
        let mut walk = Walk::new(tenant, query);
        loop {
            let question = walk.question();
            let since = walk.after().since;
            // A tail that says otherwise of any of them has the last word.
            let rows = self.whole_rows(|tail| tail.doubts(tenant, since, now), &question).await?;
            let mut holds = read::holds(rows)?;
            if self.is_overtaken(&holds) {
                holds = read::holds(self.journal.settled_rows(&question).await?)?;
            }
            if let Some(page) = walk.take(holds) {
                return Ok(page);
            }
        }
    }

    fn is_overtaken(&self, holds: &[Hold]) -> bool {
        let tail = self.journal.tail();
        holds.iter().any(|hold| tail.hold(&hold.id.0.to_be_bytes()).is_some())
    }
}
