#![doc = include_str!("README.md")]

mod entry;
mod finishing;
mod holds;
mod lines;
mod looking;
mod memory;
mod moving;
mod outbox;
mod promises;
pub mod redis;
mod refusing;

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::domain::account::Account;
use crate::domain::charge::{AccountKey, Charge, Demand, TenantRef};
use crate::domain::hold::{FinishedBy, Hold, ReleaseReason, RequestMark, Settlement};
use crate::domain::ids::{HoldId, UserId};
use crate::domain::line::{Place, Turn, Waiter};
use crate::domain::plan::Scope;
use crate::domain::slot::{Fence, Position, Slot};
use crate::domain::step::{Ask, Probe, Shortfalls, Standings};
use crate::domain::taking::Taking;
use crate::domain::time::Millis;

pub use memory::MemoryEngine;

/// How long a finished request id is remembered at least.
pub const REQUESTS_KEPT_MS: i64 = 24 * 3_600_000;

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Changes cannot be recorded now: nothing was taken.
    #[error("the engine cannot take changes now")]
    Unavailable,
    /// More changes wait to be recorded than memory should hold.
    #[error("too many changes wait to be recorded")]
    Overloaded,
    /// A user's account goes by another name by now: whoever asked looks again
    /// whose it is. Nothing was taken.
    #[error("the account goes by another name")]
    Moved,
    /// The tenant's slot is empty, behind, of another epoch, or reached over a
    /// connection that is new: it has to be compared with the ledger
    /// ([`Engine::admit`]). Nothing was taken.
    #[error("the slot must be compared with the ledger")]
    Unsure(TenantRef),
    /// The tenant's clock in the engine says something else than the caller's
    /// `now`: whoever asked sets theirs, or the engine's (a test clock that the
    /// slot has lost), and looks again. Nothing was taken.
    #[error("the engine's clock says {}", .1.0)]
    Clock(TenantRef, Millis),
}

/// When what an engine apart from this process decided is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// Once the engine has it. If the engine is emptied, what the ledger does
    /// not have yet is lost.
    ByEngine,
    /// Once the ledger has it.
    ByLedger,
}

