//! The way out: what is due is sent, by whichever node has it first.
//!
//! Each try is begun on record with a time at which it is given up as lost, so
//! a node that dies leaves nothing behind. Receivers have a few tries at once
//! each, and one while they fail: a bad one holds up itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use super::Webhook;
use crate::domain::charge::TenantRef;
use crate::domain::time::Millis;
use crate::domain::webhook::{TRIES_MAX, pause_after};
use crate::ledger::{Delivery, DeliveryState, Keeping, Tried};
use crate::outbound::{Answered, Reach, TIMEOUT, Unsent};
use crate::service::Service;
use crate::service::error::ServiceError;
use crate::service::tenancy::catalog::Tenant;
use crate::service::tenancy::registry::Registry;

/// How often others' messages, and those whose time has come, are looked for.
const POLL: Duration = Duration::from_secs(1);
/// Polls between two looks for what is old.
const POLLS_PER_PRUNING: u32 = 30;
/// Tries under way of one webhook, and in all.
const OF_ONE_MAX: u32 = 4;
const IN_ALL_MAX: usize = 128;
/// A try that nobody has told of for so long is lost: longer than any takes.
const LOST_AFTER_MS: i64 = 2 * TIMEOUT.as_millis() as i64;
/// Messages of a webhook that wait at most.
const WAITING_MAX: u32 = 10_000;
/// How long what was delivered or put aside is kept.
const KEPT_MS: i64 = 14 * 24 * 3_600_000;

type Of = (TenantRef, Arc<str>);

/// What is under way to one webhook from here.
#[derive(Default, Clone, Copy)]
struct Flight {
    tries: u32,
    /// The last one failed.
    fails: bool,
}

#[derive(Default)]
struct Flights(Mutex<HashMap<Of, Flight>>);

impl Flights {
    /// Those of `due` that may be sent now, as if they were under way.
    fn choose(&self, due: Vec<Delivery>, most: usize) -> Vec<Delivery> {
        let mut flights = self.0.lock();
        let mut chosen = Vec::new();
        for delivery in due {
            let flight = flights.entry(of(&delivery)).or_default();
            if chosen.len() < most && flight.tries < if flight.fails { 1 } else { OF_ONE_MAX } {
                flight.tries += 1;
                chosen.push(delivery);
            }
        }
        chosen
    }

    fn landed(&self, delivery: &Delivery, failed: Option<bool>) {
        let mut flights = self.0.lock();
        let Some(flight) = flights.get_mut(&of(delivery)) else { return };
        flight.tries = flight.tries.saturating_sub(1);
        flight.fails = failed.unwrap_or(flight.fails);
        if flight.tries == 0 && !flight.fails {
            flights.remove(&of(delivery));
        }
    }
}

fn of(delivery: &Delivery) -> Of {
    (delivery.message.tenant, Arc::clone(&delivery.message.webhook))
}

impl Registry {
    /// Where a tenant's webhooks may be.
    pub(super) fn reach(&self, tenant: &Tenant) -> Reach {
        let allowed = tenant.catalog().settings.allow_private_targets;
        match allowed.unwrap_or(self.options.allow_private_targets) {
            true => Reach::Anywhere,
            false => Reach::Public,
        }
    }
}

impl Service {
    /// Starts sending what webhooks are to be told; abort the task to stop.
    pub fn start_sending(self: &Arc<Self>) -> JoinHandle<()> {
        let service = Arc::clone(self);
        tokio::spawn(async move {
            let flights = Arc::<Flights>::default();
            let slots = Arc::new(Semaphore::new(IN_ALL_MAX));
            let mut tries = JoinSet::new();
            let (mut polled, mut polls) = (tokio::time::interval(POLL), 0);
            loop {
                tokio::select! {
                    _ = polled.tick() => {
                        service.tell_of_doubts().await;
                        if polls % POLLS_PER_PRUNING == 0 {
                            service.prune_deliveries().await;
                        }
                        polls += 1;
                    }
                    () = service.registry.outbox.due.notified() => {}
                }
                while tries.try_join_next().is_some() {}
                // What cannot be read now is read a second later.
                if let Err(error) = service.send_due(&flights, &slots, &mut tries).await {
                    tracing::debug!(error = &error as &dyn std::error::Error, "webhooks cannot be sent now");
                }
            }
        })
    }

    async fn send_due(
        self: &Arc<Self>,
        flights: &Arc<Flights>,
        slots: &Arc<Semaphore>,
        tries: &mut JoinSet<()>,
    ) -> Result<(), ServiceError> {
        let free = slots.available_permits();
        if free == 0 {
            return Ok(());
        }
        let now = self.registry.wall.now();
        // Webhooks that are busy must not hide others.
        let due = self.ledger.due(now, OF_ONE_MAX, 8 * IN_ALL_MAX as u32).await?;
        let chosen = flights.choose(due, free);
        if chosen.is_empty() {
            return Ok(());
        }
        let begun = self.ledger.begin_tries(chosen.clone(), now, now.plus_ms(LOST_AFTER_MS)).await;
        let is_begun = |delivery: &Delivery| {
            let is_it = |begun: &Delivery| begun.message == delivery.message;
            begun.as_ref().is_ok_and(|begun| begun.iter().any(is_it))
        };
        chosen.iter().filter(|chosen| !is_begun(chosen)).for_each(|other| flights.landed(other, None));
        for delivery in begun? {
            let (service, flights, slots) = (Arc::clone(self), Arc::clone(flights), Arc::clone(slots));
            tries.spawn(async move {
                // Never closed.
                let _slot = slots.acquire_owned().await;
                let failed = service.try_to_send(&delivery).await;
                flights.landed(&delivery, failed);
                service.registry.outbox.due.notify_one();
            });
        }
        Ok(())
    }

