//! Sheets and pools drawn from a seed: small figures, so that limits are met all the time.

use serde_json::{Value, json};

use super::family::{self, Family};
use super::oracle::calendar::MINUTE_MS;
use super::oracle::calendar::{HOUR_MS, Ms, instant};
use super::rng::Rng;

pub const USERS: [&str; 4] = ["ann", "bob", "cleo", "dan"];
pub const SHEETS: [&str; 3] = ["one", "two", "three"];
pub const ORGS: [&str; 2] = ["acme", "umbrella"];
/// Sheets that orgs may have of their own.
pub const ORG_SHEETS: [&str; 2] = ["team", "crew"];
pub const ZONES: [&str; 9] = [
    "UTC",
    "Asia/Tokyo",
    "America/New_York",
    "Africa/Cairo",
    "Australia/Lord_Howe",
    "America/Havana",
    "Pacific/Chatham",
    "Pacific/Kiritimati",
    "America/St_Johns",
];
/// Days around which months end, leap years show, and clocks are put forward or back somewhere.
const DAYS: [&str; 10] = [
    "2026-01-30T12:00:00Z",
    "2026-02-27T12:00:00Z",
    "2026-03-07T12:00:00Z",
    "2026-03-30T12:00:00Z",
    "2026-04-04T12:00:00Z",
    "2026-04-23T12:00:00Z",
    "2026-10-29T12:00:00Z",
    "2026-10-31T12:00:00Z",
    "2026-12-30T12:00:00Z",
    "2028-02-28T12:00:00Z",
];
/// The largest call of sheets that cap it.
pub const INPUT_CAP: i64 = 60;
pub const OUTPUT_CAP: i64 = 40;

/// One limit as it may stand in a sheet: what makes it the same limit everywhere, and its range.
#[derive(Clone, Debug)]
pub struct Template {
    base: Value,
    low: i64,
    high: i64,
    refill: Option<(i64, i64)>,
    percent: i64,
}

impl Template {
    /// The least and the most that a figure may be.
    fn range(&self, name: &str) -> (i64, i64) {
        if name == "refill_per_minute" { self.refill.expect("a bucket") } else { (self.low, self.high) }
    }

    fn figures(&self, rng: &mut Rng) -> Value {
        let number = rng.between(self.low, self.high);
        match self.refill {
            Some((low, high)) => json!({"capacity": number, "refill_per_minute": rng.between(low, high)}),
            None => json!({"limit": number}),
        }
    }

    fn limit(&self, rng: &mut Rng) -> Value {
        let mut limit = self.base.clone();
        let figures = self.figures(rng);
        limit.as_object_mut().expect("a limit").extend(figures.as_object().expect("figures").clone());
        limit
    }
}

/// What a seed plays on.
#[derive(Clone, Debug)]
pub struct Stage {
    pub zone: String,
    pub start: Ms,
    pub sheets: Vec<Value>,
    pub pool: Option<Value>,
    pub models: Vec<Value>,
    /// The org of each user, if the stage has orgs.
    pub orgs: Vec<Option<&'static str>>,
    pub templates: Vec<Template>,
    pub families: Vec<Family>,
}

fn bucket(name: &str, meter: &str) -> Value {
    json!({"name": name, "kind": "bucket", "meter": meter})
}

fn window(name: &str, meter: &str, period: Value) -> Value {
    json!({"name": name, "kind": "window", "meter": meter, "period": period})
}

fn with(mut base: Value, name: &str, value: Value) -> Value {
    base[name] = value;
    base
}

