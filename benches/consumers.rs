//! How long the lists of who used most take, with many users and days.
//!
//! `cargo bench --bench consumers -- [postgres://..] [users=1000000] [days=30]` fills a
//! ledger's tables of totals straight by SQL, as if every user had called once every
//! day, and asks as the service does; with `zipf` a day has as many calls, of which the user
//! of rank n makes a share of n^-1.1. `filled` asks a database that was filled before. See
//! `docs/performance.md`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use apportion::domain::charge::TenantRef;
use apportion::domain::time::{Millis, first_day_of_month, first_day_of_pentad, month_of_day, pentad_of_day};
use apportion::ledger::{
    Durability, Figure, Group, KeptPart, Ledger, PART_ROWS, PostgresLedger, Ranking, RankingQuery,
    SqliteLedger,
};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, SqliteConnection};

/// As in the server's binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TENANT: TenantRef = TenantRef(1);
/// November 2026.
const MONTH: i32 = 682;
/// Later than all that is asked for.
const TODAY: i32 = 30_000;
const RUNS: usize = 24;
/// As the service keeps.
const PAGED: u32 = 10_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let url = arguments.iter().find(|argument| argument.starts_with("postgres")).cloned();
    let number = |name: &str, usual: i32| {
        let found = arguments.iter().find_map(|argument| argument.strip_prefix(name)?.strip_prefix('='));
        found.map_or(usual, |text| text.parse().expect("a number"))
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let is_told = |name: &str| arguments.iter().any(|argument| argument == name);
    let calls = if is_told("zipf") { Calls::Zipf } else { Calls::OneEach };
    let (users, days) = (number("users", 1_000_000), number("days", 30));
    runtime.block_on(measure(url, is_told("filled"), users, days, calls));
}

/// Who makes a day's calls.
#[derive(Debug, Clone, Copy)]
enum Calls {
    OneEach,
    /// As many in all.
    Zipf,
}

async fn measure(url: Option<String>, is_filled: bool, users: i32, days: i32, calls: Calls) {
    let dir = tempfile::tempdir_in(std::env::var("BENCH_DIR").unwrap_or("/tmp".into())).expect("a directory");
    let path = dir.path().join("ledger");
    let first = first_day_of_month(MONTH);
    let begun = Instant::now();
    let ledger: Arc<dyn Ledger> = match &url {
        Some(url) if is_filled => Arc::new(PostgresLedger::open(url, 8).await.expect("it opens")),
        Some(url) => {
            let ledger = PostgresLedger::open(url, 8).await.expect("it opens");
            let mut connection = PgConnection::connect(url).await.expect("it connects");
            for text in fill(users, first..first + days, calls, true) {
                connection.execute(AssertSqlSafe(text)).await.expect("it fills");
            }
            connection.execute("VACUUM ANALYZE day_totals").await.expect("it cleans up");
            connection.execute("VACUUM ANALYZE pentad_totals").await.expect("it cleans up");
            connection.execute("VACUUM ANALYZE month_totals").await.expect("it cleans up");
            Arc::new(ledger)
        }
        None => {
            let ledger = SqliteLedger::open(&path, Durability::Commit).await.expect("it opens");
            let mut connection =
                SqliteConnection::connect(path.to_str().expect("a path")).await.expect("it connects");
            for text in fill(users, first..first + days, calls, false) {
                connection.execute(AssertSqlSafe(text)).await.expect("it fills");
            }
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").await.expect("it cleans up");
            Arc::new(ledger)
        }
    };
    println!("{users} users, {days} days, {calls:?}, filled in {:.0} s", begun.elapsed().as_secs_f64());
    println!("| span | group | by | p50 ms | p95 ms | rows |");
    println!("|---|---|---|---|---|---|");
    let month = first..first_day_of_month(MONTH + 1);
    for by in [Figure::TotalTokens, Figure::Requests, Figure::InputTokens, Figure::Credits, Figure::Refusals]
    {
        ask(&*ledger, "month", &RankingQuery { days: month.clone(), group: Group::User, by }, RUNS).await;
    }
    ask(&*ledger, "month", &RankingQuery { days: month, group: Group::Plan, by: Figure::Credits }, RUNS)
        .await;
    for by in [Figure::TotalTokens, Figure::Requests] {
        let day = first + days / 2;
        ask(&*ledger, "day", &RankingQuery { days: day..day + 1, group: Group::User, by }, RUNS).await;
    }
    // None from the ninth of this month on has more pieces (ten) than the one until the 23rd of the next.
    let spans = [3, 7, 10, 15, 20].map(|length| first + 3..first + 3 + length);
    let worst = first + 8..first_day_of_month(MONTH + 1) + 22;
    for span in spans.into_iter().chain([worst]).filter(|span| span.end <= first + days) {
        let query = RankingQuery { days: span.clone(), group: Group::User, by: Figure::TotalTokens };
        ask(&*ledger, &format!("{} days", span.len()), &query, 7).await;
    }
    ledger.close().await;
}

