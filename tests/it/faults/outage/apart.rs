//! The same where the engine and the ledger are servers of their own.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{DAY, admitted, metric, ready, until_over};
use crate::harness::compare::assert_has;
use crate::harness::postgres::Postgres;
use crate::harness::proxy::Proxy;
use crate::harness::redis::{Node, Single};
use crate::harness::sheets::Sheet;
use crate::harness::{Client, Reply, Server, Tenant};

/// Servers that may be killed, and a tenant on them.
async fn stage(redis: &str, postgres: &Postgres, sheet: Sheet) -> Tenant {
    let stores = vec![("redis_url", redis.to_owned()), ("database_url", postgres.url("postgres"))];
    // Tenants are of servers that last.
    let server: &'static Server = Box::leak(Box::new(Server::start_on(&stores, &[])));
    let t = Tenant::on(server, "UTC", DAY).await;
    t.plan(&sheet).await;
    t
}

fn lasting_redis() -> Option<Node> {
    Single::start(&["--appendonly", "yes", "--appendfsync", "always"])
}

/// Calls at the same time, of two users in turn.
async fn crowd(t: &Tenant) -> Vec<Reply> {
    join_all((0..100).map(|n| t.ask(if n % 2 == 0 { "u" } else { "v" }, 100, 50))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_no_call_or_a_few_are_admitted_and_those_are_booked() {
    let (Some(redis), Some(postgres)) = (lasting_redis(), Postgres::start()) else { return };
    let t = stage(&redis.url(), &postgres, Sheet::new().dr(3).mt(10_000).cc(9)).await;
    let before = [t.ask("u", 7, 0).await.hold_id(), t.ask("v", 7, 0).await.hold_id()];
    t.hold(&before[0]).await.ok();

    redis.kill();
    assert_eq!(admitted(crowd(&t).await).len(), 0, "every door is closed");
    assert_eq!(ready(&t).await, 503);
    redis.restart();
    until_over(&t).await;
    assert_has(&t.left("u", "requests_per_day").await, &json!({"used": 1}));

    t.put_settings(json!({"on_outage": "bounded"})).await.ok();
    redis.kill();
    let holds = admitted(crowd(&t).await);
    assert_eq!(holds.len(), 6, "three of each user");
    assert_eq!(metric(&t, "apportion_degraded").await, 1.0);
    let done = t.finish(&holds[0], 30, 10).await.ok();
    assert_eq!(done["hold"]["state"], "settled");
    t.finish(&before[0], 7, 0).await.refused(503, "store_unavailable");
    redis.restart();
    until_over(&t).await;
    assert_eq!(ready(&t).await, 200);
    let mut tokens = Vec::new();
    for user in ["u", "v"] {
        assert_has(&t.left(user, "requests_per_day").await, &json!({"used": 4, "over_by": 1}));
        let left = t.left(user, "tokens_per_month").await;
        tokens.push((left["used"].as_i64().unwrap(), left["held"].as_i64().unwrap()));
    }
    tokens.sort_unstable();
    assert_eq!(tokens, [(0, 457), (40, 307)]);
    for hold in &holds[1..] {
        assert_eq!(t.finish(hold, 30, 10).await.ok()["hold"]["state"], "settled");
    }
    for hold in &before {
        t.finish(hold, 7, 0).await.ok();
    }
    for user in ["u", "v"] {
        assert_has(&t.left(user, "tokens_per_month").await, &json!({"used": 127, "held": 0}));
        assert_has(&t.left(user, "concurrency").await, &json!({"in_use": 0}));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_postgres_those_who_are_known_are_decided_by_the_engine_as_ever() {
    let (Some(redis), Some(postgres)) = (lasting_redis(), Postgres::start()) else { return };
    let t = stage(&redis.url(), &postgres, Sheet::new().dr(3).mt(10_000)).await;
    t.put_settings(json!({"on_outage": "bounded"})).await.ok();
    t.put_user("u", json!({"plan": "p"})).await.ok();
    // Whose key is not known makes the node look for changes: it has seen this one then, and
    // does not forget the user for it any more.
    Tenant::on(t.server, "UTC", DAY).await;
    for _ in 0..2 {
        let hold = t.ask("u", 7, 0).await.hold_id();
        t.hold(&hold).await.ok();
    }

    postgres.kill();
    let third = t.ask("u", 7, 0).await.ok();
    assert_eq!(third["degraded"], Value::Null, "{third}");
    t.ask("u", 7, 0).await.refused(429, "daily_quota_exhausted");
    // Of somebody who would have to be looked up first nothing is known.
    assert_eq!(admitted(vec![t.ask("new", 1, 1).await]).len(), 0);
    postgres.restart();
    until_over(&t).await;
    assert_has(&t.left("u", "requests_per_day").await, &json!({"used": 3}));
    t.ask("new", 1, 1).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_that_redis_took_while_its_answers_were_lost_is_booked_once() {
    let (Some(redis), Some(postgres)) = (lasting_redis(), Postgres::start()) else { return };
    let proxy = Proxy::before(&redis.address());
    let t = stage(&format!("redis://{}", proxy.address), &postgres, Sheet::new().dr(9).mt(10_000)).await;
    t.put_settings(json!({"on_outage": "bounded"})).await.ok();
    let before = t.ask("u", 7, 0).await.hold_id();
    t.finish(&before, 7, 0).await.ok();
    proxy.lose_replies(1, b"EVALSHA");
    let lost = proxy.lost();
    let check = json!({"user": "u", "input_tokens": 100, "request_id": "a"});
    let hold = admitted(vec![t.check(check.clone()).await]).pop().expect("the share has room");
    assert!(proxy.lost() > lost, "Redis has answered");
    proxy.lose_replies(0, b"");
    until_over(&t).await;
    assert_has(&t.left("u", "requests_per_day").await, &json!({"used": 2}));
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 7, "held": 100}));
    let again = t.check(check).await;
    assert_eq!((again.hold_id(), again.header("idempotency-replayed")), (hold.clone(), Some("true")));
    t.finish(&hold, 60, 0).await.ok();
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 67, "held": 0}));
}

