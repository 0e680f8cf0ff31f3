//! Many holds in doubt: lists, filters, and several hands at once.

use std::time::Instant;

use serde_json::{Value, json};

use super::doubt::{action, audited, listed, resolve, resolve_all};
use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;
use crate::harness::{Reply, Tenant, number_from_env};

#[tokio::test]
async fn the_list_tells_the_oldest_doubt_first_and_filters() {
    let t = Tenant::with(Sheet::new().mt(1_000_000)).await;
    t.put_models(&json!([{"id": "opus", "aliases": ["best"], "input": 1, "output": 1, "cache_read": 1}]))
        .await
        .ok();
    let mut holds = Vec::new();
    for (user, model, feature, lease) in [
        ("a", "opus", "chat", 300),
        ("b", "opus", "search", 200),
        ("a", "haiku", "chat", 100),
        ("b", "best", "chat", 60),
    ] {
        let body = json!({"user": user, "model": model, "feature": feature, "input_tokens": 10, "max_output_tokens": 5, "lease_seconds": lease});
        holds.push(t.check(body).await.hold_id());
        t.pass(1000).await;
    }
    assert_eq!(listed(&t, "", 10).await, Vec::<String>::new(), "their leases run");
    t.pass(150_000).await;
    let of = |indexes: &[usize]| indexes.iter().map(|index| holds[*index].clone()).collect::<Vec<_>>();
    assert_eq!(listed(&t, "", 10).await, of(&[3, 2]));
    t.pass(150_000).await;
    for limit in 1..5 {
        assert_eq!(listed(&t, "&state=in_doubt", limit).await, of(&[3, 2, 1, 0]));
        assert_eq!(listed(&t, "&user=a", limit).await, of(&[2, 0]));
        assert_eq!(listed(&t, "&model=best", limit).await, of(&[3, 1, 0]));
        assert_eq!(listed(&t, "&feature=chat&model=opus", limit).await, of(&[3, 0]));
    }
    assert_eq!(listed(&t, "&from=2026-03-10T12:00:01.000Z&to=2026-03-10T12:00:03Z", 1).await, of(&[2, 1]));
    assert_eq!(listed(&t, "&from=2026-03-10&to=2026-03-11", 10).await, of(&[3, 2, 1, 0]));
    assert_eq!(listed(&t, "&from=2026-03-11", 10).await, Vec::<String>::new());
    // What is settled meanwhile is gone, wherever it is kept.
    t.finish(&holds[2], 1, 1).await.ok();
    assert_eq!(listed(&t, "", 1).await, of(&[3, 1, 0]));
    let shown = t.get("/v1/admin/holds?user=b&limit=1").await.ok();
    assert_eq!(shown["data"][0], t.hold(&holds[3]).await.ok()["hold"]);
}

#[tokio::test]
async fn a_filter_resolves_what_it_names_and_a_dry_run_counts_it_before() {
    let t = Tenant::with(Sheet::new().mt(1_000_000)).await;
    for number in 0..6 {
        let body = json!({"user": format!("u{}", number % 2), "feature": "chat", "input_tokens": 10 + number, "max_output_tokens": 5, "lease_seconds": 60});
        t.check(body).await.ok();
    }
    t.pass(60_000).await;
    let running = t.ask_for("u0", 7, 7, 60).await.hold_id();
    let amounts =
        json!({"requests": 3, "input_tokens": 36, "output_tokens": 15, "total_tokens": 51, "credits": 0});
    let dry = json!({"action": "release", "dry_run": true, "user": "u0", "feature": "chat"});
    for _ in 0..2 {
        let told = resolve_all(&t, "", dry.clone()).await.ok();
        assert_eq!(told, json!({"matched": 3, "amounts": amounts}));
    }
    assert_eq!(listed(&t, "", 10).await.len(), 6);
    // The query and the body may say the same, or each a part.
    let body = json!({"action": "release", "reason": "the vendor was down", "user": "u0"});
    assert_eq!(
        resolve_all(&t, "?user=u0&feature=chat", body.clone()).await.ok(),
        json!({"matched": 3, "amounts": amounts})
    );
    assert_eq!(resolve_all(&t, "?user=u0", body).await.ok()["matched"], 0);
    assert_has(&t.left("u0", "tokens_per_month").await, &json!({"used": 0, "held": 14}));
    assert_eq!(t.hold(&running).await.ok()["hold"]["state"], "held");
    // Without a filter: all that are left.
    let rest = resolve_all(&t, "", json!({"action": "charge", "reason": "x"})).await.ok();
    assert_has(&rest, &json!({"matched": 3, "amounts": {"total_tokens": 54}}));
    assert_has(&t.left("u1", "tokens_per_month").await, &json!({"used": 54, "held": 0}));
}

