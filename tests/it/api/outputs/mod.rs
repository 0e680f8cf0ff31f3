//! `max_output_tokens: "auto"`: reserved is what calls of a feature and model were seen to take.

mod traffic;

use serde_json::{Value, json};

use crate::api::nodes::pair;
use crate::harness::compare::assert_has;
use crate::harness::sheets::{PoolSheet, Sheet};
use crate::harness::{Client, Reply, Tenant};

fn auto(feature: &str) -> Value {
    json!({"user": "u", "feature": feature, "model": "opus", "max_output_tokens": "auto"})
}

#[track_caller]
fn granted(reply: &Reply) -> u64 {
    assert_eq!((reply.status, &reply.body["granted"]["auto"]), (200, &json!(true)), "{}", reply.text);
    let granted = reply.body["granted"]["max_output_tokens"].as_u64().unwrap();
    if let Some(hold) = reply.body.get("hold") {
        assert_eq!(hold["reserved"]["output_tokens"], granted);
    }
    granted
}

/// Calls that ask like `ask` and end with so much output, a hundred at a time.
async fn call(client: &Client, ask: &Value, calls: usize, output: u64) {
    for _ in 0..calls.div_ceil(100) {
        let some = vec![ask.clone(); calls.min(100)];
        let made = client.check_batch(&some).await.ok();
        let settles: Vec<Value> = made["results"]
            .as_array()
            .unwrap()
            .iter()
            .map(|made| {
                let id = made["body"]["hold"]["id"].as_str().unwrap_or_else(|| panic!("no hold: {made}"));
                json!({"id": id, "input_tokens": 1, "output_tokens": output})
            })
            .collect();
        client.settle_batch(&settles).await.ok();
    }
}

#[tokio::test]
async fn the_cap_is_reserved_until_enough_is_known_then_what_calls_take() {
    let t = Tenant::with(Sheet::new().mt(10_000_000).output(1_024)).await;
    assert_eq!(granted(&t.check(auto("chat")).await), 1_024);
    call(&t, &auto("chat"), 100, 96).await;
    assert_eq!(granted(&t.check(auto("chat")).await), 1_024);
    call(&t, &auto("chat"), 100, 96).await;
    // 99 is where the place of 96 ends, and a quarter more.
    assert_eq!(granted(&t.check(auto("chat")).await), 124);
    // Another feature begins with what is known of the model, another model with the cap.
    assert_eq!(granted(&t.check(auto("code")).await), 124);
    let other = json!({"user": "u", "feature": "chat", "model": "haiku", "max_output_tokens": "auto"});
    assert_eq!(granted(&t.check(other).await), 1_024);
    call(&t, &json!({"user": "u", "feature": "code", "model": "opus", "max_output_tokens": 64}), 200, 8)
        .await;
    assert_eq!(granted(&t.check(auto("code")).await), 16, "no less, however short they were");
    // Who asks for an amount, or for nothing, gets what they always got.
    let plain = t.check(json!({"user": "u", "feature": "chat", "model": "opus"})).await.ok();
    assert_eq!((&plain["granted"]["max_output_tokens"], plain["granted"].get("auto")), (&json!(1_024), None));
    // Nothing crosses tenants.
    let stranger = Tenant::with(Sheet::new().output(1_024)).await;
    assert_eq!(granted(&stranger.check(auto("chat")).await), 1_024);
}

#[tokio::test]
async fn a_repeated_call_is_told_its_hold_whatever_was_learned_since() {
    let t = Tenant::with(Sheet::new().mt(10_000_000).output(512)).await;
    let ask = |request: &str| {
        let mut ask = auto("chat");
        ask["request_id"] = json!(request);
        ask
    };
    let first = t.check(ask("r")).await;
    call(&t, &auto("chat"), 200, 50).await;
    let again = t.check(ask("r")).await;
    assert_eq!((granted(&again), again.hold_id()), (512, first.hold_id()));
    assert_eq!(granted(&t.check(ask("s")).await), 64);
    // The figure is another request, also where it is the same amount.
    let mut figure = ask("s");
    figure["max_output_tokens"] = json!(64);
    t.check(figure).await.refused(422, "request_id_reused");
    let mut silent = ask("s");
    silent.as_object_mut().unwrap().remove("max_output_tokens");
    t.check(silent).await.refused(422, "request_id_reused");
}

