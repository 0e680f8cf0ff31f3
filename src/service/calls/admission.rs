//! Check: may this user make this call now?

use std::sync::Arc;

use smallvec::smallvec;

use super::admissible::{Admissible, Context, Who, fingerprint};
use super::candidates::{Attempt, Attempts};
use super::charging::{Call, Charging};
use crate::domain::charge::AccountKey;
use crate::domain::decision::{self, Code, Refusal};
use crate::domain::hold::{Granted, Hold, RequestMark};
use crate::domain::ids::{HoldId, Name, UserId};
use crate::domain::plan::{Enforce, Scope};
use crate::domain::price::Prices;
use crate::domain::step::{Shortfall, Shown};
use crate::engine::Taken;
use crate::service::entitlement::erasing::LOOKS;
use crate::service::outage::Operation;
use crate::service::telling::tallies::Asked;
use crate::service::upstream::pausing::Outcome;
use crate::service::waiting::{Standing, Waits};
use crate::service::{
    Allowed, CheckCommand, CheckReply, MaxOutput, Service, ServiceError, Tenant, Unrecorded,
};

/// A check as it is decided.
pub(in crate::service) struct Decision {
    pub reply: CheckReply,
    ticket: Unrecorded,
    /// What a refused check that may wait can wait for.
    pub waits: Option<Box<Waits>>,
    /// Under which name the account is, if not under the user's own.
    account: Option<UserId>,
    /// What it was about, if it is refused.
    asked: Option<Asked>,
}

type Decided = Result<Decision, ServiceError>;

impl From<(CheckReply, Unrecorded)> for Decision {
    fn from((reply, ticket): (CheckReply, Unrecorded)) -> Self {
        Self { reply, ticket, waits: None, account: None, asked: None }
    }
}

impl Service {
    /// Decides a check; what it takes is on record when this returns.
    pub async fn check(&self, tenant: &Tenant, command: CheckCommand) -> Result<CheckReply, ServiceError> {
        let decided = self.decide(tenant, &command).await;
        self.on_record_or_alone(tenant, decided).await
    }

    /// Decides every check by itself, in order; one wait for all of them.
    pub async fn check_batch(
        &self,
        tenant: &Tenant,
        commands: Vec<CheckCommand>,
    ) -> Vec<Result<CheckReply, ServiceError>> {
        let mut decided = Vec::with_capacity(commands.len());
        for command in &commands {
            decided.push(self.decide(tenant, command).await);
        }
        let mut replies = Vec::with_capacity(decided.len());
        for decision in decided {
            replies.push(self.on_record_or_alone(tenant, decision).await);
        }
        replies
    }

    /// Waits until a decision is on record. What cannot come there may be
    /// admitted without the store.
    async fn on_record_or_alone(
        &self,
        tenant: &Tenant,
        decided: Decided,
    ) -> Result<CheckReply, ServiceError> {
        let told = match decided {
            Ok(Decision { reply, ticket, .. }) => match (self.recorded(ticket).await, reply) {
                (Ok(()), reply) => Ok(reply),
                (Err(error), CheckReply::Allowed(allowed)) => self.admit_alone(tenant, allowed, error).await,
                (Err(error), CheckReply::Refused(_)) => Err(error),
            },
            Err(error) => Err(error),
        };
        let told = self.outage.noted(Operation::Check, told);
        self.outage.met(tenant, &told);
        told
    }

    /// Decides, and counts a refusal and what another limiter decided.
    async fn decide(&self, tenant: &Tenant, command: &CheckCommand) -> Decided {
        let decision = self.judge_for(tenant, command, None).await?;
        self.count(tenant, command, &decision);
        Ok(decision)
    }

    fn count(&self, tenant: &Tenant, command: &CheckCommand, decision: &Decision) {
        if command.dry_run {
            return;
        }
        if let CheckReply::Allowed(Allowed {
            hold: Some(_), replayed: false, degraded: false, plan, ..
        }) = &decision.reply
        {
            let digest = self.registry.files.digest(tenant.number, &command.user);
            self.tallies.admitted(tenant, &plan.0, digest, tenant.now());
        }
        self.count_by_plan(decision);
        if let CheckReply::Refused(refusal) = &decision.reply {
            let user = decision.account.as_ref().unwrap_or(&command.user);
            let nothing_else = || Asked { feature: command.feature.clone(), ..Asked::default() };
            let asked = decision.asked.clone().unwrap_or_else(nothing_else);
            self.tallies.refused(tenant, user, command, asked, refusal, tenant.now());
        }
        if let (Some(ours), Some(theirs)) = (decision.reply.decided(), &command.their_decision) {
            self.tallies.compared(tenant, ours, theirs.as_str(), tenant.now());
        }
    }

