//! What a decision must know of a user and of an org, at hand.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use crate::domain::charge::TenantRef;
use crate::domain::ids::{Name, UserId};
use crate::domain::plan::Scope;
use crate::domain::time::{Millis, Zone};
use crate::ledger::{Org, Rights, User};

use super::plans::{Arrival, Moment, Plan};
use super::terms::{Grants, Holder};
use crate::service::Upcoming;
use crate::service::error::ServiceError;
use crate::service::tenancy::cache::Cache;
use crate::service::tenancy::catalog::Tenant;
use crate::service::tenancy::following::POLL;
use crate::service::tenancy::registry::Registry;

/// Users kept at hand; others are read when they call.
const USERS_MAX: usize = 500_000;
/// What they may take together, in bytes.
const USER_BYTES_MAX: usize = 256 << 20;
const ORGS_MAX: usize = 100_000;
const ORG_BYTES_MAX: usize = 64 << 20;
/// Users kept in mind of whom nothing is on record.
const UNKNOWN_MAX: usize = 65_536;
const UNKNOWN_BYTES_MAX: usize = 16 << 20;
/// For how long: as long as other changes take to arrive at most.
const UNKNOWN_KEPT: Duration = POLL;

static UNKNOWN: LazyLock<Arc<Profile>> = LazyLock::new(Arc::default);
static UNKNOWN_ORG: LazyLock<Arc<OrgProfile>> = LazyLock::new(Arc::default);
static NO_RIGHTS: LazyLock<Rights> = LazyLock::new(Rights::default);

/// What is known of a user. Users who are not on record have a profile too:
/// nothing is known of them.
#[derive(Debug, Default)]
pub struct Profile {
    user: Option<User>,
    zone: Option<Arc<Zone>>,
    grants: Grants,
    /// The user is erased: the name under which the account goes on.
    alias: Option<UserId>,
}

/// What is known of an org; most orgs are names in users' records alone.
#[derive(Debug, Default)]
pub struct OrgProfile {
    org: Option<Org>,
    zone: Option<Arc<Zone>>,
    grants: Grants,
}

/// See [`Profile::entitlement`].
#[derive(Debug)]
pub struct Entitlement {
    /// The plan that holds now, with its version for this user.
    pub plan: (Name, u32),
    /// Moves to come, ascending.
    pub pending: Vec<Upcoming>,
    pub now: Millis,
}

impl Profile {
    pub(super) fn of(user: User) -> Self {
        let zone = zone_of(user.zone.as_deref());
        let grants = grants_of(user.rights.as_deref());
        Self { user: Some(user), zone, grants, alias: None }
    }

    /// Whoever asked for an erased user by the id that they had.
    fn erased(user: User) -> Self {
        let alias = Some(user.id.clone());
        Self { alias, ..Self::of(user) }
    }

    /// The name under which an erased user's account goes on, who was asked for
    /// by the id that they had.
    pub(in crate::service) fn alias(&self) -> Option<&UserId> {
        self.alias.as_ref()
    }

    /// Whether this is the record of an erased user.
    pub fn is_erased(&self) -> bool {
        self.user.as_ref().is_some_and(|user| user.erased)
    }

    /// The user on record.
    pub fn user(&self) -> Option<&User> {
        self.user.as_ref()
    }

    pub fn is_known(&self) -> bool {
        self.user.is_some()
    }

    /// The plan on which the user will be once all moves that are known have
    /// come; `None`: they are not on record.
    pub fn headed_for(&self, tenant: &Tenant) -> Option<Name> {
        self.user.as_ref()?;
        let Entitlement { plan: (plan, _), mut pending, .. } = self.entitlement(tenant);
        Some(pending.pop().map_or(plan, |last| last.plan.0))
    }

    /// As recorded; moves to come are in the rights. `None`: the tenant's
    /// default plan.
    pub fn plan(&self) -> Option<&Name> {
        self.user.as_ref().map(|user| &user.plan)
    }

    pub fn org(&self) -> Option<&Name> {
        self.user.as_ref()?.org.as_ref()
    }

    pub fn is_verified(&self) -> bool {
        self.user.as_ref().is_some_and(|user| user.verified)
    }

    pub fn is_suspended(&self) -> bool {
        self.user.as_ref().is_some_and(|user| user.suspended)
    }

