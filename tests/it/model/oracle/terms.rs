//! Whose limits with which figures: versions of plans, overrides, grants, orgs (CONTRACT 3, 13.29-13.34).
//!
//! A user's version in force is kept, not computed: every command and every instant at which it
//! changes sets it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::calendar::{Calendar, Ms};
use super::cells::Cell;
use super::sheet::{self, Limit, Period, Scope, Sheet};
use super::window::Rule;
use super::{Account, Asked, CellKey, Oracle};

/// When a version begins to hold for those who stand on the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applies {
    Now,
    NextWindow,
    At(Ms),
}

#[derive(Clone, Debug)]
pub struct Version {
    pub sheet: Sheet,
    pub applies: Applies,
    pub everyone: bool,
    pub written: Ms,
    /// Counts writes and users alike: who was there first.
    pub order: u64,
}

#[derive(Clone, Debug)]
pub struct Override {
    pub figures: Value,
    pub expires: Option<Ms>,
}

#[derive(Clone, Debug)]
pub struct Grant {
    pub id: String,
    pub limit: String,
    pub amount: i128,
    /// What windows that ended have left of it.
    pub left: i128,
    pub given: Ms,
    pub expires: Option<Ms>,
}

impl Grant {
    pub fn lives_at(&self, at: Ms) -> bool {
        self.given <= at && self.expires.is_none_or(|end| at < end)
    }
}

/// What a user or an org has: a plan, and what stands beside it.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    pub plan: Option<String>,
    /// The version in force, counted from 0.
    pub version: usize,
    /// A version of the same plan that is to come, and when.
    pub waiting: Option<(usize, Ms)>,
    pub overrides: BTreeMap<String, Override>,
    pub grants: Vec<Grant>,
    pub zone: Option<String>,
    pub created: Ms,
    pub order: u64,
}

#[derive(Clone, Debug, Default)]
pub struct User {
    pub standing: Standing,
    /// Moves to come: the change that is pending, and what follows a trial.
    pub pending: Vec<(Ms, String)>,
    pub sequence: Option<i64>,
    pub org: Option<String>,
    pub anchor_day: Option<u8>,
    pub verified: bool,
    pub suspended: bool,
    pub zone_changed: bool,
}

impl Standing {
    fn override_of(&self, limit: &Limit, now: Ms) -> Limit {
        match self.overrides.get(&limit.name) {
            Some(over) if over.expires.is_none_or(|end| now < end) => limit.overridden(&over.figures),
            _ => limit.clone(),
        }
    }

    fn granted(&self, limit: &str, now: Ms) -> i128 {
        self.grants.iter().filter(|g| g.limit == limit && g.lives_at(now)).map(|g| g.left).sum()
    }

    /// Instants at which something ends or begins.
    pub fn instants(&self) -> Vec<Ms> {
        let waiting = self.waiting.map(|w| w.1);
        let overrides = self.overrides.values().filter_map(|o| o.expires);
        let grants = self.grants.iter().filter_map(|g| g.expires);
        waiting.into_iter().chain(overrides).chain(grants).collect()
    }
}

impl Oracle {
    /// The user on record, or what a newcomer would be.
    pub fn user(&self, user: &str) -> User {
        self.users.get(user).cloned().unwrap_or_else(|| {
            let mut new = User::default();
            new.standing.created = self.now;
            new.standing.order = self.order + 1;
            self.arrive(&mut new.standing, self.default_plan.as_deref(), self.now);
            new
        })
    }

    /// Puts a user on record, if need be.
    pub fn know(&mut self, user: &str) -> &mut User {
        if !self.users.contains_key(user) {
            let new = self.user(user);
            self.order += 1;
            self.users.insert(user.to_owned(), new);
        }
        self.users.get_mut(user).expect("just put there")
    }

    /// Whoever comes to a plan gets the newest version that is for him, but for those that wait
    /// for an instant (13.78).
    pub fn arrive(&self, standing: &mut Standing, plan: Option<&str>, at: Ms) {
        let Some(versions) = plan.and_then(|id| self.plans.get(id)) else { return };
        standing.waiting = None;
        // A version that still waited when a newer one was put never comes.
        let mut put_next = Ms::MAX;
        for (n, version) in versions.iter().enumerate().rev() {
            if !version.everyone && standing.order < version.order {
                continue;
            }
            match version.applies {
                Applies::At(then) if then > at => {
                    standing.waiting = standing.waiting.or(Some((n, then)));
                }
                Applies::At(then) if then > put_next => {}
                _ => {
                    standing.version = n;
                    return;
                }
            }
            put_next = version.written;
        }
    }

