//! Changes of a user or an org that change what the account runs by: plan,
//! zone, anchor, overrides, grants.
//!
//! The account is brought to now by what held until now, and recorded so,
//! before the change: a bucket that ran with a plan between two calls has
//! refilled by that plan, a window that was running ends as it began, and
//! grants have paid for windows that are over. Whoever was erased and is changed
//! is back (see `erasing`).

use std::sync::Arc;

use smallvec::SmallVec;

use super::moving::{PlanChange, PlanChanged};
use super::orgs::OrgChange;
use super::profiles::{OrgProfile, Profile};
use super::rights::{GrantPost, OverridesPut};
use super::terms::{Holder, Terms};
use super::users::{UserChange, UserPage};
use crate::domain::ids::{Name, RequestId, UserId};
use crate::domain::plan::Scope;
use crate::domain::time::Millis;
use crate::ledger::{Granting, Month, UserQuery, Written};
use crate::service::calls::charging::Charging;
use crate::service::{Service, ServiceError, Tenant, Unrecorded};

/// The month that runs for a user.
struct Running {
    /// `None`: nothing was ever taken by the month.
    month: Option<Month>,
    end: Millis,
}

/// Users moved in one go.
const AT_ONCE: u32 = 500;

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
        let _turn = self.at_home(tenant, id).await?;
        let running = self.touch_user(tenant, id).await?;
        self.registry.put_user(tenant, id, change, running.month, expected, by).await
    }

    /// Moves a user to a plan: now, later, or for a time. Of numbered changes
    /// the highest number wins, in whatever order they come.
    ///
    /// # Errors
    /// `UnknownPlan`; `SequenceRequired` without a number after one with it;
    /// `Invalid` for a trial that ends before it begins.
    pub async fn change_plan(
        &self,
        tenant: &Tenant,
        id: &UserId,
        change: PlanChange,
        by: &str,
    ) -> Result<PlanChanged, ServiceError> {
        let _turn = self.at_home(tenant, id).await?;
        let running = self.touch_user(tenant, id).await?;
        self.registry.change_plan(tenant, id, change, running.end, by).await
    }

    /// Sets and takes away a user's overrides.
    ///
    /// # Errors
    /// `Invalid`, naming each; `ChangedMeanwhile` as for [`put_user`](Self::put_user).
    pub async fn put_overrides(
        &self,
        tenant: &Tenant,
        id: &UserId,
        put: &OverridesPut,
        expected: Option<u32>,
        by: &str,
    ) -> Result<Arc<Profile>, ServiceError> {
        let _turn = self.at_home(tenant, id).await?;
        self.touch_user(tenant, id).await?;
        self.registry.put_overrides(tenant, id, put, expected, by).await
    }

    /// Gives a user an extra amount on a window.
    ///
    /// # Errors
    /// `Invalid`, naming what is wrong; `KeyReused`.
    pub async fn grant(
        &self,
        tenant: &Tenant,
        id: &UserId,
        post: &GrantPost,
        by: &str,
    ) -> Result<Granting, ServiceError> {
        let _turn = self.at_home(tenant, id).await?;
        self.touch_user(tenant, id).await?;
        self.registry.grant(tenant, id, post, by).await
    }

    /// Takes away what a user was given under a key.
    pub(super) async fn take_grant_back(
        &self,
        tenant: &Tenant,
        id: &UserId,
        key: &RequestId,
        written: &Written,
    ) -> Result<(), ServiceError> {
        let _turn = self.at_home(tenant, id).await?;
        self.touch_user(tenant, id).await?;
        self.registry.drop_grant(tenant, id, key, written).await
    }

    /// Changes an org, or puts one on record.
    pub async fn put_org(
        &self,
        tenant: &Tenant,
        id: &Name,
        change: &OrgChange,
        expected: Option<u32>,
        by: &str,
    ) -> Result<Arc<OrgProfile>, ServiceError> {
        self.touch_org(tenant, id).await?;
        self.registry.put_org(tenant, id, change, expected, by).await
    }

    /// As [`put_overrides`](Self::put_overrides).
    pub async fn put_org_overrides(
        &self,
        tenant: &Tenant,
        id: &Name,
        put: &OverridesPut,
        expected: Option<u32>,
        by: &str,
    ) -> Result<Arc<OrgProfile>, ServiceError> {
        self.touch_org(tenant, id).await?;
        self.registry.put_org_overrides(tenant, id, put, expected, by).await
    }

    /// As [`grant`](Self::grant).
    pub async fn grant_org(
        &self,
        tenant: &Tenant,
        id: &Name,
        post: &GrantPost,
        by: &str,
    ) -> Result<Granting, ServiceError> {
        self.touch_org(tenant, id).await?;
        self.registry.grant_org(tenant, id, post, by).await
    }

    /// Users by id, ascending, at most `query.limit` of them. Moves of plan that
    /// have come are put on record first, so that a plan's users are those on
    /// it now.
    pub async fn list_users(&self, tenant: &Tenant, query: UserQuery) -> Result<UserPage, ServiceError> {
        self.record_moves(tenant).await?;
        self.registry.list_users(tenant, query).await
    }

    /// Puts moves of plan that have come on record. Nothing waits for it.
    pub(in crate::service) async fn record_moves(&self, tenant: &Tenant) -> Result<(), ServiceError> {
        loop {
            let users = self.ledger.users_to_move(tenant.number, tenant.now(), AT_ONCE).await?;
            let is_last = users.len() < AT_ONCE as usize;
            for user in users {
                match self.touch_user(tenant, &user.id).await {
                    // On the way to another name: the next round finds them there.
                    Err(ServiceError::Moved) => {}
                    touched => {
                        touched?;
                        self.registry.record_moves(tenant, user).await?;
                    }
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Brings a user's account to now. Returns the month that runs now.
    async fn touch_user(&self, tenant: &Tenant, user: &UserId) -> Result<Running, ServiceError> {
        let now = tenant.now();
        let party = self.party(tenant, user).await?;
        let catalog = tenant.catalog();
        let subject = party.subject_or(&self.no_plan, tenant, &catalog, user, now)?;
        let charging = subject.all_limits(&[Scope::User]);
        self.touch(&charging, now).await?;
        let sheet = &subject.version().sheet;
        let months = match (sheet.month_limit(Scope::User), charging.accounts.first()) {
            (Some(limit), Some(account)) => self.months_on(account.clone(), &[limit.cell()], now).await?,
            _ => SmallVec::new(),
        };
        let month = months.first().and_then(|(_, month)| *month);
        let holder = Holder { months: &months, ..subject.holder };
        Ok(Running { month, end: holder.month_end(sheet, &catalog, now, now) })
    }

    async fn touch_org(&self, tenant: &Tenant, org: &Name) -> Result<(), ServiceError> {
        let now = tenant.now();
        let anybody = UserId::parse("anybody").map_err(|error| ServiceError::Corrupt(error.to_string()))?;
        let party = self.party_of(tenant, &anybody, Arc::default(), Some(org.clone())).await?;
        let catalog = tenant.catalog();
        let subject = party.subject_or(&self.no_plan, tenant, &catalog, &anybody, now)?;
        if subject.source(Scope::Org).own.is_some() {
            return self.touch(&subject.all_limits(&[Scope::Org]), now).await;
        }
        // Callers of any plan may have filled its limits.
        for plan in catalog.plans.values() {
            let subject = party.with_terms(Terms::always(plan), tenant, &catalog, &anybody, now)?;
            self.touch(&subject.all_limits(&[Scope::Org]), now).await?;
        }
        Ok(())
    }

    async fn touch(&self, charging: &Charging<'_>, now: Millis) -> Result<(), ServiceError> {
        let Some(account) = charging.accounts.first() else { return Ok(()) };
        let charges = charging.to_show();
        let ticket = self.apply(now, || self.engine.touch(account, &charges, now)).await?;
        self.recorded(Unrecorded(ticket)).await
    }
}