/// Applies one operation wholly or not at all.
///
/// An engine knows no plans, no calendars and no bodies: everything a decision
/// needs is in the operation. Its state is a cache of the ledger: an account
/// it does not know is answered [`Step::Missing`], loaded by the caller, and
/// the operation repeated.
pub trait Engine: Send + Sync + 'static {
    /// Takes all charges of a check, or none.
    fn take<'a>(&'a self, take: &'a Take, now: Millis) -> Reply<'a, Taken>;
    /// Settles or releases a hold, once.
    fn finish<'a>(&'a self, finish: &'a Finish, now: Millis) -> Reply<'a, Finished>;
    /// Renews a lease, and reserves more under the rules of a check.
    fn extend<'a>(&'a self, extend: &'a Extend, now: Millis) -> Reply<'a, Extended>;
    /// Brings an account's cells to `now` by the figures of `charges` and
    /// records that: what changes next finds them as they ran until now. Of a
    /// bucket or a rolling limit whose charge asks for something, what there is
    /// beyond what must be left behind is gone: told twice, it is gone once.
    /// `None`: there is nothing to bring.
    fn touch<'a>(
        &'a self,
        key: &'a AccountKey,
        charges: &'a [Charge],
        now: Millis,
    ) -> Reply<'a, Option<Ticket>>;
    /// Moves everything of a user's account to another name: cells, holds and
    /// request ids, in one change. From then on operations on `from` are
    /// answered [`EngineError::Moved`]. Where there is nothing to move, only
    /// that is noted.
    fn move_account<'a>(
        &'a self,
        tenant: TenantRef,
        from: &'a UserId,
        to: &'a UserId,
        now: Millis,
    ) -> Reply<'a, Moved>;
    /// Nobody's account has moved away from this name (any more).
    fn reopen<'a>(&'a self, key: &'a AccountKey) -> Plain<'a, ()>;
    /// When an account will be at rest, and whether holds of it are unfinished.
    fn rest<'a>(&'a self, key: &'a AccountKey, now: Millis) -> Reply<'a, Rest>;
    /// Shows the limits of `accounts` that `charges` are on, account by
    /// account; `None` for one that the engine does not know. Nothing changes.
    fn probe<'a>(
        &'a self,
        accounts: &'a [AccountKey],
        charges: &'a [Charge],
        now: Millis,
    ) -> Plain<'a, Vec<Option<Probed>>>;
    /// A hold that is not finished on record yet, if its account is known; it
    /// may be one that is, for a while.
    fn hold(&self, tenant: TenantRef, id: HoldId) -> Plain<'_, Option<Arc<Hold>>>;
    /// Stands in a pool's line, leaves it, or shows that a node is there.
    fn stand<'a>(&'a self, pool: &'a AccountKey, step: &'a LineStep) -> Plain<'a, Stood>;
    /// The hold that a request id of this user stands for.
    fn request<'a>(&'a self, user: &'a AccountKey, digest: u64, now: Millis) -> Reply<'a, Option<HoldId>>;
    /// Hands over what the ledger has of the missing accounts, in the order of
    /// their keys. The first of two loaders wins.
    fn load<'a>(&'a self, missing: &'a Missing, loaded: Vec<Loaded>) -> Plain<'a, ()>;

    /// Waits for changes to record, in the order they happened.
    fn changes(&self) -> BoxFuture<'_, Batch>;
    /// The changes are on record: answers may go out. Where several processes
    /// work on one engine, a hold that has finished stays known for some
    /// minutes: nobody who read it before can end it again.
    fn committed(&self, batch: Batch) -> BoxFuture<'_, ()>;
    /// The changes could not be recorded. An engine whose state is in this
    /// process forgets them and everything that was built on them; another one
    /// hands them over again.
    fn failed(&self, batch: Batch) -> BoxFuture<'_, ()>;
    /// A ticket for everything of a tenant that happened so far.
    fn barrier(&self, tenant: TenantRef) -> Ticket;
    /// What is known of these finished holds is not as it is on record any more:
    /// their user was erased.
    fn forget_holds<'a>(&'a self, _tenant: TenantRef, _holds: &'a [HoldId]) -> Plain<'a, ()> {
        std::future::ready(Ok(())).boxed()
    }
    /// Drops everything of a tenant that is no more. What of it is queued is
    /// handed over like the rest: the ledger leaves it out.
    fn forget_tenant(&self, tenant: TenantRef) -> Plain<'_, ()>;
    /// Drops accounts that were idle for two sweeps. Returns how many stay.
    fn sweep(&self, now: Millis) -> BoxFuture<'_, usize>;

    /// Whether tenants have slots apart from this process: then what is decided
    /// comes on record by whichever node is at hand.
    fn has_slots(&self) -> bool {
        false
    }
    /// Looks at a tenant's slot from time to time, too: others may have left
    /// something in it and be no more.
    fn look_after(&self, _tenant: TenantRef, _recorded: Slot) {}
    /// Nothing more will be decided here: what gathers for
    /// [`changes`](Self::changes) is handed over at once.
    fn hurry(&self) {}
    /// How far the ledger is behind, as far as this process knows.
    fn lag(&self) -> Lag {
        Lag::default()
    }
    /// Whether anything can be decided now.
    fn ready(&self) -> Plain<'_, ()> {
        std::future::ready(Ok(())).boxed()
    }
    /// Compares a tenant's slot with what the ledger says of it, after
    /// [`EngineError::Unsure`]. `false`: it is empty or behind and has to be
    /// built anew.
    fn admit(&self, _tenant: TenantRef, _recorded: Slot) -> Plain<'_, bool> {
        std::future::ready(Ok(true)).boxed()
    }
    /// From now on nothing changes in a slot until it is opened in a later
    /// epoch than `epoch`; what it has for the ledger can still be drained.
    fn close_slot(&self, _tenant: TenantRef, _epoch: u64) -> Plain<'_, ()> {
        std::future::ready(Ok(())).boxed()
    }
    /// What a slot has for the ledger beyond what is on record, as
    /// [`changes`](Self::changes) hands it over; `None`: nothing more.
    fn remaining(&self, _tenant: TenantRef, _recorded: Slot) -> Plain<'_, Option<Batch>> {
        std::future::ready(Ok(None)).boxed()
    }
    /// Opens a slot in a new epoch, without any account. Where it is open in
    /// that epoch or a later one, nothing happens.
    fn open_slot(&self, _tenant: TenantRef, _recorded: Slot) -> Plain<'_, ()> {
        std::future::ready(Ok(())).boxed()
    }
    /// The last change that a tenant's slot knows of; `None`: the engine has no
    /// slots.
    fn position(&self, _tenant: TenantRef) -> Plain<'_, Option<Position>> {
        std::future::ready(Ok(None)).boxed()
    }
    /// Where a test tenant's clock stands for all who decide by this engine;
    /// `None`: nobody told, or the engine is this process's own.
    fn clock(&self, _tenant: TenantRef) -> Plain<'_, Option<Millis>> {
        std::future::ready(Ok(None)).boxed()
    }
    /// Tells all who decide by this engine where a test tenant's clock stands.
    fn set_clock(&self, _tenant: TenantRef, _now: Millis) -> Plain<'_, ()> {
        std::future::ready(Ok(())).boxed()
    }
}