    fn count_by_plan(&self, decision: &Decision) {
        match &decision.reply {
            CheckReply::Allowed(Allowed { plan: (plan, _), would_refuse, .. }) => match would_refuse {
                None => self.by_plan.count(Some(plan), "allow", "allow"),
                Some(refused) => self.by_plan.count(Some(plan), "would_refuse", refused.code.as_str()),
            },
            CheckReply::Refused(refusal) => {
                let plan = decision.asked.as_ref().and_then(|asked| asked.plan.as_ref());
                self.by_plan.count(plan.map(|(id, _)| id), "refuse", refusal.code.as_str());
            }
        }
    }

    /// Counts a decision and waits until it is on record.
    pub(in crate::service) async fn told(
        &self,
        tenant: &Tenant,
        command: &CheckCommand,
        decision: Decision,
    ) -> Result<CheckReply, ServiceError> {
        self.count(tenant, command, &decision);
        self.on_record_or_alone(tenant, Ok(decision)).await
    }

    /// Decides for whoever the user is now. `turn` is that of a check that may
    /// wait.
    pub(in crate::service) async fn judge_for(
        &self,
        tenant: &Tenant,
        command: &CheckCommand,
        turn: Option<Standing>,
    ) -> Decided {
        for _ in 0..LOOKS {
            let party = self.party(tenant, &command.user).await?;
            let decided = match party.profile.alias() {
                None if party.profile.is_erased() => {
                    let refusal = Refusal::plain(Code::UnknownUser);
                    Ok((CheckReply::Refused(refusal), Unrecorded(None)).into())
                }
                None => {
                    let who = Who { party: &party, account: &command.user, dry_run: command.dry_run, turn };
                    self.judge(tenant, command, &who).await
                }
                Some(pseudonym) => {
                    let who = Who { party: &party, account: pseudonym, dry_run: true, turn };
                    match self.judge_erased(tenant, command, &who).await {
                        // The next look finds the user as they were.
                        Ok(None) => continue,
                        Ok(Some(decision)) => {
                            return Ok(Decision { account: Some(pseudonym.clone()), ..decision });
                        }
                        Err(error) => Err(error),
                    }
                }
            };
            match decided {
                Err(ServiceError::Moved) => self.look_again(tenant, &command.user).await?,
                Err(ServiceError::ClockOff) => {}
                decided => return decided,
            }
        }
        Err(ServiceError::Overloaded)
    }

    /// What does not fit is refused without a trace of the user; else they are
    /// brought back first (`None`).
    async fn judge_erased(
        &self,
        tenant: &Tenant,
        command: &CheckCommand,
        who: &Who<'_>,
    ) -> Result<Option<Decision>, ServiceError> {
        let request = command.request_id.as_ref().filter(|_| !command.dry_run);
        let is_repeated = match request {
            Some(request) => self.hold_of_request(tenant, who.account, request.digest()).await?.is_some(),
            None => false,
        };
        if !is_repeated {
            let decided = self.judge(tenant, command, who).await?;
            if command.dry_run || matches!(decided.reply, CheckReply::Refused(_)) {
                return Ok(Some(decided));
            }
        }
        self.revive(tenant, &command.user).await?;
        Ok(None)
    }

    async fn judge(&self, tenant: &Tenant, command: &CheckCommand, who: &Who<'_>) -> Decided {
        let now = tenant.now();
        let catalog = tenant.catalog();
        let party = who.party;
        let subject = party.subject(tenant, &catalog, who.account, now)?;
        let mark = command.request_id.clone().map(|id| RequestMark { id, fingerprint: fingerprint(command) });
        let taking = catalog.settings.taking(&tenant.id, &command.user);
        let subject = subject.as_ref();
        let context = Context { tenant, catalog: &catalog, who, subject, command, taking, now };
        let decision = self.judge_within(&context, mark).await?;
        let is_refused = matches!(decision.reply, CheckReply::Refused(_));
        Ok(Decision { asked: is_refused.then(|| context.asked()), ..decision })
    }

