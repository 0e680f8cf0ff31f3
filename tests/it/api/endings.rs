//! How holds end: once, exactly, and whenever the news arrives.

use serde_json::json;

use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;
use crate::harness::stores::Stores;
use crate::harness::{Server, Tenant};

#[tokio::test]
async fn what_is_unknown_is_kept_and_a_late_settle_corrects_it() {
    let t = Tenant::with(Sheet::new().mt(10_000).cc(2)).await;
    let hold = t.ask_for("u", 1000, 3000, 60).await.hold_id();
    t.pass(1000).await;
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"remaining": 6000, "held": 4000, "used": 0}));
    assert_has(&t.left("u", "concurrency").await, &json!({"in_use": 1, "remaining": 1}));
    t.pass(60_000).await;
    assert_has(&t.left("u", "concurrency").await, &json!({"in_use": 0, "remaining": 2}));
    assert_eq!(t.hold(&hold).await.ok()["hold"]["state"], "in_doubt");
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"remaining": 6000, "held": 4000}));
    t.pass(1000).await;
    t.ask("u", 4000, 6000).await.refused(429, "monthly_quota_exhausted");
    let settled = t.finish(&hold, 1000, 200).await.ok();
    assert_eq!(settled["hold"]["late"], true);
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"remaining": 8800, "held": 0, "used": 1200}));
}

#[tokio::test]
async fn a_late_release_gives_everything_back_the_request_too() {
    let t = Tenant::with(Sheet::new().mt(10_000).dr(5).rb(3, 1)).await;
    let hold = t.ask_for("u", 1000, 3000, 60).await.hold_id();
    t.pass(61_000).await;
    t.release(&hold).await.ok();
    assert_eq!(t.remaining("u", "tokens_per_month").await, 10_000);
    assert_eq!(t.remaining("u", "requests_per_day").await, 5);
    assert_eq!(t.remaining("u", "requests_per_minute").await, 3);
}

#[tokio::test]
async fn the_tenants_rule_resolves_what_stays_in_doubt() {
    for (rule, used) in [("charge", 4000), ("release", 0), ("progress", 1250)] {
        let t = Tenant::with(Sheet::new().per("life", json!("lifetime"), 10_000)).await;
        t.put_settings(json!({"in_doubt_after": {"hours": 2, "then": rule}})).await.ok();
        let hold = t.ask_for("u", 1000, 3000, 60).await.hold_id();
        t.extend(&hold, json!({"output_tokens_so_far": 250})).await.ok();
        t.pass(60_000 + 2 * 3_600_000 - 1).await;
        assert_has(&t.left("u", "life").await, &json!({"used": 0, "held": 4000}));
        t.pass(1).await;
        assert_has(&t.left("u", "life").await, &json!({"used": used, "held": 0}));
        t.settle(&hold, json!({"usage": "unknown"})).await.refused(409, "already_finished");
        t.extend(&hold, json!({})).await.refused(409, "already_finished");
        // One late settle still corrects it.
        let settled = t.finish(&hold, 1000, 200).await.ok();
        assert_eq!(settled["hold"]["late"], true, "{rule}");
        assert_has(&t.left("u", "life").await, &json!({"used": 1200, "held": 0}));
        t.finish(&hold, 1000, 201).await.refused(409, "already_finished");
    }
}

