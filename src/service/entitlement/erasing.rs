//! Erasing users, and what happens when they come back.
//!
//! The identity goes and the amounts stay: record, account, open holds and what
//! is on record of the past go on under a pseudonym that only this server can
//! make of the id. Whoever comes back under the id meets what they left, until
//! nothing of it counts any more; so nobody gets a second allowance by being
//! deleted.
//!
//! Three stores take part: the record, the account in the engine and the past in
//! the ledger. While the record is the pseudonym's, the account may be on either
//! side and whoever acts for the user takes their turn here first; an erasure
//! under way is on record, so that a crash between the steps is made good.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::domain::charge::AccountKey;
use crate::domain::document::{Fault, Node};
use crate::domain::ids::UserId;
use crate::domain::plan::Scope;
use crate::domain::time::Millis;
use crate::engine::Moved;
use crate::ledger::{Erasure, LedgerError, Written};
use crate::service::tenancy::catalog::Tenant;
use crate::service::{Service, ServiceError, Unrecorded};

use crate::service::tenancy::reason::optional_reason;

/// Rows renamed in one transaction: a commit may have to wait for one.
const ROWS_AT_ONCE: u32 = 256;
/// Users looked at in one go.
const USERS_AT_ONCE: u32 = 500;
/// When to look again at an erased user who has unfinished holds.
const LOOK_AGAIN_MS: i64 = 3_600_000;
/// How often an operation looks again whose account it is.
pub(in crate::service) const LOOKS: usize = 8;
/// Whoever brings a user back who calls again.
const BY_RETURN: &str = "return";

/// What `DELETE users/{user}` says besides the user.
#[derive(Debug, Clone, Default)]
pub struct Erase {
    reason: Option<String>,
}

impl Erase {
    /// Reads `{"reason"}`.
    pub fn read(node: &Node<'_>) -> Result<Self, Vec<Fault>> {
        node.read(|fields| Some(Self { reason: optional_reason(fields) }))
    }
}

impl Service {
    /// Erases a user's identity. Once begun it goes to its end, even if the
    /// caller goes away.
    ///
    /// # Errors
    /// `NotFound`: the user is not on record. `ChangedMeanwhile` when they are
    /// not at version `expected`.
    pub async fn erase_user(
        self: &Arc<Self>,
        tenant: &Arc<Tenant>,
        id: &UserId,
        erase: Erase,
        expected: Option<u32>,
        by: &str,
    ) -> Result<(), ServiceError> {
        let (service, tenant, id) = (Arc::clone(self), Arc::clone(tenant), id.clone());
        let written = Written { at: tenant.now(), by: by.to_owned(), reason: erase.reason };
        let work = async move { service.erase(&tenant, &id, expected, written).await };
        tokio::spawn(work).await.map_err(|error| ServiceError::Corrupt(format!("an erasure: {error}")))?
    }

    async fn erase(
        &self,
        tenant: &Tenant,
        id: &UserId,
        expected: Option<u32>,
        written: Written,
    ) -> Result<(), ServiceError> {
        let _turn = self.user_turn(tenant, id).await?;
        let erasure = self.erasure_of(tenant, id)?;
        let user = self.ledger.user(tenant.number, id.clone()).await?.filter(|user| !user.erased);
        let Some(user) = user else {
            // One that was begun and not ended is what was asked for.
            let begun = self.ledger.erasures(tenant.number).await?.contains(&erasure);
            return match begun {
                true => self.end_erasure(tenant, &erasure).await,
                false => Err(ServiceError::NotFound("user")),
            };
        };
        if expected.is_some_and(|expected| expected != user.version) {
            return Err(ServiceError::ChangedMeanwhile);
        }
        tenant.erases();
        let begun = self.registry.writer.erase_user(tenant.number, erasure.clone(), expected, written).await;
        self.registry.forget_user(tenant.number, id);
        match begun {
            Err(LedgerError::Conflict) => return Err(ServiceError::ChangedMeanwhile),
            other => other?,
        }
        self.end_erasure(tenant, &erasure).await
    }

