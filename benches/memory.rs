//! What an account of eight limits weighs, and an open hold: bytes that were
//! asked of the allocator, and how often. See `benches/README.md`.

mod sheet;
mod subjects;

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, Stats, StatsAlloc};

use crate::sheet::{LIMITS, Random};
use crate::subjects::{BATCH, Domain, Embedded, Subject};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const OPERATIONS: usize = 100_000;
/// Open holds of one user, at the end.
const HOLDS: usize = 100;

fn main() {
    println!(
        "| what | accounts | bytes an account at rest | bytes a user's first open hold | each up to the hundredth | allocations of a take | of a finish |"
    );
    println!("|---|---|---|---|---|---|---|");
    for count in [10_000, 1_000_000] {
        let region = Region::new(ALLOCATOR);
        measure("domain", &region, Domain::new(LIMITS, count));
        let region = Region::new(ALLOCATOR);
        measure("engine", &region, Embedded::in_memory(LIMITS, count));
    }
}

/// `whole` began before the subject was made.
fn measure(name: &str, whole: &Region<'_, System>, mut subject: impl Subject) {
    subject.use_all();
    let at_rest = grown(whole.change()) / subject.count() as f64;

    let mut random = Random(7);
    let (mut of_take, mut of_finish) = (0, 0);
    for _ in 0..OPERATIONS / BATCH {
        let region = Region::new(ALLOCATOR);
        for _ in 0..BATCH {
            let account = random.below(subject.count());
            subject.take(account);
        }
        of_take += region.change().allocations;
        let region = Region::new(ALLOCATOR);
        (0..BATCH).for_each(|_| subject.finish());
        of_finish += region.change().allocations;
    }
    subject.flush();

    let region = Region::new(ALLOCATOR);
    let open = subject.count().min(OPERATIONS);
    (0..open).for_each(|account| subject.take(account));
    subject.flush();
    let first = grown(region.change()) / open as f64;

    let region = Region::new(ALLOCATOR);
    let users = OPERATIONS / HOLDS;
    (1..HOLDS).for_each(|_| (0..users).for_each(|account| subject.take(account)));
    subject.flush();
    println!(
        "| {name} | {} | {at_rest:.0} | {first:.0} | {:.0} | {:.1} | {:.1} |",
        subject.count(),
        grown(region.change()) / (users * (HOLDS - 1)) as f64,
        of_take as f64 / OPERATIONS as f64,
        of_finish as f64 / OPERATIONS as f64
    );
}

fn grown(change: Stats) -> f64 {
    change.bytes_allocated as f64 - change.bytes_deallocated as f64
}
