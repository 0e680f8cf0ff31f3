//! Extend: a sign of life from a running call, and more output if it fits.

use std::sync::Arc;

use smallvec::SmallVec;

use super::charging::Charging;
use super::shadow::believable;
use crate::domain::charge::{AccountKey, Charge, Demand, Figures, MeterCode};
use crate::domain::decision::{Code, Refusal};
use crate::domain::hold::{Hold, HoldState, Receipt, RequestMark};
use crate::domain::ids::Name;
use crate::domain::plan::{Enforce, Rule, Scope};
use crate::domain::step::{Shortfall, Shown};
use crate::domain::taking::Taking;
use crate::engine::{Extend, Extended};
use crate::service::outage::Operation;
use crate::service::random;
use crate::service::{
    ExtendCommand, FinishReply, Finished, Service, ServiceError, Tenant, Unrecorded, WouldRefuse,
};

/// Looks before giving up on a hold that others extend all the time.
const ROUNDS: usize = 16;

impl Service {
    pub async fn extend(&self, tenant: &Tenant, command: ExtendCommand) -> Result<FinishReply, ServiceError> {
        self.outage.noted(Operation::Extend, self.extend_booked(tenant, command).await)
    }

    async fn extend_booked(
        &self,
        tenant: &Tenant,
        command: ExtendCommand,
    ) -> Result<FinishReply, ServiceError> {
        // Its limits cannot be asked before.
        self.must_be_booked(tenant, command.id)?;
        for _ in 0..ROUNDS {
            let Some(hold) = self.current_hold(tenant, command.id).await? else {
                return match self.may_be_unbooked(tenant, command.id) {
                    true => Err(ServiceError::MaybeUnbooked),
                    false => Ok(FinishReply::NotFound),
                };
            };
            let user = hold.user.clone();
            match self.extend_once(tenant, &command, hold).await {
                Err(ServiceError::Moved) => self.look_again(tenant, &user).await?,
                Err(error) => return Err(error),
                Ok(None) => {}
                Ok(Some((reply, ticket))) => {
                    self.recorded(ticket).await?;
                    return Ok(reply);
                }
            }
        }
        Err(ServiceError::Overloaded)
    }

    /// `None`: the hold was extended meanwhile.
    async fn extend_once(
        &self,
        tenant: &Tenant,
        command: &ExtendCommand,
        hold: Arc<Hold>,
    ) -> Result<Option<(FinishReply, Unrecorded)>, ServiceError> {
        let now = tenant.now();
        if hold.is_finished() {
            return Ok(Some((
                FinishReply::AlreadyFinished(hold, now),
                Unrecorded(Some(self.barrier(tenant))),
            )));
        }
        let mark = command.key.clone().map(|id| RequestMark { id, fingerprint: fingerprint(command) });
        let repeated = mark.as_ref().is_some_and(|mark| hold.extends.iter().any(|known| known.id == mark.id));
        let is_new = !repeated && hold.state(now) == HoldState::Held;
        let too_large = too_large(&hold, command.add_output_tokens).filter(|_| is_new);
        let taking = tenant.catalog().settings.taking(&tenant.id, &hold.user);
        if let (Some(refusal), Taking::Enforced) = (&too_large, taking) {
            return Ok(Some((FinishReply::Refused(refusal.clone()), Unrecorded(None))));
        }
        let models = self.models_of(tenant, &hold).await?;
        let cost = models.prices(hold.model.as_ref().map(Name::as_str)).reserve(hold.granted.input_tokens);
        let output = hold.reserved.output_tokens;
        let add_output = believable(output.saturating_add(command.add_output_tokens)).saturating_sub(output);
        let add_credits = cost.amount(output + add_output).saturating_sub(hold.reserved.credits);
        let party = self.party_of_hold(tenant, &hold).await?;
        let catalog = tenant.catalog();
        let charging = self.charging_of(tenant, &catalog, &party, &hold, now)?;
        let places = receipts_in(&charging.charges, &charging.accounts, &hold);
        let add = Increase { output: add_output, credits: add_credits };
        let charges = extend_charges(&hold, &charging, &places, add);
        let shown = charges.len();
        let extend = Extend {
            hold: hold.id,
            operation: u128::from_le_bytes(random::bytes()),
            found: Some(Arc::clone(&hold)),
            accounts: charging.accounts.clone(),
            charges: charges.into_iter().chain(charging.to_show()).collect(),
            receipts: hold.receipts.len(),
            add_output,
            add_credits,
            reserved_before: output,
            lease_seconds: command.lease_seconds.unwrap_or(hold.lease_seconds),
            progress: command.output_tokens_so_far.unwrap_or(0),
            mark,
            taking,
        };
        let refusal = |shortfalls: &[Shortfall], standings: &[Shown]| {
            let by_limit =
                |short: &Shortfall| places[short.charge].map(|charge| Shortfall { charge, ..*short });
            let shortfalls: Vec<Shortfall> = shortfalls.iter().filter_map(by_limit).collect();
            charging.refusal(&shortfalls, &standings[shown..], now)
        };
        let unrecorded = || Unrecorded(Some(self.barrier(tenant)));
        let reply = match self.apply(now, || self.engine.extend(&extend, now)).await? {
            Extended::Changed => return Ok(None),
            Extended::NotOpen => return Ok(None),
            Extended::Done { hold, standings, shortfalls, ticket } => {
                let limits = charging.rows(&standings[shown..]);
                let by_limits = (!shortfalls.is_empty()).then(|| refusal(&shortfalls, &standings));
                let would_refuse = too_large.or(by_limits).map(WouldRefuse::from);
                let done = Finished { hold, now, limits, replayed: false, would_refuse };
                return Ok(Some((FinishReply::Done(done), Unrecorded(Some(ticket)))));
            }
            Extended::Replayed(hold) => {
                let limits = self.rows_of(tenant, &hold, now).await?;
                let done = Finished { hold, now, limits, replayed: true, would_refuse: None };
                (FinishReply::Done(done), unrecorded())
            }
            Extended::Refused { shortfalls, standings } => {
                (FinishReply::Refused(refusal(&shortfalls, &standings)), Unrecorded(None))
            }
            Extended::LeaseEnded(hold) => (FinishReply::LeaseEnded(hold, now), Unrecorded(None)),
            Extended::Already(hold) => (FinishReply::AlreadyFinished(hold, now), unrecorded()),
            Extended::MarkReused => (FinishReply::RequestIdReused, Unrecorded(None)),
        };
        Ok(Some(reply))
    }
}