    /// One try. `None`: nothing was sent, or nobody knows what became of it.
    async fn try_to_send(&self, delivery: &Delivery) -> Option<bool> {
        let sent = async {
            let Some((tenant, webhook)) = self.receiver(delivery).await? else { return Ok(None) };
            let (tried, failed) = match webhook.enabled {
                true => self.send(&tenant, &webhook, delivery).await,
                false => (put_aside(None, "the webhook is disabled"), None),
            };
            self.count_try(&tenant, delivery, &tried);
            let is_gone = tried.status == Some(410);
            self.ledger.end_try(delivery.clone(), tried).await?;
            if is_gone {
                self.registry.disable_webhook(&tenant, &webhook.id).await?;
            }
            Ok::<_, ServiceError>(failed)
        };
        sent.await.unwrap_or_else(|error| {
            // It is lost by then, and comes again.
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "what became of a webhook's message is not noted"
            );
            None
        })
    }

    /// Whom a message is for. Messages of webhooks that are no more are removed.
    async fn receiver(
        &self,
        delivery: &Delivery,
    ) -> Result<Option<(Arc<Tenant>, Arc<Webhook>)>, ServiceError> {
        let (number, id) = (delivery.message.tenant, &delivery.message.webhook);
        let find = || {
            let tenant = self.registry.tenant_numbered(number)?;
            let webhook = tenant.catalog().webhook(id).cloned()?;
            Some((tenant, webhook))
        };
        if let Some(found) = find() {
            return Ok(Some(found));
        }
        // It may be new, by another node.
        self.registry.refresh().await?;
        let found = find();
        if found.is_none() {
            self.ledger.forget_webhook(number, id.to_string()).await?;
        }
        Ok(found)
    }

    async fn send(&self, tenant: &Tenant, webhook: &Webhook, delivery: &Delivery) -> (Tried, Option<bool>) {
        let headers = webhook.headers(&delivery.message, self.registry.wall.now(), &self.registry.files);
        let (reach, body) = (self.registry.reach(tenant), Arc::clone(&delivery.message.body));
        let answer = self.courier.post(&webhook.url, reach, headers, body).await;
        let tried = tried(answer, delivery, self.registry.wall.now());
        let failed = tried.state != DeliveryState::Delivered;
        (tried, Some(failed))
    }

    /// The URL stays out of the log: it may be as good as a password.
    fn count_try(&self, tenant: &Tenant, delivery: &Delivery, tried: &Tried) {
        let outbox = &self.registry.outbox;
        let counter = match tried.state {
            DeliveryState::Delivered => &outbox.delivered,
            DeliveryState::Pending => &outbox.failed,
            DeliveryState::Dead => &outbox.dead,
        };
        counter.fetch_add(1, Relaxed);
        if tried.state == DeliveryState::Dead {
            tracing::warn!(
                tenant.id = %tenant.id,
                webhook.id = &*delivery.message.webhook,
                message.id = &*delivery.message.id,
                error = tried.error,
                "a webhook's message is put aside"
            );
        }
    }

    async fn prune_deliveries(&self) {
        let since = self.registry.wall.now().plus_ms(-KEPT_MS);
        match self.ledger.prune_deliveries(Keeping { pending: WAITING_MAX, since }).await {
            Ok(waiting) => self.registry.outbox.waiting.store(waiting, Relaxed),
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "old messages of webhooks stay");
            }
        }
    }
}

fn put_aside(status: Option<u32>, error: &str) -> Tried {
    Tried { state: DeliveryState::Dead, next_at: None, status, error: Some(error.to_owned()) }
}

/// What an answer, or none, makes of a message.
fn tried(answer: Result<Answered, Unsent>, delivery: &Delivery, now: Millis) -> Tried {
    let (status, error, asked_s) = match answer {
        Ok(Answered { status: status @ 200..300, .. }) => {
            let (state, status) = (DeliveryState::Delivered, Some(status.into()));
            return Tried { state, next_at: None, status, error: None };
        }
        Ok(Answered { status: 410, .. }) => return put_aside(Some(410), "the receiver is gone for good"),
        Ok(Answered { status, retry_after_s }) => {
            (Some(status.into()), format!("the receiver answered {status}"), retry_after_s)
        }
        Err(unsent) => (None, unsent.to_string(), None),
    };
    // Spread by the message, so that what failed together is not sent together.
    let salt =
        delivery.message.id.bytes().fold(0u64, |salt, byte| salt.wrapping_mul(31).wrapping_add(byte.into()));
    let next_at = pause_after(delivery.tries, salt, asked_s).map(|pause| now.plus_ms(pause));
    let state = if next_at.is_some() { DeliveryState::Pending } else { DeliveryState::Dead };
    debug_assert!(next_at.is_some() || delivery.tries >= TRIES_MAX);
    Tried { state, next_at, status, error: Some(error) }
}