fn templates(rng: &mut Rng, orgs: bool) -> Vec<Template> {
    let mut all = Vec::new();
    let mut add = |base: Value, low: i64, high: i64, refill: Option<(i64, i64)>, percent: i64| {
        all.push(Template { base, low, high, refill, percent });
    };
    add(bucket("requests_per_minute", "requests"), 1, 8, Some((1, 90)), 70);
    add(bucket("output_tokens_per_minute", "output_tokens"), 40, 200, Some((1, 900)), 60);
    add(bucket("input_per_minute", "input_tokens"), 60, 300, Some((30, 900)), 20);
    add(bucket("tokens_per_minute", "total_tokens"), 100, 400, Some((7, 900)), 20);
    add(bucket("credits_per_minute", "credits"), 700, 3000, Some((100, 9000)), 15);
    add(with(bucket("chat_rate", "requests"), "features", json!(["ch*"])), 1, 5, Some((1, 60)), 20);
    add(window("requests_per_day", "requests", json!("day")), 4, 40, None, 50);
    let month = window("tokens_per_month", "total_tokens", json!("month"));
    let month = if rng.chance(40) { with(month, "anchor", json!("user")) } else { month };
    add(with(month, "warn_at", json!([0.5, 0.8, 1.0])), 300, 6000, None, 50);
    add(window("output_per_week", "output_tokens", json!("week")), 200, 3000, None, 20);
    let hours = rng.between(1, 7);
    add(window("requests_per_block", "requests", json!({"hours": hours})), 2, 20, None, 25);
    add(window("tokens_per_days", "total_tokens", json!({"days": rng.between(1, 9)})), 200, 3000, None, 20);
    add(
        window("tokens_per_session", "total_tokens", json!({"session_hours": rng.between(1, 5)})),
        120,
        900,
        None,
        25,
    );
    add(window("tokens_for_life", "total_tokens", json!("lifetime")), 4000, 90_000, None, 15);
    add(window("images_per_day", "images", json!("day")), 2, 9, None, 20);
    add(json!({"name": "concurrency", "kind": "slots"}), 1, 5, None, 60);
    add(with(json!({"name": "opus_calls", "kind": "slots"}), "models", json!(["opus*"])), 1, 2, None, 15);
    add(
        with(window("opus_per_day", "requests", json!("day")), "models", json!(["opus*", "h?iku"])),
        2,
        9,
        None,
        20,
    );
    add(with(bucket("soft_rate", "requests"), "enforce", json!("soft")), 1, 4, Some((1, 20)), 15);
    add(with(window("soft_day", "output_tokens", json!("day")), "enforce", json!("soft")), 50, 400, None, 15);
    add(with(window("shadow_day", "requests", json!("day")), "enforce", json!("shadow")), 2, 9, None, 15);
    add(with(bucket("tenant_rate", "requests"), "scope", json!("tenant")), 4, 20, Some((10, 200)), 25);
    add(
        with(window("tenant_month", "total_tokens", json!("month")), "scope", json!("tenant")),
        2000,
        20_000,
        None,
        20,
    );
    if orgs {
        add(
            with(window("org_day", "total_tokens", json!("day")), "scope", json!("org")),
            300,
            4000,
            None,
            60,
        );
        add(with(window("org_month", "requests", json!("month")), "scope", json!("org")), 9, 200, None, 30);
        add(with(json!({"name": "org_places", "kind": "slots"}), "scope", json!("org")), 2, 6, None, 30);
        add(with(bucket("org_rate", "output_tokens"), "scope", json!("org")), 60, 300, Some((10, 900)), 40);
    }
    // Some figures stand in a zone of their own.
    for template in &mut all {
        if template.base["kind"] == "window" && rng.chance(15) {
            template.base["zone"] = json!(rng.pick(&ZONES));
        }
    }
    all
}

/// A sheet in which each limit stands with its odds; figures are drawn anew.
pub fn sheet(rng: &mut Rng, id: &str, templates: &[Template]) -> Value {
    let capped = rng.chance(50);
    let mut limits = Vec::new();
    for template in templates {
        if !rng.chance(template.percent) {
            continue;
        }
        let mut limit = template.limit(rng);
        let plain = limit.get("scope").is_none() && limit.get("enforce").is_none();
        if plain && rng.chance(2) && !limit["period"].is_object() {
            for name in ["limit", "capacity", "refill_per_minute"] {
                if limit.get(name).is_some() {
                    limit[name] = json!(0);
                }
            }
        }
        limits.push(limit);
    }
    let mut sheet = json!({"id": id, "name": id, "limits": limits});
    if capped {
        sheet["per_call"] = json!({"max_input_tokens": INPUT_CAP, "max_output_tokens": OUTPUT_CAP});
    }
    if rng.chance(30) {
        sheet["cache_read_weight"] = json!(*rng.pick(&[0.0, 0.1, 0.35]));
    }
    sheet
}

impl Stage {
    pub fn orgs_play(&self) -> bool {
        self.families.contains(&Family::Orgs) && self.orgs.iter().any(Option::is_some)
    }

    /// Figures for one limit, in its range.
    pub fn figures(&self, rng: &mut Rng, name: &str) -> Value {
        let template = self.templates.iter().find(|t| t.base["name"] == name).expect("a limit of the stage");
        template.figures(rng)
    }

