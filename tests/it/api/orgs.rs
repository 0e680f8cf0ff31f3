//! Orgs: limits that their users share, from the org's own sheet or from each caller's.

use serde_json::{Value, json};

use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;
use crate::harness::{Tenant, row};

/// A sheet whose month is the org's.
fn team(id: &str, limit: u64) -> Sheet {
    Sheet::named(id).mt(limit).but("scope", json!("org"))
}

async fn members(t: &Tenant, org: &str, users: &[&str]) {
    for user in users {
        t.put_user(user, json!({"org": org})).await.ok();
    }
}

async fn month(t: &Tenant, org: &str) -> Value {
    row(&t.get(&format!("/v1/admin/orgs/{org}/quota")).await.ok(), "tokens_per_month")
}

#[tokio::test]
async fn an_org_on_record_shows_its_plan_zone_and_rights() {
    let t = Tenant::with(team("p", 100)).await;
    t.on_record("orgs/acme").await.refused(404, "not_found");
    let put = t.put_org("acme", json!({"plan": "p", "zone": "Asia/Tokyo"})).await;
    assert_eq!(put.header("etag"), Some("\"1\""));
    let expected = json!({
        "org": "acme", "plan": {"id": "p", "version": 1}, "zone": "Asia/Tokyo",
        "overrides": {}, "grants": [], "created_at": "2026-03-10T12:00:00.000Z", "version": 1,
    });
    assert_eq!(put.body, expected);
    assert_eq!(t.on_record("orgs/acme").await.ok(), expected);
    // What is not named stays, null takes away.
    let put = t.put_org("acme", json!({"zone": null})).await.ok();
    assert_has(&put, &json!({"plan": {"id": "p"}, "zone": null, "version": 2}));
    let put = t.put_org("acme", json!({"plan": null})).await.ok();
    assert_has(&put, &json!({"plan": null, "zone": null, "version": 3}));
    let path = "/v1/admin/orgs/acme";
    t.put_if(path, "\"2\"", json!({"zone": "UTC"})).await.refused(412, "changed_meanwhile");
    t.put_if(path, "\"3\"", json!({"zone": "UTC"})).await.ok();
    t.put_if(&format!("{path}/overrides"), "\"3\"", json!({"overrides": {}}))
        .await
        .refused(412, "changed_meanwhile");
    t.put_if(&format!("{path}/overrides"), "\"4\"", json!({"overrides": {}})).await.ok();
    t.put_org("acme", json!({"plan": "none"})).await.refused(404, "unknown_plan");
    for (body, pointer) in [
        (json!({"zone": "Mars/Olympus"}), "/zone"),
        (json!({"plan": 5}), "/plan"),
        (json!({"anchor_day": 5}), "/anchor_day"),
        (json!({"reason": ""}), "/reason"),
    ] {
        let refused = t.put_org("acme", body.clone()).await.refused(400, "invalid_request");
        assert_eq!(refused.body["errors"][0]["pointer"], pointer, "{body}");
    }
    let refused = t.put(path, &json!({"plan": "p"})).await.refused(400, "invalid_request");
    assert_eq!(refused.body["errors"][0]["pointer"], "/reason");
    t.put_org("bad name", json!({})).await.refused(400, "invalid_request");
    assert_has(&t.on_record("orgs/acme").await.ok(), &json!({"version": 5, "zone": "UTC"}));
    // The words of names reach it percent-encoded.
    t.put_org("a/b:c", json!({"plan": "p"})).await.ok();
    assert_eq!(t.on_record("orgs/a%2Fb%3Ac").await.ok()["org"], "a/b:c");
}

