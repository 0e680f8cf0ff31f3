//! The one way from an operation to an engine: what the engine lacks is loaded
//! from the ledger and the operation repeated.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::domain::account::Account;
use crate::domain::charge::{AccountKey, Charge, TenantRef};
use crate::domain::hold::Hold;
use crate::domain::ids::HoldId;
use crate::domain::plan::Scope;
use crate::domain::step::{self, Probe, Shown};
use crate::domain::time::Millis;
use crate::engine::{EngineError, Loaded, Plain, Probed, REQUESTS_KEPT_MS, Reply, Step, Ticket};
use crate::ledger::StoredAccount;
use crate::service::error::ServiceError;
use crate::service::{Service, Tenant, Unrecorded};
use crate::traces;

/// Loads before giving up: each round loads what was missing, so more than a
/// few mean that the store fails under our hands.
const ROUNDS: usize = 8;
/// How long a call waits for another one to load what both need.
const PATIENCE: Duration = Duration::from_secs(5);

/// One call at a time loads what many share; those who wait for it are all
/// woken at once.
#[derive(Default)]
pub(in crate::service) struct LoadTurn {
    taken: AtomicBool,
    over: Notify,
}

/// Ends the turn when it is dropped.
struct Loading<'a>(&'a LoadTurn);

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, SeqCst);
        self.0.over.notify_waiters();
    }
}

impl LoadTurn {
    /// Takes the turn; `None`: somebody had it, and it is over.
    async fn take(&self, until: Instant) -> Result<Option<Loading<'_>>, ServiceError> {
        let mut over = pin!(self.over.notified());
        // What ends from here on is heard.
        over.as_mut().enable();
        if !self.taken.swap(true, SeqCst) {
            return Ok(Some(Loading(self)));
        }
        timeout_at(until, over).await.map_err(|_| ServiceError::Overloaded)?;
        Ok(None)
    }
}