/// How far the ledger is behind the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lag {
    /// Changes that are not on record.
    pub changes: u64,
    /// For how long that has been so without a pause, in the worst slot.
    pub for_ms: u64,
}

/// Short messages among the nodes that share an engine. Nothing rests on them:
/// what they tell is found out without them, a little later.
pub trait Channel: Send + Sync + 'static {
    /// Best effort.
    fn tell(&self, message: Vec<u8>) -> BoxFuture<'_, ()>;
    /// The next message; `None`: some may have been missed. For one listener.
    fn hear(&self) -> BoxFuture<'_, Option<Vec<u8>>>;
}

pub type Reply<'a, T> = BoxFuture<'a, Result<Step<T>, EngineError>>;
/// An answer that no account can be missing for.
pub type Plain<'a, T> = BoxFuture<'a, Result<T, EngineError>>;

/// What an operation comes to.
pub enum Step<T> {
    Done(T),
    Missing(Missing),
}

/// Accounts to be loaded, pinned so that nothing drops them meanwhile.
pub struct Missing {
    pub keys: SmallVec<[AccountKey; 2]>,
    /// What has to be on record before the ledger is asked for them: its
    /// figures would lag.
    pub after: Option<Position>,
    asked: entry::Asked,
}

/// What [`Engine::probe`] shows of one account.
pub struct Probed {
    /// In the order of the account's charges.
    pub probes: Vec<Probe>,
    /// When its next lease ends; `None` when none runs.
    pub next_lease_end: Option<Millis>,
}

/// Changes that come on record together.
#[derive(Default)]
pub struct Batch {
    pub changes: Vec<Change>,
    /// Where others may hand over the same ones: these come on record once.
    pub fence: Option<Fence>,
}

/// An account as the ledger has it.
#[derive(Default)]
pub struct Loaded {
    pub account: Account,
    /// Holds of a user's account that are neither settled nor released.
    pub unfinished: Vec<Arc<Hold>>,
    /// Request ids: digest, hold, when it finished (`Millis::MAX`: it has not).
    pub requests: Vec<(u64, HoldId, Millis)>,
}

/// Resolves when a change is on record.
pub struct Ticket(Option<oneshot::Receiver<bool>>);

impl Ticket {
    /// For what is as safe as it will be already.
    pub fn done() -> Self {
        Self(None)
    }

    fn waiting(receiver: oneshot::Receiver<bool>) -> Self {
        Self(Some(receiver))
    }

    /// `false`: the change could not be recorded and never happened.
    pub async fn recorded(self) -> bool {
        match self.0 {
            None => true,
            Some(receiver) => receiver.await.unwrap_or(false),
        }
    }
}

pub type Accounts = SmallVec<[AccountKey; 2]>;

/// A check. `accounts[0]` is the user's; scopes ascend.
pub struct Take {
    pub accounts: Accounts,
    pub ask: Ask,
    /// What reserving some output costs in credits.
    pub credits: Demand,
    /// The hold to be, without receipts.
    pub draft: Hold,
    /// The lease asked for, in ms.
    pub lease_ms: i64,
    pub max_hold_ms: i64,
    /// Decides and takes nothing.
    pub dry_run: bool,
    /// A refusal leaves no trace in tallies and promised waits: whoever asks
    /// tries another way first.
    pub quiet: bool,
    /// Where it stands among those who wait for its pool; `None`: it asks
    /// nobody.
    pub place: Option<Place>,
}

#[allow(clippy::large_enum_variant, reason = "taken apart at once, never kept")]
pub enum Taken {
    Hold {
        hold: Arc<Hold>,
        standings: Standings,
        /// What enforcement would have refused it for.
        shortfalls: Shortfalls,
        ticket: Ticket,
    },
    /// A dry run that fits, or would be taken all the same.
    Fits { draft: Box<Hold>, standings: Standings, shortfalls: Shortfalls },
    Refused {
        shortfalls: Shortfalls,
        standings: Standings,
        /// The wait for the pool at best, in ms.
        at_best_ms: u64,
        /// There, if what the refusal rests on is not on record yet.
        ticket: Option<Ticket>,
    },
    /// The request id stands for a hold already.
    Known(HoldId),
}

/// What becomes of a pool's line. It is on no record and may be lost: whoever
/// waits comes back.
#[derive(Debug, Clone)]
pub enum LineStep {
    /// Stands in it, if fewer than `most` do.
    Enter {
        waiter: Waiter,
        most: usize,
    },
    Leave(Turn),
    /// A sign of life of a node: who waits at one that gives none is forgotten.
    Keep {
        node: u64,
    },
}