#[tokio::test]
async fn a_settle_that_is_repeated_answers_the_same_and_charges_once() {
    let t = Tenant::with(Sheet::new().mt(10_000).cc(3)).await;
    let hold = t.ask("u", 500, 1500).await.hold_id();
    let body = json!({"input_tokens": 500, "output_tokens": 500});
    let first = t.settle(&hold, body.clone()).await.ok();
    assert_has(
        &first["hold"],
        &json!({
            "state": "settled",
            "reserved": {"requests": 1, "input_tokens": 500, "output_tokens": 1500, "total_tokens": 2000},
            "actual": {"input_tokens": 500, "output_tokens": 500},
            "returned": {"input_tokens": 0, "output_tokens": 1000, "total_tokens": 1000},
            "overage": {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0},
            "late": false,
        }),
    );
    for _ in 0..3 {
        assert_eq!(t.settle(&hold, body.clone()).await.ok(), first);
    }
    let (a, b) = tokio::join!(t.settle(&hold, body.clone()), t.settle(&hold, body.clone()));
    assert_eq!((a.ok(), b.ok()), (first.clone(), first));
    let other = t.finish(&hold, 500, 900).await.refused(409, "already_finished");
    assert_eq!(other.body["hold"]["actual"]["output_tokens"], 500);
    t.release(&hold).await.refused(409, "already_finished");
    let mut with_model = body.clone();
    with_model["model"] = json!("other");
    t.settle(&hold, with_model).await.refused(409, "already_finished");
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 1000, "held": 0}));
    assert_has(&t.left("u", "concurrency").await, &json!({"in_use": 0}));
}

#[tokio::test]
async fn settles_at_the_lease_end_charge_once_whichever_side_they_fall_on() {
    let t = Tenant::with(Sheet::new().cc(1).mt(1_000_000)).await;
    let rounds = 200;
    for round in 0..rounds {
        let hold = t.ask_for("u", 100, 100, 1).await.hold_id();
        let offset = round % 5 - 2;
        t.pass(1000 + offset).await;
        let (one, two) = tokio::join!(t.finish(&hold, 100, 50), t.finish(&hold, 100, 50));
        assert_eq!(one.ok()["hold"]["late"], offset >= 0, "{offset} ms after the end");
        two.ok();
        let left = t.left("u", "tokens_per_month").await;
        assert_has(&left, &json!({"used": 150 * (round + 1), "held": 0}));
        assert_has(&t.left("u", "concurrency").await, &json!({"in_use": 0}));
    }
}

#[tokio::test]
async fn a_late_settle_does_not_take_back_a_place_that_is_somebody_elses_by_now() {
    let t = Tenant::with(Sheet::new().cc(1).mt(10_000)).await;
    let first = t.ask_for("u", 1000, 2000, 60).await.hold_id();
    t.pass(61_000).await;
    t.ask("u", 100, 100).await.ok();
    t.pass(14_000).await;
    for _ in 0..2 {
        let settled = t.finish(&first, 1000, 1500).await.ok();
        assert_eq!(settled["hold"]["late"], true);
        assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 2500, "held": 200}));
        assert_has(&t.left("u", "concurrency").await, &json!({"in_use": 1}));
        t.pass(1000).await;
    }
    t.ask("u", 0, 0).await.refused(429, "concurrency_exceeded");
}

#[tokio::test]
async fn unknown_usage_frees_the_place_and_keeps_the_amounts() {
    let t = Tenant::with(Sheet::new().cc(1).mt(10_000)).await;
    let hold = t.ask("u", 1000, 2000).await.hold_id();
    for _ in 0..2 {
        let reply = t.settle(&hold, json!({"usage": "unknown"})).await.ok();
        assert_eq!(reply["hold"]["state"], "in_doubt");
    }
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 0, "held": 3000}));
    assert_has(&t.left("u", "concurrency").await, &json!({"in_use": 0}));
    t.extend(&hold, json!({"lease_seconds": 60})).await.refused(409, "lease_ended");
    assert_eq!(t.finish(&hold, 10, 10).await.ok()["hold"]["late"], true);
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 20, "held": 0}));
}

#[tokio::test]
async fn a_release_is_refused_once_the_vendor_has_worked() {
    let t = Tenant::with(Sheet::new().mt(10_000)).await;
    let hold = t.ask("u", 100, 200).await.hold_id();
    t.extend(&hold, json!({"output_tokens_so_far": 0})).await.ok();
    t.extend(&hold, json!({"output_tokens_so_far": 25})).await.ok();
    // A lower figure is ignored.
    t.extend(&hold, json!({"output_tokens_so_far": 3})).await.ok();
    t.release(&hold).await.refused(409, "has_progress");
    t.finish(&hold, 100, 25).await.ok();

    let hold = t.ask("u", 100, 200).await.hold_id();
    t.post(&format!("/v1/holds/{hold}/release"), &json!({"reason": "upstream_refused"})).await.ok();
    let again = t.release(&hold).await.ok();
    assert_eq!(again["hold"]["state"], "released");
    t.finish(&hold, 1, 1).await.refused(409, "already_finished");
}

