//! After a fault: every figure that anybody can see against the holds that are there.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use super::Pair;
use super::load::{Call, Told, USERS};
use super::pair::{CAPACITY, PLACES, TIGHT};
use crate::harness::redis::Node;
use crate::harness::{Client, Reply, row};

/// What may be lost of that which was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    Nothing,
    /// What Redis forgot before it came on record.
    NotOnRecord,
}

/// How long the service may take to serve again after what was done to it.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    used: i64,
    held: i64,
    requests: i64,
    open: i64,
    output_gone: i64,
    /// By the ledger's totals.
    settled: [i64; 4],
}

/// Looks at everything and prints a line of the table.
pub async fn check(pair: &Pair, told: &Told, redis: &[&Node], fault: &str, loss: Loss) {
    let found = found(pair, &told.calls).await;
    let lost = lost(&told.calls, &found);
    if loss == Loss::Nothing {
        assert!(lost.is_empty(), "{fault}: lost {lost:#?}");
    }
    let sums = sums(&told.calls, &found);
    let before = seen(pair, &sums).await;
    totals_are_of_settled_holds(pair, &sums);
    every_key_ends(redis);
    // What is built anew from the ledger is what there was.
    redis.iter().for_each(|node| node.flush_all());
    for node in pair.clients() {
        for user in USERS {
            // Brings the user's accounts back.
            let body = json!({"user": user, "model": "m", "dry_run": true});
            eventually(|| node.check(body.clone())).await;
        }
    }
    assert_eq!(seen(pair, &sums).await, before, "{fault}: built anew from the ledger");
    pair.nothing_odd_was_said();
    print_line(fault, told, lost.len());
}

pub fn print_line(fault: &str, told: &Told, lost: usize) {
    println!(
        "| {fault} | {:.1} s, {} calls | worst {:.2} s | {lost} of {} | hold |",
        told.refused_for().as_secs_f64(),
        told.refused(),
        told.slowest().as_secs_f64(),
        told.answered(),
    );
}