    async fn judge_within(&self, context: &Context<'_, '_>, mark: Option<RequestMark>) -> Decided {
        let Context { tenant, command, who, now, .. } = *context;
        if let Some(reply) = self.admitted_alone(tenant, command, mark.as_ref())? {
            return Ok((context.with_choice(reply, 0, Vec::new()), Unrecorded(None)).into());
        }
        if command.max_output == MaxOutput::Auto {
            self.know_outputs(tenant).await;
        }
        let admissible = match context.admissible()? {
            Ok(admissible) => admissible,
            Err(refusal) => {
                // A call that went through before is answered as it was.
                let known = self.known_request(context, mark.as_ref()).await?;
                return match known {
                    Some(hold) => {
                        let Decision { reply, ticket, .. } = self.replay(context, hold, mark).await?;
                        Ok((context.with_choice(reply, 0, Vec::new()), ticket).into())
                    }
                    None => {
                        let refusal = self.with_standings(context, refusal).await?;
                        Ok((CheckReply::Refused(refusal), Unrecorded(None)).into())
                    }
                };
            }
        };
        let mut attempts: Attempts<'_> = smallvec![context.attempt(&admissible, 0, mark.as_ref())];
        attempts[0].take.draft.id = self.outage.id_for(&attempts[0].take.draft);
        let chosen = match self.first_that_fits(context, &admissible, &mut attempts).await {
            Err(error) if self.outage.is_met_by(&error) && !who.dry_run => {
                let open = attempts.iter().position(|attempt| attempt.paused.is_none());
                let take = attempts.swap_remove(open.unwrap_or(0)).take;
                let asked =
                    Allowed::as_asked(take, admissible.subject.version(), admissible.would_refuse, now);
                let reply = self.admit_alone(tenant, asked, error).await?;
                return Ok((context.with_choice(reply, 0, Vec::new()), Unrecorded(None)).into());
            }
            chosen => chosen?,
        };
        let attempt = &attempts[chosen.index];
        let decision = match chosen.outcome {
            Outcome::Taken(taken) => self.answer(context, &admissible, attempt, taken, mark).await?,
            Outcome::Paused(refusal, waits) => {
                let decision = Decision::from((CheckReply::Refused(refusal), Unrecorded(None)));
                Decision { waits, ..decision }
            }
        };
        let reply = context.with_choice(decision.reply, chosen.index, chosen.because);
        Ok(Decision { reply, ..decision })
    }

    async fn answer(
        &self,
        context: &Context<'_, '_>,
        admissible: &Admissible<'_, '_>,
        attempt: &Attempt<'_>,
        taken: Taken,
        mark: Option<RequestMark>,
    ) -> Decided {
        let plan = admissible.subject.version();
        let charging = &attempt.charging;
        let allowed =
            |hold: Option<Arc<Hold>>, granted: Granted, standings: &[Shown], short: &[Shortfall]| Allowed {
                now: hold.as_ref().map_or(context.now, |hold| hold.created_at),
                hold,
                replayed: false,
                granted,
                plan: plan.named(),
                limits: charging.rows(standings),
                warnings: charging.warnings(standings),
                would_refuse: admissible.would_refuse.clone().or(attempt.would_pause()).or_else(|| {
                    let refusal = || charging.refusal(short, standings, context.now).into();
                    (!short.is_empty()).then(refusal)
                }),
                auto_output: false,
                degraded: false,
                choice: None,
            };
        match taken {
            Taken::Hold { hold, standings, shortfalls, ticket } => {
                context.catalog.note_busy(&hold, charging, &standings);
                let granted = hold.granted;
                let reply = CheckReply::Allowed(allowed(Some(hold), granted, &standings, &shortfalls));
                Ok((reply, Unrecorded(Some(ticket))).into())
            }
            Taken::Fits { draft, standings, shortfalls } => {
                let reply = allowed(None, draft.granted, &standings, &shortfalls);
                Ok((CheckReply::Allowed(reply), Unrecorded(None)).into())
            }
            Taken::Refused { shortfalls, standings, at_best_ms, ticket } => {
                // What limits under shadow would have refused is counted.
                if charging.limits.iter().any(|limit| limit.enforce == Enforce::Shadow) {
                    self.registry.watchers.accounts_changed(charging.accounts.iter());
                }
                let refusal = charging.refusal(&shortfalls, &standings, context.now);
                let decision = Decision::from((CheckReply::Refused(refusal), Unrecorded(ticket)));
                let waits = context
                    .who
                    .turn
                    .and_then(|standing| attempt.waits(standing.turn, &shortfalls, at_best_ms));
                Ok(Decision { waits, ..decision })
            }
            Taken::Known(id) => match self.find_hold(context.tenant, id).await? {
                Some(hold) => self.replay(context, hold, mark).await,
                None => Err(ServiceError::Corrupt(format!("{id} is remembered but not on record"))),
            },
        }
    }