#[tokio::test]
async fn more_can_be_reserved_under_the_rules_of_a_check() {
    let t = Tenant::with(Sheet::new().mt(1000).ob(500, 60).output(400)).await;
    let hold = t.ask("u", 100, 200).await.hold_id();
    let extended = t.extend(&hold, json!({"add_output_tokens": 150})).await.ok();
    assert_has(&extended["hold"]["reserved"], &json!({"output_tokens": 350, "total_tokens": 450}));
    let refused = t.extend(&hold, json!({"add_output_tokens": 51})).await.refused(413, "output_too_large");
    assert_eq!(refused.body["max"], 400);
    t.ask("u", 0, 120).await.ok();
    let refused =
        t.extend(&hold, json!({"add_output_tokens": 50})).await.refused(429, "output_rate_exceeded");
    assert_eq!(refused.body["violations"][0]["requested"], 50);
    assert_has(&t.hold(&hold).await.ok()["hold"]["reserved"], &json!({"output_tokens": 350}));
    t.finish(&hold, 100, 350).await.ok();
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 450, "held": 120}));
}

#[tokio::test]
async fn an_extend_with_a_key_is_carried_out_once() {
    let t = Tenant::with(Sheet::new().mt(10_000)).await;
    let hold = t.ask("u", 100, 200).await.hold_id();
    let body = json!({"add_output_tokens": 100});
    t.extend_with_key(&hold, "k1", body.clone()).await.ok();
    t.extend_with_key(&hold, "k1", body.clone()).await.ok();
    assert_eq!(t.hold(&hold).await.ok()["hold"]["reserved"]["output_tokens"], 300);
    t.extend_with_key(&hold, "k1", json!({"add_output_tokens": 7})).await.refused(422, "request_id_reused");
    t.extend_with_key(&hold, "k2", body).await.ok();
    assert_eq!(t.hold(&hold).await.ok()["hold"]["reserved"]["output_tokens"], 400);
}

#[tokio::test]
async fn cached_tokens_count_by_the_weight_of_the_plan_rounded_up() {
    for (weight, counted) in [(json!(1.0), 10_339), (json!(0.1), 1053)] {
        let t = Tenant::with(Sheet::new().mt(1_000_000).field("cache_read_weight", weight.clone())).await;
        let hold = t.ask("u", 10_339, 0).await.hold_id();
        let too_many = json!({"input_tokens": 10_339, "output_tokens": 0, "cache_read_tokens": 11_000});
        t.settle(&hold, too_many).await.refused(400, "invalid_request");
        let body = json!({"input_tokens": 10_339, "output_tokens": 0, "cache_read_tokens": 10_318});
        let settled = t.settle(&hold, body).await.ok();
        assert_eq!(settled["hold"]["counted"]["input_tokens"], counted);
        assert_eq!(settled["hold"]["actual"]["input_tokens"], 10_339);
        assert_eq!(t.left("u", "tokens_per_month").await["used"], counted);
        let shown = t.quota("u").await.ok()["cache_read_weight"].as_f64();
        assert_eq!(shown, weight.as_f64());
    }
}

