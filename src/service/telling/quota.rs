//! What a user has left, and when the next call is possible.

use std::sync::Arc;

use crate::domain::cell;
use crate::domain::charge::{Charge, Demand};
use crate::domain::decision::{LimitRow, Remedy};
use crate::domain::ids::{Name, UserId};
use crate::domain::plan::{Enforce, Limit, Scope};
use crate::domain::step::Probe;
use crate::domain::time::Millis;
use crate::service::calls::charging::Charging;
use crate::service::entitlement::terms::Terms;
use crate::service::{CallState, PoolEntry, QuotaState, QuotaView, Service, ServiceError, Tenant, Upcoming};

/// Pools that the engine is asked of at once: a step knows fewer than 256 accounts.
const POOLS_AT_ONCE: usize = 128;

/// Where each limit of a pool stands, and what that means for the next call.
pub type PoolLoad = Vec<(LimitRow, QuotaState)>;

impl Service {
    /// The limits of a user, the org and the tenant, as they stand now. Reading
    /// changes nothing and creates nothing.
    pub async fn quota(&self, tenant: &Tenant, user: UserId) -> Result<QuotaView, ServiceError> {
        let now = tenant.now();
        let party = self.party(tenant, &user).await?;
        let catalog = tenant.catalog();
        let account = party.account_of(&user).ok_or(ServiceError::NotFound("user"))?;
        let subject = party.subject(tenant, &catalog, account, now)?.ok_or(ServiceError::UnknownUser)?;
        let scopes = [Scope::User, Scope::Org, Scope::Tenant];
        let Standing { limits, state, next_call_at, next_lease_end } =
            self.standing_of(&subject.all_limits(&scopes), now).await?;
        let version = subject.version();
        Ok(QuotaView {
            plan: Some(version.named()),
            per_call: version.sheet.per_call,
            cache_read_weight: version.sheet.cache_read_weight,
            owner: user.shared(),
            org: subject.org.as_ref().map(|side| side.id.clone()),
            limits,
            state,
            next_call_at,
            next_lease_end,
            upcoming: upcoming(&subject.terms),
            next_terms: subject.next_terms(),
            now,
        })
    }

    /// The limits of an org: those of its own sheet, else of the tenant's
    /// default plan.
    pub async fn org_quota(&self, tenant: &Tenant, org: &Name) -> Result<QuotaView, ServiceError> {
        let now = tenant.now();
        let nobody = nobody()?;
        let party = self.party_of(tenant, &nobody, Arc::default(), Some(org.clone())).await?;
        let catalog = tenant.catalog();
        let subject = party.subject_or(&self.no_plan, tenant, &catalog, &nobody, now)?;
        let Standing { limits, state, next_call_at, next_lease_end } =
            self.standing_of(&subject.all_limits(&[Scope::Org]), now).await?;
        let own = subject.org.as_ref().and_then(|side| side.terms.as_ref());
        let version = own.map_or(subject.version(), Terms::version);
        Ok(QuotaView {
            plan: own.map(|terms| terms.in_force().named()),
            per_call: version.sheet.per_call,
            cache_read_weight: version.sheet.cache_read_weight,
            owner: org.shared(),
            org: Some(org.clone()),
            limits,
            state,
            next_call_at,
            next_lease_end,
            upcoming: own.and_then(upcoming),
            next_terms: subject.next_terms(),
            now,
        })
    }

    /// How full every limit of those pools is at this moment, all by one look at the
    /// engine: each pool's in its sheet's order, the one of its ramp last. Nothing is
    /// counted of a pool that is for planning only.
    ///
    /// # Errors
    /// `StoreUnavailable`: the engine does not say.
    pub async fn pool_loads(
        &self,
        tenant: &Tenant,
        pools: &[&PoolEntry],
    ) -> Result<Vec<PoolLoad>, ServiceError> {
        let now = tenant.now();
        let nobody = nobody()?;
        let party = self.party_of(tenant, &nobody, Arc::default(), None).await?;
        let catalog = tenant.catalog();
        let subject = party.subject_or(&self.no_plan, tenant, &catalog, &nobody, now)?;
        let mut loads = Vec::with_capacity(pools.len());
        for pools in pools.chunks(POOLS_AT_ONCE) {
            let mut charging = Charging::default();
            let mut sizes = Vec::with_capacity(pools.len());
            for pool in pools {
                let before = charging.limits.len();
                if pool.pool.enforced {
                    subject.add_whole_pool(&mut charging, pool);
                }
                sizes.push(charging.limits.len() - before);
            }
            let mut rows = self.standing_of(&charging, now).await?.limits.into_iter();
            loads.extend(sizes.into_iter().map(|size| rows.by_ref().take(size).collect::<PoolLoad>()));
        }
        Ok(loads)
    }

