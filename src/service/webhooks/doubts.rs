//! Holds that come into doubt because their lease is over. Nothing runs when
//! that happens, so it is looked for: in the order in which it happens, up to an
//! instant before which nothing can change any more. (Calls that ended without
//! figures are told where they are recorded.)

use std::sync::Arc;

use serde_json::{Value, json};

use super::Event;
use crate::domain::hold::{Hold, Stage};
use crate::domain::time::Millis;
use crate::domain::webhook::EventKind;
use crate::ledger::{DoubtFilter, DoubtKey, DoubtQuery, Message, ToldDoubts};
use crate::service::tenancy::catalog::Tenant;
use crate::service::{Service, ServiceError};

/// Holds looked at in one step.
const AT_ONCE: u32 = 200;
/// How far clocks of nodes may differ.
const SKEW_MS: i64 = 2_000;

/// A hold is in doubt since then.
pub(super) fn event(hold: &Hold, since: Millis, because: &str) -> Event {
    let data: Value = json!({
        "hold": hold.id.to_string(),
        "user": hold.user.as_str(),
        "org": hold.org.as_ref().map(|org| org.as_str()),
        "request_id": hold.request.as_ref().map(|mark| mark.id.as_str()),
        "model": hold.model.as_ref().map(|model| model.as_str()),
        "feature": hold.feature.as_ref().map(|feature| feature.as_str()),
        "plan": {"id": hold.plan.as_str(), "version": hold.plan_version},
        "because": because,
        "created_at": hold.created_at.to_string(),
        "in_doubt_since": since.to_string(),
        "output_tokens_so_far": hold.progress,
        "reserved": hold.reserved,
    });
    let (kind, identity) = (EventKind::HoldInDoubt, hold.id.to_string());
    Event { kind, identity, user: Some(hold.user.clone()), at: since, data }
}

impl Service {
    /// Tells of holds whose lease is over, of all tenants that want to know.
    pub(super) async fn tell_of_doubts(&self) {
        for tenant in self.registry.outbox.tenants() {
            if let Err(error) = self.tell_of_leases(&tenant).await {
                let error = &error as &dyn std::error::Error;
                tracing::debug!(tenant.id = %tenant.id, error, "holds in doubt are not told of now");
            }
        }
    }

    async fn tell_of_leases(&self, tenant: &Arc<Tenant>) -> Result<(), ServiceError> {
        let catalog = tenant.catalog();
        let wanting = catalog.webhooks.iter().filter(|webhook| webhook.wants(EventKind::HoldInDoubt));
        let Some(since) = wanting.map(|webhook| webhook.since).min() else { return Ok(()) };
        let now = match tenant.clock_stands() {
            true => tenant.now(),
            false => tenant.now().plus_ms(-SKEW_MS),
        };
        // What was decided until now is on record then; what is decided later
        // cannot keep a lease that is over.
        self.catch_up(tenant, true).await?;
        if !self.barrier(tenant).recorded().await {
            return Ok(());
        }
        let mut told = self.ledger.doubts_told(tenant.number).await?;
        loop {
            let after = told.into_iter().chain([DoubtKey::end_of(since.plus_ms(-1))]).max();
            let query = DoubtQuery { now, filter: DoubtFilter::default(), after, limit: AT_ONCE };
            let page = self.ledger.doubts(tenant.number, query).await?;
            let upto = page.next.unwrap_or(DoubtKey::end_of(now));
            if after.is_some_and(|after| after >= upto) || (page.holds.is_empty() && page.next.is_none()) {
                return Ok(());
            }
            let over = page.holds.iter().filter(|hold| matches!(hold.stage, Stage::Held));
            let messages = over.flat_map(|hold| self.told_of_lease(tenant, hold)).collect();
            self.ledger.tell_doubts(tenant.number, ToldDoubts { after: told, upto, messages }).await?;
            self.registry.outbox.due.notify_one();
            if page.next.is_none() {
                return Ok(());
            }
            told = Some(upto);
        }
    }

    fn told_of_lease(&self, tenant: &Tenant, hold: &Hold) -> Vec<Message> {
        let at = hold.doubtful_from().unwrap_or(hold.expires_at);
        let messages = tenant.messages(&event(hold, at, "lease_ended"), self.registry.wall.now());
        // Each is told of what happened since it asked.
        let catalog = tenant.catalog();
        let asked =
            |message: &Message| catalog.webhook(&message.webhook).is_some_and(|known| known.since <= at);
        messages.into_iter().filter(asked).collect()
    }
}
