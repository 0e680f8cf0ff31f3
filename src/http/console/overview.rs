//! What goes on now, and what went on in the last day.

use std::collections::BTreeMap;

use askama::Template;
use serde::Deserialize;
use tokio::join;

use super::api::{Fault, List, Target};
use super::chart::{self, Column};
use super::figures::{Clock, Count, Credits, Markup, full};
use super::page::{Shell, show};
use super::part::Part;
use super::rows::{Audit, Consumers, Degraded, Minute, Mover, Output, Pool, Waited};
use super::visit::{Shown, Visit};
use crate::domain::time::Millis;

const HOUR_MS: i64 = 3_600_000;
const HOURS: usize = 24;
/// Rows of minutes that a chart adds up at most: a day of thirteen features.
const PAGES_MAX: usize = 40;
/// The ledger adds up and keeps a ranking for each answer, so it is not asked often.
const TOP_SECONDS: u32 = 300;
/// Lines of the timeline, of each kind: many of one must not hide the others.
const LINES: usize = 12;

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview {
    shell: Shell,
    now: Part,
    pools: Part,
    top: Part,
    movers: Part,
    day: Part,
    features: Part,
    happened: Part,
    outputs: Part,
    refusals: Part,
}

pub async fn page(visit: Visit) -> Shown {
    let v = &visit;
    let (now, features, pools) = join!(
        Part::at_once(v, "/console/parts/overview/now", 5, now(v)),
        Part::at_once(v, "/console/parts/overview/features", 15, features(v)),
        Part::at_once(v, "/console/parts/overview/pools", 10, pools(v)),
    );
    show(&Overview {
        shell: visit.shell("Overview"),
        now,
        features,
        pools,
        top: Part::later(v, "/console/parts/overview/top", TOP_SECONDS, top(v)).await,
        movers: Part::later(v, "/console/parts/overview/movers", 30, movers(v)).await,
        day: Part::later(v, "/console/parts/overview/day", 60, day(v)).await,
        happened: Part::later(v, "/console/parts/overview/happened", 60, happened(v)).await,
        outputs: Part::later(v, "/console/parts/overview/outputs", 60, outputs(v)).await,
        refusals: Part::later(v, "/console/parts/overview/refusals", 0, refusals(v)).await,
    })
}

/// What calls of a while came to.
#[derive(Default, Clone)]
struct Sum {
    requests: Count,
    refusals: Count,
    input: Count,
    output: Count,
    total: Count,
    credits: Credits,
}

impl Sum {
    fn add(&mut self, row: &Minute) {
        self.requests.0 += row.requests;
        self.refusals.0 += row.refusals;
        self.input.0 += row.input_tokens;
        self.output.0 += row.output_tokens;
        self.total.0 += row.total_tokens;
        self.credits.0 += row.credits;
    }

    fn asked(&self) -> Count {
        Count(self.requests.0 + self.refusals.0)
    }

    fn refused_part(&self) -> super::figures::Part {
        self.refusals.part_of(&self.asked())
    }
}

#[derive(Template)]
#[template(path = "overview_now.html")]
struct Now {
    sum: Sum,
    clock: Clock,
}

/// The last hour.
pub async fn now(visit: &Visit) -> Shown {
    let (rows, _) = minutes(visit, None, 4).await?;
    let mut sum = Sum::default();
    rows.iter().for_each(|row| sum.add(row));
    show(&Now { sum, clock: visit.clock() })
}

#[derive(Template)]
#[template(path = "overview_features.html")]
struct Features {
    sum: Sum,
    features: Vec<(Option<String>, Sum)>,
}

/// The last hour by feature.
pub async fn features(visit: &Visit) -> Shown {
    let (rows, _) = minutes(visit, None, 4).await?;
    let mut sum = Sum::default();
    let mut features: BTreeMap<Option<String>, Sum> = BTreeMap::new();
    for row in &rows {
        sum.add(row);
        features.entry(row.feature.clone()).or_default().add(row);
    }
    let mut features: Vec<_> = features.into_iter().collect();
    features.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.total));
    features.truncate(6);
    show(&Features { sum, features })
}

