//! Servers that die, stand still, come back, or are replaced.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use apportion::engine::redis::{Heard, RedisError};
use redis::cmd;

use super::{connect, eventually, get, in_time, is_unavailable, key, set, slot};
use crate::harness::proxy::Proxy;
use crate::harness::redis::{Cluster, Single, Watched};

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_is_unavailable_and_then_another_generation() {
    let Some(server) = Single::start(&["--appendonly", "yes"]) else { return };
    let redis = connect(&server.url()).await;
    let mut heard = redis.subscribe("news");
    assert_eq!(in_time(heard.next()).await, Some(Heard::Gap));
    let before = set(&redis, "x", "1").await.unwrap();
    server.kill();
    let error = in_time(set(&redis, "x", "2")).await.unwrap_err();
    assert!(error.to_string().contains(&server.address()), "{error}");
    assert!(is_unavailable::<()>(&Err(error)));
    assert_eq!(redis.away(), [server.address()]);
    server.restart();
    let after = eventually(|| set(&redis, "y", "2")).await;
    assert_ne!(before, after);
    assert_eq!(get(&redis, "x").await.unwrap(), "1");
    assert_eq!(redis.away(), [""; 0]);
    // Whoever listens hears that it may have missed something, and then the rest.
    assert_eq!(in_time(heard.next()).await, Some(Heard::Gap));
    redis.publish("news", b"again").await.unwrap();
    assert_eq!(in_time(heard.next()).await, Some(Heard::Message(b"again".to_vec())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_back_in_time_is_not_missed() {
    let Some(server) = Single::start(&["--appendonly", "yes"]) else { return };
    let redis = connect(&server.url()).await;
    for n in 0..5 {
        server.kill();
        let (answer, ()) = tokio::join!(set(&redis, "x", "1"), async {
            tokio::task::block_in_place(|| server.restart());
        });
        // On a crowded machine the restart may take longer than a call.
        assert!(answer.is_ok() || is_unavailable(&answer), "{n}: {answer:?}");
        eventually(|| set(&redis, "x", "1")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_at_a_frozen_server_end_and_go_on_when_it_thaws() {
    let Some(server) = Single::start(&[]) else { return };
    let redis = connect(&server.url()).await;
    let before = set(&redis, "x", "1").await.unwrap();
    server.freeze();
    let calls = (0..100).map(|_| set(&redis, "x", "2"));
    for answer in in_time(futures_util::future::join_all(calls)).await {
        assert!(is_unavailable(&answer), "{answer:?}");
    }
    server.thaw();
    // It has forgotten nothing.
    assert_eq!(eventually(|| set(&redis, "x", "3")).await, before);
    assert_eq!(get(&redis, "x").await.unwrap(), "3");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_calls_than_memory_should_hold_are_refused_at_once() {
    let Some(server) = Single::start(&[]) else { return };
    let redis = connect(&server.url()).await;
    server.freeze();
    let calls = (0..12_000).map(|_| set(&redis, "x", "2"));
    let answers = in_time(futures_util::future::join_all(calls)).await;
    let full = |answer: &&Result<_, RedisError>| {
        answer.as_ref().is_err_and(|e| e.to_string().contains("too many calls"))
    };
    assert_eq!(answers.iter().filter(full).count(), 2_000);
    assert!(answers.iter().all(is_unavailable));
    server.thaw();
    eventually(|| set(&redis, "x", "3")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_takes_over_from_a_killed_primary() {
    let Some(servers) = Watched::start(3) else { return };
    let redis = connect(&servers.url()).await;
    let before = set(&redis, "x", "1").await.unwrap();
    servers.wait_until_replicated();
    servers.primary.kill();
    let after = eventually(|| set(&redis, "y", "2")).await;
    assert_ne!(before, after);
    assert_eq!(servers.replica.run::<String>(&["GET", &key("y")]), "2");
    assert_eq!(get(&redis, "x").await.unwrap(), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_primary_is_left_for_good_when_it_thaws() {
    let Some(servers) = Watched::start(1) else { return };
    let redis = connect(&servers.url()).await;
    let before = set(&redis, "x", "1").await.unwrap();
    servers.primary.freeze();
    let after = eventually(|| set(&redis, "x", "2")).await;
    assert_ne!(before, after);
    servers.primary.thaw();
    for n in 0..200 {
        assert_eq!(set(&redis, "x", &n.to_string()).await, Ok(after));
    }
    assert_eq!(servers.replica.run::<String>(&["GET", &key("x")]), "199");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_primaries_of_a_cluster_go_on() {
    let Some(cluster) = Cluster::start() else { return };
    for node in &cluster.nodes {
        node.run::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let redis = connect(&cluster.url()).await;
    set(&redis, "x", "1").await.unwrap();
    let other =
        cluster.nodes.iter().find(|node| node.port != cluster.owner_of(slot().number()).port).unwrap();
    other.freeze();
    for _ in 0..100 {
        set(&redis, "x", "2").await.unwrap();
    }
    in_time(async {
        while redis.away() != [other.address()] {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    set(&redis, "x", "3").await.unwrap();
    // A node of ours that starts meanwhile can do so.
    let late = connect(&cluster.url()).await;
    assert_eq!(get(&late, "x").await.unwrap(), "3");
    other.thaw();
    in_time(async {
        while !redis.away().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_is_asked_for_again() {
    let Some(server) = Single::start(&[]) else { return };
    let proxy = Proxy::before(&server.address());
    let redis = connect(&format!("redis://{}", proxy.address)).await;
    let first = set(&redis, "x", "0").await.unwrap();
    proxy.lose_replies(3, b"{a}x");
    for n in 0..60 {
        // The same server, which has forgotten nothing.
        assert_eq!(set(&redis, "x", &n.to_string()).await, Ok(first));
    }
    assert!(proxy.lost() >= 20, "{} lost", proxy.lost());
    assert_eq!(server.run::<String>(&["GET", &key("x")]), "59");
}

/// Behind one name there may be another one, or the same as it was before.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_no_primary_meanwhile_is_another_generation() {
    let (Some(server), Some(other)) = (Single::start(&[]), Single::start(&[])) else { return };
    let redis = connect(&server.url()).await;
    let first = set(&redis, "x", "1").await.unwrap();
    server.run::<u64>(&["CLIENT", "KILL", "TYPE", "normal"]);
    assert_eq!(eventually(|| set(&redis, "x", "2")).await, first);
    server.run::<()>(&["REPLICAOF", "127.0.0.1", &other.port.to_string()]);
    server.run::<()>(&["REPLICAOF", "NO", "ONE"]);
    server.run::<u64>(&["CLIENT", "KILL", "TYPE", "normal"]);
    assert_ne!(eventually(|| set(&redis, "x", "3")).await, first);
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_connections_are_replaced_and_none_is_left_behind() {
    let Some(server) = Single::start(&[]) else { return };
    let proxy = Proxy::before(&server.address());
    let redis = connect(&format!("redis://{}", proxy.address)).await;
    for n in 0..50 {
        let calls = (0..20).map(|_| set(&redis, "x", "1"));
        let (answers, ()) = tokio::join!(futures_util::future::join_all(calls), async { proxy.cut() });
        assert!(answers.iter().all(Result::is_ok), "{n}: {answers:?}");
    }
    in_time(async {
        // One for commands, and the one that asks.
        while server.info("connected_clients") != "2" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    drop(redis);
    in_time(async {
        while server.info("connected_clients") != "1" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_connections_for_a_while_is_tried_again() {
    let Some(server) = Single::start(&[]) else { return };
    let proxy = Proxy::before(&server.address());
    let redis = connect(&format!("redis://{}", proxy.address)).await;
    proxy.refuse(true);
    proxy.cut();
    assert!(is_unavailable(&in_time(set(&redis, "x", "1")).await));
    proxy.refuse(false);
    eventually(|| set(&redis, "x", "1")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_became_a_replica_is_not_written_to() {
    let (Some(server), Some(other)) = (Single::start(&[]), Single::start(&[])) else { return };
    let redis = connect(&server.url()).await;
    set(&redis, "x", "1").await.unwrap();
    server.run::<()>(&["REPLICAOF", "127.0.0.1", &other.port.to_string()]);
    let error = in_time(set(&redis, "x", "2")).await.unwrap_err();
    assert!(error.to_string().contains("READONLY") || is_unavailable::<()>(&Err(error.clone())), "{error}");
    server.run::<()>(&["REPLICAOF", "NO", "ONE"]);
    eventually(|| async { redis.run(slot(), cmd("SET").arg(key("x")).arg("3")).await }).await;
}

/// What is logged on this thread, in lines.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn an_outage_has_one_line_at_its_begin_and_one_at_its_end() {
    let Some(server) = Single::start(&[]) else { return };
    server.run::<()>(&["CONFIG", "SET", "requirepass", "secret-one"]);
    let log = Log::default();
    let to = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || to.clone()).finish();
    let _here = tracing::subscriber::set_default(subscriber);
    let redis = connect(&format!("redis://:secret-one@{}", server.address())).await;
    server.kill();
    for _ in 0..3 {
        let calls = (0..50).map(|_| set(&redis, "x", "1"));
        assert!(futures_util::future::join_all(calls).await.iter().all(is_unavailable));
    }
    // Without the password, which was set while it ran: it lets everybody in
    // and refuses those that bring one.
    server.restart();
    server.run::<()>(&["CONFIG", "SET", "requirepass", "secret-one"]);
    eventually(|| set(&redis, "x", "1")).await;
    let lines = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let count = |part: &str| lines.lines().filter(|line| line.contains(part)).count();
    assert_eq!((count("WARN"), count("does not serve")), (1, 1), "{lines}");
    assert_eq!((count("INFO"), count("serves again")), (1, 1), "{lines}");
    assert!(!lines.contains("secret-one"), "{lines}");
}
