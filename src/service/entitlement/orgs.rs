//! Orgs: users who share limits, and what is on record of them.

use std::sync::Arc;

use crate::domain::document::{Fault, Node};
use crate::domain::ids::Name;
use crate::domain::time::Zone;
use crate::ledger::{LedgerError, Org, Write, Written};

use super::moving::{drop_empty, drop_ended};
use super::profiles::OrgProfile;
use super::users::{Outcome, Patch, TRIES};
use crate::service::error::ServiceError;
use crate::service::tenancy::catalog::Tenant;
use crate::service::tenancy::reason::required_reason;
use crate::service::tenancy::registry::Registry;

/// What `PUT orgs/{org}` changes; what is missing stays.
#[derive(Debug, Clone)]
pub struct OrgChange {
    plan: Patch<Name>,
    zone: Patch<String>,
    reason: String,
}

impl OrgChange {
    /// Reads `{"plan","zone","reason"}`; `null` takes away.
    pub fn read(node: &Node<'_>) -> Result<Self, Vec<Fault>> {
        node.read(|fields| {
            let plan = Patch::read(fields, "plan", |r| r.optional("plan").parsed(Name::parse));
            let zone = Patch::read(fields, "zone", |r| {
                r.optional("zone").parsed(Zone::parse).map(|zone| zone.name().to_owned())
            });
            Some(Self { plan, zone, reason: required_reason(fields)? })
        })
    }
}

impl Registry {
    /// An org on record.
    pub async fn org(&self, tenant: &Tenant, id: &Name) -> Result<Arc<OrgProfile>, ServiceError> {
        let profile = self.org_profile(tenant, id).await?;
        if profile.org().is_some() { Ok(profile) } else { Err(ServiceError::NotFound("org")) }
    }

    /// The record's part of [`Service::put_org`](crate::service::Service::put_org).
    pub(in crate::service) async fn put_org(
        &self,
        tenant: &Tenant,
        id: &Name,
        change: &OrgChange,
        expected: Option<u32>,
        by: &str,
    ) -> Result<Arc<OrgProfile>, ServiceError> {
        if let Patch::Set(plan) = &change.plan {
            self.check_plan(tenant, Some(plan))?;
        }
        let reason = Some(change.reason.clone());
        let (profile, ()) = self
            .change_org(tenant, id, expected, by, reason, |org| {
                let before = org.plan.clone();
                change.plan.clone().apply(&mut org.plan);
                change.zone.clone().apply(&mut org.zone);
                if org.plan != before {
                    org.plan_since = tenant.now();
                }
                Ok(Outcome::Changed(()))
            })
            .await?;
        Ok(profile)
    }

    /// Reads, changes and writes an org until nobody came in between.
    pub(super) async fn change_org<T>(
        &self,
        tenant: &Tenant,
        id: &Name,
        expected: Option<u32>,
        by: &str,
        reason: Option<String>,
        change: impl Fn(&mut Org) -> Result<Outcome<T>, ServiceError>,
    ) -> Result<(Arc<OrgProfile>, T), ServiceError> {
        for _ in 0..TRIES {
            let now = tenant.now();
            let stored = self.ledger.org(tenant.number, id.clone()).await?;
            let version = stored.as_ref().map_or(0, |org| org.version);
            if expected.is_some_and(|expected| expected != version) {
                return Err(ServiceError::ChangedMeanwhile);
            }
            let mut org = stored.unwrap_or_else(|| new_org(id, now));
            let plan_before = org.plan.clone();
            if let Some(rights) = &mut org.rights {
                drop_ended(rights, now);
            }
            let told = match change(&mut org)? {
                Outcome::Changed(told) => told,
                // What is at hand may be older than what was read here.
                Outcome::AsBefore(told) => return Ok((Arc::new(OrgProfile::of(org)), told)),
            };
            drop_empty(&mut org.rights);
            org.version += 1;
            let written = Written { at: now, by: by.to_owned(), reason: reason.clone() };
            let messages = self.told_of_org(tenant, plan_before.as_ref(), &org, &written);
            let result = self.write_told(tenant, Write::Org(Box::new(org), written), messages).await;
            self.forget_org(tenant.number, id);
            self.watchers.org_changed(tenant.number, id);
            match result {
                Ok(()) => return Ok((self.org(tenant, id).await?, told)),
                Err(LedgerError::Conflict) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(ServiceError::ChangedMeanwhile)
    }
}

fn new_org(id: &Name, now: crate::domain::time::Millis) -> Org {
    Org {
        id: id.clone(),
        plan: None,
        plan_since: now,
        zone: None,
        rights: None,
        created_at: now,
        // After all that is on record; the ledger fills it in.
        born: u64::MAX,
        moved: u64::MAX,
        version: 0,
    }
}
