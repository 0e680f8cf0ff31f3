//! What a call to Redis costs: a trivial script over the engine's own way
//! there, by threads that each have a runtime of their own, as those that
//! serve requests do. See `benches/README.md`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use apportion::engine::redis::{Redis, Script, slot_of};
use rustix::time::{ClockId, clock_gettime};

const TIME: Duration = Duration::from_secs(3);

fn main() {
    let given = std::env::args().skip(1).find(|argument| argument.contains("://"));
    let url = given.unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let redis = runtime.block_on(Redis::connect(&url)).expect("a Redis to measure");
    println!("| threads | calls at a time | calls/s | CPU of ours a call, us | CPU of Redis a call, us |");
    println!("|---|---|---|---|---|");
    for (threads, at_a_time) in [(1, 1), (1, 25), (2, 25), (2, 100), (2, 400)] {
        let theirs = || runtime.block_on(used_by_redis(&redis));
        let (own_before, theirs_before, from) = (own_cpu(), theirs(), Instant::now());
        let calls = measure(&redis, threads, at_a_time) as f64;
        let (own, seconds) = (own_cpu() - own_before, from.elapsed().as_secs_f64());
        let (own, theirs) = (own * 1e6 / calls, (theirs() - theirs_before) * 1e6 / calls);
        println!("| {threads} | {} | {:.0} | {own:.1} | {theirs:.1} |", threads * at_a_time, calls / seconds);
    }
}

fn measure(redis: &Redis, threads: usize, at_a_time: usize) -> u64 {
    let (stop, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let script = Script::new("#!lua\nreturn redis.call('INCRBY', KEYS[1], ARGV[1])");
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let caller = async || {
                    while !stop.load(Relaxed) {
                        let slot = slot_of(b"bench");
                        redis.script(slot, &script, &[b"{bench}"], &[b"1"]).await.expect("an answer");
                        calls.fetch_add(1, Relaxed);
                    }
                };
                let callers = (0..at_a_time).map(|_| caller());
                runtime.expect("a runtime").block_on(futures_util::future::join_all(callers));
            });
        }
        std::thread::sleep(TIME);
        stop.store(true, Relaxed);
    });
    calls.load(Relaxed)
}

fn own_cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

async fn used_by_redis(redis: &Redis) -> f64 {
    let mut seconds = 0.0;
    for (server, info) in redis.everywhere(redis::cmd("INFO").arg("cpu")).await {
        let info: String = redis::from_redis_value(info.expect(&server)).expect("text");
        let used = info.lines().filter_map(|line| {
            line.strip_prefix("used_cpu_user:")
                .or(line.strip_prefix("used_cpu_sys:"))?
                .trim()
                .parse::<f64>()
                .ok()
        });
        seconds += used.sum::<f64>();
    }
    seconds
}
