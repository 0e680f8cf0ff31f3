//! Nodes whose machines have other times.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use serde_json::json;

use super::Pair;
use crate::harness::lasting::skipped;
use crate::harness::number_from_env;
use crate::harness::postgres::Postgres;
use crate::harness::redis::Single;
use crate::harness::sheets::Sheet;

/// A library that shows a process another time.
fn faketime() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let file = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    file.into_iter().find(|file| file.is_file()).or_else(|| {
        skipped("libfaketime");
        None
    })
}

/// Case C21.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_with_clocks_that_are_apart_refill_a_bucket_once() {
    let Some(library) = faketime() else { return };
    let (Some(redis), Some(postgres)) = (Single::start(&[]), Postgres::shared()) else { return };
    let settings = |by: &str| {
        vec![
            ("LD_PRELOAD", library.display().to_string()),
            ("FAKETIME", by.to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    };
    let pair = Pair::in_real_time(&redis.url(), postgres, [settings("-5s"), settings("+5s")]).await;
    pair.client(0).put_plan(&Sheet::named("rate").rb(5, 300).json()).await.ok();
    pair.client(0).put_user("u", json!({"plan": "rate"})).await.ok();
    pair.second_knows("u", &["requests_per_minute"], "life").await;
    let stops = Arc::new(AtomicBool::new(false));
    let admitted = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let begun = Instant::now();
    let callers: Vec<_> = (0..8)
        .map(|number| {
            let (node, stops) = (pair.client(number % 2).clone(), Arc::clone(&stops));
            let admitted = Arc::clone(&admitted[number % 2]);
            tokio::spawn(async move {
                while !stops.load(SeqCst) {
                    let reply = node.check(json!({"user": "u", "lease_seconds": 60})).await;
                    match reply.status {
                        200 => drop(admitted.fetch_add(1, SeqCst)),
                        _ => drop(reply.refused(429, "request_rate_exceeded")),
                    }
                }
            })
        })
        .collect();
    let lasts = Duration::from_secs(number_from_env("CLOCK_SECONDS", 5) as u64);
    tokio::time::sleep(lasts).await;
    stops.store(true, SeqCst);
    for caller in callers {
        caller.await.expect("every answer is yes or no");
    }
    let took = begun.elapsed().as_secs_f64();
    let [slow, fast] = admitted.map(|count| count.load(SeqCst));
    // Nodes may be a quarter of a second ahead of the server.
    let most = 5.0 + 5.0 * (took + 0.25);
    println!(
        "| clocks 5 s slow and 5 s fast | 0 | {slow} + {fast} admitted in {took:.1} s, at most {most:.1} | 0 | hold |"
    );
    assert!((slow + fast) as f64 <= most, "{slow} + {fast} in {took} s");
    assert!(slow > 0 && fast > 0, "both decide: {slow} {fast}");
}
