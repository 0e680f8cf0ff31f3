//! Grants: extra amounts on a window, used after the plan's own, gone for good once used.

use serde_json::{Value, json};

use crate::harness::Tenant;
use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;

const APRIL: &str = "2026-04-01T00:00:00.000Z";
const MAY: &str = "2026-05-01T00:00:00.000Z";
const JUNE: &str = "2026-06-01T00:00:00.000Z";

async fn give(t: &Tenant, amount: u64, expires_at: Option<&str>) -> Value {
    t.give("users/u", json!({"limit": "tokens_per_month", "amount": amount, "expires_at": expires_at}))
        .await
        .ok()
}

/// `granted` of the user's month.
async fn granted(t: &Tenant) -> i64 {
    t.left("u", "tokens_per_month").await["granted"].as_i64().unwrap_or(0)
}

#[tokio::test]
async fn a_grant_counts_on_top_of_the_limit_and_is_on_record() {
    let t = Tenant::with(Sheet::new().mt(1000)).await;
    t.spend("u", 1000, 0).await;
    t.ask("u", 1, 0).await.refused(429, "monthly_quota_exhausted");
    let post = json!({"limit": "tokens_per_month", "amount": 300, "expires_at": JUNE, "reason": "sorry"});
    let given = t.give("users/u", post).await;
    assert_eq!(given.status, 201, "{}", given.text);
    let expected = json!({
        "id": "1", "limit": "tokens_per_month", "amount": 300, "expires_at": JUNE,
        "given_at": "2026-03-10T12:00:00.000Z", "reason": "sorry",
    });
    assert_has(&given.body, &expected);
    assert!(given.body["by"].as_str().is_some_and(|by| !by.is_empty()));
    assert_eq!(t.on_record("users/u").await.ok()["grants"], json!([given.body]));
    let left =
        json!({"limit": 1000, "granted": 300, "used": 1000, "remaining": 300, "over_by": 0, "state": "ok"});
    assert_has(&t.left("u", "tokens_per_month").await, &left);
    let check = t.ask("u", 120, 0).await;
    assert_has(
        &check.row("tokens_per_month"),
        &json!({"limit": 1000, "granted": 300, "held": 120, "remaining": 180}),
    );
    let refused = t.ask("u", 181, 0).await.refused(429, "monthly_quota_exhausted");
    assert_has(&refused.body["violations"][0], &json!({"would_fit": 180, "remaining": 180}));
    assert_has(&t.left("v", "tokens_per_month").await, &json!({"limit": 1000, "remaining": 1000}));
}

#[tokio::test]
async fn what_went_beyond_the_plans_own_is_gone_when_the_window_ends_and_the_rest_lives_on() {
    for eager in [false, true] {
        let t = Tenant::with(Sheet::new().mt(1000)).await;
        give(&t, 300, None).await;
        t.spend("u", 1000, 100).await;
        // As long as the window runs all of it counts.
        assert_eq!(granted(&t).await, 300);
        t.set_clock(APRIL).await;
        if eager {
            assert_has(
                &t.left("u", "tokens_per_month").await,
                &json!({"granted": 200, "used": 0, "remaining": 1200}),
            );
        }
        // A month within the plan's own takes nothing.
        t.spend("u", 900, 0).await;
        t.set_clock(MAY).await;
        if eager {
            assert_eq!(granted(&t).await, 200);
        }
        t.spend("u", 1200, 0).await;
        t.ask("u", 1, 0).await.refused(429, "monthly_quota_exhausted");
        t.set_clock(JUNE).await;
        assert_has(&t.left("u", "tokens_per_month").await, &json!({"remaining": 1000}));
        assert_eq!(granted(&t).await, 0, "eager {eager}");
    }
}

#[tokio::test]
async fn several_months_that_nobody_looked_at_take_nothing_twice() {
    let t = Tenant::with(Sheet::new().mt(1000)).await;
    give(&t, 300, None).await;
    t.spend("u", 1000, 100).await;
    t.set_clock("2026-09-15T00:00:00.000Z").await;
    assert_eq!(granted(&t).await, 200);
    t.spend("u", 1, 0).await;
    assert_eq!(granted(&t).await, 200);
}

#[tokio::test]
async fn the_grant_that_expires_first_is_used_first() {
    let t = Tenant::with(Sheet::new().mt(1000)).await;
    give(&t, 100, None).await;
    give(&t, 100, Some("2026-07-01T00:00:00.000Z")).await;
    give(&t, 100, Some("2026-06-15T00:00:00.000Z")).await;
    t.spend("u", 1150, 0).await;
    t.set_clock(APRIL).await;
    // 100 of the third, 50 of the second.
    assert_eq!(granted(&t).await, 150);
    t.set_clock("2026-06-15T00:00:00.000Z").await;
    assert_eq!(granted(&t).await, 150);
    t.set_clock("2026-07-01T00:00:00.000Z").await;
    assert_eq!(granted(&t).await, 100);
    let ids: Vec<Value> = t.on_record("users/u").await.ok()["grants"].as_array().unwrap().clone();
    assert_eq!(ids.iter().map(|grant| grant["id"].as_str().unwrap()).collect::<Vec<_>>(), ["1"]);
}