    async fn standing_of(&self, charging: &Charging<'_>, now: Millis) -> Result<Standing, ServiceError> {
        // Each limit by itself: would a call of one request and one token pass?
        let one = |charge: &Charge| Charge { demand: Demand::fixed(1), ..charge.clone() };
        let charges: Vec<Charge> = charging.charges.iter().map(one).collect();
        let (probes, next_lease_end) = self.probe_with_leases(&charging.accounts, &charges, now).await?;
        let limits: Vec<(LimitRow, QuotaState)> =
            (0..probes.len()).map(|index| row(charging, index, &probes[index], now)).collect();
        let (state, next_call_at) = overall(&charging.limits, &limits);
        Ok(Standing { limits, state, next_call_at, next_lease_end })
    }
}

/// Stands for whoever calls: limits of orgs and pools are the same for all of them.
fn nobody() -> Result<UserId, ServiceError> {
    UserId::parse("anybody").map_err(|error| ServiceError::Corrupt(error.to_string()))
}

/// Where limits stand, and what that means for the next call.
struct Standing {
    limits: Vec<(LimitRow, QuotaState)>,
    state: CallState,
    next_call_at: Option<Millis>,
    next_lease_end: Option<Millis>,
}

/// The plan that comes next, and when.
pub(super) fn upcoming(terms: &Terms<'_>) -> Option<Upcoming> {
    let next = terms.to_come.first()?;
    Some(Upcoming { plan: next.named(), effective_at: next.since })
}

fn row(charging: &Charging<'_>, index: usize, probe: &Probe, now: Millis) -> (LimitRow, QuotaState) {
    let row = charging.row(index, probe.shown);
    let remedy = probe.remedy.filter(|_| row.enforce == Enforce::Hard);
    let (state, next_call_at) = match remedy {
        None => (CallState::Ok, None),
        Some(Remedy::Wait { retry_after_ms }) => {
            (CallState::Waiting, Some(now.plus_ms(retry_after_ms as i64)))
        }
        Some(Remedy::Reset { resets_at }) => (CallState::Exhausted, resets_at),
        Some(Remedy::Never { .. }) => (CallState::Exhausted, None),
    };
    let forecast_exhausted_at = forecast(&row.standing, now);
    (row, QuotaState { state, next_call_at, forecast_exhausted_at })
}

/// Over the hard limits that count every call: the worst state, and the
/// latest moment; none where a limit never comes back.
fn overall(limits: &[&Limit], rows: &[(LimitRow, QuotaState)]) -> (CallState, Option<Millis>) {
    let counted = limits
        .iter()
        .zip(rows)
        .filter(|(limit, _)| limit.enforce == Enforce::Hard && limit.filter.is_everything());
    let blocking: Vec<&QuotaState> =
        counted.map(|(_, (_, state))| state).filter(|state| state.state != CallState::Ok).collect();
    let state = blocking.iter().map(|state| state.state).max().unwrap_or(CallState::Ok);
    let never = blocking.iter().any(|state| state.next_call_at.is_none());
    let latest = blocking.iter().filter_map(|state| state.next_call_at).max();
    (state, latest.filter(|_| !never))
}

/// When a window will be used up at the pace since it began; `None` before 1 %
/// of it has passed, and when it will not be.
fn forecast(standing: &cell::Standing, now: Millis) -> Option<Millis> {
    let cell::Standing::Window { limit, granted, used, held, window: Some((start, end)), .. } = *standing
    else {
        return None;
    };
    let whole = u128::from(limit) + u128::from(granted);
    let taken = u128::from(used) + u128::from(held);
    let elapsed = u128::try_from(now.0 - start.0).ok()?;
    let length = u128::try_from(end.0 - start.0).ok()?;
    if taken == 0 || elapsed * 100 < length {
        return None;
    }
    let until = (elapsed * whole).div_ceil(taken);
    let at = Millis(start.0 + i64::try_from(until).ok()?);
    (at < end).then(|| at.max(now))
}
