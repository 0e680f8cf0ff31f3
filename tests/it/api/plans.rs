//! Moving between plans and versions: what was used stays used, nothing is minted.

use serde_json::json;

use crate::harness::Tenant;
use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;

#[tokio::test]
async fn an_upgrade_takes_hold_at_once_and_forgives_nothing() {
    let t = Tenant::with(Sheet::named("free").rb(5, 5).mt(1000)).await;
    t.put_plan(&Sheet::named("pro").rb(60, 60).mt(100_000).json()).await.ok();
    for _ in 0..4 {
        t.spend("u", 0, 0).await;
    }
    t.spend("u", 600, 400).await;
    t.ask("u", 1, 0).await.refused(429, "monthly_quota_exhausted");
    t.pass(5000).await;
    t.set_plan("u", "pro").await.ok();
    t.pass(1000).await;
    let reply = t.ask("u", 300, 200).await;
    assert_has(
        &reply.row("tokens_per_month"),
        &json!({"limit": 100_000, "remaining": 98_500, "used": 1000, "held": 500}),
    );
    // 60 less the 5 used, 5 s at 5 a minute and 1 s at 60 a minute later, less this one.
    assert_has(
        &reply.row("requests_per_minute"),
        &json!({"limit": 60, "remaining": 55, "refill_per_minute": 60}),
    );
    assert_eq!(reply.body["plan"], json!({"id": "pro", "version": 2}));
}

#[tokio::test]
async fn toggling_the_plan_mints_no_allowance() {
    let t = Tenant::with(Sheet::named("free").mt(1000)).await;
    t.put_plan(&Sheet::named("pro").mt(100_000).json()).await.ok();
    t.set_plan("u", "pro").await.ok();
    t.spend("u", 98_000, 0).await;
    let hold = t.ask("u", 1000, 1000).await.hold_id();
    for plan in ["free", "pro", "free", "pro", "pro", "pro", "pro", "pro"] {
        t.set_plan("u", plan).await.ok();
        let left = t.left("u", "tokens_per_month").await;
        assert_has(&left, &json!({"used": 98_000, "held": 2000, "remaining": 0}));
        assert_eq!(left["over_by"], if plan == "free" { 99_000 } else { 0 });
    }
    t.ask("u", 10, 10).await.refused(429, "monthly_quota_exhausted");
    t.finish(&hold, 1000, 500).await.ok();
    t.ask("u", 10, 10).await.ok();
    let refused = t.ask("u", 300, 300).await.refused(429, "monthly_quota_exhausted");
    assert_eq!(refused.body["violations"][0]["would_fit"], 480);
}

#[tokio::test]
async fn a_resized_bucket_keeps_what_it_lacks() {
    let t = Tenant::with(Sheet::named("small").ob(1000, 600)).await;
    t.put_plan(&Sheet::named("large").ob(5000, 3000).json()).await.ok();
    t.spend("u", 0, 900).await;
    let left = "output_tokens_per_minute";
    assert_eq!(t.remaining("u", left).await, 100);
    t.set_plan("u", "large").await.ok();
    assert_eq!(t.remaining("u", left).await, 4100);
    for _ in 0..5 {
        t.set_plan("u", "small").await.ok();
        t.set_plan("u", "large").await.ok();
    }
    assert_eq!(t.remaining("u", left).await, 4100);
    t.pass(10_000).await;
    assert_eq!(t.remaining("u", left).await, 4600);
    t.pass(10_000).await;
    assert_eq!(t.remaining("u", left).await, 5000);
}

#[tokio::test]
async fn a_bucket_refills_by_its_old_rate_up_to_the_change_and_by_the_new_one_after_it() {
    let t = Tenant::with(Sheet::named("slow").ob(1000, 60)).await;
    t.put_plan(&Sheet::named("fast").ob(1000, 6000).json()).await.ok();
    t.spend("u", 0, 1000).await;
    t.pass(10_000).await;
    t.set_plan("u", "fast").await.ok();
    assert_eq!(t.remaining("u", "output_tokens_per_minute").await, 10);
    t.pass(1000).await;
    assert_eq!(t.remaining("u", "output_tokens_per_minute").await, 110);
    t.set_plan("u", "slow").await.ok();
    t.pass(5000).await;
    assert_eq!(t.remaining("u", "output_tokens_per_minute").await, 115);
}

#[tokio::test]
async fn limits_that_are_not_in_the_plan_keep_what_was_taken() {
    let t = Tenant::with(Sheet::named("a").mt(1000).ob(100, 60).cc(2)).await;
    t.put_plan(&Sheet::named("b").dr(10).json()).await.ok();
    t.ask("u", 0, 40).await.ok();
    t.spend("u", 100, 50).await;
    t.set_plan("u", "b").await.ok();
    let hold = t.ask("u", 500, 500).await.hold_id();
    t.pass(10_000).await;
    t.set_plan("u", "a").await.ok();
    let view = t.quota("u").await.ok();
    assert_has(&view["limits"][0], &json!({"used": 150, "held": 40}));
    // 10 left at the change; the bucket went on refilling at its last rate.
    assert_has(&view["limits"][1], &json!({"remaining": 20, "held": 40}));
    assert_has(&view["limits"][2], &json!({"in_use": 1}));
    // What was asked of the other plan is settled there.
    t.finish(&hold, 500, 500).await.ok();
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 150}));
}