#[tokio::test]
async fn a_settle_a_resolve_and_the_rule_at_the_same_moment_count_once() {
    let t = Tenant::with(Sheet::new().cc(1).mt(10_000_000)).await;
    t.put_settings(json!({"in_doubt_after": {"hours": 0, "then": "charge"}})).await.ok();
    let mut used = 0;
    for round in 0..number_from_env("RACE_ROUNDS", 60) {
        let hold = t.ask_for("u", 100, 100, 1).await.hold_id();
        let settle = json!({"action": "settle", "input_tokens": 100, "output_tokens": 70, "reason": "x"});
        let charge = action("charge");
        // With no hours of grace the rule ends the hold when its lease does, by the clock's move or by whoever
        // touches it first.
        let (_, settled, released, resolved, charged, listed) = tokio::join!(
            t.pass(1000 + round as i64 % 3 - 1),
            t.finish(&hold, 100, 50),
            t.release(&hold),
            resolve(&t, &hold, &settle),
            resolve(&t, &hold, &charge),
            t.get("/v1/admin/holds"),
        );
        listed.ok();
        let answers = [settled, released, resolved, charged];
        let done: Vec<&Reply> = answers.iter().filter(|reply| reply.status == 200).collect();
        assert!(done.len() <= 1, "{done:?}");
        for refused in answers.iter().filter(|reply| reply.status != 200) {
            assert!(["already_finished", "not_in_doubt"].contains(&refused.code()), "{}", refused.text);
        }
        t.pass(1).await;
        let end = t.hold(&hold).await.ok();
        match done.first() {
            Some(done) => assert_eq!(done.body["hold"], end["hold"]),
            None => assert_eq!(end["hold"]["resolved_by"], "rule"),
        }
        used += end["hold"]["counted"]["total_tokens"].as_i64().unwrap();
        assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": used, "held": 0}));
        assert_has(&t.left("u", "concurrency").await, &json!({"in_use": 0}));
    }
}

#[tokio::test]
async fn two_resolves_by_filter_and_settles_between_them_count_every_hold_once() {
    let t = Tenant::with(Sheet::new().mt(1_000_000)).await;
    let mut holds = Vec::new();
    for number in 0..60 {
        holds.push(t.ask_for(&format!("u{}", number % 3), 10, 10, 60).await.hold_id());
    }
    t.pass(60_000).await;
    let settles = async {
        let mut mine = 0;
        for hold in holds.iter().rev().take(30) {
            mine += u64::from(t.finish(hold, 1, 0).await.status == 200);
        }
        mine
    };
    let (mine, one, two) =
        tokio::join!(settles, resolve_all(&t, "", action("charge")), resolve_all(&t, "", action("release")));
    let (one, two) = (one.ok(), two.ok());
    let matched = |reply: &Value| reply["matched"].as_u64().unwrap();
    assert_eq!(mine + matched(&one) + matched(&two), 60, "{mine} {one} {two}");
    for reply in [&one, &two] {
        assert_eq!(reply["amounts"]["total_tokens"], 20 * matched(reply));
    }
    let mut used = 0;
    for user in ["u0", "u1", "u2"] {
        let left = t.left(user, "tokens_per_month").await;
        assert_eq!(left["held"], 0);
        used += left["used"].as_u64().unwrap();
    }
    assert_eq!(used, mine + 20 * matched(&one));
}