    /// A call that is too large is told how the limits stand, too.
    async fn with_standings(
        &self,
        context: &Context<'_, '_>,
        refusal: Refusal,
    ) -> Result<Refusal, ServiceError> {
        let is_too_large = matches!(refusal.code, Code::InputTooLarge | Code::OutputTooLarge);
        let Some(subject) = context.subject.filter(|_| is_too_large) else { return Ok(refusal) };
        let model = context.command.model.as_ref().map(|model| context.catalog.models.canonical(model));
        let mut call = Call {
            model: model.as_ref().map(Name::as_str),
            feature: context.command.feature.as_ref().map(|feature| feature.as_str()),
            bulk: context.command.bulk,
            input_tokens: 0,
            least_output: 0,
            prices: Prices::default(),
            amounts: &mut Vec::new(),
        };
        let charging = subject.charges(&mut call, None, None);
        let standings = self.standings(&charging.accounts, &charging.to_show(), context.now).await?;
        Ok(Refusal { limits: charging.rows(&standings), ..refusal })
    }

    /// The hold that the check's request id stands for, if any.
    async fn known_request(
        &self,
        context: &Context<'_, '_>,
        mark: Option<&RequestMark>,
    ) -> Result<Option<Arc<Hold>>, ServiceError> {
        let Some(mark) = mark.filter(|_| !context.who.dry_run) else { return Ok(None) };
        match self.hold_of_request(context.tenant, context.who.account, mark.id.digest()).await? {
            Some(id) => self.find_hold(context.tenant, id).await,
            None => Ok(None),
        }
    }

    pub(in crate::service) async fn hold_of_request(
        &self,
        tenant: &Tenant,
        user: &UserId,
        digest: u64,
    ) -> Result<Option<HoldId>, ServiceError> {
        let key = AccountKey { tenant: tenant.number, scope: Scope::User, owner: user.shared() };
        let now = tenant.now();
        self.apply(now, || self.engine.request(&key, digest, now)).await
    }

    /// Answers a repeated request id.
    async fn replay(&self, context: &Context<'_, '_>, hold: Arc<Hold>, mark: Option<RequestMark>) -> Decided {
        let ticket = Unrecorded(Some(self.barrier(context.tenant)));
        if hold.request != mark {
            return Ok((CheckReply::Refused(Refusal::plain(Code::RequestIdReused)), ticket).into());
        }
        if hold.is_finished() {
            let refusal = Refusal { hold: Some(hold), ..Refusal::plain(Code::AlreadyFinished) };
            return Ok((CheckReply::Refused(refusal), ticket).into());
        }
        let limits = self.rows_of(context.tenant, &hold, context.now).await?;
        let allowed = Allowed {
            now: context.now,
            replayed: true,
            granted: hold.granted,
            plan: (hold.plan.clone(), hold.plan_version),
            limits,
            warnings: Vec::new(),
            would_refuse: None,
            auto_output: false,
            degraded: false,
            choice: None,
            hold: Some(hold),
        };
        Ok((CheckReply::Allowed(allowed), ticket).into())
    }
}

impl Charging<'_> {
    fn warnings(&self, standings: &[Shown]) -> Vec<decision::Warning> {
        let mut warnings = Vec::new();
        for (index, (limit, charge)) in self.limits.iter().zip(&self.charges).enumerate() {
            let may_warn = !limit.warn_at.is_empty() || !limit.degrade.is_empty();
            if charge.asked && limit.enforce != Enforce::Shadow && may_warn {
                warnings.extend(decision::warnings(limit, &self.row(index, standings[index])));
            }
        }
        warnings
    }
}