    pub fn plan_id(&self, user: &str) -> Option<String> {
        self.users.get(user).and_then(|u| u.standing.plan.clone()).or_else(|| self.default_plan.clone())
    }

    pub fn plan(&self, user: &str) -> (&Sheet, u64) {
        let id = self.plan_id(user).expect("the model's tenants have a default plan");
        let version = self.user(user).standing.version;
        (&self.plans[&id][version].sheet, version as u64 + 1)
    }

    /// All limits of the user's plan, whatever they are narrowed to, user's first.
    pub fn plan_limits(&self, user: &str) -> Vec<Asked> {
        self.limits_within(user, self.user(user).org)
    }

    /// The same for a member of some org: of a hold, the one its user was in.
    pub fn limits_within(&self, user: &str, org: Option<String>) -> Vec<Asked> {
        let entry = self.user(user);
        let own_sheet = org.as_deref().is_some_and(|o| self.org_sheet(o).is_some());
        let mut all: Vec<Asked> = Vec::new();
        for limit in &self.plan(user).0.limits {
            match limit.scope {
                Scope::User => {
                    let account = Account::User(user.to_owned());
                    all.push(self.ask(limit, account, &entry.standing));
                }
                Scope::Org if !own_sheet => {
                    if let Some(org) = &org {
                        all.push(self.ask(limit, Account::Org(org.clone()), &self.org(org)));
                    }
                }
                Scope::Tenant => all.push(self.ask(limit, Account::Tenant, &Standing::default())),
                _ => {}
            }
        }
        if let (Some(org), true) = (&org, own_sheet) {
            all.extend(self.org_limits(org));
        }
        all.sort_by_key(|a| a.limit.scope);
        all
    }

    fn ask(&self, limit: &Limit, account: Account, standing: &Standing) -> Asked {
        let limit = standing.override_of(limit, self.now);
        Asked {
            rule: self.rule(&limit, &account),
            granted: standing.granted(&limit.name, self.now),
            key: (account, limit.identity.clone()),
            limit,
            kept: 0,
        }
    }

    pub fn org(&self, org: &str) -> Standing {
        self.orgs.get(org).cloned().unwrap_or_default()
    }

    pub fn org_sheet(&self, org: &str) -> Option<(&Sheet, u64)> {
        let standing = self.orgs.get(org)?;
        let versions = &self.plans[standing.plan.as_ref()?];
        Some((&versions[standing.version].sheet, standing.version as u64 + 1))
    }

    /// The limits of an org's own sheet.
    pub fn org_limits(&self, org: &str) -> Vec<Asked> {
        let Some((sheet, _)) = self.org_sheet(org) else { return Vec::new() };
        let standing = self.org(org);
        sheet
            .limits
            .iter()
            .filter(|l| l.scope == Scope::Org)
            .map(|l| self.ask(l, Account::Org(org.to_owned()), &standing))
            .collect()
    }

    pub fn rule(&self, limit: &Limit, account: &Account) -> Rule {
        let (own_zone, anchor_day) = match account {
            Account::User(user) => {
                let user = self.users.get(user);
                (user.and_then(|u| u.standing.zone.clone()), user.and_then(|u| u.anchor_day))
            }
            Account::Org(org) => (self.org(org).zone, None),
            _ => (None, None),
        };
        let zone = limit.zone.clone().or(own_zone).unwrap_or_else(|| self.zone.clone());
        let anchor = if limit.anchored { anchor_day.unwrap_or(1) } else { 1 };
        let calendar = match limit.kind {
            sheet::Kind::Window { period: Period::Day, .. } => Some(Calendar::Day),
            sheet::Kind::Window { period: Period::Week, .. } => Some(Calendar::Week),
            sheet::Kind::Window { period: Period::Month, .. } => Some(Calendar::Month(anchor)),
            _ => None,
        };
        Rule { zone, calendar }
    }

