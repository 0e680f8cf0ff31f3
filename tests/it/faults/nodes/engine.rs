//! Redis dies, forgets, runs out of memory, loses answers.

use serde_json::json;

use super::load::Call;
use super::truth::{check, eventually};
use super::{Load, Loss, Pair};
use crate::harness::postgres::Postgres;
use crate::harness::proxy::Proxy;
use crate::harness::redis::{Node, Single};
use crate::harness::sheets::Sheet;

/// Calls before and after a fault.
const SOME: usize = 250;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_keeps_a_file_loses_nothing_when_it_is_killed() {
    for fsync in ["everysec", "always"] {
        let settings = ["--appendonly", "yes", "--appendfsync", fsync];
        let (Some(redis), Some(postgres)) = (Single::start(&settings), Postgres::shared()) else { return };
        let pair = Pair::on(&redis.url(), postgres).await;
        let told = kill_redis(&pair, &redis).await;
        let behind = pair.rebuilt();
        // While the last flush takes long, `everysec` puts off writing for up to two seconds.
        assert!(behind == 0 || (behind == 1 && fsync == "everysec"), "it came back as it was: {behind}");
        let loss = if behind == 0 { Loss::Nothing } else { Loss::NotOnRecord };
        let fault = format!("kill -9 of Redis, AOF {fsync}{}", ["", ", which lagged"][behind as usize]);
        check(&pair, &told, &[&redis], &fault, loss).await;
        assert_eq!(pair.rebuilt(), behind + 1, "built anew once, whichever node saw it first");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_comes_back_empty_is_built_anew_once_from_what_is_on_record() {
    for (durability, loss) in [("engine", Loss::NotOnRecord), ("ledger", Loss::Nothing)] {
        let (Some(redis), Some(postgres)) = (Single::start(&[]), Postgres::shared()) else { return };
        let pair = Pair::durable(&redis.url(), postgres, durability).await;
        let told = kill_redis(&pair, &redis).await;
        assert_eq!(pair.rebuilt(), 1);
        let fault = format!("kill -9 of Redis, nothing kept, answers by {durability}");
        check(&pair, &told, &[&redis], &fault, loss).await;
        assert_eq!(pair.rebuilt(), 2);
    }
}

async fn kill_redis(pair: &Pair, redis: &Node) -> super::load::Told {
    let load = Load::start(pair);
    load.answers(SOME).await;
    redis.kill();
    load.refusals().await;
    redis.restart();
    load.answers(SOME).await;
    load.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_emptied_under_load_is_built_anew_once_by_two_nodes() {
    let (Some(redis), Some(postgres)) = (Single::start(&[]), Postgres::shared()) else { return };
    let pair = Pair::on(&redis.url(), postgres).await;
    let load = Load::start(&pair);
    for round in 1..=3 {
        load.answers(SOME).await;
        redis.flush_all();
        load.answers(SOME).await;
        assert_eq!(pair.rebuilt(), round);
    }
    let told = load.stop().await;
    check(&pair, &told, &[&redis], "FLUSHALL under load, three times", Loss::NotOnRecord).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_redis_forgot_are_told_it_again_within_the_call() {
    let (Some(redis), Some(postgres)) = (Single::start(&[]), Postgres::shared()) else { return };
    let pair = Pair::on(&redis.url(), postgres).await;
    let load = Load::start(&pair);
    for _ in 0..5 {
        load.answers(SOME / 5).await;
        redis.script_flush();
    }
    load.answers(SOME).await;
    let told = load.stop().await;
    assert_eq!(told.refused(), 0);
    check(&pair, &told, &[&redis], "SCRIPT FLUSH, five times", Loss::Nothing).await;
}

/// Case C61.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_lost_scripts_nor_a_restart_admit_one_too_many_or_too_few() {
    let kept = ["--appendonly", "yes"];
    let (Some(redis), Some(postgres)) = (Single::start(&kept), Postgres::shared()) else { return };
    let pair = Pair::on(&redis.url(), postgres).await;
    pair.client(0).put_plan(&Sheet::named("day").dr(50).json()).await.ok();
    pair.client(0).put_user("c61", json!({"plan": "day"})).await.ok();
    let (mut admitted, mut unavailable) = (0, 0);
    for number in 0..100 {
        match number {
            20 => redis.script_flush(),
            60 => {
                redis.kill();
                for node in pair.clients() {
                    node.check(json!({"user": "c61"})).await.refused(503, "store_unavailable");
                    unavailable += 1;
                }
                redis.restart();
            }
            _ => {}
        }
        let node = pair.client(number % 2);
        let body = json!({"user": "c61", "request_id": format!("r{number}")});
        let reply = eventually(|| node.check(body.clone())).await;
        match reply.status {
            200 => admitted += 1,
            _ => drop(reply.refused(429, "daily_quota_exhausted")),
        }
    }
    assert_eq!((admitted, unavailable), (50, 2));
}

/// Calls are under way when it comes back: they must not be carried out on what is old, and so
/// make it look as if it were new.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_dump_is_noticed_and_nothing_is_decided_by_its_figures() {
    let (Some(redis), Some(postgres)) = (Single::start(&[]), Postgres::shared()) else { return };
    let pair = Pair::on(&redis.url(), postgres).await;
    let load = Load::start(&pair);
    load.answers(SOME).await;
    redis.run::<()>(&["SAVE"]);
    let old = std::fs::read(redis.dir().join("dump.rdb")).expect("it was saved");
    load.answers(SOME).await;
    redis.run::<()>(&["SAVE"]);
    redis.kill();
    std::fs::write(redis.dir().join("dump.rdb"), old).expect("room for a file");
    redis.restart();
    load.answers(SOME).await;
    let told = load.stop().await;
    assert_eq!(pair.rebuilt(), 1);
    check(&pair, &told, &[&redis], "an old dump restored", Loss::NotOnRecord).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_lost_are_asked_for_again_and_nothing_is_done_twice() {
    let (Some(redis), Some(postgres)) = (Single::start(&[]), Postgres::shared()) else { return };
    let proxy = Proxy::before(&redis.address());
    let pair = Pair::on(&format!("redis://{}", proxy.address), postgres).await;
    let load = Load::start(&pair);
    proxy.lose_replies(5, b"EVALSHA");
    load.answers(2 * SOME).await;
    proxy.lose_replies(0, b"");
    load.answers(20).await;
    let told = load.stop().await;
    assert!(proxy.lost() > SOME / 5, "{} lost", proxy.lost());
    let fault = format!("1 of 5 replies of scripts lost ({})", proxy.lost());
    assert_eq!(pair.rebuilt(), 0);
    check(&pair, &told, &[&redis], &fault, Loss::Nothing).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_without_room_takes_nothing_new_and_ends_what_runs() {
    let (Some(redis), Some(postgres)) = (Single::start(&[]), Postgres::shared()) else { return };
    let pair = Pair::on(&redis.url(), postgres).await;
    let load = Load::start(&pair);
    load.answers(SOME).await;
    let mut calls = Vec::new();
    for number in 0..10 {
        let request_id = format!("open-{number}");
        let body = json!({
            "user": "u0", "request_id": request_id, "model": "m", "input_tokens": 5,
            "max_output_tokens": 5, "lease_seconds": 3600,
        });
        let hold = Some(pair.client(number % 2).check(body).await.hold_id());
        calls.push(Call { user: "u0", request_id, hold, ..Call::default() });
    }
    redis.run::<()>(&["CONFIG", "SET", "maxmemory", "1mb"]);
    load.refusals().await;
    for (number, call) in calls.iter_mut().enumerate() {
        let node = pair.client(number % 2);
        node.check(json!({"user": "u0"})).await.refused(503, "store_unavailable");
        let body = json!({"input_tokens": 3, "output_tokens": 2});
        let ended = node.settle(call.hold.as_ref().unwrap(), body.clone()).await.ok();
        call.ending = Some(("settle", body));
        call.ended = Some(ended["hold"].clone());
        node.quota("u0").await.ok();
    }
    redis.run::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    load.answers(SOME).await;
    let mut told = load.stop().await;
    told.calls.extend(calls);
    assert_eq!(pair.rebuilt(), 0);
    check(&pair, &told, &[&redis], "Redis out of memory", Loss::Nothing).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accounts_that_vanish_from_redis_are_loaded_as_they_were() {
    let (Some(redis), Some(postgres)) = (Single::start(&[]), Postgres::shared()) else { return };
    let pair = Pair::on(&redis.url(), postgres).await;
    let load = Load::start(&pair);
    for account in ["u:u0", "u:u1", "u:u2", "u:tight", "t:", "p:m"] {
        load.answers(SOME / 5).await;
        evict(&redis, &format!("*:a:{account}"));
    }
    load.answers(SOME / 5).await;
    let told = load.stop().await;
    assert_eq!(pair.rebuilt(), 0);
    check(&pair, &told, &[&redis], "each account's key deleted", Loss::Nothing).await;
}

/// Nothing of it is in Redis until its account is asked for again, and no answer but one
/// that changes nothing is due.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_or_repeated_after_redis_was_emptied_is_answered_as_before() {
    let (Some(redis), Some(postgres)) = (Single::start(&[]), Postgres::shared()) else { return };
    let pair = Pair::durable(&redis.url(), postgres, "ledger").await;
    let node = pair.client(0);
    let unknown = json!({"usage": "unknown"});
    let (mut doubtful, mut begun) = (Vec::new(), Vec::new());
    for user in ["u0", "u1"] {
        let body = json!({"user": user, "model": "m", "input_tokens": 5, "max_output_tokens": 5});
        let hold = node.check(body.clone()).await.hold_id();
        node.settle(&hold, unknown.clone()).await.ok();
        doubtful.push(hold);
        let hold = node.check(body).await.hold_id();
        node.extend(&hold, json!({"output_tokens_so_far": 2})).await.ok();
        begun.push(hold);
    }
    // Each asks first after one emptying, the others find the account there again.
    for first in 0..3 {
        redis.flush_all();
        for turn in 0..3 {
            let user = first % 2;
            match (first + turn) % 3 {
                0 => {
                    let repeated = eventually(|| node.settle(&doubtful[user], unknown.clone())).await.ok();
                    assert_eq!(repeated["hold"]["state"], "in_doubt");
                }
                1 => {
                    let longer = json!({"lease_seconds": 60});
                    let refused = eventually(|| node.extend(&doubtful[user], longer.clone())).await;
                    refused.refused(409, "lease_ended");
                }
                _ => _ = eventually(|| node.release(&begun[user])).await.refused(409, "has_progress"),
            }
        }
    }
    for (hold, tokens) in doubtful.iter().chain(&begun).zip([3, 4, 5, 5]) {
        let usage = json!({"input_tokens": 5, "output_tokens": tokens});
        eventually(|| node.settle(hold, usage.clone())).await.ok();
    }
}

/// Takes keys away, as eviction would.
pub fn evict(redis: &Node, pattern: &str) {
    let text = "local gone = redis.call('KEYS', ARGV[1])
        for _, key in ipairs(gone) do redis.call('DEL', key) end
        return #gone";
    assert!(redis.run::<i64>(&["EVAL", text, "0", pattern]) > 0, "{pattern} was there");
}
