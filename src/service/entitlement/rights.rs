//! Overrides and grants, of users and of orgs alike: numbers in place of the
//! plan's, and extra amounts on windows.

use std::sync::Arc;

use crate::domain::document::{Fault, Node, Reader};
use crate::domain::grant::Grant;
use crate::domain::ids::{Label, Name, RequestId, UserId};
use crate::domain::plan::{Limit, Override, Rule, Scope};
use crate::domain::quantity::MAX_AMOUNT;
use crate::domain::time::Millis;
use crate::ledger::{Granting, Org, Overridden, Rights, User, Written};

use super::profiles::{OrgProfile, Profile};
use super::users::Outcome;
use crate::service::error::ServiceError;
use crate::service::tenancy::catalog::{Catalog, Tenant};
use crate::service::tenancy::reason::required_reason;
use crate::service::tenancy::registry::Registry;

/// Overrides of one holder, at most.
const OVERRIDES_MAX: usize = 64;
/// Grants of one holder that are not over, at most.
const GRANTS_MAX: usize = 256;

/// What `PUT .../overrides` asks for.
#[derive(Debug, Clone)]
pub struct OverridesPut {
    /// `None` takes the override away.
    overrides: Vec<(Label, Option<Override>)>,
    expires_at: Option<Millis>,
    reason: String,
}

impl OverridesPut {
    /// Reads `{"overrides":{"tokens_per_month":{"limit":500},"concurrency":null},
    /// "expires_at","reason"}`.
    pub fn read(node: &Node<'_>) -> Result<Self, Vec<Fault>> {
        node.read(|fields| {
            let overrides = fields.required("overrides").table(read_overrides);
            let expires_at = fields.optional("expires_at").parsed(Millis::parse);
            let reason = required_reason(fields);
            Some(Self { overrides: overrides?, expires_at, reason: reason? })
        })
    }

    /// Puts the overrides into a record. `limits` are those that the holder
    /// has, or is to have.
    ///
    /// # Errors
    /// `Invalid`: no such limit, numbers of another kind, too many, or an end
    /// that is no later than now.
    pub(in crate::service) fn apply(
        &self,
        rights: &mut Rights,
        limits: &[&Limit],
        now: Millis,
        by: &str,
    ) -> Result<Outcome<()>, ServiceError> {
        let mut faults = ended(self.expires_at, now);
        for (name, numbers) in &self.overrides {
            let Some(numbers) = numbers else {
                rights.overrides.remove(name);
                continue;
            };
            if let Err(fault) = fits(name, numbers, limits) {
                faults.push(fault);
            }
            let entry = Overridden {
                numbers: *numbers,
                expires_at: self.expires_at,
                set_at: now,
                by: by.to_owned(),
                reason: self.reason.clone(),
            };
            rights.overrides.insert(name.clone(), entry);
        }
        if rights.overrides.len() > OVERRIDES_MAX {
            let message = format!("are too many: at most {OVERRIDES_MAX}");
            faults.push(Fault { pointer: "/overrides".into(), message });
        }
        if faults.is_empty() { Ok(Outcome::Changed(())) } else { Err(ServiceError::Invalid(faults)) }
    }

    pub(super) fn reason(&self) -> Option<String> {
        Some(self.reason.clone())
    }
}

fn read_overrides(fields: &mut Reader<'_, '_>) -> Option<Vec<(Label, Option<Override>)>> {
    let mut overrides = Vec::new();
    for name in fields.names() {
        let label = match Label::parse(name) {
            Ok(label) => label,
            Err(error) => {
                fields.skip(name);
                fields.fault(name, error.to_string());
                continue;
            }
        };
        let numbers = match fields.is_null(name) {
            true => {
                fields.skip(name);
                None
            }
            false => match fields.optional(name).table(Override::read) {
                Some(numbers) => Some(numbers),
                None => continue,
            },
        };
        overrides.push((label, numbers));
    }
    Some(overrides)
}

