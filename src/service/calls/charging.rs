//! From a plan to charges: which limits a call touches, in which accounts,
//! with which figures. Calendars and filters end here; below this floor there
//! are only numbers.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::domain::charge::{AccountKey, CellId, Charge, Demand, Figures, MeterCode, TenantRef};
use crate::domain::decision::{self, LimitRow, Refusal};
use crate::domain::hold::{Amounts, Caps, Granted, Hold, Stage};
use crate::domain::ids::{HoldId, Label, Name, UserId};
use crate::domain::plan::{Enforce, Filter, Limit, Meter, Pool, PoolCounts, Rule, Scope};
use crate::domain::price::Prices;
use crate::domain::step::{Shortfall, Shown};
use crate::domain::time::{Millis, Zone};
use crate::engine::Accounts;
use crate::service::entitlement::plans::PlanVersion;
use crate::service::entitlement::terms::{Holder, Terms};
use crate::service::tenancy::catalog::{Catalog, PoolEntry};

/// Whose limits count, by what they are entitled to now.
pub(in crate::service) struct Subject<'a> {
    pub tenant: TenantRef,
    pub catalog: &'a Catalog,
    pub user: &'a UserId,
    pub holder: Holder<'a>,
    pub terms: Terms<'a>,
    /// The org whose limits count: the user's, or for a hold the one it began
    /// with.
    pub org: Option<OrgSide<'a>>,
    pub now: Millis,
}

/// An org beside a user.
pub(in crate::service) struct OrgSide<'a> {
    pub id: &'a Name,
    pub holder: Holder<'a>,
    /// `None`: the org has no sheet of its own, the caller's counts.
    pub terms: Option<Terms<'a>>,
}

/// What the limits of a scope come from.
pub(in crate::service) struct Source<'s, 'a> {
    /// `None` for the tenant's own account.
    pub holder: Option<&'s Holder<'a>>,
    /// Where one sheet alone says what the limits are.
    pub own: Option<&'s Terms<'a>>,
    pub version: &'a PlanVersion,
}

/// What a call is, as far as limits care.
pub(in crate::service) struct Call<'a> {
    /// Canonical, in lower case.
    pub model: Option<&'a str>,
    pub feature: Option<&'a str>,
    pub bulk: bool,
    pub input_tokens: u64,
    /// The least output that it can do with.
    pub least_output: u64,
    pub prices: Prices,
    /// Custom meters; those that limits count and the call did not name are
    /// added with 0.
    pub amounts: &'a mut Vec<(Label, u64)>,
}

