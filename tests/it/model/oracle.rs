//! A second, slow Apportion, written from the contract alone.
//!
//! It takes the same JSON requests as the service and predicts the replies. Nothing here is
//! shared with `src/`, nothing is fast and nothing is clever: where the service keeps running
//! figures, the model adds up its holds again; where the service computes a border, the model
//! searches for it. What the contract leaves open is marked as one of several values (see
//! `expect`), so that a difference always means that somebody is wrong.

mod books;
pub mod calendar;
pub mod cells;
mod check;
pub mod doubt;
pub mod expect;
mod extend;
mod finish;
mod judge;
mod quota;
mod rights;
pub mod sheet;
pub mod terms;
mod time;
mod usage;
mod view;
pub mod window;

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};

use calendar::{HOUR_MS, Ms};
use cells::{Cell, HoldNo};
use doubt::Then;
use expect::Expected;
use sheet::{Amounts, Limit, Model, Pool};
use terms::{Standing, User, Version};
use window::{Rule, Span};

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Held,
    /// Since when.
    InDoubt(Ms),
    /// Ended by the tenant's rule: takes one later settle or release.
    Ruled(Then),
    /// Ended by an admin, for good.
    Resolved(Then),
    Settled,
    Released,
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
    /// The user's at the check.
    pub org: Option<String>,
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
    /// What the limits count of it since its end; while it is open they hold what is reserved.
    pub counted: Option<Amounts>,
    /// The admin's word, without the reason.
    pub resolved: Option<Value>,
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
    /// What grants add to it now.
    pub granted: i128,
}

#[derive(Clone)]
pub struct Oracle {
    pub now: Ms,
    pub zone: String,
    pub default_plan: Option<String>,
    pub max_hold_ms: Ms,
    pub max_tokens_per_call: i128,
    pub in_doubt_ms: Ms,
    pub in_doubt_then: Then,
    /// What a spent allowance is answered with.
    pub denial_status: u16,
    /// Decides everything and refuses nothing.
    pub shadow: bool,
    pub plans: BTreeMap<String, Vec<Version>>,
    pub pools: Vec<Pool>,
    pub models: Vec<Model>,
    pub users: BTreeMap<String, User>,
    pub orgs: BTreeMap<String, Standing>,
    /// With the limit as it last ran.
    pub cells: BTreeMap<CellKey, (Cell, Limit)>,
    pub holds: Vec<Hold>,
    by_request: HashMap<(String, String), (Value, HoldNo)>,
    usage: HashMap<String, Value>,
    /// What use without a hold has put into windows.
    booked: Vec<(CellKey, Span, i128)>,
    /// By cell: how often a shadow limit would have refused, at least and at most.
    pub would_refuse: BTreeMap<CellKey, (u64, u64)>,
    order: u64,
    /// Set when something came about that the contract leaves open.
    pub blurred: bool,
    /// Whether the tenant's zone was ever changed.
    zones_changed: bool,
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
            in_doubt_then: Then::Charge,
            denial_status: 429,
            shadow: false,
            plans: BTreeMap::new(),
            pools: Vec::new(),
            models: Vec::new(),
            users: BTreeMap::new(),
            orgs: BTreeMap::new(),
            cells: BTreeMap::new(),
            holds: Vec::new(),
            by_request: HashMap::new(),
            usage: HashMap::new(),
            booked: Vec::new(),
            would_refuse: BTreeMap::new(),
            order: 0,
            blurred: false,
            zones_changed: false,
        }
    }

    /// Whether two sessions of some cell overlap, one having been opened in the past: which one
    /// is current then is left open, so a run ends there.
    pub fn is_blurred(&self) -> bool {
        self.blurred
            || self.cells.values().any(|(cell, _)| match cell {
                Cell::Window(window) => window.sessions_overlap(),
                _ => false,
            })
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
    pub fn set_plan(&mut self, user: &str, plan: &str) -> Expected {
        self.move_user(user, &json!({"plan": plan, "effective": "now"}))
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

    /// The limits that a check is asked of: user, org, tenant, then the pool.
    pub fn asked(&self, user: &str, model: Option<&str>, feature: Option<&str>, bulk: bool) -> Vec<Asked> {
        self.asked_within(user, self.user(user).org, model, feature, bulk)
    }

    /// The same for a member of some org.
    pub fn asked_within(
        &self,
        user: &str,
        org: Option<String>,
        model: Option<&str>,
        feature: Option<&str>,
        bulk: bool,
    ) -> Vec<Asked> {
        let model = self.canonical(model);
        let mut all: Vec<Asked> = self
            .limits_within(user, org)
            .into_iter()
            .filter(|a| a.limit.matches(model.as_deref(), feature))
            .collect();
        if let Some(pool) = self.pool_for(model.as_deref()).filter(|p| p.enforced) {
            for limit in &pool.limits {
                all.push(Asked {
                    key: (Account::Pool(pool.id.clone()), limit.identity.clone()),
                    rule: Rule { zone: self.zone.clone(), calendar: None },
                    granted: 0,
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
            .map(|(cell, _)| cell.clone())
            .unwrap_or_else(|| Cell::fresh(&asked.limit, asked.rule.clone(), self.now))
    }

    fn cell_mut(&mut self, asked: &Asked) -> &mut Cell {
        let now = self.now;
        let fresh = || (Cell::fresh(&asked.limit, asked.rule.clone(), now), asked.limit.clone());
        &mut self.cells.entry(asked.key.clone()).or_insert_with(fresh).0
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
