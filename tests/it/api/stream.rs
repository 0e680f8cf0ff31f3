//! A user watches what they have left: every change, and nothing else.

use serde_json::{Value, json};

use crate::harness::sheets::Sheet;
use crate::harness::{Client, Events, Reply, Server, Tenant, row};

/// A client with a token of this user.
fn user(t: &Tenant, user: &str) -> Client {
    t.with_token(&t.token(&["--user", user]))
}

async fn watch(t: &Tenant, id: &str) -> Events {
    open(&user(t, id)).await
}

async fn open(client: &Client) -> Events {
    Events::open(client).await.unwrap_or_else(|reply| panic!("{} {}", reply.status, reply.text))
}

async fn refused(client: &Client) -> Reply {
    Events::open(client).await.expect_err("a refusal")
}

fn used(quota: &Value, limit: &str) -> i64 {
    row(quota, limit)["used"].as_i64().expect("a number")
}

#[tokio::test]
async fn a_stream_begins_with_what_a_get_shows() {
    let t = Tenant::with(Sheet::new().rb(5, 5).mt(1000)).await;
    t.spend("u", 10, 20).await;
    let client = user(&t, "u");
    let mut events = open(&client).await;
    assert_eq!(events.header("content-type"), Some("text/event-stream"));
    assert_eq!(events.header("cache-control"), Some("no-store"));
    assert_eq!(events.header("x-accel-buffering"), Some("no"));
    assert_eq!(events.text().await, client.get("/v1/me/quota").await.text);
}

#[tokio::test]
async fn a_user_nobody_has_seen_may_watch_and_is_told_of_the_first_call() {
    let t = Tenant::with(Sheet::new().dr(10)).await;
    let mut events = watch(&t, "new").await;
    assert_eq!(used(&events.quota().await, "requests_per_day"), 0);
    t.get("/v1/admin/users/new").await.refused(404, "not_found");
    t.ask("new", 0, 0).await.ok();
    assert_eq!(used(&events.quota().await, "requests_per_day"), 1);
}

#[tokio::test]
async fn every_step_of_a_call_is_told() {
    let t = Tenant::with(Sheet::new().mt(10_000).cc(2)).await;
    let mut events = watch(&t, "u").await;
    events.quota().await;
    let hold = t.ask("u", 100, 100).await.hold_id();
    let quota = events.until(|quota| row(quota, "tokens_per_month")["held"] == 200).await;
    assert_eq!(row(&quota, "concurrency")["in_use"], 1);
    t.extend(&hold, json!({"add_output_tokens": 50})).await.ok();
    events.until(|quota| row(quota, "tokens_per_month")["held"] == 250).await;
    t.finish(&hold, 100, 10).await.ok();
    let quota = events.until(|quota| used(quota, "tokens_per_month") == 110).await;
    assert_eq!(row(&quota, "concurrency")["in_use"], 0);

    let hold = t.ask("u", 100, 100).await.hold_id();
    t.release(&hold).await.ok();
    let hold = t.ask("u", 1, 1).await.hold_id();
    t.settle(&hold, json!({"usage": "unknown"})).await.ok();
    let quota = events.until(|quota| row(quota, "tokens_per_month")["held"] == 2).await;
    assert_eq!(row(&quota, "concurrency")["in_use"], 0);
    let item = json!({"id": "1", "user": "u", "input_tokens": 5, "output_tokens": 0});
    t.usage(&json!({"items": [item]})).await.ok();
    events.until(|quota| used(quota, "tokens_per_month") == 115).await;
}

#[tokio::test]
async fn the_last_state_always_arrives_and_no_more_than_two_a_second() {
    let t = Tenant::with(Sheet::new().dr(1000)).await;
    let mut events = watch(&t, "u").await;
    events.quota().await;
    let begun = std::time::Instant::now();
    for _ in 0..50 {
        t.ask("u", 0, 0).await.ok();
    }
    let mut told = 0;
    while used(&events.quota().await, "requests_per_day") < 50 {
        told += 1;
    }
    // The one that ends the loop, and the first may follow a short while after the snapshot.
    assert!(told <= 2 * begun.elapsed().as_secs() + 2, "{told} in {:?}", begun.elapsed());
    assert!(events.is_silent().await);
}

#[tokio::test]
async fn refill_and_other_peoples_calls_are_not_told() {
    let t = Tenant::with(Sheet::new().rb(10, 6).dr(100)).await;
    for _ in 0..5 {
        t.ask("u", 0, 0).await.ok();
    }
    let mut events = watch(&t, "u").await;
    events.quota().await;
    t.ask("other", 0, 0).await.ok();
    t.pass(10_000).await;
    assert_eq!(t.remaining("u", "requests_per_minute").await, 6, "it has refilled");
    t.put_settings(json!({"max_auto_retry_seconds": 30})).await.ok();
    assert!(events.is_silent().await);
    // It is full by then, and a call is news again.
    t.pass(60_000).await;
    assert!(events.is_silent().await);
    t.ask("u", 0, 0).await.ok();
    let quota = events.quota().await;
    assert_eq!(
        (used(&quota, "requests_per_day"), row(&quota, "requests_per_minute")["remaining"].as_i64()),
        (6, Some(9))
    );
}

