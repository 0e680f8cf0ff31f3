//! The store is back: what was admitted without it is booked.
//!
//! Call by call in their order, each under the id it was answered with: what is
//! there already stays as it is, so booking may begin anew at any point. It has
//! happened, so it is taken whether it fits or not, under the rules of now.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::super::calls::charging::Call;
use super::super::entitlement::erasing::LOOKS;
use super::super::entitlement::subject::Party;
use super::super::{FinishReply, Service, ServiceError, Tenant, Unrecorded};
use super::{HoldKey, Operation, Outage, Told};
use crate::domain::hold::Hold;
use crate::domain::ids::{Label, Name};
use crate::domain::step::Ask;
use crate::domain::taking::Taking;
use crate::domain::time::Millis;
use crate::engine::{Take, Taken};

/// Between two looks whether the store is back.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);
/// Calls booked with one wait for the disk.
const AT_ONCE: usize = 64;
/// A lease that ended while the store was away ends anew at once; that of a
/// call which has ended, too, lasts until that is booked.
const LEAST_LEASE_MS: i64 = 1;
const LEASE_OF_ENDED_MS: i64 = 60_000;

/// A call to be booked.
struct Unbooked {
    admitted: Arc<Hold>,
    ends: Vec<Told>,
}

impl Service {
    /// Looks whether a store that was missed is back, and books.
    pub fn start_booking(self: &Arc<Self>) -> JoinHandle<()> {
        let service = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                if service.outage.is_away() || service.outage.has_pending() {
                    tokio::time::sleep(BETWEEN_LOOKS).await;
                } else {
                    service.outage.work.notified().await;
                }
                service.book_outage().await;
            }
        })
    }

    /// Books all that was admitted without the store, if that is back.
    pub async fn book_outage(&self) {
        let booked = async {
            self.stores_answer().await?;
            self.book_all().await
        };
        match booked.await {
            Ok(()) => {
                let met = self.outage.ended();
                self.tell_of_outage(met).await;
            }
            Err(error) => self.outage.missed(Operation::Book, &error),
        }
    }

    /// Whether engine and ledger take something new.
    async fn stores_answer(&self) -> Result<(), ServiceError> {
        self.ledger.takes_writes().await?;
        Ok(self.engine.ready().await?)
    }

    async fn book_all(&self) -> Result<(), ServiceError> {
        loop {
            let calls = self.outage.next_unbooked(AT_ONCE);
            if calls.is_empty() {
                self.outage.remove_journal();
                return Ok(());
            }
            let mut unrecorded = Vec::with_capacity(calls.len());
            for call in &calls {
                match self.book_call(call).await {
                    Ok(tickets) => unrecorded.extend(tickets),
                    Err(error) if error.may_pass() => return Err(error),
                    // Nothing would change that; those behind it must not wait.
                    Err(error) => tracing::error!(
                        error = &error as &dyn std::error::Error,
                        hold.id = %call.admitted.id,
                        hold.reserved.tokens = call.admitted.reserved.total_tokens,
                        "a call admitted during an outage cannot be booked"
                    ),
                }
            }
            for ticket in unrecorded {
                self.recorded(ticket).await?;
            }
            self.outage.booked(&calls);
        }
    }

    async fn book_call(&self, call: &Unbooked) -> Result<Vec<Unrecorded>, ServiceError> {
        let hold = &call.admitted;
        let tenants = self.registry.tenants();
        let Some(tenant) = tenants.iter().find(|tenant| tenant.number == hold.tenant) else {
            // It was deleted.
            return Ok(Vec::new());
        };
        let mut unrecorded = Vec::new();
        if self.find_hold(tenant, hold.id).await?.is_none() {
            let least = if call.ends.is_empty() { LEAST_LEASE_MS } else { LEASE_OF_ENDED_MS };
            unrecorded.push(self.take_admitted(tenant, hold, least).await?);
        }
        for told in &call.ends {
            let (reply, ticket) = self.finish_on_record(tenant, hold.id, &told.ending()).await?;
            if !matches!(reply, FinishReply::Done(_)) {
                tracing::warn!(hold.id = %hold.id, ?reply, "a call admitted during an outage ended otherwise");
            }
            unrecorded.push(ticket);
        }
        Ok(unrecorded)
    }

    /// Takes what was admitted, wherever the user's account is.
    async fn take_admitted(
        &self,
        tenant: &Tenant,
        hold: &Arc<Hold>,
        least_lease_ms: i64,
    ) -> Result<Unrecorded, ServiceError> {
        let mut hold = Arc::clone(hold);
        for _ in 0..LOOKS {
            let now = tenant.now();
            let party = self.party_of_hold(tenant, &hold).await?;
            if party.profile.alias().is_some() {
                self.revive(tenant, &hold.user).await?;
                continue;
            }
            let take = self.take_of(tenant, &hold, &party, least_lease_ms, now).await?;
            match self.apply(now, || self.engine.take(&take, now)).await {
                Err(ServiceError::Moved) => self.look_again(tenant, &hold.user).await?,
                Err(ServiceError::ClockOff) => {}
                Err(error) => return Err(error),
                Ok(Taken::Hold { ticket, .. }) => return Ok(Unrecorded(Some(ticket))),
                Ok(Taken::Known(id)) if id == hold.id => {
                    return Ok(Unrecorded(Some(self.barrier(tenant))));
                }
                // Its request id was answered with another hold by another node
                // or before the outage. Whoever has this one may settle it.
                Ok(Taken::Known(other)) => {
                    tracing::warn!(hold.id = %hold.id, %other, "a request was admitted again during an outage");
                    hold = Arc::new(Hold { request: None, ..Hold::clone(&hold) });
                }
                Ok(Taken::Fits { .. } | Taken::Refused { .. }) => {
                    return Err(ServiceError::Corrupt("what has happened was refused".into()));
                }
            }
        }
        Err(ServiceError::Overloaded)
    }

    async fn take_of(
        &self,
        tenant: &Tenant,
        hold: &Hold,
        party: &Party,
        least_lease_ms: i64,
        now: Millis,
    ) -> Result<Take, ServiceError> {
        let catalog = tenant.catalog();
        let subject = party.subject_or(&self.no_plan, tenant, &catalog, &hold.user, now)?;
        let models = self.models_of(tenant, hold).await?;
        let prices = models.prices(hold.model.as_ref().map(Name::as_str));
        let mut amounts = hold.amounts.clone();
        let mut call = Call {
            model: hold.model.as_ref().map(Name::as_str),
            feature: hold.feature.as_ref().map(Label::as_str),
            bulk: hold.bulk,
            input_tokens: hold.granted.input_tokens,
            least_output: 0,
            prices,
            amounts: &mut amounts,
        };
        let pool = hold.pool.as_ref().and_then(|pool| catalog.pool(pool));
        let charging = subject.charges(&mut call, pool.map(|pool| &**pool), None);
        let lease_ms = (hold.expires_at.0 - now.0).max(least_lease_ms);
        let admits_user = hold.admits_user && !party.profile.is_known();
        Ok(Take {
            accounts: charging.accounts,
            ask: Ask {
                charges: charging.charges,
                output_max: hold.granted.max_output_tokens,
                output_min: hold.granted.max_output_tokens,
                taking: Taking::Shadowed,
            },
            credits: prices.reserve(hold.granted.input_tokens),
            draft: Hold { amounts, admits_user, ..hold.clone() },
            lease_ms,
            max_hold_ms: (hold.lives_until.0 - now.0).max(lease_ms),
            dry_run: false,
            quiet: false,
            place: None,
        })
    }
}