/// A pool's line after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stood {
    /// `false`: the line is full.
    pub stands: bool,
    /// How many of the node wait, where it gave a sign of life.
    pub of_node: usize,
}

/// The end of a hold.
pub struct Finish {
    pub hold: HoldId,
    /// The hold as the caller found it, for an engine that has no copy of it.
    pub found: Option<Arc<Hold>>,
    /// The user's account first, then those of the receipts.
    pub accounts: Accounts,
    /// The limits to show afterwards.
    pub show: SmallVec<[Charge; 8]>,
    pub how: How,
    /// Corrects what a rule ended: the hold as the only corrector at work has
    /// found it. Without it, what a rule ended has finished.
    pub ended_by_rule: Option<Arc<Hold>>,
}

pub enum How {
    /// `at` and `late` are filled in by the engine.
    Settle(Box<Settlement>),
    Release {
        reason: ReleaseReason,
        by: FinishedBy,
    },
    /// `usage: unknown`: the lease ends, the amounts stay.
    Doubt,
}

#[allow(clippy::large_enum_variant, reason = "taken apart at once, never kept")]
pub enum Finished {
    Done {
        hold: Arc<Hold>,
        standings: Standings,
        ticket: Ticket,
    },
    /// It had finished before (or is in doubt already, for `Doubt`).
    Already(Arc<Hold>),
    /// A release after progress was reported.
    HasProgress(Arc<Hold>),
    /// A rule or an admin was to end a hold whose lease runs.
    NotInDoubt(Arc<Hold>),
    /// The account does not have it open: the ledger knows.
    NotOpen,
}

/// A sign of life.
pub struct Extend {
    pub hold: HoldId,
    /// Names the step: asked for again since the answer was lost, it is done
    /// once. (A second end of a hold is none by itself.)
    pub operation: u128,
    /// As in [`Finish`].
    pub found: Option<Arc<Hold>>,
    pub accounts: Accounts,
    /// One charge a receipt, in the receipts' order, then those only shown.
    pub charges: SmallVec<[Charge; 8]>,
    /// The receipts the charges were made for: if they differ by now, the
    /// caller looks again.
    pub receipts: usize,
    pub add_output: u64,
    pub add_credits: u64,
    pub reserved_before: u64,
    pub lease_seconds: u32,
    pub progress: u64,
    pub mark: Option<RequestMark>,
    pub taking: Taking,
}

pub enum Extended {
    Done {
        hold: Arc<Hold>,
        standings: Standings,
        /// What enforcement would have refused it for.
        shortfalls: Shortfalls,
        ticket: Ticket,
    },
    Refused {
        shortfalls: Shortfalls,
        standings: Standings,
    },
    LeaseEnded(Arc<Hold>),
    Already(Arc<Hold>),
    /// The same extend again: nothing taken twice.
    Replayed(Arc<Hold>),
    /// The same id with another body.
    MarkReused,
    /// The hold was extended meanwhile: ask again.
    Changed,
    NotOpen,
}

pub enum Moved {
    Done(Ticket),
    /// The other name has an account that still counts.
    Occupied,
}

/// See [`Engine::rest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rest {
    /// `None`: never.
    pub at: Option<Millis>,
    pub unfinished: bool,
}

/// One step to be recorded.
#[derive(Default)]
pub struct Change {
    /// `None` for a barrier, and for a step that is about accounts alone.
    pub hold: Option<Arc<Hold>>,
    /// The hold before the step, if it existed.
    pub before: Option<Arc<Hold>>,
    /// Packed state of every account touched.
    /// No bytes: the account is no more.
    pub accounts: SmallVec<[(AccountKey, Arc<[u8]>); 2]>,
    /// Holds that have another user from now on.
    pub moved: Vec<Arc<Hold>>,
    pins: entry::Pins,
    done: Option<oneshot::Sender<bool>>,
}

/// What the end of a hold makes of it, apart from any account; `Err` is the
/// answer when it does not end.
#[allow(clippy::result_large_err, reason = "an answer, not an error; taken apart at once")]
pub(crate) fn finish_hold(finish: &Finish, before: &Arc<Hold>, now: Millis) -> Result<Hold, Finished> {
    finishing::end(finish, before, now).map(|(hold, _)| hold)
}

/// The scopes of `accounts`, in their order.
pub(crate) fn scopes(accounts: &[AccountKey]) -> SmallVec<[Scope; 4]> {
    accounts.iter().map(|key| key.scope).collect()
}
