//! The books after a soak, row by row: the holds on record against what callers were answered,
//! against the totals by day, and against every figure that either node shows.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use apportion::domain::hold::{Hold, Stage};
use apportion::domain::ids::HoldId;
use apportion::domain::time::{Millis, month_of_day, pentad_of_day};
use apportion::ledger::unpack_hold;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection, Row as _};

use super::harm;
use super::traffic::Call;
use crate::faults::nodes::{Pair, eventually};

/// What was compared, and what did not agree.
#[derive(Default)]
pub struct Found {
    pub compared: BTreeMap<&'static str, usize>,
    pub differences: Vec<String>,
    /// Answers that Redis forgot before they came on record, and how long before that the
    /// oldest of them was given.
    pub lost: usize,
    pub lag: Duration,
}

impl Found {
    pub fn count(&mut self, what: &'static str) {
        *self.compared.entry(what).or_default() += 1;
    }

    fn differs(&mut self, text: String) {
        self.differences.push(text);
    }

    /// What is not as it was answered may be so if Redis was emptied or killed just then.
    fn lost(&mut self, answered: Instant, forgot: &[Instant], text: String) {
        let before = |flush: &&Instant| {
            answered < **flush + Duration::from_millis(500) && answered + Duration::from_secs(5) > **flush
        };
        match forgot.iter().find(before) {
            Some(flush) => {
                self.lost += 1;
                self.lag = self.lag.max(flush.saturating_duration_since(answered));
            }
            None => self.differs(text),
        }
    }
}

/// All holds on record.
pub async fn holds(pair: &Pair) -> Vec<Hold> {
    let mut connection = PgConnection::connect(&pair.database_url()).await.expect("Postgres is there");
    let text = "SELECT body FROM holds WHERE tenant = (SELECT number FROM tenants WHERE id = 'pair')";
    let rows = sqlx::query(text).fetch_all(&mut connection).await.expect("a table of holds");
    let unpack = |row: &sqlx::postgres::PgRow| {
        let body: Vec<u8> = row.get(0);
        unpack_hold(&body).expect("a hold that can be read")
    };
    rows.iter().map(unpack).collect()
}

pub fn against_callers(
    calls: &[Call],
    holds: &[Hold],
    users: &[String],
    forgot: &[Instant],
    found: &mut Found,
) {
    let by_id: HashMap<HoldId, &Hold> = holds.iter().map(|hold| (hold.id, hold)).collect();
    let mut asked: HashMap<(&str, &str), &Call> = HashMap::new();
    for call in calls {
        asked.insert((&users[call.user], &call.request_id), call);
        found.count("calls");
        if let Some(odd) = &call.odd {
            found.differs(format!("an answer nobody can explain: {odd}"));
        }
        let Some((id, answered)) = &call.hold else { continue };
        match by_id.get(&HoldId::parse(id).expect("a hold's id")) {
            None => found.lost(*answered, forgot, format!("the hold of {call:?}")),
            Some(_) if call.gone => found.differs(format!("said to be unknown: {call:?}")),
            Some(hold) => end(call, hold, forgot, found),
        }
    }
    let mut requests = HashSet::new();
    for hold in holds {
        found.count("holds");
        let request = hold.request.as_ref().expect("every call has an id").id.as_str();
        if !requests.insert((hold.user.as_str(), request)) {
            found.differs(format!("two holds of {request}"));
        }
        match asked.get(&(hold.user.as_str(), request)) {
            None => found.differs(format!("nobody asked for {hold:?}")),
            Some(call) => {
                let known = call.hold.as_ref().is_none_or(|(id, _)| *id == hold.id.to_string());
                if !known || (call.hold.is_none() && !call.broken) {
                    found.differs(format!("not what was answered: {call:?} {hold:?}"));
                }
            }
        }
    }
}

/// Whether a hold ended as its caller was told.
fn end(call: &Call, hold: &Hold, forgot: &[Instant], found: &mut Found) {
    if !call.ending && hold.is_finished() {
        found.differs(format!("nobody ended {call:?}: {hold:?}"));
    }
    let Some((told, answered)) = &call.ended else { return };
    found.count("ends");
    let is = match &hold.stage {
        // Nothing comes on record when a lease ends.
        Stage::Held => json!({"state": if hold.expires_at <= now() { "in_doubt" } else { "held" }}),
        Stage::InDoubt { .. } => json!({"state": "in_doubt"}),
        Stage::Released { .. } => json!({"state": "released"}),
        Stage::Settled(settled) => json!({
            "state": "settled", "late": settled.late, "at": settled.at,
            "actual": [settled.reported.input_tokens, settled.reported.output_tokens],
            "counted": [settled.counted.requests, settled.counted.input_tokens,
                        settled.counted.output_tokens, settled.counted.total_tokens],
        }),
    };
    let mut was = json!({"state": told["state"]});
    if told["state"] == "settled" {
        let part = |part: &str, names: &[&str]| -> Value {
            names.iter().map(|name| told[part][*name].as_u64().unwrap_or(0)).collect()
        };
        was["late"] = told["late"].clone();
        was["at"] = told["finished_at"].clone();
        was["actual"] = part("actual", &["input_tokens", "output_tokens"]);
        was["counted"] = part("counted", &["requests", "input_tokens", "output_tokens", "total_tokens"]);
    }
    if is != was {
        found.lost(*answered, forgot, format!("the end of {call:?}: {is} was told as {was}"));
    }
}