/// Whether there is a limit of that name that can have the numbers.
fn fits(name: &Label, numbers: &Override, limits: &[&Limit]) -> Result<(), Fault> {
    let pointer = format!("/overrides/{name}");
    let mut wrong = Fault { pointer: pointer.clone(), message: "is the name of no limit here".into() };
    for limit in limits.iter().filter(|limit| limit.name == *name) {
        match numbers.fits(&limit.rule) {
            Ok(()) => return Ok(()),
            Err(misfit) => {
                wrong = Fault { pointer: format!("{pointer}/{}", misfit.field), message: misfit.message };
            }
        }
    }
    Err(wrong)
}

fn ended(expires_at: Option<Millis>, now: Millis) -> Vec<Fault> {
    let is_over = expires_at.is_some_and(|end| end <= now);
    let fault = || Fault { pointer: "/expires_at".into(), message: format!("must be later than now, {now}") };
    is_over.then(fault).into_iter().collect()
}

/// What `POST .../grants` asks for.
#[derive(Debug, Clone)]
pub struct GrantPost {
    limit: Label,
    amount: u64,
    expires_at: Option<Millis>,
    reason: String,
    /// The same one gives once.
    pub key: Option<RequestId>,
}

impl GrantPost {
    pub(in crate::service) fn new(
        limit: Label,
        amount: u64,
        expires_at: Option<Millis>,
        reason: String,
        key: Option<RequestId>,
    ) -> Self {
        Self { limit, amount, expires_at, reason, key }
    }

    pub(in crate::service) fn amount(&self) -> u64 {
        self.amount
    }

    /// Reads `{"limit","amount","expires_at","reason"}`.
    pub fn read(node: &Node<'_>) -> Result<Self, Vec<Fault>> {
        node.read(|fields| {
            let limit = fields.required("limit").parsed(Label::parse);
            let amount = fields.required("amount").number(1..=MAX_AMOUNT);
            let expires_at = fields.optional("expires_at").parsed(Millis::parse);
            let reason = required_reason(fields);
            Some(Self { limit: limit?, amount: amount?, expires_at, reason: reason?, key: None })
        })
    }

    /// A grant given before under the same key.
    ///
    /// # Errors
    /// `KeyReused`: it was another one.
    fn given_before(&self, rights: &Rights) -> Result<Option<Granting>, ServiceError> {
        let Some(key) = &self.key else { return Ok(None) };
        let known = rights.grants.iter().find(|known| known.key.as_ref() == Some(key));
        match known {
            Some(known) if self.is_same(known) => Ok(Some(known.clone())),
            Some(_) => Err(ServiceError::KeyReused),
            None => Ok(None),
        }
    }

    fn is_same(&self, known: &Granting) -> bool {
        (&known.limit, known.grant.amount, known.grant.expires_at)
            == (&self.limit, self.amount, self.expires_at)
    }

    /// Puts the grant into a record; see [`OverridesPut::apply`].
    pub(in crate::service) fn apply(
        &self,
        rights: &mut Rights,
        limits: &[&Limit],
        now: Millis,
        by: &str,
    ) -> Result<Outcome<Granting>, ServiceError> {
        if let Some(given) = self.given_before(rights)? {
            return Ok(Outcome::AsBefore(given));
        }
        let mut faults = ended(self.expires_at, now);
        let is_window =
            |limit: &&&Limit| limit.name == self.limit && matches!(limit.rule, Rule::Window { .. });
        if !limits.iter().any(|limit| is_window(&limit)) {
            let message = "is the name of no window limit here".to_owned();
            faults.push(Fault { pointer: "/limit".into(), message });
        }
        if rights.grants.len() >= GRANTS_MAX {
            let message = format!("is one too many: {GRANTS_MAX} are not over yet");
            faults.push(Fault { pointer: "/limit".into(), message });
        }
        if !faults.is_empty() {
            return Err(ServiceError::Invalid(faults));
        }
        rights.grants_made += 1;
        let grant =
            Grant { id: rights.grants_made, amount: self.amount, given: now, expires_at: self.expires_at };
        let granting = Granting {
            grant,
            limit: self.limit.clone(),
            by: by.to_owned(),
            reason: self.reason.clone(),
            key: self.key.clone(),
        };
        rights.grants.push(granting.clone());
        Ok(Outcome::Changed(granting))
    }

    pub(super) fn reason(&self) -> Option<String> {
        Some(self.reason.clone())
    }
}

