//! Users on record: listing and changing them.

use std::sync::Arc;

use crate::domain::document::{Fault, Node, Reader};
use crate::domain::ids::{Name, UserId};
use crate::domain::time::{Millis, Zone};
use crate::ledger::{LedgerError, Month, Record, Signals, User, UserQuery, Write, Written};

use super::moving::{drop_empty, fold, move_to, set_schedule};
use super::profiles::Profile;
use crate::service::error::ServiceError;
use crate::service::tenancy::catalog::Tenant;
use crate::service::tenancy::reason::{optional_reason, required_reason};
use crate::service::tenancy::registry::Registry;

/// Writers of one user at a time that are waited for before giving up.
pub(super) const TRIES: usize = 16;
const SIGNAL_MAX: usize = 256;
/// Ids that one page of a search looks at, and that of a plan or an org, whose users lie apart.
const SEARCHED: u32 = 50_000;
const SEARCHED_APART: u32 = 20_000;

/// A field of a change: left as it is, taken away, or set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Patch<T> {
    Keep,
    Clear,
    Set(T),
}

impl<T> Patch<T> {
    pub(in crate::service) fn read<'n>(
        fields: &mut Reader<'n, '_>,
        name: &str,
        read: impl FnOnce(&mut Reader<'n, '_>) -> Option<T>,
    ) -> Self {
        if fields.is_null(name) {
            return Self::Clear;
        }
        read(fields).map_or(Self::Keep, Self::Set)
    }

    pub(in crate::service) fn apply(self, place: &mut Option<T>) {
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
            set_schedule(user, Vec::new());
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

/// What a change of a record comes to, with what there is to tell of it.
pub(in crate::service) enum Outcome<T> {
    Changed(T),
    /// It was so already: nothing is written.
    AsBefore(T),
}

/// One page of a list of users.
#[derive(Debug)]
pub struct UserPage {
    pub users: Vec<Profile>,
    /// After which the next page begins; `None`: there is none.
    pub next: Option<UserId>,
}

impl Registry {
    /// Users by id, ascending, at most `query.limit` of them.
    pub(super) async fn list_users(
        &self,
        tenant: &Tenant,
        query: UserQuery,
    ) -> Result<UserPage, ServiceError> {
        let limit = query.limit as usize;
        // A search that finds little ends there all the same, and goes on with the next page.
        let searches = query.contains.as_ref().is_some_and(|part| !part.is_empty());
        let searched = match searches {
            true => {
                let apart = query.plan.is_some() || query.org.is_some();
                let most = if apart { SEARCHED_APART } else { SEARCHED };
                self.ledger.nth_user(tenant.number, query.clone(), most - 1).await?
            }
            false => None,
        };
        let one_more = UserQuery {
            limit: query.limit.saturating_add(1),
            upto: searched.clone().or(query.upto),
            ..query
        };
        let mut users = self.ledger.users(tenant.number, one_more).await?;
        let more = users.len() > limit;
        users.truncate(limit);
        let last = users.last().filter(|_| more).map(|user| user.id.as_str().to_owned());
        let next = last.or(searched).map(|id| UserId::parse(&id)).transpose();
        let next = next.map_err(|error| ServiceError::Corrupt(format!("a user's id: {error}")))?;
        Ok(UserPage { users: users.into_iter().map(Profile::of).collect(), next })
    }

    /// The record's part of [`Service::put_user`](crate::service::Service::put_user),
    /// which first brings the account to now by what held until now.
    pub(in crate::service) async fn put_user(
        &self,
        tenant: &Tenant,
        id: &UserId,
        change: UserChange,
        running: Option<Month>,
        expected: Option<u32>,
        by: &str,
    ) -> Result<Arc<Profile>, ServiceError> {
        self.check_plan(tenant, change.plan.as_ref())?;
        let reason = change.reason.clone();
        let plan = change.plan.clone();
        let put = |user: &mut User| {
            if user.plan_sequence.is_some() && change.plan.is_some() {
                return Err(ServiceError::SequenceRequired);
            }
            let rule = (user.zone.clone(), user.anchor_day);
            change.clone().apply(user, tenant.now());
            if rule != (user.zone.clone(), user.anchor_day) {
                keep_month(user, running);
            }
            Ok(Outcome::Changed(()))
        };
        let (profile, ()) = self.change_user(tenant, (id, plan.as_ref()), expected, by, reason, put).await?;
        Ok(profile)
    }

    /// Reads, changes and writes a user until nobody came in between. With the
    /// id comes the plan of whoever is new; else it is the default one.
    pub(super) async fn change_user<T>(
        &self,
        tenant: &Tenant,
        (id, plan): (&UserId, Option<&Name>),
        expected: Option<u32>,
        by: &str,
        reason: Option<String>,
        change: impl Fn(&mut User) -> Result<Outcome<T>, ServiceError>,
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
                None => new_user(tenant, id, plan, now)?,
            };
            let is_new = user.version == 0;
            fold(&mut user, now);
            let before = (!is_new).then(|| user.clone());
            let told = match change(&mut user)? {
                Outcome::Changed(told) => told,
                Outcome::AsBefore(told) => return Ok((Arc::new(Profile::of(user)), told)),
            };
            drop_empty(&mut user.rights);
            if let Some(profile) =
                self.store_user(tenant, (before.as_ref(), user), now, by, reason.clone()).await?
            {
                return Ok((profile, told));
            }
        }
        Err(ServiceError::ChangedMeanwhile)
    }

    /// Writes the next versions of many users, each as it was read and as it is to be.
    /// `false`: somebody changed one of them meanwhile, and nothing was written.
    pub(super) async fn put_users(
        &self,
        tenant: &Tenant,
        users: Vec<(User, User)>,
        written: Written,
    ) -> Result<bool, ServiceError> {
        if users.is_empty() {
            return Ok(true);
        }
        let ids: Vec<UserId> = users.iter().map(|(user, _)| user.id.clone()).collect();
        let result = self.writer.put_users(tenant.number, users, written).await;
        for id in &ids {
            self.forget_user(tenant.number, id);
            self.watchers.user_changed(tenant.number, id);
        }
        match result {
            Ok(()) => Ok(true),
            Err(LedgerError::Conflict) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the next version of a make-good.
    pub(super) async fn put_make_good(&self, tenant: &Tenant, record: Record) -> Result<(), LedgerError> {
        self.writer.put_record(Some(tenant.number), record).await
    }

    /// Writes the next version of a user, and reads it back; `None` when
    /// somebody else wrote first. `before`: the record with all that had come by
    /// now.
    pub(super) async fn store_user(
        &self,
        tenant: &Tenant,
        (before, mut user): (Option<&User>, User),
        now: Millis,
        by: &str,
        reason: Option<String>,
    ) -> Result<Option<Arc<Profile>>, ServiceError> {
        user.version += 1;
        let (id, version) = (user.id.clone(), user.version);
        let written = Written { at: now, by: by.to_owned(), reason };
        let told = self.told_of_user(tenant, before, &user, &written);
        let write = Write::User(Box::new(user), written);
        let result = self.write_told(tenant, write, told).await;
        self.forget_user(tenant.number, &id);
        match result {
            Ok(()) => {
                self.watchers.user_changed(tenant.number, &id);
                // The ledger has filled in when it came.
                let stored = self.ledger.user(tenant.number, id).await?;
                let stored = stored.filter(|user| user.version >= version);
                stored.map(|user| Some(Arc::new(Profile::of(user)))).ok_or(ServiceError::ChangedMeanwhile)
            }
            Err(LedgerError::Conflict) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A record may be read before the plan that it names: both may be the work
    /// of another node, just now.
    pub(super) async fn know_plans<'n>(
        &self,
        tenant: &Tenant,
        mut plans: impl Iterator<Item = &'n Name>,
    ) -> Result<(), ServiceError> {
        let catalog = tenant.catalog();
        match plans.any(|plan| catalog.plan(plan).is_none()) {
            true => self.refresh().await,
            false => Ok(()),
        }
    }

    pub(super) fn check_plan(&self, tenant: &Tenant, plan: Option<&Name>) -> Result<(), ServiceError> {
        match plan {
            Some(plan) if tenant.catalog().plan(plan).is_none() => Err(ServiceError::UnknownPlan),
            _ => Ok(()),
        }
    }
}

/// The month that runs when the zone or anchor changes ends as it began.
fn keep_month(user: &mut User, running: Option<Month>) {
    user.rights.get_or_insert_default().month = running;
}

/// A user who is not on record yet (version 0).
pub(super) fn new_user(
    tenant: &Tenant,
    id: &UserId,
    plan: Option<&Name>,
    now: Millis,
) -> Result<User, ServiceError> {
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
        rights: None,
        created_at: now,
        erased: false,
        // After all that is on record; the ledger fills it in.
        born: u64::MAX,
        moved: u64::MAX,
        version: 0,
    })
}

#[cfg(test)]
#[path = "users_tests.rs"]
mod tests;
