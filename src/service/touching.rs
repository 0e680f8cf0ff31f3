//! Changes of a user that change what the account runs by: plan, zone, anchor.
//!
//! The account is brought to now by what held until now, and recorded so,
//! before the change: a bucket that ran with a plan between two calls has
//! refilled by that plan, and a window that was running ends as it began.

use std::sync::Arc;

use super::charging::Subject;
use super::users::{PlanChange, PlanChanged, Profile, UserChange};
use super::{Service, ServiceError, Tenant, Unrecorded};
use crate::domain::charge::Charge;
use crate::domain::ids::UserId;
use crate::domain::plan::Scope;

impl Service {
    /// Changes a user, or puts one on record; a plan acts now.
    ///
    /// # Errors
    /// `UnknownPlan`; `SequenceRequired` when the last change of plan was
    /// numbered; `ChangedMeanwhile` when the user is not at version `expected`;
    /// `Invalid` when a new user has no plan and the tenant no default one.
    pub async fn put_user(
        &self,
        tenant: &Tenant,
        id: &UserId,
        change: UserChange,
        expected: Option<u32>,
        by: &str,
    ) -> Result<Arc<Profile>, ServiceError> {
        self.touch(tenant, id).await?;
        self.registry.put_user(tenant, id, change, expected, by).await
    }

    /// Moves a user to a plan, now. Of numbered changes the highest number
    /// wins, in whatever order they come.
    ///
    /// # Errors
    /// `UnknownPlan`; `SequenceRequired` without a number after one with it.
    pub async fn change_plan(
        &self,
        tenant: &Tenant,
        id: &UserId,
        change: PlanChange,
        by: &str,
    ) -> Result<PlanChanged, ServiceError> {
        self.touch(tenant, id).await?;
        self.registry.change_plan(tenant, id, change, by).await
    }

    async fn touch(&self, tenant: &Tenant, user: &UserId) -> Result<(), ServiceError> {
        let now = tenant.now();
        let catalog = tenant.catalog();
        let profile = self.registry.profile(tenant, user).await?;
        let Some(plan) = profile.plan().and_then(|id| catalog.plan(id)) else { return Ok(()) };
        let subject = Subject {
            tenant: tenant.number,
            catalog: &catalog,
            user,
            profile: &profile,
            org: profile.org(),
            plan,
            now,
        };
        let charging = subject.all_limits(&[Scope::User]);
        let unasked = |charge: &Charge| Charge { asked: false, ..charge.clone() };
        let charges: Vec<Charge> = charging.charges.iter().map(unasked).collect();
        let ticket = self.apply(now, || self.engine.touch(&charging.accounts[0], &charges, now)).await?;
        self.recorded(Unrecorded(ticket)).await
    }
}
