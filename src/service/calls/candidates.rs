//! The models of a check: the first that the limits and its pool allow.
//!
//! Each model is a take of its own, under one hold id. What is refused leaves no
//! trace while another model may serve; only the refusal that is told does.

use smallvec::SmallVec;

use super::admissible::{Admissible, Context};
use super::charging::{Call, Charging};
use crate::domain::condition::Pause;
use crate::domain::decision::{Refusal, Remedy};
use crate::domain::hold::RequestMark;
use crate::domain::ids::Name;
use crate::domain::line::{NO_TICKET, Place, Turn, size_class};
use crate::domain::plan::Scope;
use crate::domain::price::Prices;
use crate::domain::step::{Ask, Shortfall};
use crate::domain::taking::Taking;
use crate::engine::{Take, Taken};
use crate::service::upstream::pausing::Outcome;
use crate::service::waiting::Waits;
use crate::service::{CheckReply, Choice, MaxOutput, PoolEntry, Service, ServiceError, WouldRefuse};

/// Seconds a hold keeps its slot when nobody says otherwise.
const DEFAULT_LEASE_SECONDS: u32 = 600;

/// A model that may serve a check.
pub(in crate::service) struct Candidate {
    /// Canonical; `None`: the caller named none.
    pub model: Option<Name>,
    pub prices: Prices,
    pub lease_seconds: u32,
    /// The whole output, and the least that is of use.
    pub output_max: u64,
    pub output_min: u64,
}

/// A check by one of its models, ready for the engine.
pub(in crate::service) struct Attempt<'a> {
    pub charging: Charging<'a>,
    pub take: Take,
    /// Those who may wait for its pool.
    pub max_queue: u64,
    /// Its pool waits for the vendor.
    pub paused: Option<(&'a PoolEntry, Pause)>,
}

pub(super) type Attempts<'a> = SmallVec<[Attempt<'a>; 1]>;

/// What became of a check, by which of its models.
pub(super) struct Chosen {
    pub index: usize,
    pub outcome: Outcome,
    /// Why not by those before it.
    pub because: Vec<WouldRefuse>,
}

impl<'a, 's> Context<'a, 's> {
    /// The models asked for, each once.
    pub fn candidates(&self) -> Result<SmallVec<[Candidate; 1]>, ServiceError> {
        let command = self.command;
        let Some(models) = &command.models else {
            return Ok(SmallVec::from_iter([self.candidate(command.model.as_ref())?]));
        };
        let mut candidates: SmallVec<[Candidate; 1]> = SmallVec::new();
        for (index, model) in models.iter().enumerate() {
            let candidate = self.candidate(Some(model))?;
            if candidates.iter().any(|known| known.model == candidate.model) {
                let pointer = format!("/models/{index}");
                return Err(ServiceError::invalid(pointer, "is a model that the list has already"));
            }
            candidates.push(candidate);
        }
        if self.taking != Taking::Enforced {
            // Nothing is refused: the first one serves.
            candidates.truncate(1);
        }
        Ok(candidates)
    }

    fn candidate(&self, model: Option<&Name>) -> Result<Candidate, ServiceError> {
        let models = &self.catalog.models;
        let known = model.and_then(|model| models.resolve(model.as_str()));
        if model.is_some() && known.is_none() && !self.catalog.settings.default_pool_only {
            return Err(ServiceError::UnknownModel);
        }
        let own_lease = known.and_then(|model| model.lease_seconds);
        Ok(Candidate {
            model: model.map(|model| models.canonical(model)),
            prices: known.map(Prices::from).unwrap_or_default(),
            lease_seconds: self.command.lease_seconds.or(own_lease).unwrap_or(DEFAULT_LEASE_SECONDS),
            output_max: 0,
            output_min: 0,
        })
    }

