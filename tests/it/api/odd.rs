//! Odd values in every field of what changes plans, users, orgs and rights: told, and never a failure.

use serde_json::{Value, json};

use crate::harness::Tenant;
use crate::harness::sheets::Sheet;

fn odd() -> Vec<Value> {
    let mut values: Vec<Value> = [
        "",
        " ",
        "now",
        "next_window",
        "everyone",
        "p",
        "u",
        "null",
        "-1",
        "2026-13-01T00:00:00Z",
        "2026-02-30T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "1969-12-31T23:59:59Z",
        "9999-12-31T23:59:59.999Z",
        "10000-01-01T00:00:00Z",
        "2026-03-10T12:00:00+09:00",
        "2026-03-10T12:00:60Z",
        "\u{0}",
        "🦀",
        "UTC",
        "Asia/Tokyo",
    ]
    .into_iter()
    .map(Value::from)
    .collect();
    values.push(json!("x".repeat(300)));
    values.extend([
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(1.5),
        json!(31),
        json!(1_u64 << 53),
        json!(u64::MAX),
    ]);
    values.extend([
        json!(1e300),
        json!([]),
        json!({}),
        json!([[]]),
        json!({"limit": {}}),
        json!({"a": {"limit": 1}}),
    ]);
    values
        .extend([json!({"tokens_per_month": []}), json!({"tokens_per_month": {"limit": (1_u64 << 53) - 1}})]);
    values
}

#[tokio::test]
async fn no_value_of_any_field_makes_the_service_fail() {
    let t =
        Tenant::with(Sheet::named("p").mt(1000).per("team", json!("month"), 5).but("scope", json!("org")))
            .await;
    t.put_user("u", json!({"org": "o"})).await.ok();
    let plan = Sheet::named("q").mt(1000).json();
    let mut plan = plan;
    plan["applies"] = json!("now");
    plan["to"] = json!("everyone");
    let numbers = json!({"overrides": {"tokens_per_month": {"limit": 5}}, "expires_at": null});
    let grant = json!({"limit": "tokens_per_month", "amount": 5, "expires_at": null});
    let routes = [
        ("PUT", "plans/q", plan),
        (
            "PUT",
            "users/v",
            json!({"plan": "p", "org": "o", "verified": true, "suspended": false, "zone": "UTC", "anchor_day": 5, "signals": null}),
        ),
        (
            "POST",
            "users/v/plan",
            json!({"plan": "p", "effective": "now", "until": "2026-04-01T00:00:00Z", "then": "p", "sequence": null}),
        ),
        ("PUT", "users/v/overrides", numbers.clone()),
        ("POST", "users/v/grants", grant),
        ("PUT", "orgs/o", json!({"plan": "p", "zone": "UTC"})),
        ("PUT", "orgs/o/overrides", json!({"overrides": {"team": {"limit": 5}}, "expires_at": null})),
        ("POST", "orgs/o/grants", json!({"limit": "team", "amount": 5, "expires_at": null})),
    ];
    let mut wrong = Vec::new();
    for (method, path, good) in routes {
        let names: Vec<String> = good.as_object().unwrap().keys().cloned().chain(["reason".into()]).collect();
        for name in names {
            for value in odd() {
                let mut body = good.clone();
                body["reason"] = json!("test");
                body[&name] = value.clone();
                let url = format!("/v1/admin/{path}");
                let reply =
                    if method == "PUT" { t.put(&url, &body).await } else { t.post(&url, &body).await };
                if reply.status >= 500 || (reply.status >= 400 && reply.body["code"].is_null()) {
                    wrong.push(format!("{method} {path} {name} {value}: {} {}", reply.status, reply.text));
                }
            }
            // Whatever was taken of it, everybody can be served.
            for user in ["u", "v", "new"] {
                let quota = t.quota(user).await;
                let check = t.ask(user, 1, 1).await;
                let shown = t.get(&format!("/v1/admin/users/{user}")).await;
                for reply in [quota, check, shown] {
                    if reply.status >= 500 {
                        wrong.push(format!(
                            "after {method} {path} {name}: {user} {} {}",
                            reply.status, reply.text
                        ));
                    }
                }
            }
            let org = t.get("/v1/admin/orgs/o/quota").await;
            if org.status != 200 {
                wrong.push(format!("after {method} {path} {name}: {} {}", org.status, org.text));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
