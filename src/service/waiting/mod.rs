//! A check that waits for its pool, or for a slot of its own.
//!
//! It takes nothing while it waits: it asks again when something was given
//! back, when room is told for, and four times a second at worst. Who goes first
//! is the engine's to say ([`crate::domain::line`]), for all nodes alike.

mod rooms;

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use super::{CheckCommand, CheckReply, ReleaseCommand, Service, ServiceError, Tenant};
use crate::domain::charge::{AccountKey, Charge, Figures};
use crate::domain::decision::{Code, Remedy};
use crate::domain::hold::ReleaseReason;
use crate::domain::ids::Name;
use crate::domain::line::{Place, Turn, Waiter, bulk_gap_ms};
use crate::domain::plan::Scope;
use crate::domain::step::Shortfall;
use crate::domain::time::Millis;
use crate::engine::{LineStep, Take};
use crate::service::calls::admission::Decision;
use crate::service::calls::charging::Charging;

use rooms::Chair;
pub use rooms::{Resting, Rooms};

/// How long a call waits before it looks again at the latest.
const LOOK: Duration = Duration::from_millis(250);
/// No call asks more often by itself.
const SHORTEST: Duration = Duration::from_millis(10);
/// How often a node shows that it is there.
const KEEP: Duration = Duration::from_secs(1);
/// No call waits longer in real time, whatever its tenant's clock says.
const LONGEST: Duration = Duration::from_secs(60);

/// Whoever asked, as long as they wait for the answer.
pub trait Presence {
    fn is_gone(&self) -> bool;
}

/// What became of a check that might wait.
#[derive(Debug)]
pub enum Waited {
    /// Beside the answer, whether it waited at all, and for how long.
    Answered(CheckReply, Option<Duration>),
    /// Whoever asked is gone; nothing is taken.
    Gone(Duration),
}

/// What a refused check may wait for.
#[derive(Debug, Clone)]
pub(super) struct Waits {
    /// The pool; of who waits for slots of its own alone, the user.
    key: AccountKey,
    /// The pool refused it: it stands in its line.
    stands: bool,
    place: Place,
    input: u64,
    output: u64,
    /// Those who may stand in the line.
    most: usize,
    /// Of bulk: how long after another's its turn comes.
    gap_ms: i64,
    /// No wait for the pool is shorter.
    at_best_ms: u64,
    /// When it may fit if nothing else happens.
    retry_ms: u64,
    /// It would fit, but others go first.
    blocked: bool,
}

impl Waits {
    /// `None`: something else than pool and slots refuses it, or it never fits.
    pub fn new(
        charging: &Charging<'_>,
        take: &Take,
        turn: Turn,
        shortfalls: &[Shortfall],
        at_best_ms: u64,
        most: u64,
    ) -> Option<Self> {
        let place = take.place.unwrap_or(Place { turn, class: 0, bulk: take.draft.bulk, stands: false });
        let scope =
            |short: &Shortfall| charging.accounts[usize::from(charging.charges[short.charge].account)].scope;
        let may_pass = |short: &Shortfall| match short.remedy {
            Remedy::Never { .. } => false,
            _ if scope(short) == Scope::Pool => true,
            Remedy::Wait { .. } => matches!(charging.charges[short.charge].figures, Figures::Slots { .. }),
            Remedy::Reset { .. } => false,
        };
        if shortfalls.is_empty() || !shortfalls.iter().all(may_pass) {
            return None;
        }
        let stands = shortfalls.iter().any(|short| scope(short) == Scope::Pool);
        let key = if stands { take.pool()?.clone() } else { take.accounts[0].clone() };
        let waits = shortfalls.iter().filter_map(|short| match short.remedy {
            Remedy::Wait { retry_after_ms } => Some(retry_after_ms),
            _ => None,
        });
        let blocked = |short: &Shortfall| {
            let keep = charging.charges[short.charge].keep;
            short.would_fit < short.requested && short.remaining >= short.requested.saturating_add(keep)
        };
        Some(Self {
            key,
            stands,
            place,
            input: take.draft.granted.input_tokens,
            output: output_at_start(take),
            most: usize::try_from(most).unwrap_or(usize::MAX),
            gap_ms: bulk_gap_ms(&take.ask.charges, &take.accounts, take.ask.output_min),
            at_best_ms,
            retry_ms: waits.max().unwrap_or(0),
            blocked: shortfalls.iter().any(blocked),
        })
    }
}

