//! Sheets, pools and models as the model reads them from the JSON that was put to the service.

use std::collections::BTreeMap;

use serde_json::Value;

use super::calendar::{DAY_MS, HOUR_MS, Ms};

/// What one call asks of each meter.
pub type Amounts = BTreeMap<String, i128>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    User,
    Org,
    Tenant,
    Pool,
}

impl Scope {
    pub fn word(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Org => "org",
            Self::Tenant => "tenant",
            Self::Pool => "pool",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforce {
    Hard,
    Soft,
    Shadow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    Day,
    Week,
    Month,
    Tiles(Ms),
    Session(Ms),
    Lifetime,
}

impl Period {
    pub fn rank_ms(self) -> Ms {
        match self {
            Self::Day => DAY_MS,
            Self::Week => 7 * DAY_MS,
            Self::Month => 30 * DAY_MS,
            Self::Tiles(n) | Self::Session(n) => n,
            Self::Lifetime => Ms::MAX,
        }
    }

    pub fn exhausted_code(self) -> &'static str {
        match self {
            Self::Day => "daily_quota_exhausted",
            Self::Week => "weekly_quota_exhausted",
            Self::Month => "monthly_quota_exhausted",
            _ => "quota_exhausted",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bucket { capacity: i128, refill: i128 },
    Window { limit: i128, period: Period },
    Slots { limit: i128 },
}

#[derive(Clone, Debug)]
pub struct Limit {
    pub name: String,
    pub kind: Kind,
    /// Empty for slots.
    pub meter: String,
    pub scope: Scope,
    pub models: Vec<String>,
    pub features: Vec<String>,
    pub enforce: Enforce,
    pub zone: Option<String>,
    pub anchored: bool,
    pub warn_at_ppm: Vec<i128>,
    /// What makes two limits the same cell: everything but the figures.
    pub identity: String,
}

impl Limit {
    /// The limit's number: capacity, limit or places.
    pub fn number(&self) -> i128 {
        match self.kind {
            Kind::Bucket { capacity, .. } => capacity,
            Kind::Window { limit, .. } | Kind::Slots { limit } => limit,
        }
    }

    pub fn kind_word(&self) -> &'static str {
        match self.kind {
            Kind::Bucket { .. } => "bucket",
            Kind::Window { .. } => "window",
            Kind::Slots { .. } => "slots",
        }
    }

    pub fn period_rank(&self) -> Ms {
        match self.kind {
            Kind::Window { period, .. } => period.rank_ms(),
            _ => 0,
        }
    }

    pub fn filtered(&self) -> bool {
        !self.models.is_empty() || !self.features.is_empty()
    }

    pub fn matches(&self, model: Option<&str>, feature: Option<&str>) -> bool {
        one_matches(&self.models, model) && one_matches(&self.features, feature)
    }

    /// The same limit with other figures, where an override names them.
    pub fn overridden(&self, figures: &Value) -> Self {
        let mut limit = self.clone();
        limit.kind = match self.kind {
            Kind::Bucket { capacity, refill } => Kind::Bucket {
                capacity: number(figures, "capacity").unwrap_or(capacity),
                refill: number(figures, "refill_per_minute").unwrap_or(refill),
            },
            Kind::Window { limit, period } => {
                Kind::Window { limit: number(figures, "limit").unwrap_or(limit), period }
            }
            Kind::Slots { limit } => Kind::Slots { limit: number(figures, "limit").unwrap_or(limit) },
        };
        limit
    }

    /// Whether it gives less than `other`, in any figure.
    fn gives_less_than(&self, other: &Self) -> bool {
        match (self.kind, other.kind) {
            (Kind::Bucket { capacity, refill }, Kind::Bucket { capacity: most, refill: fastest }) => {
                capacity < most || refill < fastest
            }
            _ => self.number() < other.number(),
        }
    }

    /// What a call with these amounts takes from this limit.
    pub fn demand(&self, amounts: &Amounts) -> i128 {
        match self.kind {
            Kind::Slots { .. } => 1,
            _ => amounts.get(&self.meter).copied().unwrap_or(0),
        }
    }

    fn read(value: &Value, scope: Option<Scope>) -> Option<Self> {
        let name = text(value, "name").expect("a limit has a name");
        let kind_word = text(value, "kind").expect("a limit has a kind");
        let period = value.get("period").filter(|p| !p.is_null()).map(read_period);
        let kind = match kind_word.as_str() {
            "bucket" => Kind::Bucket {
                capacity: number(value, "capacity")?,
                refill: number(value, "refill_per_minute")?,
            },
            "window" => Kind::Window {
                limit: number(value, "limit")?,
                period: period.expect("a window has a period"),
            },
            "slots" => Kind::Slots { limit: number(value, "limit")? },
            other => panic!("the model knows no {other}"),
        };
        let scope = scope.unwrap_or_else(|| match text(value, "scope").as_deref() {
            None | Some("user") => Scope::User,
            Some("org") => Scope::Org,
            Some("tenant") => Scope::Tenant,
            Some(other) => panic!("no scope {other}"),
        });
        let enforce = match text(value, "enforce").as_deref() {
            None | Some("hard") => Enforce::Hard,
            Some("soft") => Enforce::Soft,
            Some("shadow") => Enforce::Shadow,
            Some(other) => panic!("no enforce {other}"),
        };
        let meter = text(value, "meter").unwrap_or_default();
        let models = list(value, "models");
        let features = list(value, "features");
        let identity = format!("{name}|{kind_word}|{meter}|{period:?}|{scope:?}|{models:?}|{features:?}");
        let warn_at_ppm = value
            .get("warn_at")
            .and_then(Value::as_array)
            .map(|a| a.iter().map(ppm).collect())
            .unwrap_or_default();
        Some(Self {
            name,
            kind,
            meter,
            scope,
            models,
            features,
            enforce,
            zone: text(value, "zone"),
            anchored: text(value, "anchor").as_deref() == Some("user"),
            warn_at_ppm,
            identity,
        })
    }
}

#[derive(Clone, Debug)]
pub struct Sheet {
    pub id: String,
    pub weight_ppm: i128,
    pub requires_verified: bool,
    pub max_input: Option<i128>,
    pub max_output: Option<i128>,
    pub limits: Vec<Limit>,
}

impl Sheet {
    pub fn read(value: &Value) -> Self {
        let caps = value.get("per_call").cloned().unwrap_or(Value::Null);
        Self {
            id: text(value, "id").expect("a sheet has an id"),
            weight_ppm: value.get("cache_read_weight").map_or(1_000_000, ppm),
            requires_verified: value.get("requires_verified").and_then(Value::as_bool).unwrap_or(false),
            max_input: number(&caps, "max_input_tokens"),
            max_output: number(&caps, "max_output_tokens"),
            limits: limits(value, None),
        }
    }

    /// Whether going from `before` to this one is a downgrade: any limit or cap present in both
    /// becomes smaller, or a hard limit appears.
    pub fn is_downgrade_from(&self, before: &Self) -> bool {
        let smaller_cap =
            |now: Option<i128>, then: Option<i128>| now.zip(then).is_some_and(|(now, then)| now < then);
        let worse = |limit: &Limit| match before.limits.iter().find(|l| l.identity == limit.identity) {
            Some(other) => limit.gives_less_than(other),
            None => limit.enforce == Enforce::Hard,
        };
        smaller_cap(self.max_input, before.max_input)
            || smaller_cap(self.max_output, before.max_output)
            || self.limits.iter().any(worse)
    }
}

#[derive(Clone, Debug)]
pub struct Pool {
    pub id: String,
    pub models: Vec<String>,
    pub enforced: bool,
    pub share_ppm: i128,
    pub limits: Vec<Limit>,
}

impl Pool {
    pub fn read(value: &Value) -> Self {
        Self {
            id: text(value, "id").expect("a pool has an id"),
            models: list(value, "models"),
            enforced: value.get("enforced").and_then(Value::as_bool).unwrap_or(true),
            share_ppm: value.get("interactive_share").map_or(300_000, ppm),
            limits: limits(value, Some(Scope::Pool)),
        }
    }

    /// What bulk calls must leave of a limit of this pool.
    pub fn kept(&self, limit: &Limit) -> i128 {
        (limit.number() * self.share_ppm).div_ceil_by(1_000_000)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    pub id: String,
    pub aliases: Vec<String>,
    pub input: i128,
    pub output: i128,
    pub cache_read: i128,
    pub cache_write: i128,
}

impl Model {
    pub fn read(value: &Value) -> Self {
        let input = number(value, "input").unwrap_or(0);
        Self {
            id: text(value, "id").expect("a model has an id"),
            aliases: list(value, "aliases"),
            input,
            output: number(value, "output").unwrap_or(0),
            cache_read: number(value, "cache_read").unwrap_or(0),
            cache_write: number(value, "cache_write").unwrap_or(input),
        }
    }
}

/// Division of whole numbers, rounded up.
pub trait DivCeil {
    fn div_ceil_by(self, by: i128) -> i128;
}

impl DivCeil for i128 {
    fn div_ceil_by(self, by: i128) -> i128 {
        let down = self.div_euclid(by);
        if down * by == self { down } else { down + 1 }
    }
}

fn limits(value: &Value, scope: Option<Scope>) -> Vec<Limit> {
    value
        .get("limits")
        .and_then(Value::as_array)
        .map(|a| a.iter().filter_map(|l| Limit::read(l, scope)).collect())
        .unwrap_or_default()
}

fn read_period(value: &Value) -> Period {
    if let Some(word) = value.as_str() {
        return match word {
            "day" => Period::Day,
            "week" => Period::Week,
            "month" => Period::Month,
            "lifetime" => Period::Lifetime,
            other => panic!("no period {other}"),
        };
    }
    let count = |name: &str| value.get(name).and_then(Value::as_i64);
    if let Some(n) = count("hours") {
        Period::Tiles(n * HOUR_MS)
    } else if let Some(n) = count("days") {
        Period::Tiles(n * DAY_MS)
    } else {
        Period::Session(count("session_hours").expect("a period") * HOUR_MS)
    }
}

pub fn text(value: &Value, name: &str) -> Option<String> {
    value.get(name).and_then(Value::as_str).map(str::to_owned)
}

pub fn number(value: &Value, name: &str) -> Option<i128> {
    value.get(name).and_then(Value::as_i64).map(i128::from)
}

fn list(value: &Value, name: &str) -> Vec<String> {
    value
        .get(name)
        .and_then(Value::as_array)
        .map(|a| a.iter().filter_map(|v| v.as_str().map(str::to_owned)).collect())
        .unwrap_or_default()
}

/// A share such as 0.35 in parts per million.
fn ppm(value: &Value) -> i128 {
    (value.as_f64().expect("a share") * 1e6).round() as i128
}

fn one_matches(globs: &[String], asked: Option<&str>) -> bool {
    match asked {
        None => globs.is_empty() || globs.iter().any(|g| g == "*"),
        Some(asked) => globs.is_empty() || globs.iter().any(|g| glob(g.as_bytes(), asked.as_bytes())),
    }
}

/// `*` stands for any text, `?` for one letter; case does not count.
pub fn glob(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.split_first(), text.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => (0..=text.len()).any(|n| glob(rest, &text[n..])),
        (Some((b'?', rest)), Some((_, tail))) => glob(rest, tail),
        (Some((p, rest)), Some((t, tail))) => p.eq_ignore_ascii_case(t) && glob(rest, tail),
        _ => false,
    }
}
