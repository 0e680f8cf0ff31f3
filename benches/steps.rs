//! Each step by itself, measured by criterion: the rules, the same step in Redis, and the
//! group commit of the SQLite ledger. See `benches/README.md`.

mod changes;
#[allow(dead_code, reason = "servers are started with it")]
#[path = "load/process.rs"]
mod process;
mod queue;
#[allow(dead_code, reason = "shared with the other measurements")]
mod sheet;
#[allow(dead_code, reason = "only its Redis")]
#[path = "load/stores.rs"]
mod stores;
mod subjects;

use std::path::Path;
use std::time::{Duration, Instant};

use apportion::domain::charge::TenantRef;
use apportion::domain::slot::Slot;
use apportion::engine::redis::{Options, Redis, RedisEngine, Script, slot_of};
use apportion::engine::{Engine, MemoryEngine};
use apportion::ledger::{Durability, Ledger, SqliteLedger};
use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main,
};
use tokio::runtime::Runtime;

use crate::changes::change;
use crate::queue::Queue;
use crate::subjects::{BATCH, Domain, Embedded, Subject};

/// As in the server's binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const LIMITS: [usize; 4] = [1, 5, 8, 20];
const ACCOUNTS: usize = 1_000;
const WAITERS: [u64; 4] = [0, 10, 100, 1_000];
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");

/// The pure step, on accounts that fit the caches.
fn rules(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("rules");
    for limits in LIMITS {
        take_and_finish(&mut group, limits, Domain::new(limits, ACCOUNTS));
    }
}

/// The step in the in-process engine: with its locks, its maps and what it packs for the ledger.
fn memory(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("memory");
    for limits in LIMITS {
        take_and_finish(&mut group, limits, Embedded::in_memory(limits, ACCOUNTS));
    }
}

/// The step in Redis and the way there, by one caller at a time.
fn redis(criterion: &mut Criterion) {
    let server = stores::start_redis(Path::new(SCRATCH), &[]).expect("redis-server is installed");
    let mut group = criterion.benchmark_group("redis");
    group.sampling_mode(SamplingMode::Flat).measurement_time(Duration::from_secs(10));
    let (on, redis) = connect(&server);
    let (nothing, slot) = (Script::new("#!lua\nreturn 1"), slot_of(b"steps"));
    group.bench_function("nothing", |bencher| {
        bencher.iter(|| on.block_on(redis.script(slot, &nothing, &[b"{steps}"], &[])).expect("it is up"))
    });
    for (installation, limits) in (1..).zip(LIMITS) {
        let (runtime, engine) = remote(&server, installation);
        take_and_finish(&mut group, limits, Embedded::new(engine, Some(runtime), limits, ACCOUNTS));
    }
}

fn connect(server: &stores::Server) -> (Runtime, Redis) {
    let runtime = runtime();
    let redis = runtime.block_on(Redis::connect(&server.redis_url())).expect("it is up");
    (runtime, redis)
}

/// A node's engine, with a tenant; those of other numbers share nothing with it.
fn remote(server: &stores::Server, installation: u64) -> (Runtime, RedisEngine) {
    let (runtime, redis) = connect(server);
    let engine = RedisEngine::new(redis, Options { installation, ..Options::default() });
    let slot = Slot { epoch: 1, drained: 0 };
    runtime.block_on(engine.open_slot(TenantRef(1), slot)).expect("it is up");
    assert!(runtime.block_on(engine.admit(TenantRef(1), slot)).expect("it is up"));
    (runtime, engine)
}

fn take_and_finish(group: &mut BenchmarkGroup<'_, WallTime>, limits: usize, mut subject: impl Subject) {
    subject.use_all();
    let take = BenchmarkId::new("take", limits);
    group.bench_function(take, |bencher| bencher.iter_custom(|calls| timed(&mut subject, calls).0));
    let finish = BenchmarkId::new("finish", limits);
    group.bench_function(finish, |bencher| bencher.iter_custom(|calls| timed(&mut subject, calls).1));
}

/// What so many takes and as many finishes took. No account has more than one open hold, and
/// what is confirmed between them is not counted.
fn timed(subject: &mut impl Subject, calls: u64) -> (Duration, Duration) {
    let (mut take, mut finish) = (Duration::ZERO, Duration::ZERO);
    let mut left = calls as usize;
    while left > 0 {
        // Fewer than are confirmed at once: that would be within the last finish.
        let calls = left.min(BATCH / 2 - 1).min(subject.count());
        let begun = Instant::now();
        (0..calls).for_each(|account| subject.take(account));
        take += begun.elapsed();
        let begun = Instant::now();
        (0..calls).for_each(|_| subject.finish());
        finish += begun.elapsed();
        subject.flush();
        left -= calls;
    }
    (take, finish)
}

/// A check of who does not wait, on a pool before which others do: it finds out that they go
/// first.
fn lines(criterion: &mut Criterion) {
    let server = stores::start_redis(Path::new(SCRATCH), &[]).expect("redis-server is installed");
    let mut group = criterion.benchmark_group("lines");
    for waiters in WAITERS {
        behind(&mut group, "memory", waiters, &Queue::new(MemoryEngine::new(10), None, waiters));
        let (runtime, engine) = remote(&server, 10_000 + waiters);
        behind(&mut group, "redis", waiters, &Queue::new(engine, Some(runtime), waiters));
    }
}

fn behind<E: Engine>(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, waiters: u64, queue: &Queue<E>) {
    group.bench_function(BenchmarkId::new(name, waiters), |bencher| {
        bencher.iter_custom(|calls| {
            queue.keep();
            let begun = Instant::now();
            (0..calls).for_each(|_| queue.check());
            begun.elapsed()
        })
    });
}

/// Batches of changes put on record, one after the other, with what goes to the tables beside.
fn commit(criterion: &mut Criterion) {
    let runtime = runtime();
    let mut number = 0;
    for (name, durability) in [("commit", Durability::Commit), ("os", Durability::Os)] {
        let mut group = criterion.benchmark_group(name);
        group.sampling_mode(SamplingMode::Flat).measurement_time(Duration::from_secs(10));
        for size in [1, 10, 100, 1_000] {
            let dir = tempfile::tempdir_in(SCRATCH).expect("a directory");
            let ledger = runtime.block_on(SqliteLedger::open(&dir.path().join("ledger"), durability));
            let ledger = ledger.expect("it opens");
            let mut next = || {
                number += size;
                (number - size..number).map(change).collect::<Vec<_>>()
            };
            group.throughput(Throughput::Elements(size.unsigned_abs()));
            group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
                bencher.iter_custom(|batches| {
                    let timed = (0..batches).map(|_| {
                        let changes = next();
                        let begun = Instant::now();
                        runtime.block_on(ledger.commit(changes)).expect("the ledger takes it");
                        begun.elapsed()
                    });
                    timed.sum()
                })
            });
            runtime.block_on(ledger.close());
        }
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

criterion_group!(steps, rules, memory, redis, lines, commit);
criterion_main!(steps);