    pub(in crate::service) fn rights(&self) -> &Rights {
        rights_of(self.user.as_ref().and_then(|user| user.rights.as_deref()))
    }

    pub(in crate::service) fn holder(&self) -> Holder<'_> {
        let user = self.user.as_ref();
        let arrival = user.map(|user| arrival((user.created_at, user.born), (user.plan_since, user.moved)));
        Holder {
            scope: Scope::User,
            plan: self.plan(),
            arrival: arrival.unwrap_or(NEWCOMER),
            zone: self.zone.as_ref(),
            anchor_day: user.and_then(|user| user.anchor_day).unwrap_or(1),
            rights: self.rights(),
            grants: &self.grants,
            months: &[],
        }
    }

    /// What the user is entitled to now, and what is to come by the record.
    pub fn entitlement(&self, tenant: &Tenant) -> Entitlement {
        let (now, catalog) = (tenant.now(), tenant.catalog());
        let holder = self.holder();
        let named = |plan: &Name| {
            let version = catalog.plan(plan).map_or(0, |plan| plan.current(now).version);
            (plan.clone(), version)
        };
        let default = catalog.settings.default_plan.as_ref();
        let recorded = holder.plan.or(default).map(named).unwrap_or_else(|| (Plan::none().id, 0));
        let terms = holder.plan.and_then(|plan| holder.terms(plan, &catalog, now).ok());
        let to_come = holder.rights.schedule.iter().filter(|to_come| to_come.at > now);
        let pending = to_come.map(|next| {
            // The version that will hold then, for this user.
            let then = terms.iter().flat_map(|terms| &terms.to_come).find(|regime| regime.since == next.at);
            let plan = then.map(|regime| regime.named()).unwrap_or_else(|| named(&next.plan));
            Upcoming { plan, effective_at: next.at }
        });
        let pending = pending.collect();
        let in_force = terms.as_ref().map(|terms| terms.in_force().named());
        Entitlement { plan: in_force.unwrap_or(recorded), pending, now }
    }

    fn weight(&self) -> usize {
        let user = self.user.as_ref();
        let text = user.map_or(0, |user| {
            let signals = user.signals.as_ref();
            let signals = signals.map(|signals| [signals.device.as_ref(), signals.address.as_ref()]);
            user.id.as_str().len() + signals.iter().flatten().flatten().map(|text| text.len()).sum::<usize>()
        });
        size_of::<Self>()
            + size_of::<(TenantRef, UserId)>()
            + 64
            + text
            + weight_of(self.rights(), &self.grants)
    }
}

impl OrgProfile {
    pub(super) fn of(org: Org) -> Self {
        let zone = zone_of(org.zone.as_deref());
        let grants = grants_of(org.rights.as_deref());
        Self { org: Some(org), zone, grants }
    }

    /// The org on record.
    pub fn org(&self) -> Option<&Org> {
        self.org.as_ref()
    }

    pub(in crate::service) fn rights(&self) -> &Rights {
        rights_of(self.org.as_ref().and_then(|org| org.rights.as_deref()))
    }

    pub(in crate::service) fn holder(&self) -> Holder<'_> {
        let org = self.org.as_ref();
        let arrival = org.map(|org| arrival((org.created_at, org.born), (org.plan_since, org.moved)));
        Holder {
            scope: Scope::Org,
            plan: org.and_then(|org| org.plan.as_ref()),
            arrival: arrival.unwrap_or(NEWCOMER),
            zone: self.zone.as_ref(),
            anchor_day: 1,
            rights: self.rights(),
            grants: &self.grants,
            months: &[],
        }
    }

    /// The version of the org's own sheet that holds now.
    pub fn plan_in_force(&self, tenant: &Tenant) -> Option<(Name, u32)> {
        let (now, catalog) = (tenant.now(), tenant.catalog());
        let holder = self.holder();
        let terms = holder.terms(holder.plan?, &catalog, now).ok()?;
        Some(terms.in_force().named())
    }

    fn weight(&self) -> usize {
        size_of::<Self>() + 128 + weight_of(self.rights(), &self.grants)
    }
}

/// Whoever is not on record comes with the next call.
const NEWCOMER: Arrival = {
    let next = Moment { at: Millis::MAX, revision: u64::MAX };
    Arrival { born: next, came: next }
};

