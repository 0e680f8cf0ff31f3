//! A second, slow Apportion, written from the contract alone.
//!
//! It takes the same JSON requests as the service and predicts the replies. Nothing here is
//! shared with `src/`, nothing is fast and nothing is clever: where the service keeps running
//! figures, the model adds up its holds again; where the service computes a border, the model
//! searches for it. What the contract leaves open is marked as one of several values (see
//! `expect`), so that a difference always means that somebody is wrong.

pub mod calendar;
pub mod cells;
mod check;
pub mod expect;
mod extend;
mod finish;
mod judge;
mod quota;
pub mod sheet;
mod usage;
mod view;

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use calendar::{Calendar, HOUR_MS, Ms};
use cells::{Cell, HoldNo, Rule, Span};
use sheet::{Amounts, Limit, Model, Period, Pool, Scope, Sheet};

/// Whose count it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Account {
    User(String),
    Org(String),
    Tenant,
    Pool(String),
}

/// A cell's name: whose account, and which limit whatever its figures.
pub type CellKey = (Account, String);

#[derive(Clone, Debug, Default)]
pub struct User {
    pub plan: Option<String>,
    pub org: Option<String>,
    pub zone: Option<String>,
    pub anchor_day: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Held,
    /// Since when.
    InDoubt(Ms),
    /// Charged by the tenant's rule: takes one later settle or release.
    Ruled(Ms),
    Settled(Ms),
    Released(Ms),
}

/// What a hold took from one cell, and from which window.
#[derive(Clone, Debug)]
pub struct Receipt {
    pub key: CellKey,
    pub limit: Limit,
    pub reserved: i128,
    pub window: Option<Span>,
    /// What bulk calls leave of it; 0 outside pools.
    pub kept: i128,
}

#[derive(Clone, Debug)]
pub struct Hold {
    pub user: String,
    pub request_id: Option<String>,
    pub model: Option<String>,
    pub feature: Option<String>,
    pub created: Ms,
    pub expires: Ms,
    pub lease_ms: Ms,
    pub state: State,
    pub input: i128,
    pub output: i128,
    pub amounts: BTreeMap<String, i128>,
    pub receipts: Vec<Receipt>,
    pub progress: i128,
    pub weight_ppm: i128,
    pub output_cap: Option<i128>,
    pub late: bool,
    pub granted: Value,
    pub settled: Option<Settled>,
    pub extends: HashMap<String, Value>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    pub input: i128,
    pub output: i128,
    pub cache_read: i128,
    pub model: Option<String>,
    pub counted: Amounts,
    /// What was sent; repeats send the same.
    pub body: Value,
}

/// One limit of a check at hand.
#[derive(Clone, Debug)]
pub struct Asked {
    pub limit: Limit,
    pub key: CellKey,
    pub rule: Rule,
    pub kept: i128,
}

pub struct Oracle {
    pub now: Ms,
    pub zone: String,
    pub default_plan: Option<String>,
    pub max_hold_ms: Ms,
    pub max_tokens_per_call: i128,
    pub in_doubt_ms: Ms,
    pub plans: BTreeMap<String, (Sheet, u64)>,
    pub pools: Vec<Pool>,
    pub models: Vec<Model>,
    pub users: BTreeMap<String, User>,
    pub cells: BTreeMap<CellKey, Cell>,
    pub holds: Vec<Hold>,
    by_request: HashMap<(String, String), (Value, HoldNo)>,
    usage: HashMap<String, Value>,
    /// By cell: how often a shadow limit would have refused, at least and at most.
    pub would_refuse: BTreeMap<CellKey, (u64, u64)>,
}

impl Oracle {
    pub fn new(zone: &str, now: Ms) -> Self {
        Self {
            now,
            zone: zone.to_owned(),
            default_plan: Some("free".to_owned()),
            max_hold_ms: HOUR_MS,
            max_tokens_per_call: 10_000_000,
            in_doubt_ms: 72 * HOUR_MS,
            plans: BTreeMap::new(),
            pools: Vec::new(),
            models: Vec::new(),
            users: BTreeMap::new(),
            cells: BTreeMap::new(),
            holds: Vec::new(),
            by_request: HashMap::new(),
            usage: HashMap::new(),
            would_refuse: BTreeMap::new(),
        }
    }

    /// The clock moves on: leases end, doubts are resolved, buckets refill.
    pub fn set_clock(&mut self, now: Ms) {
        assert!(now >= self.now, "the model's clock only goes forward");
        self.now = now;
        for cell in self.cells.values_mut() {
            cell.advance(now);
        }
        for no in 0..self.holds.len() {
            self.age(no);
        }
    }

