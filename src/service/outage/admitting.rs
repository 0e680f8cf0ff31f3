//! Checks that the store cannot take.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::super::tenancy::settings::OnOutage;
use super::super::{
    Allowed, CheckCommand, CheckReply, PlanVersion, Service, ServiceError, Tenant, WouldRefuse,
};
use super::{Entry, Operation, Outage, PENDING_MAX, REMEMBERED_MAX};
use crate::domain::decision::{Code, Refusal};
use crate::domain::hold::{Hold, RequestMark, Stage};
use crate::domain::step;
use crate::domain::time::Millis;
use crate::engine::Take;

impl Service {
    /// Admits a call without the store, as far as the tenant's settings and the
    /// user's share go.
    ///
    /// # Errors
    /// `error`, for which the store did not take it.
    pub(in crate::service) async fn admit_alone(
        &self,
        tenant: &Tenant,
        asked: Allowed,
        error: ServiceError,
    ) -> Result<CheckReply, ServiceError> {
        let settings = &tenant.catalog().settings;
        let hold = asked.hold.as_deref().filter(|_| !asked.replayed);
        let hold = hold.filter(|_| settings.on_outage == OnOutage::Bounded);
        let Some(hold) = hold.cloned() else { return Err(error) };
        let Some(hold) = self.outage.admit(hold, settings.outage_share, tenant.now()).await else {
            return Err(error);
        };
        self.outage.missed(Operation::Check, &error);
        // How the limits stand, nobody knows.
        let (limits, warnings) = (Vec::new(), Vec::new());
        Ok(CheckReply::Allowed(Allowed { hold: Some(hold), limits, warnings, degraded: true, ..asked }))
    }

    /// The answer to a call that was admitted without the store and is not
    /// booked yet.
    pub(in crate::service) fn admitted_alone(
        &self,
        tenant: &Tenant,
        command: &CheckCommand,
        mark: Option<&RequestMark>,
    ) -> Result<Option<CheckReply>, ServiceError> {
        let Some(mark) = mark.filter(|_| !command.dry_run) else { return Ok(None) };
        let Some(hold) = self.outage.by_request(tenant.number, &command.user, mark)? else { return Ok(None) };
        if hold.request.as_ref() != Some(mark) {
            return Ok(Some(CheckReply::Refused(Refusal::plain(Code::RequestIdReused))));
        }
        if hold.is_finished() {
            let refusal = Refusal { hold: Some(hold), ..Refusal::plain(Code::AlreadyFinished) };
            return Ok(Some(CheckReply::Refused(refusal)));
        }
        Ok(Some(CheckReply::Allowed(Allowed {
            now: tenant.now(),
            replayed: true,
            granted: hold.granted,
            plan: (hold.plan.clone(), hold.plan_version),
            limits: Vec::new(),
            warnings: Vec::new(),
            would_refuse: None,
            auto_output: false,
            degraded: true,
            choice: None,
            hold: Some(hold),
        })))
    }
}

impl Allowed {
    /// What nobody decided, as it would be admitted in full.
    pub(in crate::service) fn as_asked(
        take: Take,
        plan: &PlanVersion,
        would_refuse: Option<WouldRefuse>,
        now: Millis,
    ) -> Self {
        let mut hold = take.draft;
        step::reserve(&mut hold, take.ask.output_max, false, take.credits);
        hold.created_at = now;
        hold.lives_until = now.plus_ms(take.max_hold_ms);
        hold.expires_at = now.plus_ms(take.lease_ms).min(hold.lives_until);
        Self {
            now,
            replayed: false,
            granted: hold.granted,
            hold: Some(Arc::new(hold)),
            plan: plan.named(),
            limits: Vec::new(),
            warnings: Vec::new(),
            would_refuse,
            auto_output: false,
            degraded: false,
            choice: None,
        }
    }
}

impl Outage {
    /// Admits a call without the store if the user's share of this minute has
    /// room, and notes it on the disk; `None`: it is not admitted.
    ///
    /// `hold` is as it was to be taken, under the id with which that was tried.
    async fn admit(&self, hold: Hold, share: u32, now: Millis) -> Option<Arc<Hold>> {
        let journal = self.journal.as_ref()?;
        let hold = Arc::new(Hold { receipts: Vec::new(), stage: Stage::Held, ..hold });
        let key = (hold.tenant, hold.id);
        let user = (hold.tenant, hold.user.clone());
        {
            let mut state = self.state.lock();
            let request = hold.request.as_ref().map(|mark| (user.0, user.1.clone(), mark.id.digest()));
            let is_new = !state.pending.contains_key(&key)
                && request.as_ref().is_none_or(|request| !state.requests.contains_key(request));
            let has_room = state.share_of(&user, now) < share as usize
                && state.shares.len() < REMEMBERED_MAX
                && state.pending.len() < PENDING_MAX;
            if !is_new || !has_room {
                if let Some(request) = request.filter(|_| is_new && state.tried.len() < REMEMBERED_MAX) {
                    state.tried.insert(request, hold.id);
                }
                return None;
            }
            state.add(Arc::clone(&hold), false);
            self.count_pending(&state);
        }
        let (state, count) = (Arc::clone(&self.state), Arc::clone(&self.pending));
        let noted = move |is_noted: bool| {
            let mut state = state.lock();
            match state.pending.get_mut(&key).filter(|_| is_noted) {
                Some(pending) => pending.is_noted = true,
                None => {
                    state.remove(&key);
                    if let Some(stamps) = state.shares.get_mut(&user) {
                        stamps.pop_back();
                    }
                }
            }
            count.store(state.pending.len(), SeqCst);
        };
        let is_noted = journal.append(&Entry::Admitted(Arc::clone(&hold)), noted).await;
        self.work.notify_one();
        if is_noted {
            self.admissions.fetch_add(1, Relaxed);
        }
        is_noted.then_some(hold)
    }
}