fn arrival(born: (Millis, u64), came: (Millis, u64)) -> Arrival {
    let moment = |(at, revision)| Moment { at, revision };
    Arrival { born: moment(born), came: moment(came) }
}

fn rights_of(rights: Option<&Rights>) -> &Rights {
    rights.unwrap_or(&NO_RIGHTS)
}

fn zone_of(name: Option<&str>) -> Option<Arc<Zone>> {
    let name = name?;
    Zone::parse(name)
        .inspect_err(|error| tracing::error!(zone = name, error, "a zone on record is gone"))
        .ok()
}

fn grants_of(rights: Option<&Rights>) -> Grants {
    let mut by_limit: Vec<(_, Vec<_>)> = Vec::new();
    for granting in rights.into_iter().flat_map(|rights| &rights.grants) {
        match by_limit.iter_mut().find(|(limit, _)| *limit == granting.limit) {
            Some((_, grants)) => grants.push(granting.grant),
            None => by_limit.push((granting.limit.clone(), vec![granting.grant])),
        }
    }
    by_limit.into_iter().map(|(limit, grants)| (limit, grants.into())).collect()
}

fn weight_of(rights: &Rights, grants: &Grants) -> usize {
    400 * rights.overrides.len() + 200 * rights.grants.len() + 64 * rights.schedule.len() + 64 * grants.len()
}

pub(in crate::service) struct Cached<T> {
    /// Read before this many times others wrote: see [`Epochs`](crate::service::tenancy::following::Epochs).
    epoch: u32,
    profile: Arc<T>,
}

impl<T> Clone for Cached<T> {
    fn clone(&self) -> Self {
        Self { epoch: self.epoch, profile: Arc::clone(&self.profile) }
    }
}

pub(in crate::service) type UserCache = Cache<(TenantRef, UserId), Cached<Profile>>;
pub(in crate::service) type OrgCache = Cache<(TenantRef, Name), Cached<OrgProfile>>;

/// Users whom the ledger did not know of late, so that nobody who calls under
/// such names keeps it busy.
pub(in crate::service) type UnknownUsers = Cache<(TenantRef, UserId), Unknown>;

#[derive(Clone, Copy)]
pub(in crate::service) struct Unknown {
    epoch: u32,
    since: Instant,
}

impl Unknown {
    /// Nobody tells of users who come on record with a hold: after a moment
    /// they are looked for again.
    fn is_good(self, epoch: u32, now: Instant) -> bool {
        self.epoch == epoch && now.saturating_duration_since(self.since) < UNKNOWN_KEPT
    }
}

pub(in crate::service) fn unknown_users() -> UnknownUsers {
    Cache::new(UNKNOWN_MAX, UNKNOWN_BYTES_MAX)
}

pub(in crate::service) fn user_cache() -> UserCache {
    Cache::new(USERS_MAX, USER_BYTES_MAX)
}

pub(in crate::service) fn org_cache() -> OrgCache {
    Cache::new(ORGS_MAX, ORG_BYTES_MAX)
}

impl Registry {
    /// What is known of a user; reading creates nothing.
    pub async fn profile(&self, tenant: &Tenant, id: &UserId) -> Result<Arc<Profile>, ServiceError> {
        let asked = (tenant.number, id);
        let epoch = self.epochs.of(tenant.number, id.as_str());
        let is_it = |key: &(TenantRef, UserId)| key.0 == tenant.number && key.1 == *id;
        if let Some(known) = self.users.get(&asked, is_it)
            && known.epoch == epoch
        {
            return Ok(known.profile);
        }
        let unknown = self.unknown_users.get(&asked, is_it);
        if unknown.is_some_and(|unknown| unknown.is_good(epoch, Instant::now())) {
            return Ok(UNKNOWN.clone());
        }
        self.read_profile(tenant, id, epoch).await
    }

