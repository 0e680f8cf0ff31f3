//! What admins do about holds in doubt: look at them, and resolve them one by
//! one or all that a filter names.

use std::sync::Arc;

use serde_json::{Value, json};

use super::finishing::Ending;
use crate::domain::hold::{Amounts, FinishedBy, Hold, ReleaseReason, Reported, Stage};
use crate::domain::ids::{HoldId, Label, Name};
use crate::domain::quantity::add_saturating;
use crate::domain::time::Millis;
use crate::engine;
use crate::ledger::{DoubtFilter, DoubtKey, DoubtPage, DoubtQuery, Note, Written};
use crate::service::{FinishReply, Finished, Service, ServiceError, Tenant, Unrecorded};

/// Holds resolved in one go: they are recorded together.
pub(super) const AT_ONCE: u32 = 500;
/// Ids of holds that an audit row names at most.
const NAMED_MAX: usize = 1_000;
const RESOLVED: &str = "hold.resolve";

/// How an admin ends one hold.
#[derive(Debug, Clone)]
pub enum Resolve {
    /// Exactly what was reserved.
    Charge,
    /// Everything comes back, the request included.
    Release,
    /// These figures, at the prices of the admission.
    Settle(Reported),
}

/// How an admin ends many holds.
#[derive(Debug, Clone, Copy)]
pub enum ResolveAll {
    Charge,
    Release,
}

/// Who resolves, and why.
#[derive(Debug, Clone)]
pub struct ResolvedBy {
    pub by: String,
    pub reason: Option<String>,
}

/// What a resolve by filter came to.
#[derive(Debug, Clone, Default)]
pub struct Resolved {
    /// Holds.
    pub matched: u64,
    /// What they reserved, in sum.
    pub amounts: Amounts,
    /// Some of them.
    named: Vec<HoldId>,
}

impl Service {
    /// A page of the holds in doubt that `filter` names, and the instant of
    /// which it tells.
    pub async fn doubts(
        &self,
        tenant: &Tenant,
        filter: DoubtFilter,
        after: Option<DoubtKey>,
        limit: u32,
    ) -> Result<(DoubtPage, Millis), ServiceError> {
        let now = tenant.now();
        let after = after.max(Some(self.end_of_due(tenant)));
        let query = DoubtQuery { now, filter: canonical(tenant, filter), after, limit };
        Ok((self.ledger.doubts(tenant.number, query).await?, now))
    }

    /// What the rule ends is not in doubt any more, whether or not it was
    /// carried out yet.
    fn end_of_due(&self, tenant: &Tenant) -> DoubtKey {
        DoubtKey::end_of(self.due_before(tenant))
    }

    /// Resolves one hold that is in doubt, or corrects what the rule made of
    /// it. Once begun it goes to its end, even if the caller goes away: what
    /// is resolved is in the audit.
    pub async fn resolve(
        self: &Arc<Self>,
        tenant: &Arc<Tenant>,
        id: HoldId,
        resolve: Resolve,
        by: ResolvedBy,
    ) -> Result<FinishReply, ServiceError> {
        let (service, tenant) = (Arc::clone(self), Arc::clone(tenant));
        to_the_end(async move { service.resolve_one(&tenant, id, &resolve, by).await }).await
    }

    async fn resolve_one(
        &self,
        tenant: &Tenant,
        id: HoldId,
        resolve: &Resolve,
        by: ResolvedBy,
    ) -> Result<FinishReply, ServiceError> {
        let Some(before) = self.current_hold(tenant, id).await? else { return Ok(FinishReply::NotFound) };
        let was = audited(&before, tenant.now());
        let ending = match resolve {
            Resolve::Charge => Ending::Reserved(FinishedBy::Admin),
            Resolve::Release => Ending::Release(ReleaseReason::NotSent, FinishedBy::Admin),
            Resolve::Settle(reported) => Ending::Usage { reported, amounts: &[], by: FinishedBy::Admin },
        };
        let (reply, ticket) = self.finish(tenant, id, &ending).await?;
        self.recorded(ticket).await?;
        // A repetition is noted too: the first call may have ended before it
        // came to its note.
        if let FinishReply::Done(Finished { hold, now, .. }) = &reply {
            let note = Note {
                action: RESOLVED,
                target: id.to_string(),
                before: Some(was),
                after: Some(audited(hold, *now)),
            };
            self.ledger.note(tenant.number, note, by.written(*now)).await?;
        }
        Ok(reply)
    }

