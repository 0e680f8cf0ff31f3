//! Check: may this user make this call now?

use std::sync::Arc;

use smallvec::SmallVec;

use super::charging::{Call, Charging, Subject};
use super::erasing::LOOKS;
use super::outage::Operation;
use super::shadow::believable;
use super::subject::Party;
use super::{
    Allowed, Catalog, CheckCommand, CheckReply, Service, ServiceError, Tenant, Unrecorded, WouldRefuse,
};
use crate::domain::charge::AccountKey;
use crate::domain::decision::{self, Code, Refusal};
use crate::domain::hold::{Granted, Hold, RequestMark};
use crate::domain::ids::{HoldId, Name, UserId};
use crate::domain::plan::{Enforce, Scope, Sheet};
use crate::domain::price::Prices;
use crate::domain::quantity::MAX_AMOUNT;
use crate::domain::step::{Ask, Shortfall, Shown};
use crate::domain::taking::Taking;
use crate::domain::time::Millis;
use crate::engine::{Take, Taken};

type Decided = Result<(CheckReply, Unrecorded), ServiceError>;

/// Seconds a hold keeps its slot when nobody says otherwise.
const DEFAULT_LEASE_SECONDS: u32 = 600;

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
            Ok((reply, ticket)) => match (self.recorded(ticket).await, reply) {
                (Ok(()), reply) => Ok(reply),
                (Err(error), CheckReply::Allowed(allowed)) => self.admit_alone(tenant, allowed, error).await,
                (Err(error), CheckReply::Refused(_)) => Err(error),
            },
            Err(error) => Err(error),
        };
        self.outage.noted(Operation::Check, told)
    }

    /// Decides, and counts a refusal and what another limiter decided.
    async fn decide(&self, tenant: &Tenant, command: &CheckCommand) -> Decided {
        let (decided, account) = self.judge_for(tenant, command).await?;
        if command.dry_run {
            return Ok(decided);
        }
        if let CheckReply::Refused(refusal) = &decided.0 {
            let user = account.as_ref().unwrap_or(&command.user);
            self.tallies.refused(tenant, user, refusal, tenant.now());
        }
        if let (Some(ours), Some(theirs)) = (decided.0.decided(), &command.their_decision) {
            self.tallies.compared(tenant, ours, theirs.as_str(), tenant.now());
        }
        Ok(decided)
    }

    /// Decides for whoever the user is now, and names the account if it is not
    /// under the user's own id.
    async fn judge_for(
        &self,
        tenant: &Tenant,
        command: &CheckCommand,
    ) -> Result<((CheckReply, Unrecorded), Option<UserId>), ServiceError> {
        for _ in 0..LOOKS {
            let party = self.party(tenant, &command.user).await?;
            let decided = match party.profile.alias() {
                None if party.profile.is_erased() => {
                    let refusal = Refusal::plain(Code::UnknownUser);
                    Ok((CheckReply::Refused(refusal), Unrecorded(None)))
                }
                None => {
                    let who = Who { party: &party, account: &command.user, dry_run: command.dry_run };
                    self.judge(tenant, command, &who).await
                }
                Some(pseudonym) => {
                    let who = Who { party: &party, account: pseudonym, dry_run: true };
                    match self.judge_erased(tenant, command, &who).await {
                        // The next look finds the user as they were.
                        Ok(None) => continue,
                        Ok(Some(decided)) => return Ok((decided, Some(pseudonym.clone()))),
                        Err(error) => Err(error),
                    }
                }
            };
            match decided {
                Err(ServiceError::Moved) => self.look_again(tenant, &command.user).await?,
                Err(ServiceError::ClockOff) => {}
                decided => return Ok((decided?, None)),
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
    ) -> Result<Option<(CheckReply, Unrecorded)>, ServiceError> {
        let request = command.request_id.as_ref().filter(|_| !command.dry_run);
        let is_repeated = match request {
            Some(request) => self.hold_of_request(tenant, who.account, request.digest()).await?.is_some(),
            None => false,
        };
        if !is_repeated {
            let decided = self.judge(tenant, command, who).await?;
            if command.dry_run || matches!(decided.0, CheckReply::Refused(_)) {
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
        if let Some(reply) = self.admitted_alone(tenant, command, mark.as_ref())? {
            return Ok((reply, Unrecorded(None)));
        }
        let taking = catalog.settings.taking(&tenant.id, &command.user);
        let subject = subject.as_ref();
        let context = Context { tenant, catalog: &catalog, who, subject, command, taking, now };
        let admissible = match context.admissible()? {
            Ok(admissible) => admissible,
            Err(refusal) => {
                // A call that went through before is answered as it was.
                let known = self.known_request(&context, mark.as_ref()).await?;
                return match known {
                    Some(hold) => self.replay(&context, hold, mark).await,
                    None => {
                        let refusal = self.with_standings(&context, refusal).await?;
                        Ok((CheckReply::Refused(refusal), Unrecorded(None)))
                    }
                };
            }
        };
        let mut amounts = command.amounts.clone();
        let mut call = Call {
            model: admissible.model.as_ref().map(Name::as_str),
            feature: command.feature.as_ref().map(|feature| feature.as_str()),
            bulk: command.bulk,
            input_tokens: admissible.input_tokens,
            prices: admissible.prices,
            amounts: &mut amounts,
        };
        let pool = catalog.pool_for(call.model);
        let subject = admissible.subject;
        let charging = subject.charges(&mut call, pool.map(|pool| &**pool), None);
        let mut take = Take {
            accounts: charging.accounts.clone(),
            ask: Ask {
                charges: charging.charges.clone(),
                output_max: admissible.output_max,
                output_min: admissible.output_min,
                taking,
            },
            credits: admissible.prices.reserve(admissible.input_tokens),
            draft: context.draft(&admissible, pool.map(|pool| pool.pool.id.clone()), mark.clone(), amounts),
            lease_ms: i64::from(admissible.lease_seconds) * 1000,
            max_hold_ms: i64::from(catalog.settings.max_hold_seconds) * 1000,
            dry_run: who.dry_run,
        };
        take.draft.id = self.outage.id_for(&take.draft);
        let taken = match self.apply(now, || self.engine.take(&take, now)).await {
            Err(error) if error.is_outage() && !who.dry_run => {
                let asked =
                    Allowed::as_asked(take, admissible.subject.version(), admissible.would_refuse, now);
                let reply = self.admit_alone(tenant, asked, error).await?;
                return Ok((reply, Unrecorded(None)));
            }
            taken => taken?,
        };
        self.answer(&context, &admissible, &charging, taken, mark).await
    }

    async fn answer(
        &self,
        context: &Context<'_, '_>,
        admissible: &Admissible<'_, '_>,
        charging: &Charging<'_>,
        taken: Taken,
        mark: Option<RequestMark>,
    ) -> Decided {
        let plan = admissible.subject.version();
        let allowed =
            |hold: Option<Arc<Hold>>, granted: Granted, standings: &[Shown], short: &[Shortfall]| Allowed {
                now: hold.as_ref().map_or(context.now, |hold| hold.created_at),
                hold,
                replayed: false,
                granted,
                plan: (plan.sheet.id.clone(), plan.version),
                limits: charging.rows(standings),
                warnings: charging.warnings(standings),
                would_refuse: admissible.would_refuse.clone().or_else(|| {
                    let refusal = || charging.refusal(short, standings, context.now).into();
                    (!short.is_empty()).then(refusal)
                }),
                degraded: false,
            };
        match taken {
            Taken::Hold { hold, standings, shortfalls, ticket } => {
                let granted = hold.granted;
                let reply = CheckReply::Allowed(allowed(Some(hold), granted, &standings, &shortfalls));
                Ok((reply, Unrecorded(Some(ticket))))
            }
            Taken::Fits { draft, standings, shortfalls } => {
                let reply = allowed(None, draft.granted, &standings, &shortfalls);
                Ok((CheckReply::Allowed(reply), Unrecorded(None)))
            }
            Taken::Refused { shortfalls, standings, ticket } => {
                // What limits under shadow would have refused is counted.
                if charging.limits.iter().any(|limit| limit.enforce == Enforce::Shadow) {
                    self.registry.watchers.accounts_changed(charging.accounts.iter());
                }
                let refusal = charging.refusal(&shortfalls, &standings, context.now);
                Ok((CheckReply::Refused(refusal), Unrecorded(ticket)))
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

    async fn hold_of_request(
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
            return Ok((CheckReply::Refused(Refusal::plain(Code::RequestIdReused)), ticket));
        }
        if hold.is_finished() {
            let refusal = Refusal { hold: Some(hold), ..Refusal::plain(Code::AlreadyFinished) };
            return Ok((CheckReply::Refused(refusal), ticket));
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
            degraded: false,
            hold: Some(hold),
        };
        Ok((CheckReply::Allowed(allowed), ticket))
    }
}

/// For whom a check is decided.
struct Who<'a> {
    party: &'a Party,
    /// Under which name the account is.
    account: &'a UserId,
    dry_run: bool,
}

/// A check with what holds for its user now.
struct Context<'a, 's> {
    tenant: &'a Tenant,
    catalog: &'a Catalog,
    who: &'a Who<'a>,
    /// `None`: not on record, and the tenant has no default plan.
    subject: Option<&'a Subject<'s>>,
    command: &'a CheckCommand,
    taking: Taking,
    now: Millis,
}

/// What is decided before any limit is asked.
struct Admissible<'a, 's> {
    subject: &'a Subject<'s>,
    model: Option<Name>,
    prices: Prices,
    input_tokens: u64,
    output_max: u64,
    output_min: u64,
    lease_seconds: u32,
    /// A refusal that no limit gives and that is not enforced.
    would_refuse: Option<WouldRefuse>,
}

impl<'a, 's> Context<'a, 's> {
    /// The rules that need no account: who may call at all, and how large a
    /// call may be. `Ok(Err(_))` is a refusal.
    fn admissible(&self) -> Result<Result<Admissible<'a, 's>, Refusal>, ServiceError> {
        let settings = &self.catalog.settings;
        let command = self.command;
        let known_model =
            command.model.as_ref().and_then(|model| self.catalog.models.resolve(model.as_str()));
        if command.model.is_some() && known_model.is_none() && !settings.default_pool_only {
            return Err(ServiceError::UnknownModel);
        }
        let Some(subject) = self.subject else { return Ok(Err(Refusal::plain(Code::UnknownUser))) };
        let sheet = &subject.version().sheet;
        let most = settings.max_tokens_per_call;
        let output_cap = sheet.per_call.max_output_tokens.map(|cap| cap.min(most));
        let output_max = command.max_output_tokens.or(output_cap).unwrap_or(0);
        let output_min = command.min_output_tokens.unwrap_or(output_max);
        if output_min > output_max {
            return Err(ServiceError::invalid("/min_output_tokens", "must not be above max_output_tokens"));
        }
        if command.input_tokens.saturating_add(output_max) > MAX_AMOUNT {
            return Err(ServiceError::invalid(
                "/max_output_tokens",
                "input and output together are above 2^53-1",
            ));
        }
        let refused = self.refused_by_no_limit(sheet, output_max);
        if let (Some(refusal), Taking::Enforced) = (&refused, self.taking) {
            return Ok(Err(refusal.clone()));
        }
        let own_lease = known_model.and_then(|model| model.lease_seconds);
        let would_refuse = refused.map(WouldRefuse::from);
        // Nothing would have been granted: the caller's own figure is.
        let output_min = if would_refuse.is_some() { output_max } else { output_min };
        Ok(Ok(Admissible {
            subject,
            model: command.model.as_ref().map(|model| self.catalog.models.canonical(model)),
            prices: known_model.map(Prices::from).unwrap_or_default(),
            input_tokens: believable(command.input_tokens),
            output_max: believable(output_max),
            output_min: believable(output_min),
            lease_seconds: command.lease_seconds.or(own_lease).unwrap_or(DEFAULT_LEASE_SECONDS),
            would_refuse,
        }))
    }

    /// Who may not call at all, and what no call may be.
    fn refused_by_no_limit(&self, sheet: &Sheet, output_max: u64) -> Option<Refusal> {
        if self.who.party.profile.is_suspended() {
            return Some(Refusal::plain(Code::UserSuspended));
        }
        if sheet.requires_verified && !self.who.party.profile.is_verified() {
            return Some(Refusal::plain(Code::UserUnverified));
        }
        let (most, caps) = (self.catalog.settings.max_tokens_per_call, sheet.per_call);
        let too_large = |code, max| Some(Refusal { max: Some(max), ..Refusal::plain(code) });
        let input_max = caps.max_input_tokens.map_or(most, |cap| cap.min(most));
        if self.command.input_tokens > input_max {
            return too_large(Code::InputTooLarge, input_max);
        }
        let output_most = caps.max_output_tokens.map_or(most, |cap| cap.min(most));
        if output_max > output_most {
            return too_large(Code::OutputTooLarge, output_most);
        }
        None
    }

    /// The hold to be; the engine fills in what it decides.
    fn draft(
        &self,
        admissible: &Admissible<'_, '_>,
        pool: Option<Name>,
        request: Option<RequestMark>,
        amounts: Vec<(crate::domain::ids::Label, u64)>,
    ) -> Hold {
        let is_known = self.who.party.profile.is_known();
        let mut draft = admissible.subject.draft(super::new_hold_id(self.now), pool, !is_known);
        draft.request = request.filter(|_| !self.who.dry_run);
        draft.model.clone_from(&admissible.model);
        draft.feature.clone_from(&self.command.feature);
        draft.lease_seconds = admissible.lease_seconds;
        draft.granted.input_tokens = admissible.input_tokens;
        draft.granted.max_output_tokens = admissible.output_max;
        draft.bulk = self.command.bulk;
        draft.amounts = amounts;
        draft
    }
}

impl Charging<'_> {
    fn warnings(&self, standings: &[Shown]) -> Vec<decision::Warning> {
        let mut warnings = Vec::new();
        for (index, (limit, charge)) in self.limits.iter().zip(&self.charges).enumerate() {
            if charge.asked && limit.enforce != Enforce::Shadow && !limit.warn_at.is_empty() {
                warnings.extend(decision::warning(limit, &self.row(index, standings[index])));
            }
        }
        warnings
    }
}

/// A digest of what a check asks, without what may differ between repeats:
/// waiting, lease, and whatever the plan fills in.
fn fingerprint(command: &CheckCommand) -> [u8; 16] {
    let mut text: SmallVec<[u8; 256]> = SmallVec::new();
    let mut field = |bytes: &[u8]| {
        text.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        text.extend_from_slice(bytes);
    };
    field(command.model.as_ref().map_or("", Name::as_str).as_bytes());
    field(command.feature.as_ref().map_or("", |feature| feature.as_str()).as_bytes());
    field(&[u8::from(command.bulk)]);
    field(&command.input_tokens.to_le_bytes());
    for output in [command.max_output_tokens, command.min_output_tokens] {
        field(&output.unwrap_or(u64::MAX).to_le_bytes());
    }
    let mut amounts: SmallVec<[_; 4]> = command.amounts.iter().collect();
    amounts.sort();
    for (name, amount) in amounts {
        field(name.as_str().as_bytes());
        field(&amount.to_le_bytes());
    }
    let hash = blake3::hash(&text);
    std::array::from_fn(|index| hash.as_bytes()[index])
}
