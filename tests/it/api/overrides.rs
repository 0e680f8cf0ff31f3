//! Overrides: numbers in place of the plan's, for one user, with who, when and why.

use serde_json::{Value, json};

use crate::harness::Tenant;
use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;

const END: &str = "2026-03-12T00:00:00.000Z";

fn sheet(id: &str) -> Sheet {
    Sheet::named(id).rb(10, 60).dr(100).mt(1000).cc(2)
}

#[tokio::test]
async fn every_kind_of_limit_takes_numbers_in_place_of_the_plans() {
    let t = Tenant::with(sheet("p")).await;
    t.spend("u", 600, 0).await;
    let overrides = json!({
        "tokens_per_month": {"limit": 500},
        "concurrency": {"limit": 7},
        "requests_per_minute": {"capacity": 30, "refill_per_minute": 120},
    });
    let put = t
        .put_overrides("users/u", json!({"overrides": overrides, "expires_at": END, "reason": "a deal"}))
        .await;
    let shown = json!({"expires_at": END, "set_at": "2026-03-10T12:00:00.000Z", "reason": "a deal"});
    assert_has(&put.body["overrides"]["tokens_per_month"], &shown);
    assert_has(
        &put.body["overrides"]["requests_per_minute"],
        &json!({"capacity": 30, "refill_per_minute": 120}),
    );
    assert!(put.body["overrides"]["concurrency"]["by"].as_str().is_some_and(|by| !by.is_empty()));
    assert_eq!(put.ok(), t.on_record("users/u").await.ok());
    assert_has(
        &t.left("u", "tokens_per_month").await,
        &json!({"limit": 500, "used": 600, "remaining": 0, "over_by": 100}),
    );
    assert_has(&t.left("u", "concurrency").await, &json!({"limit": 7, "remaining": 7}));
    // The deficit of 1 stays one.
    assert_has(
        &t.left("u", "requests_per_minute").await,
        &json!({"limit": 30, "remaining": 29, "refill_per_minute": 120}),
    );
    assert_has(&t.left("u", "requests_per_day").await, &json!({"limit": 100, "used": 1}));
    t.ask("u", 1, 0).await.refused(429, "monthly_quota_exhausted");
    // Nobody else has them.
    assert_has(&t.left("v", "tokens_per_month").await, &json!({"limit": 1000}));
    // One number of a bucket alone.
    t.put_overrides("users/v", json!({"overrides": {"requests_per_minute": {"capacity": 20}}})).await.ok();
    assert_has(&t.left("v", "requests_per_minute").await, &json!({"limit": 20, "refill_per_minute": 60}));
}

#[tokio::test]
async fn those_named_are_replaced_null_takes_away_and_the_others_stay() {
    let t = Tenant::with(sheet("p")).await;
    let put = async |overrides: Value| {
        let put = t.put_overrides("users/u", json!({"overrides": overrides})).await.ok();
        let shown = put["overrides"].as_object().unwrap().clone();
        shown.into_iter().map(|(name, entry)| format!("{name} {}", entry["limit"])).collect::<Vec<_>>()
    };
    let both = json!({"tokens_per_month": {"limit": 1}, "concurrency": {"limit": 3}});
    assert_eq!(put(both).await, ["concurrency 3", "tokens_per_month 1"]);
    assert_eq!(put(json!({"concurrency": {"limit": 4}})).await, ["concurrency 4", "tokens_per_month 1"]);
    assert_eq!(put(json!({})).await, ["concurrency 4", "tokens_per_month 1"]);
    assert_eq!(put(json!({"tokens_per_month": null})).await, ["concurrency 4"]);
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"limit": 1000}));
    // What is not there is gone already; also of a limit that no plan has any more.
    assert_eq!(put(json!({"tokens_per_month": null, "ghost": null})).await, ["concurrency 4"]);
    assert_eq!(put(json!({"concurrency": null})).await, [""; 0]);
    assert_has(&t.left("u", "concurrency").await, &json!({"limit": 2}));
}

