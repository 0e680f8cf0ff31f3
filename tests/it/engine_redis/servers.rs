//! What the other tests take for granted of the servers they start.

use std::time::{Duration, Instant};

use crate::harness::proxy::Proxy;
use crate::harness::redis::{Cluster, Single, Watched};

#[test]
fn a_killed_server_comes_back_on_its_port_with_what_it_has_on_disk() {
    let Some(redis) = Single::start(&["--appendonly", "yes"]) else { return };
    redis.run::<()>(&["SET", "a", "1"]);
    redis.kill();
    assert!(redis.try_run::<String>(&["PING"]).is_err());
    redis.restart();
    assert_eq!(redis.run::<String>(&["GET", "a"]), "1");
    redis.flush_all();
    assert_eq!(redis.run::<usize>(&["DBSIZE"]), 0);
    redis.run::<()>(&["SCRIPT", "LOAD", "return 1"]);
    redis.script_flush();
    assert_eq!(redis.info("number_of_cached_scripts"), "0");
}

#[test]
fn settings_reach_the_server() {
    let Some(redis) = Single::start(&["--maxmemory", "4mb", "--maxmemory-policy", "noeviction"]) else {
        return;
    };
    assert_eq!(redis.info("maxmemory"), (4 << 20).to_string());
}

#[test]
fn the_shared_server_is_there() {
    let Some(redis) = Single::shared() else { return };
    assert_eq!(redis.run::<String>(&["PING"]), "PONG");
    assert_eq!(redis.url(), format!("redis://{}", redis.address()));
}

#[test]
fn a_frozen_server_answers_when_it_is_thawed() {
    let Some(redis) = Single::start(&[]) else { return };
    redis.freeze();
    std::thread::scope(|scope| {
        let call = scope.spawn(|| redis.run::<String>(&["PING"]));
        redis.thaw();
        assert_eq!(call.join().unwrap(), "PONG");
    });
}

#[test]
fn sentinels_promote_the_replica_of_a_killed_primary() {
    let Some(redis) = Watched::start(3) else { return };
    assert_eq!(redis.url().matches("127.0.0.1:").count(), 3);
    redis.primary.run::<()>(&["SET", "a", "1"]);
    redis.wait_until_replicated();
    redis.primary.kill();
    redis.wait_until_promoted();
    assert_eq!(redis.replica.run::<String>(&["GET", "a"]), "1");
}

#[test]
fn a_slot_of_a_cluster_moves() {
    let Some(redis) = Cluster::start() else { return };
    let slot = redis.nodes[0].run::<u16>(&["CLUSTER", "KEYSLOT", "a"]);
    let from = redis.owner_of(slot);
    let to = redis.nodes.iter().find(|node| node.port != from.port).unwrap();
    from.run::<()>(&["SET", "a", "1"]);
    redis.begin_move(slot, to);
    redis.move_keys(slot, to);
    let error = from.try_run::<String>(&["GET", "a"]).unwrap_err();
    assert_eq!(error.code(), Some("ASK"));
    redis.end_move(slot, to);
    assert_eq!(to.run::<String>(&["GET", "a"]), "1");
    let error = from.try_run::<String>(&["GET", "a"]).unwrap_err();
    assert_eq!(error.code(), Some("MOVED"));
}

#[test]
fn the_shared_cluster_is_whole() {
    let Some(redis) = Cluster::shared() else { return };
    assert_eq!(redis.url().matches("127.0.0.1:").count(), 3);
    redis.wait_until_whole();
}

fn through(proxy: &Proxy) -> redis::Connection {
    let client = redis::Client::open(format!("redis://{}", proxy.address)).unwrap();
    client.get_connection_with_timeout(Duration::from_secs(5)).unwrap()
}

fn count_up(connection: &mut redis::Connection) -> redis::RedisResult<u64> {
    redis::cmd("INCR").arg("a").query(connection)
}

#[test]
fn a_proxy_loses_the_reply_of_what_was_carried_out() {
    let Some(redis) = Single::start(&[]) else { return };
    let proxy = Proxy::before(&redis.address());
    proxy.lose_replies(2, b"INCR");
    let mut connection = through(&proxy);
    assert_eq!(count_up(&mut connection).unwrap(), 1);
    count_up(&mut connection).unwrap_err();
    assert_eq!(proxy.lost(), 1);
    assert_eq!(redis.run::<u64>(&["GET", "a"]), 2);
    assert_eq!(count_up(&mut through(&proxy)).unwrap(), 3);
    assert_eq!(proxy.accepted(), 2);
}

#[test]
fn a_proxy_delays_cuts_and_refuses() {
    let Some(redis) = Single::start(&[]) else { return };
    let proxy = Proxy::before(&redis.address());
    let mut connection = through(&proxy);
    proxy.delay(Duration::from_millis(50));
    let from = Instant::now();
    count_up(&mut connection).unwrap();
    assert!(from.elapsed() >= Duration::from_millis(50));
    proxy.delay(Duration::ZERO);
    proxy.cut();
    count_up(&mut connection).unwrap_err();
    proxy.refuse(true);
    let client = redis::Client::open(format!("redis://{}", proxy.address)).unwrap();
    assert!(client.get_connection_with_timeout(Duration::from_secs(5)).is_err());
    proxy.refuse(false);
    count_up(&mut through(&proxy)).unwrap();
}