/// Minutes from then on, and whether they are all.
async fn minutes(visit: &Visit, from: Option<Millis>, pages: usize) -> Result<(Vec<Minute>, bool), Fault> {
    let from = from.map(|from| from.to_string()).unwrap_or_default();
    let (mut rows, mut cursor) = (Vec::new(), String::new());
    for _ in 0..pages {
        let target = Target::new("/v1/admin/features", &[]).with("from", &from).with("cursor", &cursor);
        let page: List<Minute> = visit.api.get(target.with("limit", "500")).await?;
        rows.extend(page.data);
        match page.next_cursor {
            Some(next) => cursor = next,
            None => return Ok((rows, true)),
        }
    }
    Ok((rows, false))
}

#[derive(Template)]
#[template(path = "overview_pools.html")]
struct Pools {
    pools: Vec<Pool>,
    clock: Clock,
}

pub async fn pools(visit: &Visit) -> Shown {
    let pools: List<Pool> = visit.api.get("/v1/admin/pools").await?;
    show(&Pools { pools: pools.data, clock: visit.clock() })
}

#[derive(Template)]
#[template(path = "overview_top.html")]
struct Top {
    rows: Consumers,
}

/// Who used most today.
pub async fn top(visit: &Visit) -> Shown {
    let today = visit.clock().date(visit.now());
    let target = Target::new("/v1/admin/consumers", &[]).with("from", &today).with("limit", "5");
    show(&Top { rows: visit.api.get(target).await? })
}

#[derive(Template)]
#[template(path = "overview_movers.html")]
struct Movers {
    rows: Vec<Mover>,
}

pub async fn movers(visit: &Visit) -> Shown {
    let rows: List<Mover> = visit.api.get("/v1/admin/movers?limit=5").await?;
    show(&Movers { rows: rows.data })
}

#[derive(Template)]
#[template(path = "overview_outputs.html")]
struct Outputs {
    all: Option<Output>,
    features: Vec<Output>,
}

#[derive(Deserialize)]
struct OutputList {
    features: Vec<Output>,
}

/// What was reserved against what was used.
pub async fn outputs(visit: &Visit) -> Shown {
    let list: OutputList = visit.api.get("/v1/admin/outputs?limit=1").await?;
    let mut features = list.features;
    let all = features.iter().cloned().reduce(|mut sum, next| {
        sum.reserved_tokens += next.reserved_tokens;
        sum.used_tokens += next.used_tokens;
        sum
    });
    features.sort_by_key(|row| std::cmp::Reverse(row.reserved_tokens));
    features.truncate(6);
    show(&Outputs { all, features })
}

#[derive(Deserialize)]
struct Named {
    id: String,
}

#[derive(Deserialize)]
struct Tuning {
    from: String,
    to: String,
    refusals: Vec<CodeRow>,
}

/// Refusals with one code.
#[derive(Deserialize, Clone)]
struct CodeRow {
    code: String,
    refusals: Count,
    users: Count,
}

#[derive(Template)]
#[template(path = "overview_refusals.html")]
struct Refusals {
    rows: Vec<CodeRow>,
    /// The days.
    span: Option<(String, String)>,
    most: Count,
}

/// Refusals by code, of the users of all plans.
pub async fn refusals(visit: &Visit) -> Shown {
    let plans: List<Named> = visit.api.get("/v1/admin/plans").await?;
    let mut codes: BTreeMap<String, CodeRow> = BTreeMap::new();
    let mut span = None;
    for plan in &plans.data {
        let tuning: Tuning = visit.api.get(Target::new("/v1/admin/plans/{}/tuning", &[&plan.id])).await?;
        for row in tuning.refusals {
            let sum = codes.entry(row.code.clone()).or_insert(CodeRow {
                refusals: Count(0),
                users: Count(0),
                ..row.clone()
            });
            sum.refusals.0 += row.refusals.0;
            sum.users.0 += row.users.0;
        }
        span = Some((tuning.from, tuning.to));
    }
    let mut rows: Vec<_> = codes.into_values().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.refusals));
    let most = rows.first().map_or(Count(0), |row| row.refusals);
    show(&Refusals { rows, span, most })
}

