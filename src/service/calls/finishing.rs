//! Settle, release, and `usage: unknown`: the end of a hold.

use std::sync::Arc;

use super::charging::{Call, Charging};
use crate::domain::decision::LimitRow;
use crate::domain::hold::{Amounts, FinishedBy, Hold, HoldState, ReleaseReason, Reported, Settlement, Stage};
use crate::domain::ids::{HoldId, Label, Name, RequestId, UserId};
use crate::domain::plan::{Models, PerCall};
use crate::domain::price::Prices;
use crate::domain::quantity::{Ppm, add_saturating};
use crate::domain::time::Millis;
use crate::engine::{self, How};
use crate::service::entitlement::erasing::LOOKS;
use crate::service::entitlement::plans::{PlanVersion, VersionRecord, VersionTerms};
use crate::service::entitlement::subject::Party;
use crate::service::outage::Operation;
use crate::service::{
    Catalog, FinishReply, Finished, Plan, ReleaseCommand, Service, ServiceError, SettleCommand, SettleUsage,
    Tenant, Unrecorded,
};

type Ended = Result<(FinishReply, Unrecorded), ServiceError>;

impl Service {
    pub async fn settle(&self, tenant: &Tenant, command: SettleCommand) -> Result<FinishReply, ServiceError> {
        let ended = self.settle_now(tenant, &command).await;
        self.ended_on_record(Operation::Settle, ended).await
    }

    /// Settles every hold by itself, in order; one wait for all of them.
    pub async fn settle_batch(
        &self,
        tenant: &Tenant,
        commands: Vec<SettleCommand>,
    ) -> Vec<Result<FinishReply, ServiceError>> {
        let mut ended = Vec::with_capacity(commands.len());
        for command in &commands {
            ended.push(self.settle_now(tenant, command).await);
        }
        let mut replies = Vec::with_capacity(ended.len());
        for end in ended {
            replies.push(self.ended_on_record(Operation::Settle, end).await);
        }
        replies
    }

    pub async fn release(
        &self,
        tenant: &Tenant,
        command: ReleaseCommand,
    ) -> Result<FinishReply, ServiceError> {
        let ending = Ending::Release(command.reason, FinishedBy::Caller);
        let ended = self.finish(tenant, command.id, &ending).await;
        self.ended_on_record(Operation::Release, ended).await
    }

    /// Waits until an end is on record.
    async fn ended_on_record(&self, operation: Operation, ended: Ended) -> Result<FinishReply, ServiceError> {
        let told = async {
            let (reply, ticket) = ended?;
            self.recorded(ticket).await?;
            Ok(reply)
        };
        self.outage.noted(operation, told.await)
    }

    async fn settle_now(&self, tenant: &Tenant, command: &SettleCommand) -> Ended {
        match &command.usage {
            SettleUsage::Unknown => self.finish(tenant, command.id, &Ending::Unknown).await,
            SettleUsage::Reported { reported, amounts } => {
                let by = FinishedBy::Caller;
                let ended = self.finish(tenant, command.id, &Ending::Usage { reported, amounts, by }).await;
                if let Ok((FinishReply::Done(done), _)) = &ended
                    && !done.replayed
                {
                    let upstream = reported.upstream.as_ref();
                    let latency_ms = upstream.and_then(|upstream| upstream.latency_ms);
                    let status = upstream.and_then(|upstream| upstream.status);
                    self.learn(tenant, &done.hold);
                    self.observe_settled(tenant, &done.hold, latency_ms, status).await;
                }
                ended
            }
        }
    }

    /// A hold as it is now, for reading.
    pub async fn hold(
        &self,
        tenant: &Tenant,
        id: HoldId,
    ) -> Result<Option<(Arc<Hold>, Millis)>, ServiceError> {
        let hold = match self.outage.hold(tenant.number, id) {
            Some(unbooked) => Some(unbooked),
            None => self.current_hold(tenant, id).await?,
        };
        Ok(hold.map(|hold| (hold, tenant.now())))
    }

