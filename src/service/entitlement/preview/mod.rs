//! What a new sheet would do to those who are on the plan, by what they did lately:
//! their calls of the last days once under the sheet of now, and once under the new one.
//!
//! Each user's calls run through the rules that decide checks, on an account of their
//! own that begins some weeks earlier, so that windows are as full as they were. Limits
//! that users share (orgs, the tenant, pools) are not looked at.

mod trial;

use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use crate::domain::cell::Standing;
use crate::domain::document::{Fault, Node};
use crate::domain::ids::{Name, UserId};
use crate::domain::plan::{Scope, Sheet};
use crate::domain::time::{DAY_MS, Millis};
use crate::ledger::UserQuery;
use crate::service::entitlement::plans::{Plan, PlanVersion, VersionRecord, VersionTerms};
use crate::service::entitlement::subject::Party;
use crate::service::entitlement::terms::Terms;
use crate::service::tenancy::catalog::{Catalog, Tenant};
use crate::service::{Service, ServiceError};

use trial::{PastCall, Trial};

/// Calls that are replayed at most, so that a look stays a look.
const CALLS_MAX: u64 = 200_000;
const USERS_MAX: usize = 20_000;
const USUAL_USERS: usize = 1_000;
const DAYS_MAX: i64 = 31;
const USUAL_DAYS: i64 = 30;
/// Calls this long before the days that count fill the windows.
const BEFORE_DAYS: i64 = 31;
/// Users and holds read in one go.
const AT_ONCE: u32 = 500;
/// Users that are named of those who would feel it most.
const NAMED: usize = 20;

/// What `POST plans/{id}/preview` asks for.
#[derive(Debug)]
pub struct PreviewPost {
    sheet: Sheet,
    days: i64,
    users: usize,
}

impl PreviewPost {
    /// Reads a sheet with `days` and `users` beside its fields.
    pub fn read(node: &Node<'_>, id: &Name) -> Result<Self, Vec<Fault>> {
        node.read(|fields| {
            let days = fields.optional("days").number(1..=DAYS_MAX).unwrap_or(USUAL_DAYS);
            let users = fields.optional("users").number(1..=USERS_MAX).unwrap_or(USUAL_USERS);
            let sheet = Sheet::fields(fields, Some(id));
            Some(Self { sheet: sheet?, days, users })
        })
    }
}

/// What a sheet would do.
#[derive(Debug, Default)]
pub struct Preview {
    /// The version it was compared with.
    pub version: u32,
    pub from: Millis,
    pub to: Millis,
    /// On record with the plan.
    pub users_on_plan: u64,
    /// Those of them whose calls were replayed: all, or some that stand for all.
    pub users: u64,
    pub calls: u64,
    /// Not all that was asked for could be looked at.
    pub is_cut: bool,
    /// Users who would be above one of the new limits at once, by limit.
    pub over: Effect,
    /// Calls that went through and would be refused.
    pub refused: Effect,
    /// Calls that were refused (of the last 100 of a user) and would go through.
    pub relieved: Effect,
    /// Who would feel it most, first.
    pub most: Vec<Felt>,
}

/// How many, and of what kind.
#[derive(Debug, Default)]
pub struct Effect {
    pub users: u64,
    pub calls: u64,
    /// Calls by code; of `over`, users by limit.
    pub by: BTreeMap<String, u64>,
}

/// What one user would feel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Felt {
    pub user: UserId,
    pub over: Vec<String>,
    pub refused: u64,
    pub relieved: u64,
}

/// Both sheets, each as a plan of one version.
struct Sheets {
    now: Plan,
    new: Plan,
}

impl Service {
    /// What a sheet would have done in the last days to those on the plan.
    ///
    /// # Errors
    /// `UnknownPlan`.
    pub async fn preview(
        &self,
        tenant: &Tenant,
        id: &Name,
        post: PreviewPost,
    ) -> Result<Preview, ServiceError> {
        let catalog = tenant.catalog();
        let now = tenant.now();
        let present = catalog.plan(id).ok_or(ServiceError::UnknownPlan)?.current(now).clone();
        let sheets = Sheets { now: alone(present.sheet.clone(), &catalog), new: alone(post.sheet, &catalog) };
        self.flush_tallies().await?;
        self.record_moves(tenant).await?;
        let (chosen, users_on_plan) = self.some_of(tenant, id, post.users).await?;
        let from = now.plus_ms(-post.days * DAY_MS);
        let mut preview = Preview {
            version: present.version,
            from,
            to: now,
            users_on_plan,
            is_cut: (chosen.len() as u64) < users_on_plan,
            ..Preview::default()
        };
        for user in chosen {
            if preview.calls >= CALLS_MAX {
                preview.is_cut = true;
                break;
            }
            let felt = self.felt_by(tenant, &catalog, &sheets, user, &mut preview).await?;
            preview.add(felt);
            tokio::task::yield_now().await;
        }
        preview.most.sort_by_key(|felt| std::cmp::Reverse((felt.refused, felt.over.len(), felt.relieved)));
        preview.most.truncate(NAMED);
        Ok(preview)
    }

