//! Why a user was refused: the figures then, the version of the plan then, and who
//! changed what before and since.

use std::sync::Arc;

use crate::domain::ids::{Name, UserId};
use crate::domain::time::Millis;
use crate::ledger::{AuditEntry, AuditQuery, Record, RecordKind, RefusedCall};
use crate::service::tenancy::catalog::Tenant;
use crate::service::{Service, ServiceError};

/// Changes that are told of each kind, before a refusal and since.
const CHANGES: u32 = 5;

/// A refusal with what explains it.
#[derive(Debug)]
pub struct Explained {
    pub call: RefusedCall,
    /// The record of the plan's version that held, while it is known.
    pub version: Option<Arc<Record>>,
    /// What was changed of the user, their org and their plan, newest first.
    pub changed_before: Vec<AuditEntry>,
    /// The same since then, oldest first.
    pub changed_since: Vec<AuditEntry>,
}

impl Service {
    /// A user's refusals, at most `limit` of the last hundred: those nearest to `at`,
    /// else the newest ones first.
    ///
    /// # Errors
    /// `NotFound`: nothing is on record about the user.
    pub async fn explain_refusals(
        &self,
        tenant: &Tenant,
        user: &UserId,
        at: Option<Millis>,
        limit: usize,
    ) -> Result<Vec<Explained>, ServiceError> {
        self.flush_tallies().await?;
        let mut calls = self.ledger.last_refusals(tenant.number, user.clone()).await?;
        let profile = self.registry.profile(tenant, user).await?;
        if calls.is_empty() && !profile.is_known() {
            return Err(ServiceError::NotFound("user"));
        }
        calls.reverse();
        if let Some(at) = at {
            // Whoever names a second means any moment in it.
            calls.sort_by_key(|call| match call.at.0 - at.0 {
                0..1_000 => 0,
                away => away.unsigned_abs(),
            });
        }
        calls.truncate(limit);
        let org = profile.org().cloned();
        let mut explained = Vec::with_capacity(calls.len());
        for call in calls {
            explained.push(self.explain(tenant, user, org.as_ref(), call).await?);
        }
        Ok(explained)
    }

    async fn explain(
        &self,
        tenant: &Tenant,
        user: &UserId,
        org: Option<&Name>,
        call: RefusedCall,
    ) -> Result<Explained, ServiceError> {
        let held = call.grounds.as_ref().and_then(|grounds| grounds.plan.clone());
        let version = match &held {
            Some((plan, version)) => self.plan_record(tenant, plan, *version).await?,
            None => None,
        };
        let mut targets = vec![("user.", user.as_str())];
        targets.extend(held.as_ref().map(|(plan, _)| ("plan.", plan.as_str())));
        targets.extend(org.map(|org| ("org.", org.as_str())));
        let (mut changed_before, mut changed_since) = (Vec::new(), Vec::new());
        let after = call.at.plus_ms(1);
        for (action, target) in targets {
            let of = |entry: &AuditEntry| entry.action.starts_with(action);
            let before = self.changes_of(tenant, target, None, Some(after)).await?;
            let since = self.changes_of(tenant, target, Some(after), None).await?;
            changed_before.extend(before.into_iter().filter(of));
            changed_since.extend(since.into_iter().filter(of));
        }
        changed_before.sort_by_key(|entry| std::cmp::Reverse(entry.number));
        changed_since.sort_by_key(|entry| entry.number);
        Ok(Explained { call, version, changed_before, changed_since })
    }

    async fn plan_record(
        &self,
        tenant: &Tenant,
        plan: &Name,
        version: u32,
    ) -> Result<Option<Arc<Record>>, ServiceError> {
        let (kind, id) = (RecordKind::Plan, plan.as_str().to_owned());
        let records = self.ledger.versions(Some(tenant.number), kind, id).await?;
        Ok(records.into_iter().find(|record| record.version == version).map(Arc::new))
    }

    async fn changes_of(
        &self,
        tenant: &Tenant,
        target: &str,
        from: Option<Millis>,
        to: Option<Millis>,
    ) -> Result<Vec<AuditEntry>, ServiceError> {
        let query =
            AuditQuery { from, to, target: Some(target.to_owned()), limit: CHANGES, ..AuditQuery::default() };
        Ok(self.ledger.audit(tenant.number, query).await?)
    }
}