#[tokio::test]
async fn a_call_that_only_a_bucket_counts_is_told() {
    let t = Tenant::with(Sheet::new().rb(10, 6)).await;
    let mut events = watch(&t, "u").await;
    events.quota().await;
    t.ask("u", 0, 0).await.ok();
    assert_eq!(row(&events.quota().await, "requests_per_minute")["remaining"], 9);
}

#[tokio::test]
async fn changes_of_plan_user_and_settings_are_told() {
    let t = Tenant::with(Sheet::new().dr(10)).await;
    let mut events = watch(&t, "u").await;
    events.quota().await;
    t.put_plan(&Sheet::new().dr(20).json()).await.ok();
    let quota = events.until(|quota| row(quota, "requests_per_day")["limit"] == 20).await;
    assert_eq!(quota["plan"]["version"], 2);
    t.put_plan(&Sheet::named("pro").dr(500).json()).await.ok();
    t.put_settings(json!({"default_plan": "pro"})).await.ok();
    events.until(|quota| quota["plan"]["id"] == "pro").await;
    t.set_plan("u", "p").await.ok();
    events.until(|quota| quota["plan"]["id"] == "p").await;
    t.put_user("u", json!({"zone": "Asia/Tokyo"})).await.ok();
    events.until(|quota| row(quota, "requests_per_day")["window"]["zone"] == "Asia/Tokyo").await;
}

#[tokio::test]
async fn the_turn_of_a_window_and_the_end_of_a_lease_are_told() {
    let t = Tenant::with(Sheet::new().dr(10).cc(1)).await;
    t.ask_for("u", 0, 0, 600).await.ok();
    let mut events = watch(&t, "u").await;
    assert_eq!(row(&events.quota().await, "concurrency")["in_use"], 1);
    t.pass(600_000).await;
    let quota = events.until(|quota| row(quota, "concurrency")["in_use"] == 0).await;
    assert_eq!(used(&quota, "requests_per_day"), 1);
    t.set_clock("2026-03-11T00:00:00.000Z").await;
    let quota = events.until(|quota| used(quota, "requests_per_day") == 0).await;
    assert_eq!(row(&quota, "requests_per_day")["resets_at"], "2026-03-12T00:00:00.000Z");
}

#[tokio::test]
async fn where_time_passes_by_itself_the_end_of_a_lease_is_told_when_it_comes() {
    let server = Server::shared();
    let mint = |arguments: &[&str]| {
        let all = [&["token", "mint", "--tenant", "running-clock"], arguments].concat();
        crate::harness::cli(&server.data, &all)
    };
    crate::harness::cli(&server.data, &["tenant", "create", "running-clock"]);
    let backend = Client::new(&server.url, &mint(&["--scope", "check admin:read admin:write"]));
    let sheet = Sheet::new().cc(1);
    backend.put_plan(&sheet.json()).await.ok();
    backend.put_settings(json!({"default_plan": "p"})).await.ok();
    let mut events = open(&backend.with_token(&mint(&["--user", "u"]))).await;
    events.quota().await;
    backend.check(json!({"user": "u", "lease_seconds": 1})).await.ok();
    events.until(|quota| row(quota, "concurrency")["in_use"] == 1).await;
    assert_eq!(row(&events.quota().await, "concurrency")["in_use"], 0);
}

#[tokio::test]
async fn members_of_an_org_are_told_of_each_others_calls() {
    let shared =
        |id: &str| Sheet::named(id).per("org_tokens", json!("month"), 1000).but("scope", json!("org"));
    let t = Tenant::with(shared("p")).await;
    for member in ["ann", "bob"] {
        t.put_user(member, json!({"org": "acme"})).await.ok();
    }
    t.put_user("eve", json!({"org": "rival"})).await.ok();
    let mut ann = watch(&t, "ann").await;
    let mut eve = watch(&t, "eve").await;
    ann.quota().await;
    eve.quota().await;
    t.spend("bob", 10, 20).await;
    ann.until(|quota| used(quota, "org_tokens") == 30).await;
    // Whoever moves is told of the other org, and no more of the first.
    t.put_user("ann", json!({"org": "rival"})).await.ok();
    ann.until(|quota| used(quota, "org_tokens") == 0).await;
    t.spend("bob", 1, 1).await;
    assert!(ann.is_silent().await && eve.is_silent().await);
    t.spend("eve", 2, 3).await;
    ann.until(|quota| used(quota, "org_tokens") == 5).await;
}

