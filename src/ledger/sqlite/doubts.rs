//! Holds in doubt, in the order in which they came into it.

use super::SqliteLedger;
use super::read::{self, Query};
use crate::domain::charge::TenantRef;
use crate::domain::hold::Hold;
use crate::domain::ids::{HoldId, UserId};
use crate::domain::time::Millis;
use crate::ledger::{DoubtKey, DoubtPage, DoubtQuery, LedgerError};

/// One walk through the index of unfinished holds by the time of their doubt:
/// a page costs the rows that it looks at, however many holds are open. Only
/// holds of the same millisecond are sorted.
pub(super) const DOUBTFUL: &str = "SELECT body FROM holds INDEXED BY holds_open_by_time
     WHERE tenant = $1 AND finished_at IS NULL AND doubtful_from >= $2 AND doubtful_from <= $3
     AND (doubtful_from > $2 OR id > $4)
     ORDER BY doubtful_from, id LIMIT $5";

/// A user's unfinished holds are few.
pub(super) const DOUBTFUL_OF_USER: &str = "SELECT body FROM holds INDEXED BY holds_open_by_user
     WHERE tenant = $1 AND finished_at IS NULL AND doubtful_from >= $2 AND doubtful_from <= $3
     AND (doubtful_from > $2 OR id > $4) AND user_id = $6
     ORDER BY doubtful_from, id LIMIT $5";

/// Rows read at once where not all of them will do.
const CHUNK: u32 = 1000;
/// Rows that one call looks at: about 50 ms of work.
const LOOKED_AT_MOST: usize = 10_000;

impl SqliteLedger {
    pub(super) async fn doubtful_page(
        &self,
        tenant: TenantRef,
        query: DoubtQuery,
    ) -> Result<DoubtPage, LedgerError> {
        let chunk = match query.filter.looks_inside() {
            true => CHUNK,
            false => query.limit.saturating_add(1),
        };
        let mut page = DoubtPage::default();
        let mut place = query.after;
        let mut looked_at = 0;
        loop {
            let user = query.filter.user.as_ref();
            let holds = self.doubtful_holds(tenant, user, place, query.now, chunk).await?;
            let found = holds.len();
            for hold in holds {
                let key = DoubtKey::of(&hold);
                if query.filter.matches(&hold) {
                    if page.holds.len() >= query.limit as usize {
                        page.next = place;
                        return Ok(page);
                    }
                    page.holds.push(hold);
                }
                place = key;
            }
            if found < chunk as usize {
                return Ok(page);
            }
            looked_at += found;
            if looked_at >= LOOKED_AT_MOST {
                page.next = place;
                return Ok(page);
            }
        }
    }

    async fn doubtful_holds(
        &self,
        tenant: TenantRef,
        user: Option<&UserId>,
        after: Option<DoubtKey>,
        before: Millis,
        limit: u32,
    ) -> Result<Vec<Hold>, LedgerError> {
        let after = after.unwrap_or(DoubtKey { since: Millis(0), hold: HoldId(0) });
        let query = Query::Doubtful { tenant, user: user.cloned(), after, before, limit };
        // A tail that says otherwise of any of them has the last word.
        let rows = self.whole_rows(|tail| tail.doubts(tenant, after.since, before), &query).await?;
        let holds = read::holds(rows)?;
        let is_overtaken = {
            let tail = self.journal.tail();
            holds.iter().any(|hold| tail.hold(&hold.id.0.to_be_bytes()).is_some())
        };
        match is_overtaken {
            true => read::holds(self.journal.settled_rows(&query).await?),
            false => Ok(holds),
        }
    }
}
