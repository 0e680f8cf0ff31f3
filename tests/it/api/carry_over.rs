//! What changes of plans leave as it was: use, holds, debts, and the pace at which a bucket refilled.

use serde_json::{Value, json};

use crate::harness::Tenant;
use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;
use crate::model::oracle::calendar::instant;

/// Every kind of limit that keeps something, with figures of one's own.
fn everything(id: &str, n: u64) -> Sheet {
    Sheet::named(id)
        .mt(1000 * n)
        .dr(20 * n)
        .ob(1000 * n, 600 * n)
        .cc(3 * n)
        .per("block", json!({"hours": 5}), 3000 * n)
        .per("session", json!({"session_hours": 2}), 3000 * n)
        .per("life", json!("lifetime"), 5000 * n)
        .limit(
            json!({"name": "images", "kind": "window", "meter": "images", "period": "day", "limit": 10 * n}),
        )
}

/// What each limit has given so far, by its name.
async fn given(t: &Tenant, user: &str) -> Value {
    let quota = t.quota(user).await.ok();
    let rows = quota["limits"].as_array().unwrap();
    let of = |row: &Value| match row["kind"].as_str() {
        Some("bucket") => json!({
            "lacks": row["limit"].as_i64().unwrap() - row["remaining"].as_i64().unwrap(),
            "held": row["held"],
        }),
        Some("slots") => json!(row["in_use"]),
        _ => json!({"used": row["used"], "held": row["held"], "window": row["window"]}),
    };
    rows.iter()
        .map(|row| (row["name"].as_str().unwrap().to_owned(), of(row)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[tokio::test]
async fn going_to_and_fro_changes_nothing_of_any_kind_of_limit() {
    let t = Tenant::with(everything("a", 1)).await;
    t.put_plan(&everything("b", 7).json()).await.ok();
    t.put_plan(&Sheet::named("bare").json()).await.ok();
    t.check(json!({"user": "u", "input_tokens": 10, "max_output_tokens": 60, "amounts": {"images": 3}}))
        .await
        .ok();
    t.spend("u", 100, 300).await;
    let before = given(&t, "u").await;
    assert_has(&before["tokens_per_month"], &json!({"used": 400, "held": 70}));
    assert_has(&before["output_tokens_per_minute"], &json!({"lacks": 360, "held": 60}));
    assert_has(&before["images"], &json!({"used": 3}));
    for _ in 0..3 {
        for plan in ["b", "a", "bare", "a", "b", "bare", "b", "a"] {
            t.set_plan("u", plan).await.ok();
            if plan != "bare" {
                assert_eq!(given(&t, "u").await, before, "on {plan}");
            }
        }
    }
    // The same by versions of one plan, by overrides, and by moves that were to come.
    for n in [7, 1, 7, 1] {
        t.put_plan(&everything("a", n).json()).await.ok();
        assert_eq!(given(&t, "u").await, before, "version of {n}");
    }
    for limit in [json!({"limit": 1}), json!({"limit": 1_000_000}), Value::Null] {
        t.put_overrides("users/u", json!({"overrides": {"tokens_per_month": limit, "life": limit}}))
            .await
            .ok();
        assert_eq!(given(&t, "u").await, before, "overridden by {limit}");
    }
}

#[tokio::test]
async fn a_debt_is_as_large_on_every_plan() {
    let t = Tenant::with(Sheet::named("a").ob(2000, 60)).await;
    t.put_plan(&Sheet::named("b").ob(500, 60).json()).await.ok();
    t.put_plan(&Sheet::named("bare").json()).await.ok();
    let hold = t.ask("u", 0, 1000).await.hold_id();
    t.finish(&hold, 0, 3200).await.ok();
    for plan in ["b", "a", "bare", "a"] {
        t.set_plan("u", plan).await.ok();
    }
    let refused = t.ask("u", 0, 100).await.refused(429, "output_rate_exceeded");
    assert_eq!(refused.body["retry_after_ms"], 1_300_000);
    // In the smaller one it stands 1500 deeper below nothing.
    t.set_plan("u", "b").await.ok();
    let refused = t.ask("u", 0, 100).await.refused(429, "output_rate_exceeded");
    assert_eq!(refused.body["retry_after_ms"], 2_800_000);
}

#[tokio::test]
async fn a_call_in_flight_keeps_its_place_and_its_window_whatever_the_plan_is_by_then() {
    let t = Tenant::with(everything("a", 1)).await;
    t.put_plan(&everything("b", 7).json()).await.ok();
    t.put_plan(&Sheet::named("bare").json()).await.ok();
    for (user, moves) in [("u", ["b", "a"]), ("v", ["bare", "a"]), ("w", ["bare", "b"])] {
        let hold = t.ask(user, 10, 60).await.hold_id();
        for plan in moves {
            t.set_plan(user, plan).await.ok();
            if plan != "bare" {
                assert_eq!(t.left(user, "concurrency").await["in_use"], 1);
            }
        }
        t.finish(&hold, 10, 20).await.ok();
        assert_eq!(t.left(user, "concurrency").await["in_use"], 0, "{user}");
        assert_has(&t.left(user, "tokens_per_month").await, &json!({"used": 30, "held": 0}));
        assert_has(&t.left(user, "requests_per_day").await, &json!({"used": 1}));
    }
}

#[tokio::test]
async fn places_that_come_with_a_plan_do_not_count_the_calls_that_began_before() {
    let t = Tenant::with(Sheet::named("a").mt(10_000)).await;
    t.put_plan(&Sheet::named("b").mt(10_000).cc(2).json()).await.ok();
    for _ in 0..3 {
        t.ask("u", 1, 0).await.ok();
    }
    t.set_plan("u", "b").await.ok();
    assert_has(&t.left("u", "concurrency").await, &json!({"in_use": 0, "remaining": 2}));
    t.ask("u", 1, 0).await.ok();
    assert_eq!(t.left("u", "concurrency").await["in_use"], 1);
}

#[tokio::test]
async fn windows_that_turned_while_their_limit_was_away_come_back_empty() {
    let t = Tenant::with(everything("a", 1)).await;
    t.put_plan(&Sheet::named("bare").json()).await.ok();
    t.spend("u", 200, 300).await;
    t.set_plan("u", "bare").await.ok();
    t.set_clock("2026-03-11T12:00:00.000Z").await;
    t.set_plan("u", "a").await.ok();
    for (limit, used) in
        [("tokens_per_month", 500), ("requests_per_day", 0), ("block", 0), ("session", 0), ("life", 500)]
    {
        assert_eq!(t.left("u", limit).await["used"], used, "{limit}");
    }
    // The grid of blocks is the one of the first take.
    let window = t.left("u", "block").await["window"].clone();
    assert_has(&window, &json!({"start": "2026-03-11T08:00:00.000Z", "end": "2026-03-11T13:00:00.000Z"}));
    assert_eq!(t.left("u", "session").await["window"], Value::Null);
}

#[tokio::test]
async fn a_limit_of_another_kind_period_scope_or_filter_is_another_one_and_the_old_one_is_kept() {
    let t = Tenant::with(Sheet::named("a").mt(1000)).await;
    t.put_user("u", json!({"org": "acme"})).await.ok();
    t.spend("u", 400, 0).await;
    let other = |field, value| Sheet::named("b").mt(1000).but(field, value);
    for sheet in [
        other("period", json!("week")),
        other("period", json!({"days": 30})),
        other("meter", json!("input_tokens")),
        other("scope", json!("org")),
        other("models", json!(["opus*"])),
        other("features", json!(["chat"])),
    ] {
        t.put_plan(&sheet.json()).await.ok();
        t.set_plan("u", "b").await.ok();
        assert_eq!(t.left("u", "tokens_per_month").await["used"], 0, "{}", sheet.json());
        t.set_plan("u", "a").await.ok();
        assert_eq!(t.left("u", "tokens_per_month").await["used"], 400, "{}", sheet.json());
    }
    // Figures, zone, anchor, enforcement, warnings and the order of filters make no other limit.
    for sheet in [
        other("zone", json!("Asia/Tokyo")),
        other("anchor", json!("user")),
        other("enforce", json!("soft")),
        other("warn_at", json!([0.5])),
    ] {
        t.put_plan(&sheet.json()).await.ok();
        t.set_plan("u", "b").await.ok();
        assert_eq!(t.left("u", "tokens_per_month").await["used"], 400, "{}", sheet.json());
    }
}

/// How the figures of a bucket change while nobody calls. All end after 1200 s, of which the last
/// 600 s are at the new rate.
const CHANGES: [&str; 6] = [
    "a move at a time",
    "a move when the month ends",
    "a version at a time",
    "a version when the month ends",
    "an override that ends",
    "a trial that ends",
];

/// From `slow` (60 a minute) to `fast` (600 a minute), or from there to `slow`, exactly at the turn
/// of the month.
async fn changed(change: &str, is_up: bool) -> Tenant {
    let t = Tenant::at("UTC", "2026-03-31T23:50:00.000Z").await;
    let end = "2026-04-01T00:00:00.000Z";
    let sheet = |id: &str, rate: u64| Sheet::named(id).ob(100_000, rate).mt(10_000_000);
    let (before, after) = if is_up { (60, 600) } else { (600, 60) };
    t.plan(&sheet("before", before)).await;
    t.put_plan(&sheet("after", after).json()).await.ok();
    t.spend("u", 0, 90_000).await;
    match change {
        "a move at a time" => drop(t.move_user("u", json!({"plan": "after", "effective": end})).await.ok()),
        "a move when the month ends" => {
            drop(t.move_user("u", json!({"plan": "after", "effective": "next_window"})).await.ok());
        }
        "a version at a time" => {
            drop(t.put_plan(&sheet("before", after).field("applies", json!(end)).json()).await.ok());
        }
        "a version when the month ends" => {
            let sheet = sheet("before", after).field("applies", json!("next_window"));
            drop(t.put_plan(&sheet.json()).await.ok());
        }
        "an override that ends" => {
            t.put_plan(&sheet("before", after).json()).await.ok();
            let numbers = json!({"output_tokens_per_minute": {"refill_per_minute": before}});
            drop(t.put_overrides("users/u", json!({"overrides": numbers, "expires_at": end})).await.ok());
        }
        _ => {
            t.set_plan("u", "after").await.ok();
            drop(t.move_user("u", json!({"plan": "before", "effective": "now", "until": end})).await.ok());
        }
    }
    t
}

#[tokio::test]
async fn a_bucket_refills_by_the_old_rate_up_to_the_instant_and_by_the_new_one_from_then_on() {
    let mut wrong = Vec::new();
    for change in CHANGES {
        for is_up in [true, false] {
            for eager in [false, true] {
                let t = changed(change, is_up).await;
                for step in 1..=60 {
                    if eager {
                        t.pass(20_000).await;
                        t.quota("u").await.ok();
                        if step % 7 == 0 {
                            t.ask("u", 0, 0).await.ok();
                        }
                        if step == 25 || step == 35 {
                            // Changes that have nothing to do with it.
                            t.put_user("u", json!({"verified": true})).await.ok();
                            t.put_plan(&Sheet::named("other").json()).await.ok();
                            t.get("/v1/admin/users?plan=after").await.ok();
                        }
                    }
                }
                if !eager {
                    t.pass(1_200_000).await;
                }
                assert_eq!(t.now(), instant("2026-04-01T00:10:00.000Z"));
                // 10,000 left, 600 s at one a second and 600 s at ten a second.
                let seen = t.remaining("u", "output_tokens_per_minute").await;
                if seen != 10_000 + 600 + 6000 {
                    wrong.push(format!("{change}, up {is_up}, eager {eager}: {seen}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// To the millisecond: 1 unit a minute is a thousandth of a token in 60 ms.
#[tokio::test]
async fn a_bucket_is_exact_to_the_unit_on_both_sides_of_a_change() {
    for (before, after) in [(1_i64, 59), (3, 2000), (59, 1), (7, 1000)] {
        let t = Tenant::at("UTC", "2026-03-10T12:00:00.000Z").await;
        let sheet = |id: &str, rate: i64| Sheet::named(id).ob(1000, rate as u64);
        t.plan(&sheet("before", before)).await;
        t.put_plan(&sheet("after", after).json()).await.ok();
        t.spend("u", 0, 1000).await;
        // After 12,345 ms the new rate holds.
        t.move_user("u", json!({"plan": "after", "effective": "2026-03-10T12:00:12.345Z"})).await.ok();
        let missing = 60_000 - 12_345 * before;
        let needed = match missing > 0 {
            true => 12_345 + missing.unsigned_abs().div_ceil(after.unsigned_abs()) as i64,
            false => 60_000_u64.div_ceil(before.unsigned_abs()) as i64,
        };
        t.pass(needed - 1).await;
        assert_eq!(t.remaining("u", "output_tokens_per_minute").await, 0, "{before} to {after}");
        t.pass(1).await;
        t.ask("u", 0, 1).await.ok();
    }
}