impl Waits {
    /// The pool waits for its vendor so long; `None`: there is no pool.
    pub fn paused(take: &Take, turn: Turn, pause_ms: u64, most: u64) -> Option<Self> {
        let place = take.place.unwrap_or(Place { turn, class: 0, bulk: take.draft.bulk, stands: false });
        Some(Self {
            key: take.pool()?.clone(),
            stands: true,
            place,
            input: take.draft.granted.input_tokens,
            output: output_at_start(take),
            most: usize::try_from(most).unwrap_or(usize::MAX),
            gap_ms: bulk_gap_ms(&take.ask.charges, &take.accounts, take.ask.output_min),
            at_best_ms: pause_ms,
            retry_ms: pause_ms,
            blocked: false,
        })
    }
}

impl Waits {
    /// Whether there may be room in time, and a place to wait for it.
    pub fn may_end_by(&self, deadline: Millis, now: Millis) -> bool {
        self.can_end_by(deadline, now) && !(self.stands && self.most == 0)
    }

    /// Whether the shortest wait ends in time.
    fn can_end_by(&self, deadline: Millis, now: Millis) -> bool {
        let at_best = i64::try_from(self.at_best_ms).unwrap_or(i64::MAX);
        now.plus_ms(at_best) <= deadline
    }

    /// When a look may come to something by itself, on a clock that stands.
    fn looks_at(&self, now: Millis, patience: &Patience, chair: &Chair<'_>) -> Millis {
        if !chair.is_first() {
            return patience.deadline;
        }
        let retry_ms = i64::try_from(self.retry_ms.max(1)).unwrap_or(i64::MAX);
        let room = if self.blocked { Millis::MAX } else { now.plus_ms(retry_ms) };
        // From its rank on, a bulk call may take what is kept for others.
        let rank = Some(patience.turn.rank).filter(|rank| self.place.bulk && *rank > now);
        room.min(patience.deadline).min(rank.unwrap_or(Millis::MAX))
    }
}

/// Of the least output what its pool counts when the call starts: nothing where it
/// counts what was generated. Nobody behind it waits for the rest.
fn output_at_start(take: &Take) -> u64 {
    let of_pool = |charge: &&Charge| take.accounts[usize::from(charge.account)].scope == Scope::Pool;
    let is_counted = take.ask.charges.iter().filter(of_pool).any(|charge| charge.demand.per_output > 0);
    if is_counted { take.ask.output_min } else { 0 }
}

/// A check that waits, or would.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    pub turn: Turn,
    /// It is in the line already.
    pub stands: bool,
    /// Until when it waits.
    pub deadline: Millis,
}

/// How long a call waits.
struct Patience {
    turn: Turn,
    /// The turn is some time after that of the bulk call before it.
    is_placed: bool,
    began: Instant,
    deadline: Millis,
}

impl Patience {
    fn new(now: Millis, bulk: bool, wait_ms: u32, rooms: &Rooms) -> Self {
        let wait_ms = i64::from(wait_ms);
        Self {
            turn: Turn::new(now, bulk, Some(wait_ms), rooms.ticket(), rooms.node),
            is_placed: !bulk,
            began: Instant::now(),
            deadline: now.plus_ms(wait_ms),
        }
    }

    /// Until the end, in real time if the clock runs.
    fn left(&self, tenant: &Tenant) -> Duration {
        let real = LONGEST.saturating_sub(self.began.elapsed());
        if tenant.clock_stands() {
            return real;
        }
        real.min(Duration::from_millis(u64::try_from(self.deadline.0 - tenant.now().0).unwrap_or(0)))
    }
}