    /// The check by its model number `index`.
    pub fn attempt(
        &self,
        admissible: &Admissible<'a, 's>,
        index: usize,
        mark: Option<&RequestMark>,
    ) -> Attempt<'s> {
        let (command, settings) = (self.command, &self.catalog.settings);
        let candidate = &admissible.candidates[index];
        let mut amounts = command.amounts.clone();
        let mut call = Call {
            model: candidate.model.as_ref().map(Name::as_str),
            feature: command.feature.as_ref().map(|feature| feature.as_str()),
            // Once its turn has come, it is one of all.
            bulk: command.bulk && self.who.turn.is_none_or(|standing| standing.turn.rank > self.now),
            input_tokens: admissible.input_tokens,
            least_output: candidate.output_min,
            prices: candidate.prices,
            amounts: &mut amounts,
        };
        let pool = admissible.subject.catalog.pool_for(call.model);
        let charging = admissible.subject.charges(&mut call, pool.map(|pool| &**pool), None);
        let max_queue = pool.map_or(0, |pool| pool.pool.max_queue);
        let paused = pool.and_then(|pool| Some((&**pool, pool.paused(self.now, command.bulk)?)));
        let pool = pool.map(|pool| pool.pool.id.clone());
        let take = Take {
            accounts: charging.accounts.clone(),
            ask: Ask {
                charges: charging.charges.clone(),
                output_max: candidate.output_max,
                output_min: candidate.output_min,
                taking: self.taking,
            },
            credits: candidate.prices.reserve(admissible.input_tokens),
            draft: self.draft(admissible, candidate, pool, mark.cloned(), amounts),
            lease_ms: i64::from(candidate.lease_seconds) * 1000,
            max_hold_ms: i64::from(settings.max_hold_seconds) * 1000,
            dry_run: self.who.dry_run,
            quiet: self.who.turn.is_some(),
            place: self.place(&charging, candidate.output_min),
        };
        Attempt { charging, take, max_queue, paused }
    }

    /// Where the check stands among those who wait for its pool, if it has one.
    fn place(&self, charging: &Charging<'_>, least: u64) -> Option<Place> {
        charging.accounts.last().filter(|key| key.scope == Scope::Pool)?;
        let bulk = self.command.bulk;
        Some(Place {
            turn: self
                .who
                .turn
                .map_or_else(|| Turn::new(self.now, bulk, None, NO_TICKET, 0), |standing| standing.turn),
            class: size_class(&charging.charges, &charging.accounts, least),
            bulk,
            stands: self.who.turn.is_some_and(|standing| standing.stands),
        })
    }

    /// Tells what was left to us: which of the models serves, and how much output
    /// there may be.
    pub fn with_choice(&self, mut reply: CheckReply, index: usize, because: Vec<WouldRefuse>) -> CheckReply {
        let CheckReply::Allowed(allowed) = &mut reply else { return reply };
        allowed.auto_output = self.command.max_output == MaxOutput::Auto;
        if let Some(models) = &self.command.models {
            // A repeated call is served by the model that it was served by.
            let held = allowed.hold.as_ref().and_then(|hold| hold.model.as_ref());
            let is_held = |model: &Name| held == Some(&self.catalog.models.canonical(model));
            let index = models.iter().position(is_held).unwrap_or(index);
            allowed.choice = models.get(index).map(|model| Choice {
                model: model.clone(),
                substituted: index > 0,
                because: models.iter().cloned().zip(because).collect(),
            });
        }
        reply
    }
}

impl Attempt<'_> {
    /// What it can wait for, once it is refused.
    pub fn waits(&self, turn: Turn, shortfalls: &[Shortfall], at_best_ms: u64) -> Option<Box<Waits>> {
        let waits = Waits::new(&self.charging, &self.take, turn, shortfalls, at_best_ms, self.max_queue);
        waits.map(Box::new)
    }
}

