//! Usage is handed on while everybody dies: two exporters at once, fifty times at any step, and
//! the service with kill -9. The receiver keeps the first of each id, and its sums are the ledger's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::exporting::{Life, Receiver, export};
use super::process::Process;
use crate::harness::sheets::Sheet;
use crate::harness::{Client, Pair, cli, number_from_env, percent, row};
use crate::model::rng::Rng;

const CALLERS: u64 = 4;
const EXPORTERS: u64 = 2;
/// The tenant's clock by round: the last minute of January three times, then February; two hours
/// later the rule has ended what was left open.
const CLOCKS: [&str; 6] = [
    "2026-01-31T23:59:01.000Z",
    "2026-01-31T23:59:30.000Z",
    "2026-01-31T23:59:59.999Z",
    "2026-02-01T00:00:00.000Z",
    "2026-02-01T02:00:00.000Z",
    "2026-02-01T02:00:01.000Z",
];

#[derive(Default)]
struct World {
    receiver: Receiver,
    /// How far exporters came, as they noted it.
    place: Mutex<Option<String>>,
    killed: AtomicUsize,
    /// Holds that were answered, and those that nobody has ended.
    holds: Mutex<BTreeSet<String>>,
    open: Mutex<Vec<String>>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_used_is_handed_on_once_whoever_dies_and_in_the_month_of_its_admission() {
    let kept = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let token = prepare(kept.path()).await;
    let world = Arc::new(World::default());
    let kills = number_from_env("EXPORTER_KILLS", 50);
    let mut rng = Rng::new(4);
    for (round, clock) in CLOCKS.iter().enumerate() {
        let process = Process::serve(kept.path(), "commit");
        let client = Client::new(&process.url, &token);
        client.put_clock(clock).await.ok();
        live(&world, &client, round as u64, usize::try_from(rng.between(20, 60)).unwrap(), process).await;
    }
    let process = Process::serve(kept.path(), "commit");
    let client = Client::new(&process.url, &token);
    loop {
        let is_enough = world.killed.load(SeqCst) >= kills;
        let steps = if is_enough { usize::MAX } else { usize::try_from(rng.between(1, 40)).unwrap() };
        match life(&world, &client, steps, &mut rng).await {
            Life::Done if is_enough => break,
            _ => {}
        }
    }
    verify(&world, &client).await;
    let (events, repeated) = (world.receiver.kept().len(), world.receiver.repeated.load(SeqCst));
    println!("{events} events, {repeated} repetitions, {} exporters killed", world.killed.load(SeqCst));
    assert!(events >= 100 && repeated > 0);
}

async fn prepare(data: &Path) -> String {
    cli(data, &["tenant", "create", "crash", "--test"]);
    let scope = "check quota admin:write";
    let token = cli(data, &["token", "mint", "--tenant", "crash", "--scope", scope, "--ttl", "24h"]);
    let process = Process::serve(data, "commit");
    let client = Client::new(&process.url, &token);
    client.put_clock("2026-01-31T23:59:00.000Z").await.ok();
    let sheet = Sheet::new().per("life", json!("lifetime"), 900_000_000).mt(900_000_000);
    client.put_plan(&sheet.json()).await.ok();
    let rule = json!({"hours": 1, "then": "charge"});
    client.put_settings(json!({"default_plan": "p", "in_doubt_after": rule})).await.ok();
    process.kill();
    token
}

/// Callers and exporters at work, until the service dies under them.
async fn live(world: &Arc<World>, client: &Client, round: u64, stop_after: usize, process: Process) {
    let answered = Arc::new(AtomicUsize::new(0));
    let callers = (0..CALLERS).map(|caller| {
        let (world, client, answered) = (Arc::clone(world), client.clone(), Arc::clone(&answered));
        tokio::spawn(async move {
            let mut rng = Rng::new(round * 100 + caller);
            while call(&world, &client, &mut rng, round >= 3).await.is_ok() {
                answered.fetch_add(1, SeqCst);
            }
        })
    });
    let exporters = (0..EXPORTERS).map(|exporter| {
        let (world, client) = (Arc::clone(world), client.clone());
        tokio::spawn(async move {
            let mut rng = Rng::new(round * 100 + 50 + exporter);
            loop {
                let steps = usize::try_from(rng.between(1, 40)).unwrap();
                if life(&world, &client, steps, &mut rng).await == Life::Unanswered {
                    return;
                }
            }
        })
    });
    let everybody: Vec<_> = callers.chain(exporters.collect::<Vec<_>>()).collect();
    while answered.load(SeqCst) < stop_after {
        tokio::task::yield_now().await;
    }
    process.kill();
    for one in everybody {
        one.await.expect("they end when nobody answers");
    }
}

/// One life of an exporter; now and then its note of the place is an old one.
async fn life(world: &World, client: &Client, steps: usize, rng: &mut Rng) -> Life {
    if rng.between(0, 9) == 0 {
        *world.place.lock().unwrap() = None;
    }
    let life = export(client, &world.receiver, &world.place, steps, rng).await;
    if life == Life::Killed {
        world.killed.fetch_add(1, SeqCst);
    }
    life
}

/// A call and mostly its end, or the end of an earlier one. An error: no answer came.
async fn call(world: &World, client: &Client, rng: &mut Rng, ends_old: bool) -> reqwest::Result<()> {
    let old = world.open.lock().unwrap().pop().filter(|_| ends_old);
    let hold = match old {
        Some(hold) => hold,
        None => {
            let body = json!({"user": format!("u{}", rng.between(0, 2)), "model": "sonnet",
                              "input_tokens": rng.between(0, 900), "max_output_tokens": rng.between(1, 900),
                              "lease_seconds": 600});
            let made = answer(client, "/v1/check", &body).await?;
            let hold = made["hold"]["id"].as_str().unwrap_or_else(|| panic!("no hold: {made}")).to_owned();
            world.holds.lock().unwrap().insert(hold.clone());
            hold
        }
    };
    match rng.between(0, 9) {
        0 | 1 => world.open.lock().unwrap().push(hold),
        2 => _ = answer(client, &format!("/v1/holds/{hold}/release"), &json!({})).await?,
        _ => {
            let body = json!({"input_tokens": rng.between(0, 900), "output_tokens": rng.between(0, 1200)});
            answer(client, &format!("/v1/holds/{hold}/settle"), &body).await?;
        }
    }
    Ok(())
}

async fn answer(client: &Client, path: &str, body: &Value) -> reqwest::Result<Value> {
    client.request(reqwest::Method::POST, path).json(body).send().await?.json().await
}

/// Each finished hold has its events, these add up to what it counts, and all of them to what
/// the reports and the windows say.
async fn verify(world: &World, client: &Client) {
    let events = world.receiver.kept();
    let mut by_hold: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for event in events.values() {
        by_hold.entry(event["hold"].as_str().expect("a hold").to_owned()).or_default().push(event);
    }
    // Also those of which nobody heard, since the service died.
    let holds: BTreeSet<String> = world.holds.lock().unwrap().iter().chain(by_hold.keys()).cloned().collect();
    for id in &holds {
        let hold = client.hold(id).await.ok()["hold"].clone();
        let told = by_hold.get(id).map(Vec::as_slice).unwrap_or_default();
        assert_eq!(told.is_empty(), hold.get("finished_at").is_none(), "{hold}");
        for event in told {
            assert_eq!((&event["at"], &event["user"]), (&hold["created_at"], &hold["user"]), "{event}");
            let is_january = hold["created_at"].as_str().is_some_and(|at| at < "2026-02-01");
            assert_eq!(event["day"], if is_january { "2026-01-31" } else { "2026-02-01" });
        }
        for meter in ["requests", "input_tokens", "output_tokens", "total_tokens", "credits"] {
            let sum: i64 = told.iter().filter_map(|event| event["counted"][meter].as_i64()).sum();
            assert_eq!(sum, hold["counted"][meter].as_i64().unwrap_or(0), "{meter} of {hold}");
        }
        let parts: Vec<String> = told.iter().map(|event| event["id"].to_string()).collect();
        assert!(parts.len() <= 1 || parts[1].ends_with(":2\""), "{parts:?}");
    }
    for (from, to, month) in
        [("2026-01-01", "2026-02-01", "2026-01"), ("2026-02-01", "2026-03-01", "2026-02")]
    {
        let page = client.get(&format!("/v1/admin/consumers?from={from}&to={to}&group=user")).await.ok();
        let mut rows = page["data"].as_array().expect("rows").clone();
        rows.sort_by_key(|row| row["user"].to_string());
        assert!(!rows.is_empty(), "calls in both months");
        for row in rows {
            for meter in ["requests", "input_tokens", "output_tokens", "total_tokens"] {
                let theirs = |event: &Value| {
                    event["user"] == row["user"]
                        && event["day"].as_str().is_some_and(|day| day.starts_with(month))
                };
                assert_eq!(
                    world.receiver.sum(meter, theirs),
                    row[meter].as_i64().unwrap(),
                    "{meter} of {row}"
                );
            }
        }
    }
    for user in ["u0", "u1", "u2"] {
        let quota = client.get(&format!("/v1/users/{}/quota", percent(user))).await.ok();
        let life = row(&quota, "life");
        let used = world.receiver.sum("total_tokens", |event| event["user"] == user);
        assert_eq!(Some(used), life["used"].as_i64(), "{life}");
    }
}

/// On a crowded machine a store may be late; the same call again changes nothing.
async fn patiently(client: &Client, path: &str, body: Option<&Value>) -> Value {
    for _ in 0..20 {
        let reply = match body {
            Some(body) => client.post(path, body).await,
            None => client.get(path).await,
        };
        if reply.status != 503 {
            return reply.ok();
        }
    }
    panic!("the store does not come back")
}

/// A hundred ends at once on two nodes: whichever node pages are read from, none is missed and
/// none comes twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_miss_nothing_while_two_nodes_end_a_hundred_holds_at_once() {
    static NODES: Pair = Pair::new();
    let Some((t, other)) = NODES.tenant().await else { return };
    t.plan(&Sheet::new().mt(900_000_000)).await;
    let mut holds = Vec::new();
    for nth in 0..100 {
        holds.push(t.ask(&format!("u{}", nth % 7), 10, 10).await.hold_id());
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let readers = [t.client.clone(), other.clone(), other.clone()].map(|client| {
        let is_over = Arc::clone(&is_over);
        tokio::spawn(async move {
            let (mut seen, mut cursor) = (Vec::new(), String::new());
            loop {
                let was_over = is_over.load(SeqCst);
                let path = format!("/v1/admin/usage/events?limit=3{cursor}");
                let page = patiently(&client, &path, None).await;
                let events = page["data"].as_array().expect("events");
                seen.extend(events.iter().map(|event| event["hold"].as_str().expect("a hold").to_owned()));
                cursor = format!("&after={}", page["next_cursor"].as_str().expect("a cursor"));
                if page["more"] == false && was_over {
                    return seen;
                }
            }
        })
    });
    let ends = holds.iter().enumerate().map(|(nth, hold)| {
        let client = if nth % 2 == 0 { &t.client } else { &other };
        let used = json!({"input_tokens": 7, "output_tokens": 3});
        async move { patiently(client, &format!("/v1/holds/{hold}/settle"), Some(&used)).await }
    });
    join_all(ends).await;
    is_over.store(true, SeqCst);
    for reader in readers {
        let seen = reader.await.expect("a reader ends");
        assert_eq!(seen.len(), 100);
        assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), holds.iter().cloned().collect());
    }
}