    /// Does what is left of an erasure. The caller has the user's turn.
    async fn end_erasure(&self, tenant: &Tenant, erasure: &Erasure) -> Result<(), ServiceError> {
        let record = self.ledger.user(tenant.number, erasure.pseudonym.clone()).await?;
        if !record.is_some_and(|user| user.erased) {
            return Ok(self.registry.writer.end_erasure(tenant.number, erasure.clone(), None).await?);
        }
        self.move_account(tenant, &erasure.user, &erasure.pseudonym).await?;
        self.flush_tallies().await?;
        let next = || self.ledger.rename_history(tenant.number, erasure.clone(), ROWS_AT_ONCE);
        while let Some(holds) = next().await? {
            self.plain(|| self.engine.forget_holds(tenant.number, &holds)).await?;
        }
        let look_at = self.next_look(tenant, &erasure.pseudonym).await?;
        self.registry.writer.end_erasure(tenant.number, erasure.clone(), look_at).await?;
        self.registry.forget_user(tenant.number, &erasure.user);
        self.registry.forget_user(tenant.number, &erasure.pseudonym);
        self.registry.watchers.user_changed(tenant.number, &erasure.user);
        Ok(())
    }

    /// Brings an erased user back, if the id is one's: they act again.
    pub(in crate::service) async fn revive(&self, tenant: &Tenant, id: &UserId) -> Result<(), ServiceError> {
        let _turn = self.user_turn(tenant, id).await?;
        self.bring_home(tenant, id).await
    }