/// The charges of a call with the limits they come from, in the order of
/// replies: user, org, tenant, pool, each in the sheet's order.
#[derive(Default)]
pub(in crate::service) struct Charging<'a> {
    pub accounts: Accounts,
    ones_own: SmallVec<[bool; 4]>,
    pub charges: SmallVec<[Charge; 8]>,
    pub limits: SmallVec<[&'a Limit; 8]>,
    /// The zone of each limit that is a calendar window.
    zones: SmallVec<[Option<&'a Arc<Zone>>; 8]>,
}

impl<'a> Subject<'a> {
    /// The version of the user's plan that holds now.
    pub fn version(&self) -> &'a PlanVersion {
        self.terms.version()
    }

    /// When a version to come, or the end of an override or a grant, next
    /// changes what the limits say.
    pub fn next_terms(&self) -> Option<Millis> {
        let org = self.org.as_ref();
        let holders = std::iter::once(&self.holder).chain(org.map(|side| &side.holder));
        let terms = std::iter::once(&self.terms).chain(org.and_then(|side| side.terms.as_ref()));
        let ends = holders.filter_map(|holder| holder.next_end(self.now));
        ends.chain(terms.filter_map(|terms| Some(terms.to_come.first()?.since))).min()
    }

    /// The charges of a call, with those of the pool it uses. The accounts of
    /// `hold`, if given, are among the charging's whatever the plan says now.
    pub fn charges(
        &self,
        call: &mut Call<'_>,
        pool: Option<&'a PoolEntry>,
        hold: Option<&Hold>,
    ) -> Charging<'a> {
        let mut charging = Charging::default();
        charging.account(self.key(Scope::User), true);
        let touched = |scope| hold.is_some_and(|hold| hold.receipts.iter().any(|r| r.scope == scope));
        for scope in [Scope::User, Scope::Org, Scope::Tenant] {
            if touched(scope) {
                charging.account(self.key(scope), self.source(scope).own.is_some());
            }
            self.add_scope(&mut charging, scope, call);
        }
        if let Some(pool) = hold.and_then(|hold| hold.pool.as_ref()).filter(|_| touched(Scope::Pool)) {
            charging.account(self.pool_key(pool), true);
        }
        if let Some(entry) = pool.filter(|entry| entry.pool.enforced) {
            self.add_pool(&mut charging, entry, call);
        }
        charging
    }

    /// A hold of this user, before anything is known of the call.
    pub fn draft(&self, id: HoldId, pool: Option<Name>, admits_user: bool) -> Hold {
        let (version, settings) = (self.version(), &self.catalog.settings);
        let sheet = &version.sheet;
        Hold {
            id,
            tenant: self.tenant,
            user: self.user.clone(),
            org: self.org.as_ref().map(|org| org.id.clone()),
            pool,
            request: None,
            plan: sheet.id.clone(),
            plan_version: version.version,
            // Without a plan there is nothing to put on record.
            admits_user: admits_user && version.version > 0,
            models_version: self.catalog.models_version,
            model: None,
            feature: None,
            created_at: self.now,
            expires_at: self.now,
            lease_seconds: 0,
            lives_until: self.now,
            day: settings.zone.local_day(self.now),
            caps: Caps { per_call: sheet.per_call, max_tokens_per_call: settings.max_tokens_per_call },
            cache_read_weight: sheet.cache_read_weight,
            granted: Granted { input_tokens: 0, max_output_tokens: 0, is_final: false },
            reserved: Amounts::default(),
            amounts: Vec::new(),
            receipts: Vec::new(),
            progress: 0,
            extends: Vec::new(),
            stage: Stage::Held,
            bulk: false,
        }
    }

    /// Every limit of the given scopes, as asked by an empty call of any kind.
    pub fn all_limits(&self, scopes: &[Scope]) -> Charging<'a> {
        let mut charging = Charging::default();
        if scopes.contains(&Scope::User) {
            charging.account(self.key(Scope::User), true);
        }
        for scope in scopes {
            let source = self.source(*scope);
            for (limit, cell, _) in source.version.limits_of(*scope) {
                let Some(key) = self.key_of(*scope) else { continue };
                let account = charging.account(key, source.own.is_some());
                let meter = limit.rule.meter().and_then(MeterCode::built_in).unwrap_or(MeterCode::SLOTS);
                let charge = self.charge(&source, limit, cell, account, (meter, Demand::NONE), true);
                charging.push(limit, self.zone_of(&source, limit), charge);
            }
        }
        charging
    }

    fn add_scope(&self, charging: &mut Charging<'a>, scope: Scope, call: &mut Call<'_>) {
        let source = self.source(scope);
        for (limit, cell, filter) in source.version.limits_of(scope) {
            let Some(key) = self.key_of(scope) else { continue };
            let asked = filter.matches(call.model, call.feature);
            // A limit that is not asked is carried where its figures must
            // reach the cell: buckets of one's own.
            let carried = source.own.is_some() && matches!(limit.rule, Rule::Bucket { .. });
            if !asked && !carried {
                continue;
            }
            let account = charging.account(key, source.own.is_some());
            let demand = demand(&limit.rule, call);
            let charge = self.charge(&source, limit, cell, account, demand, asked);
            charging.push(limit, self.zone_of(&source, limit), charge);
        }
    }

    /// Every limit of a pool, as asked by an empty call of any kind.
    pub fn add_whole_pool(&self, charging: &mut Charging<'a>, entry: &'a PoolEntry) {
        let mut call = Call {
            model: None,
            feature: None,
            bulk: false,
            input_tokens: 0,
            least_output: 0,
            prices: Prices::default(),
            amounts: &mut Vec::new(),
        };
        let account = charging.account(self.pool_key(&entry.pool.id), true);
        for index in 0..entry.filters.len() {
            self.add_pool_limit(charging, (entry, index), account, &mut call);
        }
        self.add_ramp(charging, entry, account, &mut call);
    }

    fn add_pool(&self, charging: &mut Charging<'a>, entry: &'a PoolEntry, call: &mut Call<'_>) {
        let account = charging.account(self.pool_key(&entry.pool.id), true);
        for (index, filter) in entry.filters.iter().enumerate() {
            if filter.matches(call.model, call.feature) {
                self.add_pool_limit(charging, (entry, index), account, call);
            }
        }
        self.add_ramp(charging, entry, account, call);
    }

    fn add_pool_limit(
        &self,
        charging: &mut Charging<'a>,
        (entry, index): (&'a PoolEntry, usize),
        account: u8,
        call: &mut Call<'_>,
    ) {
        let (pool, limit, cell) = (&entry.pool, &entry.pool.limits[index].limit, entry.cells[index]);
        let bulk = call.bulk;
        let kept = |ceiling| kept_for_interactive(pool, bulk, ceiling);
        let mut charge = self.pool_charge(pool, limit, cell, account, call);
        let least = charge.demand.amount(call.least_output);
        let fits = |stock| least.saturating_add(kept(stock)) <= stock;
        if let Some((figures, earlier, to_come)) = entry.bucket(index, self.now, fits) {
            (charge.figures, charge.earlier, charge.to_come) = (figures, earlier, to_come);
        }
        if let Some(figures) = entry.rolling(index, self.now, fits) {
            charge.figures = figures;
        }
        charge.keep = kept(charge.figures.ceiling());
        charging.push(limit, self.zone_of(&self.source(Scope::Pool), limit), charge);
    }

    fn add_ramp(&self, charging: &mut Charging<'a>, entry: &'a PoolEntry, account: u8, call: &mut Call<'_>) {
        let (Some((limit, cell)), Some(allowed)) = (&entry.ramp, entry.ramp_allows(self.now)) else { return };
        let mut charge = self.pool_charge(&entry.pool, limit, *cell, account, call);
        if let Figures::Rolling { limit, .. } = &mut charge.figures {
            *limit = allowed;
        }
        charge.keep = kept_for_interactive(&entry.pool, call.bulk, allowed);
        charging.push(limit, None, charge);
    }

    fn pool_charge(
        &self,
        pool: &Pool,
        limit: &Limit,
        cell: CellId,
        account: u8,
        call: &mut Call<'_>,
    ) -> Charge {
        let (mut meter, mut demand) = demand(&limit.rule, call);
        if pool.counts == PoolCounts::Actual && meter == MeterCode::INPUT {
            meter = MeterCode::INPUT_AT_START;
        }
        if pool.counts == PoolCounts::Actual && demand.per_output > 0 {
            demand.per_output = 0;
            // Of output that is counted later there must be some: who has none
            // left turns away whoever will generate any.
            if call.least_output > 0 {
                demand.fixed = demand.fixed.max(demand.unit.into());
            }
        }
        self.charge(&self.source(Scope::Pool), limit, cell, account, (meter, demand), true)
    }

    fn charge(
        &self,
        source: &Source<'_, 'a>,
        limit: &Limit,
        cell: CellId,
        account: u8,
        (meter, demand): (MeterCode, Demand),
        asked: bool,
    ) -> Charge {
        let (figures, earlier) = self.figures(source, limit, cell);
        Charge {
            account,
            cell,
            meter,
            figures,
            demand,
            enforce: limit.enforce,
            asked,
            earlier,
            to_come: self.steps_to_come(source, limit, cell),
            grants: source.holder.and_then(|holder| holder.grants_on(&limit.name, self.now)),
            switches: true,
            keep: 0,
        }
    }

    /// Where the limits of a scope come from.
    pub fn source(&self, scope: Scope) -> Source<'_, 'a> {
        let version = self.version();
        match (scope, &self.org) {
            (Scope::User, _) => Source { holder: Some(&self.holder), own: Some(&self.terms), version },
            (Scope::Org, Some(org)) => Source {
                holder: Some(&org.holder),
                own: org.terms.as_ref(),
                version: org.terms.as_ref().map_or(version, Terms::version),
            },
            _ => Source { holder: None, own: None, version },
        }
    }

    /// The account of a scope; `None` for an org limit of a user without org.
    fn key_of(&self, scope: Scope) -> Option<AccountKey> {
        (scope != Scope::Org || self.org.is_some()).then(|| self.key(scope))
    }

    fn key(&self, scope: Scope) -> AccountKey {
        let owner = match scope {
            Scope::User => self.user.shared(),
            Scope::Org => self.org.as_ref().map(|org| org.id.shared()).unwrap_or_default(),
            Scope::Tenant | Scope::Pool => Arc::default(),
        };
        AccountKey { tenant: self.tenant, scope, owner }
    }

    fn pool_key(&self, pool: &Name) -> AccountKey {
        AccountKey { tenant: self.tenant, scope: Scope::Pool, owner: pool.shared() }
    }
}