    /// Users of a plan, spread evenly over all of them, and how many those are.
    async fn some_of(
        &self,
        tenant: &Tenant,
        plan: &Name,
        some: usize,
    ) -> Result<(Vec<UserId>, u64), ServiceError> {
        // Digests lie anywhere with equal likelihood: the least of them are a fair part.
        let mut least: BinaryHeap<(u64, UserId)> = BinaryHeap::with_capacity(some + 1);
        let (mut all, mut after) = (0, None);
        loop {
            let query = UserQuery { after, plan: Some(plan.clone()), limit: AT_ONCE, ..UserQuery::default() };
            let page = self.ledger.users(tenant.number, query).await?;
            after = page.last().map(|user| user.id.to_string());
            all += page.len() as u64;
            let is_last = page.len() < AT_ONCE as usize;
            for user in page {
                least.push((self.registry.files.digest(tenant.number, &user.id), user.id));
                if least.len() > some {
                    least.pop();
                }
            }
            if is_last {
                return Ok((least.into_sorted_vec().into_iter().map(|(_, user)| user).collect(), all));
            }
        }
    }

    async fn felt_by(
        &self,
        tenant: &Tenant,
        catalog: &Catalog,
        sheets: &Sheets,
        user: UserId,
        preview: &mut Preview,
    ) -> Result<Felt, ServiceError> {
        let party = self.party(tenant, &user).await?;
        let over = self.over_new(tenant, catalog, (&user, &party), &sheets.new).await?;
        let calls = self.past_calls(tenant, &user, preview).await?;
        let mut felt = Felt { user: user.clone(), over, refused: 0, relieved: 0 };
        let mut now = Trial::new(tenant, catalog, (&user, &party), &sheets.now);
        let mut new = Trial::new(tenant, catalog, (&user, &party), &sheets.new);
        for call in calls {
            let (before, after) = (now.ask(&call)?, new.ask(&call)?);
            if call.at < preview.from {
                continue;
            }
            preview.calls += 1;
            match (&call.refused, before, after) {
                (None, Ok(()), Err(code)) => {
                    felt.refused += 1;
                    *preview.refused.by.entry(code.as_str().to_owned()).or_default() += 1;
                }
                (Some(code), _, Ok(())) => {
                    felt.relieved += 1;
                    *preview.relieved.by.entry(code.clone()).or_default() += 1;
                }
                _ => {}
            }
        }
        preview.users += 1;
        Ok(felt)
    }

    /// The windows of the new sheet that are over-used as they stand now.
    async fn over_new(
        &self,
        tenant: &Tenant,
        catalog: &Catalog,
        (user, party): (&UserId, &Party),
        new: &Plan,
    ) -> Result<Vec<String>, ServiceError> {
        let now = tenant.now();
        let subject = party.with_terms(Terms::always(new), tenant, catalog, user, now)?;
        let charging = subject.all_limits(&[Scope::User]);
        let shown = self.standings(&charging.accounts, &charging.charges, now).await?;
        let rows = charging.limits.iter().zip(shown);
        let is_over =
            |standing: &Standing| matches!(standing, Standing::Window { over_by, .. } if *over_by > 0);
        Ok(rows
            .filter(|(_, shown)| is_over(&shown.standing))
            .map(|(limit, _)| limit.name.to_string())
            .collect())
    }

    /// A user's calls, admitted and refused, in the order of their times.
    async fn past_calls(
        &self,
        tenant: &Tenant,
        user: &UserId,
        preview: &mut Preview,
    ) -> Result<Vec<PastCall>, ServiceError> {
        let instants = preview.from.plus_ms(-BEFORE_DAYS * DAY_MS)..preview.to.plus_ms(1);
        let (mut calls, mut after) = (Vec::new(), None);
        loop {
            let (number, user) = (tenant.number, user.clone());
            let holds = self.ledger.holds_made(number, user, instants.clone(), after, AT_ONCE).await?;
            after = holds.last().map(|hold| hold.id);
            let is_last = holds.len() < AT_ONCE as usize;
            calls.extend(holds.into_iter().map(PastCall::of));
            if is_last {
                break;
            }
            if calls.len() as u64 >= CALLS_MAX {
                preview.is_cut = true;
                break;
            }
        }
        let refused = self.ledger.last_refusals(tenant.number, user.clone()).await?;
        let refused = (0..).zip(&refused).filter(|(_, call)| instants.contains(&call.at));
        calls.extend(refused.filter_map(|(number, call)| PastCall::of_refused(call, number)));
        calls.sort_by_key(|call| call.at);
        Ok(calls)
    }
}

impl Preview {
    fn add(&mut self, felt: Felt) {
        self.refused.users += u64::from(felt.refused > 0);
        self.refused.calls += felt.refused;
        self.relieved.users += u64::from(felt.relieved > 0);
        self.relieved.calls += felt.relieved;
        self.over.users += u64::from(!felt.over.is_empty());
        for limit in &felt.over {
            *self.over.by.entry(limit.clone()).or_default() += 1;
        }
        if felt.refused + felt.relieved > 0 || !felt.over.is_empty() {
            self.most.push(felt);
        }
    }
}

/// A plan whose one version is this sheet.
fn alone(sheet: Sheet, catalog: &Catalog) -> Plan {
    let record = VersionRecord { version: 1, written_at: Millis(0), revision: 0, terms: VersionTerms::PLAIN };
    let id = sheet.id.clone();
    Plan::new(id, vec![Arc::new(PlanVersion::new(sheet, record, &catalog.models))])
}