impl Registry {
    pub(in crate::service) async fn put_overrides(
        &self,
        tenant: &Tenant,
        id: &UserId,
        put: &OverridesPut,
        expected: Option<u32>,
        by: &str,
    ) -> Result<Arc<Profile>, ServiceError> {
        let catalog = tenant.catalog();
        let change = |user: &mut User| {
            let limits = limits_of_user(&catalog, user, tenant.now());
            put.apply(user.rights.get_or_insert_default(), &limits, tenant.now(), by)
        };
        let (profile, ()) = self.change_user(tenant, (id, None), expected, by, put.reason(), change).await?;
        Ok(profile)
    }

    pub(super) async fn grant(
        &self,
        tenant: &Tenant,
        id: &UserId,
        post: &GrantPost,
        by: &str,
    ) -> Result<Granting, ServiceError> {
        let catalog = tenant.catalog();
        let change = |user: &mut User| {
            let limits = limits_of_user(&catalog, user, tenant.now());
            post.apply(user.rights.get_or_insert_default(), &limits, tenant.now(), by)
        };
        let (_, granting) = self.change_user(tenant, (id, None), None, by, post.reason(), change).await?;
        Ok(granting)
    }

    /// Puts a grant into a record that is to be written with others: the next version
    /// of it. What is over stays in it, since nobody has brought the account to now.
    pub(super) fn add_grant(
        &self,
        tenant: &Tenant,
        user: &mut User,
        post: &GrantPost,
        by: &str,
    ) -> Result<Outcome<Granting>, ServiceError> {
        let catalog = tenant.catalog();
        let limits = limits_of_user(&catalog, user, tenant.now());
        let outcome = post.apply(user.rights.get_or_insert_default(), &limits, tenant.now(), by)?;
        user.version += 1;
        Ok(outcome)
    }

    /// Takes away the grant that was given under a key.
    pub(super) async fn drop_grant(
        &self,
        tenant: &Tenant,
        id: &UserId,
        key: &RequestId,
        written: &Written,
    ) -> Result<(), ServiceError> {
        let change = |user: &mut User| {
            let grants = user.rights.as_mut().map(|rights| &mut rights.grants);
            let Some(grants) = grants else { return Ok(Outcome::AsBefore(())) };
            let before = grants.len();
            grants.retain(|grant| grant.key.as_ref() != Some(key));
            Ok(if grants.len() < before { Outcome::Changed(()) } else { Outcome::AsBefore(()) })
        };
        self.change_user(tenant, (id, None), None, &written.by, written.reason.clone(), change)
            .await
            .map(drop)
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
            let limits = limits_of_org(&catalog, org.plan.as_ref(), tenant.now());
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
        let catalog = tenant.catalog();
        let change = |org: &mut Org| {
            let limits = limits_of_org(&catalog, org.plan.as_ref(), tenant.now());
            post.apply(org.rights.get_or_insert_default(), &limits, tenant.now(), by)
        };
        let (_, granting) = self.change_org(tenant, id, None, by, post.reason(), change).await?;
        Ok(granting)
    }
}

/// The limits that a user has, or is to have.
fn limits_of_user<'c>(catalog: &'c Catalog, user: &User, now: Millis) -> Vec<&'c Limit> {
    let to_come = user.rights.iter().flat_map(|rights| &rights.schedule).map(|to_come| &to_come.plan);
    let plans = std::iter::once(&user.plan).chain(to_come);
    let versions = plans.filter_map(|plan| catalog.plan(plan)).flat_map(|plan| plan.live_at(now));
    versions.flat_map(|version| &version.sheet.limits).filter(|limit| limit.scope == Scope::User).collect()
}

/// The limits that an org has: of its own sheet, else of any caller's.
fn limits_of_org<'c>(catalog: &'c Catalog, plan: Option<&Name>, now: Millis) -> Vec<&'c Limit> {
    let plans = catalog.plans.values().filter(|known| plan.is_none_or(|plan| known.id == *plan));
    let versions = plans.flat_map(|plan| plan.live_at(now));
    versions.flat_map(|version| &version.sheet.limits).filter(|limit| limit.scope == Scope::Org).collect()
}