#[tokio::test]
async fn the_orgs_own_sheet_counts_for_every_member_whatever_theirs_says() {
    let t = Tenant::with(Sheet::named("p").dr(100)).await;
    t.put_plan(&team("rich", 9000).json()).await.ok();
    t.put_plan(&team("own", 100).dr(1).json()).await.ok();
    t.put_org("acme", json!({"plan": "own"})).await.ok();
    members(&t, "acme", &["a", "b"]).await;
    t.set_plan("b", "rich").await.ok();
    t.spend("a", 60, 0).await;
    // Of the org's sheet only what is of scope org.
    assert_has(&t.left("a", "requests_per_day").await, &json!({"limit": 100, "used": 1}));
    t.ask("a", 0, 0).await.ok();
    for user in ["a", "b"] {
        let refused = t.ask(user, 41, 0).await.refused(429, "monthly_quota_exhausted");
        assert_has(&refused.body["violations"][0], &json!({"scope": "org", "limit": 100, "would_fit": 40}));
        assert_has(
            &t.left(user, "tokens_per_month").await,
            &json!({"scope": "org", "used": 60, "limit": 100}),
        );
    }
    t.ask("b", 40, 0).await.ok();
    assert_has(&month(&t, "acme").await, &json!({"limit": 100, "used": 60, "held": 40, "remaining": 0}));
    // A member of no org is not asked by limits of orgs.
    t.set_plan("c", "rich").await.ok();
    assert_eq!(t.ask("c", 5000, 0).await.ok()["limits"], json!([]));
}

#[tokio::test]
async fn without_a_sheet_of_its_own_the_org_is_judged_by_each_callers_numbers_in_one_account() {
    let t = Tenant::with(team("small", 100)).await;
    t.put_plan(&team("large", 1000).json()).await.ok();
    members(&t, "acme", &["a", "b"]).await;
    t.set_plan("b", "large").await.ok();
    t.spend("a", 100, 0).await;
    t.ask("a", 1, 0).await.refused(429, "monthly_quota_exhausted");
    t.spend("b", 500, 0).await;
    assert_has(&t.left("a", "tokens_per_month").await, &json!({"limit": 100, "used": 600, "over_by": 500}));
    assert_has(
        &t.left("b", "tokens_per_month").await,
        &json!({"limit": 1000, "used": 600, "remaining": 400}),
    );
    // The org's view: by the default plan.
    let quota = t.get("/v1/admin/orgs/acme/quota").await.ok();
    assert_has(&quota, &json!({"org": "acme", "plan": null, "state": "exhausted"}));
    assert_eq!(quota.get("user"), None);
    assert_has(&month(&t, "acme").await, &json!({"limit": 100, "used": 600}));
    // With a sheet, and without one again: the account is the same.
    t.put_org("acme", json!({"plan": "large"})).await.ok();
    assert_has(&t.left("a", "tokens_per_month").await, &json!({"limit": 1000, "used": 600}));
    t.put_org("acme", json!({"plan": null})).await.ok();
    assert_has(&t.left("a", "tokens_per_month").await, &json!({"limit": 100, "used": 600}));
}

#[tokio::test]
async fn a_user_who_changes_orgs_takes_nothing_along_and_open_calls_end_where_they_began() {
    let t = Tenant::with(team("p", 1000).dr(10).cc(2).but("scope", json!("org"))).await;
    members(&t, "acme", &["u"]).await;
    t.spend("u", 100, 0).await;
    let hold = t.ask("u", 300, 0).await.hold_id();
    let other = t.ask("u", 50, 0).await.hold_id();
    t.put_user("u", json!({"org": "beta"})).await.ok();
    assert_has(&month(&t, "acme").await, &json!({"used": 100, "held": 350}));
    assert_has(&month(&t, "beta").await, &json!({"used": 0, "held": 0}));
    // Their own day goes on.
    assert_has(&t.left("u", "requests_per_day").await, &json!({"used": 3}));
    assert_eq!(t.left("u", "concurrency").await["in_use"], 0);
    t.extend(&hold, json!({"lease_seconds": 60, "add_output_tokens": 100})).await.ok();
    assert_has(&month(&t, "acme").await, &json!({"used": 100, "held": 450}));
    assert_has(&month(&t, "beta").await, &json!({"used": 0, "held": 0}));
    t.finish(&hold, 300, 50).await.ok();
    t.put_user("u", json!({"org": null})).await.ok();
    t.release(&other).await.ok();
    assert_has(&month(&t, "acme").await, &json!({"used": 450, "held": 0}));
    assert_has(&month(&t, "beta").await, &json!({"used": 0, "held": 0}));
    let quota = t.get("/v1/admin/orgs/acme/quota").await.ok();
    assert_eq!(row(&quota, "concurrency")["in_use"], 0);
    // A late settle as well.
    members(&t, "acme", &["v"]).await;
    let late = t.ask_for("v", 200, 0, 10).await.hold_id();
    t.put_user("v", json!({"org": "beta"})).await.ok();
    t.pass(60_000).await;
    assert_has(&month(&t, "acme").await, &json!({"used": 450, "held": 200}));
    t.finish(&late, 30, 0).await.ok();
    assert_has(&month(&t, "acme").await, &json!({"used": 480, "held": 0}));
}

