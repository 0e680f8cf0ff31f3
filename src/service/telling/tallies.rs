//! Refusals and comparisons, counted beside the decisions.
//!
//! A refusal must cost next to nothing, and a flood of them must not become a
//! flood of rows: so they are counted in memory and added to the ledger about
//! once a second, before somebody reads them, and at the end. What kill -9 can
//! take is the last second of these counters; no decision depends on them.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use ahash::RandomState;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::actives::Actives;
use super::activity::Activity;
use crate::domain::charge::TenantRef;
use crate::domain::decision::Refusal;
use crate::domain::ids::{Label, Name, UserId};
use crate::domain::time::Millis;
use crate::ledger::{
    Comparison, FAILED_MAX, Failed, Grounds, Group, Ledger, LedgerError, OTHER, RECENT_MAX, RefusalCount,
    RefusedCall, RefusedGroup, RefusedMinute, RefusedUser, SLOT_MS, SLOTS_KEPT, THEIRS_MAX, Tally, UsedSlot,
};
use crate::service::tenancy::catalog::Tenant;
use crate::service::{CheckCommand, MaxOutput, Service, ServiceError};

const EVERY: Duration = Duration::from_secs(1);
/// In how many of these users' activity is told once.
const ACTIVITY_EVERY: u32 = 10;
/// Parts that are locked by themselves.
const SHARDS: usize = 64;
/// Users of a part that are counted one by one until the next flush: 100,000
/// in all.
const USERS_MAX: usize = 100_000 / SHARDS;
/// Refusals of a part that are kept one by one until the next flush.
const CALLS_MAX: usize = 128_000 / SHARDS;
/// Tenants and days of a part that are compared until the next flush.
const DAYS_MAX: usize = 4_096 / SHARDS;
/// Minutes and features of a part that are counted until the next flush; those of
/// more features count as calls without one.
const MINUTES_MAX: usize = 4_096 / SHARDS;
/// Days, plans, orgs, models and features together of a part that are counted until
/// the next flush; those beyond count as calls that named none of them.
const GROUPS_MAX: usize = 32_768 / SHARDS;
/// Users written in one transaction, so that commits find their way between.
const USERS_AT_ONCE: usize = 128;
/// Minutes further back are taken out: forty days.
const KEPT_MINUTES: i64 = 40 * 24 * 60;
/// Counters of days further back are taken out.
const KEPT_DAYS: i32 = 400;

type Map<K, V> = HashMap<K, V, RandomState>;

/// What was counted since the last flush.
pub struct Tallies {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    actives: Actives,
    activity: Activity,
    /// Refusals that were counted by their code alone.
    uncounted: AtomicU64,
    /// Taken out of the shards and not on record yet; held by whoever writes.
    waiting: tokio::sync::Mutex<VecDeque<Arc<Tally>>>,
}

#[derive(Default)]
struct Shard {
    users: Map<(TenantRef, UserId), Refused>,
    /// Refusals that are kept one by one, of all of them.
    calls: usize,
    /// Of users beyond the bound, by tenant, day and code.
    others: Map<(TenantRef, i32, &'static str), u64>,
    compared: Map<(TenantRef, i32), Map<Box<str>, Counts>>,
    minutes: Map<(TenantRef, i64, Option<Label>), u64>,
    groups: Map<(TenantRef, i32, Asked), u64>,
}

/// What a check was about, beside its user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(in crate::service) struct Asked {
    /// With its version.
    pub plan: Option<(Name, u32)>,
    pub org: Option<Name>,
    pub model: Option<Name>,
    pub feature: Option<Label>,
}