/// An hour of the last day.
struct Hour {
    from: Millis,
    sum: Sum,
}

/// A line of the timeline.
enum Line {
    Refused { at: Millis, sum: Sum },
    Changed(Audit),
    Waited { pool: String, wait: Waited, why: Option<String> },
    Degraded { node: String, span: Degraded },
}

impl Line {
    fn at(&self) -> Millis {
        match self {
            Self::Refused { at, .. } => *at,
            Self::Changed(audit) => audit.at,
            Self::Waited { wait, .. } => wait.from,
            Self::Degraded { span, .. } => span.from,
        }
    }
}

#[derive(Template)]
#[template(path = "overview_day.html")]
struct Day {
    hours: Vec<Hour>,
    calls: Markup,
    tokens: Markup,
    complete: bool,
    is_empty: bool,
    clock: Clock,
}

/// The last 24 hours by the hour of the product's wall clock, and whether every call is in them.
async fn last_day(visit: &Visit) -> Result<(Vec<Hour>, bool), Fault> {
    let now = visit.now();
    let into_the_hour = visit.clock().zone.wall_clock(now).0.rem_euclid(HOUR_MS);
    let from = now.plus_ms(-into_the_hour - (HOURS as i64 - 1) * HOUR_MS);
    let (rows, complete) = minutes(visit, Some(from), PAGES_MAX).await?;
    let start = |place: usize| from.plus_ms(place as i64 * HOUR_MS);
    let mut hours: Vec<Hour> =
        (0..HOURS).map(|place| Hour { from: start(place), sum: Sum::default() }).collect();
    for row in &rows {
        let place = (row.at.0 - from.0).max(0) / HOUR_MS;
        if let Some(hour) = hours.get_mut(place as usize) {
            hour.sum.add(row);
        }
    }
    Ok((hours, complete))
}

/// How many calls and tokens there were.
pub async fn day(visit: &Visit) -> Shown {
    let clock = visit.clock();
    let (hours, complete) = last_day(visit).await?;
    let chart = |pieces: fn(&Sum) -> [Count; 2], names: [&str; 2]| {
        let column = |(place, hour): (usize, &Hour)| {
            let label = clock.hour(hour.from);
            let [first, second] = pieces(&hour.sum);
            let title = format!("{label}: {} {}, {} {}", full(first.0), names[0], full(second.0), names[1]);
            // Every third hour is enough below the axis.
            let label = if place % 3 == 0 { label } else { String::new() };
            Column { label, title, pieces: vec![first.0, second.0] }
        };
        chart::columns(&hours.iter().enumerate().map(column).collect::<Vec<_>>(), None)
    };
    let calls = chart(|sum| [sum.requests, sum.refusals], ["admitted", "refused"]);
    let tokens = chart(|sum| [sum.input, sum.output], ["input", "output"]);
    let is_empty = hours.iter().all(|hour| hour.sum.asked().is_zero());
    show(&Day { is_empty, calls, tokens, complete, clock, hours })
}

#[derive(Template)]
#[template(path = "overview_happened.html")]
struct Happened {
    lines: Vec<Line>,
    clock: Clock,
}

/// Refusals, changes and what became of pools, in one line of time.
pub async fn happened(visit: &Visit) -> Shown {
    let (hours, _) = last_day(visit).await?;
    let begin = hours.first().map_or(visit.now(), |hour| hour.from);
    let from = begin.to_string();
    let (audit, pools) = join!(
        visit
            .api
            .get::<List<Audit>>(Target::new("/v1/admin/audit", &[]).with("from", &from).with("limit", "100")),
        visit.api.get::<List<Pool>>("/v1/admin/pools"),
    );
    let lines = lines(&hours, audit?.data, pools?.data, begin);
    show(&Happened { lines, clock: visit.clock() })
}