#[tokio::test]
async fn open_holds_finish_against_their_receipts() {
    let t = Tenant::with(Sheet::named("a").mt(10_000).cc(5)).await;
    t.put_plan(&Sheet::named("b").mt(500).cc(1).json()).await.ok();
    let mut holds = Vec::new();
    for _ in 0..3 {
        holds.push(t.ask("u", 100, 900).await.hold_id());
    }
    t.set_plan("u", "b").await.ok();
    assert_has(
        &t.left("u", "tokens_per_month").await,
        &json!({"held": 3000, "remaining": 0, "over_by": 2500}),
    );
    assert_has(&t.left("u", "concurrency").await, &json!({"in_use": 3, "remaining": 0, "limit": 1}));
    let refused = t.ask("u", 1, 0).await.refused(429, "monthly_quota_exhausted");
    assert_eq!(refused.body["violations"].as_array().map(Vec::len), Some(2));
    for hold in &holds {
        t.finish(hold, 10, 90).await.ok();
    }
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 300, "held": 0, "remaining": 200}));
    t.ask("u", 1, 0).await.ok();
}

#[tokio::test]
async fn a_new_version_of_a_sheet_counts_on_and_the_old_ones_are_kept() {
    let t = Tenant::with(Sheet::new().mt(1000)).await;
    t.spend("u", 400, 0).await;
    let saved = t.put_plan(&Sheet::new().mt(500).json()).await.ok();
    assert_eq!(saved["version"], 2);
    let reply = t.ask("u", 10, 0).await;
    assert_eq!(reply.body["plan"], json!({"id": "p", "version": 2}));
    assert_has(
        &reply.row("tokens_per_month"),
        &json!({"limit": 500, "used": 400, "held": 10, "remaining": 90}),
    );
    let versions = t.get("/v1/admin/plans/p/versions").await.ok();
    let of: Vec<i64> =
        versions["data"].as_array().unwrap().iter().map(|v| v["version"].as_i64().unwrap()).collect();
    assert!(of.contains(&1) && of.contains(&2) && of.len() == 2, "{versions}");
    t.get("/v1/admin/plans/none").await.refused(404, "unknown_plan");
}

#[tokio::test]
async fn the_same_name_with_another_meter_is_another_limit() {
    let t = Tenant::with(Sheet::new().dr(10)).await;
    t.ask("u", 5, 0).await.ok();
    t.plan(&Sheet::new().dr(10).but("meter", json!("total_tokens"))).await;
    assert_has(&t.left("u", "requests_per_day").await, &json!({"used": 0}));
    t.plan(&Sheet::new().dr(7)).await;
    assert_has(&t.left("u", "requests_per_day").await, &json!({"used": 1, "remaining": 6}));
}

#[tokio::test]
async fn plan_events_that_come_late_or_twice_change_nothing() {
    let t = Tenant::with(Sheet::named("a").mt(1000)).await;
    t.put_plan(&Sheet::named("b").mt(2000).json()).await.ok();
    let event = |plan: &str, sequence: i64| json!({"plan": plan, "effective": "now", "sequence": sequence, "reason": "billing"});
    let path = "/v1/admin/users/u/plan";
    assert_has(&t.post(path, &event("b", 7)).await.ok(), &json!({"stale": false}));
    assert_has(&t.post(path, &event("b", 7)).await.ok(), &json!({"stale": false}));
    assert_has(&t.post(path, &event("a", 6)).await.ok(), &json!({"stale": true}));
    assert_eq!(t.quota("u").await.ok()["plan"]["id"], "b");
    t.set_plan("u", "a").await.refused(409, "sequence_required");
    assert_has(&t.post(path, &event("a", 8)).await.ok(), &json!({"stale": false}));
    assert_eq!(t.quota("u").await.ok()["plan"]["id"], "a");
}

#[tokio::test]
async fn a_tightened_plan_holds_from_the_next_check_on_while_calls_are_in_flight() {
    let t = Tenant::with(Sheet::named("wide").cc(5).mt(100_000)).await;
    t.put_plan(&Sheet::named("tight").cc(1).mt(100).json()).await.ok();
    let mut open = Vec::new();
    for second in 0..60 {
        if second == 10 {
            t.set_plan("u", "tight").await.ok();
        }
        let reply = t.ask("u", 20, 20).await;
        if second < 10 {
            open.push(reply.hold_id());
        } else {
            reply.refused(429, "monthly_quota_exhausted");
        }
        if second % 2 == 1
            && let Some(hold) = open.pop()
        {
            t.finish(&hold, 20, 20).await.ok();
        }
        t.pass(1000).await;
        if open.len() == 5 {
            t.finish(&open.remove(0), 20, 20).await.ok();
        }
    }
}

