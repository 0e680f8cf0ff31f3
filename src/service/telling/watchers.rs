//! Who watches what they have left, and whom a change concerns.
//!
//! There is no queue: every watcher has a bell, and what rang before it looked
//! is one ring. While nobody watches, a change costs one look at a number.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use parking_lot::RwLock;
use std::collections::{HashMap, HashSet};
use tokio::sync::{Notify, Semaphore};

use crate::domain::charge::{AccountKey, TenantRef};
use crate::domain::ids::{Name, UserId};
use crate::domain::plan::Scope;
use crate::ledger::Bucket;

/// Watchers of one user at a time.
pub const WATCHERS_OF_USER_MAX: usize = 4;
/// Watchers of this process, unless a setting says otherwise.
const WATCHERS_MAX: usize = 10_000;
/// Watchers that look at the same time: a change that concerns all of them
/// must not keep those who call waiting.
const LOOKS_AT_ONCE: usize = 16;

/// Everybody who watches on this node.
pub struct Watchers {
    open: AtomicUsize,
    max: AtomicUsize,
    closed: AtomicBool,
    /// By the accounts of user and org; by the tenant's, whoever is in it.
    bells: RwLock<Bells>,
    pub(super) looks: Semaphore,
}

type Bells = HashMap<AccountKey, Vec<Arc<Bell>>, ahash::RandomState>;

impl Default for Watchers {
    fn default() -> Self {
        Self {
            open: AtomicUsize::new(0),
            max: AtomicUsize::new(WATCHERS_MAX),
            closed: AtomicBool::new(false),
            bells: RwLock::default(),
            looks: Semaphore::new(LOOKS_AT_ONCE),
        }
    }
}

/// Tells one watcher to look again.
#[derive(Default)]
pub(in crate::service) struct Bell {
    rung: AtomicBool,
    /// Somebody finds no place: whoever is not there any more should go.
    asked_for: AtomicBool,
    woken: Notify,
}

impl Bell {
    /// A bell that has rung wakes nobody again until it was heard.
    pub fn ring(&self) {
        if !self.rung.swap(true, SeqCst) {
            self.woken.notify_one();
        }
    }

    pub fn has_rung(&self) -> bool {
        self.rung.load(SeqCst)
    }

    /// What rings from now on is new.
    pub fn hear(&self) {
        self.rung.store(false, SeqCst);
    }

    /// Whether a sign of life was asked for since the last time.
    pub fn is_asked_for(&self) -> bool {
        self.asked_for.swap(false, Relaxed)
    }

    fn ask_for(&self) {
        self.asked_for.store(true, Relaxed);
        self.woken.notify_one();
    }

    /// Waits for a ring, or for a question.
    pub async fn wait(&self) {
        self.woken.notified().await;
    }
}

/// A watcher's place; it is free again when this is dropped.
pub(super) struct Seat {
    watchers: Arc<Watchers>,
    pub bell: Arc<Bell>,
    /// User, tenant, and org if there is one.
    keys: Vec<AccountKey>,
}

impl Watchers {
    /// Bounds the watchers of this process.
    pub fn bound(&self, max: usize) {
        self.max.store(max, Relaxed);
    }

    /// Takes a place for a watcher of `user`; `None` when there is none.
    pub(super) fn enter(self: &Arc<Self>, tenant: TenantRef, user: &UserId) -> Option<Seat> {
        let keys = vec![user_key(tenant, user), tenant_key(tenant)];
        let mut bells = self.bells.write();
        let own = bells.get(&keys[0]).map_or(&[][..], Vec::as_slice);
        if own.len() >= WATCHERS_OF_USER_MAX {
            // One who has hung up is found out by being spoken to.
            own.iter().for_each(|bell| bell.ask_for());
            return None;
        }
        if self.closed.load(SeqCst) || self.open.load(SeqCst) >= self.max.load(Relaxed) {
            return None;
        }
        let bell = Arc::<Bell>::default();
        for key in &keys {
            bells.entry(key.clone()).or_default().push(Arc::clone(&bell));
        }
        self.open.fetch_add(1, SeqCst);
        Some(Seat { watchers: Arc::clone(self), bell, keys })
    }

    pub(in crate::service) fn nobody(&self) -> bool {
        self.open.load(Relaxed) == 0
    }

