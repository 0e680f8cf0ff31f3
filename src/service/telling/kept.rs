//! All that is kept about a user.

use crate::domain::hold::Hold;
use crate::domain::ids::{HoldId, UserId};
use crate::domain::time::Millis;
use crate::ledger::{AuditEntry, AuditQuery, Edge, HistoryQuery, RefusalCount, RefusedCall, User};
use crate::service::tenancy::catalog::Tenant;
use crate::service::{Service, ServiceError};

/// Rows of the audit at most.
const CHANGES_MAX: u32 = 500;
/// Days for which refusals are counted.
const COUNTED_DAYS: i32 = 400;

/// A part of what is kept about a user.
#[derive(Debug)]
pub struct Kept {
    pub now: Millis,
    pub record: Option<User>,
    pub changed: Vec<AuditEntry>,
    pub refusals: Vec<RefusalCount>,
    pub refused: Vec<RefusedCall>,
    /// By their ids.
    pub holds: Vec<Hold>,
}

impl Service {
    /// All but holds comes with the first page, the one without `after`.
    ///
    /// # Errors
    /// `NotFound`: there is nothing.
    pub async fn kept_of(
        &self,
        tenant: &Tenant,
        user: &UserId,
        after: Option<HoldId>,
        limit: u32,
    ) -> Result<Kept, ServiceError> {
        let (number, now) = (tenant.number, tenant.now());
        let ids = Millis(0)..Millis::OF_LAST_ID;
        let holds = self.ledger.holds_made(number, user.clone(), ids, after, limit).await?;
        let nothing = (None, Vec::new(), Vec::new(), Vec::new());
        let (record, changed, refusals, refused) =
            if after.is_none() { self.kept_beside_holds(tenant, user, now).await? } else { nothing };
        let is_empty = record.is_none() && changed.is_empty() && refusals.is_empty() && refused.is_empty();
        match after.is_none() && is_empty && holds.is_empty() {
            true => Err(ServiceError::NotFound("user")),
            false => Ok(Kept { now, record, changed, refusals, refused, holds }),
        }
    }

    async fn kept_beside_holds(
        &self,
        tenant: &Tenant,
        user: &UserId,
        now: Millis,
    ) -> Result<(Option<User>, Vec<AuditEntry>, Vec<RefusalCount>, Vec<RefusedCall>), ServiceError> {
        self.flush_tallies().await?;
        let number = tenant.number;
        let target = Some(user.as_str().to_owned());
        let query = AuditQuery { target, limit: CHANGES_MAX, ..AuditQuery::default() };
        let mut changed = self.ledger.audit(number, query).await?;
        // A plan may have the same name.
        changed.retain(|entry| entry.action.starts_with("user."));
        let today = tenant.catalog().settings.zone.local_day(now);
        let days = today - COUNTED_DAYS..today + 1;
        let refusals = self.ledger.refusals(number, user.clone(), days).await?;
        let edge = Edge { at: now.plus_ms(1), id: 0 };
        let query = HistoryQuery {
            user: user.clone(),
            from: now,
            now,
            made: edge,
            ended: edge,
            doubtful: edge,
            changed: edge,
            limit: 1,
        };
        let refused = self.ledger.history(number, query).await?.refused;
        let record = self.ledger.user(number, user.clone()).await?;
        Ok((record, changed, refusals, refused.into_iter().map(|(_, call)| call).collect()))
    }
}
