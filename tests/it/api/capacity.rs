//! What all plans together may use, against what the vendor allows.

use std::process::Command;

use serde_json::{Value, json};

use crate::harness::sheets::Sheet;
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
