//! Reading one limit: what sheets and pools have in common.
//!
//! A new kind of limit is added here: a word in [`Kind`], an arm in
//! [`read_rule`], an arm in [`to_json`], a variant of [`Rule`].

use serde_json::{Map, Value, json};

use super::{Enforce, Filter, Limit, Meter, Rule, Scope, Visibility};
use crate::domain::document::{Field, Reader};
use crate::domain::ids::Label;
use crate::domain::quantity::{MAX_AMOUNT, MAX_BUCKET, MAX_SLOTS, Ppm};
use crate::domain::time::{Anchor, Period, Zone};

/// Longest block or session: a hundred years.
const MAX_HOURS: u32 = 876_000;
const MAX_DAYS: u32 = 36_500;
/// Longest `window_seconds`: a day.
pub(super) const MAX_WINDOW_SECONDS: u32 = 86_400;
/// Longest `guard_ms`: no call is on its way for longer than a minute.
const MAX_GUARD_MS: u32 = 60_000;
const MAX_GLOBS: usize = 64;
const MAX_THRESHOLDS: usize = 16;

/// Every field that a limit of any kind may have, for when its kind is unknown.
const FIELDS: [&str; 14] = [
    "scope",
    "meter",
    "capacity",
    "refill_per_minute",
    "limit",
    "period",
    "anchor",
    "zone",
    "warn_at",
    "window_seconds",
    "guard_ms",
    "vendor_limit",
    "burst_share",
    "kind",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Bucket,
    Window,
    Slots,
    Rolling,
}

impl Kind {
    const WORDS: [(&'static str, Self); 4] = [
        ("bucket", Self::Bucket),
        ("window", Self::Window),
        ("slots", Self::Slots),
        ("rolling", Self::Rolling),
    ];

    /// Reads the kind. When it is not known, which fields belong is not known
    /// either, so none of them is called unknown.
    pub(super) fn read(r: &mut Reader<'_, '_>) -> Option<Self> {
        let kind = r.required("kind").choice(&Self::WORDS);
        if kind.is_none() {
            FIELDS.iter().for_each(|name| r.skip(name));
        }
        kind
    }

    /// The fields that hold the limit's own numbers.
    pub(super) fn numbers(self) -> &'static [&'static str] {
        match self {
            Self::Bucket => &["capacity", "refill_per_minute"],
            Self::Window | Self::Slots | Self::Rolling => &["limit"],
        }
    }

    /// The largest number of this kind.
    pub(super) fn bound(self) -> u64 {
        match self {
            Self::Bucket => MAX_BUCKET,
            Self::Window | Self::Rolling => MAX_AMOUNT,
            Self::Slots => MAX_SLOTS,
        }
    }
}

/// Name, enforcement and filter: what every limit has, whatever its kind.
pub(super) struct Head {
    pub name: Label,
    pub enforce: Enforce,
    pub filter: Filter,
}

impl Head {
    pub(super) fn read(r: &mut Reader<'_, '_>) -> Option<Self> {
        let name = r.required("name").parsed(Label::parse);
        let enforce = match r.has("enforce") {
            true => r.optional("enforce").choice(&Enforce::WORDS),
            false => Some(Enforce::Hard),
        };
        let models = r.optional("models").list(MAX_GLOBS, |glob| glob.parsed(model_glob));
        let features = r.optional("features").list(MAX_GLOBS, |glob| glob.parsed(feature_glob));
        let filter = Filter { models: models.unwrap_or_default(), features: features.unwrap_or_default() };
        Some(Self { name: name?, enforce: enforce?, filter })
    }

    pub(super) fn into_limit(self, scope: Scope, rule: Rule, warn_at: Vec<Ppm>) -> Limit {
        Limit {
            name: self.name,
            scope,
            enforce: self.enforce,
            filter: self.filter,
            rule,
            warn_at,
            degrade: Vec::new(),
            visibility: Visibility::default(),
        }
    }
}

/// What the numbers of a limit say.
pub(super) enum Given<T> {
    Is(T),
    /// A number is `null`: the limit is to be left out.
    LeftOut,
}

