//! Pools, and whether what the plans promise fits into them.

use std::collections::BTreeMap;

use actix_web::http::Method;
use askama::Template;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::join;

use super::api::{Fault, List, Target};
use super::deed::{Change, Deed, Field, Plan};
use super::figures::{Clock, Count, Markup, Part, escape};
use super::page::{Shell, show, show_with};
use super::rates::Rates;
use super::rows::Pool;
use super::sheets::Sheet;
use super::visit::{Shown, Visit};

#[derive(Deserialize)]
struct Report {
    fits: bool,
    burst_fits: bool,
    meters: Vec<Meter>,
}

/// One limit of the pool, or a meter on which it has none.
#[derive(Deserialize)]
struct Meter {
    meter: String,
    limit: Option<String>,
    by_plan: Vec<ByPlan>,
    demand: Option<Count>,
    allowed: Option<Count>,
    burst: Option<Count>,
    burst_allowed: Option<Count>,
    fits: bool,
    burst_fits: bool,
    margin: Option<f64>,
    vendor_limit: Option<Count>,
    per: Option<String>,
    reason: Option<String>,
}

#[derive(Deserialize)]
struct ByPlan {
    plan: String,
    active: Count,
    rate: Option<Count>,
    demand: Option<Count>,
    burst: Option<Count>,
    by: Option<String>,
    largest_rate: Option<Count>,
}

impl Meter {
    fn words(&self) -> String {
        self.meter.replace('_', " ")
    }

    fn margin_part(&self) -> Option<Part> {
        self.margin.map(Part)
    }

    fn demand_bar(&self) -> Markup {
        stacked(self.by_plan.iter().map(|plan| plan.demand), self.allowed)
    }

    fn burst_bar(&self) -> Markup {
        stacked(self.by_plan.iter().map(|plan| plan.burst), self.burst_allowed)
    }
}

/// The colour of the plan at that place.
fn colour(place: usize) -> usize {
    place % 5 + 1
}

/// Pieces one after the other, with a mark where what is allowed ends.
fn stacked(pieces: impl Iterator<Item = Option<Count>>, allowed: Option<Count>) -> Markup {
    let pieces: Vec<u64> = pieces.map(|piece| piece.map_or(0, |count| count.0)).collect();
    let sum = pieces.iter().fold(0u64, |sum, piece| sum.saturating_add(*piece));
    let whole = sum.max(allowed.map_or(0, |allowed| allowed.0)).max(1) as f64;
    let mut svg = String::from(
        "<svg class=\"bar tall\" viewBox=\"0 0 100 6\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
         <rect class=\"track\" width=\"100\" height=\"6\"/>",
    );
    let mut x = 0.0;
    for (place, piece) in pieces.iter().enumerate() {
        let width = *piece as f64 / whole * 100.0;
        svg.push_str(&format!(
            "<rect class=\"f{}\" x=\"{x:.2}\" width=\"{width:.2}\" height=\"6\"/>",
            colour(place)
        ));
        x += width;
    }
    if let Some(allowed) = allowed {
        let at = (allowed.0 as f64 / whole * 100.0).min(99.6);
        svg.push_str(&format!("<rect class=\"mark\" x=\"{at:.2}\" width=\"0.4\" height=\"6\"/>"));
    }
    svg.push_str("</svg>");
    Markup::made(svg)
}

/// Users of one plan who are active at once.
struct Active {
    plan: String,
    title: String,
    value: String,
    wrong: Option<String>,
}

#[derive(Template)]
#[template(path = "capacity.html")]
struct Page {
    shell: Shell,
    pools: Vec<Pool>,
    chosen: String,
    active: Vec<Active>,
    rates: Rates,
    /// What is wrong with the rates and belongs to none of them.
    rest: Vec<String>,
    is_asked: bool,
    report: Option<Report>,
    fault: Option<Fault>,
    clock: Clock,
}

impl Page {
    /// The plans of the report in their order, with their colours.
    fn keys(&self) -> Vec<(usize, &str)> {
        let first = self.report.as_ref().and_then(|report| report.meters.first());
        let plans = first.map(|meter| meter.by_plan.as_slice()).unwrap_or_default();
        plans.iter().enumerate().map(|(place, plan)| (colour(place), plan.plan.as_str())).collect()
    }