#[tokio::test]
async fn a_grant_that_expires_within_a_window_leaves_what_it_gave_beyond_the_limit() {
    let t = Tenant::with(Sheet::new().mt(1000)).await;
    let end = "2026-03-20T00:00:00.000Z";
    give(&t, 300, Some(end)).await;
    t.spend("u", 1200, 0).await;
    t.set_clock("2026-03-19T23:59:59.999Z").await;
    assert_has(
        &t.left("u", "tokens_per_month").await,
        &json!({"granted": 300, "remaining": 100, "over_by": 0}),
    );
    t.set_clock(end).await;
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"remaining": 0, "over_by": 200}));
    assert_eq!(granted(&t).await, 0);
    assert_eq!(t.on_record("users/u").await.ok()["grants"], json!([]));
    t.ask("u", 1, 0).await.refused(429, "monthly_quota_exhausted");
    // Given then: it makes up for what is over, and pays for it when the window ends.
    give(&t, 500, None).await;
    assert_has(
        &t.left("u", "tokens_per_month").await,
        &json!({"granted": 500, "remaining": 300, "over_by": 0}),
    );
    t.set_clock(APRIL).await;
    assert_eq!(granted(&t).await, 300);
}

#[tokio::test]
async fn only_grants_that_are_alive_at_the_windows_end_pay() {
    for lazy in [false, true] {
        let t = Tenant::with(Sheet::new().mt(1000)).await;
        give(&t, 300, Some("2026-03-31T23:59:59.999Z")).await;
        give(&t, 300, Some(APRIL)).await;
        give(&t, 300, Some(MAY)).await;
        t.spend("u", 1350, 0).await;
        if !lazy {
            t.set_clock(APRIL).await;
            // The first was over, the second alive to the last: 300 of it, 50 of the third.
            assert_eq!(granted(&t).await, 250);
        }
        t.set_clock("2026-04-15T00:00:00.000Z").await;
        assert_eq!(granted(&t).await, 250, "lazy {lazy}");
    }
}

#[tokio::test]
async fn what_is_held_when_the_window_ends_counts_as_used() {
    let t = Tenant::with(Sheet::new().mt(1000)).await;
    give(&t, 300, None).await;
    t.spend("u", 1000, 0).await;
    t.set_clock("2026-03-31T23:59:00.000Z").await;
    let hold = t.ask("u", 200, 0).await.hold_id();
    t.set_clock(APRIL).await;
    assert_eq!(granted(&t).await, 100);
    t.finish(&hold, 0, 0).await.ok();
    assert_eq!(granted(&t).await, 100);
}

#[tokio::test]
async fn going_to_a_larger_plan_and_back_spends_no_grant() {
    let t = Tenant::with(Sheet::named("p").mt(1000)).await;
    t.put_plan(&Sheet::named("q").mt(5000).json()).await.ok();
    t.put_plan(&Sheet::named("bare").json()).await.ok();
    give(&t, 300, None).await;
    t.spend("u", 1200, 0).await;
    t.set_plan("u", "q").await.ok();
    assert_has(
        &t.left("u", "tokens_per_month").await,
        &json!({"limit": 5000, "granted": 300, "remaining": 4100}),
    );
    t.spend("u", 1000, 0).await;
    t.set_plan("u", "p").await.ok();
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"remaining": 0, "over_by": 900}));
    t.set_plan("u", "bare").await.ok();
    t.set_plan("u", "q").await.ok();
    // Within the limit that held at its end: the window takes nothing.
    t.set_clock(APRIL).await;
    assert_eq!(granted(&t).await, 300);
}

