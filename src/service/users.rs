//! Users: what a decision must know of one, and changing it.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, LazyLock};

use crate::domain::charge::TenantRef;
use crate::domain::document::{Fault, Node, Reader};
use crate::domain::ids::{Name, UserId};
use crate::domain::quantity::MAX_AMOUNT;
use crate::domain::time::{Millis, Zone};
use crate::ledger::{LedgerError, Signals, User, UserQuery, Written};

use super::cache::Cache;
use super::catalog::Tenant;
use super::error::ServiceError;
use super::reason::{optional_reason, required_reason};
use super::registry::Registry;

/// Users kept at hand; others are read when they call.
const USERS_MAX: usize = 500_000;
/// What they may take together, in bytes.
const USER_BYTES_MAX: usize = 256 << 20;
/// Writers of one user at a time that are waited for before giving up.
const TRIES: usize = 16;
const SIGNAL_MAX: usize = 256;

/// What a decision must know of a user. Users who are not on record have a
/// profile too: nothing is known of them.
#[derive(Debug, Default)]
pub struct Profile {
    user: Option<User>,
    zone: Option<Arc<Zone>>,
}

impl Profile {
    fn of(user: User) -> Self {
        let zone = user.zone.as_deref().and_then(|name| {
            let zone = Zone::parse(name);
            zone.inspect_err(|error| tracing::error!(zone = name, error, "a user's zone is gone")).ok()
        });
        Self { user: Some(user), zone }
    }

    /// The user on record.
    pub fn user(&self) -> Option<&User> {
        self.user.as_ref()
    }

    pub fn is_known(&self) -> bool {
        self.user.is_some()
    }

    /// `None`: the tenant's default plan.
    pub fn plan(&self) -> Option<&Name> {
        self.user.as_ref().map(|user| &user.plan)
    }

    /// From when the plan's figures hold for this user.
    pub fn plan_since(&self) -> Millis {
        self.user.as_ref().map_or(Millis(0), |user| user.plan_since)
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

    /// `None`: the tenant's.
    pub fn zone(&self) -> Option<&Arc<Zone>> {
        self.zone.as_ref()
    }

    /// 1 to 31.
    pub fn anchor_day(&self) -> u8 {
        self.user.as_ref().and_then(|user| user.anchor_day).unwrap_or(1)
    }

    fn weight(&self) -> usize {
        let user = self.user.as_ref();
        let text = user.map_or(0, |user| {
            let signals = user.signals.as_ref();
            let signals = signals.map(|signals| [signals.device.as_ref(), signals.address.as_ref()]);
            user.id.as_str().len() + signals.iter().flatten().flatten().map(|text| text.len()).sum::<usize>()
        });
        size_of::<Self>() + size_of::<(TenantRef, UserId)>() + 64 + text
    }
}

#[derive(Clone)]
pub(super) struct CachedUser {
    /// Read before this many times others wrote.
    epoch: u64,
    profile: Arc<Profile>,
}

pub(super) type UserCache = Cache<(TenantRef, UserId), CachedUser>;

pub(super) fn user_cache() -> UserCache {
    Cache::new(USERS_MAX, USER_BYTES_MAX)
}

/// A field of a change: left as it is, taken away, or set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Patch<T> {
    Keep,
    Clear,
    Set(T),
}

impl<T> Patch<T> {
    fn read<'n>(
        fields: &mut Reader<'n, '_>,
        name: &str,
        read: impl FnOnce(&mut Reader<'n, '_>) -> Option<T>,
    ) -> Self {
        if fields.is_null(name) {
            return Self::Clear;
        }
        read(fields).map_or(Self::Keep, Self::Set)
    }

    fn apply(self, place: &mut Option<T>) {
        match self {
            Self::Keep => {}
            Self::Clear => *place = None,
            Self::Set(value) => *place = Some(value),
        }
    }
}

/// What `PUT users/{user}` changes; what is missing stays.
#[derive(Debug, Clone)]
pub struct UserChange {
    plan: Option<Name>,
    org: Patch<Name>,
    verified: Option<bool>,
    suspended: Option<bool>,
    zone: Patch<String>,
    anchor_day: Patch<u8>,
    signals: Patch<Signals>,
    reason: Option<String>,
}

impl UserChange {
    /// Reads `{"plan","org","verified","suspended","zone","anchor_day",
    /// "signals":{"device","address"},"reason"}`. Whoever changes what the user
    /// may do says why.
    pub fn read(node: &Node<'_>) -> Result<Self, Vec<Fault>> {
        node.read(|fields| {
            let plan = fields.optional("plan").parsed(Name::parse);
            let org = Patch::read(fields, "org", |r| r.optional("org").parsed(Name::parse));
            let verified = fields.optional("verified").flag();
            let suspended = fields.optional("suspended").flag();
            let zone = |r: &mut Reader<'_, '_>| r.optional("zone").parsed(Zone::parse);
            let zone = Patch::read(fields, "zone", |r| zone(r).map(|zone| zone.name().to_owned()));
            let anchor = |r: &mut Reader<'_, '_>| r.optional("anchor_day").number(1..=31u8);
            let anchor_day = Patch::read(fields, "anchor_day", anchor);
            let signals = Patch::read(fields, "signals", |r| r.optional("signals").table(read_signals));
            let rights = plan.is_some() || org != Patch::Keep || verified.is_some() || suspended.is_some();
            let reason = if rights { required_reason(fields) } else { optional_reason(fields) };
            Some(Self { plan, org, verified, suspended, zone, anchor_day, signals, reason })
        })
    }