    /// Resolves all holds in doubt that `filter` names, each on its own: one
    /// that ends in another way meanwhile is not counted. Goes to its end even
    /// if the caller goes away.
    ///
    /// # Errors
    /// What was resolved before the store failed stays resolved, and is in the
    /// audit if the store takes that.
    pub async fn resolve_all(
        self: &Arc<Self>,
        tenant: &Arc<Tenant>,
        filter: DoubtFilter,
        how: ResolveAll,
        by: ResolvedBy,
    ) -> Result<Resolved, ServiceError> {
        let (service, tenant) = (Arc::clone(self), Arc::clone(tenant));
        to_the_end(async move {
            let filter = canonical(&tenant, filter);
            let mut resolved = Resolved::default();
            let ended = service.resolve_pages(&tenant, &filter, how, &mut resolved).await;
            let note = resolved.note(&filter, how);
            let noted = service.ledger.note(tenant.number, note, by.written(tenant.now())).await;
            ended?;
            noted?;
            Ok(resolved)
        })
        .await
    }

    /// What [`resolve_all`](Self::resolve_all) would do now.
    pub async fn would_resolve(
        &self,
        tenant: &Tenant,
        filter: DoubtFilter,
    ) -> Result<Resolved, ServiceError> {
        let mut resolved = Resolved::default();
        let mut pages = self.pages(tenant, canonical(tenant, filter));
        while let Some(holds) = pages.next(self).await? {
            holds.iter().for_each(|hold| resolved.count(hold));
        }
        Ok(resolved)
    }

    async fn resolve_pages(
        &self,
        tenant: &Tenant,
        filter: &DoubtFilter,
        how: ResolveAll,
        resolved: &mut Resolved,
    ) -> Result<(), ServiceError> {
        let ending = match how {
            ResolveAll::Charge => Ending::Reserved(FinishedBy::Admin),
            ResolveAll::Release => Ending::Release(ReleaseReason::NotSent, FinishedBy::Admin),
        };
        let mut pages = self.pages(tenant, filter.clone());
        while let Some(holds) = pages.next(self).await? {
            let mut ended = Vec::with_capacity(holds.len());
            let mut failure = None;
            for hold in holds {
                match self.end_doubt(tenant, &Arc::new(hold), &ending).await {
                    Ok(end) => ended.extend(end),
                    Err(error) => {
                        failure = Some(error);
                        break;
                    }
                }
            }
            for (hold, ticket) in ended {
                match self.recorded(ticket).await {
                    Ok(()) => resolved.count(&hold),
                    Err(error) => failure = Some(error),
                }
            }
            if let Some(error) = failure {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Ends a hold that is in doubt; `None` when it is not, any more or yet.
    pub(in crate::service) async fn end_doubt(
        &self,
        tenant: &Tenant,
        hold: &Arc<Hold>,
        ending: &Ending<'_>,
    ) -> Result<Option<(Arc<Hold>, Unrecorded)>, ServiceError> {
        let how = ending.how(self, tenant, hold).await?;
        Ok(match self.finish_with(tenant, hold, how, None).await?.0 {
            engine::Finished::Done { hold, ticket, .. } => Some((hold, Unrecorded(Some(ticket)))),
            _ => None,
        })
    }

    fn pages<'t>(&self, tenant: &'t Tenant, filter: DoubtFilter) -> Pages<'t> {
        Pages::of(tenant, filter, tenant.now(), Some(self.end_of_due(tenant)))
    }
}

/// Pages of holds in doubt, one after the other.
pub(in crate::service) struct Pages<'t> {
    tenant: &'t Tenant,
    /// `None`: that was the last page.
    query: Option<DoubtQuery>,
}

