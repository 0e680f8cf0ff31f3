//! How many changes a second a ledger takes, by the size of its batches.
//!
//! `cargo bench --bench ledger` measures a SQLite file; with `-- postgres://..`
//! a database, which gets the ledger's schema and a tenant's rows. See
//! `benches/README.md`.

use std::sync::Arc;
use std::time::Instant;

use apportion::domain::charge::{AccountKey, CellId, MeterCode, TenantRef};
use apportion::domain::hold::{Amounts, Caps, Granted, Hold, Receipt, RequestMark, Stage};
use apportion::domain::ids::{HoldId, Name, RequestId, UserId};
use apportion::domain::plan::{PerCall, Scope};
use apportion::domain::quantity::Ppm;
use apportion::domain::time::Millis;
use apportion::ledger::{Change, Durability, FeedMark, Ledger, PostgresLedger, SqliteLedger, UsageDelta};

/// As in the server's binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TENANT: TenantRef = TenantRef(1);
const USERS: i64 = 10_000;
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

fn change(number: i64) -> Change {
    let user = format!("user_{}", number.wrapping_mul(7_919).rem_euclid(USERS));
    let receipt = |cell: u64| Receipt {
        scope: Scope::User,
        cell: CellId(cell),
        meter: MeterCode::TOTAL,
        reserved: 1_712,
        window: Some((Millis(0), Millis(86_400_000))),
        opens: None,
    };
    let hold = Hold {
        id: HoldId::from_parts(number, u128::MAX.to_be_bytes()),
        tenant: TENANT,
        user: UserId::parse(&user).expect("a user"),
        org: None,
        pool: None,
        request: RequestId::parse(&format!("req_{number}"))
            .ok()
            .map(|id| RequestMark { id, fingerprint: [7; 16] }),
        plan: Name::parse("free").expect("a name"),
        plan_version: 1,
        admits_user: false,
        bulk: false,
        models_version: 1,
        model: Name::parse("claude-opus-5").ok(),
        feature: None,
        created_at: Millis(number),
        expires_at: Millis(number + 600_000),
        lease_seconds: 600,
        lives_until: Millis(number + 3_600_000),
        day: 20_717,
        caps: Caps { per_call: PerCall::default(), max_tokens_per_call: 1_000_000 },
        cache_read_weight: Ppm::ONE,
        granted: Granted { input_tokens: 1_200, max_output_tokens: 512, is_final: false },
        reserved: Amounts::default(),
        amounts: Vec::new(),
        receipts: (1..=8).map(receipt).collect(),
        progress: 0,
        extends: Vec::new(),
        stage: Stage::Held,
    };
    let model = Name::parse("claude-opus-5").ok();
    let (requests, input_tokens, output_tokens) = (1, 1_200, 512);
    let usage = UsageDelta { model, requests, input_tokens, output_tokens, total_tokens: 1_712, credits: 0 };
    let account = AccountKey { tenant: TENANT, scope: Scope::User, owner: user.as_str().into() };
    Change {
        hold: Some(Arc::new(hold)),
        usage: Some(usage),
        event: Some(FeedMark { part: 1, amounts: Vec::new() }),
        accounts: vec![(account, vec![7; 400].as_slice().into())],
        moved: Vec::new(),
    }
}
