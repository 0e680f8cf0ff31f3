//! kill -9 while thresholds are crossed and messages sent: none is lost, none is told twice.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::process::Process;
use crate::harness::sheets::Sheet;
use crate::harness::{Client, Receiver, cli, number_from_env};
use crate::model::rng::Rng;

const HOLDS: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_threshold_that_is_crossed_while_the_service_is_killed_is_told_once() {
    let kept = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let receiver = Receiver::always(200).await;
    let (token, webhook) = prepare(kept.path(), &receiver).await;
    let rounds = number_from_env("KILL_ROUNDS", 6);
    let mut rng = Rng::new(3);
    for round in 0..rounds {
        let process = Process::serve(kept.path(), "commit");
        let client = Client::new(&process.url, &token);
        let user = format!("u{round}");
        let mut holds = Vec::new();
        for _ in 0..HOLDS {
            holds.push(client.check(json!({"user": user, "input_tokens": 10})).await.hold_id());
        }
        let settles = holds.iter().map(|hold| {
            let (client, hold) = (client.clone(), hold.clone());
            tokio::spawn(async move {
                let body = json!({"input_tokens": 10, "output_tokens": 0});
                let path = format!("/v1/holds/{hold}/settle");
                let _ = client.request(reqwest::Method::POST, &path).json(&body).send().await;
            })
        });
        let settles: Vec<_> = settles.collect();
        let after = usize::try_from(rng.between(1, 19)).unwrap();
        for settle in settles.into_iter().take(after) {
            let _ = settle.await;
        }
        process.kill();
        // What was not answered is asked again; what was, changes nothing.
        let process = Process::serve(kept.path(), "commit");
        let client = Client::new(&process.url, &token);
        for hold in &holds {
            client.settle(hold, json!({"input_tokens": 10, "output_tokens": 0})).await.ok();
        }
        process.kill();
    }
    let process = Process::serve(kept.path(), "commit");
    let client = Client::new(&process.url, &token);
    let delivered = loop {
        let told = client.deliveries(&webhook).await;
        if told.len() >= rounds && told.iter().all(|told| told["state"] == "delivered") {
            break told;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    };
    let mut by_user: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for told in &delivered {
        by_user.entry(told["payload"]["data"]["user"].as_str().unwrap()).or_default().push(&told["id"]);
    }
    assert_eq!(by_user.len(), rounds, "{by_user:?}");
    assert!(by_user.values().all(|ids| ids.len() == 1), "{by_user:?}");
    // One that was killed in between may have been sent again, under its own id.
    for came in receiver.came() {
        let user = came.body["data"]["user"].as_str().unwrap();
        assert_eq!(by_user[user][0], came.id());
    }
}

async fn prepare(data: &Path, receiver: &Receiver) -> (String, Value) {
    cli(data, &["tenant", "create", "crash", "--test"]);
    let scope = "check quota admin:write";
    let token = cli(data, &["token", "mint", "--tenant", "crash", "--scope", scope, "--ttl", "24h"]);
    let process = Process::serve(data, "commit");
    let client = Client::new(&process.url, &token);
    client.put_clock("2026-03-10T12:00:00.000Z").await.ok();
    let sheet = Sheet::new().mt(1000).but("warn_at", json!([0.1]));
    client.put_plan(&sheet.json()).await.ok();
    client.put_settings(json!({"default_plan": "p"})).await.ok();
    let webhook = client.add_webhook(&receiver.url, &["quota.warned"]).await;
    process.kill();
    (token, webhook)
}