/// Reads the figures and the period of a limit of that kind.
pub(super) fn read_rule(r: &mut Reader<'_, '_>, kind: Kind, scope: Scope) -> Option<Given<Rule>> {
    let left_out = kind.numbers().iter().any(|name| r.is_null(name));
    let rule = match kind {
        Kind::Bucket => read_bucket(r, left_out),
        Kind::Window => {
            let span = Span::read(r, scope);
            let meter = read_meter(r);
            let limit = read_number(r, "limit", MAX_AMOUNT, left_out);
            (|| Some(span?.rule(meter?, limit?)))()
        }
        Kind::Slots => {
            let limit = read_number(r, "limit", MAX_SLOTS, left_out);
            limit.map(|limit| Rule::Slots { limit })
        }
        Kind::Rolling => {
            let meter = read_meter(r);
            let limit = read_number(r, "limit", MAX_AMOUNT, left_out);
            let window_seconds = r.required("window_seconds").number(1..=MAX_WINDOW_SECONDS);
            let guard_ms = read_guard(r, window_seconds);
            if scope != Scope::Pool {
                r.fault("kind", "rolling limits are for pools: use a bucket or a window");
            }
            (|| {
                let (meter, limit, window_seconds) = (meter?, limit?, window_seconds?);
                Some(Rule::Rolling { meter, limit, window_seconds, guard_ms: guard_ms? })
            })()
        }
    };
    if left_out { Some(Given::LeftOut) } else { rule.map(Given::Is) }
}

pub(super) fn read_meter(r: &mut Reader<'_, '_>) -> Option<Meter> {
    r.required("meter").parsed(Meter::parse)
}

/// How long a call may be on its way to the vendor, who counts it when it
/// arrives. Longer than the window would be a mistake.
pub(super) fn read_guard(r: &mut Reader<'_, '_>, window_seconds: Option<u32>) -> Option<u32> {
    if !r.has("guard_ms") {
        return Some(0);
    }
    let window_ms = window_seconds.map_or(MAX_GUARD_MS, |seconds| seconds.saturating_mul(1000));
    r.optional("guard_ms").number(0..=MAX_GUARD_MS.min(window_ms))
}

fn read_number(r: &mut Reader<'_, '_>, name: &str, max: u64, may_be_null: bool) -> Option<u64> {
    if may_be_null { r.optional(name).amount(max) } else { r.required(name).amount(max) }
}

fn read_bucket(r: &mut Reader<'_, '_>, left_out: bool) -> Option<Rule> {
    let meter = read_meter(r);
    let capacity = read_number(r, "capacity", MAX_BUCKET, left_out);
    let refill = read_number(r, "refill_per_minute", MAX_BUCKET, left_out);
    if refill == Some(0) && capacity.is_some_and(|capacity| capacity > 0) {
        r.fault("refill_per_minute", "may be 0 only when capacity is 0; slower rates are written as windows");
        return None;
    }
    Some(Rule::Bucket { meter: meter?, capacity: capacity?, refill_per_minute: refill? })
}

/// How a window begins and ends, as read.
pub(super) struct Span {
    period: Period,
    anchor: Anchor,
    zone: Option<std::sync::Arc<Zone>>,
}

impl Span {
    pub(super) fn read(r: &mut Reader<'_, '_>, scope: Scope) -> Option<Self> {
        let period = read_period(r.required("period"));
        let words = [("calendar", Anchor::Calendar), ("user", Anchor::User)];
        let anchor = match r.has("anchor") {
            true => r.optional("anchor").choice(&words),
            false => Some(Anchor::Calendar),
        };
        let zone = match r.has("zone") {
            true => r.optional("zone").parsed(Zone::parse).map(Some),
            false => Some(None),
        };
        let given = r.has("anchor");
        let (period, anchor) = (period?, anchor?);
        if anchor == Anchor::User && scope != Scope::User {
            r.fault("anchor", "\"user\" is only for limits of scope user: others have no user to go by");
        } else if anchor == Anchor::User && period != Period::Month {
            r.fault("anchor", "\"user\" is only for the period month");
        } else if given && !period.is_calendar() {
            r.fault("anchor", "is only for the periods day, week and month");
        }
        Some(Self { period, anchor, zone: zone? })
    }

    pub(super) fn rule(self, meter: Meter, limit: u64) -> Rule {
        Rule::Window { meter, limit, period: self.period, anchor: self.anchor, zone: self.zone }
    }
}

