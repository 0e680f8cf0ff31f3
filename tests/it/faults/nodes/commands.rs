//! What a check and a settle send: counted at Redis and at Postgres themselves.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;

use super::Pair;
use super::ledger::own_postgres;
use crate::harness::redis::{Node, Single};

const CALLS: usize = 50;

/// All that a server is sent, line by line.
struct Monitor {
    lines: Arc<Mutex<Vec<String>>>,
}

impl Monitor {
    fn of(redis: &Node) -> Self {
        let mut stream = TcpStream::connect(redis.address()).expect("it listens");
        stream.write_all(b"MONITOR\r\n").expect("it reads");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let own = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                own.lock().unwrap().push(line);
            }
        });
        Self { lines }
    }

    /// What came since the last time, without what scripts do themselves. `mark` ends it.
    fn take(&self, redis: &Node, mark: &str) -> Vec<String> {
        redis.run::<String>(&["ECHO", mark]);
        let from = Instant::now();
        while !self.lines.lock().unwrap().iter().any(|line| line.contains(mark)) {
            assert!(from.elapsed() < Duration::from_secs(10), "{mark} is seen");
            std::thread::sleep(Duration::from_millis(1));
        }
        let lines = std::mem::take(&mut *self.lines.lock().unwrap());
        lines.into_iter().filter(|line| !line.contains(" lua] ") && !line.contains(mark)).collect()
    }
}

/// How often each command came, of those that name `word`.
fn counted(lines: &[String], word: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in lines.iter().filter(|line| line.contains(word)) {
        let command = line.split('"').nth(1).unwrap_or("?").to_uppercase();
        *counts.entry(command).or_default() += 1;
    }
    counts
}

fn of(counts: &[(&str, usize)]) -> BTreeMap<String, usize> {
    counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

/// Statements that Postgres was sent since the last look, without those of `psql`.
fn statements(pair: &Pair, seen: &mut usize) -> Vec<String> {
    let log = pair.psql("SELECT pg_read_file('log/all.log')");
    let mut all: Vec<String> = Vec::new();
    for line in log.lines() {
        match all.last_mut() {
            // A statement of several lines.
            Some(last) if line.starts_with('\t') => last.extend([" ", line.trim()]),
            _ => all.push(line.to_owned()),
        }
    }
    all.retain(|line| line.contains("execute ") || line.contains("statement: "));
    let new = all[*seen..].iter().filter(|line| !line.contains("pg_read_file")).cloned().collect();
    *seen = all.len();
    new
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_is_one_script_and_a_settle_one_more_after_a_look_and_neither_asks_postgres() {
    let (Some(redis), Some(postgres)) = (Single::start(&[]), own_postgres()) else { return };
    for setting in ["logging_collector = on", "log_statement = 'all'", "log_filename = 'all.log'"] {
        postgres.psql("postgres", &format!("ALTER SYSTEM SET {setting}"));
    }
    postgres.kill();
    postgres.restart();
    let pair = Pair::in_real_time(&redis.url(), postgres, [Vec::new(), Vec::new()]).await;
    // From here on the user is known at both nodes, also to be on record.
    for _ in 0..2 {
        for node in pair.clients() {
            let hold = node.check(json!({"user": "warm", "model": "m"})).await.hold_id();
            node.settle(&hold, json!({"input_tokens": 1, "output_tokens": 1})).await.ok();
            // Answered once all of that is on record.
            node.hold_by_request("warm", "none").await.refused(404, "not_found");
        }
    }
    let mut seen = 0;
    let monitor = Monitor::of(&redis);
    monitor.take(&redis, "monitoring-begins");
    statements(&pair, &mut seen);

    let mut holds = Vec::new();
    for number in 0..CALLS {
        let reply = pair.client(number % 2).check(json!({"user": "warm", "model": "m"})).await;
        holds.push(reply.hold_id());
    }
    let checks = monitor.take(&redis, "checks-end");
    let asked_of_checks = statements(&pair, &mut seen);
    for (number, hold) in holds.iter().enumerate() {
        let body = json!({"input_tokens": 1, "output_tokens": 1});
        pair.client(number % 2).settle(hold, body).await.ok();
    }
    let settles = monitor.take(&redis, "settles-end");
    let asked_of_settles = statements(&pair, &mut seen);

    assert_eq!(counted(&checks, ":a:u:warm"), of(&[("EVALSHA", CALLS)]), "{checks:#?}");
    assert_eq!(counted(&settles, ":a:u:warm"), of(&[("EVALSHA", CALLS)]));
    println!("| {CALLS} checks | Redis {:?} |", counted(&checks, ""));
    println!("| {CALLS} settles | Redis {:?} |", counted(&settles, ""));
    for (what, asked) in [("checks", &asked_of_checks), ("settles", &asked_of_settles)] {
        let kinds = kinds(asked);
        println!("| {CALLS} {what} | Postgres {kinds:?} |");
        // The journal writes; the pollers ask for the revision, the slot and now and then for changes
        // that are due; nobody looks a user, an account, a hold or a record up.
        for table in ["users", "accounts", "holds", "records", "orgs", "tenants"] {
            let reads = asked
                .iter()
                .filter(|line| line.contains("SELECT") && line.contains(&format!("FROM {table} ")))
                .filter(|line| !line.contains("changes_at <= "));
            assert_eq!(reads.collect::<Vec<_>>(), [""; 0], "{what} look into {table}");
        }
    }
    // Each hold's record is read once, and each settle looks for nothing else.
    let records: usize =
        counted(&settles, ":h:").iter().filter(|(name, _)| *name == "GET").map(|(_, n)| n).sum();
    assert_eq!(records, CALLS, "{:?}", counted(&settles, ":h:"));
    postgres.kill();
}

/// The first words of statements, counted.
fn kinds(asked: &[String]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in asked {
        let text = line.split_once(": ").map_or(line.as_str(), |(_, rest)| rest);
        let text = text.split_once(": ").map_or(text, |(_, rest)| rest);
        let words: Vec<&str> = text.split_whitespace().take(3).collect();
        *counts.entry(words.join(" ")).or_default() += 1;
    }
    counts
}
