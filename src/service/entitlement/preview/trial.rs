//! One user's calls of the past under one sheet: the rules that decide checks, on an
//! account that nobody else sees.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::domain::account::Account;
use crate::domain::charge::Charge;
use crate::domain::decision::{self, Code};
use crate::domain::hold::{Amounts, Granted, Hold, Reported, Stage};
use crate::domain::ids::{HoldId, Label, Name, UserId};
use crate::domain::plan::Scope;
use crate::domain::price::Prices;
use crate::domain::step::{self, Ask, Before, Tally, Verdict};
use crate::domain::taking::Taking;
use crate::domain::time::Millis;
use crate::ledger::RefusedCall;
use crate::service::ServiceError;
use crate::service::calls::charging::{Call, Charging, Subject};
use crate::service::calls::finishing::count;
use crate::service::entitlement::plans::Plan;
use crate::service::entitlement::subject::Party;
use crate::service::entitlement::terms::Terms;
use crate::service::tenancy::catalog::{Catalog, Tenant};

/// A lease nobody asked for otherwise.
const LEASE_MS: i64 = 600_000;
/// How long a call lasts that was refused then, and might go through now.
const TRIED_MS: i64 = 30_000;

/// A call of the past, as it was asked.
#[derive(Debug, Clone)]
pub(super) struct PastCall {
    pub at: Millis,
    id: HoldId,
    model: Option<Name>,
    feature: Option<Label>,
    input_tokens: u64,
    /// `None`: as much as the sheet allows.
    output_tokens: Option<u64>,
    amounts: Vec<(Label, u64)>,
    lease_ends: Millis,
    /// `None`: it is open still.
    end: Option<(Millis, End)>,
    /// Why it was refused then; `None`: it was not.
    pub refused: Option<String>,
}

#[derive(Debug, Clone)]
enum End {
    Released,
    /// By what was reported, and the custom amounts.
    Settled(Reported, Vec<(Label, u64)>),
    /// What it had reserved.
    Reserved,
}

impl PastCall {
    pub fn of(hold: Hold) -> Self {
        // Who was given the whole cap asked for it, or for nothing in particular.
        let cap = hold.caps.per_call.max_output_tokens;
        let output_tokens = Some(hold.granted.max_output_tokens).filter(|granted| Some(*granted) != cap);
        let end = hold.finished_at().zip(match hold.stage {
            Stage::Settled(settled) => Some(End::Settled(settled.reported, settled.amounts)),
            Stage::Released { .. } => Some(End::Released),
            Stage::Held | Stage::InDoubt { .. } => None,
        });
        Self {
            at: hold.created_at,
            id: hold.id,
            model: hold.model,
            feature: hold.feature,
            input_tokens: hold.granted.input_tokens,
            output_tokens,
            amounts: hold.amounts,
            lease_ends: hold.expires_at,
            end,
            refused: None,
        }
    }

    /// `number` tells refusals of one instant apart. `None`: what it asked was not kept.
    pub fn of_refused(call: &RefusedCall, number: u16) -> Option<Self> {
        let grounds = call.grounds.as_deref()?;
        let id = HoldId::from_parts(call.at.0, (u128::MAX - u128::from(number)).to_be_bytes());
        Some(Self {
            at: call.at,
            id,
            model: grounds.model.clone(),
            feature: grounds.feature.clone(),
            input_tokens: grounds.input_tokens,
            output_tokens: grounds.min_output_tokens.or(grounds.max_output_tokens),
            amounts: Vec::new(),
            lease_ends: call.at.plus_ms(LEASE_MS),
            end: Some((call.at.plus_ms(TRIED_MS), End::Reserved)),
            refused: Some(call.code.to_string()),
        })
    }
}

/// One sheet's world of one user.
pub(super) struct Trial<'a> {
    tenant: &'a Tenant,
    catalog: &'a Catalog,
    user: &'a UserId,
    party: &'a Party,
    plan: &'a Plan,
    account: Account,
    /// By when they end.
    open: BTreeMap<(Millis, HoldId), (Hold, End)>,
}

impl<'a> Trial<'a> {
    pub fn new(
        tenant: &'a Tenant,
        catalog: &'a Catalog,
        (user, party): (&'a UserId, &'a Party),
        plan: &'a Plan,
    ) -> Self {
        let (account, open) = (Account::default(), BTreeMap::new());
        Self { tenant, catalog, user, party, plan, account, open }
    }