#[tokio::test]
async fn an_override_ends_at_its_instant_and_gives_the_plans_numbers_back() {
    let t = Tenant::with(sheet("p")).await;
    let more = json!({"tokens_per_month": {"limit": 5000}, "concurrency": {"limit": 0}});
    t.put_overrides("users/u", json!({"overrides": more, "expires_at": END})).await.ok();
    t.ask("u", 1, 0).await.refused(429, "quota_exhausted");
    t.put_overrides("users/u", json!({"overrides": {"concurrency": null}})).await.ok();
    t.spend("u", 3000, 0).await;
    t.set_clock("2026-03-11T23:59:59.999Z").await;
    t.spend("u", 1000, 0).await;
    t.set_clock(END).await;
    assert_has(
        &t.left("u", "tokens_per_month").await,
        &json!({"limit": 1000, "used": 4000, "remaining": 0, "over_by": 3000}),
    );
    assert_eq!(t.on_record("users/u").await.ok()["overrides"], json!({}));
    t.ask("u", 1, 0).await.refused(429, "monthly_quota_exhausted");
    t.set_clock("2026-04-01T00:00:00.000Z").await;
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"limit": 1000, "remaining": 1000}));
}

#[tokio::test]
async fn nothing_is_a_number_too() {
    let month = json!("2026-04-01T00:00:00.000Z");
    for (name, numbers, code, resets_at) in [
        ("tokens_per_month", json!({"limit": 0}), "monthly_quota_exhausted", month),
        ("requests_per_day", json!({"limit": 0}), "daily_quota_exhausted", json!("2026-03-11T00:00:00.000Z")),
        ("concurrency", json!({"limit": 0}), "quota_exhausted", Value::Null),
        (
            "requests_per_minute",
            json!({"capacity": 0, "refill_per_minute": 0}),
            "quota_exhausted",
            Value::Null,
        ),
        ("requests_per_minute", json!({"capacity": 0}), "quota_exhausted", Value::Null),
    ] {
        let t = Tenant::with(sheet("p")).await;
        t.put_overrides("users/u", json!({"overrides": {name: numbers}})).await.ok();
        let refused = t.ask("u", 1, 1).await.refused(429, code);
        assert_has(&refused.body, &json!({"limit": name, "retryable": false, "resets_at": resets_at}));
        assert_has(&t.left("u", name).await, &json!({"remaining": 0, "limit": 0}));
        t.ask("v", 1, 1).await.ok();
    }
    // And more where the plan gives nothing.
    let t = Tenant::with(Sheet::new().mt(0).rb(0, 0).cc(0)).await;
    let some = json!({
        "tokens_per_month": {"limit": 10},
        "requests_per_minute": {"capacity": 1, "refill_per_minute": 1},
        "concurrency": {"limit": 1},
    });
    t.put_overrides("users/u", json!({"overrides": some})).await.ok();
    t.ask("u", 10, 0).await.ok();
    t.ask("v", 10, 0).await.refused(429, "quota_exhausted");
}

