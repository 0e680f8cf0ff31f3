//! Users on record: who may call, where they live, and who changed it.

use serde_json::{Value, json};

use crate::harness::Tenant;
use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;

#[tokio::test]
async fn what_is_not_named_stays_and_null_takes_away() {
    let t = Tenant::with(Sheet::named("p").dr(5)).await;
    let whole = json!({
        "plan": "p", "org": "acme", "verified": true, "suspended": false, "zone": "Asia/Tokyo", "anchor_day": 31,
        "signals": {"device": "d1", "address": "a1"},
    });
    let put = t.put_user("u", whole.clone()).await;
    assert_eq!(put.header("etag"), Some("\"1\""));
    let mut expected = whole;
    expected["plan"] = json!({"id": "p", "version": 1});
    let rest = json!({
        "user": "u", "overrides": {}, "grants": [], "pending": null,
        "created_at": "2026-03-10T12:00:00.000Z", "version": 1,
    });
    for (name, value) in rest.as_object().unwrap() {
        expected[name] = value.clone();
    }
    assert_eq!(put.body, expected);
    t.pass(60_000).await;
    let put = t.put_user("u", json!({})).await.ok();
    expected["version"] = json!(2);
    assert_eq!(put, expected);
    for (n, name) in ["org", "zone", "anchor_day", "signals"].into_iter().enumerate() {
        let put = t.put_user("u", json!({name: null})).await.ok();
        (expected[name], expected["version"]) = (Value::Null, json!(n + 3));
        assert_eq!(put, expected);
    }
    assert_eq!(t.on_record("users/u").await.ok(), expected);
    // Whoever called is on record with nothing but the default plan.
    t.ask("called", 0, 0).await.ok();
    let called = t.on_record("users/called").await.ok();
    assert_has(
        &called,
        &json!({"plan": {"id": "p"}, "org": null, "verified": false, "zone": null, "anchor_day": null}),
    );
}

#[tokio::test]
async fn a_change_that_cannot_be_is_refused_and_changes_nothing() {
    let t = Tenant::with(Sheet::named("p").dr(5)).await;
    t.put_user("u", json!({"org": "acme"})).await.ok();
    let before = t.on_record("users/u").await.ok();
    for (body, pointer) in [
        (json!({"plan": 5}), "/plan"),
        (json!({"org": "bad org"}), "/org"),
        (json!({"verified": "yes"}), "/verified"),
        (json!({"suspended": 1}), "/suspended"),
        (json!({"zone": "Mars/Olympus"}), "/zone"),
        (json!({"zone": "+09:00"}), "/zone"),
        (json!({"anchor_day": 0}), "/anchor_day"),
        (json!({"anchor_day": 32}), "/anchor_day"),
        (json!({"anchor_day": 1.5}), "/anchor_day"),
        (json!({"signals": {"colour": "red"}}), "/signals/colour"),
        (json!({"signals": {"device": 5}}), "/signals/device"),
        (json!({"colour": "red"}), "/colour"),
    ] {
        let mut body = body;
        body["suspended"] = body.get("suspended").cloned().unwrap_or(json!(true));
        let refused = t.put_user("u", body.clone()).await;
        let told = refused.text.clone();
        let refused = refused.refused(400, "invalid_request");
        assert_eq!(refused.body["errors"][0]["pointer"], pointer, "{body}: {told}");
    }
    t.put_user("u", json!({"plan": "none"})).await.refused(404, "unknown_plan");
    // What changes rights is not done without a reason; where somebody lives is told without one.
    for body in
        [json!({"plan": "p"}), json!({"org": null}), json!({"verified": true}), json!({"suspended": true})]
    {
        let refused = t.put("/v1/admin/users/u", &body).await.refused(400, "invalid_request");
        assert_eq!(refused.body["errors"][0]["pointer"], "/reason", "{body}");
    }
    assert_eq!(t.on_record("users/u").await.ok(), before);
    t.put("/v1/admin/users/u", &json!({"zone": "UTC"})).await.ok();
    t.put("/v1/admin/users/%20u", &json!({"zone": "UTC"})).await.refused(400, "invalid_request");
    t.put_settings(json!({"default_plan": null})).await.ok();
    let refused = t.put_user("new", json!({"zone": "UTC"})).await.refused(400, "invalid_request");
    assert_eq!(refused.body["errors"][0]["pointer"], "/plan");
    t.on_record("users/new").await.refused(404, "not_found");
    t.ask("new", 0, 0).await.refused(404, "unknown_user");
    t.put_user("new", json!({"plan": "p"})).await.ok();
    t.ask("new", 0, 0).await.ok();
}