    fn state(&self, pool: &Pool) -> Markup {
        let (class, text) = match pool.condition.state.as_str() {
            "open" => ("good", "open"),
            "paused" => ("warn", "paused"),
            other => ("bad", other),
        };
        Markup::made(format!("<span class=\"tag {class}\">{}</span>", escape(text)))
    }
}

pub async fn page(visit: Visit) -> Shown {
    let (pools, sheets) = join!(
        visit.api.get::<List<Pool>>("/v1/admin/pools"),
        visit.api.get::<List<Value>>("/v1/admin/plans")
    );
    let (pools, documents) = (pools?.data, sheets?.data);
    let sheets: Vec<Sheet> = documents.iter().filter_map(|sheet| Sheet::deserialize(sheet).ok()).collect();
    let first = pools.iter().find(|pool| pool.id == "default").or(pools.first());
    let usual = first.map(|pool| pool.id.clone()).unwrap_or_default();
    let chosen = visit.query.given("pool").unwrap_or(&usual).to_owned();
    let field = |plan: &str| visit.query.get(&format!("active.{plan}")).to_owned();
    let mut numbers: BTreeMap<String, Value> = BTreeMap::new();
    for sheet in &sheets {
        let text = field(&sheet.id);
        if !text.is_empty() {
            let number = text.replace([',', ' '], "").parse::<u64>();
            numbers.insert(sheet.id.clone(), number.map_or_else(|_| text.into(), Value::from));
        }
    }
    let mut question = json!({"pool": chosen});
    let is_asked = !numbers.is_empty();
    if is_asked {
        question["active"] = json!(numbers);
    }
    let is_active = |plan: &str| !field(plan).is_empty() && field(plan) != "0";
    let mut rates = Rates::of(&visit, &documents, is_active);
    if rates.is_tried() {
        question["plans"] = json!(rates.sheets);
    }
    let answer: Result<Report, Fault> =
        visit.api.send(Method::POST, "/v1/admin/capacity/check", Some(&question)).await;
    let (report, fault) = match answer {
        Ok(report) => (Some(report), None),
        Err(fault) if fault.status >= 500 => return Err(fault),
        Err(fault) => (None, Some(fault)),
    };
    if let Some(fault) = &fault {
        rates.tell(fault);
    }
    let rest = fault.as_ref().map(|fault| rates.rest(fault)).unwrap_or_default();
    let measured = |plan: &str| {
        let meter = report.as_ref().filter(|_| !is_asked)?.meters.first()?;
        Some(meter.by_plan.iter().find(|row| row.plan == plan)?.active.0.to_string())
    };
    let wrong = |plan: &str| Some(fault.as_ref()?.at(&format!("/active/{plan}"))?.to_owned());
    let active = sheets.iter().map(|sheet| Active {
        plan: sheet.id.clone(),
        title: sheet.title().to_owned(),
        value: if is_asked { field(&sheet.id) } else { measured(&sheet.id).unwrap_or_default() },
        wrong: wrong(&sheet.id),
    });
    let active = active.collect();
    let (shell, clock) = (visit.shell("Capacity"), visit.clock());
    let page = Page { shell, pools, chosen, active, rates, rest, is_asked, report, fault, clock };
    match &page.fault {
        Some(fault) => show_with(&fault.clone(), &page),
        None => show(&page),
    }
}

/// Lets calls through again after a spend limit closed the pool.
pub async fn open(visit: Visit) -> Shown {
    let id = visit.call.segment("id")?;
    let pool: Pool = visit.api.get(Target::new("/v1/admin/pools/{}", &[&id])).await?;
    let back: String = Target::new("/console/capacity", &[]).with("pool", &id).into();
    let reason = Field::reason().value(visit.form.get("reason"));
    let deed = Deed {
        title: "Open the pool".into(),
        of: (id.clone(), back.clone()),
        lede: "Calls go to the vendor again. If its limit is still reached, its next answer closes the pool anew.",
        fields: vec![reason],
        verb: "Open it",
        is_harm: false,
    };
    if *visit.call.head.method() != Method::POST {
        return deed.form(&visit);
    }
    let change = Change { what: id.clone(), now: pool.condition.state, then: "open".into() };
    let plan = Plan {
        method: Method::POST,
        target: Target::new("/v1/admin/pools/{}/open", &[&id]),
        body: json!({"reason": visit.form.get("reason")}),
        changes: vec![change],
        says: Vec::new(),
    };
    deed.go(&visit, plan, &format!("{back}&done=saved")).await
}