    pub async fn hold_by_request(
        &self,
        tenant: &Tenant,
        user: UserId,
        request: RequestId,
    ) -> Result<Option<(Arc<Hold>, Millis)>, ServiceError> {
        let profile = self.registry.profile(tenant, &user).await?;
        let account = profile.alias().cloned().unwrap_or(user);
        match self.ledger.hold_by_request(tenant.number, account, request).await? {
            Some(recorded) => self.hold(tenant, recorded.id).await,
            None => Ok(None),
        }
    }

    /// Ends a hold, or tells why not; the step is on record once the ticket
    /// resolves.
    pub(super) async fn finish(&self, tenant: &Tenant, id: HoldId, ending: &Ending<'_>) -> Ended {
        match self.finish_unbooked(tenant, id, ending).await? {
            Some(reply) => Ok((reply, Unrecorded(None))),
            None => match self.finish_on_record(tenant, id, ending).await? {
                (FinishReply::NotFound, _) if self.may_be_unbooked(tenant, id) => {
                    Err(ServiceError::MaybeUnbooked)
                }
                ended => Ok(ended),
            },
        }
    }

    pub(in crate::service) async fn finish_on_record(
        &self,
        tenant: &Tenant,
        id: HoldId,
        ending: &Ending<'_>,
    ) -> Ended {
        let Some(hold) = self.current_hold(tenant, id).await? else {
            return Ok((FinishReply::NotFound, Unrecorded(None)));
        };
        let now = tenant.now();
        if ending.by() != FinishedBy::Caller && hold.state(now) == HoldState::Held {
            return Ok((FinishReply::NotInDoubt(hold, now), Unrecorded(None)));
        }
        // What has finished is told first, whatever the figures.
        let may_settle = !hold.is_finished() || ended_by_rule(&hold);
        if may_settle
            && let Ending::Usage { reported, .. } = ending
            && let Some((field, max)) = implausible(reported, tenant.catalog().settings.max_tokens_per_call)
        {
            return Ok((FinishReply::UsageImplausible { field, max }, Unrecorded(None)));
        }
        if !hold.is_finished() {
            let how = ending.how(self, tenant, &hold).await?;
            let outcome = self.finish_with(tenant, &hold, how, None).await?;
            let is_over = match &outcome.0 {
                engine::Finished::NotOpen => true,
                engine::Finished::Already(hold) => ended_by_rule(hold),
                _ => false,
            };
            if !is_over {
                return self.ended(tenant, ending, outcome).await;
            }
        }
        self.correct(tenant, id, ending).await
    }

    /// The hold is finished. What a rule ended takes one correction; those who
    /// would correct a hold wait for each other.
    async fn correct(&self, tenant: &Tenant, id: HoldId, ending: &Ending<'_>) -> Ended {
        let _turn = self.turn(id).await;
        let Some(hold) = self.find_hold(tenant, id).await? else {
            return Ok((FinishReply::NotFound, Unrecorded(None)));
        };
        if !hold.is_finished() {
            // Its end could not be recorded and was taken back.
            return Err(ServiceError::Overloaded);
        }
        if !ended_by_rule(&hold) || matches!(ending, Ending::Unknown) {
            return self.ended(tenant, ending, (engine::Finished::Already(hold), Vec::new())).await;
        }
        let how = ending.how(self, tenant, &hold).await?;
        let outcome = self.finish_with(tenant, &hold, how, Some(Arc::clone(&hold))).await?;
        let (reply, ticket) = self.ended(tenant, ending, outcome).await?;
        self.recorded(ticket).await?;
        Ok((reply, Unrecorded(None)))
    }