    /// Whether two sessions of some cell overlap, one having been opened in the past: which one
    /// is current then is left open, so a run ends there.
    pub fn is_blurred(&self) -> bool {
        self.cells.values().any(|cell| match cell {
            Cell::Window(window) => window.sessions_overlap(),
            _ => false,
        })
    }

    fn age(&mut self, no: HoldNo) {
        let (now, in_doubt_ms) = (self.now, self.in_doubt_ms);
        let hold = &mut self.holds[no];
        if hold.state == State::Held && now >= hold.expires {
            hold.state = State::InDoubt(hold.expires);
        }
        let State::InDoubt(since) = hold.state else { return };
        if now < since + in_doubt_ms {
            return;
        }
        hold.state = State::Ruled(since + in_doubt_ms);
        for receipt in hold.receipts.clone() {
            if let (Cell::Window(window), true, Some(span)) = (
                self.cells.get_mut(&receipt.key).expect("a receipt has a cell"),
                holding(&receipt.limit.meter),
                receipt.window,
            ) {
                let book = window.book_mut(span);
                book.held -= receipt.reserved;
                book.used += receipt.reserved;
            }
        }
    }

    /// A plan is put, or put again: everyone on it has the new figures from now on.
    pub fn put_plan(&mut self, sheet: &Value) {
        let sheet = Sheet::read(sheet);
        let id = sheet.id.clone();
        let version = self.plans.get(&id).map_or(1, |(_, v)| v + 1);
        self.plans.insert(id.clone(), (sheet, version));
        let on_it: Vec<String> = self
            .cells
            .keys()
            .filter_map(|(a, _)| match a {
                Account::User(u) => Some(u.clone()),
                _ => None,
            })
            .collect();
        for user in on_it {
            if self.plan_id(&user).as_deref() == Some(id.as_str()) {
                self.take_over_figures(&user);
            }
        }
    }

    pub fn put_pool(&mut self, pool: &Value) {
        let pool = Pool::read(pool);
        self.pools.retain(|p| p.id != pool.id);
        self.pools.push(pool);
    }

    pub fn put_models(&mut self, models: &[Value]) {
        self.models = models.iter().map(Model::read).collect();
    }

    /// The user stands on another sheet from now on.
    pub fn set_plan(&mut self, user: &str, plan: &str) {
        assert!(self.plans.contains_key(plan), "the model knows no plan {plan}");
        self.users.entry(user.to_owned()).or_default().plan = Some(plan.to_owned());
        self.take_over_figures(user);
    }

    pub fn set_org(&mut self, user: &str, org: &str) {
        self.users.entry(user.to_owned()).or_default().org = Some(org.to_owned());
    }

    /// The user's zone or anchor changes; running windows keep their end.
    pub fn set_calendar(&mut self, user: &str, zone: Option<&str>, anchor_day: Option<u8>) {
        let entry = self.users.entry(user.to_owned()).or_default();
        if let Some(zone) = zone {
            entry.zone = Some(zone.to_owned());
        }
        if anchor_day.is_some() {
            entry.anchor_day = anchor_day;
        }
        for asked in self.plan_limits(user) {
            if let (Some(Cell::Window(window)), Scope::User) =
                (self.cells.get_mut(&asked.key), asked.limit.scope)
            {
                window.change_rule(self.now, asked.rule);
            }
        }
    }

    /// From now on the user's own buckets refill by the figures of the plan of now.
    fn take_over_figures(&mut self, user: &str) {
        let now = self.now;
        for asked in self.plan_limits(user) {
            if asked.limit.scope != Scope::User {
                continue;
            }
            match self.cells.get_mut(&asked.key) {
                Some(Cell::Bucket(bucket)) => {
                    bucket.advance(now);
                    bucket.refill = refill_of(&asked.limit);
                }
                Some(Cell::Window(window)) => window.change_rule(now, asked.rule),
                _ => {}
            }
        }
    }

    pub fn plan_id(&self, user: &str) -> Option<String> {
        self.users.get(user).and_then(|u| u.plan.clone()).or_else(|| self.default_plan.clone())
    }

    pub fn plan(&self, user: &str) -> (&Sheet, u64) {
        let id = self.plan_id(user).expect("the model's tenants have a default plan");
        let (sheet, version) = &self.plans[&id];
        (sheet, *version)
    }

    /// The name that stands for a model: itself, or what it is an alias of.
    pub fn canonical(&self, asked: Option<&str>) -> Option<String> {
        let asked = asked?;
        let found = self
            .models
            .iter()
            .find(|m| m.aliases.iter().any(|a| a.eq_ignore_ascii_case(asked)))
            .or_else(|| self.models.iter().find(|m| m.id.eq_ignore_ascii_case(asked)));
        Some(found.map_or(asked, |m| m.id.as_str()).to_ascii_lowercase())
    }

