//! The way down from the engine to the ledger: changes are drained in the
//! order they happened, written many at a time, and confirmed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::outage::Operation;
use super::{Service, ServiceError};
use crate::domain::hold::{Hold, Stage};
use crate::domain::ids::Label;
use crate::domain::slot::Fence;
use crate::engine::{self, Batch};
use crate::ledger::{self, FeedMark, LedgerError, Telling, UsageDelta};
use crate::service::telling::activity;
use crate::service::telling::watchers::Bell;

/// A running journal; stop it last, when nobody takes anything any more.
pub struct Journal {
    task: JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

/// How long to let a ledger rest that has failed. Every check in between is
/// answered 503, so nothing piles up.
const REST: Duration = Duration::from_millis(50);

/// How long what is left may take when the process ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// Where a batch came on record.
pub(super) enum Recorded {
    Here,
    /// By another node, which was faster.
    Elsewhere,
}

impl Service {
    /// Starts recording what the engine decides.
    pub fn start_journal(self: &Arc<Self>) -> Journal {
        let service = Arc::clone(self);
        let (stop, mut stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            loop {
                let batch = tokio::select! {
                    biased;
                    batch = service.engine.changes() => batch,
                    _ = &mut stopped => return service.record_rest().await,
                };
                let fence = batch.fence;
                match service.record_batch(batch).await {
                    Ok(Recorded::Here) => {}
                    // Whoever did may have ended before it could say so.
                    Ok(Recorded::Elsewhere) => service.compare_slot(fence).await,
                    // What failed was told, and is forgotten or comes again.
                    Err(_) => tokio::time::sleep(REST).await,
                }
            }
        });
        Journal { task, stop }
    }

    /// Records what the engine still has, if that can be: where it keeps it apart
    /// from this process, another one will.
    async fn record_rest(&self) {
        self.engine.hurry();
        let rest = async {
            while self.engine.lag().changes > 0 {
                let batch = self.engine.changes().await;
                if self.record_batch(batch).await.is_err() {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(FAREWELL, rest).await;
    }

    /// Writes a batch and tells the engine. Where others record as well, theirs
    /// may be the one that counts.
    pub(super) async fn record_batch(&self, batch: Batch) -> Result<Recorded, LedgerError> {
        let changes: Vec<ledger::Change> = batch.changes.iter().flat_map(recorded_form).collect();
        if changes.is_empty() && batch.fence.is_none() {
            self.engine.committed(batch).await;
            return Ok(Recorded::Here);
        }
        let watching = self.told_to_watchers(&batch);
        let used = activity::used(&changes);
        let begun = Instant::now();
        let (committed, told) = self.commit(&batch, changes).await;
        self.admitted(&batch);
        match committed {
            Ok(()) => {
                self.commits.note(batch.changes.len(), begun.elapsed());
                self.tallies.used(used);
                self.engine.committed(batch).await;
                self.drained.notify_waiters();
                self.told_on_record(told);
                watching.iter().for_each(|bell| bell.ring());
            }
            // Somebody else was faster.
            Err(LedgerError::Fenced) => {
                self.engine.failed(batch).await;
                self.drained.notify_waiters();
                return Ok(Recorded::Elsewhere);
            }
            Err(error) => {
                // That the ledger is away is told once, when the outage begins.
                if !matches!(error, LedgerError::Unavailable(_)) {
                    let changes = batch.changes.len();
                    tracing::error!(error = &error as &dyn std::error::Error, changes, "cannot record");
                }
                self.outage.missed(Operation::Record, &error);
                self.engine.failed(batch).await;
                self.registry.watchers.everything_changed();
                return Err(error);
            }
        }
        Ok(Recorded::Here)
    }

    /// Commits changes with what webhooks are told of them.
    async fn commit(
        &self,
        batch: &Batch,
        changes: Vec<ledger::Change>,
    ) -> (Result<(), LedgerError>, Telling) {
        let telling = match self.telling(batch).await {
            Ok(telling) => telling,
            // As if the commit had failed: it comes again.
            Err(ServiceError::StoreUnavailable(error)) => {
                return (Err(LedgerError::Unavailable(error)), Telling::default());
            }
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "webhooks are not told of changes");
                Telling::default()
            }
        };
        let committed = match (telling.is_empty(), batch.fence) {
            (true, Some(fence)) => self.ledger.commit_fenced(changes, fence).await,
            (true, None) => self.ledger.commit(changes).await,
            (false, fence) => self.ledger.commit_telling(changes, fence, telling.clone()).await,
        };
        (committed, telling)
    }

    async fn compare_slot(&self, fence: Option<Fence>) {
        let Some(fence) = fence else { return };
        let tenant = fence.tenant;
        let compared = async {
            self.settle_slot(tenant).await?;
            self.follow_ledger(fence).await
        };
        if let Err(error) = compared.await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(tenant.number = tenant.0, error, "a slot cannot be compared with the ledger");
        }
    }

