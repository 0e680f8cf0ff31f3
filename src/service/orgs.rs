//! Orgs: users who share limits, and what is on record of them.

use std::sync::Arc;

use crate::domain::document::{Fault, Node};
use crate::domain::ids::{Name, UserId};
use crate::domain::plan::{Limit, Scope};
use crate::domain::time::Zone;
use crate::ledger::{Granting, LedgerError, Org, Rights, User, Written};

use super::catalog::{Catalog, Tenant};
use super::error::ServiceError;
use super::moving::{drop_empty, drop_ended, fold};
use super::profiles::{OrgProfile, Profile};
use super::reason::required_reason;
use super::registry::Registry;
use super::rights::{GrantPost, OverridesPut};
use super::users::{Patch, TRIES, new_user};

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

    /// The record's part of [`Service::put_org`](super::Service::put_org).
    pub(super) async fn put_org(
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
                Ok(())
            })
            .await?;
        Ok(profile)
    }

    pub(super) async fn put_org_overrides(
        &self,
        tenant: &Tenant,
        id: &Name,
        put: &OverridesPut,
        expected: Option<u32>,
        by: &str,
    ) -> Result<Arc<OrgProfile>, ServiceError> {
        let catalog = tenant.catalog();
        let change = |org: &mut Org| {
            let limits = limits_of_org(&catalog, org.plan.as_ref());
            put.apply(org.rights.get_or_insert_default(), &limits, tenant.now(), by)
        };
        let (profile, ()) = self.change_org(tenant, id, expected, by, put.reason(), change).await?;
        Ok(profile)
    }

    pub(super) async fn grant_org(
        &self,
        tenant: &Tenant,
        id: &Name,
        post: &GrantPost,
        by: &str,
    ) -> Result<Granting, ServiceError> {
        if let Some(org) = self.ledger.org(tenant.number, id.clone()).await?
            && let Some(given) = given_before(post, org.rights.as_deref())?
        {
            return Ok(given);
        }
        let catalog = tenant.catalog();
        let change = |org: &mut Org| {
            let limits = limits_of_org(&catalog, org.plan.as_ref());
            post.apply(org.rights.get_or_insert_default(), &limits, tenant.now(), by)
        };
        let (_, granting) = self.change_org(tenant, id, None, by, post.reason(), change).await?;
        Ok(granting)
    }

    /// Reads, changes and writes an org until nobody came in between.
    async fn change_org<T>(
        &self,
        tenant: &Tenant,
        id: &Name,
        expected: Option<u32>,
        by: &str,
        reason: Option<String>,
        change: impl Fn(&mut Org) -> Result<T, ServiceError>,
    ) -> Result<(Arc<OrgProfile>, T), ServiceError> {
        for _ in 0..TRIES {
            let now = tenant.now();
            let stored = self.ledger.org(tenant.number, id.clone()).await?;
            let version = stored.as_ref().map_or(0, |org| org.version);
            if expected.is_some_and(|expected| expected != version) {
                return Err(ServiceError::ChangedMeanwhile);
            }
            let mut org = stored.unwrap_or_else(|| new_org(id, now));
            if let Some(rights) = &mut org.rights {
                drop_ended(rights, now);
            }
            let told = change(&mut org)?;
            drop_empty(&mut org.rights);
            org.version += 1;
            let written = Written { at: now, by: by.to_owned(), reason: reason.clone() };
            let result = self.writer.put_org(tenant.number, org, written).await;
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

    pub(super) async fn put_overrides(
        &self,
        tenant: &Tenant,
        id: &UserId,
        put: &OverridesPut,
        expected: Option<u32>,
        by: &str,
    ) -> Result<Arc<Profile>, ServiceError> {
        let catalog = tenant.catalog();
        let change = |user: &mut User| {
            let limits = limits_of_user(&catalog, user);
            put.apply(user.rights.get_or_insert_default(), &limits, tenant.now(), by)
        };
        let (profile, ()) = self.change_user(tenant, id, expected, by, put.reason(), change).await?;
        Ok(profile)
    }

    pub(super) async fn grant(
        &self,
        tenant: &Tenant,
        id: &UserId,
        post: &GrantPost,
        by: &str,
    ) -> Result<Granting, ServiceError> {
        if let Some(user) = self.ledger.user(tenant.number, id.clone()).await?
            && let Some(given) = given_before(post, user.rights.as_deref())?
        {
            return Ok(given);
        }
        let catalog = tenant.catalog();
        let change = |user: &mut User| {
            let limits = limits_of_user(&catalog, user);
            post.apply(user.rights.get_or_insert_default(), &limits, tenant.now(), by)
        };
        let (_, granting) = self.change_user(tenant, id, None, by, post.reason(), change).await?;
        Ok(granting)
    }

    /// Reads, changes and writes a user until nobody came in between.
    async fn change_user<T>(
        &self,
        tenant: &Tenant,
        id: &UserId,
        expected: Option<u32>,
        by: &str,
        reason: Option<String>,
        change: impl Fn(&mut User) -> Result<T, ServiceError>,
    ) -> Result<(Arc<Profile>, T), ServiceError> {
        for _ in 0..TRIES {
            let now = tenant.now();
            let stored = self.ledger.user(tenant.number, id.clone()).await?;
            let version = stored.as_ref().map_or(0, |user| user.version);
            if expected.is_some_and(|expected| expected != version) {
                return Err(ServiceError::ChangedMeanwhile);
            }
            let mut user = match stored {
                Some(user) => user,
                None => new_user(tenant, id, None, now)?,
            };
            fold(&mut user, now);
            let told = change(&mut user)?;
            drop_empty(&mut user.rights);
            if let Some(profile) = self.store_user(tenant, user, now, by, reason.clone()).await? {
                return Ok((profile, told));
            }
        }
        Err(ServiceError::ChangedMeanwhile)
    }
}

fn given_before(post: &GrantPost, rights: Option<&Rights>) -> Result<Option<Granting>, ServiceError> {
    rights.map_or(Ok(None), |rights| post.given_before(rights))
}

/// The limits that a user has, or is to have.
fn limits_of_user<'c>(catalog: &'c Catalog, user: &User) -> Vec<&'c Limit> {
    let to_come = user.rights.iter().flat_map(|rights| &rights.schedule).map(|to_come| &to_come.plan);
    let plans = std::iter::once(&user.plan).chain(to_come);
    let versions = plans.filter_map(|plan| catalog.plan(plan)).flat_map(|plan| plan.versions());
    versions.flat_map(|version| &version.sheet.limits).filter(|limit| limit.scope == Scope::User).collect()
}

/// The limits that an org has: of its own sheet, else of any caller's.
fn limits_of_org<'c>(catalog: &'c Catalog, plan: Option<&Name>) -> Vec<&'c Limit> {
    let plans = catalog.plans.values().filter(|known| plan.is_none_or(|plan| known.id == *plan));
    let versions = plans.flat_map(|plan| plan.versions());
    versions.flat_map(|version| &version.sheet.limits).filter(|limit| limit.scope == Scope::Org).collect()
}

fn new_org(id: &Name, now: crate::domain::time::Millis) -> Org {
    Org {
        id: id.clone(),
        plan: None,
        plan_since: now,
        zone: None,
        rights: None,
        created_at: now,
        born: 0,
        moved: 0,
        version: 0,
    }
}
