//! Slots that change their primary while calls are under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use apportion::engine::redis::{Redis, RedisError, Script};
use redis::{Pipeline, Value, cmd};

use super::{connect, eventually, get, in_time, key, set, slot};
use crate::harness::redis::{Cluster, Node};

fn another<'a>(cluster: &'a Cluster, than: &Node) -> &'a Node {
    cluster.nodes.iter().find(|node| node.port != than.port).unwrap()
}

/// Counts up one key for as long as it is told to.
fn count_up(redis: &Redis, stop: &Arc<AtomicBool>) -> tokio::task::JoinHandle<Result<i64, RedisError>> {
    let (redis, stop) = (redis.clone(), stop.clone());
    tokio::spawn(async move {
        let mut count = 0;
        while !stop.load(Relaxed) {
            redis.run(slot(), cmd("INCR").arg(key("count"))).await?;
            count += 1;
        }
        Ok(count)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_moves_under_calls_and_none_is_lost_or_done_twice() {
    let Some(cluster) = Cluster::start() else { return };
    let redis = connect(&cluster.url()).await;
    let number = slot().number();
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..4).map(|_| count_up(&redis, &stop)).collect();
    for _ in 0..4 {
        let to = another(&cluster, cluster.owner_of(number));
        cluster.begin_move(number, to);
        tokio::time::sleep(Duration::from_millis(20)).await;
        cluster.move_keys(number, to);
        tokio::time::sleep(Duration::from_millis(20)).await;
        cluster.end_move(number, to);
    }
    stop.store(true, Relaxed);
    let mut done = 0;
    for caller in callers {
        done += in_time(caller).await.unwrap().unwrap();
    }
    assert!(done > 0);
    assert_eq!(get(&redis, "count").await.unwrap(), done.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_command_of_a_pipeline_finds_its_key_while_they_move() {
    let Some(cluster) = Cluster::start() else { return };
    let redis = connect(&cluster.url()).await;
    let number = slot().number();
    for name in ["gone", "stays"] {
        set(&redis, name, name).await.unwrap();
    }
    let (from, to) = (cluster.owner_of(number), another(&cluster, cluster.owner_of(number)));
    cluster.begin_move(number, to);
    from.run::<()>(&["MIGRATE", "127.0.0.1", &to.port.to_string(), &key("gone"), "0", "5000"]);
    let (answers, _) = redis
        .pipeline(slot(), Pipeline::new().cmd("GET").arg(key("gone")).cmd("GET").arg(key("stays")))
        .await
        .unwrap();
    let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    assert_eq!(answers, [text("gone"), text("stays")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_whose_keys_are_apart_waits_until_they_are_together() {
    let Some(cluster) = Cluster::start() else { return };
    let redis = connect(&cluster.url()).await;
    let number = slot().number();
    for name in ["gone", "stays"] {
        set(&redis, name, name).await.unwrap();
    }
    let (from, to) = (cluster.owner_of(number), another(&cluster, cluster.owner_of(number)));
    cluster.begin_move(number, to);
    from.run::<()>(&["MIGRATE", "127.0.0.1", &to.port.to_string(), &key("gone"), "0", "5000"]);
    let both = Script::new("#!lua\nreturn redis.call('GET', KEYS[1]) .. redis.call('GET', KEYS[2])");
    let (gone, stays) = (key("gone"), key("stays"));
    let keys = [gone.as_bytes(), stays.as_bytes()];
    let call = || async { redis.script(slot(), &both, &keys, &[]).await };
    let error = in_time(call()).await.unwrap_err();
    assert!(matches!(error, RedisError::Unavailable(_)), "{error}");
    cluster.move_keys(number, to);
    cluster.end_move(number, to);
    assert_eq!(eventually(call).await.0, Value::BulkString(b"gonestays".to_vec()));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_primary_is_another_generation() {
    let Some(cluster) = Cluster::start() else { return };
    let redis = connect(&cluster.url()).await;
    let number = slot().number();
    let first = set(&redis, "x", "1").await.unwrap();
    let (from, to) = (cluster.owner_of(number), another(&cluster, cluster.owner_of(number)));
    cluster.begin_move(number, to);
    cluster.move_keys(number, to);
    cluster.end_move(number, to);
    let second = eventually(|| set(&redis, "x", "2")).await;
    assert_ne!(first, second);
    assert_eq!(from.run::<usize>(&["DBSIZE"]), 0);
}
