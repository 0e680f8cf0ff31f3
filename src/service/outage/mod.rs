//! While the store is away.
//!
//! A tenant says by `on_outage` what then becomes of its checks: none is
//! admitted (`closed`), or a few of each user (`bounded`), by this node alone.
//! Those are noted on this node's disk before they are answered, and booked
//! when the store is back (`booking`), under the ids they were answered with:
//! a check that went into the store just when that died is there already then,
//! and is not taken twice.

mod admitting;
mod booking;
mod ending;
mod journal;
mod told;

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Instant;

use ahash::RandomState;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::ServiceError;
use crate::domain::charge::TenantRef;
use crate::domain::hold::{Hold, RequestMark};
use crate::domain::ids::{HoldId, UserId};
use crate::domain::time::Millis;
use journal::{Entry, Journal, Told};
use told::MetBy;

const MINUTE_MS: i64 = 60_000;
/// Calls that may wait to be booked.
const PENDING_MAX: usize = 100_000;
/// Users whose last minute is remembered, and ids of refused requests.
const REMEMBERED_MAX: usize = 100_000;

/// What failed because the store was away, for the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Check,
    Settle,
    Release,
    Extend,
    Usage,
    Record,
    Book,
}

impl Operation {
    pub const ALL: [Self; 7] =
        [Self::Check, Self::Settle, Self::Release, Self::Extend, Self::Usage, Self::Record, Self::Book];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Settle => "settle",
            Self::Release => "release",
            Self::Extend => "extend",
            Self::Usage => "usage",
            Self::Record => "record",
            Self::Book => "book",
        }
    }
}

type Map<K, V> = HashMap<K, V, RandomState>;
type HoldKey = (TenantRef, HoldId);
type UserKey = (TenantRef, UserId);

/// What this node knows of an outage.
pub struct Outage {
    /// `None`: there is no place to note anything, so nothing is admitted.
    journal: Option<Arc<Journal>>,
    state: Arc<Mutex<State>>,
    is_away: AtomicBool,
    /// There is something to do for whoever books.
    work: Notify,
    errors: [AtomicU64; Operation::ALL.len()],
    admissions: AtomicU64,
    refusals: AtomicU64,
    /// As many as `state.pending`, to be read without the lock.
    pending: Arc<AtomicUsize>,
}

#[derive(Default)]
struct State {
    /// When the store was last missed first, and how many were admitted and
    /// refused until then.
    since: Option<(Instant, u64, u64)>,
    /// Tenants whose checks missed it.
    met: MetBy,
    pending: Map<HoldKey, Pending>,
    /// In the order in which they were admitted; what is not pending any more
    /// may still be among them.
    order: VecDeque<HoldKey>,
    /// When each user's last admissions were.
    shares: Map<UserKey, VecDeque<Millis>>,
    requests: Map<(TenantRef, UserId, u64), HoldId>,
    /// Ids of holds that may have been taken when the store died, by the
    /// request ids for which that was tried.
    tried: Map<(TenantRef, UserId, u64), HoldId>,
}

/// A call that was admitted here and is not booked yet.
struct Pending {
    admitted: Arc<Hold>,
    /// As it stands by what was told here since.
    now: Arc<Hold>,
    ends: Vec<Told>,
    is_noted: bool,
}

impl Pending {
    fn new(hold: Arc<Hold>, is_noted: bool) -> Self {
        Self { now: Arc::clone(&hold), admitted: hold, ends: Vec::new(), is_noted }
    }
}

impl Outage {
    /// Where nothing may be admitted without the store.
    pub fn closed() -> Self {
        Self::new(None, State::default())
    }

    /// Notes in `dir`, and finds there what was noted before and is not booked.
    pub fn open(dir: &Path) -> std::io::Result<Self> {
        let (journal, found) = Journal::open(dir)?;
        if found.torn > 0 {
            tracing::warn!(
                bytes = found.torn,
                "the last record of the journal of outages is torn: it was never answered"
            );
        }
        let mut state = State::default();
        for entry in found.entries {
            match entry {
                Entry::Admitted(hold) => state.add(hold, true),
                Entry::Ended { tenant, hold, ending } => {
                    if let Some(pending) = state.pending.get_mut(&(tenant, hold)) {
                        pending.ends.push(ending);
                    }
                }
            }
        }
        if state.pending.is_empty() {
            journal.remove_if(|| true)?;
        } else {
            tracing::warn!(calls = state.pending.len(), "calls of an outage are still to be booked");
        }
        Ok(Self::new(Some(journal), state))
    }

    fn new(journal: Option<Arc<Journal>>, state: State) -> Self {
        Self {
            journal,
            pending: Arc::new(AtomicUsize::new(state.pending.len())),
            state: Arc::new(Mutex::new(state)),
            is_away: AtomicBool::new(false),
            work: Notify::new(),
            errors: Default::default(),
            admissions: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
        }
    }

    /// Whether the store was missed and has not been seen since.
    pub fn is_away(&self) -> bool {
        self.is_away.load(Relaxed)
    }

    /// Whether a check failed for want of the store. Too much work alone is no
    /// outage, but while the store is missed all waits for it.
    pub(super) fn is_met_by(&self, error: &ServiceError) -> bool {
        match error {
            ServiceError::StoreUnavailable(_) => true,
            ServiceError::Overloaded => self.is_away(),
            _ => false,
        }
    }