/// The ledger's totals, row by row, against the sums of the holds that were settled.
pub fn against_totals(pair: &Pair, holds: &[Hold], found: &mut Found) {
    let mut sums: BTreeMap<String, [u64; 4]> = BTreeMap::new();
    for hold in holds {
        let Stage::Settled(settled) = &hold.stage else { continue };
        let name = |name: &Option<apportion::domain::ids::Name>| {
            name.as_ref().map_or(String::new(), |name| name.as_str().to_owned())
        };
        let model = settled.reported.model.clone().or(hold.model.clone());
        let names = [hold.user.as_str(), &name(&hold.org), "", &name(&model), hold.plan.as_str()];
        let counted = &settled.counted;
        let add = [counted.requests, counted.input_tokens, counted.output_tokens, counted.total_tokens];
        for (kind, name) in names.into_iter().enumerate() {
            let day = hold.day;
            let longer = [("pentad", pentad_of_day(day)), ("month", month_of_day(day))];
            for start in [("day", day)].iter().chain(&longer).map(|(span, start)| format!("{span} {start}")) {
                let sum = sums.entry(format!("{start}|{kind}|{name}")).or_default();
                sum.iter_mut().zip(add).for_each(|(sum, add)| *sum += add);
            }
        }
    }
    let text = "SELECT 'day ' || start, kind, name, requests, input_tokens, output_tokens, total_tokens
                FROM day_totals WHERE tenant = $T
                UNION ALL
                SELECT 'pentad ' || start, kind, name, requests, input_tokens, output_tokens, total_tokens
                FROM pentad_totals WHERE tenant = $T
                UNION ALL
                SELECT 'month ' || start, kind, name, requests, input_tokens, output_tokens, total_tokens
                FROM month_totals WHERE tenant = $T";
    for line in pair.psql(text).lines() {
        found.count("rows of totals");
        let parts: Vec<&str> = line.split('|').collect();
        let told = [3, 4, 5, 6].map(|place| parts[place].parse::<u64>().expect("a sum"));
        let sum = sums.remove(&parts[..3].join("|")).unwrap_or_default();
        if told != sum {
            found.differs(format!("totals {line}: the holds come to {sum:?}"));
        }
    }
    found.differences.extend(sums.iter().map(|(key, sum)| format!("no totals for {key}: {sum:?}")));
}

/// Every row that either node shows against the holds; the rows as they were shown.
pub async fn against_figures(pair: &Pair, holds: &[Hold], found: &mut Found) -> Vec<Value> {
    let mut of_user: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
    holds.iter().for_each(|hold| of_user.entry(hold.user.as_str()).or_default().push(hold));
    let (mut shown, mut wide) = (Vec::new(), HashMap::new());
    for (number, node) in pair.clients().iter().enumerate() {
        for (user, own) in &of_user {
            let before = now();
            let view = eventually(|| node.quota(user)).await.ok();
            let org = own[0].org.as_ref();
            for row in view["limits"].as_array().expect("rows") {
                found.count("rows of limits");
                let scope = row["scope"].as_str().expect("a scope");
                let place =
                    (scope.to_owned(), org.filter(|_| scope == "org").cloned(), row["name"].to_string());
                let expected = match scope {
                    "user" => [before, now()].map(|at| expected(row, own, at)),
                    _ => wide
                        .entry(place)
                        .or_insert_with(|| {
                            let all: Vec<&Hold> = holds
                                .iter()
                                .filter(|hold| scope == "tenant" || hold.org.as_ref() == org)
                                .collect();
                            [before, now()].map(|at| expected(row, &all, at))
                        })
                        .clone(),
                };
                compare(row, &expected, &format!("{user} at node {number}"), found);
                shown.push(stripped(row));
            }
        }
        for pool in ["conv", "code"] {
            let body = json!({"user": "big0", "model": pool, "dry_run": true});
            let (before, view) = (now(), eventually(|| node.check(body.clone())).await.ok());
            let own: Vec<&Hold> = holds
                .iter()
                .filter(|hold| hold.pool.as_ref().is_some_and(|name| name.as_str() == pool))
                .collect();
            for row in view["limits"].as_array().expect("rows").iter().filter(|row| row["scope"] == "pool") {
                found.count("rows of limits");
                let expected = [before, now()].map(|at| expected(row, &own, at));
                compare(row, &expected, &format!("the pool {pool} at node {number}"), found);
            }
        }
    }
    shown
}