#[tokio::test]
async fn a_fallback_is_priced_as_the_model_that_served() {
    let t = Tenant::with(Sheet::new().limit(json!({
        "name": "credits_per_month", "kind": "window", "meter": "credits", "period": "month", "limit": 1_000_000_000,
    })))
    .await;
    let models = json!([
        {"id": "large", "aliases": ["big"], "input": 15_000_000, "output": 75_000_000, "cache_read": 1_500_000},
        {"id": "small", "aliases": [], "input": 250_001, "output": 1_250_000, "cache_read": 30_000},
    ]);
    t.put_models(&models).await.ok();
    let check = json!({"user": "u", "model": "BIG", "input_tokens": 100, "max_output_tokens": 10});
    let reply = t.check(check.clone()).await;
    assert_eq!(reply.body["hold"]["reserved"]["credits"], 2250);
    let body = json!({"input_tokens": 100, "output_tokens": 10, "model": "small"});
    let settled = t.settle(&reply.hold_id(), body).await.ok();
    // 100 x 0.250001 + 10 x 1.25 = 37.5001: summed, then rounded up once.
    assert_eq!(settled["hold"]["counted"]["credits"], 38);
    assert_eq!(settled["hold"]["returned"]["credits"], 2212);
    let reply = t.check(check).await;
    let body =
        json!({"input_tokens": 100, "output_tokens": 1, "cache_read_tokens": 60, "cache_write_tokens": 30});
    let settled = t.settle(&reply.hold_id(), body).await.ok();
    // 10 x 15 + 60 x 1.5 + 30 x 15 (a write costs what input costs unless it is priced) + 75.
    assert_eq!(settled["hold"]["counted"]["credits"], 765);
}

#[tokio::test]
async fn holds_are_found_by_id_and_by_request_and_nobody_elses() {
    let t = Tenant::with(Sheet::new().mt(10_000)).await;
    let made = t.check(json!({"user": "u/1", "request_id": "r 1", "input_tokens": 5})).await;
    let hold = made.hold_id();
    assert_eq!(t.hold(&hold).await.ok()["hold"], made.body["hold"]);
    assert_eq!(t.hold_by_request("u/1", "r 1").await.ok()["hold"], made.body["hold"]);
    t.hold_by_request("u/1", "r 2").await.refused(404, "not_found");
    t.hold_by_request("u", "r 1").await.refused(404, "not_found");
    let other = Tenant::with(Sheet::new().mt(10_000)).await;
    let foreign = other.ask("u", 1, 1).await.hold_id();
    for id in [foreign.as_str(), "hold_0", "hold_01890a5d-ac96-774b-bcce-b302099a8057", "nonsense"] {
        t.hold(id).await.refused(404, "not_found");
        t.finish(id, 1, 1).await.refused(404, "not_found");
        t.release(id).await.refused(404, "not_found");
        t.extend(id, json!({})).await.refused(404, "not_found");
    }
    assert_eq!(other.hold(&foreign).await.ok()["hold"]["state"], "held");
}

#[tokio::test]
async fn named_amounts_are_taken_at_once_and_corrected_by_the_settle() {
    let t = Tenant::with(Sheet::new().limit(
        json!({"name": "images_per_day", "kind": "window", "meter": "images", "period": "day", "limit": 5}),
    ))
    .await;
    let hold = t.check(json!({"user": "u", "amounts": {"images": 3}})).await.hold_id();
    assert_has(&t.left("u", "images_per_day").await, &json!({"used": 3, "held": 0, "remaining": 2}));
    let refused =
        t.check(json!({"user": "u", "amounts": {"images": 3}})).await.refused(429, "daily_quota_exhausted");
    assert_eq!(refused.body["violations"][0]["would_fit"], 2);
    let body = json!({"input_tokens": 0, "output_tokens": 0, "amounts": {"images": 1}});
    t.settle(&hold, body).await.ok();
    assert_eq!(t.remaining("u", "images_per_day").await, 4);
    let hold = t.check(json!({"user": "u", "amounts": {"images": 2}})).await.hold_id();
    t.release(&hold).await.ok();
    assert_eq!(t.remaining("u", "images_per_day").await, 4);
    t.check(json!({"user": "u", "amounts": {"requests": 2}})).await.refused(400, "invalid_request");
    t.check(json!({"user": "u", "amounts": {"images": -1}})).await.refused(400, "invalid_request");
}