    /// The next version of a sheet: some figures up or down, now and then a limit less or more.
    pub fn revise(&self, rng: &mut Rng, sheet: &Value, zones: bool) -> Value {
        let mut next = sheet.clone();
        let up = rng.chance(50);
        let limits = next["limits"].as_array_mut().expect("a sheet has limits");
        for limit in limits.iter_mut() {
            if !rng.chance(40) {
                continue;
            }
            let template = self.templates.iter().find(|t| t.base["name"] == limit["name"]).expect("there");
            for name in ["limit", "capacity", "refill_per_minute"] {
                let Some(before) = limit[name].as_i64().filter(|n| *n > 0) else { continue };
                let (low, high) = template.range(name);
                limit[name] = json!(if up {
                    rng.between(before, high.max(before))
                } else {
                    rng.between(low, before.max(low))
                });
            }
            let own = limit.get("scope").is_none() && limit["kind"] == "window";
            if zones && own && rng.chance(20) {
                limit["zone"] = json!(*rng.pick(&ZONES));
            }
        }
        if limits.len() > 2 && rng.chance(20) {
            let place = usize::try_from(rng.between(0, limits.len() as i64 - 1)).expect("small");
            limits.remove(place);
        }
        if rng.chance(20) {
            let template = rng.pick(&self.templates);
            let fits = ORG_SHEETS.iter().all(|o| sheet["id"] != *o) || template.base["scope"] == "org";
            if fits && limits.iter().all(|l| l["name"] != template.base["name"]) {
                limits.push(template.limit(rng));
            }
        }
        next
    }

    pub fn draw(rng: &mut Rng) -> Self {
        let families = family::families();
        let with_orgs = rng.chance(40);
        let templates = templates(rng, with_orgs);
        let pool = rng.chance(50).then(|| {
            let mut limits = vec![json!({
                "name": "pool_requests", "kind": "bucket", "meter": "requests",
                "capacity": rng.between(3, 12), "refill_per_minute": rng.between(20, 200),
            })];
            if rng.chance(60) {
                limits.push(json!({
                    "name": "pool_output", "kind": "bucket", "meter": "output_tokens",
                    "capacity": rng.between(80, 400), "refill_per_minute": rng.between(50, 2000),
                }));
            }
            if rng.chance(60) {
                limits.push(json!({"name": "pool_places", "kind": "slots", "limit": rng.between(2, 8)}));
            }
            json!({
                "id": "upstream", "models": ["opus*", "sonnet"], "enforced": true, "margin": 1.0,
                "interactive_share": *rng.pick(&[0.3, 0.5, 0.25]), "limits": limits,
            })
        });
        let orgs = USERS.iter().enumerate().map(|(n, _)| with_orgs.then_some(ORGS[n % 2])).collect();
        let mut sheets: Vec<Value> = SHEETS.iter().map(|id| sheet(rng, id, &templates)).collect();
        if families.contains(&Family::Standing) {
            for sheet in &mut sheets {
                if rng.chance(30) {
                    sheet["requires_verified"] = json!(true);
                }
            }
        }
        if with_orgs && families.contains(&Family::Orgs) {
            let of_orgs: Vec<Template> =
                templates.iter().filter(|t| t.base["scope"] == "org").cloned().collect();
            sheets.extend(ORG_SHEETS.iter().map(|id| {
                let limits: Vec<Value> = of_orgs.iter().map(|t| t.limit(rng)).collect();
                json!({"id": id, "name": id, "limits": limits})
            }));
        }
        let start = if rng.chance(40) {
            instant("2026-03-27T20:00:00Z") + rng.between(0, 200) * 12 * HOUR_MS
        } else {
            instant(rng.pick::<&str>(&DAYS)) + rng.between(0, 48 * 60) * MINUTE_MS
        };
        Self {
            zone: (*rng.pick(&ZONES)).to_owned(),
            start,
            sheets,
            families,
            pool,
            models: vec![
                json!({"id": "opus-4", "aliases": ["smart", "opus"], "input": 15_000_000, "output": 75_000_000,
                       "cache_read": 1_500_000, "cache_write": 18_750_000}),
                json!({"id": "Sonnet", "aliases": ["default-chat"], "input": 3_000_001, "output": 15_000_007,
                       "cache_read": 300_000}),
                json!({"id": "haiku", "aliases": [], "input": 1, "output": 999_999, "cache_read": 0}),
            ],
            orgs,
            templates,
        }
    }
}