impl Service {
    /// Takes by the first model that is given the whole output, else by the
    /// first that is given some of it. Else the refusal is told that passes
    /// soonest.
    ///
    /// `attempts` has the first one; the others are added as they are needed.
    pub(super) async fn first_that_fits<'a, 's>(
        &self,
        context: &Context<'a, 's>,
        admissible: &Admissible<'a, 's>,
        attempts: &mut Attempts<'s>,
    ) -> Result<Chosen, ServiceError> {
        if admissible.candidates.len() == 1 {
            let outcome = self.attempt(context, &attempts[0]).await?;
            return Ok(Chosen { index: 0, outcome, because: Vec::new() });
        }
        let mut refusals: Vec<Refused> = Vec::new();
        for whole in [true, false] {
            for (index, candidate) in admissible.candidates.iter().enumerate() {
                let (least, most) = (candidate.output_min, candidate.output_max);
                if !whole && least == most {
                    continue;
                }
                if attempts.len() == index {
                    let mark = attempts[0].take.draft.request.clone();
                    let mut attempt = context.attempt(admissible, index, mark.as_ref());
                    attempt.take.draft.id = attempts[0].take.draft.id;
                    attempts.push(attempt);
                }
                let attempt = &mut attempts[index];
                attempt.take.ask.output_min = if whole { most } else { least };
                attempt.take.quiet = true;
                let refused = match self.attempt(context, attempt).await? {
                    Outcome::Paused(refusal, waits) => Refused::of(refusal, waits, context),
                    Outcome::Taken(Taken::Refused { shortfalls, standings, at_best_ms, .. }) => {
                        let refusal = attempt.charging.refusal(&shortfalls, &standings, context.now);
                        let turn = context.who.turn;
                        let waits = turn.and_then(|of| attempt.waits(of.turn, &shortfalls, at_best_ms));
                        Refused::of(refusal, waits, context)
                    }
                    outcome => {
                        refusals.truncate(index);
                        return Ok(Chosen { index, outcome, because: because(refusals) });
                    }
                };
                match refusals.get_mut(index) {
                    Some(known) => *known = refused,
                    None => refusals.push(refused),
                }
            }
        }
        let soonest = (0..refusals.len()).min_by_key(|index| refusals[*index].how_soon()).unwrap_or(0);
        attempts[soonest].take.quiet = context.who.turn.is_some();
        let outcome = self.attempt(context, &attempts[soonest]).await?;
        refusals.truncate(soonest);
        Ok(Chosen { index: soonest, outcome, because: because(refusals) })
    }

    async fn attempt(
        &self,
        context: &Context<'_, '_>,
        attempt: &Attempt<'_>,
    ) -> Result<Outcome, ServiceError> {
        match attempt.paused.filter(|_| context.taking == Taking::Enforced) {
            Some(paused) => self.attempt_paused(context, attempt, paused).await,
            None => {
                let taken = self.apply(context.now, || self.engine.take(&attempt.take, context.now)).await?;
                Ok(Outcome::Taken(taken))
            }
        }
    }
}

fn because(refusals: Vec<Refused>) -> Vec<WouldRefuse> {
    refusals.into_iter().map(|refused| WouldRefuse::from(refused.refusal)).collect()
}

/// One of the models, as it was refused.
struct Refused {
    refusal: Refusal,
    /// The caller waits, and for this one that may end in time.
    worth_waiting: bool,
}

impl Refused {
    fn of(refusal: Refusal, waits: Option<Box<Waits>>, context: &Context<'_, '_>) -> Self {
        let deadline = context.who.turn.map(|standing| standing.deadline);
        let worth_waiting = waits.zip(deadline).is_some_and(|(waits, at)| waits.may_end_by(at, context.now));
        Self { refusal, worth_waiting }
    }

    /// What passes sooner is less; what can be waited for is least.
    fn how_soon(&self) -> (bool, u8, u64) {
        let (kind, ms) = match self.refusal.remedy {
            Some(Remedy::Wait { retry_after_ms }) => (0, retry_after_ms),
            Some(Remedy::Reset { resets_at }) => (1, resets_at.map_or(u64::MAX, |at| at.0 as u64)),
            Some(Remedy::Never { .. }) | None => (2, 0),
        };
        (!self.worth_waiting, kind, ms)
    }
}