    fn apply(self, user: &mut User, now: Millis) {
        if let Some(plan) = self.plan {
            move_to(user, plan, now);
        }
        self.org.apply(&mut user.org);
        user.verified = self.verified.unwrap_or(user.verified);
        user.suspended = self.suspended.unwrap_or(user.suspended);
        self.zone.apply(&mut user.zone);
        self.anchor_day.apply(&mut user.anchor_day);
        self.signals.apply(&mut user.signals);
    }
}

fn read_signals(fields: &mut Reader<'_, '_>) -> Option<Signals> {
    let device = fields.optional("device").text_up_to(SIGNAL_MAX).map(str::to_owned);
    let address = fields.optional("address").text_up_to(SIGNAL_MAX).map(str::to_owned);
    Some(Signals { device, address })
}

/// What `POST users/{user}/plan` asks for.
#[derive(Debug, Clone)]
pub struct PlanChange {
    plan: Name,
    sequence: Option<u64>,
    reason: Option<String>,
}

impl PlanChange {
    /// Reads `{"plan","effective":"now","sequence","reason"}`.
    pub fn read(node: &Node<'_>) -> Result<Self, Vec<Fault>> {
        node.read(|fields| {
            let plan = fields.required("plan").parsed(Name::parse);
            only_now(fields, "effective");
            for trial in ["until", "then"] {
                if fields.has(trial) {
                    fields.fault(trial, "is not supported yet");
                }
            }
            let sequence = fields.optional("sequence").amount(MAX_AMOUNT);
            let reason = required_reason(fields);
            Some(Self { plan: plan?, sequence, reason: Some(reason?) })
        })
    }
}

/// A field that says when a change acts: missing, or `"now"`.
pub(super) fn only_now(fields: &mut Reader<'_, '_>, name: &str) {
    match fields.optional(name).text() {
        None | Some("now") => {}
        Some(_) => fields.fault(name, "is not supported: only \"now\" is supported yet"),
    }
}

/// How a numbered change of plan went.
#[derive(Debug)]
pub struct PlanChanged {
    pub user: Arc<Profile>,
    /// A newer change was on record: nothing was done.
    pub stale: bool,
}

/// One page of a list of users.
#[derive(Debug)]
pub struct UserPage {
    pub users: Vec<User>,
    /// Whether there are more after the last one.
    pub more: bool,
}

static UNKNOWN: LazyLock<Arc<Profile>> = LazyLock::new(Arc::default);

impl Registry {
    /// What is known of a user; reading creates nothing.
    pub async fn profile(&self, tenant: &Tenant, id: &UserId) -> Result<Arc<Profile>, ServiceError> {
        let asked = (tenant.number, id);
        let epoch = self.users_epoch.load(SeqCst);
        let is_it = |key: &(TenantRef, UserId)| key.0 == tenant.number && key.1 == *id;
        if let Some(known) = self.users.get(&asked, is_it)
            && known.epoch == epoch
        {
            return Ok(known.profile);
        }
        let mark = self.users.mark(&asked);
        let Some(user) = self.ledger.user(tenant.number, id.clone()).await? else {
            // Not remembered: whoever asks for names that nobody has must not
            // push out the users who call.
            return Ok(UNKNOWN.clone());
        };
        let profile = Arc::new(Profile::of(user));
        let entry = || ((tenant.number, id.clone()), CachedUser { epoch, profile: profile.clone() });
        self.users.insert_read(mark, &asked, is_it, entry, profile.weight());
        Ok(profile)
    }

    /// A user on record.
    pub async fn user(&self, tenant: &Tenant, id: &UserId) -> Result<Arc<Profile>, ServiceError> {
        let profile = self.profile(tenant, id).await?;
        if profile.is_known() { Ok(profile) } else { Err(ServiceError::NotFound("user")) }
    }

    /// Users by id, ascending, at most `query.limit` of them.
    pub async fn list_users(&self, tenant: &Tenant, query: UserQuery) -> Result<UserPage, ServiceError> {
        let limit = query.limit as usize;
        let one_more = UserQuery { limit: query.limit.saturating_add(1), ..query };
        let mut users = self.ledger.users(tenant.number, one_more).await?;
        let more = users.len() > limit;
        users.truncate(limit);
        Ok(UserPage { users, more })
    }

