//! How many changes a second a ledger takes, by the size of its batches.
//!
//! `cargo bench --bench ledger` measures a SQLite file; with `-- postgres://..`
//! a database, which gets the ledger's schema and a tenant's rows. See
//! `benches/README.md`.

mod changes;

use std::sync::Arc;
use std::time::Instant;

use apportion::ledger::{Durability, Ledger, PostgresLedger, SqliteLedger};

use crate::changes::change;

/// As in the server's binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const REPEATS: usize = 3;
/// Batch sizes, and how many batches each writer commits.
const BATCHES: [(i64, i64); 4] = [(1, 400), (10, 200), (100, 60), (1_000, 12)];

fn main() {
    let url = std::env::args().skip(1).find(|argument| argument.starts_with("postgres"));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(measure(url));
}

async fn measure(url: Option<String>) {
    let dir = tempfile::tempdir().expect("a directory");
    let (name, ledger): (_, Arc<dyn Ledger>) = match url {
        Some(url) => ("postgres", Arc::new(PostgresLedger::open(&url, 16).await.expect("it opens"))),
        None => {
            let ledger = SqliteLedger::open(&dir.path().join("ledger"), Durability::Commit).await;
            ("sqlite", Arc::new(ledger.expect("it opens")))
        }
    };
    println!("| ledger | writers | changes a batch | changes/s | ms a batch |");
    println!("|---|---|---|---|---|");
    // Ids of their own each time, also in a database that was measured before.
    let since = std::time::UNIX_EPOCH.elapsed().expect("a clock");
    let mut number = since.as_millis() as i64 * 100;
    for writers in [1, 4] {
        for (size, batches) in BATCHES {
            let mut rates = Vec::new();
            for _ in 0..REPEATS {
                let begun = Instant::now();
                let tasks: Vec<_> = (0..writers)
                    .map(|writer| {
                        tokio::spawn(write(
                            Arc::clone(&ledger),
                            number + writer * size * batches,
                            size,
                            batches,
                        ))
                    })
                    .collect();
                for task in tasks {
                    task.await.expect("a writer ends");
                }
                number += writers * size * batches;
                rates.push((writers * size * batches) as f64 / begun.elapsed().as_secs_f64());
            }
            rates.sort_by(f64::total_cmp);
            let rate = rates[REPEATS / 2];
            let batch = 1_000.0 * (writers * size) as f64 / rate;
            println!("| {name} | {writers} | {size} | {rate:.0} | {batch:.2} |");
        }
    }
    ledger.close().await;
}

/// Commits batches of new holds, each with its account, its usage and its event.
async fn write(ledger: Arc<dyn Ledger>, first: i64, size: i64, batches: i64) {
    for batch in 0..batches {
        let changes = (0..size).map(|at| change(first + batch * size + at)).collect();
        ledger.commit(changes).await.expect("the ledger takes it");
    }
}
