//! What all plans together may use, against what the vendor allows.

use std::process::Command;

use serde_json::{Value, json};

use crate::harness::compare::assert_has;
use crate::harness::sheets::{PoolSheet, Sheet};
use crate::harness::{Server, Tenant, binary};

/// The line of a report that speaks of output tokens.
fn output_line(report: &Value) -> Value {
    let meters = report["meters"].as_array().cloned().unwrap_or_default();
    meters
        .into_iter()
        .find(|m| m["meter"] == "output_tokens")
        .unwrap_or_else(|| panic!("no output tokens in {report}"))
}

#[tokio::test]
async fn the_shipped_sheets_fit_the_shipped_pool_and_a_larger_free_sheet_does_not() {
    let t = Tenant::at("UTC", "2026-03-10T12:00:00.000Z").await;
    let ask = json!({"active": {"free": 60, "standard": 20, "pro": 5}, "pool": "default"});
    let line = output_line(&t.capacity(&ask).await.ok());
    assert_eq!(
        (&line["demand"], &line["allowed"], &line["fits"]),
        (&json!(68_000), &json!(70_000), &json!(true)),
        "{line}"
    );
    let of = |plan: &str| {
        let parts = line["by_plan"].as_array().unwrap();
        parts.iter().find(|p| p["plan"] == plan).unwrap_or_else(|| panic!("no {plan} in {line}"))["demand"]
            .clone()
    };
    assert_eq!(
        (of("free"), of("standard"), of("pro")),
        (json!(18_000), json!(30_000), json!(20_000)),
        "{line}"
    );
    let mut free = t.get("/v1/admin/plans/free").await.ok();
    for name in ["version", "effective_at", "warnings"] {
        free.as_object_mut().unwrap().remove(name);
    }
    for limit in free["limits"].as_array_mut().unwrap() {
        if limit["name"] == "output_tokens_per_minute" {
            limit["refill_per_minute"] = json!(500);
        }
    }
    t.put_plan(&free).await.ok();
    let line = output_line(&t.capacity(&ask).await.ok());
    assert_eq!(
        (&line["demand"], &line["allowed"], &line["fits"]),
        (&json!(80_000), &json!(70_000), &json!(false)),
        "{line}"
    );
}

#[tokio::test]
async fn other_rates_are_tried_and_saved_nowhere() {
    let t = two_plans().await;
    let sheet = |plan: &str, rate: u64| {
        let mut sheet = Sheet::named(plan).ob(rate, rate).json();
        sheet.as_object_mut().unwrap().remove("reason");
        sheet
    };
    let demand = |report: &Value| output_line(report)["demand"].clone();
    let active = json!({"small": 2, "large": 3});
    let asked = t.capacity(&json!({"active": active})).await.ok();
    assert_eq!(demand(&asked), 3_200);
    let tried = json!({"active": active, "plans": {"large": sheet("large", 500)}});
    assert_eq!(demand(&t.capacity(&tried).await.ok()), 1_700);
    // One that is not there yet, too.
    let tried = json!({"active": {"small": 2, "new": 7}, "plans": {"new": sheet("new", 10)}});
    assert_eq!(demand(&t.capacity(&tried).await.ok()), 270);
    assert_eq!(demand(&t.capacity(&json!({"active": active})).await.ok()), 3_200, "nothing was saved");
    let mut wrong = sheet("large", 500);
    wrong["limits"][0]["capacity"] = json!(-1);
    let reply =
        t.capacity(&json!({"plans": {"large": wrong, "a b": {}}})).await.refused(400, "invalid_request");
    let pointers: Vec<&str> = reply.body["errors"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|error| error["pointer"].as_str())
        .collect();
    assert_eq!(pointers, ["/plans/a b", "/plans/large/limits/0/capacity"], "{}", reply.text);
}

#[tokio::test]
async fn odd_questions_about_capacity_are_refused() {
    let t = Tenant::with(Sheet::new().dr(5)).await;
    for body in [
        json!({"active": {"free": -1}}),
        json!({"active": 7}),
        json!({"active": {"free": 1.5}}),
        json!({"colour": 1}),
    ] {
        t.capacity(&body).await.refused(400, "invalid_request");
    }
    for body in [json!({"active": {"none": 1}}), json!({"active": {"free": 1}, "pool": "none"})] {
        let reply = t.capacity(&body).await;
        assert!([400, 404].contains(&reply.status), "{} {}", reply.status, reply.text);
        reply.assert_problem();
    }
}

