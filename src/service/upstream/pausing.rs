//! Checks of a pool that waits for its vendor.

use smallvec::SmallVec;

use crate::domain::cell::{Standing, UNIT};
use crate::domain::charge::Charge;
use crate::domain::condition::{Pause, PauseKind, Want};
use crate::domain::decision::Refusal;
use crate::domain::plan::Scope;
use crate::domain::step::{Shortfall, Shown};
use crate::domain::time::Millis;
use crate::engine::{Take, Taken};
use crate::service::calls::admissible::Context;
use crate::service::calls::candidates::Attempt;
use crate::service::calls::charging::Charging;
use crate::service::waiting::Waits;
use crate::service::{PoolEntry, Service, ServiceError, WouldRefuse};

/// What became of a check by one of its models.
#[allow(clippy::large_enum_variant, reason = "taken apart at once, never kept")]
pub(in crate::service) enum Outcome {
    Taken(Taken),
    /// The pool waits: nothing was taken. A check that may wait, may for this.
    Paused(Refusal, Option<Box<Waits>>),
}

impl Attempt<'_> {
    /// What is told where a pause is not enforced.
    pub fn would_pause(&self) -> Option<WouldRefuse> {
        self.paused.map(|_| WouldRefuse::PAUSED)
    }
}

impl Service {
    /// Refuses a check whose pool waits. What went through before is answered
    /// as it was, and what no wait helps against is told first: so the limits
    /// are asked, and nothing is taken.
    pub(in crate::service) async fn attempt_paused(
        &self,
        context: &Context<'_, '_>,
        attempt: &Attempt<'_>,
        (pool, pause): (&PoolEntry, Pause),
    ) -> Result<Outcome, ServiceError> {
        let now = context.now;
        let Attempt { charging, take, .. } = attempt;
        if let Some(mark) = &take.draft.request
            && let Some(id) =
                self.hold_of_request(context.tenant, context.who.account, mark.id.digest()).await?
        {
            return Ok(Outcome::Taken(Taken::Known(id)));
        }
        let mut dry = Take {
            accounts: take.accounts.clone(),
            ask: take.ask.clone(),
            draft: take.draft.clone(),
            dry_run: true,
            ..*take
        };
        dry.draft.request = None;
        // Others who wait are asked about once the pause is over.
        dry.place = None;
        let (shortfalls, standings) = match self.apply(now, || self.engine.take(&dry, now)).await {
            Ok(Taken::Refused { shortfalls, standings, .. } | Taken::Fits { standings, shortfalls, .. }) => {
                (shortfalls, standings)
            }
            Ok(Taken::Hold { .. } | Taken::Known(_)) => Default::default(),
            // The vendor's word is known without the store.
            Err(ServiceError::StoreUnavailable(_) | ServiceError::Overloaded) => Default::default(),
            Err(error) => return Err(error),
        };
        let by_limits = refusal_of(charging, &shortfalls, &standings, now);
        let wait = match context.who.dry_run || take.quiet {
            true => pause.wait_ms(now),
            false => turn(charging, take, &standings, pool, pause, now),
        };
        let waits = context.who.turn.and_then(|standing| {
            let by_limits = attempt.waits(standing.turn, &shortfalls, 0);
            let may_pass = shortfalls.is_empty() || by_limits.is_some();
            let most = attempt.max_queue;
            may_pass.then(|| Waits::paused(take, standing.turn, pause.wait_ms(now), most)).flatten()
        });
        let refusal = Refusal::paused(pause.kind, wait, by_limits);
        Ok(Outcome::Paused(refusal, waits.map(Box::new)))
    }
}

fn refusal_of(
    charging: &Charging<'_>,
    shortfalls: &[Shortfall],
    standings: &[Shown],
    now: Millis,
) -> Refusal {
    match standings.is_empty() {
        true => Refusal::nothing(),
        false if shortfalls.is_empty() => Refusal { limits: charging.rows(standings), ..Refusal::nothing() },
        false => charging.refusal(shortfalls, standings, now),
    }
}

/// What one caller is told to wait: until the pause is over, and then until
/// those told before have had their turn.
fn turn(
    charging: &Charging<'_>,
    take: &Take,
    standings: &[Shown],
    pool: &PoolEntry,
    pause: Pause,
    now: Millis,
) -> u64 {
    if pause.kind == PauseKind::Closed {
        return pause.wait_ms(now);
    }
    let of_pool = |charge: &Charge| take.accounts[usize::from(charge.account)].scope == Scope::Pool;
    let want = |(charge, shown): (&Charge, &Shown)| {
        let Standing::Bucket { capacity, refill_per_minute: refill, remaining, held, .. } = shown.standing
        else {
            return None;
        };
        let gained = (pause.until.0 - now.0).max(0) as u128 * u128::from(refill) / UNIT as u128;
        let stock = u128::from(remaining) + gained;
        let stock = stock.min(capacity.saturating_sub(held).into()) as u64;
        let amount = charge.demand.amount(take.ask.output_min);
        Some(Want { cell: charge.cell, amount, stock: stock.saturating_sub(charge.keep), refill })
    };
    let asked = charging.charges.iter().zip(standings).filter(|(charge, _)| charge.asked && of_pool(charge));
    let wants: SmallVec<[Want; 4]> = asked.filter_map(want).collect();
    let lane = usize::from(take.draft.bulk);
    let at = pool.kept.turns.lock()[lane].turn(&take.accounts[0].owner, &wants, pause.until, now);
    (at.0 - now.0).max(1) as u64
}