    pub fn prices(&self, model: Option<&str>) -> Model {
        let canonical = self.canonical(model);
        self.models.iter().find(|m| Some(m.id.to_ascii_lowercase()) == canonical).cloned().unwrap_or_default()
    }

    /// All limits of the user's plan, whatever they are narrowed to, user's first.
    pub fn plan_limits(&self, user: &str) -> Vec<Asked> {
        let entry = self.users.get(user).cloned().unwrap_or_default();
        let mut all: Vec<Asked> = self
            .plan(user)
            .0
            .limits
            .iter()
            .filter_map(|limit| {
                let account = match limit.scope {
                    Scope::User => Account::User(user.to_owned()),
                    Scope::Org => Account::Org(entry.org.clone()?),
                    Scope::Tenant => Account::Tenant,
                    Scope::Pool => unreachable!("a sheet has no pool limits"),
                };
                let key = (account, limit.identity.clone());
                Some(Asked { rule: self.rule(limit, &entry), limit: limit.clone(), key, kept: 0 })
            })
            .collect();
        all.sort_by_key(|a| a.limit.scope);
        all
    }

    fn rule(&self, limit: &Limit, user: &User) -> Rule {
        let own = limit.scope == Scope::User;
        let zone = limit
            .zone
            .clone()
            .or_else(|| user.zone.clone().filter(|_| own))
            .unwrap_or_else(|| self.zone.clone());
        let anchor = if limit.anchored { user.anchor_day.unwrap_or(1) } else { 1 };
        let calendar = match limit.kind {
            sheet::Kind::Window { period: Period::Day, .. } => Some(Calendar::Day),
            sheet::Kind::Window { period: Period::Week, .. } => Some(Calendar::Week),
            sheet::Kind::Window { period: Period::Month, .. } => Some(Calendar::Month(anchor)),
            _ => None,
        };
        Rule { zone, calendar }
    }

    /// The limits that a check is asked of: user, org, tenant, then the pool.
    pub fn asked(&self, user: &str, model: Option<&str>, feature: Option<&str>, bulk: bool) -> Vec<Asked> {
        let model = self.canonical(model);
        let mut all: Vec<Asked> = self
            .plan_limits(user)
            .into_iter()
            .filter(|a| a.limit.matches(model.as_deref(), feature))
            .collect();
        if let Some(pool) = self.pool_for(model.as_deref()).filter(|p| p.enforced) {
            for limit in &pool.limits {
                all.push(Asked {
                    key: (Account::Pool(pool.id.clone()), limit.identity.clone()),
                    rule: Rule { zone: self.zone.clone(), calendar: None },
                    kept: if bulk { pool.kept(limit) } else { 0 },
                    limit: limit.clone(),
                });
            }
        }
        all
    }

    /// The pool whose patterns fit best: most literal characters, then by id.
    fn pool_for(&self, model: Option<&str>) -> Option<&Pool> {
        let fit = |pattern: &str| match model {
            None => pattern == "*",
            Some(model) => sheet::glob(pattern.as_bytes(), model.as_bytes()),
        };
        self.pools
            .iter()
            .filter_map(|pool| {
                let best = pool
                    .models
                    .iter()
                    .filter(|p| fit(p))
                    .map(|p| p.chars().filter(|c| *c != '*' && *c != '?').count())
                    .max()?;
                Some((best, pool))
            })
            .max_by(|(a, x), (b, y)| a.cmp(b).then_with(|| y.id.cmp(&x.id)))
            .map(|(_, pool)| pool)
    }

    /// The cell as it stands, or as it would be made.
    pub fn cell(&self, asked: &Asked) -> Cell {
        self.cells
            .get(&asked.key)
            .cloned()
            .unwrap_or_else(|| Cell::fresh(&asked.limit, asked.rule.clone(), self.now))
    }

    fn cell_mut(&mut self, asked: &Asked) -> &mut Cell {
        let now = self.now;
        self.cells
            .entry(asked.key.clone())
            .or_insert_with(|| Cell::fresh(&asked.limit, asked.rule.clone(), now))
    }
}

/// Whether a meter is reserved first and counted when the call is over.
pub fn holding(meter: &str) -> bool {
    matches!(meter, "input_tokens" | "output_tokens" | "total_tokens" | "credits")
}

fn refill_of(limit: &Limit) -> i128 {
    match limit.kind {
        sheet::Kind::Bucket { refill, .. } => refill,
        _ => 0,
    }
}