/// The other node is cut off from Redis and this one is not: nobody here knows of an outage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_call_that_another_node_has_not_booked_yet_is_asked_for_again() {
    let (Some(redis), Some(postgres)) = (lasting_redis(), Postgres::start()) else { return };
    let proxy = Proxy::before(&redis.address());
    let t = stage(&format!("redis://{}", proxy.address), &postgres, Sheet::new().mt(10_000).cc(9)).await;
    t.put_settings(json!({"on_outage": "bounded"})).await.ok();
    let other = t.server.beside(&[("APPORTION_REDIS_URL", &redis.url())]);
    let other = Client::new(&other.url, &t.client.token);
    let before = t.ask("u", 7, 0).await.hold_id();
    other.settle(&before, json!({"input_tokens": 7, "output_tokens": 0})).await.ok();

    proxy.refuse(true);
    proxy.cut();
    let hold = admitted(vec![t.ask("u", 100, 0).await]).pop().expect("the share has room");
    for reply in [
        other.settle(&hold, json!({"input_tokens": 60, "output_tokens": 0})).await,
        other.release(&hold).await,
        other.extend(&hold, json!({"lease_seconds": 60})).await,
    ] {
        let reply = reply.refused(503, "store_unavailable");
        assert!(reply.header("retry-after").is_some() && reply.body["retryable"] == true, "{}", reply.text);
    }
    // Its call would have ended long ago, or never was.
    let old = "hold_01932d3e-9f1c-7c4b-b7e5-5a2f0c9d8e71";
    other.settle(old, json!({"input_tokens": 60, "output_tokens": 0})).await.refused(404, "not_found");
    proxy.refuse(false);
    until_over(&t).await;
    other.settle(&hold, json!({"input_tokens": 60, "output_tokens": 0})).await.ok();
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 67, "held": 0}));
}