fn compare(row: &Value, expected: &[Value; 2], whose: &str, found: &mut Found) {
    let is = |expected: &Value| {
        expected.as_object().expect("figures").iter().all(|(name, value)| &row[name] == value)
    };
    // Leases may end between the looks.
    if !expected.iter().any(is) {
        found.differs(format!("{whose}: {row} should have {}", expected[0]));
    }
}

/// What a row must show when all holds of its owner are these, long after the last call.
fn expected(row: &Value, holds: &[&Hold], now: Millis) -> Value {
    let is_open = |hold: &&&Hold| matches!(hold.stage, Stage::Held) && now < hold.expires_at;
    let open = || holds.iter().filter(is_open);
    let limit = |name: &str| row[name].as_u64().expect("a limit");
    match (row["kind"].as_str().expect("a kind"), row["meter"].as_str()) {
        ("slots", _) => {
            json!({"in_use": open().count(), "remaining": limit("limit") - open().count() as u64})
        }
        ("bucket", Some("requests")) => json!({"remaining": limit("limit")}),
        ("bucket", _) => {
            let held: u64 = open().map(|hold| hold.reserved.output_tokens).sum();
            json!({"held": held, "remaining": limit("limit") - held})
        }
        (_, meter) => {
            let borders = ["start", "end"]
                .map(|name| row["window"][name].as_str().map(|at| Millis::parse(at).expect("an instant")));
            let inside = |hold: &&&Hold| {
                borders[0].is_none_or(|start| start <= hold.created_at)
                    && borders[1].is_none_or(|end| hold.created_at < end)
            };
            let (mut used, mut held) = (0, 0);
            for hold in holds.iter().filter(inside) {
                match &hold.stage {
                    Stage::Released { .. } => {}
                    _ if meter == Some("requests") => used += 1,
                    Stage::Settled(settled) => used += settled.counted.total_tokens,
                    _ => held += hold.reserved.total_tokens,
                }
            }
            json!({"used": used, "held": held, "over_by": 0})
        }
    }
}

/// A row without what goes on while time does.
fn stripped(row: &Value) -> Value {
    if row["kind"] != "window" {
        return json!({"name": row["name"]});
    }
    let mut row = row.clone();
    // It is told for the moment at which it is asked for.
    row.as_object_mut().expect("a row").remove("forecast_exhausted_at");
    row
}

fn now() -> Millis {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    Millis(i64::try_from(since.as_millis()).expect("a near time"))
}

/// Small users never had more than a full bucket and its refill, by the times on record, nor more
/// tokens used and held at once than their limit.
pub fn against_limits(holds: &[Hold], found: &mut Found) {
    let mut of_user: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
    for hold in holds.iter().filter(|hold| hold.plan.as_str() == "small") {
        of_user.entry(hold.user.as_str()).or_default().push(hold);
    }
    for (user, own) in of_user {
        found.count("small users");
        // At one instant what gives back comes first.
        let mut events: Vec<(Millis, i64, i64)> = Vec::new();
        for hold in own {
            let reserved = hold.reserved.total_tokens.cast_signed();
            events.push((hold.created_at, 1, reserved));
            match &hold.stage {
                Stage::Released { at, .. } => events.push((*at, -1, -reserved)),
                Stage::Settled(end) => {
                    events.push((end.at, 0, end.counted.total_tokens.cast_signed() - reserved));
                }
                _ => {}
            }
        }
        events.sort();
        let (mut level, mut last, mut taken) = (harm::CAPACITY * 60_000, Millis(0), 0);
        for (at, requests, tokens) in events {
            let refill = (at.0 - last.0).saturating_mul(harm::REFILL);
            level = level.saturating_add(refill).min(harm::CAPACITY * 60_000) - requests * 60_000;
            level = level.min(harm::CAPACITY * 60_000);
            (last, taken) = (at, taken + tokens);
            if level < 0 || taken > harm::TOKENS {
                found.differs(format!("{user} went beyond a limit at {at}: {level}, {taken}"));
                break;
            }
        }
    }
}