    /// The record's part of [`Service::put_user`](super::Service::put_user),
    /// which first brings the account to now by what held until now.
    pub(super) async fn put_user(
        &self,
        tenant: &Tenant,
        id: &UserId,
        change: UserChange,
        expected: Option<u32>,
        by: &str,
    ) -> Result<Arc<Profile>, ServiceError> {
        self.check_plan(tenant, change.plan.as_ref())?;
        for _ in 0..TRIES {
            let stored = self.ledger.user(tenant.number, id.clone()).await?;
            let version = stored.as_ref().map_or(0, |user| user.version);
            if expected.is_some_and(|expected| expected != version) {
                return Err(ServiceError::ChangedMeanwhile);
            }
            let numbered = stored.as_ref().is_some_and(|user| user.plan_sequence.is_some());
            if numbered && change.plan.is_some() {
                return Err(ServiceError::SequenceRequired);
            }
            let now = tenant.now();
            let mut user = match stored {
                Some(user) => user,
                None => new_user(tenant, id, change.plan.as_ref(), now)?,
            };
            change.clone().apply(&mut user, now);
            if let Some(profile) = self.store_user(tenant, user, now, by, change.reason.clone()).await? {
                return Ok(profile);
            }
        }
        Err(ServiceError::ChangedMeanwhile)
    }

    /// The record's part of [`Service::change_plan`](super::Service::change_plan).
    pub(super) async fn change_plan(
        &self,
        tenant: &Tenant,
        id: &UserId,
        change: PlanChange,
        by: &str,
    ) -> Result<PlanChanged, ServiceError> {
        self.check_plan(tenant, Some(&change.plan))?;
        for _ in 0..TRIES {
            let now = tenant.now();
            let stored = self.ledger.user(tenant.number, id.clone()).await?;
            let last = stored.as_ref().and_then(|user| user.plan_sequence);
            let mut user = match stored {
                Some(user) => user,
                None => new_user(tenant, id, Some(&change.plan), now)?,
            };
            match (last, change.sequence) {
                (Some(_), None) => return Err(ServiceError::SequenceRequired),
                (Some(last), Some(this)) if this <= last => {
                    let stale = this < last;
                    return Ok(PlanChanged { user: Arc::new(Profile::of(user)), stale });
                }
                _ => {}
            }
            move_to(&mut user, change.plan.clone(), now);
            user.plan_sequence = change.sequence;
            if let Some(user) = self.store_user(tenant, user, now, by, change.reason.clone()).await? {
                return Ok(PlanChanged { user, stale: false });
            }
        }
        Err(ServiceError::ChangedMeanwhile)
    }

    /// Writes the next version of a user; `None` when somebody else did so
    /// first.
    async fn store_user(
        &self,
        tenant: &Tenant,
        mut user: User,
        now: Millis,
        by: &str,
        reason: Option<String>,
    ) -> Result<Option<Arc<Profile>>, ServiceError> {
        user.version += 1;
        let id = user.id.clone();
        let written = Written { at: now, by: by.to_owned(), reason };
        let result = self.writer.put_user(tenant.number, user.clone(), written).await;
        // Written or not: the next call reads what is on record. (To put the
        // new version here would let two writers leave the older one behind.)
        let is_it = |key: &(TenantRef, UserId)| key.0 == tenant.number && key.1 == id;
        self.users.remove(&(tenant.number, &id), is_it);
        match result {
            Ok(()) => {
                self.watchers.user_changed(tenant.number, &id);
                Ok(Some(Arc::new(Profile::of(user))))
            }
            Err(LedgerError::Conflict) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn check_plan(&self, tenant: &Tenant, plan: Option<&Name>) -> Result<(), ServiceError> {
        match plan {
            Some(plan) if tenant.catalog().plan(plan).is_none() => Err(ServiceError::UnknownPlan),
            _ => Ok(()),
        }
    }
}

/// The plan's figures hold from now on; staying on a plan changes nothing.
fn move_to(user: &mut User, plan: Name, now: Millis) {
    if user.plan != plan {
        user.plan = plan;
        user.plan_since = now;
    }
}

/// A user who is not on record yet (version 0).
fn new_user(tenant: &Tenant, id: &UserId, plan: Option<&Name>, now: Millis) -> Result<User, ServiceError> {
    let plan = match plan {
        Some(plan) => plan.clone(),
        None => tenant.catalog().settings.default_plan.clone().ok_or_else(|| {
            ServiceError::invalid("/plan", "is required for a new user: the tenant has no default plan")
        })?,
    };
    Ok(User {
        id: id.clone(),
        plan,
        plan_since: now,
        plan_sequence: None,
        org: None,
        verified: false,
        suspended: false,
        zone: None,
        anchor_day: None,
        signals: None,
        created_at: now,
        version: 0,
    })
}

#[cfg(test)]
#[path = "users_tests.rs"]
mod tests;