/// Asks again while nothing is decided.
pub async fn eventually<F: Future<Output = Reply>>(mut ask: impl FnMut() -> F) -> Reply {
    let from = Instant::now();
    loop {
        let reply = ask().await;
        if reply.status != 503 {
            return reply;
        }
        assert!(from.elapsed() < PATIENCE, "{}", reply.text);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The hold of each call, null if there is none. Either node tells the same.
async fn found(pair: &Pair, calls: &[Call]) -> Vec<Value> {
    stream::iter(calls.iter().enumerate())
        .map(|(place, call)| async move {
            let look = async |node: &Client| {
                let found = eventually(|| node.hold_by_request(call.user, &call.request_id)).await;
                if found.status == 404 { Value::Null } else { found.ok()["hold"].clone() }
            };
            let hold = look(pair.client(place % 2)).await;
            if place.is_multiple_of(10) {
                assert_eq!(look(pair.client(1 - place % 2)).await, hold, "the nodes differ: {call:?}");
            }
            hold
        })
        .buffered(8)
        .collect()
        .await
}

/// What was answered and is not so (any more).
fn lost(calls: &[Call], found: &[Value]) -> Vec<String> {
    let mut lost = Vec::new();
    for (call, hold) in calls.iter().zip(found) {
        if hold.is_null() {
            if call.hold.is_some() {
                lost.push(format!("the hold of {call:?}"));
            }
            continue;
        }
        if let Some(id) = &call.hold
            && hold["id"] != id.as_str()
        {
            lost.push(format!("{call:?} is another hold now: {hold}"));
        } else if let Some(ended) = &call.ended {
            let names = ["state", "actual", "counted", "returned", "overage"];
            if names.iter().any(|name| hold[name] != ended[name]) {
                lost.push(format!("the end of {call:?}: {hold}"));
            }
        } else if call.gone {
            lost.push(format!("nobody knew it once: {call:?}"));
        } else if call.ending.is_none() {
            assert_eq!(hold["state"], "held", "nobody ended {call:?}");
        }
    }
    lost
}

fn sums(calls: &[Call], found: &[Value]) -> BTreeMap<&'static str, Sums> {
    let mut sums: BTreeMap<&str, Sums> = USERS.iter().map(|user| (*user, Sums::default())).collect();
    for (call, hold) in calls.iter().zip(found).filter(|(_, hold)| !hold.is_null()) {
        add(sums.get_mut(call.user).expect("a user of the load"), hold);
    }
    sums
}

/// What one hold adds to the figures of its user. The clock stands, so no bucket refills.
fn add(sums: &mut Sums, hold: &Value) {
    let of = |part: &str, meter: &str| hold[part][meter].as_i64().unwrap_or(0);
    let total = of("reserved", "total_tokens");
    sums.requests += i64::from(hold["state"] != "released");
    match hold["state"].as_str().expect("a state") {
        "released" => {}
        "settled" => {
            sums.used += of("counted", "total_tokens");
            sums.output_gone += of("counted", "output_tokens");
            let meters = ["requests", "input_tokens", "output_tokens", "total_tokens"];
            for (sum, meter) in sums.settled.iter_mut().zip(meters) {
                *sum += of("counted", meter);
            }
        }
        state => {
            sums.held += total;
            sums.output_gone += of("reserved", "output_tokens");
            sums.open += i64::from(state == "held");
        }
    }
}

/// The figures of each user at both nodes, which are the sums of their holds.
async fn seen(pair: &Pair, sums: &BTreeMap<&'static str, Sums>) -> Vec<Value> {
    let mut views = Vec::new();
    for (number, node) in pair.clients().iter().enumerate() {
        for (user, expected) in sums {
            let view = eventually(|| node.quota(user)).await.ok();
            let of = |name: &str, field: &str| row(&view, name)[field].as_i64().expect("a figure");
            let figures = Sums {
                used: of("life", "used"),
                held: of("life", "held"),
                requests: of("requests_per_day", "used"),
                open: of("concurrency", "in_use"),
                output_gone: match pair.stands {
                    true => CAPACITY - of("output_tokens_per_minute", "remaining"),
                    false => expected.output_gone,
                },
                settled: expected.settled,
            };
            assert_eq!(figures, *expected, "{user} at node {number}");
            views.push(view["limits"].clone());
        }
        let tight = &sums["tight"];
        assert!(tight.used + tight.held <= TIGHT, "{tight:?}");
        let body = json!({"user": "u0", "model": "m", "dry_run": true});
        let dry = eventually(|| node.check(body.clone())).await;
        let (all, pool) = (dry.row("everybody"), dry.row("pool_places"));
        let total = |f: fn(&Sums) -> i64| {
            json!(sums.iter().filter(|(user, _)| **user != "tight").map(|(_, sums)| f(sums)).sum::<i64>())
        };
        assert_eq!((&all["used"], &all["held"]), (&total(|s| s.used), &total(|s| s.held)), "node {number}");
        let open: i64 = sums.values().map(|sums| sums.open).sum();
        assert_eq!(pool["remaining"], PLACES - open, "places at node {number}: {pool}");
        views.extend([all, pool]);
    }
    views
}

/// The ledger's totals, user by user.
fn totals_are_of_settled_holds(pair: &Pair, sums: &BTreeMap<&'static str, Sums>) {
    let text = "SELECT name, sum(requests), sum(input_tokens), sum(output_tokens), sum(total_tokens)
                FROM day_totals WHERE tenant = $T AND kind = 0 GROUP BY name ORDER BY name COLLATE \"C\"";
    let settled = sums.iter().filter(|(_, sums)| sums.settled[0] > 0);
    let expected: Vec<String> = settled
        .map(|(user, Sums { settled: [requests, input, output, total], .. })| {
            format!("{user}|{requests}|{input}|{output}|{total}")
        })
        .collect();
    let mut found: Vec<String> = pair.psql(text).lines().map(str::to_owned).collect();
    found.sort();
    let mut expected = expected;
    expected.sort();
    assert_eq!(found, expected, "the ledger's totals");
}

/// Nothing stays in Redis for ever but a slot's state and what is not on record.
pub fn every_key_ends(redis: &[&Node]) {
    let text = "local found = {}
        for _, key in ipairs(redis.call('KEYS', 'ap:*')) do
            if redis.call('TTL', key) == -1 then found[#found + 1] = key end
        end
        return found";
    for node in redis {
        for key in node.run::<Vec<String>>(&["EVAL", text, "0"]) {
            assert!(key.ends_with(":meta") || key.ends_with(":e"), "{key} has no end");
        }
    }
}