fn read_period(field: Field<'_, '_>) -> Option<Period> {
    let words = [
        ("day", Period::Day),
        ("week", Period::Week),
        ("month", Period::Month),
        ("lifetime", Period::Lifetime),
    ];
    if !field.is_table() {
        return field.choice(&words);
    }
    field.table(|r| {
        let hours = r.optional("hours").number(1..=MAX_HOURS).map(Period::Hours);
        let days = r.optional("days").number(1..=MAX_DAYS).map(Period::Days);
        let session = r.optional("session_hours").number(1..=MAX_HOURS).map(Period::SessionHours);
        let given = ["hours", "days", "session_hours"].iter().filter(|name| r.has(name)).count();
        if given != 1 {
            r.fault_here("must have exactly one of hours, days, session_hours");
            return None;
        }
        hours.or(days).or(session)
    })
}

/// Thresholds in ascending order, each once.
pub(super) fn read_warn_at(r: &mut Reader<'_, '_>, kind: Kind) -> Option<Vec<Ppm>> {
    if !r.has("warn_at") {
        return Some(Vec::new());
    }
    if kind != Kind::Window {
        r.fault("warn_at", "is only for windows");
        return None;
    }
    let shares = r.optional("warn_at").list(MAX_THRESHOLDS, |item| item.share());
    let mut shares = shares?;
    if shares.contains(&Ppm(0)) {
        r.fault("warn_at", "must be above 0: a share of 0 is always reached");
    }
    shares.sort_unstable();
    shares.dedup();
    Some(shares)
}

/// A glob on model names, in lower case.
pub(super) fn model_glob(text: &str) -> Result<String, &'static str> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/-*?".contains(&byte);
    match (1..=128).contains(&text.len()) && text.bytes().all(allowed) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err("must be 1-128 of letters, digits, . _ : / - and the wildcards * and ?"),
    }
}

fn feature_glob(text: &str) -> Result<String, &'static str> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_*?".contains(&byte);
    match (1..=64).contains(&text.len()) && text.bytes().all(allowed) {
        true => Ok(text.to_owned()),
        false => Err("must be 1-64 of a-z, 0-9, _ and the wildcards * and ?"),
    }
}

/// The limit as a document would have it; what is at its default is left out.
pub(super) fn to_json(limit: &Limit) -> Map<String, Value> {
    let mut json = Map::new();
    json.insert("name".into(), limit.name.as_str().into());
    json.insert("kind".into(), limit.rule.kind().into());
    if let Some(meter) = limit.rule.meter() {
        json.insert("meter".into(), meter.as_str().into());
    }
    match &limit.rule {
        Rule::Bucket { capacity, refill_per_minute, .. } => {
            json.insert("capacity".into(), (*capacity).into());
            json.insert("refill_per_minute".into(), (*refill_per_minute).into());
        }
        Rule::Window { limit, period, anchor, zone, .. } => {
            json.insert("limit".into(), (*limit).into());
            json.insert("period".into(), period_to_json(*period));
            if *anchor == Anchor::User {
                json.insert("anchor".into(), "user".into());
            }
            if let Some(zone) = zone {
                json.insert("zone".into(), zone.name().into());
            }
        }
        Rule::Slots { limit } => {
            json.insert("limit".into(), (*limit).into());
        }
        Rule::Rolling { limit, window_seconds, guard_ms, .. } => {
            json.insert("limit".into(), (*limit).into());
            json.insert("window_seconds".into(), (*window_seconds).into());
            if *guard_ms > 0 {
                json.insert("guard_ms".into(), (*guard_ms).into());
            }
        }
    }
    if matches!(limit.scope, Scope::Org | Scope::Tenant) {
        json.insert("scope".into(), limit.scope.as_str().into());
    }
    if limit.enforce != Enforce::Hard {
        json.insert("enforce".into(), limit.enforce.as_str().into());
    }
    if limit.visibility != Visibility::Exact {
        json.insert("visibility".into(), limit.visibility.as_str().into());
    }
    let lists = [("models", &limit.filter.models), ("features", &limit.filter.features)];
    for (name, globs) in lists.into_iter().filter(|(_, globs)| !globs.is_empty()) {
        json.insert(name.into(), json!(globs));
    }
    if !limit.warn_at.is_empty() {
        let shares: Vec<f64> = limit.warn_at.iter().map(|share| share.as_f64()).collect();
        json.insert("warn_at".into(), shares.into());
    }
    json
}

fn period_to_json(period: Period) -> Value {
    match period {
        Period::Day => json!("day"),
        Period::Week => json!("week"),
        Period::Month => json!("month"),
        Period::Lifetime => json!("lifetime"),
        Period::Hours(n) => json!({ "hours": n }),
        Period::Days(n) => json!({ "days": n }),
        Period::SessionHours(n) => json!({ "session_hours": n }),
    }
}
