//! Many callers at the same instant: exactly the limit is admitted, never one more or fewer.

use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::{Value, json};

use crate::harness::compare::assert_has;
use crate::harness::sheets::{PoolSheet, Sheet};
use crate::harness::{Reply, Tenant, number_from_env};

/// Requests in flight at once; each needs a connection of its own.
const IN_FLIGHT: usize = 256;

async fn all_at_once(t: &Tenant, bodies: Vec<Value>) -> Vec<Reply> {
    stream::iter(bodies.into_iter().map(|body| t.client.check(body)))
        .buffer_unordered(IN_FLIGHT)
        .collect()
        .await
}

fn rounds() -> usize {
    number_from_env("PARALLEL_ROUNDS", 2)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_one_account_are_admitted_up_to_its_limit() {
    let t = Tenant::with(Sheet::new().mt(10_000)).await;
    for round in 0..rounds() {
        for callers in [20, 200, 2000] {
            let user = format!("u{round}-{callers}");
            let body = json!({"user": user, "input_tokens": 500, "max_output_tokens": 1500});
            let replies = all_at_once(&t, vec![body; callers]).await;
            let (admitted, refused): (Vec<Reply>, Vec<Reply>) =
                replies.into_iter().partition(|r| r.status == 200);
            assert_eq!(admitted.len(), 5, "{callers} callers");
            assert!(refused.iter().all(|r| r.code() == "monthly_quota_exhausted"));
            assert_has(&t.left(&user, "tokens_per_month").await, &json!({"held": 10_000, "remaining": 0}));
            for reply in &admitted {
                t.finish(&reply.hold_id(), 50, 50).await.ok();
            }
            assert_has(&t.left(&user, "tokens_per_month").await, &json!({"held": 0, "used": 500}));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_one_pool_are_admitted_up_to_its_limit() {
    let t = Tenant::with(Sheet::new().dr(10_000).cc(1000)).await;
    for round in 0..rounds() {
        for (callers, places) in [(20, 7), (200, 50), (2000, 333)] {
            let model = format!("m{round}-{callers}");
            t.pool(&PoolSheet::new(&model, &[&model]).places(places).requests(places + 3, 1)).await;
            let bodies =
                (0..callers).map(|n| json!({"user": format!("u{}", n % 50), "model": model})).collect();
            let replies = all_at_once(&t, bodies).await;
            let admitted: Vec<String> =
                replies.iter().filter(|r| r.status == 200).map(Reply::hold_id).collect();
            assert_eq!(admitted.len(), usize::try_from(places).unwrap(), "{callers} callers");
            for refused in replies.iter().filter(|r| r.status != 200) {
                assert_eq!(refused.code(), "upstream_capacity_exceeded", "{}", refused.text);
            }
            for hold in &admitted {
                t.release(hold).await.ok();
            }
            let row = t.check(json!({"user": "last", "model": model})).await.row("pool_requests");
            assert_eq!(row["remaining"], places + 2, "everything came back");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_taken_and_given_back_by_many_adds_up() {
    let t = Tenant::with(Sheet::new().mt(1_000_000).ob(100_000, 1).cc(40).dr(100_000)).await;
    for _ in 0..rounds() {
        let calls = stream::iter(0..400_i64).map(|n| {
            let t = &t;
            async move {
                let reply = t.ask("u", n, 10).await;
                if reply.status != 200 {
                    reply.refused(429, "concurrency_exceeded");
                    return 0;
                }
                let hold = reply.hold_id();
                match n % 4 {
                    0 => {
                        t.release(&hold).await.ok();
                        0
                    }
                    1 => {
                        let (a, b) = tokio::join!(t.finish(&hold, n, 3), t.finish(&hold, n, 3));
                        assert_eq!(a.ok()["hold"], b.ok()["hold"]);
                        n + 3
                    }
                    2 => {
                        let (a, b) = tokio::join!(t.finish(&hold, n, 5), t.release(&hold));
                        assert_eq!([a.status, b.status].iter().filter(|s| **s == 200).count(), 1);
                        if a.status == 200 { n + 5 } else { 0 }
                    }
                    _ => {
                        t.finish(&hold, n, 20).await.ok();
                        n + 20
                    }
                }
            }
        });
        let before = t.left("u", "tokens_per_month").await["used"].as_i64().unwrap();
        let used: i64 = calls.buffer_unordered(64).collect::<Vec<i64>>().await.iter().sum();
        assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": before + used, "held": 0}));
        assert_has(&t.left("u", "concurrency").await, &json!({"in_use": 0}));
    }
}
