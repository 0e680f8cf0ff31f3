//! Thresholds and doubts that webhooks are told of: each once, however many cross at once.

use serde_json::{Value, json};

use crate::harness::compare::assert_has;
use crate::harness::receiver::Answer;
use crate::harness::sheets::Sheet;
use crate::harness::{Client, Pair, Receiver, Tenant};

static NODES: Pair = Pair::new();

const QUOTA: [&str; 2] = ["quota.warned", "quota.exhausted"];

fn warning() -> Sheet {
    Sheet::named("free").mt(1000).but("warn_at", json!([0.8]))
}

/// Waits until a webhook has so many messages, and gives them, oldest first.
async fn told(t: &Client, webhook: &Value, count: usize) -> Vec<Value> {
    for _ in 0..1200 {
        let mut told = t.deliveries(webhook).await;
        if told.len() >= count {
            told.reverse();
            return told;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("{count} messages: {:?}", t.deliveries(webhook).await)
}

fn names(told: &[Value]) -> Vec<(&str, f64)> {
    let name = |told: &'_ Value| told["payload"]["data"]["threshold"].as_f64().unwrap();
    told.iter().map(|told| (told["type"].as_str().unwrap(), name(told))).collect()
}

/// C75: an alert on every call.
async fn a_hundred_cross_at_once(t: &Tenant, other: &Client) {
    t.plan(&warning()).await;
    let receiver = Receiver::start(|count| Answer::Status(if count < 2 { 500 } else { 200 })).await;
    let webhook = t.add_webhook(&receiver.url, &QUOTA).await;
    t.spend("u", 790, 0).await;
    let mut holds = Vec::new();
    for _ in 0..100 {
        holds.push(t.ask("u", 1, 0).await.hold_id());
    }
    let settles = holds.iter().enumerate().map(|(n, hold)| {
        let client = if n % 2 == 0 { &t.client } else { other };
        client.settle(hold, json!({"input_tokens": 1, "output_tokens": 0}))
    });
    for settled in futures_util::future::join_all(settles).await {
        settled.ok();
    }
    for n in 0..50 {
        let client = if n % 2 == 0 { &t.client } else { other };
        let hold = client.check(json!({"user": "u", "input_tokens": 1})).await.hold_id();
        client.settle(&hold, json!({"input_tokens": 1, "output_tokens": 0})).await.ok();
    }
    assert_eq!(t.left("u", "tokens_per_month").await["used"], 940);
    let id = receiver.wait_for(1).await[0].id().to_owned();
    // Sooner than the schedule would.
    let again = format!("/v1/admin/webhooks/{}/deliveries/{id}/retry", webhook["id"].as_str().unwrap());
    for count in 2..=3 {
        for _ in 0..200 {
            if t.deliveries(&webhook).await[0]["last_status"] == 500 {
                break;
            }
        }
        t.post(&again, &json!({})).await.ok();
        receiver.wait_for(count).await;
    }
    let told = told(t, &webhook, 1).await;
    assert_eq!(names(&told), [("quota.warned", 0.8)], "{told:?}");
    assert!(receiver.came().iter().all(|came| came.id() == id));
    let data = &told[0]["payload"]["data"];
    assert_has(
        data,
        &json!({"user": "u", "scope": "user", "plan": {"id": "free"}, "limit": "tokens_per_month", "kind": "window",
            "meter": "total_tokens", "limit_amount": 1000, "granted": 0, "resets_at": "2026-04-01T00:00:00.000Z",
            "window": {"start": "2026-03-01T00:00:00.000Z", "end": "2026-04-01T00:00:00.000Z", "zone": "UTC"}}),
    );
    assert!(data["used"].as_u64().unwrap() >= 800, "{data}");
}

#[tokio::test]
async fn a_hundred_settles_that_cross_a_threshold_at_once_are_one_event() {
    let t = Tenant::with(warning()).await;
    a_hundred_cross_at_once(&t, &t.client).await;
}

#[tokio::test]
async fn so_they_are_on_two_nodes() {
    let Some((t, other)) = NODES.tenant().await else { return };
    a_hundred_cross_at_once(&t, &other).await;
}

#[tokio::test]
async fn what_is_held_crosses_nothing_and_each_threshold_is_told_once_a_window() {
    let t = Tenant::with(warning()).await;
    let receiver = Receiver::always(200).await;
    let webhook = t.add_webhook(&receiver.url, &QUOTA).await;
    let hold = t.ask("u", 900, 0).await.hold_id();
    t.spend("other", 799, 0).await;
    assert!(t.deliveries(&webhook).await.is_empty());
    t.finish(&hold, 1100, 0).await.ok();
    let mut both = told(&t, &webhook, 2).await;
    both.sort_by_key(|told| told["type"].to_string());
    assert_eq!(names(&both), [("quota.exhausted", 1.0), ("quota.warned", 0.8)]);
    let data = &both[0]["payload"]["data"];
    assert_has(data, &json!({"used": 1100, "over_by": 100, "remaining": 0, "used_ratio": 1.1}));
    // The same again in April.
    t.set_clock("2026-04-02T00:00:00.000Z").await;
    t.spend("u", 850, 0).await;
    t.spend("u", 1, 0).await;
    assert_eq!(told(&t, &webhook, 3).await.len(), 3);
}

#[tokio::test]
async fn a_raised_limit_is_warned_of_again() {
    let t = Tenant::with(warning()).await;
    let receiver = Receiver::always(200).await;
    let webhook = t.add_webhook(&receiver.url, &QUOTA).await;
    t.spend("u", 850, 0).await;
    told(&t, &webhook, 1).await;
    let raised = json!({"overrides": {"tokens_per_month": {"limit": 2000}}});
    t.put_overrides("users/u", raised).await.ok();
    t.spend("u", 700, 0).await;
    assert_eq!(t.deliveries(&webhook).await.len(), 1, "1550 of 2000");
    t.spend("u", 100, 0).await;
    let data = told(&t, &webhook, 2).await.pop().unwrap()["payload"]["data"].clone();
    assert_has(&data, &json!({"threshold": 0.8, "limit_amount": 2000, "used": 1650}));
    t.spend("u", 1, 0).await;
    assert_eq!(told(&t, &webhook, 2).await.len(), 2);
}

#[tokio::test]
async fn limits_of_orgs_are_told_for_the_org() {
    let sheet = Sheet::named("free").per("team", json!("month"), 1000).but("scope", json!("org"));
    let t = Tenant::with(sheet.but("warn_at", json!([0.5]))).await;
    let receiver = Receiver::always(200).await;
    let webhook = t.add_webhook(&receiver.url, &QUOTA).await;
    for user in ["a", "b", "c"] {
        t.put_user(user, json!({"org": "acme"})).await.ok();
        t.spend(user, 200, 0).await;
    }
    let one = told(&t, &webhook, 1).await;
    assert_eq!(names(&one), [("quota.warned", 0.5)]);
    let data = json!({"scope": "org", "org": "acme", "user": null, "limit": "team", "used": 600});
    assert_has(&one[0]["payload"]["data"], &data);
}

#[tokio::test]
async fn holds_that_come_into_doubt_are_told_however_they_do() {
    let t = Tenant::with(Sheet::new()).await;
    let before = t.ask_for("u", 5, 5, 30).await.hold_id();
    t.pass(60_000).await;
    let receiver = Receiver::always(200).await;
    let webhook = t.add_webhook(&receiver.url, &["hold.in_doubt"]).await;
    let (lost, unknown) =
        (t.ask_for("u", 5, 5, 30).await.hold_id(), t.ask_for("u", 7, 0, 30).await.hold_id());
    let kept = t.ask_for("u", 5, 5, 3600).await.hold_id();
    t.settle(&unknown, json!({"usage": "unknown"})).await.ok();
    let first = told(&t, &webhook, 1).await.remove(0);
    let data =
        json!({"hold": unknown, "user": "u", "because": "usage_unknown", "reserved": {"input_tokens": 7}});
    assert_has(&first["payload"]["data"], &data);
    t.pass(30_000).await;
    let both = told(&t, &webhook, 2).await;
    let data = json!({"hold": lost, "because": "lease_ended", "in_doubt_since": "2026-03-10T12:01:30.000Z"});
    assert_has(&both[1]["payload"]["data"], &data);
    t.pass(1000).await;
    t.finish(&lost, 5, 5).await.ok();
    t.finish(&kept, 5, 5).await.ok();
    receiver.wait_for(2).await;
    let told = t.deliveries(&webhook).await;
    assert!(told.len() == 2 && !json!(told).to_string().contains(&before), "{told:?}");
}
