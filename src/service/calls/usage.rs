//! Use that had no hold: calls made while this service was away, realtime
//! voice, imports. Booked once by id, never refused for quota.

use smallvec::SmallVec;

use super::charging::Call;
use super::finishing::{count, implausible};
use crate::domain::charge::{Demand, MeterCode};
use crate::domain::document::Fault;
use crate::domain::hold::{FinishedBy, Reported, Settlement, Stage};
use crate::domain::ids::{HoldId, Name, RequestId};
use crate::domain::step::Ask;
use crate::domain::taking::Taking;
use crate::domain::time::Millis;
use crate::engine::{Take, Taken};
use crate::service::entitlement::erasing::LOOKS;
use crate::service::outage::Operation;
use crate::service::{Service, ServiceError, Tenant, Unrecorded, UsageCommand, UsageResult, UsageStatus};

/// How far back use may be booked.
const OLDEST_MS: i64 = 31 * 24 * 3_600_000;

impl Service {
    /// Books every item by itself, in order. The first body of an id wins.
    pub async fn record_usage(
        &self,
        tenant: &Tenant,
        commands: Vec<UsageCommand>,
    ) -> Result<Vec<UsageResult>, ServiceError> {
        let mut results = Vec::with_capacity(commands.len());
        for command in commands {
            let status = self.outage.noted(Operation::Usage, self.book(tenant, &command).await)?;
            results.push(UsageResult { id: command.id, status });
        }
        Ok(results)
    }

    async fn book(&self, tenant: &Tenant, command: &UsageCommand) -> Result<UsageStatus, ServiceError> {
        let now = tenant.now();
        let at = command.at.unwrap_or(now);
        let fault_at = |pointer: &str, message: &str| {
            Ok(UsageStatus::Invalid(vec![Fault { pointer: pointer.into(), message: message.into() }]))
        };
        let fault = |message: &str| fault_at("/at", message);
        if at > now {
            return fault("must not be later than now");
        }
        if at < now.plus_ms(-OLDEST_MS) {
            return fault("must be at most 31 days back");
        }
        let max = tenant.catalog().settings.max_tokens_per_call;
        if let Some((field, max)) = implausible(&command.reported, max) {
            return Ok(UsageStatus::Implausible { field, max });
        }
        let profile = self.registry.profile(tenant, &command.user).await?;
        if profile.is_erased() && profile.alias().is_none() {
            return fault_at("/user", "must not be the name of an erased user");
        }
        let id = usage_id(tenant, &command.id);
        // Two of the same id wait for each other, so that one of them books.
        let _turn = self.turn(id).await;
        if self.find_hold(tenant, id).await?.is_some() {
            return Ok(UsageStatus::Duplicate);
        }
        match self.take_usage(tenant, command, id, at, now).await? {
            Taken::Hold { ticket, .. } => {
                self.recorded(Unrecorded(Some(ticket))).await?;
                Ok(UsageStatus::Recorded)
            }
            Taken::Known(_) => Ok(UsageStatus::Duplicate),
            Taken::Fits { .. } | Taken::Refused { .. } => {
                Err(ServiceError::Corrupt("use that has happened was refused".into()))
            }
        }
    }

    /// Takes use that has happened from the user's own account, wherever it
    /// was: use brings an erased user back.
    async fn take_usage(
        &self,
        tenant: &Tenant,
        command: &UsageCommand,
        id: HoldId,
        at: Millis,
        now: Millis,
    ) -> Result<Taken, ServiceError> {
        for _ in 0..LOOKS {
            if self.registry.profile(tenant, &command.user).await?.alias().is_some() {
                self.revive(tenant, &command.user).await?;
                continue;
            }
            let take = self.usage_take(tenant, command, id, at, now).await?;
            match self.apply(now, || self.engine.take(&take, now)).await {
                Err(ServiceError::Moved) => self.look_again(tenant, &command.user).await?,
                taken => return taken,
            }
        }
        Err(ServiceError::Overloaded)
    }

    /// The take of use that has happened: finished as soon as it is made.
    async fn usage_take(
        &self,
        tenant: &Tenant,
        command: &UsageCommand,
        id: HoldId,
        at: Millis,
        now: Millis,
    ) -> Result<Take, ServiceError> {
        let party = self.party(tenant, &command.user).await?;
        let catalog = tenant.catalog();
        let subject = party.subject_or(&self.no_plan, tenant, &catalog, &command.user, now)?;
        let model = command.model.as_ref().map(|model| catalog.models.canonical(model));
        let prices = catalog.models.prices(model.as_ref().map(Name::as_str));
        let counted = count(&command.reported, subject.version().sheet.cache_read_weight, prices);
        let mut amounts = command.amounts.clone();
        let mut call = Call {
            model: model.as_ref().map(Name::as_str),
            feature: command.feature.as_ref().map(|feature| feature.as_str()),
            bulk: false,
            input_tokens: counted.input_tokens,
            least_output: 0,
            prices,
            amounts: &mut amounts,
        };
        let pool = catalog.pool_for(call.model);
        let mut charging = subject.charges(&mut call, pool.map(|pool| &**pool), None);
        let ones_own: SmallVec<[bool; 4]> = charging.ones_own().into();
        for charge in &mut charging.charges {
            charge.switches = ones_own[usize::from(charge.account)];
            // Known exactly now; a pool that counts as settled counts it too.
            match charge.meter {
                MeterCode::OUTPUT => charge.demand = Demand::fixed(counted.output_tokens),
                MeterCode::TOTAL => charge.demand = Demand::fixed(counted.total_tokens),
                MeterCode::CREDITS => charge.demand = Demand::fixed(counted.credits),
                _ => {}
            }
        }
        let pool = pool.map(|pool| pool.pool.id.clone());
        let mut draft = subject.draft(id, pool, !party.profile.is_known());
        draft.day = catalog.settings.zone.local_day(at);
        (draft.created_at, draft.expires_at, draft.lives_until) = (at, at, at);
        draft.feature.clone_from(&command.feature);
        draft.granted.input_tokens = command.reported.input_tokens;
        draft.granted.max_output_tokens = command.reported.output_tokens;
        draft.reserved = counted;
        let reported = Reported { model: model.clone(), ..command.reported.clone() };
        draft.stage = Stage::Settled(Box::new(Settlement {
            at: now,
            late: false,
            by: FinishedBy::Caller,
            reported,
            counted,
            amounts: amounts.clone(),
        }));
        (draft.model, draft.amounts) = (model, amounts);
        Ok(Take {
            accounts: charging.accounts,
            ask: Ask {
                charges: charging.charges,
                output_max: command.reported.output_tokens,
                output_min: command.reported.output_tokens,
                taking: Taking::Happened(at),
            },
            credits: Demand::fixed(counted.credits),
            draft,
            lease_ms: 0,
            max_hold_ms: 0,
            dry_run: false,
            quiet: false,
            place: None,
        })
    }
}

/// The record's id is made from the caller's, so that the ledger knows it by
/// its key. The tenant's number keeps tenants apart.
fn usage_id(tenant: &Tenant, id: &RequestId) -> HoldId {
    let mut hasher = blake3::Hasher::new_derive_key("apportion usage without a hold");
    hasher.update(&tenant.number.0.to_le_bytes());
    hasher.update(id.as_str().as_bytes());
    let hash = hasher.finalize();
    HoldId(u128::from_be_bytes(std::array::from_fn(|index| hash.as_bytes()[index])))
}
