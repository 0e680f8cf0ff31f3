#![doc = include_str!("README.md")]

pub mod access;
pub mod calls;
pub mod commands;
pub mod entitlement;
pub mod error;
mod gate;
mod journal;
pub mod learning;
mod news;
pub mod outage;
mod pruning;
mod random;
mod sweeper;
pub mod telling;
pub mod tenancy;
pub mod upstream;
pub mod waiting;
pub mod webhooks;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::engine::{Engine, Ticket};
use crate::ledger::Ledger;
use crate::outbound::Courier;

pub use access::identity::{Caller, Scopes};
pub(crate) use access::key_files::decode_server_key;
pub use commands::*;
pub use entitlement::erasing::Erase;
pub use entitlement::plans::{Plan, PlanVersion};
pub use error::ServiceError;
pub use journal::Journal;
pub use outage::Outage;
pub use telling::tallies::{Tallier, Tallies};
pub use telling::watch::{Heard, Watch};
pub use telling::watchers::Watchers;
pub use tenancy::catalog::{Catalog, PoolEntry, Tenant};
pub use tenancy::registry::{Registry, RegistryOptions};

/// The use cases: the only place where engine and ledger meet.
pub struct Service {
    /// Tenants, catalogs, keys and users.
    pub registry: Arc<Registry>,
    engine: Arc<dyn Engine>,
    /// The way to it.
    pub gate: gate::Gate,
    ledger: Arc<dyn Ledger>,
    /// What is decided while the store is away.
    pub outage: Outage,
    /// Refusals and comparisons that are not on record yet.
    pub tallies: Tallies,
    /// Decisions by plan.
    pub by_plan: telling::by_plan::ByPlan,
    pub looked: telling::looking::Looked,
    pub commits: telling::looking::Commits,
    /// What settled calls had reserved, and what they used.
    pub tokens: learning::TokenSums,
    /// Rare steps that read the ledger before they act, one at a time by id.
    turns: Box<[tokio::sync::Mutex<()>]>,
    /// Whoever moves a user's record and account to another name or back, or
    /// needs them to stay, one at a time. Taken after `turns` where both are.
    user_turns: Box<[tokio::sync::Mutex<()>]>,
    /// Whoever loads what a tenant's users share, one at a time by tenant.
    load_turns: Box<[calls::accounts::LoadTurn]>,
    /// Stands in for a plan that is gone.
    no_plan: Plan,
    stopping: AtomicBool,
    /// Changes came on record, by whomever.
    drained: tokio::sync::Notify,
    news: news::News,
    /// Sends what webhooks are told.
    courier: Courier,
    /// Thresholds that were told of.
    told: webhooks::Told,
    /// Where checks of this node wait.
    pub rooms: waiting::Rooms,
    /// A tenant was deleted.
    purge_due: tokio::sync::Notify,
    /// Its holds may be old by now.
    test_clock_moved: tokio::sync::Notify,
    pruned_holds: AtomicU64,
    /// Make-goods that this node works on.
    making_good: parking_lot::Mutex<
        std::collections::HashSet<(crate::domain::charge::TenantRef, crate::domain::ids::Name)>,
    >,
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
            gate: gate::Gate::new(engine.has_slots()),
            engine,
            ledger,
            outage,
            tallies: Tallies::default(),
            by_plan: telling::by_plan::ByPlan::default(),
            looked: telling::looking::Looked::default(),
            commits: telling::looking::Commits::default(),
            tokens: learning::TokenSums::default(),
            turns: turns(),
            user_turns: turns(),
            load_turns: (0..TURNS).map(|_| calls::accounts::LoadTurn::default()).collect(),
            no_plan: Plan::none(),
            stopping: AtomicBool::new(false),
            drained: tokio::sync::Notify::new(),
            news: news::News::default(),
            courier: Courier::default(),
            told: webhooks::Told::default(),
            rooms: waiting::Rooms::default(),
            purge_due: tokio::sync::Notify::new(),
            test_clock_moved: tokio::sync::Notify::new(),
            pruned_holds: AtomicU64::new(0),
            making_good: parking_lot::Mutex::default(),
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