#[tokio::test]
async fn a_finished_hold_tells_named_amounts_like_all_others() {
    let t = Tenant::with(Sheet::new()).await;
    for (told, returned, overage) in [(5, 0, 2), (1, 2, 0), (3, 0, 0)] {
        let checked = t.check(json!({"user": "u", "amounts": {"images": 3}})).await;
        assert_eq!(checked.body["hold"]["reserved"]["images"], 3);
        let body = json!({"input_tokens": 0, "output_tokens": 0, "amounts": {"images": told}});
        let settled = t.settle(&checked.hold_id(), body).await.ok();
        for (part, images) in [
            ("reserved", 3),
            ("actual", told),
            ("counted", told),
            ("returned", returned),
            ("overage", overage),
        ] {
            assert_eq!(settled["hold"][part]["images"], images, "{part} of a settle with {told}");
        }
        assert_eq!(t.hold(&checked.hold_id()).await.ok()["hold"], settled["hold"]);
    }
    let hold = t.check(json!({"user": "u", "amounts": {"images": 3}})).await.hold_id();
    let released = t.release(&hold).await.ok();
    assert_has(
        &released["hold"],
        &json!({"counted": {"images": 0}, "returned": {"images": 3}, "overage": {"images": 0}}),
    );
}

#[tokio::test]
async fn an_extend_in_the_next_window_is_asked_of_the_window_of_its_check() {
    let t = Tenant::with(Sheet::new().per("day", json!("day"), 100)).await;
    t.set_clock("2026-03-10T23:59:00.000Z").await;
    let hold = t.ask("u", 0, 90).await.hold_id();
    t.set_clock("2026-03-11T00:00:00.000Z").await;
    let refused = t.extend(&hold, json!({"add_output_tokens": 11})).await;
    assert_eq!((refused.status, refused.code()), (413, "exceeds_capacity"), "{}", refused.text);
    t.usage(&json!({"id": "x", "user": "u", "input_tokens": 5, "output_tokens": 0, "at": "2026-03-10T12:00:00.000Z"}))
        .await
        .ok();
    let refused =
        t.extend(&hold, json!({"add_output_tokens": 10})).await.refused(429, "daily_quota_exhausted");
    assert_eq!(refused.body["resets_at"], serde_json::Value::Null);
    assert_has(&refused.body["violations"][0], &json!({"requested": 10, "remaining": 5, "would_fit": 5}));
    t.extend(&hold, json!({"add_output_tokens": 5})).await.ok();
    assert_has(&t.left("u", "day").await, &json!({"used": 0, "held": 0, "remaining": 100}));
}

#[tokio::test]
async fn a_hold_is_found_by_its_request_as_soon_as_it_was_answered() {
    static SERVER: std::sync::OnceLock<Server> = std::sync::OnceLock::new();
    let server =
        SERVER.get_or_init(|| Server::start(&[("APPORTION_DURABILITY", Stores::of_this_run().quickest())]));
    let t = Tenant::on(server, "UTC", "2026-03-10T12:00:00.000Z").await;
    for n in 0..100 {
        let made = t.check(json!({"user": "u", "request_id": format!("r{n}")})).await;
        let found = t.hold_by_request("u", &format!("r{n}")).await;
        assert_eq!((made.status, found.status), (200, 200), "call {n}: {}", found.text);
        assert_eq!(found.hold_id(), made.hold_id());
        t.release(&made.hold_id()).await.ok();
    }
}

#[tokio::test]
async fn a_repeated_settle_may_name_the_model_by_its_alias_or_not_at_all() {
    let t = Tenant::with(Sheet::new().mt(1000)).await;
    t.put_models(&json!([{"id": "Opus-4", "aliases": ["smart"], "input": 1, "output": 1}])).await.ok();
    let hold = t.check(json!({"user": "u", "model": "SMART", "input_tokens": 10})).await.hold_id();
    for model in [None, Some("opus-4"), Some("smart")] {
        let mut body = json!({"input_tokens": 10, "output_tokens": 5});
        if let Some(model) = model {
            body["model"] = json!(model);
        }
        t.settle(&hold, body).await.ok();
    }
    let other = json!({"input_tokens": 10, "output_tokens": 5, "model": "haiku"});
    t.settle(&hold, other).await.refused(409, "already_finished");
    assert_eq!(t.left("u", "tokens_per_month").await["used"], 15);
}
