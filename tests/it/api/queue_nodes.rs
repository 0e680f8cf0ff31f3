//! One line before a pool, whichever node a call waits at.

use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

use super::queue::{by_hand, depth, until_depth};
use crate::harness::compare::assert_has;
use crate::harness::sheets::{PoolSheet, Sheet};
use crate::harness::{Client, Pair, Tenant, number_from_env};

/// A tenant of two nodes at which nobody else waits. `None`: there are no servers for them here.
async fn pair(places: u64) -> Option<(Tenant, [Client; 2], MutexGuard<'static, ()>)> {
    static NODES: Pair = Pair::new();
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.lock().await;
    let (t, other) = NODES.tenant().await?;
    t.plan(&Sheet::new().dr(1_000_000)).await;
    let pool = PoolSheet::new("default", &["*"]).places(places).field("max_queue", json!(100_000));
    t.pool(&pool).await;
    let nodes = [t.client.clone(), other];
    // The second node knows the pool by then.
    while nodes[1].get("/v1/admin/pools/default").await.status != 200 {}
    Some((t, nodes, turn))
}

fn call(user: &str) -> Value {
    json!({"user": user, "wait_ms": 60_000, "lease_seconds": 3600})
}

async fn until_waiting(nodes: &[Client; 2], wanted: u64) {
    let from = std::time::Instant::now();
    loop {
        let now = depth(&nodes[0]).await.0 + depth(&nodes[1]).await.0;
        if now == wanted {
            return;
        }
        assert!(from.elapsed().as_secs() < 60, "{now} wait, not {wanted}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn who_came_first_goes_first_at_whichever_node() {
    let Some((t, nodes, _turn)) = pair(1).await else { return };
    let mut hold = t.check(call("first")).await.hold_id();
    let mut waiting = Vec::new();
    for n in 0..8u64 {
        t.pass(1).await;
        let client = nodes[n as usize % 2].clone();
        waiting.push(tokio::spawn(async move { client.check(call(&format!("u{n}"))).await }));
        until_depth(&nodes[n as usize % 2], (n / 2 + 1, 0)).await;
    }
    for (n, waiting) in waiting.into_iter().enumerate() {
        // Given back at one node, taken at the other.
        t.finish(&hold, 0, 0).await.ok();
        let admitted = waiting.await.unwrap().ok();
        assert_eq!(admitted["hold"]["user"], format!("u{n}"));
        hold = admitted["hold"]["id"].as_str().unwrap().to_owned();
    }
}

#[tokio::test]
async fn of_many_who_wait_those_who_hang_up_take_nothing() {
    const PLACES: u64 = 20;
    let Some((t, nodes, _turn)) = pair(PLACES).await else { return };
    // Nobody waits longer than a minute, however crowded the machine is.
    let many = number_from_env("QUEUE_WAITERS", 200) as u64;
    let mut holds = Vec::new();
    for _ in 0..PLACES {
        holds.push(t.check(call("first")).await.hold_id());
    }
    let (mut living, mut dying) = (Vec::new(), Vec::new());
    for n in 0..many {
        let client = nodes[(n % 2) as usize].clone();
        if n / 2 % 2 == 0 {
            living.push(tokio::spawn(async move {
                let hold = client.check(call("living")).await.hold_id();
                client.settle(&hold, json!({"input_tokens": 0, "output_tokens": 0})).await.ok();
            }));
        } else {
            dying.push(by_hand(&client, &call("dying")).await);
        }
    }
    until_waiting(&nodes, many).await;
    let dead = dying.len() as u64;
    drop(dying);
    for hold in &holds {
        t.finish(hold, 0, 0).await.ok();
    }
    for waiting in living {
        waiting.await.unwrap();
    }
    until_waiting(&nodes, 0).await;
    assert_has(&t.left("dying", "requests_per_day").await, &json!({"used": 0}));
    assert_has(&t.left("living", "requests_per_day").await, &json!({"used": many - dead}));
    let last = nodes[1].check(json!({"user": "last"})).await;
    assert_has(&last.row("pool_places"), &json!({"in_use": 1, "remaining": PLACES - 1}));
}