#[tokio::test]
async fn limits_of_the_tenant_are_not_shown_and_wake_nobody() {
    let sheet = Sheet::new().dr(10).per("all_tokens", json!("month"), 1000).but("scope", json!("tenant"));
    let t = Tenant::with(sheet).await;
    let mut events = watch(&t, "u").await;
    let quota = events.quota().await;
    assert!(quota["limits"].as_array().unwrap().iter().all(|row| row["name"] != "all_tokens"), "{quota}");
    t.spend("other", 1, 1).await;
    assert!(events.is_silent().await);
}

#[tokio::test]
async fn a_user_of_the_same_name_elsewhere_is_somebody_else() {
    let t = Tenant::with(Sheet::new().dr(10)).await;
    let elsewhere = Tenant::with(Sheet::new().dr(10)).await;
    let mut events = watch(&t, "u").await;
    events.quota().await;
    elsewhere.ask("u", 0, 0).await.ok();
    elsewhere.set_clock("2026-03-11T12:00:00.000Z").await;
    assert!(events.is_silent().await);
}

#[tokio::test]
async fn a_user_has_four_streams_and_a_place_is_free_soon_after_a_hang_up() {
    let t = Tenant::with(Sheet::new().dr(10)).await;
    let client = user(&t, "u");
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(open(&client).await);
    }
    let reply = refused(&client).await.refused(503, "stream_limit");
    assert_eq!(reply.body["retryable"], true);
    assert_eq!(reply.header("retry-after"), Some("1"));
    // HEAD takes no place, and others have places of their own.
    let head = t.with_token(&client.token).request(reqwest::Method::HEAD, "/v1/me/quota/stream");
    let head = head.send().await.unwrap();
    assert_eq!(head.status(), 200);
    assert_eq!(head.headers()["content-type"], "text/event-stream");
    watch(&t, "other").await.quota().await;

    streams.pop();
    let mut tries = tokio::time::interval(std::time::Duration::from_millis(100));
    let found = async {
        loop {
            tries.tick().await;
            if let Ok(events) = Events::open(&client).await {
                return events;
            }
        }
    };
    let limit = std::time::Duration::from_secs(10);
    let mut again = tokio::time::timeout(limit, found).await.expect("a place within some seconds");
    again.quota().await;
}

#[tokio::test]
async fn a_node_has_as_many_streams_as_its_setting_says() {
    let server: &'static Server = Box::leak(Box::new(Server::start(&[("APPORTION_MAX_STREAMS", "1")])));
    let t = Tenant::on(server, "UTC", "2026-03-10T12:00:00.000Z").await;
    let mut first = watch(&t, "ann").await;
    first.quota().await;
    refused(&user(&t, "bob")).await.refused(503, "stream_limit");
    assert!(t.get("/metrics").await.text.contains("apportion_quota_streams 1\n"));
    assert!(t.get("/metrics").await.text.contains("apportion_quota_events_total 1\n"));
}

#[tokio::test]
async fn a_stream_ends_with_its_token() {
    let t = Tenant::with(Sheet::new().dr(10)).await;
    let mut events = open(&t.with_token(&t.token(&["--user", "u", "--ttl", "2s"]))).await;
    assert_eq!(events.end().await, 1);
}

#[tokio::test]
async fn a_stream_ends_with_its_key() {
    let t = Tenant::with(Sheet::new().dr(10)).await;
    let mut events = watch(&t, "u").await;
    events.quota().await;
    let keys = t.get("/v1/admin/keys").await.ok();
    let kid = keys["data"][0]["kid"].as_str().expect("the key that signs").to_owned();
    let removed = t.send(t.request(reqwest::Method::DELETE, &format!("/v1/admin/keys/{kid}"))).await;
    assert_eq!(removed.status, 204, "{}", removed.text);
    assert_eq!(events.end().await, 0);
}

#[tokio::test]
async fn only_user_tokens_reach_the_stream_and_pages_may_read_it() {
    let t = Tenant::with(Sheet::new().dr(10)).await;
    refused(&t.client).await.refused(403, "forbidden");
    refused(&t.with_token("nonsense")).await.refused(401, "unauthenticated");
    t.post("/v1/me/quota/stream", &json!({})).await.refused(405, "method_not_allowed");
    t.put_settings(json!({"cors_origins": ["https://app.example"]})).await.ok();
    let request = user(&t, "u").request(reqwest::Method::GET, "/v1/me/quota/stream");
    let answer = request.header("origin", "https://app.example").send().await.unwrap();
    assert_eq!(answer.headers()["access-control-allow-origin"], "https://app.example");
}
