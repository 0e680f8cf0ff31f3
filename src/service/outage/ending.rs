//! The end of a call that was admitted here and is not booked yet.

use std::sync::Arc;

use smallvec::SmallVec;

use super::super::calls::finishing::{Ending, implausible};
use super::super::tenancy::settings::OnOutage;
use super::super::{FinishReply, Finished, Service, ServiceError, Tenant};
use super::{Entry, Outage, Told};
use crate::domain::hold::{FinishedBy, Hold};
use crate::domain::ids::HoldId;
use crate::engine::{self, Finish};

/// How far ahead of this node's clock another one's may be.
const CLOCKS_APART_MS: i64 = 10_000;

impl Service {
    /// Ends a hold that is not booked yet: that is noted like its admission,
    /// and booked after it. `None`: it is no such hold (any more).
    pub(in crate::service) async fn finish_unbooked(
        &self,
        tenant: &Tenant,
        id: HoldId,
        ending: &Ending<'_>,
    ) -> Result<Option<FinishReply>, ServiceError> {
        if self.outage.hold(tenant.number, id).is_none() {
            return Ok(None);
        }
        // Two who end the same hold wait for each other.
        let _turn = self.turn(id).await;
        let Some(hold) = self.outage.hold(tenant.number, id) else { return Ok(None) };
        let Some(told) = Told::of(ending) else { return Err(unbooked()) };
        let now = tenant.now();
        if let Ending::Usage { reported, .. } = ending
            && !hold.is_finished()
            && let Some((field, max)) = implausible(reported, tenant.catalog().settings.max_tokens_per_call)
        {
            return Ok(Some(FinishReply::UsageImplausible { field, max }));
        }
        let finish = Finish {
            hold: id,
            found: None,
            accounts: SmallVec::new(),
            show: SmallVec::new(),
            how: ending.how(self, tenant, &hold).await?,
            ended_by_rule: None,
        };
        let done = |hold, replayed| {
            FinishReply::Done(Finished { hold, now, limits: Vec::new(), replayed, would_refuse: None })
        };
        let ended = match engine::finish_hold(&finish, &hold, now) {
            Ok(ended) => Arc::new(ended),
            Err(engine::Finished::HasProgress(hold)) => return Ok(Some(FinishReply::HasProgress(hold, now))),
            Err(_) if ending.repeats(&hold, now, &*self.models_of(tenant, &hold).await?) => {
                return Ok(Some(done(hold, true)));
            }
            Err(_) => return Ok(Some(FinishReply::AlreadyFinished(hold, now))),
        };
        match self.outage.end(Arc::clone(&ended), told).await {
            // Or it was booked meanwhile, and ends as all others do.
            Some(is_ended) => Ok(is_ended.then(|| done(ended, false))),
            None => Err(unbooked()),
        }
    }

    /// Whether a hold that nobody knows may have been admitted by another node
    /// without the store, and wait there to be booked: its id says when it was
    /// made, and its call may be running still.
    pub(in crate::service) fn may_be_unbooked(&self, tenant: &Tenant, id: HoldId) -> bool {
        let settings = &tenant.catalog().settings;
        let age_ms = tenant.now().0 - id.made_at().0;
        let most_ms = i64::from(settings.max_hold_seconds) * 1000;
        self.engine.has_slots()
            && settings.on_outage == OnOutage::Bounded
            && (-CLOCKS_APART_MS..most_ms).contains(&age_ms)
    }

    /// # Errors
    /// The hold is not booked yet.
    pub(in crate::service) fn must_be_booked(&self, tenant: &Tenant, id: HoldId) -> Result<(), ServiceError> {
        match self.outage.hold(tenant.number, id) {
            Some(_) => Err(unbooked()),
            None => Ok(()),
        }
    }
}

impl Outage {
    /// Notes how a hold ended. `None`: it could not be noted. `false`: it is
    /// booked already.
    async fn end(&self, ended: Arc<Hold>, told: Told) -> Option<bool> {
        let journal = self.journal.as_ref()?;
        let key = (ended.tenant, ended.id);
        let entry = Entry::Ended { tenant: key.0, hold: key.1, ending: told.clone() };
        let (state, now) = (Arc::clone(&self.state), Arc::clone(&ended));
        let noted = move |is_noted: bool| {
            let mut state = state.lock();
            if let Some(pending) = state.pending.get_mut(&key).filter(|_| is_noted) {
                pending.ends.push(told);
                pending.now = now;
            }
        };
        let is_noted = journal.append(&entry, noted).await;
        // Where it was booked just now, the journal is to go.
        self.work.notify_one();
        let is_ended = || self.hold(key.0, key.1).is_some_and(|now| Arc::ptr_eq(&now, &ended));
        is_noted.then(is_ended)
    }
}

impl Told {
    /// `None`: nobody who called ended it.
    fn of(ending: &Ending<'_>) -> Option<Self> {
        Some(match ending {
            Ending::Usage { reported, amounts, by: FinishedBy::Caller } => {
                Self::Usage { reported: (*reported).clone(), amounts: amounts.to_vec() }
            }
            Ending::Release(reason, FinishedBy::Caller) => Self::Release(*reason),
            Ending::Unknown => Self::Unknown,
            Ending::Usage { .. } | Ending::Release(..) | Ending::Reserved(_) => return None,
        })
    }

    pub(super) fn ending(&self) -> Ending<'_> {
        let by = FinishedBy::Caller;
        match self {
            Self::Usage { reported, amounts } => Ending::Usage { reported, amounts, by },
            Self::Release(reason) => Ending::Release(*reason, by),
            Self::Unknown => Ending::Unknown,
        }
    }
}

fn unbooked() -> ServiceError {
    ServiceError::StoreUnavailable("the hold was admitted during an outage and is not booked yet".into())
}