    /// The engine's part, with the rows to show.
    pub(super) async fn finish_with(
        &self,
        tenant: &Tenant,
        hold: &Arc<Hold>,
        how: How,
        ended_by_rule: Option<Arc<Hold>>,
    ) -> Result<(engine::Finished, Vec<LimitRow>), ServiceError> {
        let (mut hold, mut how, mut ended_by_rule) = (Arc::clone(hold), how, ended_by_rule);
        for _ in 0..LOOKS {
            let now = tenant.now();
            let party = self.party_of_hold(tenant, &hold).await?;
            let catalog = tenant.catalog();
            let charging = self.charging_of(tenant, &catalog, &party, &hold, now)?;
            let finish = engine::Finish {
                hold: hold.id,
                found: Some(Arc::clone(&hold)),
                accounts: charging.accounts.clone(),
                show: charging.to_show(),
                how,
                ended_by_rule,
            };
            let outcome = match self.apply(now, || self.engine.finish(&finish, now)).await {
                Err(ServiceError::Moved) => None,
                Err(ServiceError::ClockOff) => {
                    (how, ended_by_rule) = (finish.how, finish.ended_by_rule);
                    continue;
                }
                outcome => Some(outcome?),
            };
            if let Some(outcome) = outcome {
                if let engine::Finished::Done { hold, .. } = &outcome {
                    self.rooms.given_back(hold);
                }
                let rows = match &outcome {
                    engine::Finished::Done { standings, .. } => charging.rows(standings),
                    _ => Vec::new(),
                };
                return Ok((outcome, rows));
            }
            drop(charging);
            self.look_again(tenant, &hold.user).await?;
            let Some(found) = self.find_hold(tenant, hold.id).await? else {
                return Ok((engine::Finished::NotOpen, Vec::new()));
            };
            how = finish.how;
            ended_by_rule = finish.ended_by_rule.map(|_| Arc::clone(&found));
            hold = found;
        }
        Err(ServiceError::Overloaded)
    }

    async fn ended(
        &self,
        tenant: &Tenant,
        ending: &Ending<'_>,
        outcome: (engine::Finished, Vec<LimitRow>),
    ) -> Ended {
        let now = tenant.now();
        let barrier = || Unrecorded(Some(self.barrier(tenant)));
        match outcome.0 {
            engine::Finished::Done { hold, ticket, .. } => {
                let done = Finished { hold, now, limits: outcome.1, replayed: false, would_refuse: None };
                Ok((FinishReply::Done(done), Unrecorded(Some(ticket))))
            }
            engine::Finished::Already(hold)
                if ending.repeats(&hold, now, &*self.models_of(tenant, &hold).await?) =>
            {
                let limits = self.rows_of(tenant, &hold, now).await?;
                let done = Finished { hold, now, limits, replayed: true, would_refuse: None };
                Ok((FinishReply::Done(done), barrier()))
            }
            engine::Finished::Already(hold) => Ok((FinishReply::AlreadyFinished(hold, now), barrier())),
            engine::Finished::HasProgress(hold) => {
                Ok((FinishReply::HasProgress(hold, now), Unrecorded(None)))
            }
            engine::Finished::NotInDoubt(hold) => Ok((FinishReply::NotInDoubt(hold, now), Unrecorded(None))),
            engine::Finished::NotOpen => Ok((FinishReply::NotFound, Unrecorded(None))),
        }
    }

    /// The prices of a hold's admission.
    pub(in crate::service) async fn models_of(
        &self,
        tenant: &Tenant,
        hold: &Hold,
    ) -> Result<Arc<Models>, ServiceError> {
        let models = self.registry.models_at(tenant, hold.models_version).await?;
        models.ok_or_else(|| {
            ServiceError::Corrupt(format!("models of version {} are gone", hold.models_version))
        })
    }

    /// The rows of a reply about a hold, as the plan of now has them.
    pub(super) async fn rows_of(
        &self,
        tenant: &Tenant,
        hold: &Hold,
        now: Millis,
    ) -> Result<Vec<LimitRow>, ServiceError> {
        let party = self.party_of_hold(tenant, hold).await?;
        let catalog = tenant.catalog();
        let charging = self.charging_of(tenant, &catalog, &party, hold, now)?;
        let standings = self.standings(&charging.accounts, &charging.to_show(), now).await?;
        Ok(charging.rows(&standings))
    }

