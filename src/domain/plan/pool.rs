//! Reading a pool: a vendor's figures, turned into the figures that are used.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::limit::{self, Given, Head, Kind, MAX_WINDOW_SECONDS, Span};
use super::{MAX_LIMITS, Pool, PoolCounts, PoolLimit, Ramp, Rule, Scope};
use crate::domain::document::{Fault, Node, Reader};
use crate::domain::ids::{Label, Name};
use crate::domain::quantity::{MAX_BUCKET, Ppm};

const MAX_GLOBS: usize = 64;
const MAX_QUEUE: u64 = 1_000_000;
const DEFAULT_QUEUE: u64 = 1000;
const DEFAULT_BURST_SHARE: Ppm = Ppm(200_000);
const DEFAULT_WINDOW_SECONDS: u32 = 60;
/// The pool of checks that no other pool's globs match.
const DEFAULT_POOL: &str = "default";

impl Pool {
    /// Reads and checks a whole pool.
    pub fn read(node: &Node<'_>) -> Result<Self, Vec<Fault>> {
        node.read(|r| Self::fields(r, None))
    }

    /// Reads the fields of a pool from a document that may have others beside
    /// them. With `id` the document may leave out its own, and may not differ.
    pub fn fields(r: &mut Reader<'_, '_>, id: Option<&Name>) -> Option<Self> {
        let id = super::sheet::read_id(r, id);
        let is_default = id.as_ref().is_some_and(|id| id.as_str() == DEFAULT_POOL);
        let models = read_models(r, is_default);
        let enforced = r.optional("enforced").flag().unwrap_or(true);
        let margin = r.optional("margin").share().unwrap_or(Ppm::ONE);
        let counts = r.optional("counts").choice(&PoolCounts::WORDS).unwrap_or(PoolCounts::Reserved);
        let interactive_share = r.optional("interactive_share").share().unwrap_or(Ppm(0));
        let max_queue = r.optional("max_queue").amount(MAX_QUEUE).unwrap_or(DEFAULT_QUEUE);
        let ramp = r.optional("ramp").table(Ramp::read);
        let mut names = HashSet::new();
        let limits =
            r.optional("limits").list(MAX_LIMITS, |item| item.table(|r| read_limit(r, margin, &mut names)));
        let limits = limits.unwrap_or_default();
        if ramp.is_some() && names.iter().any(Ramp::has_name) {
            r.fault("ramp", "has a row of its own: give the limit `ramp` another name");
        }
        let (id, models) = (id?, models?);
        Some(Self { id, models, enforced, margin, counts, interactive_share, max_queue, ramp, limits })
    }

    /// The pool as a document would have it: what [`Pool::read`] accepts.
    pub fn to_json(&self) -> Value {
        let mut json = json!({
            "id": self.id.as_str(),
            "models": self.models,
            "enforced": self.enforced,
            "margin": self.margin.as_f64(),
            "counts": self.counts.as_str(),
            "interactive_share": self.interactive_share.as_f64(),
            "max_queue": self.max_queue,
            "limits": self.limits.iter().map(limit_to_json).collect::<Vec<_>>(),
        });
        if let Some(ramp) = &self.ramp {
            json["ramp"] = ramp.to_json();
        }
        json
    }
}

/// A pool that matches nothing would never be used, so it must say what it is
/// for; only the default pool is there for everything anyway.
fn read_models(r: &mut Reader<'_, '_>, is_default: bool) -> Option<Vec<String>> {
    if is_default && !r.has("models") {
        return Some(vec!["*".into()]);
    }
    let models = r.required("models").list(MAX_GLOBS, |glob| glob.parsed(limit::model_glob))?;
    if models.is_empty() && r.is_clean() {
        r.fault("models", "must name at least one model or glob");
    }
    Some(models)
}

/// Reads a limit; `None` without a fault is one whose number is `null`.
fn read_limit(r: &mut Reader<'_, '_>, margin: Ppm, names: &mut HashSet<Label>) -> Option<PoolLimit> {
    let head = Head::read(r);
    let kind = Kind::read(r)?;
    let (rule, vendor) = match r.has("vendor_limit") {
        true => {
            let vendor = Vendor::read(r, kind);
            let rule = read_vendor_rule(r, kind, &vendor, margin);
            (rule?, vendor)
        }
        false => match read_outright_rule(r, kind)? {
            Given::Is(rule) => (rule, Vendor::NONE),
            Given::LeftOut => return None,
        },
    };
    let limit = head?.into_limit(Scope::Pool, rule, Vec::new());
    if !names.insert(limit.name.clone()) {
        r.fault("name", format!("is the name of another limit too: {}", limit.name));
    }
    Some(PoolLimit {
        limit,
        vendor_limit: vendor.limit,
        window_seconds: vendor.window_seconds,
        guard_ms: vendor.guard_ms,
        burst_share: vendor.burst_share,
    })
}