#[tokio::test]
async fn numbers_that_a_limit_cannot_have_are_refused_each_with_its_place() {
    let t = Tenant::with(sheet("p").per("team", json!("month"), 10).but("scope", json!("org"))).await;
    t.put_plan(&Sheet::named("q").per("elsewhere", json!("week"), 10).json()).await.ok();
    t.put_overrides("users/u", json!({"overrides": {"concurrency": {"limit": 5}}})).await.ok();
    let before = t.on_record("users/u").await.ok();
    for (overrides, pointer) in [
        (json!({"ghost": {"limit": 1}}), "/overrides/ghost"),
        (json!({"elsewhere": {"limit": 1}}), "/overrides/elsewhere"),
        (json!({"team": {"limit": 1}}), "/overrides/team"),
        (json!({"No Name": {"limit": 1}}), "/overrides/No Name"),
        (json!({"concurrency": {}}), "/overrides/concurrency"),
        (json!({"concurrency": 5}), "/overrides/concurrency"),
        (json!({"concurrency": {"limit": -1}}), "/overrides/concurrency/limit"),
        (json!({"concurrency": {"limit": 1.5}}), "/overrides/concurrency/limit"),
        (json!({"concurrency": {"limit": "5"}}), "/overrides/concurrency/limit"),
        (json!({"concurrency": {"limit": 1_000_001}}), "/overrides/concurrency/limit"),
        (json!({"concurrency": {"capacity": 5}}), "/overrides/concurrency/capacity"),
        (json!({"concurrency": {"limit": 5, "colour": 1}}), "/overrides/concurrency/colour"),
        (json!({"tokens_per_month": {"limit": 1_u64 << 53}}), "/overrides/tokens_per_month/limit"),
        (
            json!({"tokens_per_month": {"refill_per_minute": 1}}),
            "/overrides/tokens_per_month/refill_per_minute",
        ),
        (json!({"requests_per_minute": {"limit": 5}}), "/overrides/requests_per_minute/limit"),
        (
            json!({"requests_per_minute": {"refill_per_minute": 0}}),
            "/overrides/requests_per_minute/refill_per_minute",
        ),
        (
            json!({"requests_per_minute": {"capacity": 100_000_000_001_u64}}),
            "/overrides/requests_per_minute/capacity",
        ),
        (json!([]), "/overrides"),
        (Value::Null, "/overrides"),
    ] {
        // With one that would be right: all or nothing.
        let mut body = json!({"overrides": overrides});
        if let Some(named) = body["overrides"].as_object_mut() {
            named.insert("requests_per_day".into(), json!({"limit": 1}));
        }
        let refused = t.put_overrides("users/u", body.clone()).await.refused(400, "invalid_request");
        let pointers: Vec<&str> = refused.body["errors"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| e["pointer"].as_str().unwrap())
            .collect();
        assert_eq!(pointers, [pointer], "{body}");
    }
    let several = json!({"ghost": {"limit": 1}, "concurrency": {"capacity": 1}});
    let refused =
        t.put_overrides("users/u", json!({"overrides": several, "expires_at": "2026-03-10T12:00:00Z"}));
    assert_eq!(refused.await.body["errors"].as_array().map(Vec::len), Some(3));
    for (body, pointer) in [
        (json!({"reason": "x"}), "/overrides"),
        (json!({"overrides": {}}), "/reason"),
        (json!({"overrides": {}, "reason": "x", "expires_at": "soon"}), "/expires_at"),
        (json!({"overrides": {}, "reason": "x", "limit": 1}), "/limit"),
    ] {
        let refused = t.put("/v1/admin/users/u/overrides", &body).await.refused(400, "invalid_request");
        assert_eq!(refused.body["errors"][0]["pointer"], pointer, "{body}");
    }
    assert_eq!(t.on_record("users/u").await.ok(), before);
}

#[tokio::test]
async fn an_override_stays_with_the_user_from_plan_to_plan_by_the_limits_name() {
    let t = Tenant::with(sheet("p")).await;
    t.put_plan(&Sheet::named("q").mt(5000).dr(7).json()).await.ok();
    t.put_plan(&Sheet::named("bare").json()).await.ok();
    // The same name, but a bucket: the numbers are of another kind.
    let bucket = json!({"name": "tokens_per_month", "kind": "bucket", "meter": "total_tokens", "capacity": 9, "refill_per_minute": 9});
    t.put_plan(&Sheet::named("bucket").limit(bucket).json()).await.ok();
    let put =
        t.put_overrides("users/u", json!({"overrides": {"tokens_per_month": {"limit": 300}}})).await.ok();
    for (plan, limit) in [("q", 300), ("bare", 0), ("bucket", 9), ("p", 300)] {
        let moved = t.move_user("u", json!({"plan": plan, "effective": "now"})).await.ok();
        assert_eq!(moved["overrides"], put["overrides"], "{plan}");
        if plan != "bare" {
            assert_eq!(t.left("u", "tokens_per_month").await["limit"], limit, "{plan}");
        }
    }
    // A new version of the plan: the override still stands in place of its number.
    t.put_plan(&sheet("p").but("limit", json!(1)).json()).await.ok();
    t.put_plan(&Sheet::named("p").mt(9000).json()).await.ok();
    assert_eq!(t.left("u", "tokens_per_month").await["limit"], 300);
    assert_eq!(t.left("v", "tokens_per_month").await["limit"], 9000);
}