    /// The hold's user as they are now, with the org that it began with.
    pub(in crate::service) async fn party_of_hold(
        &self,
        tenant: &Tenant,
        hold: &Hold,
    ) -> Result<Party, ServiceError> {
        let profile = self.registry.profile(tenant, &hold.user).await?;
        self.party_of(tenant, &hold.user, profile, hold.org.clone()).await
    }

    /// The limits that a hold's call meets under the plan of now, with every
    /// account that the hold has a receipt on.
    pub(super) fn charging_of<'a>(
        &'a self,
        tenant: &Tenant,
        catalog: &'a Catalog,
        party: &'a Party,
        hold: &'a Hold,
        now: Millis,
    ) -> Result<Charging<'a>, ServiceError> {
        let subject = party.subject_or(&self.no_plan, tenant, catalog, &hold.user, now)?;
        let mut call = Call {
            model: hold.model.as_ref().map(Name::as_str),
            feature: hold.feature.as_ref().map(Label::as_str),
            bulk: hold.bulk,
            input_tokens: 0,
            least_output: 0,
            prices: Prices::default(),
            amounts: &mut hold.amounts.clone(),
        };
        let pool = hold.pool.as_ref().and_then(|pool| catalog.pool(pool));
        Ok(subject.charges(&mut call, pool.map(|pool| &**pool), Some(hold)))
    }
}

/// How somebody ends a hold.
pub(in crate::service) enum Ending<'a> {
    Usage {
        reported: &'a Reported,
        amounts: &'a [(Label, u64)],
        by: FinishedBy,
    },
    /// Exactly what was reserved is charged.
    Reserved(FinishedBy),
    Release(ReleaseReason, FinishedBy),
    Unknown,
}

impl Ending<'_> {
    pub(super) fn by(&self) -> FinishedBy {
        match self {
            Self::Usage { by, .. } | Self::Reserved(by) | Self::Release(_, by) => *by,
            Self::Unknown => FinishedBy::Caller,
        }
    }

    pub(in crate::service) async fn how(
        &self,
        service: &Service,
        tenant: &Tenant,
        hold: &Hold,
    ) -> Result<How, ServiceError> {
        Ok(match self {
            Self::Unknown => How::Doubt,
            Self::Release(reason, by) => How::Release { reason: *reason, by: *by },
            Self::Reserved(by) => How::Settle(Box::new(charge_reserved(hold, *by))),
            Self::Usage { reported, amounts, by } => {
                let mut reported = Reported::clone(reported);
                let models = service.models_of(tenant, hold).await?;
                reported.model = served(&reported, hold, |model| models.canonical(model));
                let prices = models.prices(reported.model.as_ref().map(Name::as_str));
                let counted = count(&reported, hold.cache_read_weight, prices);
                How::Settle(Box::new(Settlement {
                    at: hold.created_at,
                    late: false,
                    by: *by,
                    counted,
                    amounts: corrected(&hold.amounts, amounts),
                    reported,
                }))
            }
        })
    }

    /// Whether this ending says what the hold's end said already.
    pub(in crate::service) fn repeats(&self, hold: &Hold, now: Millis, models: &Models) -> bool {
        match (self, &hold.stage) {
            (Self::Unknown, _) => hold.state(now) == HoldState::InDoubt,
            (Self::Release(_, by), Stage::Released { by: ended_by, .. }) => by == ended_by,
            (Self::Reserved(by), Stage::Settled(settled)) => {
                let charged = charge_reserved(hold, *by);
                settled.by == *by
                    && settled.counted == charged.counted
                    && settled.reported == charged.reported
            }
            (Self::Usage { reported, by, .. }, Stage::Settled(settled)) => {
                let model = served(reported, hold, |model| models.canonical(model));
                let same_model = model == settled.reported.model;
                settled.by == *by
                    && settled.reported.input_tokens == reported.input_tokens
                    && settled.reported.output_tokens == reported.output_tokens
                    && settled.reported.cache_read_tokens == reported.cache_read_tokens
                    && same_model
            }
            _ => false,
        }
    }
}