impl Service {
    /// Runs an engine operation, loading the accounts it lacks.
    pub(in crate::service) async fn apply<'a, T>(
        &'a self,
        now: Millis,
        operation: impl Fn() -> Reply<'a, T>,
    ) -> Result<T, ServiceError> {
        let _span = traces::span("engine");
        let (mut until, mut rounds) = (None, 0..ROUNDS);
        loop {
            let turn = self.gate.enter().await?;
            let answer = operation().await;
            drop(turn);
            let missing = match answer {
                Ok(Step::Done(outcome)) => return Ok(outcome),
                Ok(Step::Missing(missing)) => missing,
                Err(error) => {
                    rounds.next().ok_or(ServiceError::Overloaded)?;
                    self.put_right(error).await?;
                    continue;
                }
            };
            // Many wait for what many share: one of them loads it.
            let _turn = match missing.keys.iter().find(|key| key.scope != Scope::User) {
                None => None,
                Some(shared) => {
                    let until = *until.get_or_insert_with(|| Instant::now() + PATIENCE);
                    match self.load_turn(shared.tenant).take(until).await? {
                        // Whether it has brought what is missing here shows.
                        None => continue,
                        turn => turn,
                    }
                }
            };
            rounds.next().ok_or(ServiceError::Overloaded)?;
            if let Some(position) = missing.after {
                self.on_record(position).await?;
            }
            let _span = traces::span("ledger.load");
            let mut found = Vec::with_capacity(missing.keys.len());
            for key in &missing.keys {
                found.push(loaded(key, self.stored(key, now).await?)?);
            }
            self.engine.load(&missing, found).await?;
        }
    }

    /// Asks the engine what no account can be missing for.
    pub(in crate::service) async fn plain<'a, T>(
        &'a self,
        question: impl Fn() -> Plain<'a, T>,
    ) -> Result<T, ServiceError> {
        for _ in 0..ROUNDS {
            let turn = self.gate.enter().await?;
            let answer = question().await;
            drop(turn);
            match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => self.put_right(error).await?,
            }
        }
        Err(ServiceError::Overloaded)
    }

    /// Does what an engine asks for before it can go on; other errors are
    /// passed on.
    async fn put_right(&self, error: EngineError) -> Result<(), ServiceError> {
        match error {
            EngineError::Unsure(tenant) => self.settle_slot(tenant).await,
            EngineError::Clock(tenant, now) => self.set_right(tenant, now).await,
            other => Err(other.into()),
        }
    }

    /// A hold by id: from the engine while it is not finished on record, else
    /// from the ledger.
    pub(in crate::service) async fn find_hold(
        &self,
        tenant: &Tenant,
        id: HoldId,
    ) -> Result<Option<Arc<Hold>>, ServiceError> {
        if let Some(hold) = self.plain(|| self.engine.hold(tenant.number, id)).await? {
            return Ok(Some(hold));
        }
        Ok(self.ledger.hold(tenant.number, id).await?.map(Arc::new))
    }

    /// The turn to load what a tenant's users share.
    fn load_turn(&self, tenant: TenantRef) -> &LoadTurn {
        &self.load_turns[tenant.0 as usize % self.load_turns.len()]
    }

    async fn stored(&self, key: &AccountKey, now: Millis) -> Result<StoredAccount, ServiceError> {
        let since = now.plus_ms(-REQUESTS_KEPT_MS);
        Ok(self.ledger.account(key.clone(), since).await?)
    }

    /// Shows limits over several accounts without putting any into memory,
    /// and says when the next lease ends in any of them.
    pub(in crate::service) async fn probe_with_leases(
        &self,
        accounts: &[AccountKey],
        charges: &[Charge],
        now: Millis,
    ) -> Result<(Vec<Probe>, Option<Millis>), ServiceError> {
        let mut found: Vec<Option<Probe>> = vec![None; charges.len()];
        let mut next_lease_end: Option<Millis> = None;
        let known = self.plain(|| self.engine.probe(accounts, charges, now)).await?;
        if let Some((key, _)) = accounts.iter().zip(&known).find(|(_, probed)| probed.is_none())
            && let Some(position) = self.plain(|| self.engine.position(key.tenant)).await?
        {
            // The ledger's figures would lag.
            self.on_record(position).await?;
        }
        for (index, (key, probed)) in accounts.iter().zip(known).enumerate() {
            let own = |charge: &Charge| usize::from(charge.account) == index;
            if !charges.iter().any(own) {
                continue;
            }
            let Probed { probes, next_lease_end: lease_end } = match probed {
                Some(probed) => probed,
                None => {
                    let account = loaded(key, self.stored(key, now).await?)?.account;
                    let now = now.max(account.advanced_to());
                    let probes = step::probe(&account, index, charges, now);
                    Probed { probes, next_lease_end: account.next_lease_end(now) }
                }
            };
            next_lease_end = next_lease_end.into_iter().chain(lease_end).min();
            let places = charges.iter().enumerate().filter(|(_, charge)| own(charge)).map(|(place, _)| place);
            places.zip(probes).for_each(|(place, probe)| found[place] = Some(probe));
        }
        Ok((found.into_iter().flatten().collect(), next_lease_end))
    }

    /// The figures alone; see [`Service::probe_with_leases`].
    pub(in crate::service) async fn standings(
        &self,
        accounts: &[AccountKey],
        charges: &[Charge],
        now: Millis,
    ) -> Result<Vec<Shown>, ServiceError> {
        let (probes, _) = self.probe_with_leases(accounts, charges, now).await?;
        Ok(probes.into_iter().map(|probe| probe.shown).collect())
    }

    /// Waits until a step is on record.
    pub(in crate::service) async fn recorded(&self, ticket: Unrecorded) -> Result<(), ServiceError> {
        let _span = ticket.0.as_ref().and_then(|_| traces::span("ledger.commit"));
        match ticket.0 {
            Some(ticket) => match ticket.recorded().await {
                true => Ok(()),
                false => Err(not_recorded()),
            },
            None => Ok(()),
        }
    }

    /// A ticket for everything that happened so far: what is told again must
    /// be as safe as when it was told first.
    pub(in crate::service) fn barrier(&self, tenant: &Tenant) -> Ticket {
        self.engine.barrier(tenant.number)
    }
}

fn not_recorded() -> ServiceError {
    ServiceError::StoreUnavailable("the change could not be recorded and was taken back".into())
}

fn loaded(key: &AccountKey, stored: StoredAccount) -> Result<Loaded, ServiceError> {
    let unfinished = stored.unfinished.iter().map(|hold: &Arc<Hold>| &**hold);
    let account =
        Account::unpack(stored.state.as_deref(), key.scope, unfinished).map_err(ServiceError::Corrupt)?;
    let is_user = key.scope == Scope::User;
    let requests =
        stored.requests.into_iter().map(|(digest, id, at)| (digest, id, at.unwrap_or(Millis::MAX)));
    Ok(Loaded {
        account,
        unfinished: if is_user { stored.unfinished } else { Vec::new() },
        requests: requests.collect(),
    })
}

impl From<EngineError> for ServiceError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Overloaded => Self::Overloaded,
            EngineError::Moved => Self::Moved,
            EngineError::Unavailable | EngineError::Unsure(_) => Self::StoreUnavailable(Box::new(error)),
            EngineError::Clock(..) => Self::ClockOff,
        }
    }
}

#[cfg(test)]
#[path = "accounts_tests.rs"]
mod tests;