#[tokio::test]
async fn windows_of_an_org_turn_by_the_limits_zone_else_the_orgs_else_the_tenants() {
    let t = Tenant::at("Europe/Berlin", "2026-07-10T12:00:00.000Z").await;
    let day = |sheet: Sheet, name: &str| sheet.dr(10).but("name", json!(name)).but("scope", json!("org"));
    let sheet = day(day(Sheet::new(), "fixed").but("zone", json!("America/New_York")), "floating");
    t.plan(&sheet).await;
    t.put_org("tokyo", json!({"zone": "Asia/Tokyo"})).await.ok();
    // A member's own zone is nothing to the org.
    t.put_user("a", json!({"org": "tokyo", "zone": "Pacific/Auckland"})).await.ok();
    t.put_user("b", json!({"org": "plain", "zone": "Pacific/Auckland"})).await.ok();
    for (user, end, zone) in
        [("a", "2026-07-10T15:00:00.000Z", "Asia/Tokyo"), ("b", "2026-07-10T22:00:00.000Z", "Europe/Berlin")]
    {
        t.ask(user, 0, 0).await.ok();
        let expected = json!({"used": 1, "resets_at": end, "window": {"zone": zone}});
        assert_has(&t.left(user, "floating").await, &expected);
        let expected =
            json!({"resets_at": "2026-07-11T04:00:00.000Z", "window": {"zone": "America/New_York"}});
        assert_has(&t.left(user, "fixed").await, &expected);
    }
}

#[tokio::test]
async fn overrides_and_grants_of_an_org_are_for_all_its_members() {
    for own in [true, false] {
        let t = Tenant::with(team("p", 100).dr(10)).await;
        let (org, other) = if own { ("acme", "beta") } else { ("gamma", "delta") };
        if own {
            t.put_org(org, json!({"plan": "p"})).await.ok();
        }
        members(&t, org, &["a", "b"]).await;
        members(&t, other, &["c"]).await;
        t.spend("a", 80, 0).await;
        let of = format!("orgs/{org}");
        let end = "2026-03-20T00:00:00.000Z";
        let body = json!({"overrides": {"tokens_per_month": {"limit": 150}}, "expires_at": end});
        let put = t.put_overrides(&of, body).await.ok();
        assert_has(&put["overrides"]["tokens_per_month"], &json!({"limit": 150, "expires_at": end}));
        let given = t.give(&of, json!({"limit": "tokens_per_month", "amount": 50})).await;
        assert_eq!((given.status, &given.body["id"]), (201, &json!("1")));
        for user in ["a", "b"] {
            let expected = json!({"limit": 150, "granted": 50, "used": 80, "remaining": 120});
            assert_has(&t.left(user, "tokens_per_month").await, &expected);
        }
        assert_has(&t.left("c", "tokens_per_month").await, &json!({"limit": 100, "remaining": 100}));
        t.spend("b", 40, 0).await;
        t.set_clock(end).await;
        assert_has(
            &month(&t, org).await,
            &json!({"limit": 100, "granted": 50, "used": 120, "remaining": 30}),
        );
        t.set_clock("2026-04-01T00:00:00.000Z").await;
        assert_has(&month(&t, org).await, &json!({"granted": 30, "remaining": 130}));
        let shown = t.on_record(&of).await.ok();
        assert_has(&shown, &json!({"overrides": {}, "grants": [{"amount": 50}]}));
        // Limits of users are no limits of orgs.
        for (body, pointer) in
            [("requests_per_day", "/overrides/requests_per_day"), ("ghost", "/overrides/ghost")]
        {
            let refused = t.put_overrides(&of, json!({"overrides": {body: {"limit": 1}}})).await;
            assert_eq!(refused.refused(400, "invalid_request").body["errors"][0]["pointer"], pointer);
            let refused = t.give(&of, json!({"limit": body, "amount": 1})).await;
            assert_eq!(refused.refused(400, "invalid_request").body["errors"][0]["pointer"], "/limit");
        }
        let audit = t.get(&format!("/v1/admin/audit?target={org}")).await.ok();
        assert_eq!(audit["data"].as_array().map(Vec::len), Some(if own { 3 } else { 2 }), "{audit}");
    }
}

