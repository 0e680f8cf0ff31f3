//! Unfinished holds: those in doubt in the order in which they came into it, and how many
//! there are.

use super::read::Query;
use super::{Failure, Sql, get, values};
use crate::domain::charge::TenantRef;
use crate::domain::hold::Hold;
use crate::domain::ids::HoldId;
use crate::domain::time::Millis;
use crate::ledger::{DoubtKey, DoubtPage, DoubtQuery, UNFINISHED_MAX};

/// One walk through the index of unfinished holds by the time of their doubt:
/// a page costs the rows that it looks at, however many holds are open. Only
/// holds of the same millisecond are sorted.
pub const DOUBTFUL: &str = "SELECT body FROM holds INDEXED BY holds_open_by_time
     WHERE tenant = $1 AND finished_at IS NULL AND doubtful_from >= $2 AND doubtful_from <= $3
     AND (doubtful_from > $2 OR id > $4)
     ORDER BY doubtful_from, id LIMIT $5";

/// A user's unfinished holds are few.
pub const DOUBTFUL_OF_USER: &str = "SELECT body FROM holds INDEXED BY holds_open_by_user
     WHERE tenant = $1 AND finished_at IS NULL AND doubtful_from >= $2 AND doubtful_from <= $3
     AND (doubtful_from > $2 OR id > $4) AND user_id = $6
     ORDER BY doubtful_from, id LIMIT $5";

/// The index alone is read, and no further than the bound.
const UNFINISHED: &str = "SELECT
     (SELECT COUNT(*) FROM (SELECT 1 FROM holds INDEXED BY holds_open_by_time
         WHERE tenant = $1 AND finished_at IS NULL AND doubtful_from > $2 LIMIT $3) AS open_ones),
     (SELECT COUNT(*) FROM (SELECT 1 FROM holds INDEXED BY holds_open_by_time
         WHERE tenant = $1 AND finished_at IS NULL AND doubtful_from <= $2 LIMIT $3) AS doubtful_ones)";

/// Those whose leases run, and those in doubt.
pub async fn unfinished(
    connection: &mut impl Sql,
    tenant: TenantRef,
    now: Millis,
) -> Result<[u64; 2], Failure> {
    let rows = connection.rows(UNFINISHED, values![tenant.0, now.0, UNFINISHED_MAX]).await?;
    let Some(row) = rows.first() else { return Ok([0; 2]) };
    Ok([get::<i64>(row, 0)?.cast_unsigned(), get::<i64>(row, 1)?.cast_unsigned()])
}

/// Rows read at once where not all of them will do.
const CHUNK: u32 = 1000;
/// Rows that one call looks at: about 50 ms of work.
const LOOKED_AT_MOST: usize = 10_000;

/// A page while it fills, from one question to the next.
pub struct Walk {
    tenant: TenantRef,
    query: DoubtQuery,
    place: Option<DoubtKey>,
    chunk: u32,
    looked_at: usize,
    page: DoubtPage,
}

impl Walk {
    pub fn new(tenant: TenantRef, query: DoubtQuery) -> Self {
        let chunk = match query.filter.looks_inside() {
            true => CHUNK,
            false => query.limit.saturating_add(1),
        };
        let (place, page) = (query.after, DoubtPage::default());
        Self { tenant, query, place, chunk, looked_at: 0, page }
    }

    /// From where on holds are asked for next.
    pub fn after(&self) -> DoubtKey {
        self.place.unwrap_or(DoubtKey { since: Millis(0), hold: HoldId(0) })
    }

    pub fn question(&self) -> Query {
        Query::Doubtful {
            tenant: self.tenant,
            user: self.query.filter.user.clone(),
            after: self.after(),
            before: self.query.now,
            limit: self.chunk,
        }
    }

    /// Takes what the question found. `Some`: that makes the page.
    pub fn take(&mut self, holds: Vec<Hold>) -> Option<DoubtPage> {
        let found = holds.len();
        for hold in holds {
            let key = DoubtKey::of(&hold);
            if self.query.filter.matches(&hold) {
                if self.page.holds.len() >= self.query.limit as usize {
                    return Some(self.page_up_to_here());
                }
                self.page.holds.push(hold);
            }
            self.place = key;
        }
        self.looked_at += found;
        if found < self.chunk as usize {
            return Some(std::mem::take(&mut self.page));
        }
        (self.looked_at >= LOOKED_AT_MOST).then(|| self.page_up_to_here())
    }

    fn page_up_to_here(&mut self) -> DoubtPage {
        self.page.next = self.place;
        std::mem::take(&mut self.page)
    }
}