    /// Calls admitted without the store.
    pub fn admissions(&self) -> u64 {
        self.admissions.load(Relaxed)
    }

    pub fn errors(&self, operation: Operation) -> u64 {
        self.errors[operation as usize].load(Relaxed)
    }

    /// Counts what failed because the store is away; the first one begins the
    /// outage.
    pub(super) fn noted<T>(
        &self,
        operation: Operation,
        result: Result<T, ServiceError>,
    ) -> Result<T, ServiceError> {
        result.inspect_err(|error| {
            if matches!(error, ServiceError::StoreUnavailable(_)) {
                self.missed(operation, error);
                self.refusals.fetch_add(u64::from(operation == Operation::Check), Relaxed);
            }
        })
    }

    pub(super) fn missed(&self, operation: Operation, error: &(dyn std::error::Error + 'static)) {
        self.errors[operation as usize].fetch_add(1, Relaxed);
        if self.is_away.swap(true, SeqCst) {
            return;
        }
        self.state.lock().since = Some((Instant::now(), self.admissions(), self.refusals.load(Relaxed)));
        tracing::error!(
            error,
            operation = operation.as_str(),
            "an outage begins: the store is away, checks are refused or admitted as tenants set by on_outage"
        );
        self.work.notify_one();
    }

    /// The store is back and all is booked; the answer says who had missed it.
    fn ended(&self) -> MetBy {
        if !self.is_away.swap(false, SeqCst) {
            return MetBy::default();
        }
        let mut state = self.state.lock();
        state.tried.clear();
        let met = std::mem::take(&mut state.met);
        let (since, admitted, refused) = state.since.take().unwrap_or((Instant::now(), 0, 0));
        drop(state);
        tracing::warn!(
            seconds = since.elapsed().as_secs(),
            admitted = self.admissions() - admitted,
            refused = self.refusals.load(Relaxed) - refused,
            "the outage is over: the store is back, what was admitted without it is booked"
        );
        met
    }

    /// Whether anything waits to be booked.
    fn has_pending(&self) -> bool {
        self.pending.load(SeqCst) > 0
    }

    /// A call admitted here and not booked yet, as it stands.
    pub(super) fn hold(&self, tenant: TenantRef, id: HoldId) -> Option<Arc<Hold>> {
        if !self.has_pending() {
            return None;
        }
        let state = self.state.lock();
        let pending = state.pending.get(&(tenant, id)).filter(|pending| pending.is_noted)?;
        Some(Arc::clone(&pending.now))
    }

    /// The call that a request id stands for, if it was admitted here and is
    /// not booked yet.
    ///
    /// # Errors
    /// It is being admitted at this moment.
    fn by_request(
        &self,
        tenant: TenantRef,
        user: &UserId,
        mark: &RequestMark,
    ) -> Result<Option<Arc<Hold>>, ServiceError> {
        if !self.has_pending() {
            return Ok(None);
        }
        let state = self.state.lock();
        let id = state.requests.get(&(tenant, user.clone(), mark.id.digest()));
        match id.and_then(|id| state.pending.get(&(tenant, *id))) {
            None => Ok(None),
            Some(pending) if pending.is_noted => Ok(Some(Arc::clone(&pending.now))),
            Some(_) => Err(ServiceError::Overloaded),
        }
    }

    /// The id for a hold that is about to be taken for a request: if that was
    /// tried before and nobody knows how it ended, the id it had then.
    pub(super) fn id_for(&self, draft: &Hold) -> HoldId {
        match &draft.request {
            Some(mark) if self.is_away() => {
                let state = self.state.lock();
                let tried = state.tried.get(&(draft.tenant, draft.user.clone(), mark.id.digest()));
                tried.copied().unwrap_or(draft.id)
            }
            _ => draft.id,
        }
    }

    fn count_pending(&self, state: &State) {
        self.pending.store(state.pending.len(), SeqCst);
    }
}

impl State {
    fn add(&mut self, hold: Arc<Hold>, is_noted: bool) {
        let key = (hold.tenant, hold.id);
        if let Some(mark) = &hold.request {
            self.requests.insert((hold.tenant, hold.user.clone(), mark.id.digest()), hold.id);
        }
        self.shares.entry((hold.tenant, hold.user.clone())).or_default().push_back(hold.created_at);
        self.order.push_back(key);
        self.pending.insert(key, Pending::new(hold, is_noted));
    }

    /// Forgets a call; that it was admitted in the last minute stays.
    fn remove(&mut self, key: &HoldKey) {
        let Some(gone) = self.pending.remove(key) else { return };
        if let Some(mark) = &gone.admitted.request {
            self.requests.remove(&(key.0, gone.admitted.user.clone(), mark.id.digest()));
        }
    }

    /// How many calls of a user were admitted in the last minute.
    fn share_of(&mut self, user: &UserKey, now: Millis) -> usize {
        let is_over = |at: &Millis| now.0 - at.0 >= MINUTE_MS;
        if self.shares.len() >= REMEMBERED_MAX {
            self.shares.retain(|key, stamps| key.0 != user.0 || !stamps.back().is_none_or(is_over));
        }
        let Some(stamps) = self.shares.get_mut(user) else { return 0 };
        while stamps.front().is_some_and(is_over) {
            stamps.pop_front();
        }
        stamps.len()
    }
}