impl<'a> Charging<'a> {
    /// The index of an account, added if it is new. Scopes are added in
    /// ascending order, which is the order in which engines lock.
    pub fn account(&mut self, key: AccountKey, is_ones_own: bool) -> u8 {
        let known = self.accounts.iter().position(|known| *known == key);
        let index = known.unwrap_or_else(|| {
            self.accounts.push(key);
            self.ones_own.push(is_ones_own);
            self.accounts.len() - 1
        });
        index as u8
    }

    /// As [`is_ones_own`](Self::is_ones_own), of all accounts.
    pub fn ones_own(&self) -> &[bool] {
        &self.ones_own
    }

    /// Whether one sheet alone says what the account's limits are.
    pub fn is_ones_own(&self, account: u8) -> bool {
        self.ones_own[usize::from(account)]
    }

    fn push(&mut self, limit: &'a Limit, zone: Option<&'a Arc<Zone>>, charge: Charge) {
        self.zones.push(zone);
        self.limits.push(limit);
        self.charges.push(charge);
    }

    /// The rows of a reply: the limits asked, less those that only count.
    pub fn rows(&self, standings: &[Shown]) -> Vec<LimitRow> {
        let told =
            |index: &usize| self.charges[*index].asked && self.limits[*index].enforce != Enforce::Shadow;
        (0..self.limits.len()).filter(told).map(|index| self.row(index, standings[index])).collect()
    }

