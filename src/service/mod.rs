#![doc = include_str!("README.md")]

mod accounts;
mod admissible;
mod admission;
mod cache;
pub mod calendar;
mod candidates;
pub mod capacity;
pub mod catalog;
pub mod catalog_writes;
mod charging;
pub mod clock;
pub mod commands;
pub mod conditions;
pub mod doubt;
mod erasing;
pub mod error;
mod extending;
#[cfg(test)]
mod fake_ledger;
#[cfg(test)]
mod fake_signer;
pub mod feedback;
mod figures;
mod finishing;
mod following;
pub mod history;
pub mod identity;
mod ingress;
mod installation;
mod journal;
mod key_files;
mod keyring;
pub mod keys;
pub mod moving;
mod news;
pub mod orgs;
pub mod outage;
mod pausing;
pub mod plans;
pub mod profiles;
mod public_key;
mod purging;
mod quota;
mod random;
pub mod reason;
pub mod records;
pub mod registry;
pub mod rights;
pub mod settings;
mod shadow;
mod slots;
mod subject;
mod sweeper;
pub mod tallies;
pub mod tenants;
mod terms;
mod token;
mod touching;
mod usage;
pub mod users;
pub mod waiting;
mod watch;
pub mod watchers;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::{Engine, Ticket};
use crate::ledger::Ledger;

pub use catalog::{Catalog, PoolEntry, Tenant};
pub use commands::*;
pub use erasing::Erase;
pub use error::ServiceError;
pub use identity::{Caller, Scopes};
pub use journal::Journal;
pub(crate) use key_files::decode_server_key;
pub use outage::Outage;
pub use plans::{Plan, PlanVersion};
pub use registry::{Registry, RegistryOptions};
pub use tallies::{Tallier, Tallies};
pub use watch::{Heard, Watch};
pub use watchers::Watchers;

/// The use cases: the only place where engine and ledger meet.
pub struct Service {
    /// Tenants, catalogs, keys and users.
    pub registry: Arc<Registry>,
    engine: Arc<dyn Engine>,
    ledger: Arc<dyn Ledger>,
    /// What is decided while the store is away.
    pub outage: Outage,
    /// Refusals and comparisons that are not on record yet.
    pub tallies: Tallies,
    /// Rare steps that read the ledger before they act, one at a time by id.
    turns: Box<[tokio::sync::Mutex<()>]>,
    /// Whoever moves a user's record and account to another name or back, or
    /// needs them to stay, one at a time. Taken after `turns` where both are.
    user_turns: Box<[tokio::sync::Mutex<()>]>,
    /// Whoever loads what a tenant's users share, one at a time by tenant.
    load_turns: Box<[accounts::LoadTurn]>,
    /// Stands in for a plan that is gone.
    no_plan: Plan,
    stopping: AtomicBool,
    /// Changes came on record, by whomever.
    drained: tokio::sync::Notify,
    news: news::News,
    /// Where checks of this node wait.
    pub rooms: waiting::Rooms,
    /// A tenant was deleted.
    purge_due: tokio::sync::Notify,
}

/// A step that is decided; its answer may go out once the ticket resolves.
pub(crate) struct Unrecorded(Option<Ticket>);

const TURNS: usize = 64;

impl Service {
    pub fn new(
        registry: Arc<Registry>,
        engine: Arc<dyn Engine>,
        ledger: Arc<dyn Ledger>,
        outage: Outage,
    ) -> Arc<Self> {
        let turns = || (0..TURNS).map(|_| tokio::sync::Mutex::default()).collect();
        Arc::new(Self {
            registry,
            engine,
            ledger,
            outage,
            tallies: Tallies::default(),
            turns: turns(),
            user_turns: turns(),
            load_turns: (0..TURNS).map(|_| accounts::LoadTurn::default()).collect(),
            no_plan: Plan::none(),
            stopping: AtomicBool::new(false),
            drained: tokio::sync::Notify::new(),
            news: news::News::default(),
            rooms: waiting::Rooms::default(),
            purge_due: tokio::sync::Notify::new(),
        })
    }

    /// Whether new work should be sent here: the store answers and the server
    /// is not about to stop.
    pub async fn ready(&self) -> Result<(), ServiceError> {
        if self.stopping.load(Ordering::Relaxed) {
            return Err(ServiceError::StoreUnavailable("the server is about to stop".into()));
        }
        // Where the engine runs apart, known users are decided about without the
        // ledger: its absence is no reason to send them elsewhere.
        if self.engine.has_slots() {
            return Ok(self.engine.ready().await?);
        }
        if self.outage.is_away() {
            return Err(ServiceError::StoreUnavailable("it was missed and has not been seen since".into()));
        }
        self.ledger.revision().await?;
        Ok(())
    }

    /// Tells load balancers to look elsewhere; requests are still served.
    pub fn stop_being_ready(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Waits for the turn of whoever reads `id` from the ledger to act on it.
    async fn turn(&self, id: crate::domain::ids::HoldId) -> tokio::sync::MutexGuard<'_, ()> {
        self.turns[id.0 as usize % TURNS].lock().await
    }
}

/// A new id that nobody can guess: 74 bits of it are random.
pub(crate) fn new_hold_id(now: crate::domain::time::Millis) -> crate::domain::ids::HoldId {
    crate::domain::ids::HoldId::from_parts(now.0, random::bytes())
}
