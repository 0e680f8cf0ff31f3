//! One logical operation, one hold, however often it is asked for.

use serde_json::{Value, json};

use crate::harness::Tenant;
use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;

fn body() -> Value {
    json!({"user": "u", "request_id": "7f13", "input_tokens": 100, "max_output_tokens": 50})
}

#[tokio::test]
async fn the_same_request_is_given_the_same_hold_and_takes_nothing_twice() {
    let t = Tenant::with(Sheet::new().mt(10_000).cc(5)).await;
    let first = t.check(body()).await;
    assert_eq!(first.header("idempotency-replayed"), None);
    let made = first.clone().ok();
    t.pass(5000).await;
    let again = t.check(body()).await;
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(again.body["decision"], "allow");
    assert_eq!(again.body["hold"], made["hold"], "the lease is not renewed");
    assert_eq!(again.body["granted"], made["granted"]);
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"held": 150, "used": 0}));
    assert_has(&t.left("u", "concurrency").await, &json!({"in_use": 1}));
}

#[tokio::test]
async fn the_header_and_the_field_are_the_same_thing() {
    let t = Tenant::with(Sheet::new().mt(10_000)).await;
    let first = t.check(body()).await.hold_id();
    let mut bare = body();
    bare.as_object_mut().unwrap().remove("request_id");
    assert_eq!(t.check_with_key("7f13", bare.clone()).await.hold_id(), first);
    assert_eq!(t.check_with_key("\"7f13\"", bare.clone()).await.hold_id(), first, "quoted as in the draft");
    assert_eq!(t.check_with_key("7f13", body()).await.hold_id(), first);
    t.check_with_key("other", body()).await.refused(400, "invalid_request");
    t.check_with_key(&"x".repeat(257), bare).await.refused(400, "invalid_request");
}

#[tokio::test]
async fn bodies_are_compared_after_defaults_and_without_what_changes_nothing() {
    let t = Tenant::with(Sheet::new().mt(10_000)).await;
    let first = t.check(body()).await.hold_id();
    for (name, value) in
        [("lease_seconds", json!(77)), ("wait_ms", json!(0)), ("priority", json!("interactive"))]
    {
        let mut same = body();
        same[name] = value;
        assert_eq!(t.check(same).await.hold_id(), first, "{name}");
    }
    let reordered = r#"{"max_output_tokens":50, "input_tokens" : 100,"request_id":"7f13","user":"u"}"#;
    assert_eq!(t.post_raw("/v1/check", reordered).await.hold_id(), first);
    for (name, value) in [
        ("input_tokens", json!(101)),
        ("model", json!("m")),
        ("feature", json!("chat")),
        ("priority", json!("bulk")),
    ] {
        let mut other = body();
        other[name] = value;
        t.check(other).await.refused(422, "request_id_reused");
    }
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"held": 150}));
}

#[tokio::test]
async fn a_request_that_is_over_says_so_with_its_hold() {
    let t = Tenant::with(Sheet::new().mt(10_000)).await;
    let hold = t.check(body()).await.hold_id();
    t.finish(&hold, 90, 40).await.ok();
    let over = t.check(body()).await.refused(409, "already_finished");
    assert_has(&over.body["hold"], &json!({"id": hold, "state": "settled", "actual": {"output_tokens": 40}}));
    let mut other = body();
    other["input_tokens"] = json!(5);
    t.check(other).await.refused(422, "request_id_reused");
}

#[tokio::test]
async fn a_request_in_doubt_is_given_its_hold_as_it_is() {
    let t = Tenant::with(Sheet::new().mt(10_000)).await;
    let mut leased = body();
    leased["lease_seconds"] = json!(10);
    let hold = t.check(leased).await.hold_id();
    t.pass(10_000).await;
    let again = t.check(body()).await;
    assert_eq!((again.status, again.hold_id()), (200, hold));
    assert_eq!(again.body["hold"]["state"], "in_doubt");
}

#[tokio::test]
async fn a_refusal_is_not_remembered() {
    let t = Tenant::with(Sheet::new().mt(1000).rb(1, 60)).await;
    t.ask("u", 0, 0).await.ok();
    t.check(body()).await.refused(429, "request_rate_exceeded");
    t.pass(1000).await;
    let first = t.check(body()).await;
    assert_eq!((first.status, first.header("idempotency-replayed")), (200, None));
}