/// Asks as the first page of a list does, and keeps what the later pages need.
async fn ask(ledger: &dyn Ledger, span: &str, query: &RankingQuery, runs: usize) {
    let mut times = Vec::new();
    let mut rows = 0;
    // Ids of their own each time, also in a database that was measured before.
    let since = std::time::UNIX_EPOCH.elapsed().expect("a clock");
    let mut ids = since.as_nanos()..;
    for run in 0..=runs {
        let begun = Instant::now();
        let found = match ledger.ranking(TENANT, query.clone(), TODAY, PAGED).await {
            Ok(found) => found,
            Err(error) => return println!("| {span} | {:?} | {:?} | {error} | | |", query.group, query.by),
        };
        rows = found.rows.len();
        let Ranking { rows: ranked, total, count } = found;
        let part = |rows: &[_]| KeptPart {
            made_at: Millis(0),
            query: query.clone(),
            ranking: Ranking { rows: rows.to_vec(), total, count },
        };
        let parts: Arc<[KeptPart]> = ranked.chunks(PART_ROWS).map(part).collect();
        ledger
            .keep_ranking(TENANT, ids.next().unwrap_or_default(), parts, Millis(0))
            .await
            .expect("it is kept");
        if run > 0 {
            times.push(begun.elapsed());
        }
    }
    times.sort_unstable();
    let ms = |time: &Duration| time.as_secs_f64() * 1000.0;
    let (p50, p95) = (ms(&times[runs / 2]), ms(&times[runs * 95 / 100]));
    println!("| {span} | {:?} | {:?} | {p50:.0} | {p95:.0} | {rows} |", query.group, query.by);
}

/// Users of a day in an order of its own.
fn fill(users: i32, days: std::ops::Range<i32>, calls: Calls, is_postgres: bool) -> Vec<String> {
    let (series, random) = match is_postgres {
        true => (format!("generate_series(0, {}) AS numbers (n)", users - 1), "random()"),
        false => ("numbers".to_owned(), "(abs(random()) % 1000000 / 1000000.0)"),
    };
    let recursive = format!(
        "WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < {})",
        users - 1
    );
    let with = if is_postgres { "" } else { &recursive };
    let requests = match calls {
        Calls::OneEach => "1".to_owned(),
        Calls::Zipf => {
            let shares: f64 = (1..=users).map(|rank| f64::from(rank).powf(-1.1)).sum();
            format!("CAST(floor({} * pow(n + 1, -1.1) + {random}) AS bigint)", f64::from(users) / shares)
        }
    };
    let mut texts: Vec<String> = days
        .clone()
        .map(|day| {
            // Neither even nor a multiple of five: each user once, if they are a power of ten.
            let step = 10 * (791 + i64::from(day)) + 1;
            format!(
                "INSERT INTO day_totals {with} SELECT 1, 0, {day}, 'user_' || n, r, r * i, r * o, r * (i + o),
                     r * 3 * (i + 5 * o), CASE WHEN n % 50 = {day} % 50 THEN 1 ELSE 0 END
                 FROM (SELECT n, {requests} AS r, CAST(4000 * {random} * {random} * {random} AS bigint) AS i,
                              CAST(1000 * {random} * {random} AS bigint) AS o
                       FROM (SELECT (n * CAST({step} AS bigint)) % {users} AS n FROM {series}) AS shuffled) AS calls
                 WHERE r > 0"
            )
        })
        .collect();
    let figures = "sum(requests), sum(input_tokens), sum(output_tokens), sum(total_tokens), sum(credits), sum(refusals)";
    let mut add_up = |table: &str, start: i32, of: std::ops::Range<i32>| {
        texts.push(format!(
            "INSERT INTO {table} SELECT 1, 0, {start}, name, {figures} FROM day_totals
             WHERE tenant = 1 AND kind = 0 AND start >= {} AND start < {} GROUP BY name",
            of.start, of.end
        ));
    };
    let last = days.end - 1;
    for pentad in pentad_of_day(days.start)..=pentad_of_day(last) {
        add_up("pentad_totals", pentad, first_day_of_pentad(pentad)..first_day_of_pentad(pentad + 1));
    }
    for month in month_of_day(days.start)..=month_of_day(last) {
        add_up("month_totals", month, first_day_of_month(month)..first_day_of_month(month + 1));
    }
    for (kind, names) in [(1, ""), (2, "chat"), (3, "opus"), (4, "free")] {
        for table in ["day_totals", "pentad_totals", "month_totals"] {
            texts.push(format!(
                "INSERT INTO {table} SELECT 1, {kind}, start, '{names}', {figures}
                 FROM {table} WHERE tenant = 1 AND kind = 0 GROUP BY start"
            ));
        }
    }
    texts
}