    /// The bells of those whom changes of these accounts concern. The tenant's
    /// and a pool's are not shown to users.
    pub(in crate::service) fn of_accounts<'k>(
        &self,
        accounts: impl Iterator<Item = &'k AccountKey>,
    ) -> Vec<Arc<Bell>> {
        if self.nobody() {
            return Vec::new();
        }
        let bells = self.bells.read();
        let shown = accounts.filter(|key| matches!(key.scope, Scope::User | Scope::Org));
        shown.filter_map(|key| bells.get(key)).flatten().cloned().collect()
    }

    pub(in crate::service) fn accounts_changed<'k>(&self, accounts: impl Iterator<Item = &'k AccountKey>) {
        self.of_accounts(accounts).iter().for_each(|bell| bell.ring());
    }

    /// What is on record of a user has changed.
    pub(in crate::service) fn user_changed(&self, tenant: TenantRef, user: &UserId) {
        if !self.nobody() {
            self.ring(&user_key(tenant, user));
        }
    }

    /// What is on record of an org has changed.
    #[allow(dead_code, reason = "orgs have no record of their own yet")]
    pub(in crate::service) fn org_changed(&self, tenant: TenantRef, org: &Name) {
        if !self.nobody() {
            self.ring(&org_key(tenant, org));
        }
    }

    /// What is on record of a user or an org in these buckets has changed.
    pub(in crate::service) fn owners_changed(&self, buckets: &HashSet<Bucket>) {
        if self.nobody() || buckets.is_empty() {
            return;
        }
        let concerns = |key: &AccountKey| {
            matches!(key.scope, Scope::User | Scope::Org)
                && buckets.contains(&Bucket::of(key.tenant, &key.owner))
        };
        let bells = self.bells.read();
        bells
            .iter()
            .filter(|(key, _)| concerns(key))
            .flat_map(|(_, bells)| bells)
            .for_each(|bell| bell.ring());
    }

    /// Plans, settings, keys, the clock or the suspension of a tenant have
    /// changed.
    pub(in crate::service) fn tenant_changed(&self, tenant: TenantRef) {
        if !self.nobody() {
            self.ring(&tenant_key(tenant));
        }
    }

    fn ring(&self, key: &AccountKey) {
        self.bells.read().get(key).into_iter().flatten().for_each(|bell| bell.ring());
    }

    /// Anything may have changed.
    pub(in crate::service) fn everything_changed(&self) {
        if !self.nobody() {
            self.bells.read().values().flatten().for_each(|bell| bell.ring());
        }
    }

    /// Sends everybody home; nobody comes in any more.
    pub(super) fn close(&self) {
        // In turn with `enter`: who came in before is told.
        let bells = self.bells.write();
        self.closed.store(true, SeqCst);
        bells.values().flatten().for_each(|bell| bell.ring());
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }
}

impl Seat {
    /// The user is a member of `org` now.
    ///
    /// Returns whether that is news: then the org's account may have changed
    /// since it was looked at.
    pub fn is_in(&mut self, tenant: TenantRef, org: Option<&Name>) -> bool {
        let known = self.keys.get(2).map(|key| &*key.owner);
        if known == org.map(Name::as_str) {
            return false;
        }
        let mut bells = self.watchers.bells.write();
        for key in self.keys.drain(2..) {
            remove(&mut bells, &key, &self.bell);
        }
        if let Some(org) = org {
            let key = org_key(tenant, org);
            bells.entry(key.clone()).or_default().push(Arc::clone(&self.bell));
            self.keys.push(key);
        }
        true
    }

    pub fn watchers(&self) -> &Watchers {
        &self.watchers
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut bells = self.watchers.bells.write();
        for key in &self.keys {
            remove(&mut bells, key, &self.bell);
        }
        self.watchers.open.fetch_sub(1, SeqCst);
    }
}

fn remove(bells: &mut Bells, key: &AccountKey, bell: &Arc<Bell>) {
    let Some(list) = bells.get_mut(key) else { return };
    if let Some(place) = list.iter().position(|known| Arc::ptr_eq(known, bell)) {
        list.swap_remove(place);
    }
    if list.is_empty() {
        bells.remove(key);
    }
}

fn user_key(tenant: TenantRef, user: &UserId) -> AccountKey {
    AccountKey { tenant, scope: Scope::User, owner: user.shared() }
}

fn org_key(tenant: TenantRef, org: &Name) -> AccountKey {
    AccountKey { tenant, scope: Scope::Org, owner: org.shared() }
}