#[tokio::test]
async fn auto_is_bounded_by_the_cap_the_least_of_use_and_the_tenant() {
    let t = Tenant::with(Sheet::named("capped").mt(10_000_000).output(100)).await;
    call(&t, &json!({"user": "u", "feature": "chat", "model": "opus", "max_output_tokens": 100}), 200, 90)
        .await;
    assert_eq!(granted(&t.check(auto("chat")).await), 100);
    let of = |user: &str| {
        let mut ask = auto("chat");
        ask["user"] = json!(user);
        ask
    };
    let least = |user: &str, tokens: u64| {
        let mut ask = of(user);
        ask["min_output_tokens"] = json!(tokens);
        ask
    };
    t.check(least("u", 101)).await.refused(400, "invalid_request");
    t.plan(&Sheet::named("uncapped").mt(10_000_000)).await;
    assert_eq!(granted(&t.check(of("v")).await), 114, "91 is where the place of 90 ends, cut or not");
    assert_eq!(granted(&t.check(least("v", 600)).await), 600);
    // Without a cap and without a past.
    let unknown = json!({"user": "v", "model": "haiku", "max_output_tokens": "auto"});
    assert_eq!(granted(&t.check(unknown.clone()).await), 4_096);
    t.put_settings(json!({"max_tokens_per_call": 50})).await.ok();
    assert_eq!((granted(&t.check(unknown).await), granted(&t.check(of("v")).await)), (50, 50));
}

#[tokio::test]
async fn what_is_cut_off_lets_the_figure_grow_again() {
    let t = Tenant::with(Sheet::new().mt(100_000_000).output(4_000)).await;
    call(&t, &auto("chat"), 1_000, 96).await;
    assert_eq!(granted(&t.check(auto("chat")).await), 124);
    let mut rounds = 0;
    loop {
        let made = t.check(auto("chat")).await;
        let reserved = granted(&made);
        if reserved >= 2_000 {
            break;
        }
        // A vendor cuts the answer off where it is told to.
        t.finish(&made.hold_id(), 1, reserved.min(2_000) as i64).await.ok();
        rounds += 1;
        assert!(rounds < 300, "{reserved}");
    }
}

#[tokio::test]
async fn dry_runs_batches_smaller_grants_and_candidates_know_it_too() {
    let t = Tenant::with(Sheet::new().mt(10_000_000).output(1_000)).await;
    call(&t, &auto("chat"), 200, 96).await;
    call(&t, &json!({"user": "u", "feature": "chat", "model": "haiku", "max_output_tokens": 900}), 200, 480)
        .await;
    t.pool(&PoolSheet::new("opus", &["opus"]).output_tokens(124, 60)).await;
    let mut dry = auto("chat");
    dry["dry_run"] = json!(true);
    assert_eq!(granted(&t.check(dry).await), 124);
    // Each candidate has its own figure; the first whose whole one fits serves.
    let any =
        json!({"user": "u", "feature": "chat", "models": ["opus", "haiku"], "max_output_tokens": "auto"});
    let first = t.check(any.clone()).await;
    assert_eq!((granted(&first), &first.body["granted"]["model"]), (124, &json!("opus")));
    let second = t.check(any).await;
    assert_eq!((granted(&second), &second.body["granted"]["model"]), (619, &json!("haiku")));
    t.finish(&first.hold_id(), 1, 124).await.ok();
    t.pass(60_000).await;
    let mut smaller = auto("chat");
    smaller["min_output_tokens"] = json!(20);
    let small = t.check(smaller.clone()).await;
    assert_eq!(granted(&small), 60, "what the pool has");
    t.finish(&small.hold_id(), 1, 60).await.ok();
    t.pass(60_000).await;
    smaller["wait_ms"] = json!(1_000);
    assert_eq!(granted(&t.check(smaller).await), 60);
    t.check(json!({"user": "u", "max_output_tokens": "most"})).await.refused(400, "invalid_request");
}

#[tokio::test]
async fn a_week_later_the_past_counts_no_more() {
    let t = Tenant::with(Sheet::new().mt(10_000_000).output(1_024)).await;
    call(&t, &auto("chat"), 200, 96).await;
    t.set_clock("2026-03-16T23:59:59.999Z").await;
    assert_eq!(granted(&t.check(auto("chat")).await), 124);
    t.set_clock("2026-03-17T00:00:00.000Z").await;
    assert_eq!(granted(&t.check(auto("chat")).await), 1_024);
    assert_eq!(t.get("/v1/admin/outputs").await.ok()["data"], json!([]));
}