    /// Whether the call goes through, by the user's own limits; if so it takes, and
    /// ends as it did.
    ///
    /// # Errors
    /// The outer ones are those of reading the sheet.
    pub fn ask(&mut self, call: &PastCall) -> Result<Result<(), Code>, ServiceError> {
        self.end_until(call.at)?;
        let (plan, catalog) = (self.plan, self.catalog);
        let caps = plan.newest().sheet.per_call;
        let most = catalog.settings.max_tokens_per_call;
        let output_cap = caps.max_output_tokens.unwrap_or(most).min(most);
        let output = call.output_tokens.unwrap_or(output_cap);
        if call.input_tokens > caps.max_input_tokens.unwrap_or(most).min(most) {
            return Ok(Err(Code::InputTooLarge));
        }
        if output > output_cap {
            return Ok(Err(Code::OutputTooLarge));
        }
        let prices = catalog.models.prices(call.model.as_ref().map(Name::as_str));
        let mut amounts = call.amounts.clone();
        let subject = self.subject(call.at)?;
        let charging = subject.charges(&mut call.asked(output, prices, &mut amounts), None, None);
        let ask =
            Ask { charges: own(&charging), output_max: output, output_min: output, taking: Taking::Enforced };
        match step::take(&[&self.account], &[Scope::User], &ask, call.at) {
            Verdict::Refused { shortfalls, standings } => {
                let rows = standings.iter().enumerate().map(|(index, shown)| charging.row(index, *shown));
                Ok(Err(decision::refuse(&charging.limits, rows.collect(), &shortfalls, call.at).code))
            }
            Verdict::Fits { receipts, projections, .. } => {
                let mut hold = subject.draft(call.id, None, false);
                hold.granted =
                    Granted { input_tokens: call.input_tokens, max_output_tokens: output, is_final: false };
                step::reserve(&mut hold, output, false, prices.reserve(call.input_tokens));
                (hold.model, hold.amounts) = (call.model.clone(), amounts);
                (hold.receipts, hold.expires_at) = (receipts, call.lease_ends);
                for projection in projections {
                    self.account.accept(projection);
                }
                self.account.insert_open(hold.expires_at, hold.id, hold.receipts.iter());
                if let Some((at, end)) = &call.end {
                    self.open.insert(((*at).max(call.at), hold.id), (hold, end.clone()));
                }
                Ok(Ok(()))
            }
        }
    }

    fn subject(&self, at: Millis) -> Result<Subject<'a>, ServiceError> {
        self.party.with_terms(Terms::always(self.plan), self.tenant, self.catalog, self.user, at)
    }

    fn end_until(&mut self, now: Millis) -> Result<(), ServiceError> {
        while let Some(first) = self.open.first_entry().filter(|first| first.key().0 <= now) {
            let ((at, _), (hold, end)) = first.remove_entry();
            self.end(&hold, &end, at)?;
        }
        Ok(())
    }

    fn end(&mut self, hold: &Hold, end: &End, at: Millis) -> Result<(), ServiceError> {
        let (counted, amounts) = match end {
            End::Released => (Amounts::default(), &[][..]),
            End::Reserved => (hold.reserved, &hold.amounts[..]),
            End::Settled(reported, amounts) => {
                let model = reported.model.as_ref().or(hold.model.as_ref());
                let prices = self.catalog.models.prices(model.map(Name::as_str));
                (count(reported, hold.cache_read_weight, prices), &amounts[..])
            }
        };
        let lease_runs = at < hold.expires_at;
        let subject = self.subject(at)?;
        let charges = subject.all_limits(&[Scope::User]).charges;
        let tally = Tally { amounts: counted, custom: amounts };
        let accounts = [(Scope::User, &self.account)];
        let before = Before::Reserved { lease_runs };
        let (projections, _) = step::finish(&accounts, hold, before, tally, &charges, at);
        self.account.remove_open(hold.expires_at, hold.id);
        for projection in projections {
            self.account.accept(projection);
        }
        Ok(())
    }
}

impl PastCall {
    fn asked<'c>(&'c self, output: u64, prices: Prices, amounts: &'c mut Vec<(Label, u64)>) -> Call<'c> {
        Call {
            model: self.model.as_ref().map(Name::as_str),
            feature: self.feature.as_ref().map(Label::as_str),
            bulk: false,
            input_tokens: self.input_tokens,
            least_output: output,
            prices,
            amounts,
        }
    }
}

/// The charges on the user's own account: they come first.
fn own(charging: &Charging<'_>) -> SmallVec<[Charge; 8]> {
    charging.charges.iter().take_while(|charge| charge.account == 0).cloned().collect()
}