impl Service {
    /// Decides a check that waits as long as it says while pool or slots refuse
    /// it. What it takes is on record when this returns; whoever drops this
    /// future may leave a hold behind, so tell by `caller` instead.
    pub async fn check_waiting(
        self: &Arc<Self>,
        tenant: &Tenant,
        command: CheckCommand,
        caller: &impl Presence,
    ) -> Result<Waited, ServiceError> {
        let mut patience = Patience::new(tenant.now(), command.bulk, command.wait_ms, &self.rooms);
        let mut chair = None;
        let decided = self.wait_for(tenant, &command, &mut patience, caller, &mut chair).await;
        let waited = chair.is_some().then(|| patience.began.elapsed());
        if let Some(chair) = chair {
            if let Ok(Some(Decision { reply: CheckReply::Allowed(allowed), .. })) = &decided
                && allowed
                    .hold
                    .as_ref()
                    .is_some_and(|hold| hold.pool.as_ref().map(Name::as_str) == Some(&*chair.key.owner))
            {
                // The engine has seen to that.
                chair.seat.entered.store(false, SeqCst);
            }
            self.leave(chair).await;
        }
        let Some(decision) = decided? else { return Ok(Waited::Gone(patience.began.elapsed())) };
        let reply = self.told(tenant, &command, decision).await?;
        if caller.is_gone() {
            self.take_back(tenant, &reply).await?;
            return Ok(Waited::Gone(patience.began.elapsed()));
        }
        Ok(Waited::Answered(reply, waited))
    }

    /// Nobody hears that a call may be made: it will not be.
    pub async fn take_back(&self, tenant: &Tenant, reply: &CheckReply) -> Result<(), ServiceError> {
        if let CheckReply::Allowed(allowed) = reply
            && let Some(hold) = allowed.hold.as_ref().filter(|_| !allowed.replayed)
        {
            let command = ReleaseCommand { id: hold.id, reason: ReleaseReason::NotSent };
            self.release(tenant, command).await?;
        }
        Ok(())
    }

    /// Nobody waits longer, nor for a server that is about to stop.
    fn is_over(&self, patience: &Patience, tenant: &Tenant) -> bool {
        tenant.now() >= patience.deadline
            || patience.began.elapsed() >= LONGEST
            || self.stopping.load(Relaxed)
    }