#[tokio::test]
async fn who_is_suspended_makes_no_new_call_and_finishes_those_begun() {
    let t = Tenant::with(Sheet::new().mt(1000).dr(3).cc(2)).await;
    let hold = t.ask("u", 100, 100).await.hold_id();
    let other = t.ask("u", 100, 100).await.hold_id();
    t.put_user("u", json!({"suspended": true})).await.ok();
    let refused = t.ask("u", 1, 1).await.refused(403, "user_suspended");
    assert_eq!(refused.header("x-should-retry"), Some("false"));
    t.check(json!({"user": "u", "dry_run": true})).await.refused(403, "user_suspended");
    // Also before what is too large or used up.
    t.ask("u", 5000, 0).await.refused(403, "user_suspended");
    t.ask("v", 1, 1).await.ok();
    // What is left can be seen, and what ran is charged.
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"held": 400, "used": 0}));
    t.finish(&hold, 100, 50).await.ok();
    t.release(&other).await.ok();
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"held": 0, "used": 150}));
    assert_has(&t.left("u", "requests_per_day").await, &json!({"used": 1}));
    t.put_user("u", json!({"suspended": false})).await.ok();
    t.ask("u", 1, 1).await.ok();
}

#[tokio::test]
async fn a_plan_for_verified_users_waits_for_the_verification() {
    let verified = |id: &str| Sheet::named(id).dr(5).field("requires_verified", json!(true));
    let t = Tenant::with(Sheet::named("open").dr(5)).await;
    t.put_plan(&verified("closed").json()).await.ok();
    t.move_user("u", json!({"plan": "closed", "effective": "2026-03-11T00:00:00Z"})).await.ok();
    t.ask("u", 0, 0).await.ok();
    t.set_clock("2026-03-11T00:00:00.000Z").await;
    t.ask("u", 0, 0).await.refused(403, "user_unverified");
    t.put_user("u", json!({"suspended": true})).await.ok();
    t.ask("u", 0, 0).await.refused(403, "user_suspended");
    t.put_user("u", json!({"suspended": false, "verified": true})).await.ok();
    t.ask("u", 0, 0).await.ok();
    t.put_user("u", json!({"verified": false})).await.ok();
    t.ask("u", 0, 0).await.refused(403, "user_unverified");
    assert_has(&t.left("u", "requests_per_day").await, &json!({"used": 1}));
    // A version that asks for it, and one that no longer does.
    t.put_plan(&verified("open").json()).await.ok();
    t.ask("v", 0, 0).await.refused(403, "user_unverified");
    t.on_record("users/v").await.refused(404, "not_found");
    t.put_plan(&Sheet::named("open").dr(5).json()).await.ok();
    t.ask("v", 0, 0).await.ok();
}

#[tokio::test]
async fn users_are_found_by_a_part_of_their_id_their_plan_and_their_org() {
    let t = Tenant::with(Sheet::named("p").dr(5)).await;
    t.put_plan(&Sheet::named("q").dr(5).json()).await.ok();
    for (user, plan, org) in [
        ("Alice", "p", json!("acme")),
        ("alice", "q", json!("acme")),
        ("malice/1", "p", json!("beta")),
        ("bob%", "p", Value::Null),
        ("b_b", "q", json!("beta")),
        ("日本", "p", json!("acme")),
    ] {
        t.put_user(user, json!({"plan": plan, "org": org})).await.ok();
    }
    for (query, expected) in [
        ("", vec!["Alice", "alice", "b_b", "bob%", "malice/1", "日本"]),
        ("q=alice", vec!["alice", "malice/1"]),
        ("q=A", vec!["Alice"]),
        ("q=%25", vec!["bob%"]),
        ("q=_", vec!["b_b"]),
        ("q=b", vec!["b_b", "bob%"]),
        ("q=%E6%9C%AC", vec!["日本"]),
        ("plan=q", vec!["alice", "b_b"]),
        ("org=acme", vec!["Alice", "alice", "日本"]),
        ("plan=p&org=acme&q=i", vec!["Alice"]),
        ("plan=none", vec![]),
        ("org=none", vec![]),
    ] {
        for limit in [1, 2, 500] {
            let mut found = Vec::new();
            let mut cursor = String::new();
            loop {
                let list = t.get(&format!("/v1/admin/users?{query}&limit={limit}{cursor}")).await.ok();
                for row in list["data"].as_array().unwrap() {
                    found.push(row["user"].as_str().unwrap().to_owned());
                }
                let Some(next) = list["next_cursor"].as_str() else { break };
                cursor = format!("&cursor={next}");
            }
            assert_eq!(found, expected, "{query} by {limit}");
        }
    }
}

#[tokio::test]
async fn many_changes_at_the_same_instant_are_all_made_and_none_is_lost() {
    let t = Tenant::with(Sheet::named("p").mt(1000)).await;
    let changes = (0..12).map(|n| {
        let t = &t;
        async move {
            match n % 4 {
                0 => t.put_user("u", json!({"verified": true})).await.ok(),
                1 => t
                    .put_overrides("users/u", json!({"overrides": {"tokens_per_month": {"limit": 70}}}))
                    .await
                    .ok(),
                2 => t.give("users/u", json!({"limit": "tokens_per_month", "amount": 10})).await.ok(),
                _ => t.put_user("u", json!({"org": "acme"})).await.ok(),
            }
        }
    });
    futures_util::future::join_all(changes).await;
    let user = t.on_record("users/u").await.ok();
    assert_has(&user, &json!({"verified": true, "org": "acme", "version": 12}));
    assert_eq!(user["grants"].as_array().map(Vec::len), Some(3));
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"limit": 70, "granted": 30}));
}
