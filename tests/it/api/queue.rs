//! Checks that wait for a pool, or for a slot of their own.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::JoinHandle;

use crate::harness::compare::assert_has;
use crate::harness::sheets::{PoolSheet, Sheet};
use crate::harness::{Client, Reply, Server, Tenant};

/// Longer than anything takes here, on a machine that is crowded.
const PATIENCE: Duration = Duration::from_secs(30);

/// A tenant of a server on which nobody else waits.
struct Alone {
    t: Tenant,
    _turn: MutexGuard<'static, ()>,
}

impl std::ops::Deref for Alone {
    type Target = Tenant;

    fn deref(&self) -> &Tenant {
        &self.t
    }
}

async fn alone(sheet: Sheet, pool: PoolSheet) -> Alone {
    static SERVER: OnceLock<Server> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.lock().await;
    let server = tokio::task::spawn_blocking(|| SERVER.get_or_init(|| Server::start(&[]))).await.unwrap();
    let t = Tenant::on(server, "UTC", "2026-03-10T12:00:00.000Z").await;
    t.plan(&sheet).await;
    t.pool(&pool).await;
    Alone { t, _turn: turn }
}

fn pool() -> PoolSheet {
    PoolSheet::new("default", &["*"])
}

/// How many wait at a node, interactive and bulk.
pub async fn depth(of: &Client) -> (u64, u64) {
    let text = of.get("/metrics").await.text;
    let lane = |lane: &str| {
        let name = format!("apportion_queue_depth{{lane=\"{lane}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).expect("a depth")
    };
    (lane("interactive"), lane("bulk"))
}

pub async fn until_depth(of: &Client, wanted: (u64, u64)) {
    let from = Instant::now();
    loop {
        let now = depth(of).await;
        if now == wanted {
            return;
        }
        assert!(from.elapsed() < PATIENCE, "{now:?} wait, not {wanted:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn waits(client: &Client, body: Value) -> JoinHandle<Reply> {
    let client = client.clone();
    tokio::spawn(async move { client.check(body).await })
}

fn call(user: &str, wait_ms: u32) -> Value {
    json!({"user": user, "wait_ms": wait_ms, "input_tokens": 1, "max_output_tokens": 1})
}

#[tokio::test]
async fn a_call_waits_until_a_place_is_free() {
    let t = alone(Sheet::new().dr(10), pool().places(1)).await;
    let first = t.ask("a", 0, 0).await.hold_id();
    let waiting = waits(&t, call("b", 60_000));
    until_depth(&t, (1, 0)).await;
    assert_has(&t.left("b", "requests_per_day").await, &json!({"used": 0}));
    t.finish(&first, 0, 0).await.ok();
    let admitted = waiting.await.unwrap();
    assert_has(&admitted.row("pool_places"), &json!({"in_use": 1}));
    until_depth(&t, (0, 0)).await;
    t.ask("c", 0, 0).await.refused(429, "upstream_capacity_exceeded");
}

#[tokio::test]
async fn a_moved_clock_is_answered_when_all_who_wait_have_looked() {
    let t = alone(Sheet::new().dr(10), pool().requests(1, 60)).await;
    assert_eq!(t.get("/v1/admin/clock").await.ok()["waiting"], 0);
    t.ask("z", 0, 0).await.ok();
    let waiting: Vec<_> = ["a", "b", "c"].into_iter().map(|user| waits(&t, call(user, 30_000))).collect();
    until_depth(&t, (3, 0)).await;
    let at = |second: &str| format!("2026-03-10T12:00:{second}Z");
    let resting = |waiting, second| match waiting {
        0 => json!({"waiting": 0}),
        _ => json!({"waiting": waiting, "next_look_at": at(second)}),
    };
    assert_has(&t.get("/v1/admin/clock").await.ok(), &resting(3, "01.000"));
    for (to, waiting, next) in [("00.999", 3, "01.000"), ("01.000", 2, "02.000"), ("09.000", 1, "10.000")] {
        assert_has(&t.put_clock(&at(to)).await.ok(), &resting(waiting, next));
    }
    let ended = t.put_clock(&at("30.000")).await.ok();
    assert_has(&ended, &resting(0, ""));
    assert_eq!(ended.get("next_look_at"), None);
    for call in waiting {
        call.await.unwrap().ok();
    }
    assert_eq!(t.left("c", "requests_per_day").await["used"], 1);
}

#[tokio::test]
async fn a_call_waits_for_a_slot_of_its_own() {
    let t = alone(Sheet::new().cc(1), pool().places(9)).await;
    let first = t.ask("a", 0, 0).await.hold_id();
    let waiting = waits(&t, call("a", 60_000));
    until_depth(&t, (1, 0)).await;
    // It is in nobody's way.
    t.ask("b", 0, 0).await.ok();
    t.finish(&first, 0, 0).await.ok();
    waiting.await.unwrap().ok();
}

#[tokio::test]
async fn what_waiting_does_not_help_against_is_refused_at_once() {
    let t = alone(Sheet::new().dr(1), pool().requests(2, 1)).await;
    t.ask("a", 0, 0).await.ok();
    t.check(call("a", 60_000)).await.refused(429, "daily_quota_exhausted");
    t.ask("b", 0, 0).await.ok();
    // The next one comes in a minute: nobody waits half of one for that.
    let refused = t.check(call("c", 59_999)).await.refused(429, "upstream_capacity_exceeded");
    assert_eq!(refused.body["retry_after_ms"], 60_000);
    let waiting = waits(&t, call("c", 60_000));
    until_depth(&t, (1, 0)).await;
    // With one before it, the next but one comes in two.
    let refused = t.check(call("d", 60_000)).await.refused(429, "upstream_capacity_exceeded");
    assert!(refused.body["retry_after_ms"].as_i64().is_some_and(|ms| ms >= 120_000), "{}", refused.text);
    t.pass(60_000).await;
    // Its time is over at the same instant: it is asked a last time.
    waiting.await.unwrap().ok();
    let mut dry = call("e", 60_000);
    dry["dry_run"] = json!(true);
    t.check(dry).await.refused(429, "upstream_capacity_exceeded");
}

#[tokio::test]
async fn a_wait_ends_on_the_tenants_clock() {
    let t = alone(Sheet::new().dr(10), pool().places(1)).await;
    let first = t.ask_for("a", 0, 0, 3600).await.hold_id();
    let waiting = waits(&t, call("b", 5_000));
    until_depth(&t, (1, 0)).await;
    t.pass(4_999).await;
    assert!(!waiting.is_finished());
    t.pass(1).await;
    let refused = waiting.await.unwrap().refused(429, "queue_timeout");
    assert_has(&refused.body, &json!({"retryable": true, "limit": "pool_places"}));
    assert!(refused.body["retry_after_ms"].as_i64().is_some_and(|ms| ms > 0), "{}", refused.text);
    t.finish(&first, 0, 0).await.ok();
    assert_has(&t.ask("c", 0, 0).await.row("pool_places"), &json!({"in_use": 1}));
}

#[tokio::test]
async fn no_more_wait_than_the_pool_lets() {
    let t = alone(Sheet::new().dr(10), pool().places(1).field("max_queue", json!(1))).await;
    let first = t.ask_for("a", 0, 0, 3600).await.hold_id();
    let waiting = waits(&t, call("b", 60_000));
    until_depth(&t, (1, 0)).await;
    let refused = t.check(call("c", 60_000)).await.refused(429, "queue_full");
    assert_has(&refused.body, &json!({"retryable": true, "limit": "pool_places"}));
    t.finish(&first, 0, 0).await.ok();
    waiting.await.unwrap().ok();
}

#[tokio::test]
async fn who_comes_first_goes_first_and_bulk_goes_last() {
    let t = alone(Sheet::new().dr(100), pool().places(1)).await;
    let mut hold = t.ask_for("first", 0, 0, 3600).await.hold_id();
    let mut calls = Vec::new();
    for (n, (name, lane)) in
        [("e", "bulk"), ("a", "interactive"), ("f", "bulk"), ("b", "interactive"), ("c", "interactive")]
            .into_iter()
            .enumerate()
    {
        let mut body = call(name, 60_000);
        body["priority"] = json!(lane);
        calls.push((name, waits(&t, body)));
        let bulk = if n < 2 { 1 } else { 2 };
        until_depth(&t, (n as u64 + 1 - bulk, bulk)).await;
    }
    calls.sort_by_key(|(name, _)| *name);
    for (name, waiting) in calls {
        t.finish(&hold, 0, 0).await.ok();
        let admitted = waiting.await.unwrap().ok();
        assert_eq!(admitted["hold"]["user"], name);
        hold = admitted["hold"]["id"].as_str().unwrap().to_owned();
    }
}

#[tokio::test]
async fn bulk_that_has_waited_long_is_one_of_all() {
    let t = alone(Sheet::new().dr(100), pool().places(2).field("interactive_share", json!(0.5))).await;
    let first = t.ask_for("a", 0, 0, 3600).await.hold_id();
    let second = t.ask_for("b", 0, 0, 3600).await.hold_id();
    let mut bulk = call("bulk", 60_000);
    bulk["priority"] = json!("bulk");
    let bulk = waits(&t, bulk);
    until_depth(&t, (0, 1)).await;
    t.finish(&first, 0, 0).await.ok();
    // One place is kept from bulk; who comes may have it.
    t.ask_for("c", 0, 0, 3600).await.ok();
    t.pass(30_000).await;
    let later = waits(&t, call("d", 20_000));
    until_depth(&t, (1, 1)).await;
    t.finish(&second, 0, 0).await.ok();
    bulk.await.unwrap().ok();
    assert!(!later.is_finished(), "it came after that");
    t.pass(20_000).await;
    later.await.unwrap().refused(429, "queue_timeout");
}

#[tokio::test]
async fn a_large_call_is_overtaken_for_a_while_only() {
    let t = alone(Sheet::new().dr(100), pool().output_tokens(100, 60)).await;
    let tokens = |user: &str, output: u32, wait_ms: u32| json!({"user": user, "max_output_tokens": output, "wait_ms": wait_ms});
    t.spend("a", 0, 90).await;
    let large = waits(&t, tokens("large", 60, 60_000));
    until_depth(&t, (1, 0)).await;
    t.check(tokens("b", 2, 0)).await.ok();
    t.pass(5_000).await;
    t.check(tokens("b", 2, 0)).await.refused(429, "upstream_capacity_exceeded");
    // 8 and 5 are there: 47 more are needed.
    t.pass(46_000).await;
    assert!(!large.is_finished());
    t.pass(1_000).await;
    large.await.unwrap().ok();
    t.check(tokens("b", 1, 0)).await.refused(429, "upstream_capacity_exceeded");
}

#[tokio::test]
async fn a_repeated_call_that_waited_is_one() {
    let t = alone(Sheet::new().dr(10), pool().places(1)).await;
    let first = t.ask("a", 0, 0).await.hold_id();
    let mut body = call("b", 60_000);
    body["request_id"] = json!("r");
    let (one, two) = (waits(&t, body.clone()), waits(&t, body));
    until_depth(&t, (2, 0)).await;
    t.finish(&first, 0, 0).await.ok();
    assert_eq!(one.await.unwrap().hold_id(), two.await.unwrap().hold_id());
    assert_has(&t.left("b", "requests_per_day").await, &json!({"used": 1}));
}

/// Sends a check over a connection of its own.
pub async fn by_hand(client: &Client, body: &Value) -> tokio::net::TcpStream {
    let address = client.url.trim_start_matches("http://").to_owned();
    let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
    let body = body.to_string();
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        client.token,
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn who_hangs_up_leaves_and_takes_nothing() {
    let t = alone(Sheet::new().dr(10), pool().places(1)).await;
    let first = t.ask_for("a", 0, 0, 3600).await.hold_id();
    for whole in [true, false] {
        let mut gone = by_hand(&t, &call("b", 60_000)).await;
        until_depth(&t, (1, 0)).await;
        if whole {
            drop(gone);
        } else {
            gone.shutdown().await.unwrap();
            let mut answer = Vec::new();
            gone.read_to_end(&mut answer).await.unwrap();
            assert!(answer.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer));
        }
        until_depth(&t, (0, 0)).await;
    }
    t.finish(&first, 0, 0).await.ok();
    t.ask("c", 0, 0).await.ok();
    assert_has(&t.left("b", "requests_per_day").await, &json!({"used": 0}));
    let metrics = t.get("/metrics").await.text;
    let hung_up = "apportion_queue_wait_seconds_count{lane=\"interactive\",outcome=\"hung_up\"} ";
    assert!(metrics.lines().any(|line| line.strip_prefix(hung_up).is_some_and(|n| n != "0")), "{metrics}");
}

#[tokio::test]
async fn of_several_models_the_one_is_waited_for_that_can_be() {
    for (max_queue, closed) in [(1000, true), (0, false)] {
        for models in [json!(["big", "small"]), json!(["small", "big"])] {
            let big = PoolSheet::new("big", &["big"]).places(1).field("max_queue", json!(max_queue));
            let t = alone(Sheet::new(), big).await;
            t.pool(&PoolSheet::new("small", &["small"]).places(1)).await;
            t.check(json!({"user": "v", "model": "big"})).await.ok();
            let hold = t.check(json!({"user": "v", "model": "small"})).await.hold_id();
            if closed {
                t.post("/v1/pools/big/feedback", &json!({"status": 402})).await.ok();
            }
            let waiting = waits(&t, json!({"user": "u", "models": models, "wait_ms": 30_000}));
            until_depth(&t, (1, 0)).await;
            t.release(&hold).await.ok();
            let served = waiting.await.unwrap();
            assert_eq!(served.body["granted"]["model"], "small", "{}", served.text);
        }
    }
}

/// Of output that is counted once it is there, those ahead take little to begin with.
#[tokio::test]
async fn a_wait_is_not_made_longer_by_output_that_nobody_knows_yet() {
    let limit = json!({"name": "out", "kind": "bucket", "meter": "output_tokens", "capacity": 100, "refill_per_minute": 600});
    let t = alone(Sheet::new(), pool().field("counts", json!("actual")).limit(limit)).await;
    let ask = |user: &str| json!({"user": user, "wait_ms": 10_000, "max_output_tokens": 10_000});
    let first = t.check(ask("first")).await.hold_id();
    // One token too many was made for each tenth of five seconds.
    t.finish(&first, 0, 150).await.ok();
    let mut waiting = Vec::new();
    for n in 1..=5 {
        waiting.push(waits(&t, ask(&format!("u{n}"))));
        until_depth(&t, (n, 0)).await;
    }
    t.pass(5_600).await;
    for one in waiting {
        one.await.unwrap().ok();
    }
}