#[tokio::test]
async fn limits_of_the_tenant_are_one_account_for_all_its_users() {
    let sheet = |id: &str, limit: u64| Sheet::named(id).dr(limit).but("scope", json!("tenant"));
    let t = Tenant::with(sheet("a", 3)).await;
    t.put_plan(&sheet("b", 5).json()).await.ok();
    t.set_plan("rich", "b").await.ok();
    for user in ["u", "v", "w"] {
        t.ask(user, 0, 0).await.ok();
    }
    let refused = t.ask("u", 0, 0).await.refused(429, "daily_quota_exhausted");
    assert_eq!(refused.body["violations"][0]["scope"], "tenant");
    // Judged by the numbers of the check at hand.
    t.ask("rich", 0, 0).await.ok();
    t.ask("rich", 0, 0).await.ok();
    t.ask("rich", 0, 0).await.refused(429, "daily_quota_exhausted");
    assert_has(&t.left("u", "requests_per_day").await, &json!({"used": 5, "limit": 3, "over_by": 2}));
}

#[tokio::test]
async fn members_of_an_org_share_what_their_sheet_gives_the_org() {
    let t = Tenant::with(Sheet::new().mt(100).but("scope", json!("org")).cc(1)).await;
    for user in ["a", "b"] {
        t.put_user(user, json!({"org": "acme"})).await.ok();
    }
    t.put_user("c", json!({"org": "other"})).await.ok();
    t.spend("a", 60, 0).await;
    let refused = t.ask("b", 41, 0).await.refused(429, "monthly_quota_exhausted");
    assert_has(&refused.body["violations"][0], &json!({"scope": "org", "would_fit": 40}));
    t.ask("b", 40, 0).await.ok();
    t.ask("c", 100, 0).await.ok();
}

/// A bucket that two sheets give the tenant at different rates: it runs by those of the last
/// check that was admitted.
#[tokio::test]
async fn only_an_admitted_check_changes_the_rate_of_a_shared_bucket() {
    let mut wrong = Vec::new();
    for action in [
        "nothing",
        "read",
        "dry run",
        "refused",
        "use",
        "settle",
        "late settle",
        "release",
        "extend",
        "replay",
    ] {
        let sheet = |id: &str, rate: u64| Sheet::named(id).ob(10_000, rate).but("scope", json!("tenant"));
        let t = Tenant::with(sheet("slow", 60)).await;
        t.put_plan(&sheet("fast", 6000).json()).await.ok();
        t.set_plan("v", "fast").await.ok();
        let asked = json!({"user": "u", "request_id": "r", "max_output_tokens": 0, "lease_seconds": 30});
        let hold = t.check(asked.clone()).await.hold_id();
        if action == "late settle" {
            t.pass(31_000).await;
        }
        t.spend("v", 0, 9000).await;
        match action {
            "read" => drop(t.quota("u").await.ok()),
            "dry run" => {
                drop(t.check(json!({"user": "u", "max_output_tokens": 1, "dry_run": true})).await.ok())
            }
            "refused" => drop(t.ask("u", 0, 9999).await.refused(429, "output_rate_exceeded")),
            "use" => drop(
                t.usage(&json!({"id": "x", "user": "u", "input_tokens": 0, "output_tokens": 0})).await.ok(),
            ),
            "settle" | "late settle" => drop(t.finish(&hold, 0, 0).await.ok()),
            "release" => drop(t.release(&hold).await.ok()),
            "extend" => drop(t.extend(&hold, json!({"lease_seconds": 60})).await.ok()),
            "replay" => drop(t.check(asked).await.ok()),
            _ => {}
        }
        t.pass(10_000).await;
        let row = t.check(json!({"user": "v", "dry_run": true})).await.row("output_tokens_per_minute");
        if row["remaining"] != 2000 {
            wrong.push(format!("{action}: {} instead of 2000", row["remaining"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn a_bucket_ran_by_each_version_of_its_plan_for_as_long_as_that_one_held() {
    let t = Tenant::with(Sheet::named("one").ob(100, 60)).await;
    t.put_plan(&Sheet::named("two").ob(100, 0).but("capacity", json!(0)).json()).await.ok();
    t.spend("u", 0, 100).await;
    t.pass(10_000).await;
    // Ten seconds at one a second; none while the plan gave none; then ten a second.
    t.set_plan("u", "two").await.ok();
    t.pass(30_000).await;
    t.put_plan(&Sheet::named("two").ob(100, 600).json()).await.ok();
    t.pass(2_000).await;
    assert_eq!(t.remaining("u", "output_tokens_per_minute").await, 30);
}