#[test]
fn the_command_line_prints_a_table_and_says_no_by_its_exit_code() {
    let run = |arguments: &[&str]| {
        let done = Command::new(binary())
            .args(arguments)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("APPORTION_DATA", &Server::shared().data)
            .output()
            .expect("the binary runs");
        (done.status.code(), String::from_utf8_lossy(&done.stdout).into_owned())
    };
    let (code, table) = run(&["capacity", "--active", "free=60,standard=20,pro=5"]);
    assert_eq!(code, Some(0), "{table}");
    for figure in ["68000", "70000"] {
        assert!(table.replace([',', '_'], "").contains(figure), "no {figure} in\n{table}");
    }
    assert_eq!(run(&["capacity", "--active", "free=100,standard=20,pro=5"]).0, Some(1));
    assert_eq!(run(&["capacity", "--active", "free=many"]).0, Some(2));
    assert_eq!(run(&["capacity", "--nonsense"]).0, Some(2));
}

/// Ten of each plan at most: `small` draws 100 output tokens a minute, `large` 1,000.
async fn two_plans() -> Tenant {
    let t = Tenant::with(Sheet::named("small").ob(100, 100)).await;
    t.put_plan(&Sheet::named("large").ob(1000, 1000).json()).await.ok();
    t.pool(&PoolSheet::new("default", &["*"]).output_tokens(0, 0).field("enforced", json!(false))).await;
    t
}

fn active_of(report: &Value, plan: &str) -> Value {
    let line = output_line(report);
    let parts = line["by_plan"].as_array().cloned().unwrap_or_default();
    parts.into_iter().find(|part| part["plan"] == plan).unwrap_or_else(|| panic!("no {plan}: {line}"))["active"]
        .clone()
}

#[tokio::test]
async fn without_active_users_the_measured_peak_of_seven_days_counts() {
    let t = two_plans().await;
    let measured = async || {
        let report = t.capacity(&json!({})).await.ok();
        assert_eq!(report["measured"], true);
        (active_of(&report, "small"), active_of(&report, "large"))
    };
    assert_eq!(measured().await, (json!(0), json!(0)));
    t.set_plan("l", "large").await.ok();
    for user in ["a", "b", "a", "l"] {
        t.ask(user, 1, 1).await.ok();
    }
    t.check(json!({"user": "dry", "dry_run": true})).await.ok();
    t.ask("refused", 0, 101).await.refused(413, "exceeds_capacity");
    assert_eq!(measured().await, (json!(2), json!(1)));
    // In the next five minutes fewer, and then more: who comes and goes is not there at once.
    t.pass(300_000).await;
    t.ask("c", 1, 1).await.ok();
    assert_eq!(measured().await, (json!(2), json!(1)));
    t.pass(300_000).await;
    for user in ["a", "b", "c", "d"] {
        t.ask(user, 1, 1).await.ok();
    }
    assert_eq!(measured().await, (json!(4), json!(1)));
    t.pass(7 * 86_400_000 - 300_000).await;
    assert_eq!(measured().await, (json!(4), json!(0)));
    t.pass(300_000).await;
    assert_eq!(measured().await, (json!(0), json!(0)));
    let given = t.capacity(&json!({"active": {"small": 9}})).await.ok();
    assert_eq!((&given["measured"], active_of(&given, "small")), (&json!(false), json!(9)));
}

#[tokio::test]
async fn a_change_that_lets_users_draw_more_than_a_pool_allows_is_told() {
    let t = two_plans().await;
    // Three at 100 a minute: 300 of 1,150.
    t.pool(&PoolSheet::new("default", &["*"]).output_tokens(50, 1150)).await;
    for user in ["a", "b", "c"] {
        t.ask(user, 1, 1).await.ok();
    }
    let moved = t.set_plan("a", "large").await.ok();
    let warning =
        json!({"pool": "default", "meter": "output_tokens", "demand": 1200, "allowed": 1150, "pointer": ""});
    assert_has(&moved["warnings"][0], &warning);
    // It was done, and is not told again for what changes nothing.
    assert_eq!(t.set_plan("a", "large").await.ok()["warnings"], Value::Null);
    assert_eq!(t.put_user("b", json!({"verified": true})).await.ok()["warnings"], Value::Null);
    let put = t.put_user("b", json!({"plan": "large"})).await.ok();
    assert_eq!(put["warnings"][0]["pool"], "default");
    let smaller = t.put_plan(&Sheet::named("small").ob(90, 90).json()).await.ok();
    assert_eq!(smaller["warnings"], json!([]));
    let larger = t.put_plan(&Sheet::named("small").ob(400, 400).json()).await.ok();
    assert_has(&larger["warnings"][0], &json!({"pool": "default", "demand": 1200, "allowed": 1150}));
    let dry = Sheet::named("small").ob(500, 500).field("dry_run", json!(true));
    assert_has(&t.put_plan(&dry.json()).await.ok()["warnings"][0], &json!({"demand": 1500}));
}