impl ServiceError {
    /// Whether the same may go well later.
    fn may_pass(&self) -> bool {
        matches!(self, Self::StoreUnavailable(_) | Self::Overloaded | Self::Moved | Self::ClockOff)
    }
}

impl Outage {
    fn next_unbooked(&self, most: usize) -> Vec<Unbooked> {
        let mut state = self.state.lock();
        while state.order.front().is_some_and(|key| !state.pending.contains_key(key)) {
            state.order.pop_front();
        }
        let pending = state.order.iter().filter_map(|key| state.pending.get(key));
        let noted = pending.filter(|pending| pending.is_noted).take(most);
        noted
            .map(|pending| Unbooked { admitted: Arc::clone(&pending.admitted), ends: pending.ends.clone() })
            .collect()
    }

    /// Those calls are booked; what ended since is looked at again.
    fn booked(&self, calls: &[Unbooked]) {
        let mut state = self.state.lock();
        for call in calls {
            let key: HoldKey = (call.admitted.tenant, call.admitted.id);
            if state.pending.get(&key).is_some_and(|pending| pending.ends.len() == call.ends.len()) {
                state.remove(&key);
            }
        }
        self.count_pending(&state);
    }

    fn remove_journal(&self) {
        let Some(journal) = &self.journal else { return };
        if let Err(error) = journal.remove_if(|| self.pending.load(SeqCst) == 0) {
            // What is in it is on record: booking it again changes nothing.
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the journal of an outage cannot be removed"
            );
        }
    }
}