#[tokio::test]
async fn what_a_window_went_beyond_is_told_by_the_limit_of_its_last_instant() {
    for lazy in [false, true] {
        // Moves up at the first instant of April, or just before it.
        for (at, left) in [(APRIL, 100), ("2026-03-31T23:59:59.999Z", 300)] {
            let t = Tenant::with(Sheet::named("p").mt(1000)).await;
            t.put_plan(&Sheet::named("q").mt(5000).json()).await.ok();
            give(&t, 300, None).await;
            t.spend("u", 1200, 0).await;
            t.move_user("u", json!({"plan": "q", "effective": at})).await.ok();
            if !lazy {
                t.set_clock(at).await;
                t.spend("u", 1, 0).await;
            }
            t.set_clock("2026-04-02T00:00:00.000Z").await;
            assert_eq!(granted(&t).await, left, "lazy {lazy}, moved {at}");
        }
        // The same by a version of the plan, written then or at a time.
        for (at, left) in [(APRIL, 100), ("2026-03-31T23:59:59.999Z", 300)] {
            for ahead in [false, true] {
                let t = Tenant::with(Sheet::named("p").mt(1000)).await;
                give(&t, 300, None).await;
                t.spend("u", 1200, 0).await;
                let larger = Sheet::named("p").mt(5000);
                if ahead {
                    t.put_plan(&larger.clone().field("applies", json!(at)).json()).await.ok();
                }
                t.set_clock(at).await;
                if !ahead {
                    t.put_plan(&larger.json()).await.ok();
                }
                if !lazy {
                    t.spend("u", 1, 0).await;
                }
                t.set_clock("2026-04-02T00:00:00.000Z").await;
                assert_eq!(granted(&t).await, left, "lazy {lazy}, ahead {ahead}, larger {at}");
            }
        }
        // The same by an override that ends.
        for (at, left) in [(APRIL, 300), ("2026-03-31T23:59:59.999Z", 100)] {
            let t = Tenant::with(Sheet::named("p").mt(1000)).await;
            give(&t, 300, None).await;
            t.spend("u", 1200, 0).await;
            let body = json!({"overrides": {"tokens_per_month": {"limit": 5000}}, "expires_at": at});
            t.put_overrides("users/u", body).await.ok();
            if !lazy {
                t.set_clock(at).await;
                t.quota("u").await.ok();
            }
            t.set_clock("2026-04-02T00:00:00.000Z").await;
            assert_eq!(granted(&t).await, left, "lazy {lazy}, override until {at}");
        }
    }
}

#[tokio::test]
async fn grants_count_in_what_can_ever_be_given_and_in_warnings() {
    let t = Tenant::with(Sheet::new().mt(1000).but("warn_at", json!([0.8, 0.95]))).await;
    t.ask("u", 1001, 0).await.refused(413, "exceeds_capacity");
    give(&t, 1000, None).await;
    let refused = t.ask("u", 2001, 0).await.refused(413, "exceeds_capacity");
    assert_eq!(refused.body["max"], 2000);
    assert_eq!(t.ask("u", 900, 0).await.ok()["warnings"], json!([]));
    let warned = t.ask("u", 701, 0).await.ok();
    let expected = json!([{"limit": "tokens_per_month", "ratio": 0.8, "used_ratio": 0.8005}]);
    assert_eq!(warned["warnings"], expected);
    // With the least that is of use: what the grant leaves is given.
    let body = json!({"user": "u", "max_output_tokens": 512, "min_output_tokens": 64});
    let given = t.check(body).await.ok();
    assert_eq!(given["granted"], json!({"input_tokens": 0, "max_output_tokens": 399, "final": true}));
}

#[tokio::test]
async fn a_limit_of_nothing_gives_what_was_granted() {
    let t = Tenant::with(Sheet::new().mt(0)).await;
    t.ask("u", 1, 0).await.refused(429, "monthly_quota_exhausted");
    give(&t, 50, None).await;
    t.ask("u", 40, 0).await.ok();
    t.ask("u", 11, 0).await.refused(429, "monthly_quota_exhausted");
    t.set_clock(APRIL).await;
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"limit": 0, "granted": 10, "remaining": 10}));
    // The override of nothing, too.
    t.put_overrides("users/v", json!({"overrides": {"tokens_per_month": {"limit": 0}}})).await.ok();
    t.give("users/v", json!({"limit": "tokens_per_month", "amount": 5})).await.ok();
    t.ask("v", 5, 0).await.ok();
}

#[tokio::test]
async fn windows_of_every_kind_can_be_granted_more() {
    for (period, end) in [
        (json!("day"), Some("2026-03-11T00:00:00.000Z")),
        (json!("week"), Some("2026-03-16T00:00:00.000Z")),
        (json!({"hours": 5}), Some("2026-03-10T17:00:00.000Z")),
        (json!({"days": 2}), Some("2026-03-12T12:00:00.000Z")),
        (json!({"session_hours": 3}), Some("2026-03-10T15:00:00.000Z")),
        (json!("lifetime"), None),
    ] {
        let t = Tenant::with(Sheet::new().per("extra", period.clone(), 100)).await;
        t.give("users/u", json!({"limit": "extra", "amount": 50})).await.ok();
        t.spend("u", 130, 0).await;
        assert_has(&t.left("u", "extra").await, &json!({"granted": 50, "remaining": 20}));
        let (at, left) = match end {
            Some(end) => (end, json!({"granted": 20, "used": 0, "remaining": 120})),
            None => ("2027-03-10T12:00:00.000Z", json!({"granted": 50, "used": 130, "remaining": 20})),
        };
        t.set_clock(at).await;
        assert_has(&t.left("u", "extra").await, &left);
        t.spend("u", 20, 0).await;
    }
}

