//! What is decided of a check before any limit is asked.

use smallvec::SmallVec;

use super::candidates::Candidate;
use super::charging::Subject;
use super::shadow::believable;
use crate::domain::decision::{Code, Refusal};
use crate::domain::hold::{Hold, RequestMark};
use crate::domain::ids::{Name, UserId};
use crate::domain::plan::Sheet;
use crate::domain::quantity::MAX_AMOUNT;
use crate::domain::taking::Taking;
use crate::domain::time::Millis;
use crate::service::entitlement::subject::Party;
use crate::service::telling::tallies::Asked;
use crate::service::waiting::Standing;
use crate::service::{Catalog, CheckCommand, MaxOutput, ServiceError, Tenant, WouldRefuse};

/// Where neither calls of the past nor a cap say how long an answer may become.
const UNKNOWN_OUTPUT: u64 = 4096;

/// For whom a check is decided.
pub(in crate::service) struct Who<'a> {
    pub party: &'a Party,
    /// Under which name the account is.
    pub account: &'a UserId,
    pub dry_run: bool,
    /// Of a check that may wait.
    pub turn: Option<Standing>,
}

/// A check with what holds for its user now.
pub(in crate::service) struct Context<'a, 's> {
    pub tenant: &'a Tenant,
    pub catalog: &'a Catalog,
    pub who: &'a Who<'a>,
    /// `None`: not on record, and the tenant has no default plan.
    pub subject: Option<&'a Subject<'s>>,
    pub command: &'a CheckCommand,
    pub taking: Taking,
    pub now: Millis,
}

/// What is decided before any limit is asked.
pub(in crate::service) struct Admissible<'a, 's> {
    pub subject: &'a Subject<'s>,
    /// The models that are asked for, in order; at least one.
    pub candidates: SmallVec<[Candidate; 1]>,
    pub input_tokens: u64,
    /// A refusal that no limit gives and that is not enforced.
    pub would_refuse: Option<WouldRefuse>,
}

impl<'a, 's> Context<'a, 's> {
    /// What the check is about, by its first model.
    pub fn asked(&self) -> Asked {
        let command = self.command;
        let model = command.models.as_ref().and_then(|models| models.first()).or(command.model.as_ref());
        Asked {
            plan: self.subject.map(|subject| subject.version().named()),
            org: self.who.party.profile.org().cloned(),
            model: model.map(|model| self.catalog.models.canonical(model)),
            feature: command.feature.clone(),
        }
    }

    /// The rules that need no account: who may call at all, and how large a
    /// call may be. `Ok(Err(_))` is a refusal.
    pub fn admissible(&self) -> Result<Result<Admissible<'a, 's>, Refusal>, ServiceError> {
        let settings = &self.catalog.settings;
        let command = self.command;
        let mut candidates = self.candidates()?;
        let Some(subject) = self.subject else { return Ok(Err(Refusal::plain(Code::UnknownUser))) };
        let sheet = &subject.version().sheet;
        let most = settings.max_tokens_per_call;
        let cap = sheet.per_call.max_output_tokens.map(|cap| cap.min(most));
        for candidate in &mut candidates {
            candidate.output_max = self.output_max(candidate, cap, most);
            candidate.output_min = command.min_output_tokens.unwrap_or(candidate.output_max);
            if candidate.output_min > candidate.output_max {
                let message = "must not be above max_output_tokens";
                return Err(ServiceError::invalid("/min_output_tokens", message));
            }
            if command.input_tokens.saturating_add(candidate.output_max) > MAX_AMOUNT {
                let message = "input and output together are above 2^53-1";
                return Err(ServiceError::invalid("/max_output_tokens", message));
            }
        }
        // What the caller asks for is the same for all.
        let refused = self.refused_by_no_limit(sheet, candidates[0].output_max);
        if let (Some(refusal), Taking::Enforced) = (&refused, self.taking) {
            return Ok(Err(refusal.clone()));
        }
        let would_refuse = refused.map(WouldRefuse::from);
        for candidate in &mut candidates {
            candidate.output_max = believable(candidate.output_max);
            candidate.output_min = match would_refuse {
                // Nothing would have been granted: the caller's own figure is.
                Some(_) => candidate.output_max,
                None => believable(candidate.output_min),
            };
        }
        let input_tokens = believable(command.input_tokens);
        Ok(Ok(Admissible { subject, candidates, input_tokens, would_refuse }))
    }

    /// The whole output by a model. `cap`: that of the plan; `most`: that of the
    /// tenant.
    fn output_max(&self, candidate: &Candidate, cap: Option<u64>, most: u64) -> u64 {
        match self.command.max_output {
            MaxOutput::Tokens(tokens) => tokens,
            MaxOutput::Cap => cap.unwrap_or(0),
            MaxOutput::Auto => {
                let feature = self.command.feature.as_ref().map_or("", |feature| feature.as_str());
                let model = candidate.model.as_ref().map_or("", Name::as_str);
                let likely = self.tenant.outputs.likely(feature, model);
                let likely = likely.or(cap).unwrap_or(UNKNOWN_OUTPUT);
                let least = self.command.min_output_tokens.unwrap_or(0);
                likely.max(least).min(cap.unwrap_or(most))
            }
        }
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
    pub fn draft(
        &self,
        admissible: &Admissible<'_, '_>,
        candidate: &Candidate,
        pool: Option<Name>,
        request: Option<RequestMark>,
        amounts: Vec<(crate::domain::ids::Label, u64)>,
    ) -> Hold {
        let is_known = self.who.party.profile.is_known();
        let mut draft = admissible.subject.draft(crate::service::new_hold_id(self.now), pool, !is_known);
        draft.request = request.filter(|_| !self.who.dry_run);
        draft.model.clone_from(&candidate.model);
        draft.feature.clone_from(&self.command.feature);
        draft.lease_seconds = candidate.lease_seconds;
        draft.granted.input_tokens = admissible.input_tokens;
        draft.granted.max_output_tokens = candidate.output_max;
        draft.bulk = self.command.bulk;
        draft.amounts = amounts;
        draft
    }
}

/// A digest of what a check asks, without what may differ between repeats:
/// waiting, lease, and whatever the plan fills in.
pub(super) fn fingerprint(command: &CheckCommand) -> [u8; 16] {
    let mut text: SmallVec<[u8; 256]> = SmallVec::new();
    let mut field = |bytes: &[u8]| {
        text.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        text.extend_from_slice(bytes);
    };
    match &command.models {
        None => field(command.model.as_ref().map_or("", Name::as_str).as_bytes()),
        // No name has this byte: the list is never taken for one model.
        Some(models) => models.iter().for_each(|model| field(&[model.as_str().as_bytes(), &[0]].concat())),
    }
    field(command.feature.as_ref().map_or("", |feature| feature.as_str()).as_bytes());
    field(&[u8::from(command.bulk)]);
    field(&command.input_tokens.to_le_bytes());
    let max_output = match command.max_output {
        MaxOutput::Tokens(tokens) => tokens,
        // No amount is that large.
        MaxOutput::Cap => u64::MAX,
        MaxOutput::Auto => u64::MAX - 1,
    };
    field(&max_output.to_le_bytes());
    field(&command.min_output_tokens.unwrap_or(u64::MAX).to_le_bytes());
    let mut amounts: SmallVec<[_; 4]> = command.amounts.iter().collect();
    amounts.sort();
    for (name, amount) in amounts {
        field(name.as_str().as_bytes());
        field(&amount.to_le_bytes());
    }
    let hash = blake3::hash(&text);
    std::array::from_fn(|index| hash.as_bytes()[index])
}
