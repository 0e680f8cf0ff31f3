//! Killed while the store is away: the journal outlives the process.

use serde_json::json;

use super::super::process::Process;
use super::{admitted, until_over};
use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;
use crate::harness::{Away, Client, cli, row};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_books_when_it_starts_again_once_and_not_what_is_torn() {
    let kept = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a data directory");
    let data = kept.path();
    cli(data, &["tenant", "create", "t", "--test"]);
    let scope = "check quota admin:read admin:write";
    let token = cli(data, &["token", "mint", "--tenant", "t", "--scope", scope, "--ttl", "24h"]);
    let process = Process::serve(data, "commit");
    let client = Client::new(&process.url, &token);
    client.put_clock("2026-03-10T12:00:00.000Z").await.ok();
    client.put_plan(&Sheet::new().dr(9).mt(10_000).cc(9).json()).await.ok();
    client.put_settings(json!({"default_plan": "p", "on_outage": "bounded"})).await.ok();

    let away = Away::take(data).await;
    let ask = async |client: &Client, id: &str| {
        client.check(json!({"user": "u", "input_tokens": 100, "request_id": id})).await
    };
    let holds = admitted(vec![ask(&client, "a").await, ask(&client, "b").await]);
    client.settle(&holds[0], json!({"input_tokens": 60, "output_tokens": 0})).await.ok();
    let whole = std::fs::read(data.join("outage/journal")).unwrap();
    let torn = admitted(vec![ask(&client, "c").await]);
    process.kill();
    // As if the third had never come wholly onto the disk: then nobody was answered either.
    let file = std::fs::read(data.join("outage/journal")).unwrap();
    assert!(file.starts_with(&whole) && file.len() > whole.len());
    std::fs::write(data.join("outage/journal"), &file[..file.len() - 1]).unwrap();
    away.give_back().await;

    // The journal comes again, as if the node had died before it could remove it.
    for round in 0..3 {
        let process = Process::serve(data, "commit");
        let client = Client::new(&process.url, &token);
        until_over(&client).await;
        assert!(!data.join("outage/journal").exists(), "round {round}");
        let view = client.quota("u").await.ok();
        let held = if round == 2 { 0 } else { 100 };
        assert_has(&row(&view, "tokens_per_month"), &json!({"used": 160 - held, "held": held}));
        assert_has(&row(&view, "requests_per_day"), &json!({"used": 2}));
        assert_has(&row(&view, "concurrency"), &json!({"in_use": i32::from(round != 2)}));
        assert_eq!(client.hold(&holds[0]).await.ok()["hold"]["state"], "settled");
        client.hold(&torn[0]).await.refused(404, "not_found");
        let replayed = ask(&client, "b").await;
        if round == 0 {
            assert_eq!(replayed.header("idempotency-replayed"), Some("true"));
            assert_eq!((replayed.hold_id(), &replayed.body["degraded"]), (holds[1].clone(), &json!(null)));
        }
        if round == 1 {
            client.settle(&holds[1], json!({"input_tokens": 100, "output_tokens": 0})).await.ok();
        }
        process.kill();
        std::fs::write(data.join("outage/journal"), &whole).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_share_of_the_minute_outlives_the_process() {
    let kept = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a data directory");
    let data = kept.path();
    cli(data, &["tenant", "create", "t", "--test"]);
    let token =
        cli(data, &["token", "mint", "--tenant", "t", "--scope", "check quota admin:write", "--ttl", "24h"]);
    let process = Process::serve(data, "commit");
    let client = Client::new(&process.url, &token);
    client.put_clock("2026-03-10T12:00:00.000Z").await.ok();
    client.put_plan(&Sheet::new().dr(9).json()).await.ok();
    client.put_settings(json!({"default_plan": "p", "on_outage": "bounded"})).await.ok();
    let away = Away::take(data).await;
    let ask = async |client: &Client| client.check(json!({"user": "u"})).await;
    assert_eq!(admitted(vec![ask(&client).await, ask(&client).await]).len(), 2);
    process.kill();
    away.give_back().await;
    let process = Process::serve(data, "commit");
    let client = Client::new(&process.url, &token);
    let away = Away::take(data).await;
    assert_eq!(admitted(vec![ask(&client).await, ask(&client).await]).len(), 1);
    away.give_back().await;
    until_over(&client).await;
    assert_has(&row(&client.quota("u").await.ok(), "requests_per_day"), &json!({"used": 3}));
}