    /// The end of the running month: of the plan's first month limit, else of the calendar's.
    pub fn month_end(&self, user: &str) -> Ms {
        self.month(user, self.now).1
    }

    /// The end of the month around `at`, and whether something was taken in it, so that it stands.
    fn month(&self, user: &str, at: Ms) -> (bool, Ms) {
        let month = self.plan_limits(user).into_iter().find(|a| {
            a.limit.scope == Scope::User
                && matches!(a.limit.kind, sheet::Kind::Window { period: Period::Month, .. })
        });
        if let Some(Cell::Window(window)) = month.map(|a| self.cell(&a)) {
            return (window.ever_taken, window.running(at).expect("a month always runs").1);
        }
        let zone = self.user(user).standing.zone.unwrap_or_else(|| self.zone.clone());
        (false, Calendar::Month(1).window(&zone, at).1)
    }

    /// A zone or an anchor has changed: months in which nothing was taken end elsewhere, and with
    /// them the wait of versions.
    pub fn reschedule(&mut self) {
        let names: Vec<String> = self.users.keys().cloned().collect();
        for name in names {
            let standing = &self.users[&name].standing;
            let (Some((n, _)), Some(plan)) = (standing.waiting, self.plan_id(&name)) else { continue };
            let version = &self.plans[&plan][n];
            let (taken, end) = self.month(&name, version.written);
            self.blurred |= version.applies == Applies::NextWindow && self.month_is_open(&name);
            if version.applies == Applies::NextWindow && !taken {
                let standing = &mut self.users.get_mut(&name).expect("on record").standing;
                standing.waiting = Some((n, end));
                standing.wake(self.now);
            }
        }
        self.retune();
    }

    /// From now on every cell that its owner alone decides on runs by the figures of now.
    pub fn retune(&mut self) {
        self.tune(false);
    }

    /// `by_itself`: at an instant that has come, so that a window that turns there is the first
    /// of the new terms.
    pub fn tune(&mut self, by_itself: bool) {
        let now = self.now;
        let mut present: Vec<Asked> = Vec::new();
        for user in self.users.keys() {
            present.extend(self.plan_limits(user).into_iter().filter(|a| a.limit.scope == Scope::User));
        }
        for org in self.orgs.keys() {
            present.extend(self.org_limits(org));
        }
        for asked in &present {
            if let Some((cell, limit)) = self.cells.get_mut(&asked.key) {
                if let Cell::Bucket(bucket) = cell {
                    bucket.advance(now);
                    bucket.refill = super::refill_of(&asked.limit);
                }
                *limit = asked.limit.clone();
            }
        }
        // Which windows a limit has that was not in the plan while its zone changed is left open.
        let rules: Vec<(CellKey, Rule)> =
            self.cells.iter().map(|(key, (_, limit))| (key.clone(), self.rule(limit, &key.0))).collect();
        for (key, rule) in rules {
            let absent = matches!(key.0, Account::User(_)) && !present.iter().any(|a| a.key == key);
            let Some((Cell::Window(window), _)) = self.cells.get_mut(&key) else { continue };
            if absent {
                window.aside = true;
            } else {
                self.blurred |= window.aside && window.ever_taken && window.rule != rule;
                window.aside = false;
                window.change_rule(now, rule, by_itself);
            }
        }
    }

    /// Whether the month of this user has no limit that says where it ends, and his zone has
    /// changed: which of the two tells the calendar month is left open.
    pub fn month_is_open(&self, user: &str) -> bool {
        let is_month = |a: &Asked| {
            a.limit.scope == Scope::User
                && matches!(a.limit.kind, sheet::Kind::Window { period: Period::Month, .. })
        };
        let moved = self.zones_changed || self.users.get(user).is_some_and(|u| u.zone_changed);
        moved && !self.plan_limits(user).iter().any(is_month)
    }

    /// Whether something was taken from windows that are not in the plan of one of these users.
    pub fn any_window_aside(&self, users: &[&str]) -> bool {
        users.iter().any(|user| {
            let present = self.plan_limits(user);
            self.cells.iter().any(|(key, (cell, _))| {
                let Cell::Window(window) = cell else { return false };
                key.0 == Account::User((*user).to_owned())
                    && window.ever_taken
                    && present.iter().all(|a| a.key != *key)
            })
        })
    }
}