    /// Users who may have come on record with their first hold are unknown no
    /// more.
    fn admitted(&self, batch: &Batch) {
        let holds = batch.changes.iter().filter_map(|change| change.hold.as_ref());
        for hold in holds.filter(|hold| hold.admits_user) {
            self.registry.forget_user(hold.tenant, &hold.user);
        }
    }

    /// Tells the other nodes whose accounts a batch changes, and names the
    /// bells of those who watch here.
    fn told_to_watchers(&self, batch: &Batch) -> Vec<Arc<Bell>> {
        let accounts = batch.changes.iter().flat_map(|change| change.accounts.iter().map(|(key, _)| key));
        self.news.changed(accounts.clone());
        self.registry.watchers.of_accounts(accounts)
    }
}

impl Journal {
    /// Records everything that is queued, then ends.
    pub async fn stop(self) {
        // The receiver is gone only if the task is.
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

/// What the ledger keeps of a change: the hold, the packed accounts, and what
/// the step adds to the day's totals. A correction that moves usage to another
/// model is two differences.
fn recorded_form(change: &engine::Change) -> Vec<ledger::Change> {
    let accounts = change.accounts.to_vec();
    let Some(hold) = &change.hold else {
        let moved = change.moved.clone();
        let of_accounts = ledger::Change { accounts, moved, ..ledger::Change::default() };
        return if of_accounts.accounts.is_empty() { Vec::new() } else { vec![of_accounts] };
    };
    let before = change.before.as_deref().and_then(|before| delta(before, -1));
    let after = delta(hold, 1);
    let (first, second) = match (before, after) {
        (Some(before), Some(after)) if before.model == after.model => (Some(sum(before, &after)), None),
        (Some(before), after) => (Some(before), after),
        (None, after) => (after, None),
    };
    let was_finished = change.before.as_deref().is_some_and(Hold::is_finished);
    // The end of a hold is its first event; a correction follows, in one or two.
    let part = if was_finished { 2 } else { 1 };
    let mark = |part, amounts| hold.is_finished().then_some(FeedMark { part, amounts });
    let (amounts_before, amounts_after) = (change.before.as_deref().map(custom), custom(hold));
    let amounts_before = amounts_before.unwrap_or_default();
    let of_hold = |usage, event, accounts| {
        let hold = Some(Arc::clone(hold));
        ledger::Change { hold, usage, event, accounts, moved: Vec::new() }
    };
    if second.is_none() {
        return vec![of_hold(first, mark(part, differences(&amounts_before, &amounts_after)), accounts)];
    }
    vec![
        of_hold(first, mark(part, differences(&amounts_before, &[])), accounts),
        of_hold(second, mark(part + 1, differences(&[], &amounts_after)), Vec::new()),
    ]
}

/// What a settled hold counts on the tenant's own meters.
fn custom(hold: &Hold) -> Vec<(Label, u64)> {
    match &hold.stage {
        Stage::Settled(settled) => settled.amounts.clone(),
        _ => Vec::new(),
    }
}

/// From `before` to `after`, meter by meter; none is left out that either names.
fn differences(before: &[(Label, u64)], after: &[(Label, u64)]) -> Vec<(Label, i64)> {
    let of = |amounts: &[(Label, u64)], meter: &Label| {
        amounts.iter().find(|(known, _)| known == meter).map_or(0, |(_, amount)| amount.cast_signed())
    };
    let gone = before.iter().filter(|(meter, _)| after.iter().all(|(known, _)| known != meter));
    let meters = after.iter().chain(gone).map(|(meter, _)| meter);
    meters.map(|meter| (meter.clone(), of(after, meter) - of(before, meter))).collect()
}

/// A settled hold's part of the totals, times `sign`.
fn delta(hold: &Hold, sign: i64) -> Option<UsageDelta> {
    let Stage::Settled(settled) = &hold.stage else { return None };
    let signed = |amount: u64| sign * amount as i64;
    Some(UsageDelta {
        model: settled.reported.model.clone(),
        requests: signed(settled.counted.requests),
        input_tokens: signed(settled.counted.input_tokens),
        output_tokens: signed(settled.counted.output_tokens),
        total_tokens: signed(settled.counted.total_tokens),
        credits: signed(settled.counted.credits),
    })
}

fn sum(a: UsageDelta, b: &UsageDelta) -> UsageDelta {
    UsageDelta {
        requests: a.requests + b.requests,
        input_tokens: a.input_tokens + b.input_tokens,
        output_tokens: a.output_tokens + b.output_tokens,
        total_tokens: a.total_tokens + b.total_tokens,
        credits: a.credits + b.credits,
        model: a.model,
    }
}