#[tokio::test]
async fn request_ids_belong_to_their_user_and_tenant() {
    let t = Tenant::with(Sheet::new().mt(10_000)).await;
    let other = Tenant::with(Sheet::new().mt(10_000)).await;
    let first = t.check(body()).await.hold_id();
    let mut of_v = body();
    of_v["user"] = json!("v");
    assert_ne!(t.check(of_v).await.hold_id(), first);
    assert_ne!(other.check(body()).await.hold_id(), first);
}

#[tokio::test]
async fn two_at_the_same_instant_make_one_hold() {
    let t = Tenant::with(Sheet::new().mt(1_000_000)).await;
    for round in 0..30 {
        let mut same = body();
        same["request_id"] = json!(format!("r{round}"));
        let replies = futures_util::future::join_all((0..8).map(|_| t.check(same.clone()))).await;
        let ids: Vec<String> = replies.iter().map(crate::harness::Reply::hold_id).collect();
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        let fresh = replies.iter().filter(|r| r.header("idempotency-replayed").is_none()).count();
        assert_eq!(fresh, 1);
        assert_has(&t.left("u", "tokens_per_month").await, &json!({"held": 150 * (round + 1)}));
    }
}

#[tokio::test]
async fn a_dry_run_decides_takes_nothing_and_knows_no_request() {
    let t = Tenant::with(Sheet::new().mt(1000).rb(1, 60)).await;
    let mut dry = body();
    dry["dry_run"] = json!(true);
    for _ in 0..3 {
        let reply = t.check(dry.clone()).await.ok();
        assert_eq!(reply.get("hold"), None);
        assert_has(&reply, &json!({"decision": "allow", "granted": {"max_output_tokens": 50}}));
        assert_has(&reply["limits"][0], &json!({"used": 0, "held": 0, "remaining": 1000}));
    }
    t.check(body()).await.ok();
    t.check(dry).await.refused(429, "request_rate_exceeded");
    t.hold_by_request("u", "7f13").await.ok();
}

#[tokio::test]
async fn a_request_is_remembered_for_a_day_after_its_end() {
    let t = Tenant::with(Sheet::new().per("life", json!("lifetime"), 10_000)).await;
    let hold = t.check(body()).await.hold_id();
    t.pass(3_000_000).await;
    t.finish(&hold, 1, 1).await.ok();
    t.pass(24 * 3_600_000 - 1).await;
    t.check(body()).await.refused(409, "already_finished");
}

/// What finished long ago is kept shorter than what may be asked for again at any moment.
#[tokio::test]
async fn a_user_of_many_calls_is_remembered_for_a_day_of_them() {
    let t = Tenant::with(Sheet::new().mt(10_000_000).cc(5)).await;
    let call = |n: usize| {
        let mut body = body();
        body["request_id"] = json!(format!("call-{n}"));
        body
    };
    let mut holds = Vec::new();
    for n in 0..300 {
        let hold = t.check(call(n)).await.hold_id();
        // One that never ends is known as it is, however old.
        if n != 7 {
            t.finish(&hold, 90, 40).await.ok();
        }
        holds.push(hold);
        t.pass(4 * 60_000).await;
    }
    let used = t.left("u", "tokens_per_month").await;
    let known = async |n: usize| {
        let again = t.check(call(n)).await;
        match n {
            7 => assert_eq!(again.hold_id(), holds[n]),
            _ => {
                assert_eq!(again.refused(409, "already_finished").body["hold"]["id"], json!(holds[n]), "{n}")
            }
        }
    };
    for n in 0..300 {
        known(n).await;
    }
    let mut other = call(3);
    other["input_tokens"] = json!(5);
    t.check(other).await.refused(422, "request_id_reused");
    assert_eq!(t.left("u", "tokens_per_month").await, used, "nothing is taken twice");
    // Asked for once, kept short again, and asked for once more.
    for n in 300..700 {
        t.finish(&t.check(call(n)).await.hold_id(), 90, 40).await.ok();
    }
    t.pass(3_600_000).await;
    for n in 700..1000 {
        t.finish(&t.check(call(n)).await.hold_id(), 90, 40).await.ok();
    }
    for n in [299, 100, 20, 500, 999] {
        let again = t.check(call(n)).await;
        again.refused(409, "already_finished");
    }
    // The first is a day old.
    t.pass(3 * 3_600_000).await;
    assert_ne!(t.check(call(0)).await.hold_id(), holds[0]);
}