#[tokio::test]
async fn numbers_may_be_given_for_a_plan_that_is_to_come() {
    let t = Tenant::with(Sheet::named("p").mt(1000)).await;
    t.put_plan(&Sheet::named("q").per("weekly", json!("week"), 10).json()).await.ok();
    t.put_plan(&Sheet::named("r").per("weekly", json!("week"), 10).json()).await.ok();
    let weekly = json!({"overrides": {"weekly": {"limit": 77}}});
    t.put_overrides("users/u", weekly.clone()).await.refused(400, "invalid_request");
    t.move_user("u", json!({"plan": "q", "effective": "next_window"})).await.ok();
    t.put_overrides("users/u", weekly.clone()).await.ok();
    t.set_clock("2026-04-01T00:00:00.000Z").await;
    assert_eq!(t.left("u", "weekly").await["limit"], 77);
    // A limit of an earlier version is none.
    t.put_plan(&Sheet::named("p").dr(5).json()).await.ok();
    t.put_plan(&Sheet::named("p").dr(5).field("applies", json!("now")).json()).await.ok();
    let old = json!({"overrides": {"tokens_per_month": {"limit": 1}}});
    t.put_overrides("users/v", old).await.refused(400, "invalid_request");
    // One of a version that waits is.
    t.put_plan(&Sheet::named("p").dr(5).mt(3).field("applies", json!("next_window")).json()).await.ok();
    let new = json!({"overrides": {"tokens_per_month": {"limit": 2}}});
    t.put_overrides("users/v", new).await.ok();
}

#[tokio::test]
async fn only_the_version_meant_is_replaced_and_the_audit_tells_who_and_why() {
    let t = Tenant::with(sheet("p")).await;
    let path = "/v1/admin/users/u/overrides";
    let body = |limit: u64| json!({"overrides": {"tokens_per_month": {"limit": limit}}, "reason": "a deal"});
    let first = t.put(path, &body(1)).await;
    assert_eq!(first.header("etag"), Some("\"1\""));
    t.put_if(path, "\"7\"", body(2)).await.refused(412, "changed_meanwhile");
    assert_eq!(t.put_if(path, "\"1\"", body(3)).await.header("etag"), Some("\"2\""));
    t.put_if(path, "\"1\"", body(4)).await.refused(412, "changed_meanwhile");
    t.put_if("/v1/admin/users/u", "\"1\"", json!({"verified": true})).await.refused(412, "changed_meanwhile");
    assert_eq!(
        t.put_if("/v1/admin/users/u", "\"2\"", json!({"verified": true})).await.header("etag"),
        Some("\"3\"")
    );
    assert_eq!(t.on_record("users/u").await.header("etag"), Some("\"3\""));
    assert_eq!(t.left("u", "tokens_per_month").await["limit"], 3);
    let audit = t.get("/v1/admin/audit?target=u").await.ok();
    let rows = audit["data"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    assert_has(&rows[1], &json!({"reason": "a deal"}));
    let told = |side: &str| rows[1][side].to_string();
    assert!(told("before").contains("\"limit\":1") && told("after").contains("\"limit\":3"), "{}", rows[1]);
}