#[tokio::test]
async fn a_key_gives_an_org_once() {
    let t = Tenant::with(team("p", 100)).await;
    let give = async |key: &str, amount: u64| {
        let body = json!({"limit": "tokens_per_month", "amount": amount, "reason": "test"});
        let request = t.request(reqwest::Method::POST, "/v1/admin/orgs/acme/grants");
        t.send(request.header("idempotency-key", key).json(&body)).await
    };
    let at_once = futures_util::future::join_all((0..8).map(|_| give("k", 50))).await;
    assert!(at_once.iter().all(|reply| reply.status == 201 && reply.body == at_once[0].body), "{at_once:?}");
    give("k", 51).await.refused(422, "request_id_reused");
    assert_eq!(month(&t, "acme").await["granted"], 50);
}

/// A bucket of an org that has a sheet of its own is the org's alone: its rate changes when the
/// sheet does, not when somebody calls.
#[tokio::test]
async fn an_orgs_own_bucket_refills_by_its_own_figures() {
    let bucket = |id: &str, rate: u64| Sheet::named(id).ob(10_000, rate).but("scope", json!("org"));
    for eager in [false, true] {
        let t = Tenant::with(bucket("caller", 6000)).await;
        t.put_plan(&bucket("slow", 60).json()).await.ok();
        t.put_plan(&bucket("fast", 600).json()).await.ok();
        t.put_org("acme", json!({"plan": "slow"})).await.ok();
        members(&t, "acme", &["u"]).await;
        t.spend("u", 0, 5000).await;
        let look = async || {
            t.pass(10_000).await;
            if eager {
                t.quota("u").await.ok();
                t.ask("u", 0, 0).await.ok();
            }
        };
        look().await;
        t.put_org("acme", json!({"plan": "fast"})).await.ok();
        look().await;
        let end = "2026-03-10T12:00:30.000Z";
        let numbers = json!({"output_tokens_per_minute": {"refill_per_minute": 1200}});
        t.put_overrides("orgs/acme", json!({"overrides": numbers, "expires_at": end})).await.ok();
        look().await;
        look().await;
        // 10 s at 1, 10 s at 10, 10 s at 20, 10 s at 10 a second.
        assert_eq!(
            t.remaining("u", "output_tokens_per_minute").await,
            5000 + 10 + 100 + 200 + 100,
            "{eager}"
        );
    }
}

#[tokio::test]
async fn versions_of_an_orgs_sheet_each_ran_for_as_long_as_they_held() {
    let bucket = |rate: u64| Sheet::named("own").ob(10_000, rate).but("scope", json!("org"));
    for eager in [false, true] {
        let t = Tenant::with(Sheet::named("p").dr(1000)).await;
        t.put_plan(&bucket(60).json()).await.ok();
        t.put_org("acme", json!({"plan": "own"})).await.ok();
        members(&t, "acme", &["u"]).await;
        t.spend("u", 0, 5000).await;
        for rate in [600, 1200, 6000] {
            t.pass(10_000).await;
            if eager {
                t.ask("u", 0, 0).await.ok();
            }
            t.put_plan(&bucket(rate).json()).await.ok();
        }
        t.pass(1000).await;
        // 10 s at 1, 10 s at 10, 10 s at 20 and 1 s at 100 a second.
        assert_eq!(
            t.remaining("u", "output_tokens_per_minute").await,
            5000 + 10 + 100 + 200 + 100,
            "{eager}"
        );
    }
}