    /// `epoch`: from before the reading.
    async fn read_profile(
        &self,
        tenant: &Tenant,
        id: &UserId,
        epoch: u32,
    ) -> Result<Arc<Profile>, ServiceError> {
        let asked = (tenant.number, id);
        let is_it = |key: &(TenantRef, UserId)| key.0 == tenant.number && key.1 == *id;
        let (mark, mark_unknown) = (self.users.mark(&asked), self.unknown_users.mark(&asked));
        let since = Instant::now();
        if let Some(user) = self.ledger.user(tenant.number, id.clone()).await? {
            let profile = Arc::new(Profile::of(user));
            let entry = || ((tenant.number, id.clone()), Cached { epoch, profile: profile.clone() });
            self.users.insert_read(mark, &asked, is_it, entry, profile.weight());
            return Ok(profile);
        }
        if let Some(user) = self.erased(tenant, id).await? {
            return Ok(Arc::new(Profile::erased(user)));
        }
        // Not among those who are known: whoever asks for names that nobody has
        // must not push out the users who call.
        let entry = || ((tenant.number, id.clone()), Unknown { epoch, since });
        let weight = size_of::<((TenantRef, UserId), Unknown)>() + 64 + id.as_str().len();
        self.unknown_users.insert_read(mark_unknown, &asked, is_it, entry, weight);
        Ok(UNKNOWN.clone())
    }

    /// What is known of an org. That one is not on record is remembered: its
    /// name comes from users' records, never from a caller.
    pub async fn org_profile(&self, tenant: &Tenant, id: &Name) -> Result<Arc<OrgProfile>, ServiceError> {
        let asked = (tenant.number, id);
        let epoch = self.epochs.of(tenant.number, id.as_str());
        let is_it = |key: &(TenantRef, Name)| key.0 == tenant.number && key.1 == *id;
        if let Some(known) = self.orgs.get(&asked, is_it)
            && known.epoch == epoch
        {
            return Ok(known.profile);
        }
        let mark = self.orgs.mark(&asked);
        let profile = match self.ledger.org(tenant.number, id.clone()).await? {
            Some(org) => Arc::new(OrgProfile::of(org)),
            None => UNKNOWN_ORG.clone(),
        };
        let entry = || ((tenant.number, id.clone()), Cached { epoch, profile: profile.clone() });
        self.orgs.insert_read(mark, &asked, is_it, entry, profile.weight());
        Ok(profile)
    }

    /// A user on record.
    pub async fn user(&self, tenant: &Tenant, id: &UserId) -> Result<Arc<Profile>, ServiceError> {
        let mut profile = self.profile(tenant, id).await?;
        if !profile.is_known() {
            // Whoever asks for the record itself may know that it is there.
            let epoch = self.epochs.of(tenant.number, id.as_str());
            profile = self.read_profile(tenant, id, epoch).await?;
        }
        let is_there = profile.is_known() && !profile.is_erased();
        if is_there { Ok(profile) } else { Err(ServiceError::NotFound("user")) }
    }

    /// The record of an erased user, by the id that they had.
    pub(super) async fn erased(&self, tenant: &Tenant, id: &UserId) -> Result<Option<User>, ServiceError> {
        if !tenant.has_erased() {
            return Ok(None);
        }
        let pseudonym = self.files.pseudonym(tenant.number, id)?;
        Ok(self.ledger.user(tenant.number, pseudonym).await?.filter(|user| user.erased))
    }

    /// The next call reads what is on record. (To put a version just written
    /// in its place would let two writers leave the older one behind.)
    pub(in crate::service) fn forget_user(&self, tenant: TenantRef, id: &UserId) {
        let is_it = |key: &(TenantRef, UserId)| key.0 == tenant && key.1 == *id;
        self.users.remove(&(tenant, id), is_it);
        self.unknown_users.remove(&(tenant, id), is_it);
    }

    pub(super) fn forget_org(&self, tenant: TenantRef, id: &Name) {
        self.orgs.remove(&(tenant, id), |key: &(TenantRef, Name)| key.0 == tenant && key.1 == *id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_unknown_is_looked_for_again_within_a_second() {
        let since = Instant::now();
        let unknown = Unknown { epoch: 3, since };
        assert!(unknown.is_good(3, since) && unknown.is_good(3, since + Duration::from_millis(499)));
        assert!(!unknown.is_good(3, since + Duration::from_millis(500)));
        assert!(!unknown.is_good(4, since), "somebody wrote meanwhile");
        assert!(UNKNOWN_KEPT < Duration::from_secs(1));
    }
}
