//! How long the rules take without HTTP, tokens and disk: CPU time in ns on
//! one of many accounts of eight limits.
//!
//! `domain` is the pure step; `engine` is the step with the locks, the maps of
//! holds and the packing for the ledger. See `benches/README.md`.

mod sheet;
mod subjects;

use rustix::time::{ClockId, clock_gettime};

use crate::sheet::{LIMITS, Random};
use crate::subjects::{BATCH, Domain, Embedded, Subject};

/// As in the server's binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const REPEATS: usize = 7;
const OPERATIONS: usize = 200_000;

fn main() {
    println!("| what | accounts | take ns | finish ns |");
    println!("|---|---|---|---|");
    for count in [1_000, 10_000, 100_000, 1_000_000] {
        measure("domain", Domain::new(LIMITS, count));
        measure("engine", Embedded::in_memory(LIMITS, count));
    }
}

fn measure(name: &str, mut subject: impl Subject) {
    subject.use_all();
    let mut random = Random(7);
    let (mut takes, mut finishes) = (Vec::new(), Vec::new());
    for _ in 0..REPEATS {
        let (mut take_ns, mut finish_ns) = (0, 0);
        for _ in 0..OPERATIONS / BATCH {
            let begun = cpu_ns();
            for _ in 0..BATCH {
                let account = random.below(subject.count());
                subject.take(account);
            }
            let taken = cpu_ns();
            (0..BATCH).for_each(|_| subject.finish());
            let finished = cpu_ns();
            take_ns += taken - begun;
            finish_ns += finished - taken;
        }
        takes.push(take_ns as f64 / OPERATIONS as f64);
        finishes.push(finish_ns as f64 / OPERATIONS as f64);
    }
    println!("| {name} | {} | {:.0} | {:.0} |", subject.count(), median(takes), median(finishes));
}

/// CPU time of this thread: neighbours on the machine do not count.
fn cpu_ns() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