    /// Asks until it is decided for good. `None`: the caller is gone.
    async fn wait_for<'r>(
        self: &'r Arc<Self>,
        tenant: &Tenant,
        command: &CheckCommand,
        patience: &mut Patience,
        caller: &impl Presence,
        chair: &mut Option<Chair<'r>>,
    ) -> Result<Option<Decision>, ServiceError> {
        loop {
            if caller.is_gone() {
                return Ok(None);
            }
            let stands = chair.as_ref().is_some_and(|chair| chair.seat.stands.load(SeqCst));
            let mut rung = chair.as_ref().map_or(0, |chair| chair.seat.rung());
            let standing = Standing { turn: patience.turn, stands, deadline: patience.deadline };
            let mut decision = self.judge_for(tenant, command, Some(standing)).await?;
            let (Some(mut waits), CheckReply::Refused(refusal)) =
                (decision.waits.take(), &mut decision.reply)
            else {
                return Ok(Some(decision));
            };
            if self.is_over(patience, tenant) {
                refusal.code = Code::QueueTimeout;
                return Ok(Some(decision));
            }
            if !waits.can_end_by(patience.deadline, tenant.now()) {
                // In earnest: it is told a wait of its own.
                return self.judge_for(tenant, command, None).await.map(Some);
            }
            if chair.as_ref().is_some_and(|chair| chair.key != waits.key)
                && let Some(left) = chair.take()
            {
                self.leave(left).await;
                rung = 0;
            }
            if waits.stands && !patience.is_placed {
                let Patience { turn, deadline, .. } = *patience;
                patience.turn.rank = self.rooms.bulk_rank(&waits.key, turn.rank, waits.gap_ms, deadline);
                patience.is_placed = true;
                waits.place.turn = patience.turn;
            }
            let seated = match chair {
                Some(seated) => seated,
                None => {
                    chair.insert(self.rooms.enter(&waits.key, &waits.place).ok_or(ServiceError::Overloaded)?)
                }
            };
            if waits.stands
                && !seated.seat.stands.load(SeqCst)
                && !self.stand(seated, &waits, patience.deadline).await?
            {
                refusal.code = Code::QueueFull;
                return Ok(Some(decision));
            }
            // Before it could hear of it, there may have been room.
            if rung > 0 {
                self.wait_for_turn(tenant, patience, caller, seated, &waits, rung).await?;
            }
        }
    }

    /// Waits until it is worth asking again: it is this call's turn and
    /// something may have changed, or the wait is over.
    async fn wait_for_turn(
        &self,
        tenant: &Tenant,
        patience: &Patience,
        caller: &impl Presence,
        chair: &Chair<'_>,
        waits: &Waits,
        mut rung: u64,
    ) -> Result<(), ServiceError> {
        loop {
            let stands_still = tenant.clock_stands();
            chair.rests(rung, stands_still.then(|| waits.looks_at(tenant.now(), patience, chair)));
            let mut pause = LOOK.min(patience.left(tenant));
            if !stands_still && chair.is_first() {
                pause = pause.min(Duration::from_millis(waits.retry_ms).max(SHORTEST));
            }
            // A bell that has rung in between is heard at once.
            let _ = tokio::time::timeout(pause, chair.seat.bell.notified()).await;
            rung = chair.seat.rung();
            if tenant.test {
                self.catch_up(tenant, false).await?;
            }
            let has_lost = waits.stands && !chair.seat.stands.load(SeqCst);
            if caller.is_gone() || self.is_over(patience, tenant) || has_lost || chair.is_first() {
                return Ok(());
            }
        }
    }

    /// Stands in the engine's line; `false`: it is full.
    async fn stand(
        self: &Arc<Self>,
        chair: &Chair<'_>,
        waits: &Waits,
        deadline: Millis,
    ) -> Result<bool, ServiceError> {
        let waiter = Waiter { place: waits.place, deadline, input: waits.input, output: waits.output };
        let step = LineStep::Enter { waiter, most: waits.most };
        // Even if no answer comes.
        chair.seat.entered.store(true, SeqCst);
        let stood = self.plain(|| self.engine.stand(&waits.key, &step)).await?;
        chair.seat.stands.store(stood.stands, SeqCst);
        if stood.stands && !self.rooms.kept.swap(true, SeqCst) {
            tokio::spawn(Arc::clone(self).keep_lines());
        }
        Ok(stood.stands)
    }

    /// Gives the seat up, and the place in the line.
    async fn leave(&self, chair: Chair<'_>) {
        if chair.seat.entered.load(SeqCst) {
            let step = LineStep::Leave(chair.place.turn);
            if let Err(error) = self.plain(|| self.engine.stand(&chair.key, &step)).await {
                // Its deadline ends it.
                tracing::debug!(error = &error as &dyn std::error::Error, "a line was not left");
            }
        }
    }

    /// Shows the engine that this node is there, as long as somebody stands.
    async fn keep_lines(self: Arc<Self>) {
        loop {
            tokio::time::sleep(KEEP).await;
            let lines = self.rooms.standing();
            if lines.is_empty() {
                self.rooms.kept.store(false, SeqCst);
                // Somebody may have come meanwhile.
                if self.rooms.standing().is_empty() || self.rooms.kept.swap(true, SeqCst) {
                    return;
                }
                continue;
            }
            let step = LineStep::Keep { node: self.rooms.node };
            for (key, standing) in lines {
                if let Ok(stood) = self.plain(|| self.engine.stand(&key, &step)).await
                    && stood.of_node < standing
                    && self.rooms.standing().iter().any(|(known, now)| *known == key && *now > stood.of_node)
                {
                    self.rooms.lost(&key);
                }
            }
        }
    }
}