/// Exactly what was reserved.
pub(super) fn charge_reserved(hold: &Hold, by: FinishedBy) -> Settlement {
    Settlement {
        at: hold.created_at,
        late: true,
        by,
        reported: reported_of(hold, hold.reserved.output_tokens),
        counted: hold.reserved,
        amounts: hold.amounts.clone(),
    }
}

/// The reserved input, and so much output.
pub(in crate::service) fn reported_of(hold: &Hold, output_tokens: u64) -> Reported {
    Reported {
        input_tokens: hold.reserved.input_tokens,
        output_tokens,
        model: hold.model.clone(),
        ..Reported::default()
    }
}

/// The canonical model that served: as reported, else as asked for.
fn served(reported: &Reported, hold: &Hold, canonical: impl Fn(&Name) -> Name) -> Option<Name> {
    reported.model.as_ref().map(canonical).or_else(|| hold.model.clone())
}

/// What limits count of a report.
pub(in crate::service) fn count(reported: &Reported, cache_read_weight: Ppm, prices: Prices) -> Amounts {
    let fresh = reported.input_tokens.saturating_sub(reported.cache_read_tokens);
    let input_tokens = add_saturating(fresh, cache_read_weight.of_rounded_up(reported.cache_read_tokens));
    Amounts {
        requests: 1,
        input_tokens,
        output_tokens: reported.output_tokens,
        total_tokens: add_saturating(input_tokens, reported.output_tokens),
        credits: prices.credits(
            reported.input_tokens,
            reported.output_tokens,
            reported.cache_read_tokens,
            reported.cache_write_tokens,
        ),
    }
}

/// The custom amounts of a hold with what the settle corrects.
fn corrected(taken: &[(Label, u64)], told: &[(Label, u64)]) -> Vec<(Label, u64)> {
    let mut amounts = taken.to_vec();
    for (name, amount) in told {
        match amounts.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = *amount,
            None => amounts.push((name.clone(), *amount)),
        }
    }
    amounts
}

/// The first figure beyond what any model can do in one call.
pub(in crate::service) fn implausible(reported: &Reported, max: u64) -> Option<(&'static str, u64)> {
    let figures = [
        ("input_tokens", reported.input_tokens),
        ("output_tokens", reported.output_tokens),
        ("cache_read_tokens", reported.cache_read_tokens),
        ("cache_write_tokens", reported.cache_write_tokens),
    ];
    figures.iter().find(|(_, figure)| *figure > max).map(|(field, _)| (*field, max))
}

fn ended_by_rule(hold: &Hold) -> bool {
    match &hold.stage {
        Stage::Settled(settled) => settled.by == FinishedBy::Rule,
        Stage::Released { by, .. } => *by == FinishedBy::Rule,
        Stage::Held | Stage::InDoubt { .. } => false,
    }
}

impl Plan {
    /// A plan without limits, for a user whose plan is gone.
    pub(in crate::service) fn none() -> Self {
        use crate::domain::plan::Sheet;
        let id = Name::parse("none").expect("a valid name");
        let sheet = Sheet {
            name: id.as_str().into(),
            id,
            requires_verified: false,
            cache_read_weight: Ppm::ONE,
            per_call: PerCall::default(),
            limits: Vec::new(),
        };
        let record =
            VersionRecord { version: 0, written_at: Millis(0), revision: 0, terms: VersionTerms::PLAIN };
        let version = PlanVersion::new(sheet, record, &Models::default());
        Self::new(version.sheet.id.clone(), vec![Arc::new(version)])
    }
}