#[tokio::test]
async fn admins_see_how_long_answers_are_and_which_caps_that_suggests() {
    let t = Tenant::with(Sheet::new().mt(10_000_000).output(1_024)).await;
    t.put_models(&json!([{"id": "opus", "aliases": ["best"]}, {"id": "haiku"}])).await.ok();
    call(&t, &auto("chat"), 100, 10).await;
    call(&t, &auto("chat"), 100, 1_024).await;
    call(&t, &json!({"user": "u", "feature": "chat", "model": "haiku", "max_output_tokens": 40}), 100, 20)
        .await;
    call(&t, &json!({"user": "u", "max_output_tokens": 7}), 100, 0).await;
    let all = t.get("/v1/admin/outputs").await.ok();
    assert_has(&all["data"][0], &json!({"feature": null, "model": null, "count": 100, "max": 0}));
    assert_has(
        &all["data"][1],
        &json!({"feature": "chat", "model": "haiku", "count": 100, "cut": 0, "p50": 20, "p99": 20, "max": 20,
                "mean": 20, "reserved_tokens": 4_000, "used_tokens": 2_000, "suggested_max_output_tokens": null}),
    );
    assert_has(
        &all["data"][2],
        &json!({"feature": "chat", "model": "opus", "count": 200, "cut": 100, "p50": 10, "p90": 1_024, "max": 1_024,
                "mean": 517, "reserved_tokens": 204_800}),
    );
    assert_has(&all["features"][1], &json!({"feature": "chat", "count": 300, "p90": 1_024}));
    let of = async |query: &str| {
        let rows = t.get(&format!("/v1/admin/outputs?{query}")).await.ok();
        rows["data"].as_array().unwrap().iter().map(|row| row["count"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(of("feature=chat").await, [100, 200]);
    assert_eq!(of("feature=chat&model=best").await, [200]);
    assert_eq!(of("feature=talk").await, [0; 0]);
    t.get("/v1/admin/outputs?feature=Two%20words").await.refused(400, "invalid_request");
    let first = t.get("/v1/admin/outputs?limit=2").await.ok();
    assert_eq!(first["data"].as_array().map(Vec::len), Some(2));
    let cursor = first["next_cursor"].as_str().expect("there is more");
    assert_eq!(of(&format!("limit=2&cursor={cursor}")).await, [200]);
    assert_eq!(first["features"].as_array().map(Vec::len), Some(2));
}

/// Rules and doubt tell nothing of how long an answer was.
#[tokio::test]
async fn only_what_callers_settle_with_figures_is_learned_from() {
    let t = Tenant::with(Sheet::new().mt(10_000_000).output(1_024)).await;
    t.put_settings(json!({"in_doubt_after": {"hours": 1, "then": "charge"}})).await.ok();
    let released = t.check(auto("chat")).await.hold_id();
    t.release(&released).await.ok();
    let unknown = t.check(auto("chat")).await.hold_id();
    t.settle(&unknown, json!({"usage": "unknown"})).await.ok();
    t.check(auto("chat")).await.ok();
    t.usage(&json!({"id": "x", "user": "u", "input_tokens": 1, "output_tokens": 9})).await.ok();
    t.set_clock("2026-03-10T15:00:00.000Z").await;
    assert_eq!(t.get("/v1/admin/outputs").await.ok()["data"], json!([]));
    // Late, and with figures; twice is once.
    for _ in 0..2 {
        t.finish(&unknown, 1, 77).await.ok();
    }
    assert_has(&t.get("/v1/admin/outputs").await.ok()["data"][0], &json!({"count": 1, "max": 77}));
}

#[tokio::test]
async fn one_node_knows_what_calls_took_at_another() {
    let Some((t, other)) = pair().await else { return };
    t.plan(&Sheet::new().mt(10_000_000).output(1_024)).await;
    call(&t, &auto("chat"), 200, 96).await;
    t.get("/v1/admin/outputs").await.ok();
    // Its first question: as after a start.
    let told = other.check(auto("chat")).await;
    assert_eq!(granted(&told), 124);
    call(&other, &auto("chat"), 100, 10).await;
    assert_has(&other.get("/v1/admin/outputs").await.ok()["data"][0], &json!({"count": 300}));
}