#[tokio::test]
async fn one_key_gives_once() {
    let t = Tenant::with(Sheet::new().mt(1000).dr(5)).await;
    let give = async |key: &str, body: Value| {
        let path = "/v1/admin/users/u/grants";
        let mut body = body;
        body["reason"] = json!("test");
        t.send(t.request(reqwest::Method::POST, path).header("idempotency-key", key).json(&body)).await
    };
    let body = json!({"limit": "tokens_per_month", "amount": 300, "expires_at": MAY});
    let first = give("k", body.clone()).await;
    for _ in 0..3 {
        let again = give("k", body.clone()).await;
        assert_eq!((again.status, &again.body), (201, &first.body));
    }
    assert_eq!(granted(&t).await, 300);
    for other in [
        json!({"limit": "tokens_per_month", "amount": 301, "expires_at": MAY}),
        json!({"limit": "tokens_per_month", "amount": 300}),
        json!({"limit": "requests_per_day", "amount": 300, "expires_at": MAY}),
    ] {
        give("k", other).await.refused(422, "request_id_reused");
    }
    // Another key is another grant, and so is another user's.
    give("l", body.clone()).await.ok();
    assert_eq!(granted(&t).await, 600);
    let at_once = futures_util::future::join_all((0..8).map(|_| give("m", body.clone()))).await;
    assert!(at_once.iter().all(|reply| reply.body == at_once[0].body), "{at_once:?}");
    assert_eq!(granted(&t).await, 900);
}

#[tokio::test]
async fn a_grant_that_cannot_be_is_refused_and_changes_nothing() {
    let t = Tenant::with(
        Sheet::new().mt(1000).rb(5, 5).cc(1).per("team", json!("day"), 5).but("scope", json!("org")),
    )
    .await;
    t.put_plan(&Sheet::named("q").per("elsewhere", json!("day"), 5).json()).await.ok();
    t.put_user("u", json!({})).await.ok();
    let before = t.on_record("users/u").await.ok();
    for (body, pointer) in [
        (json!({"limit": "requests_per_minute", "amount": 5}), "/limit"),
        (json!({"limit": "concurrency", "amount": 5}), "/limit"),
        (json!({"limit": "team", "amount": 5}), "/limit"),
        (json!({"limit": "elsewhere", "amount": 5}), "/limit"),
        (json!({"limit": "ghost", "amount": 5}), "/limit"),
        (json!({"limit": "No Name", "amount": 5}), "/limit"),
        (json!({"amount": 5}), "/limit"),
        (json!({"limit": "tokens_per_month"}), "/amount"),
        (json!({"limit": "tokens_per_month", "amount": 0}), "/amount"),
        (json!({"limit": "tokens_per_month", "amount": -5}), "/amount"),
        (json!({"limit": "tokens_per_month", "amount": 1.5}), "/amount"),
        (json!({"limit": "tokens_per_month", "amount": 1_u64 << 53}), "/amount"),
        (
            json!({"limit": "tokens_per_month", "amount": 5, "expires_at": "2026-03-10T12:00:00Z"}),
            "/expires_at",
        ),
        (json!({"limit": "tokens_per_month", "amount": 5, "expires_at": "never"}), "/expires_at"),
        (json!({"limit": "tokens_per_month", "amount": 5, "colour": 1}), "/colour"),
    ] {
        let refused = t.give("users/u", body.clone()).await.refused(400, "invalid_request");
        assert_eq!(refused.body["errors"][0]["pointer"], pointer, "{body}: {}", refused.text);
    }
    let bare = json!({"limit": "tokens_per_month", "amount": 5});
    let refused = t.post("/v1/admin/users/u/grants", &bare).await.refused(400, "invalid_request");
    assert_eq!(refused.body["errors"][0]["pointer"], "/reason");
    assert_eq!(t.on_record("users/u").await.ok(), before);
    // The largest there is: sums saturate.
    t.give("users/u", json!({"limit": "tokens_per_month", "amount": (1_u64 << 53) - 1})).await.ok();
    t.give("users/u", json!({"limit": "tokens_per_month", "amount": (1_u64 << 53) - 1})).await.ok();
    let row = t.left("u", "tokens_per_month").await;
    assert!(row["remaining"].as_u64().is_some_and(|left| left < 1 << 53), "{row}");
    t.ask("u", 5000, 0).await.ok();
}