    /// Waits for a user's turn, and sees to it that their record and their
    /// account are under their own id for as long as the turn lasts.
    ///
    /// # Errors
    /// `NotFound`: the id is the name of an erased user.
    pub(super) async fn at_home(
        &self,
        tenant: &Tenant,
        id: &UserId,
    ) -> Result<tokio::sync::MutexGuard<'_, ()>, ServiceError> {
        let turn = self.user_turn(tenant, id).await?;
        self.bring_home(tenant, id).await?;
        if self.registry.profile(tenant, id).await?.is_erased() {
            return Err(ServiceError::NotFound("user"));
        }
        Ok(turn)
    }

    /// The caller has the user's turn.
    async fn bring_home(&self, tenant: &Tenant, id: &UserId) -> Result<(), ServiceError> {
        let known = self.registry.profile(tenant, id).await?;
        if known.is_known() && known.alias().is_none() {
            return Ok(());
        }
        if self.registry.erased(tenant, id).await?.is_none() {
            let key = account_of(tenant, id);
            return self.plain(|| self.engine.reopen(&key)).await;
        }
        let erasure = self.erasure_of(tenant, id)?;
        if self.ledger.erasures(tenant.number).await?.contains(&erasure) {
            self.end_erasure(tenant, &erasure).await?;
        }
        let now = tenant.now();
        // From here on a crash is made good by erasing the user again.
        self.ledger.begin_return(tenant.number, erasure.clone(), now).await?;
        self.move_account(tenant, &erasure.pseudonym, &erasure.user).await?;
        let written = Written { at: now, by: BY_RETURN.to_owned(), reason: None };
        let returned = self.registry.writer.return_user(tenant.number, erasure.clone(), written).await;
        self.registry.forget_user(tenant.number, &erasure.pseudonym);
        self.registry.forget_user(tenant.number, id);
        returned?;
        self.registry.watchers.user_changed(tenant.number, id);
        Ok(())
    }

    /// An operation met an account that goes by another name: whose is it?
    pub(in crate::service) async fn look_again(
        &self,
        tenant: &Tenant,
        id: &UserId,
    ) -> Result<(), ServiceError> {
        // Another node may have erased somebody for the first time.
        self.registry.refresh().await?;
        let is_about = |erasure: &Erasure| erasure.user == *id || erasure.pseudonym == *id;
        let under_way = self.ledger.erasures(tenant.number).await?.into_iter().find(is_about);
        if let Some(erasure) = under_way {
            let _turn = self.turn_of(tenant, &erasure.pseudonym).await;
            // Whoever had the turn may have done it.
            if self.ledger.erasures(tenant.number).await?.contains(&erasure) {
                self.end_erasure(tenant, &erasure).await?;
            }
            return Ok(());
        }
        let _turn = self.user_turn(tenant, id).await?;
        self.registry.forget_user(tenant.number, id);
        let is_there = self.ledger.user(tenant.number, id.clone()).await?.is_some();
        if is_there || self.registry.erased(tenant, id).await?.is_none() {
            let key = account_of(tenant, id);
            self.plain(|| self.engine.reopen(&key)).await?;
        }
        Ok(())
    }

    async fn move_account(&self, tenant: &Tenant, from: &UserId, to: &UserId) -> Result<(), ServiceError> {
        // What is over and on record stays under the name that it had.
        self.catch_up(tenant, true).await?;
        let now = tenant.now();
        match self.apply(now, || self.engine.move_account(tenant.number, from, to, now)).await? {
            Moved::Done(ticket) => self.recorded(Unrecorded(Some(ticket))).await?,
            Moved::Occupied => {
                return Err(ServiceError::Corrupt(format!("the account of {to} is there already")));
            }
        }
        // It may be told before it is on record. What the ledger has not heard of
        // yet would come under the old name, after the past was renamed.
        match self.plain(|| self.engine.position(tenant.number)).await? {
            Some(position) => self.on_record(position).await,
            None => Ok(()),
        }
    }

    /// When what an erased user took may not count any more.
    async fn next_look(&self, tenant: &Tenant, pseudonym: &UserId) -> Result<Option<Millis>, ServiceError> {
        let now = tenant.now();
        let key = account_of(tenant, pseudonym);
        let rest = self.apply(now, || self.engine.rest(&key, now)).await?;
        let again = now.plus_ms(LOOK_AGAIN_MS);
        Ok(if rest.unfinished { Some(rest.at.map_or(again, |at| at.max(again))) } else { rest.at })
    }

    /// Goes on with erasures that were begun and not ended.
    pub(in crate::service) async fn end_erasures(&self, tenant: &Tenant) -> Result<(), ServiceError> {
        if !tenant.has_erased() {
            return Ok(());
        }
        for erasure in self.ledger.erasures(tenant.number).await? {
            let _turn = self.turn_of(tenant, &erasure.pseudonym).await;
            if self.ledger.erasures(tenant.number).await?.contains(&erasure) {
                self.end_erasure(tenant, &erasure).await?;
            }
        }
        Ok(())
    }

    /// Forgets erased users of whom nothing counts any more. Who is suspended
    /// stays: nobody gets out of that by waiting.
    pub(in crate::service) async fn forget_erased(&self, tenant: &Tenant) -> Result<(), ServiceError> {
        if !tenant.has_erased() {
            return Ok(());
        }
        loop {
            let due = self.ledger.erased_due(tenant.number, tenant.now(), USERS_AT_ONCE).await?;
            let mut is_last = due.len() < USERS_AT_ONCE as usize;
            for user in due {
                is_last |= !self.look_at_erased(tenant, &user.id).await?;
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// `false`: it is not the time for this one.
    async fn look_at_erased(&self, tenant: &Tenant, pseudonym: &UserId) -> Result<bool, ServiceError> {
        let _turn = self.turn_of(tenant, pseudonym).await;
        let record = self.ledger.user(tenant.number, pseudonym.clone()).await?;
        let mut under_way = self.ledger.erasures(tenant.number).await?.into_iter();
        let Some(user) = record.filter(|user| user.erased) else { return Ok(false) };
        if under_way.any(|erasure| erasure.pseudonym == *pseudonym) {
            return Ok(false);
        }
        let next = self.next_look(tenant, pseudonym).await?;
        if next.is_some_and(|at| at <= tenant.now()) && !user.suspended {
            self.registry.writer.forget_erased(tenant.number, pseudonym.clone()).await?;
            self.registry.forget_user(tenant.number, pseudonym);
        } else {
            let next = next.filter(|_| !user.suspended);
            self.ledger.look_at_erased(tenant.number, pseudonym.clone(), next).await?;
        }
        Ok(true)
    }

    fn erasure_of(&self, tenant: &Tenant, id: &UserId) -> Result<Erasure, ServiceError> {
        let pseudonym = self.registry.files.pseudonym(tenant.number, id)?;
        Ok(Erasure { user: id.clone(), pseudonym })
    }

    /// Waits for the turn of whoever moves a user's record and account.
    async fn user_turn(
        &self,
        tenant: &Tenant,
        id: &UserId,
    ) -> Result<tokio::sync::MutexGuard<'_, ()>, ServiceError> {
        let pseudonym = self.registry.files.pseudonym(tenant.number, id)?;
        Ok(self.turn_of(tenant, &pseudonym).await)
    }

    /// The same by the user's pseudonym.
    async fn turn_of(&self, tenant: &Tenant, pseudonym: &UserId) -> tokio::sync::MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        (tenant.number, pseudonym).hash(&mut hasher);
        self.user_turns[hasher.finish() as usize % self.user_turns.len()].lock().await
    }
}

fn account_of(tenant: &Tenant, id: &UserId) -> AccountKey {
    AccountKey { tenant: tenant.number, scope: Scope::User, owner: id.shared() }
}