/// Checks by our word.
type Counts = SmallVec<[(&'static str, u64); 2]>;

#[derive(Default)]
struct Refused {
    counts: SmallVec<[(i32, &'static str, u64); 2]>,
    /// The newest, at most [`RECENT_MAX`].
    recent: VecDeque<RefusedCall>,
}

impl Default for Tallies {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            actives: Actives::default(),
            activity: Activity::default(),
            uncounted: AtomicU64::new(0),
            waiting: tokio::sync::Mutex::default(),
        }
    }
}

impl Tallies {
    /// Counts a refused check. `user`: under which name; `plan`: what held.
    pub(in crate::service) fn refused(
        &self,
        tenant: &Tenant,
        user: &UserId,
        command: &CheckCommand,
        asked: Asked,
        refusal: &Refusal,
        now: Millis,
    ) {
        self.count_minute(tenant.number, now.0.div_euclid(60_000), asked.feature.as_ref());
        let day = tenant.catalog().settings.zone.local_day(now);
        let code = refusal.code.as_str();
        self.count(tenant.number, user, (day, code), || RefusedCall {
            at: now,
            code: Cow::Borrowed(code),
            limit: refusal.limit.as_ref().map(Label::shared),
            grounds: Some(Box::new(grounds(command, refusal, asked.plan.clone()))),
        });
        self.count_groups(tenant.number, day, asked);
    }

    fn count_minute(&self, tenant: TenantRef, minute: i64, feature: Option<&Label>) {
        let mut key = (tenant, minute, feature.cloned());
        let mut shard = self.shard(&key).lock();
        if shard.minutes.len() >= MINUTES_MAX && !shard.minutes.contains_key(&key) {
            key.2 = None;
        }
        *shard.minutes.entry(key).or_default() += 1;
    }

    fn count_groups(&self, tenant: TenantRef, day: i32, asked: Asked) {
        let mut key = (tenant, day, asked);
        let mut shard = self.shard(&key).lock();
        if shard.groups.len() >= GROUPS_MAX && !shard.groups.contains_key(&key) {
            key.2 = Asked::default();
        }
        *shard.groups.entry(key).or_default() += 1;
    }

    fn count(
        &self,
        tenant: TenantRef,
        user: &UserId,
        (day, code): (i32, &'static str),
        call: impl FnOnce() -> RefusedCall,
    ) {
        let key = (tenant, user.clone());
        let mut shard = self.shard(&key).lock();
        let Shard { users, calls, others, .. } = &mut *shard;
        if users.len() >= USERS_MAX && !users.contains_key(&key) {
            *others.entry((tenant, day, code)).or_default() += 1;
            self.uncounted.fetch_add(1, Relaxed);
            return;
        }
        let refused = users.entry(key).or_default();
        match refused.counts.iter_mut().find(|(of, by, _)| (*of, *by) == (day, code)) {
            Some((.., count)) => *count += 1,
            None => refused.counts.push((day, code, 1)),
        }
        if refused.recent.len() >= RECENT_MAX || *calls >= CALLS_MAX {
            *calls -= usize::from(refused.recent.pop_front().is_some());
        }
        if *calls < CALLS_MAX {
            refused.recent.push_back(call());
            *calls += 1;
        }
    }

    /// Counts a check that another limiter decided too. `ours`: `allow` or our
    /// code; `theirs`: `allow` or their cause.
    pub fn compared(&self, tenant: &Tenant, ours: &'static str, theirs: &str, now: Millis) {
        let day = tenant.catalog().settings.zone.local_day(now);
        let key = (tenant.number, day);
        let mut shard = self.shard(&key).lock();
        if shard.compared.len() >= DAYS_MAX && !shard.compared.contains_key(&key) {
            return;
        }
        let words = shard.compared.entry(key).or_default();
        let theirs = match words.len() < THEIRS_MAX || words.contains_key(theirs) {
            true => theirs,
            false => OTHER,
        };
        if !words.contains_key(theirs) {
            words.insert(theirs.into(), Counts::new());
        }
        let Some(counts) = words.get_mut(theirs) else { return };
        match counts.iter_mut().find(|(word, _)| *word == ours) {
            Some((_, checks)) => *checks += 1,
            None => counts.push((ours, 1)),
        }
    }

    /// A user's check was admitted under a plan. `digest` stands for the user.
    pub(in crate::service) fn admitted(&self, tenant: &Tenant, plan: &Name, digest: u64, now: Millis) {
        self.actives.saw(tenant.number, plan, digest, now);
    }

    /// What came on record was used.
    pub(in crate::service) fn used(&self, used: Vec<UsedSlot>) {
        self.activity.add(used);
    }

    /// Refusals so far that were counted by code alone.
    pub fn uncounted(&self) -> u64 {
        self.uncounted.load(Relaxed)
    }

    fn shard(&self, key: &impl std::hash::Hash) -> &Mutex<Shard> {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }

    /// Puts on record all that was counted before this was called. What cannot
    /// be written stays and is tried again; meanwhile no more than the bounds
    /// comes together. `activity`: of users, too.
    pub(super) async fn flush(&self, ledger: &dyn Ledger, activity: bool) -> Result<(), LedgerError> {
        let mut waiting = self.waiting.lock().await;
        // Only what is out of the shards: while it cannot be written, the
        // shards keep to their bounds.
        Self::write(&mut waiting, ledger).await?;
        let shards: Vec<Shard> = self.shards.iter().map(|shard| std::mem::take(&mut *shard.lock())).collect();
        portions(shards, &mut waiting);
        let active = self.actives.take();
        if !active.is_empty() {
            waiting.push_back(Arc::new(Tally { active, ..Tally::default() }));
        }
        if activity {
            waiting.extend(self.activity.take().into_iter().map(Arc::new));
        }
        Self::write(&mut waiting, ledger).await
    }

    async fn write(waiting: &mut VecDeque<Arc<Tally>>, ledger: &dyn Ledger) -> Result<(), LedgerError> {
        while let Some(tally) = waiting.front() {
            ledger.add_tally(Arc::clone(tally)).await?;
            waiting.pop_front();
        }
        Ok(())
    }
}

/// What a refused call asked, and the figures that stood against it.
fn grounds(command: &CheckCommand, refusal: &Refusal, plan: Option<(Name, u32)>) -> Grounds {
    let failed = refusal.violations.iter().take(FAILED_MAX).map(|violation| Failed {
        name: violation.name.clone(),
        scope: violation.scope,
        kind: Cow::Borrowed(violation.kind),
        meter: violation.meter.clone(),
        limit: violation.limit,
        remaining: violation.remaining,
        requested: violation.requested,
        remedy: violation.remedy,
        would_fit: violation.would_fit,
    });
    Grounds {
        plan,
        model: command.model.clone(),
        feature: command.feature.clone(),
        bulk: command.bulk,
        input_tokens: command.input_tokens,
        max_output_tokens: match command.max_output {
            MaxOutput::Tokens(tokens) => Some(tokens),
            MaxOutput::Cap | MaxOutput::Auto => None,
        },
        min_output_tokens: command.min_output_tokens,
        failed: failed.collect(),
    }
}

/// Cuts what was counted into pieces of one transaction each.
fn portions(shards: Vec<Shard>, to: &mut VecDeque<Arc<Tally>>) {
    let mut next = Tally { groups: groups(&shards), ..Tally::default() };
    for shard in shards {
        next.compared.extend(shard.compared.into_iter().flat_map(comparisons));
        for ((tenant, minute, feature), count) in shard.minutes {
            add_minute(&mut next.minutes, RefusedMinute { tenant, minute, feature, count });
        }
        let others = shard.others.into_iter().map(|((tenant, day, code), count)| RefusedUser {
            tenant,
            user: None,
            counts: vec![RefusalCount { day, code: Cow::Borrowed(code), count }],
            recent: Vec::new(),
        });
        let users = shard.users.into_iter().map(|((tenant, user), refused)| refused.of(tenant, user));
        for refused in others.chain(users) {
            next.refused.push(refused);
            if next.refused.len() >= USERS_AT_ONCE {
                to.push_back(Arc::new(std::mem::take(&mut next)));
            }
        }
    }
    if next != Tally::default() {
        to.push_back(Arc::new(next));
    }
}

/// What was counted together, one by one.
fn groups(shards: &[Shard]) -> Vec<RefusedGroup> {
    type Key = (TenantRef, i32, Group, Option<Arc<str>>);
    let mut sums: BTreeMap<Key, u64> = BTreeMap::new();
    for ((tenant, day, asked), count) in shards.iter().flat_map(|shard| &shard.groups) {
        let Asked { plan, org, model, feature } = asked;
        let shared = |name: &Option<Name>| name.as_ref().map(|name| name.shared());
        let feature = feature.as_ref().map(|feature| feature.shared());
        let names = [
            (Group::Plan, plan.as_ref().map(|(plan, _)| plan.shared())),
            (Group::Org, shared(org)),
            (Group::Model, shared(model)),
            (Group::Feature, feature),
        ];
        for (group, name) in names {
            *sums.entry((*tenant, *day, group, name)).or_default() += count;
        }
    }
    let row = |((tenant, day, group, name), count)| RefusedGroup { tenant, day, group, name, count };
    sums.into_iter().map(row).collect()
}

/// Calls without a feature may have been counted in several parts.
fn add_minute(minutes: &mut Vec<RefusedMinute>, new: RefusedMinute) {
    let is_same = |known: &&mut RefusedMinute| {
        (known.tenant, known.minute, &known.feature) == (new.tenant, new.minute, &None)
    };
    let known = if new.feature.is_none() { minutes.iter_mut().find(is_same) } else { None };
    match known {
        Some(known) => known.count += new.count,
        None => minutes.push(new),
    }
}

fn comparisons(
    ((tenant, day), words): ((TenantRef, i32), Map<Box<str>, Counts>),
) -> impl Iterator<Item = (TenantRef, Comparison)> {
    let of_word = move |(theirs, counts): (Box<str>, Counts)| {
        let theirs: Arc<str> = theirs.into();
        counts.into_iter().map(move |(ours, checks)| {
            let comparison =
                Comparison { day, ours: Cow::Borrowed(ours), theirs: Arc::clone(&theirs), checks };
            (tenant, comparison)
        })
    };
    words.into_iter().flat_map(of_word)
}

impl Refused {
    fn of(self, tenant: TenantRef, user: UserId) -> RefusedUser {
        let count = |(day, code, count)| RefusalCount { day, code: Cow::Borrowed(code), count };
        RefusedUser {
            tenant,
            user: Some(user),
            counts: self.counts.into_iter().map(count).collect(),
            recent: self.recent.into(),
        }
    }
}

/// Flushes for as long as it is not stopped.
pub struct Tallier {
    task: JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

impl Tallier {
    /// Puts the rest on record and ends.
    pub async fn stop(self) {
        // The receiver is gone only if the task is.
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

impl Service {
    /// Starts putting on record what is counted.
    pub fn start_tallies(self: &Arc<Self>) -> Tallier {
        let service = Arc::clone(self);
        let (stop, mut stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let (mut last, mut second) = (false, 0u32);
            while !last {
                second = second.wrapping_add(1);
                tokio::select! {
                    _ = &mut stopped => last = true,
                    () = tokio::time::sleep(EVERY) => {}
                }
                if let Err(error) = service
                    .tallies
                    .flush(&*service.ledger, last || second.is_multiple_of(ACTIVITY_EVERY))
                    .await
                {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "refusals are not on record yet"
                    );
                }
                if let Err(error) = service.keep_outputs(second, last).await {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "lengths of answers are not on record yet");
                }
            }
        });
        Tallier { task, stop }
    }

    /// Puts on record what is counted so far, for whoever reads it.
    pub(in crate::service) async fn flush_tallies(&self) -> Result<(), ServiceError> {
        Ok(self.tallies.flush(&*self.ledger, true).await?)
    }

    /// Takes out counters of days that are no longer kept.
    pub(in crate::service) async fn prune_tallies(&self, tenant: &Tenant) -> Result<(), ServiceError> {
        let today = tenant.catalog().settings.zone.local_day(tenant.now());
        while self.ledger.prune_tallies(tenant.number, today - KEPT_DAYS).await? {}
        let minute = tenant.now().0.div_euclid(60_000) - KEPT_MINUTES;
        while self.ledger.prune_minutes(tenant.number, minute).await? {}
        let slot = tenant.now().0.div_euclid(SLOT_MS) - SLOTS_KEPT;
        while self.ledger.prune_user_slots(tenant.number, slot).await? {}
        self.prune_outputs(tenant).await
    }
}

#[cfg(test)]
#[path = "tallies_tests.rs"]
mod tests;