#[tokio::test]
async fn what_is_held_is_the_sum_of_what_is_open_whatever_was_done() {
    let t = Tenant::with(Sheet::new().mt(1_000_000).limit(json!({
        "name": "all", "kind": "window", "meter": "total_tokens", "period": "month", "limit": 9_000_000, "scope": "tenant"
    }))).await;
    let mut holds: Vec<String> = Vec::new();
    let mut random = 11_u64;
    let mut below = |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    for step in 0..120 {
        let hold = holds.get(below(holds.len() as u64 + 1) as usize).cloned();
        match (below(9), hold) {
            (0..=3, _) | (_, None) => {
                let lease = 30 + below(120) as i64;
                holds.push(t.ask_for("u", 100, 50 + below(50) as i64, lease).await.hold_id());
            }
            (4, Some(hold)) => drop(t.finish(&hold, 90, below(200) as i64).await),
            (5, Some(hold)) => {
                drop(resolve(&t, &hold, &action(["charge", "release", "settle"][below(3) as usize])).await)
            }
            (6, Some(hold)) => drop(t.settle(&hold, json!({"usage": "unknown"})).await),
            (7, Some(hold)) => drop(t.extend(&hold, json!({"add_output_tokens": 20})).await),
            _ if step % 5 == 0 => drop(resolve_all(&t, "?from=2026-03-10", action("charge")).await.ok()),
            _ => t.pass(20_000).await,
        }
    }
    let (mut held, mut used) = (0, 0);
    for hold in &holds {
        let hold = t.hold(hold).await.ok()["hold"].clone();
        match hold["state"].as_str().unwrap() {
            "held" | "in_doubt" => held += hold["reserved"]["total_tokens"].as_u64().unwrap(),
            _ => used += hold["counted"]["total_tokens"].as_u64().unwrap(),
        }
    }
    assert!(held > 0 && used > 0, "{held} {used}");
    for limit in ["tokens_per_month", "all"] {
        assert_has(&t.left("u", limit).await, &json!({"held": held, "used": used}));
    }
    resolve_all(&t, "", action("release")).await.ok();
    t.pass(3_600_000).await;
    resolve_all(&t, "", action("release")).await.ok();
    for limit in ["tokens_per_month", "all"] {
        assert_has(&t.left("u", limit).await, &json!({"held": 0, "used": used}));
    }
}

#[tokio::test]
async fn many_holds_of_many_users_are_resolved_in_one_call() {
    let t = Tenant::with(Sheet::new().mt(1_000_000)).await;
    let count = number_from_env("DOUBTFUL_HOLDS", 1200);
    let mut left = count;
    while left > 0 {
        let some = left.min(100);
        let check = |number: usize| json!({"user": format!("u{}", number / 2), "input_tokens": 3, "max_output_tokens": 4, "lease_seconds": 60});
        let checks: Vec<Value> = (left - some..left).map(check).collect();
        t.check_batch(&checks).await.ok();
        left -= some;
    }
    t.pass(60_000).await;
    let start = Instant::now();
    let dry = resolve_all(&t, "", json!({"action": "charge", "dry_run": true})).await.ok();
    let dry_took = start.elapsed();
    let start = Instant::now();
    let done = resolve_all(&t, "", action("charge")).await.ok();
    println!("{count} holds: counted in {dry_took:?}, resolved in {:?}", start.elapsed());
    assert_eq!(done, dry);
    assert_has(&done, &json!({"matched": count, "amounts": {"requests": count, "total_tokens": 7 * count}}));
    assert_eq!(listed(&t, "", 500).await, Vec::<String>::new());
    assert_has(&t.left("u0", "tokens_per_month").await, &json!({"used": 14, "held": 0}));
    let (_, _, after, _) = audited(&t).await.pop().unwrap();
    assert_eq!(after["holds"].as_array().unwrap().len(), count.min(1000));
}