    /// One limit's row.
    pub fn row(&self, index: usize, shown: Shown) -> LimitRow {
        LimitRow::new(self.limits[index], self.zones[index], shown)
    }

    /// The refusal that shortfalls of these charges come to.
    pub fn refusal(&self, shortfalls: &[Shortfall], standings: &[Shown], now: Millis) -> Refusal {
        let every = standings.iter().enumerate().map(|(index, shown)| self.row(index, *shown)).collect();
        let mut refusal = decision::refuse(&self.limits, every, shortfalls, now);
        refusal.limits = self.rows(standings);
        refusal
    }

    /// The same limits, to be shown only.
    pub fn to_show(&self) -> SmallVec<[Charge; 8]> {
        let unasked = |charge: &Charge| {
            let switches = self.is_ones_own(charge.account);
            Charge { demand: Demand::NONE, asked: false, switches, ..charge.clone() }
        };
        self.charges.iter().map(unasked).collect()
    }
}

impl PlanVersion {
    /// The limits of a scope with their cells and filters, in the sheet's order.
    fn limits_of(&self, scope: Scope) -> impl Iterator<Item = (&Limit, CellId, &Filter)> {
        let every = self.sheet.limits.iter().zip(&self.cells).zip(&self.filters);
        let every = every.map(|((limit, cell), filter)| (limit, *cell, filter));
        every.filter(move |(limit, _, _)| limit.scope == scope)
    }
}

impl Catalog {
    /// The pool that serves a model: the one that describes it most closely,
    /// else `default`.
    pub(super) fn pool_for(&self, model: Option<&str>) -> Option<&Arc<PoolEntry>> {
        let mut best: Option<(usize, &Arc<PoolEntry>)> = None;
        for entry in &self.pools {
            if let Some(closeness) = entry.serves.specificity(model)
                && best.is_none_or(|(most, _)| closeness > most)
            {
                best = Some((closeness, entry));
            }
        }
        best.map(|(_, entry)| entry)
            .or_else(|| self.pools.iter().find(|entry| entry.pool.id.as_str() == "default"))
    }
}

/// What calls of the bulk lane leave for the interactive one.
fn kept_for_interactive(pool: &Pool, bulk: bool, ceiling: u64) -> u64 {
    if bulk { pool.interactive_share.of_rounded_up(ceiling) } else { 0 }
}

/// What a call takes from a limit, on which meter.
fn demand(rule: &Rule, call: &mut Call<'_>) -> (MeterCode, Demand) {
    let Some(meter) = rule.meter() else { return (MeterCode::SLOTS, Demand::fixed(1)) };
    let per_output = |fixed: u64| Demand { fixed: u128::from(fixed), per_output: 1, unit: 1 };
    match meter {
        Meter::Requests => (MeterCode::REQUESTS, Demand::fixed(1)),
        Meter::InputTokens => (MeterCode::INPUT, Demand::fixed(call.input_tokens)),
        Meter::OutputTokens => (MeterCode::OUTPUT, per_output(0)),
        Meter::TotalTokens => (MeterCode::TOTAL, per_output(call.input_tokens)),
        Meter::Credits => (MeterCode::CREDITS, call.prices.reserve(call.input_tokens)),
        Meter::Custom(name) => {
            let known = call.amounts.iter().position(|(known, _)| known == name);
            let index = known.unwrap_or_else(|| {
                call.amounts.push((name.clone(), 0));
                call.amounts.len() - 1
            });
            (MeterCode::custom(index), Demand::fixed(call.amounts[index].1))
        }
    }
}
