//! From records to a [`Subject`]: the user, the org, and what both are
//! entitled to now.

use std::sync::Arc;

use smallvec::SmallVec;

use super::profiles::{OrgProfile, Profile};
use super::terms::{CellMonth, Holder, Terms};
use crate::domain::cell::Standing;
use crate::domain::charge::{AccountKey, CellId, Charge, Demand, Figures, MeterCode, Span};
use crate::domain::ids::{Name, UserId};
use crate::domain::plan::Enforce;
use crate::domain::time::Millis;
use crate::ledger::Month;
use crate::service::calls::charging::{OrgSide, Subject};
use crate::service::{Catalog, Plan, Service, ServiceError, Tenant};

/// None for nearly all: see [`Holder::awaited`].
type Months = SmallVec<[CellMonth; 1]>;

/// What is on record of a user and of the org whose limits count.
pub(in crate::service) struct Party {
    pub profile: Arc<Profile>,
    months: Months,
    org: Option<OrgParty>,
}

struct OrgParty {
    id: Name,
    profile: Arc<OrgProfile>,
    months: Months,
}

impl Service {
    /// A user with the org they belong to now.
    pub(in crate::service) async fn party(
        &self,
        tenant: &Tenant,
        user: &UserId,
    ) -> Result<Party, ServiceError> {
        let profile = self.registry.profile(tenant, user).await?;
        let org = profile.org().cloned();
        self.party_of(tenant, user, profile, org).await
    }

    /// A user with the org that a hold began with. The catalog is to be asked
    /// for after it: it has every plan that their records name.
    pub(in crate::service) async fn party_of(
        &self,
        tenant: &Tenant,
        user: &UserId,
        profile: Arc<Profile>,
        org: Option<Name>,
    ) -> Result<Party, ServiceError> {
        self.registry.know_plans(tenant, profile.holder().plans()).await?;
        let account = profile.alias().unwrap_or(user);
        let months = self.months(tenant, &profile.holder(), || account.shared()).await?;
        let org = match org {
            Some(id) => {
                let profile = self.registry.org_profile(tenant, &id).await?;
                self.registry.know_plans(tenant, profile.holder().plans()).await?;
                let months = self.months(tenant, &profile.holder(), || id.shared()).await?;
                Some(OrgParty { id, profile, months })
            }
            None => None,
        };
        Ok(Party { profile, months, org })
    }

    /// The same, asking no account what month runs: months are told by the rules
    /// alone. For whoever is on the way to the ledger, for which accounts wait.
    pub(in crate::service) async fn party_by_rules(
        &self,
        tenant: &Tenant,
        profile: Arc<Profile>,
        org: Option<Name>,
    ) -> Result<Party, ServiceError> {
        self.registry.know_plans(tenant, profile.holder().plans()).await?;
        let org = match org {
            Some(id) => {
                let profile = self.registry.org_profile(tenant, &id).await?;
                self.registry.know_plans(tenant, profile.holder().plans()).await?;
                Some(OrgParty { id, profile, months: Months::new() })
            }
            None => None,
        };
        Ok(Party { profile, months: Months::new(), org })
    }

    /// The months that versions wait for, as the account has them.
    async fn months(
        &self,
        tenant: &Tenant,
        holder: &Holder<'_>,
        owner: impl Fn() -> Arc<str>,
    ) -> Result<Months, ServiceError> {
        let now = tenant.now();
        let cells: SmallVec<[CellId; 1]> = holder.awaited(&tenant.catalog(), now).collect();
        if cells.is_empty() {
            return Ok(Months::new());
        }
        let account = AccountKey { tenant: tenant.number, scope: holder.scope, owner: owner() };
        self.months_on(account, &cells, now).await
    }

    /// The windows that cells are in, each as it was when somebody last called.
    pub(super) async fn months_on(
        &self,
        account: AccountKey,
        cells: &[CellId],
        now: Millis,
    ) -> Result<Months, ServiceError> {
        // A span without an end turns no window, and has none of its own to show.
        let figures = Figures::Window { limit: 0, since: now, span: Span::Lifetime };
        let charge = |cell: &CellId| Charge {
            account: 0,
            cell: *cell,
            meter: MeterCode::REQUESTS,
            figures,
            demand: Demand::NONE,
            enforce: Enforce::Shadow,
            asked: false,
            earlier: None,
            grants: None,
            to_come: None,
            switches: false,
            keep: 0,
        };
        let charges: SmallVec<[Charge; 1]> = cells.iter().map(charge).collect();
        let shown = self.standings(&[account], &charges, now).await?;
        let month = |standing| match standing {
            Standing::Window { window: Some((start, end)), .. } => Some(Month { start, end }),
            _ => None,
        };
        Ok(cells.iter().zip(shown).map(|(cell, shown)| (*cell, month(shown.standing))).collect())
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
        let holder = self.holder();
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
        let org = self.org.as_ref().map(|org| org.side(catalog, now)).transpose()?;
        Ok(Subject { tenant: tenant.number, catalog, user, holder: self.holder(), terms, org, now })
    }

    fn holder(&self) -> Holder<'_> {
        Holder { months: &self.months, ..self.profile.holder() }
    }
}

impl OrgParty {
    fn side<'a>(&'a self, catalog: &'a Catalog, now: Millis) -> Result<OrgSide<'a>, ServiceError> {
        let holder = Holder { months: &self.months, ..self.profile.holder() };
        let terms = holder.plan.map(|plan| holder.terms(plan, catalog, now)).transpose()?;
        Ok(OrgSide { id: &self.id, holder, terms })
    }
}
