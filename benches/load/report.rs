//! What came out: medians over rounds, and ratios to the bare handler of the
//! same round.

use serde_json::{Value, json};

use crate::options::Options;
use crate::rounds::Sample;

/// Medians of one operation on one server.
#[derive(Debug, serde::Serialize)]
pub struct Row {
    pub server: String,
    pub operation: &'static str,
    /// Rounds that count.
    pub rounds: usize,
    pub per_second: f64,
    pub per_second_ratio: Option<f64>,
    pub cpu_us: f64,
    pub cpu_system_us: f64,
    pub cpu_ratio: Option<f64>,
    pub redis_us: Option<f64>,
    pub postgres_us: Option<f64>,
    pub p50_us: f64,
    pub p50_ratio: Option<f64>,
    pub p99_us: f64,
    pub p99_ratio: Option<f64>,
    /// The most that was seen, in MB.
    pub rss_mb: f64,
    pub client_busy: f64,
}

/// One row for each server and operation, in the order they first ran.
pub fn rows(samples: &[Sample]) -> Vec<Row> {
    let mut keys: Vec<(&str, &'static str)> = Vec::new();
    for sample in samples {
        let key = (sample.server.as_str(), sample.operation);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys.into_iter().map(|(server, operation)| row(samples, server, operation)).collect()
}

fn row(samples: &[Sample], server: &str, operation: &'static str) -> Row {
    let counts = |sample: &&Sample| sample.wrong == 0;
    let own: Vec<&Sample> = samples
        .iter()
        .filter(|sample| sample.server == server && sample.operation == operation)
        .filter(counts)
        .collect();
    let floor = |round: usize| {
        samples.iter().filter(counts).find(|sample| sample.server == "echo" && sample.round == round)
    };
    let of = |figure: fn(&Sample) -> f64| median(own.iter().map(|sample| figure(sample)).collect());
    let of_store = |figure: fn(&Sample) -> Option<f64>| {
        let figures: Vec<f64> = own.iter().copied().filter_map(figure).collect();
        (!figures.is_empty()).then(|| median(figures))
    };
    let ratio = |figure: fn(&Sample) -> f64| {
        let against = |sample: &&Sample| floor(sample.round).map(|floor| figure(sample) / figure(floor));
        let ratios: Vec<f64> = own.iter().filter_map(against).collect();
        (!ratios.is_empty()).then(|| median(ratios))
    };
    Row {
        server: server.to_owned(),
        operation,
        rounds: own.len(),
        per_second: of(|sample| sample.per_second),
        per_second_ratio: ratio(|sample| sample.per_second),
        cpu_us: of(|sample| sample.cpu_us),
        cpu_system_us: of(|sample| sample.cpu_system_us),
        cpu_ratio: ratio(|sample| sample.cpu_us),
        redis_us: of_store(|sample| sample.redis_us),
        postgres_us: of_store(|sample| sample.postgres_us),
        p50_us: of(|sample| sample.p50_us),
        p50_ratio: ratio(|sample| sample.p50_us),
        p99_us: of(|sample| sample.p99_us),
        p99_ratio: ratio(|sample| sample.p99_us),
        rss_mb: own.iter().map(|sample| sample.rss).max().unwrap_or(0) as f64 / 1e6,
        client_busy: of(|sample| sample.client_busy),
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    match figures.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => figures[count / 2],
        count => (figures[count / 2 - 1] + figures[count / 2]) / 2.0,
    }
}

pub fn print(rows: &[Row]) {
    println!(
        "| server | operation | items/s | ratio | CPU us | of it kernel | ratio | Redis us | Postgres us | p50 us | ratio | p99 us | ratio | RSS MB | asker busy |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    let ratio = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
    for row in rows {
        println!(
            "| {} | {} | {:.0} | {} | {:.1} | {:.1} | {} | {} | {} | {:.0} | {} | {:.0} | {} | {:.0} | {:.0} % |",
            row.server,
            row.operation,
            row.per_second,
            ratio(row.per_second_ratio),
            row.cpu_us,
            row.cpu_system_us,
            ratio(row.cpu_ratio),
            ratio(row.redis_us),
            ratio(row.postgres_us),
            row.p50_us,
            ratio(row.p50_ratio),
            row.p99_us,
            ratio(row.p99_ratio),
            row.rss_mb,
            row.client_busy * 100.0,
        );
    }
}

pub fn json(options: &Options, reply_bytes: usize, samples: &[Sample], rows: &[Row]) -> Value {
    json!({
        "seconds": options.seconds,
        "rounds": options.rounds,
        "users": options.users,
        "zipf": options.zipf,
        "connections": options.connections,
        "rate": options.rate,
        "limits": options.limits,
        "pool": options.pool,
        "pinned": options.pin,
        "workers": options.worker_count(),
        "reply_bytes": reply_bytes,
        "medians": rows,
        "samples": samples,
    })
}