fn tenant_key(tenant: TenantRef) -> AccountKey {
    AccountKey { tenant, scope: Scope::Tenant, owner: Arc::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: TenantRef = TenantRef(1);
    const OTHER: TenantRef = TenantRef(2);

    fn user(id: &str) -> UserId {
        UserId::parse(id).unwrap()
    }

    fn org(id: &str) -> Name {
        Name::parse(id).unwrap()
    }

    fn heard(seat: &Seat) -> bool {
        let rung = seat.bell.has_rung();
        seat.bell.hear();
        rung
    }

    #[test]
    fn only_whom_it_concerns_is_told() {
        let watchers = Arc::new(Watchers::default());
        let ann = watchers.enter(TENANT, &user("ann")).unwrap();
        let bob = watchers.enter(TENANT, &user("bob")).unwrap();
        let ann_elsewhere = watchers.enter(OTHER, &user("ann")).unwrap();
        watchers.accounts_changed([user_key(TENANT, &user("ann"))].iter());
        assert!(heard(&ann) && !heard(&bob) && !heard(&ann_elsewhere));
        watchers.user_changed(TENANT, &user("bob"));
        assert!(!heard(&ann) && heard(&bob) && !heard(&ann_elsewhere));
        watchers.tenant_changed(TENANT);
        assert!(heard(&ann) && heard(&bob) && !heard(&ann_elsewhere));
        watchers.everything_changed();
        assert!(heard(&ann) && heard(&bob) && heard(&ann_elsewhere));
    }

    #[test]
    fn those_of_a_bucket_are_told_of_what_others_wrote() {
        let watchers = Arc::new(Watchers::default());
        let mut ann = watchers.enter(TENANT, &user("ann")).unwrap();
        let bob = watchers.enter(TENANT, &user("bob")).unwrap();
        ann.is_in(TENANT, Some(&org("acme")));
        watchers.owners_changed(&HashSet::from([Bucket::of(TENANT, "bob")]));
        assert!(!heard(&ann) && heard(&bob));
        watchers.owners_changed(&HashSet::from([Bucket::of(TENANT, "acme")]));
        assert!(heard(&ann) && !heard(&bob));
    }

    #[test]
    fn limits_that_users_do_not_see_wake_nobody() {
        let watchers = Arc::new(Watchers::default());
        let ann = watchers.enter(TENANT, &user("ann")).unwrap();
        let pool = AccountKey { scope: Scope::Pool, ..tenant_key(TENANT) };
        watchers.accounts_changed([tenant_key(TENANT), pool].iter());
        assert!(!heard(&ann));
    }

    #[test]
    fn members_of_an_org_hear_of_it_as_long_as_they_are_in_it() {
        let watchers = Arc::new(Watchers::default());
        let mut ann = watchers.enter(TENANT, &user("ann")).unwrap();
        assert!(ann.is_in(TENANT, Some(&org("acme"))) && !ann.is_in(TENANT, Some(&org("acme"))));
        watchers.accounts_changed([org_key(TENANT, &org("acme"))].iter());
        assert!(heard(&ann));
        assert!(ann.is_in(TENANT, Some(&org("other"))));
        watchers.org_changed(TENANT, &org("acme"));
        assert!(!heard(&ann));
        watchers.org_changed(TENANT, &org("other"));
        assert!(heard(&ann));
        assert!(ann.is_in(TENANT, None));
        watchers.org_changed(TENANT, &org("other"));
        assert!(!heard(&ann));
        drop(ann);
        assert!(watchers.bells.read().is_empty());
    }

    #[test]
    fn places_are_bounded_and_free_again() {
        let watchers = Arc::new(Watchers::default());
        watchers.bound(5);
        let mut seats: Vec<Seat> = (0..4).map(|_| watchers.enter(TENANT, &user("ann")).unwrap()).collect();
        assert!(watchers.enter(TENANT, &user("ann")).is_none());
        assert!(seats.iter().all(|seat| seat.bell.is_asked_for() && !seat.bell.is_asked_for()));
        let _bob = watchers.enter(TENANT, &user("bob")).unwrap();
        assert!(watchers.enter(TENANT, &user("carol")).is_none(), "no place on this node");
        seats.pop();
        assert!(watchers.enter(TENANT, &user("ann")).is_some());
    }

    #[test]
    fn nobody_comes_in_after_closing() {
        let watchers = Arc::new(Watchers::default());
        let ann = watchers.enter(TENANT, &user("ann")).unwrap();
        watchers.close();
        assert!(heard(&ann) && watchers.is_closed());
        assert!(watchers.enter(TENANT, &user("bob")).is_none());
    }
}
