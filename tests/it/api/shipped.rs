//! The sheets that every tenant begins with, figure for figure.

use serde_json::{Value, json};

use crate::harness::Tenant;
use crate::harness::compare::assert_has;

struct Figures {
    id: &'static str,
    tokens_per_month: i64,
    requests_per_day: i64,
    requests: [i64; 2],
    output: [i64; 2],
    concurrency: i64,
    per_call: [i64; 2],
}

const SHEETS: [Figures; 3] = [
    Figures {
        id: "free",
        tokens_per_month: 200_000,
        requests_per_day: 30,
        requests: [3, 3],
        output: [1024, 300],
        concurrency: 1,
        per_call: [4000, 512],
    },
    Figures {
        id: "standard",
        tokens_per_month: 3_000_000,
        requests_per_day: 300,
        requests: [10, 10],
        output: [3000, 1500],
        concurrency: 2,
        per_call: [16_000, 1024],
    },
    Figures {
        id: "pro",
        tokens_per_month: 15_000_000,
        requests_per_day: 1000,
        requests: [20, 20],
        output: [8192, 4000],
        concurrency: 4,
        per_call: [64_000, 2048],
    },
];

fn limit<'a>(sheet: &'a Value, name: &str) -> &'a Value {
    sheet["limits"]
        .as_array()
        .unwrap()
        .iter()
        .find(|l| l["name"] == name)
        .unwrap_or_else(|| panic!("{name} in {sheet}"))
}

#[tokio::test]
async fn a_new_tenant_has_the_three_sheets_as_their_first_version() {
    let t = Tenant::at("Asia/Tokyo", "2026-03-10T12:00:00.000Z").await;
    for f in &SHEETS {
        let sheet = t.get(&format!("/v1/admin/plans/{}", f.id)).await.ok();
        assert_eq!((&sheet["id"], &sheet["version"]), (&json!(f.id), &json!(1)));
        assert_has(
            &sheet["per_call"],
            &json!({"max_input_tokens": f.per_call[0], "max_output_tokens": f.per_call[1]}),
        );
        let bucket = |[capacity, refill]: [i64; 2], meter: &str| json!({"kind": "bucket", "meter": meter, "capacity": capacity, "refill_per_minute": refill});
        assert_has(limit(&sheet, "requests_per_minute"), &bucket(f.requests, "requests"));
        assert_has(limit(&sheet, "output_tokens_per_minute"), &bucket(f.output, "output_tokens"));
        assert_has(limit(&sheet, "concurrency"), &json!({"kind": "slots", "limit": f.concurrency}));
        let window = |period: &str, meter: &str, limit: i64| json!({"kind": "window", "meter": meter, "period": period, "limit": limit});
        assert_has(limit(&sheet, "requests_per_day"), &window("day", "requests", f.requests_per_day));
        assert_has(limit(&sheet, "tokens_per_month"), &window("month", "total_tokens", f.tokens_per_month));
        assert_eq!(sheet["limits"].as_array().map(Vec::len), Some(5));
    }
    assert_eq!(t.get("/v1/admin/settings").await.ok()["default_plan"], "free");
}

#[tokio::test]
async fn the_sheets_of_a_user_are_enforced_as_they_stand() {
    let t = Tenant::at("Asia/Tokyo", "2026-03-10T12:00:00.000Z").await;
    for f in &SHEETS {
        t.set_plan(f.id, f.id).await.ok();
        let [input, output] = f.per_call;
        t.ask(f.id, input + 1, 0).await.refused(413, "input_too_large");
        t.ask(f.id, 0, output + 1).await.refused(413, "output_too_large");
        let mut holds = Vec::new();
        for _ in 0..f.concurrency {
            holds.push(t.ask(f.id, 0, 1).await.hold_id());
        }
        t.ask(f.id, 0, 1).await.refused(429, "concurrency_exceeded");
        for hold in holds {
            t.finish(&hold, 0, 0).await.ok();
        }
        for _ in f.concurrency..f.requests[0] {
            t.spend(f.id, 0, 0).await;
        }
        let refused = t.ask(f.id, 0, 0).await.refused(429, "request_rate_exceeded");
        assert_eq!(refused.body["retry_after_ms"], 60_000 / f.requests[1]);
        let row = t.left(f.id, "tokens_per_month").await;
        assert_has(&row, &json!({"limit": f.tokens_per_month, "resets_at": "2026-03-31T15:00:00.000Z"}));
    }
}

#[tokio::test]
async fn the_reply_to_a_check_is_the_one_in_the_contract() {
    let t = Tenant::at("Asia/Tokyo", "2026-03-10T12:00:00.000Z").await;
    t.usage(&json!({"id": "before", "user": "u_42", "input_tokens": 165_000, "output_tokens": 0})).await.ok();
    t.pass(20_000).await;
    let reply = t
        .check(json!({
            "user": "u_42", "request_id": "7f13", "model": "sonnet", "feature": "chat", "priority": "interactive",
            "input_tokens": 1200, "max_output_tokens": 512, "min_output_tokens": 64, "lease_seconds": 120,
            "wait_ms": 0, "dry_run": false,
        }))
        .await;
    let body = reply.clone().ok();
    assert!(reply.hold_id().starts_with("hold_") && reply.hold_id().len() >= 31);
    assert_has(
        &body,
        &json!({
            "decision": "allow",
            "hold": {
                "state": "held", "request_id": "7f13", "user": "u_42",
                "created_at": "2026-03-10T12:00:20.000Z", "expires_at": "2026-03-10T12:02:20.000Z",
                "reserved": {"requests": 1, "input_tokens": 1200, "output_tokens": 512, "total_tokens": 1712, "credits": body["hold"]["reserved"]["credits"]},
            },
            "granted": {"input_tokens": 1200, "max_output_tokens": 512, "final": false},
            "plan": {"id": "free", "version": 1},
        }),
    );
    assert_has(
        &reply.row("requests_per_minute"),
        &json!({
            "scope": "user", "kind": "bucket", "meter": "requests", "limit": 3, "remaining": 2, "held": 0,
            "refill_per_minute": 3, "full_at": "2026-03-10T12:00:40.000Z",
        }),
    );
    assert_has(
        &reply.row("tokens_per_month"),
        &json!({
            "scope": "user", "kind": "window", "meter": "total_tokens", "limit": 200_000, "used": 165_000,
            "held": 1712, "remaining": 33_288, "over_by": 0, "resets_at": "2026-03-31T15:00:00.000Z",
            "window": {"start": "2026-02-28T15:00:00.000Z", "end": "2026-03-31T15:00:00.000Z", "zone": "Asia/Tokyo"},
        }),
    );
    assert_has(
        &reply.row("concurrency"),
        &json!({"scope": "user", "kind": "slots", "limit": 1, "in_use": 1, "remaining": 0}),
    );
    let warning = body["warnings"].as_array().and_then(|w| w.first()).cloned().unwrap_or_default();
    assert_has(&warning, &json!({"limit": "tokens_per_month", "ratio": 0.8, "used_ratio": 0.83356}));
}