/// A limit with its own numbers, to which the margin does not apply.
fn read_outright_rule(r: &mut Reader<'_, '_>, kind: Kind) -> Option<Given<Rule>> {
    if !r.is_null("vendor_limit") || kind.numbers().iter().any(|name| r.has(name)) {
        return limit::read_rule(r, kind, Scope::Pool);
    }
    // Its only number is `null`; what else is said of it matters no more.
    let others = ["meter", "period", "zone", "anchor", "window_seconds", "guard_ms", "burst_share"];
    others.iter().chain(kind.numbers()).for_each(|name| r.skip(name));
    Some(Given::LeftOut)
}

/// The vendor's figure and how it is to be read.
struct Vendor {
    limit: Option<u64>,
    window_seconds: u32,
    guard_ms: u32,
    burst_share: Ppm,
}

impl Vendor {
    const NONE: Self = Self {
        limit: None,
        window_seconds: DEFAULT_WINDOW_SECONDS,
        guard_ms: 0,
        burst_share: DEFAULT_BURST_SHARE,
    };

    fn read(r: &mut Reader<'_, '_>, kind: Kind) -> Self {
        for name in kind.numbers() {
            if r.has(name) {
                r.fault(name, "is worked out from vendor_limit: give one or the other");
            }
        }
        let mut vendor = Self { limit: r.required("vendor_limit").amount(kind.bound()), ..Self::NONE };
        if matches!(kind, Kind::Bucket | Kind::Rolling) {
            let seconds = r.optional("window_seconds").number(1..=MAX_WINDOW_SECONDS);
            vendor.window_seconds = seconds.unwrap_or(DEFAULT_WINDOW_SECONDS);
            vendor.guard_ms = limit::read_guard(r, Some(vendor.window_seconds)).unwrap_or_default();
        }
        if kind == Kind::Bucket {
            vendor.burst_share = r.optional("burst_share").share().unwrap_or(DEFAULT_BURST_SHARE);
        }
        vendor
    }
}

fn read_vendor_rule(r: &mut Reader<'_, '_>, kind: Kind, vendor: &Vendor, margin: Ppm) -> Option<Rule> {
    let meter = match kind {
        Kind::Slots => None,
        _ => limit::read_meter(r),
    };
    let span = match kind {
        Kind::Window => Some(Span::read(r, Scope::Pool)?),
        _ => None,
    };
    let effective = margin.of_rounded_down(vendor.limit?);
    if effective == 0 && vendor.limit? > 0 {
        r.fault("vendor_limit", "times margin leaves nothing");
        return None;
    }
    match kind {
        Kind::Bucket => {
            let (capacity, refill_per_minute) = size_bucket(effective, vendor);
            if refill_per_minute == 0 && capacity > 0 {
                r.fault("vendor_limit", "leaves less than 1 per minute for the refill: write it as a window");
            } else if refill_per_minute > MAX_BUCKET {
                r.fault("vendor_limit", format!("makes a refill of more than {MAX_BUCKET} per minute"));
            }
            Some(Rule::Bucket { meter: meter?, capacity, refill_per_minute })
        }
        Kind::Window => Some(span?.rule(meter?, effective)),
        Kind::Slots => Some(Rule::Slots { limit: effective }),
        Kind::Rolling => {
            let Vendor { window_seconds, guard_ms, .. } = *vendor;
            Some(Rule::Rolling { meter: meter?, limit: effective, window_seconds, guard_ms })
        }
    }
}

/// Capacity and refill per minute that let at most `effective` through in any
/// window: what is not stored trickles in. Both are rounded down, so the sum
/// stays below. Calls that were on their way for unequal times arrive closer
/// together than they left, so the guard belongs to the window.
fn size_bucket(effective: u64, vendor: &Vendor) -> (u64, u64) {
    let capacity = vendor.burst_share.of_rounded_down(effective).max(1).min(effective);
    let window_ms = u128::from(vendor.window_seconds) * 1000 + u128::from(vendor.guard_ms);
    let refill = u128::from(effective - capacity) * 60_000 / window_ms;
    // The caller refuses what does not fit.
    (capacity, u64::try_from(refill).unwrap_or(u64::MAX))
}

fn limit_to_json(pool_limit: &PoolLimit) -> Value {
    let mut json = limit::to_json(&pool_limit.limit);
    if let Some(figure) = pool_limit.vendor_limit {
        for number in ["capacity", "refill_per_minute", "limit"] {
            json.remove(number);
        }
        json.insert("vendor_limit".into(), figure.into());
        if matches!(pool_limit.limit.rule, Rule::Bucket { .. }) {
            json.insert("window_seconds".into(), pool_limit.window_seconds.into());
            if pool_limit.guard_ms > 0 {
                json.insert("guard_ms".into(), pool_limit.guard_ms.into());
            }
            json.insert("burst_share".into(), pool_limit.burst_share.as_f64().into());
        }
    }
    Value::Object(json)
}
