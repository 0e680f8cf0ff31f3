//! While all is well, and what is told when it is not.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use apportion::engine::redis::{Heard, Redis, RedisError, Script, Severity, slot_of};
use redis::{Pipeline, Value, cmd};

use super::{connect, eventually, in_time, key, set, slot};
use crate::harness::lasting::free_port;
use crate::harness::redis::{Cluster, Single, Watched};

#[tokio::test(flavor = "multi_thread")]
async fn commands_pipelines_and_scripts_reach_every_topology() {
    let (Some(single), Some(cluster), Some(watched)) =
        (Single::shared(), Cluster::shared(), Watched::start(1))
    else {
        return;
    };
    for url in [single.url(), cluster.url(), watched.url()] {
        let redis = connect(&url).await;
        let add = Script::new("#!lua\nreturn redis.call('INCRBY', KEYS[1], ARGV[1])");
        for n in 0..50 {
            let tag = format!("every-{n}");
            let (slot, key) = (slot_of(tag.as_bytes()), format!("{{{tag}}}x"));
            redis.run(slot, cmd("SET").arg(&key).arg(n)).await.unwrap();
            let (answer, _) = redis.script(slot, &add, &[key.as_bytes()], &[b"1000"]).await.unwrap();
            assert_eq!(answer, Value::Int(1000 + n));
            let (answers, _) = redis
                .pipeline(slot, Pipeline::new().cmd("GET").arg(&key).cmd("DEL").arg(&key))
                .await
                .unwrap();
            assert_eq!(answers, [Value::BulkString((1000 + n).to_string().into_bytes()), Value::Int(1)]);
        }
        assert!(redis.time(slot()).await.unwrap() > 1_700_000_000_000_000);
        assert_eq!(redis.away(), [""; 0]);
        let answers = redis.everywhere(&cmd("PING")).await;
        assert_eq!(answers.len(), if url == cluster.url() { 3 } else { 1 });
        assert!(answers.iter().all(|(_, answer)| *answer == Ok(Value::SimpleString("PONG".to_owned()))));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_share_a_connection_whoever_makes_them() {
    let Some(server) = Single::start(&[]) else { return };
    let redis = connect(&server.url()).await;
    let first = set(&redis, "x", "1").await.unwrap();
    let calls = (0..200).map(|_| set(&redis, "x", "1"));
    for generation in futures_util::future::join_all(calls).await {
        assert_eq!(generation, Ok(first));
    }
    // From a thread that ends, with its runtime.
    let (redis_too, server) = (redis.clone(), &server);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(set(&redis_too, "x", "2")).unwrap();
    })
    .join()
    .unwrap();
    assert_eq!(set(&redis, "x", "3").await, Ok(first));
    // Ours, and the one that asks.
    assert_eq!(server.info("connected_clients"), "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_broke_while_a_request_thread_ends_lives_on() {
    let Some(server) = Single::start(&[]) else { return };
    let redis = connect(&server.url()).await;
    server.run::<u64>(&["CLIENT", "KILL", "TYPE", "normal"]);
    let redis_too = redis.clone();
    let made_there = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(eventually(|| set(&redis_too, "x", "2")))
    });
    let generation = made_there.join().unwrap();
    assert_eq!(set(&redis, "x", "3").await, Ok(generation));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_is_known_again_after_the_server_forgot_it() {
    let Some(server) = Single::start(&[]) else { return };
    let redis = connect(&server.url()).await;
    let script = Script::new("#!lua\nreturn 'still here'");
    for _ in 0..3 {
        let (answer, _) = redis.script(slot(), &script, &[], &[]).await.unwrap();
        assert_eq!(answer, Value::BulkString(b"still here".to_vec()));
        server.script_flush();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn full_memory_has_an_error_of_its_own_and_a_wrong_command_another() {
    let Some(server) = Single::start(&["--maxmemory", "1"]) else { return };
    let redis = connect(&server.url()).await;
    let script = Script::new("#!lua\nreturn redis.call('SET', KEYS[1], 'x')");
    let answer = redis.script(slot(), &script, &[key("x").as_bytes()], &[]).await;
    assert_eq!(answer.unwrap_err(), RedisError::OutOfMemory);
    assert_eq!(set(&redis, "x", "1").await.unwrap_err(), RedisError::OutOfMemory);
    let allowed = Script::new("#!lua flags=allow-oom\nreturn redis.call('SET', KEYS[1], 'x')");
    redis.script(slot(), &allowed, &[key("x").as_bytes()], &[]).await.unwrap();
    let error = redis.run(slot(), &cmd("NONSENSE")).await.unwrap_err();
    assert!(matches!(&error, RedisError::Refused(why) if why.contains("NONSENSE")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_lets_in_and_a_wrong_one_is_not_told() {
    let Some(server) = Single::start(&[]) else { return };
    server.run::<()>(&["CONFIG", "SET", "requirepass", "right-one"]);
    let redis = connect(&format!("redis://:right-one@{}", server.address())).await;
    set(&redis, "x", "1").await.unwrap();
    for url in [format!("redis://:wrong-one@{}", server.address()), server.url()] {
        let redis = Redis::connect(&url).await;
        let error = match redis {
            Ok(redis) => set(&redis, "x", "1").await.unwrap_err(),
            Err(error) => error,
        };
        assert!(matches!(error, RedisError::Refused(_)), "{error}");
        assert!(!error.to_string().contains("wrong-one"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_redis_or_at_the_wrong_kind_says_why() {
    let (Some(single), Some(watched)) = (Single::shared(), Watched::start(1)) else { return };
    let nobody = format!("127.0.0.1:{}", free_port());
    let sentinel = watched.sentinels[0].address();
    for (url, part) in [
        (format!("redis://{nobody}"), &*nobody),
        (format!("redis+cluster://{nobody}"), &nobody),
        (format!("redis+sentinel://{nobody}/main"), &nobody),
        (format!("redis+cluster://{}", single.address()), "cluster support disabled"),
        (format!("redis+sentinel://{sentinel}/other"), "\"other\""),
    ] {
        let error = in_time(Redis::connect(&url)).await.err().expect("no connection").to_string();
        assert!(error.contains(part), "{url}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_tell_what_must_not_be_used() {
    let Some(server) = Single::start(&["--appendonly", "yes"]) else { return };
    let redis = connect(&server.url()).await;
    let errors = async || {
        let findings = redis.check().await;
        let errors: Vec<String> =
            findings.iter().filter(|f| f.severity == Severity::Error).map(|f| f.text.clone()).collect();
        (errors, findings.into_iter().map(|f| f.text).collect::<Vec<_>>().join("; "))
    };
    let (none, told) = errors().await;
    assert_eq!(none, [""; 0]);
    for part in ["append-only file: on", "appendfsync: everysec", "snapshots (save): off", "version 7"] {
        assert!(told.contains(part), "{told}");
    }
    server.run::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let (one, _) = errors().await;
    assert!(one.len() == 1 && one[0].contains("noeviction"), "{one:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_see_a_cluster_as_a_whole() {
    let Some(cluster) = Cluster::start() else { return };
    let redis = connect(&cluster.url()).await;
    let findings = redis.check().await;
    // That nothing is kept on disk is worth a warning.
    assert!(findings.iter().all(|finding| finding.severity != Severity::Error), "{findings:?}");
    cluster.nodes[0].run::<()>(&["CLUSTER", "DELSLOTS", "0"]);
    let findings = redis.check().await;
    let wrong: Vec<_> = findings.iter().filter(|finding| finding.severity == Severity::Error).collect();
    assert!(wrong.iter().any(|finding| finding.server == cluster.nodes[0].address()), "{findings:?}");
    // The same node without the cluster's scheme.
    let alone = connect(&cluster.nodes[1].url()).await;
    let told = alone.check().await;
    assert!(told.iter().any(|finding| finding.text.contains("redis+cluster://")), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_clock_is_known() {
    let Some(server) = Cluster::shared() else { return };
    let redis = connect(&server.url()).await;
    let shown = in_time(async {
        loop {
            if let Some(ms) = redis.server_ms() {
                return ms;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let shown = shown.await;
    let own = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
    assert!((shown - own).abs() < 5_000, "{shown} {own}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_published_on_any_node_is_heard() {
    let Some(cluster) = Cluster::shared() else { return };
    let redis = connect(&cluster.url()).await;
    let mut heard = redis.subscribe("news");
    assert_eq!(in_time(heard.next()).await, Some(Heard::Gap));
    for node in &cluster.nodes {
        node.run::<()>(&["PUBLISH", "news", "one"]);
        assert_eq!(in_time(heard.next()).await, Some(Heard::Message(b"one".to_vec())));
    }
    redis.publish("news", b"\xff").await.unwrap();
    assert_eq!(in_time(heard.next()).await, Some(Heard::Message(vec![0xff])));
}