/// For each receipt, the charge of the plan of now that is the same limit.
fn receipts_in(charges: &[Charge], accounts: &[AccountKey], hold: &Hold) -> Vec<Option<usize>> {
    let same = |receipt: &Receipt| {
        charges.iter().position(|charge| {
            charge.cell == receipt.cell && accounts[usize::from(charge.account)].scope == receipt.scope
        })
    };
    hold.receipts.iter().map(same).collect()
}

/// What an extend reserves more.
#[derive(Clone, Copy)]
struct Increase {
    output: u64,
    credits: u64,
}

/// The increase that each receipt is asked for. A limit that is gone from the
/// plan is charged, not asked.
fn extend_charges(
    hold: &Hold,
    charging: &Charging<'_>,
    places: &[Option<usize>],
    add: Increase,
) -> SmallVec<[Charge; 8]> {
    let (now, accounts) = (&charging.charges, &charging.accounts);
    let increase = |meter: MeterCode| match meter {
        MeterCode::OUTPUT | MeterCode::TOTAL => add.output,
        MeterCode::CREDITS => add.credits,
        _ => 0,
    };
    let charge = |(receipt, place): (&Receipt, &Option<usize>)| {
        let account = accounts.iter().position(|key| key.scope == receipt.scope).unwrap_or(0) as u8;
        // A pool that counts output as settled reserved none of it.
        let counts_later =
            receipt.scope == Scope::Pool && place.is_some_and(|place| now[place].demand.per_output == 0);
        let increase = if counts_later { 0 } else { increase(receipt.meter) };
        let (mut figures, enforce, keep) = match place {
            Some(place) => (now[*place].figures, now[*place].enforce, now[*place].keep),
            None => (Figures::Kept, Enforce::Soft, 0),
        };
        // As at the check: a lowered stock makes no call too large.
        let rule = place.filter(|_| receipt.scope == Scope::Pool).map(|place| &charging.limits[place].rule);
        let whole = match (&mut figures, rule) {
            (Figures::Bucket { capacity: most, .. }, Some(Rule::Bucket { capacity: whole, .. }))
            | (Figures::Rolling { limit: most, .. }, Some(Rule::Rolling { limit: whole, .. })) => {
                Some((most, *whole))
            }
            _ => None,
        };
        if let Some((most, whole)) = whole
            && receipt.reserved.saturating_add(increase).saturating_add(keep) > *most
        {
            *most = whole.max(*most);
        }
        Charge {
            account,
            cell: receipt.cell,
            meter: receipt.meter,
            figures,
            demand: Demand::fixed(increase),
            enforce,
            asked: false,
            earlier: None,
            grants: place.and_then(|place| now[place].grants.clone()),
            to_come: place.and_then(|place| now[place].to_come.clone()),
            switches: charging.is_ones_own(account),
            keep,
        }
    };
    hold.receipts.iter().zip(places).map(charge).collect()
}

/// The caps of the admission, judged on the sum.
fn too_large(hold: &Hold, add: u64) -> Option<Refusal> {
    let most = hold.caps.max_tokens_per_call;
    let max = hold.caps.per_call.max_output_tokens.map_or(most, |cap| cap.min(most));
    let sum = hold.reserved.output_tokens.saturating_add(add);
    (add > 0 && sum > max).then(|| Refusal { max: Some(max), ..Refusal::plain(Code::OutputTooLarge) })
}

fn fingerprint(command: &ExtendCommand) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    for figure in [
        command.lease_seconds.map_or(u64::MAX, u64::from),
        command.add_output_tokens,
        command.output_tokens_so_far.unwrap_or(u64::MAX),
    ] {
        hasher.update(&figure.to_le_bytes());
    }
    let hash = hasher.finalize();
    std::array::from_fn(|index| hash.as_bytes()[index])
}