/// What happened, the latest first.
fn lines(hours: &[Hour], audit: Vec<Audit>, pools: Vec<Pool>, begin: Millis) -> Vec<Line> {
    let refused = hours.iter().filter(|hour| !hour.sum.refusals.is_zero());
    let refused = refused.map(|hour| Line::Refused { at: hour.from, sum: hour.sum.clone() });
    // A clock that is set again and again would hide all else; that a pool was closed is told by
    // the pool, with its end.
    let changed = audit.into_iter().filter(|row| !["clock.set", "pool.close"].contains(&row.action.as_str()));
    let changed = changed.map(|row| match row.degraded() {
        Some(span) => Line::Degraded { node: row.target, span },
        None => Line::Changed(row),
    });
    let pools = pools.into_iter().flat_map(|Pool { id, condition, pauses, .. }| {
        // That bulk calls wait while all do is no news.
        let begins: Vec<_> =
            pauses.iter().filter(|wait| wait.kind != "brake").map(|wait| wait.from).collect();
        let is_news = move |wait: &Waited| wait.kind != "brake" || !begins.contains(&wait.from);
        let lately = pauses.into_iter().filter(move |wait| wait.until >= begin && is_news(wait));
        lately.map(move |wait| {
            let is_now = wait.kind == "closure" && condition.closed_since == Some(wait.from);
            let why = condition.closed_because.clone().filter(|_| is_now);
            Line::Waited { pool: id.clone(), wait, why }
        })
    });
    let (degraded, changed): (Vec<Line>, Vec<Line>) =
        changed.partition(|line| matches!(line, Line::Degraded { .. }));
    let kinds: [Vec<Line>; 4] = [refused.collect(), changed, degraded, pools.collect()];
    let latest = |mut lines: Vec<Line>| {
        lines.sort_by_key(|line| std::cmp::Reverse(line.at()));
        lines.truncate(LINES);
        lines
    };
    let mut lines: Vec<Line> = kinds.into_iter().flat_map(latest).collect();
    lines.sort_by_key(|line| std::cmp::Reverse(line.at()));
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn told(line: &Line) -> String {
        match line {
            Line::Refused { sum, .. } => format!("{} refused", sum.refusals.0),
            Line::Changed(row) => row.action.clone(),
            Line::Waited { pool, wait, why } => {
                let length = wait.length().replace('\u{a0}', " ");
                format!("{pool} {} {length} {}", wait.kind, why.clone().unwrap_or_default())
            }
            Line::Degraded { node, span } => format!("{node} {}/{}", span.admitted.0, span.refused.0),
        }
    }

    #[test]
    fn what_happened_stands_in_one_line_of_time_and_no_kind_hides_another() {
        let at = |minute: usize| format!("2026-03-10T12:{minute:02}:00.000Z");
        let row = |minute: usize, action: &str, after: Value| json!({"at": at(minute), "by": "x", "action": action, "target": "n-1", "reason": null, "after": after});
        let outage = json!({"from": at(2), "until": at(4), "admitted": 3, "refused": 5});
        let mut audit = vec![row(4, "node.degraded", outage), row(6, "pool.close", Value::Null)];
        audit.extend((10..50).map(|minute| row(minute, "user.put", Value::Null)));
        let wait = |kind: &str, from: usize, until: usize| json!({"kind": kind, "from": at(from), "until": at(until), "times": 1});
        let pools = json!([{
            "id": "p",
            "condition": {"state": "closed", "rate": 1.0, "closed_since": at(6), "closed_because": "spent"},
            "pauses": [wait("closure", 6, 59), wait("brake", 3, 4), wait("pause", 3, 5), wait("brake", 1, 2)],
        }]);
        let begin = Millis::parse("2026-03-10T12:00:00Z").unwrap();
        let refused = Sum { refusals: Count(7), ..Sum::default() };
        let hours = [Hour { from: begin, sum: refused }];
        let read = |value: Value| serde_json::from_value(value).unwrap();
        let lines = lines(&hours, read(json!(audit)), serde_json::from_value(pools).unwrap(), begin);
        let told: Vec<String> = lines.iter().map(told).collect();
        assert!(told[..LINES].iter().all(|line| line == "user.put"), "{told:?}");
        assert_eq!(
            told[LINES..],
            ["p closure 53 min spent", "p pause 2 min ", "n-1 3/5", "p brake 1 min ", "7 refused"]
        );
    }
}