impl<'t> Pages<'t> {
    pub fn of(tenant: &'t Tenant, filter: DoubtFilter, now: Millis, after: Option<DoubtKey>) -> Self {
        Self { tenant, query: Some(DoubtQuery { now, filter, after, limit: AT_ONCE }) }
    }

    pub async fn next(&mut self, service: &Service) -> Result<Option<Vec<Hold>>, ServiceError> {
        let Some(query) = self.query.take() else { return Ok(None) };
        let page = service.ledger.doubts(self.tenant.number, query.clone()).await?;
        self.query = page.next.map(|next| DoubtQuery { after: Some(next), ..query });
        Ok(Some(page.holds))
    }
}

impl ResolvedBy {
    fn written(self, at: Millis) -> Written {
        Written { at, by: self.by, reason: self.reason }
    }
}

impl Resolved {
    fn count(&mut self, hold: &Hold) {
        self.matched += 1;
        let (sum, more) = (&mut self.amounts, &hold.reserved);
        for (sum, more) in [
            (&mut sum.requests, more.requests),
            (&mut sum.input_tokens, more.input_tokens),
            (&mut sum.output_tokens, more.output_tokens),
            (&mut sum.total_tokens, more.total_tokens),
            (&mut sum.credits, more.credits),
        ] {
            *sum = add_saturating(*sum, more);
        }
        if self.named.len() < NAMED_MAX {
            self.named.push(hold.id);
        }
    }

    /// One row for all of them.
    fn note(&self, filter: &DoubtFilter, how: ResolveAll) -> Note {
        let named: Vec<String> = self.named.iter().map(ToString::to_string).collect();
        let filter = json!({
            "state": "in_doubt",
            "user": filter.user.as_ref().map(|user| user.as_str()),
            "model": filter.model.as_ref().map(Name::as_str),
            "feature": filter.feature.as_ref().map(Label::as_str),
            "from": filter.from,
            "to": filter.to,
        });
        let action = match how {
            ResolveAll::Charge => "charge",
            ResolveAll::Release => "release",
        };
        Note {
            action: RESOLVED,
            target: String::new(),
            before: Some(json!({"filter": filter})),
            after: Some(json!({
                "action": action,
                "matched": self.matched,
                "amounts": amounts_json(&self.amounts, &[]),
                "holds": named,
            })),
        }
    }
}

/// What the audit shows of a hold. Its user stays out: the audit outlives the
/// erasure of a user's identity, and the hold is there to be looked up.
fn audited(hold: &Hold, now: Millis) -> Value {
    let (by, amounts, custom) = match &hold.stage {
        Stage::Held | Stage::InDoubt { .. } => (None, hold.reserved, &hold.amounts[..]),
        Stage::Settled(settled) => (Some(settled.by), settled.counted, &settled.amounts[..]),
        Stage::Released { by, .. } => (Some(*by), Amounts::default(), &[][..]),
    };
    let by = by.map(|by| match by {
        FinishedBy::Caller => "caller",
        FinishedBy::Rule => "rule",
        FinishedBy::Admin => "admin",
    });
    json!({
        "state": hold.state(now).as_str(),
        "ended_by": by,
        "amounts": amounts_json(&amounts, custom),
    })
}

fn amounts_json(amounts: &Amounts, custom: &[(Label, u64)]) -> Value {
    let mut shown = json!({
        "requests": amounts.requests,
        "input_tokens": amounts.input_tokens,
        "output_tokens": amounts.output_tokens,
        "total_tokens": amounts.total_tokens,
        "credits": amounts.credits,
    });
    for (meter, amount) in custom {
        shown[meter.as_str()] = (*amount).into();
    }
    shown
}

/// Holds keep the canonical names of models.
fn canonical(tenant: &Tenant, filter: DoubtFilter) -> DoubtFilter {
    let model = filter.model.map(|model| tenant.catalog().models.canonical(&model));
    DoubtFilter { model, ..filter }
}

/// Runs `work` to its end, whether or not anybody waits for it.
async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, ServiceError>> + Send + 'static,
) -> Result<T, ServiceError> {
    let unfinished = |error| Err(ServiceError::Corrupt(format!("a resolve has not ended: {error}")));
    tokio::spawn(work).await.unwrap_or_else(unfinished)
}
