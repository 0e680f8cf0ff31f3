//! From records to a [`Subject`]: the user, the org, and what both are
//! entitled to now.

use std::sync::Arc;

use super::charging::{OrgSide, Subject};
use super::profiles::{OrgProfile, Profile};
use super::terms::Terms;
use super::{Catalog, Plan, Registry, ServiceError, Tenant};
use crate::domain::ids::{Name, UserId};
use crate::domain::time::Millis;

/// What is on record of a user and of the org whose limits count.
pub(super) struct Party {
    pub profile: Arc<Profile>,
    org: Option<(Name, Arc<OrgProfile>)>,
}

impl Registry {
    /// A user with the org they belong to now.
    pub(super) async fn party(&self, tenant: &Tenant, user: &UserId) -> Result<Party, ServiceError> {
        let profile = self.profile(tenant, user).await?;
        let org = profile.org().cloned();
        self.party_of(tenant, profile, org).await
    }

    /// A user with the org that a hold began with.
    pub(super) async fn party_of(
        &self,
        tenant: &Tenant,
        profile: Arc<Profile>,
        org: Option<Name>,
    ) -> Result<Party, ServiceError> {
        let org = match org {
            Some(id) => {
                let profile = self.org_profile(tenant, &id).await?;
                Some((id, profile))
            }
            None => None,
        };
        Ok(Party { profile, org })
    }
}

impl Party {
    /// Under which name the account of `user` is; `None`: nobody may call by
    /// the name of an erased user.
    pub fn account_of<'u>(&'u self, user: &'u UserId) -> Option<&'u UserId> {
        match self.profile.alias() {
            None if self.profile.is_erased() => None,
            alias => Some(alias.unwrap_or(user)),
        }
    }

    /// `None`: not on record, and the tenant has no default plan.
    ///
    /// # Errors
    /// `UnknownPlan`.
    pub fn subject<'a>(
        &'a self,
        tenant: &Tenant,
        catalog: &'a Catalog,
        user: &'a UserId,
        now: Millis,
    ) -> Result<Option<Subject<'a>>, ServiceError> {
        let holder = self.profile.holder();
        let Some(plan) = holder.plan.or(catalog.settings.default_plan.as_ref()) else { return Ok(None) };
        let terms = holder.terms(plan, catalog, now)?;
        Ok(Some(self.with_terms(terms, tenant, catalog, user, now)?))
    }

    /// As [`subject`](Self::subject); whoever has no plan (any more) has `none`.
    pub fn subject_or<'a>(
        &'a self,
        none: &'a Plan,
        tenant: &Tenant,
        catalog: &'a Catalog,
        user: &'a UserId,
        now: Millis,
    ) -> Result<Subject<'a>, ServiceError> {
        match self.subject(tenant, catalog, user, now) {
            Ok(Some(subject)) => Ok(subject),
            Ok(None) | Err(ServiceError::UnknownPlan) => {
                self.with_terms(Terms::always(none), tenant, catalog, user, now)
            }
            Err(error) => Err(error),
        }
    }

    /// As if `terms` were the user's.
    pub fn with_terms<'a>(
        &'a self,
        terms: Terms<'a>,
        tenant: &Tenant,
        catalog: &'a Catalog,
        user: &'a UserId,
        now: Millis,
    ) -> Result<Subject<'a>, ServiceError> {
        let org = self.org.as_ref().map(|(id, profile)| profile.side(id, catalog, now)).transpose()?;
        Ok(Subject { tenant: tenant.number, catalog, user, holder: self.profile.holder(), terms, org, now })
    }
}

impl OrgProfile {
    fn side<'a>(
        &'a self,
        id: &'a Name,
        catalog: &'a Catalog,
        now: Millis,
    ) -> Result<OrgSide<'a>, ServiceError> {
        let holder = self.holder();
        let terms = holder.plan.map(|plan| holder.terms(plan, catalog, now)).transpose()?;
        Ok(OrgSide { id, holder, terms })
    }
}
