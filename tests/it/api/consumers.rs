//! Who used most: what admins look for first.

use serde_json::{Value, json};

use crate::harness::Tenant;
use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;

async fn consumers(t: &Tenant, query: &str) -> Value {
    t.get(&format!("/v1/admin/consumers?{query}")).await.ok()
}

fn column<'a>(body: &'a Value, name: &str) -> Vec<&'a Value> {
    body["data"].as_array().expect("rows").iter().map(|row| &row[name]).collect()
}

#[tokio::test]
async fn users_stand_in_the_order_of_what_they_used_with_shares() {
    let t = Tenant::with(Sheet::new().mt(1_000)).await;
    t.spend("small", 10, 10).await;
    t.spend("large", 200, 100).await;
    t.spend("large", 50, 50).await;
    t.put_user("large", json!({"plan": "p"})).await;
    let body = consumers(&t, "").await;
    assert_eq!(column(&body, "user"), ["large", "small"]);
    assert_has(
        &body["data"][0],
        &json!({"rank": 1, "requests": 2, "input_tokens": 250, "output_tokens": 150, "total_tokens": 400,
                "credits": 0, "refusals": 0, "share": 0.952381, "quota_share": 0.4}),
    );
    assert_has(&body["total"], &json!({"requests": 3, "total_tokens": 420, "refusals": 0}));
    assert_has(
        &body,
        &json!({"count": 2, "by": "total_tokens", "group": "user", "next_cursor": null,
                "from": "2026-02-08", "to": "2026-03-11"}),
    );
}

#[tokio::test]
async fn every_grouping_adds_up_to_the_same_total() {
    let t = Tenant::with(Sheet::new()).await;
    for (user, feature, model, tokens) in [
        ("a", "chat", "opus", 5),
        ("b", "chat", "haiku", 7),
        ("a", "search", "haiku", 11),
        ("c", "search", "opus", 2),
    ] {
        let hold = t
            .check(json!({"user": user, "feature": feature, "model": model, "input_tokens": tokens}))
            .await
            .hold_id();
        t.finish(&hold, tokens, 0).await.ok();
    }
    for (group, names) in [
        ("user", json!(["a", "b", "c"])),
        ("feature", json!(["search", "chat"])),
        ("model", json!(["haiku", "opus"])),
        ("org", json!([null])),
    ] {
        let body = consumers(&t, &format!("group={group}&by=input_tokens")).await;
        assert_eq!(json!(column(&body, group)), names, "{group}");
        let sum: u64 = column(&body, "input_tokens").iter().filter_map(|sum| sum.as_u64()).sum();
        assert_eq!((sum, &body["total"]["input_tokens"]), (25, &json!(25)), "{group}");
    }
}

#[tokio::test]
async fn pages_keep_the_order_of_the_first_one_while_calls_go_on() {
    let t = Tenant::with(Sheet::new()).await;
    for n in 0..7 {
        t.spend(&format!("u{n}"), 100 - n, 0).await;
    }
    let first = consumers(&t, "limit=3").await;
    let mut seen: Vec<String> = Vec::new();
    let mut body = first;
    let mut ranks = Vec::new();
    loop {
        seen.extend(column(&body, "user").iter().filter_map(|user| user.as_str()).map(str::to_owned));
        ranks.extend(column(&body, "rank").into_iter().cloned());
        // The last becomes the first, somebody new comes.
        t.spend("u6", 1_000, 0).await;
        t.spend("new", 5_000, 0).await;
        let Some(cursor) = body["next_cursor"].as_str() else { break };
        body = consumers(&t, &format!("limit=3&cursor={cursor}")).await;
        assert_eq!(body["total"]["total_tokens"], 679, "of the first page");
    }
    assert_eq!(seen, ["u0", "u1", "u2", "u3", "u4", "u5", "u6"]);
    assert_eq!(json!(ranks), json!([1, 2, 3, 4, 5, 6, 7]));
    let again = consumers(&t, "limit=2").await;
    assert_eq!(column(&again, "user"), ["new", "u6"]);
}

#[tokio::test]
async fn a_cursor_ends_after_ten_minutes_and_belongs_to_its_query() {
    let t = Tenant::with(Sheet::new()).await;
    for user in ["a", "b", "c"] {
        t.spend(user, 1, 0).await;
    }
    let first = consumers(&t, "limit=1&by=requests").await;
    let cursor = first["next_cursor"].as_str().expect("more").to_owned();
    let other = t.get(&format!("/v1/admin/consumers?limit=1&by=credits&cursor={cursor}")).await;
    other.refused(400, "invalid_request");
    for bad in ["x", "YXVkaXQ6MQ"] {
        t.get(&format!("/v1/admin/consumers?cursor={bad}")).await.refused(400, "invalid_request");
    }
    let second = consumers(&t, &format!("limit=1&by=requests&cursor={cursor}")).await;
    assert_eq!(column(&second, "user"), ["b"]);
    t.pass(10 * 60_000 + 1).await;
    t.get(&format!("/v1/admin/consumers?cursor={cursor}")).await.refused(410, "cursor_expired");
}

#[tokio::test]
async fn days_are_the_tenants_and_those_that_a_span_touches_count_whole() {
    // 23:30 in Tokyo on the 10th.
    let t = Tenant::at("Asia/Tokyo", "2026-03-10T14:30:00.000Z").await;
    t.plan(&Sheet::new()).await;
    t.spend("u", 10, 0).await;
    t.pass(3_600_000).await;
    t.spend("u", 5, 0).await;
    for (span, tokens) in [
        ("from=2026-03-10&to=2026-03-11", 10),
        ("from=2026-03-11&to=2026-03-12", 5),
        ("from=2026-03-10", 15),
        ("from=2026-03-10T14:59:00Z&to=2026-03-10T15:00:00Z", 10),
        ("from=2026-03-10T15:00:00Z&to=2026-03-10T15:01:00Z", 5),
    ] {
        assert_eq!(consumers(&t, span).await["total"]["total_tokens"], tokens, "{span}");
    }
    let empty = consumers(&t, "from=2026-03-01&to=2026-03-02").await;
    assert_has(&empty, &json!({"data": [], "count": 0, "total": {"requests": 0}}));
    for bad in ["from=2025-01-01", "from=x", "by=tokens", "group=users", "limit=0"] {
        t.get(&format!("/v1/admin/consumers?{bad}")).await.refused(400, "invalid_request");
    }
}

#[tokio::test]
async fn refusals_can_be_what_is_looked_for() {
    let t = Tenant::with(Sheet::new().rb(1, 1)).await;
    t.ask("quiet", 1, 0).await.ok();
    for _ in 0..4 {
        t.ask("loud", 1, 0).await;
    }
    let body = consumers(&t, "by=refusals").await;
    assert_has(&body["data"][0], &json!({"user": "loud", "refusals": 3, "share": 1.0, "quota_share": null}));
}

#[tokio::test]
async fn refusals_count_for_all_that_a_call_was_about() {
    let t = Tenant::with(Sheet::new().rb(1, 1)).await;
    t.put_user("loud", json!({"org": "acme"})).await;
    for (model, feature) in [("opus", "chat"), ("opus", "chat"), ("haiku", "chat"), ("haiku", "search")] {
        t.check(json!({"user": "loud", "model": model, "feature": feature, "input_tokens": 1})).await;
    }
    t.ask("quiet", 1, 0).await.ok();
    t.ask("quiet", 1, 0).await.refused(429, "request_rate_exceeded");
    for (group, expected) in [
        ("user", json!({"loud": 3, "quiet": 1})),
        ("org", json!({"acme": 3, "-": 1})),
        ("model", json!({"haiku": 2, "opus": 1, "-": 1})),
        ("feature", json!({"chat": 2, "search": 1, "-": 1})),
        ("plan", json!({"p": 4})),
    ] {
        let body = consumers(&t, &format!("group={group}&by=refusals&from=2026-03-01&to=2026-04-01")).await;
        let rows = body["data"].as_array().unwrap().iter().filter(|row| row["refusals"] != 0);
        let found: serde_json::Map<String, Value> = rows
            .map(|row| (row[group].as_str().unwrap_or("-").to_owned(), row["refusals"].clone()))
            .collect();
        assert_eq!(Value::Object(found), expected, "{group}");
        assert_eq!(body["total"]["refusals"], 4, "{group}");
    }
}

#[tokio::test]
async fn csv_has_all_rows_and_no_formula() {
    let t = Tenant::with(Sheet::new()).await;
    t.spend("=cmd|' /C calc'!A0", 10, 0).await;
    t.spend("a,\"b\"", 5, 0).await;
    let request = t.request(reqwest::Method::GET, "/v1/admin/consumers?from=2026-03-01&to=2026-04-01");
    let reply = t.send(request.header("accept", "text/csv")).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(reply.header("content-type"), Some("text/csv; charset=utf-8"));
    let file = "attachment; filename=\"consumers-2026-03-01-2026-04-01.csv\"";
    assert_eq!(reply.header("content-disposition"), Some(file));
    let lines: Vec<&str> = reply.text.lines().collect();
    assert_eq!(
        lines,
        [
            "rank,user,plan,requests,input_tokens,output_tokens,total_tokens,credits,refusals,share,quota_share",
            "1,'=cmd|' /C calc'!A0,p,1,10,0,10,0,0,0.666667,",
            "2,\"a,\"\"b\"\"\",p,1,5,0,5,0,0,0.333333,",
        ]
    );
}

#[tokio::test]
async fn nobody_sees_another_tenants_consumers() {
    let (one, other) = (Tenant::with(Sheet::new()).await, Tenant::with(Sheet::new()).await);
    for user in ["a", "b"] {
        one.spend(user, 1, 0).await;
    }
    let cursor = consumers(&one, "limit=1").await["next_cursor"].as_str().expect("more").to_owned();
    assert_eq!(consumers(&other, "").await["count"], 0);
    other.get(&format!("/v1/admin/consumers?cursor={cursor}")).await.refused(410, "cursor_expired");
}

#[tokio::test]
async fn who_shares_a_device_or_an_address_is_told_and_nobody_is_banned() {
    let t = Tenant::with(Sheet::new()).await;
    for (user, device) in [("a", "phone"), ("b", "phone"), ("c", "tablet"), ("d", "tablet"), ("e", "own")] {
        t.put_user(user, json!({"plan": "p", "signals": {"device": device}})).await.ok();
        t.spend(user, 10, 5).await;
    }
    let first = t.get("/v1/admin/duplicates?signal=device&limit=1").await.ok();
    assert_eq!(
        first["data"],
        json!([{"signal": "phone", "users": ["a", "b"], "count": 2, "total_tokens": 30}])
    );
    let cursor = first["next_cursor"].as_str().expect("more").to_owned();
    let second = t.get(&format!("/v1/admin/duplicates?signal=device&limit=1&cursor={cursor}")).await.ok();
    assert_has(&second, &json!({"data": [{"signal": "tablet", "users": ["c", "d"]}], "next_cursor": null}));
    let none = t.get("/v1/admin/duplicates?signal=address").await.ok();
    assert_eq!(none, json!({"data": [], "next_cursor": null}));
    for bad in ["", "signal=phone", "signal=device&from=2020-01-01", "signal=device&cursor=x"] {
        t.get(&format!("/v1/admin/duplicates?{bad}")).await.refused(400, "invalid_request");
    }
    t.ask("a", 1, 0).await.ok();
}

#[tokio::test]
async fn the_culprit_of_a_peak_is_found_by_minute_and_feature() {
    let t = Tenant::with(Sheet::new().rb(3, 3)).await;
    let call = |user: &str, feature: &str| json!({"user": user, "feature": feature, "input_tokens": 5, "max_output_tokens": 5});
    for n in 0..3 {
        let hold = t.check(call("a", "batch")).await.hold_id();
        t.finish(&hold, 5, n).await.ok();
    }
    for _ in 0..2 {
        t.check(call("a", "batch")).await.refused(429, "request_rate_exceeded");
    }
    t.pass(60_000).await;
    let hold = t.check(json!({"user": "b"})).await.hold_id();
    t.finish(&hold, 0, 1).await.ok();
    let body = t.get("/v1/admin/features").await.ok();
    assert_eq!(
        body["data"],
        json!([
            {"at": "2026-03-10T12:00:00.000Z", "feature": "batch", "requests": 3, "input_tokens": 15,
             "output_tokens": 3, "total_tokens": 18, "credits": 0, "refusals": 2},
            {"at": "2026-03-10T12:01:00.000Z", "feature": null, "requests": 1, "input_tokens": 0,
             "output_tokens": 1, "total_tokens": 1, "credits": 0, "refusals": 0},
        ])
    );
    let first = t.get("/v1/admin/features?limit=1").await.ok();
    let cursor = first["next_cursor"].as_str().expect("more");
    let second = t.get(&format!("/v1/admin/features?limit=1&cursor={cursor}")).await.ok();
    assert_has(&second, &json!({"data": [{"feature": null}], "next_cursor": null}));
    // A minute that a span touches counts whole; another day has none.
    let part = t.get("/v1/admin/features?from=2026-03-10T12:00:59Z&to=2026-03-10T12:01:00Z").await.ok();
    assert_eq!(column(&part, "feature"), ["batch"]);
    let none = t.get("/v1/admin/features?from=2026-03-09&to=2026-03-10").await.ok();
    assert_eq!(none, json!({"data": [], "next_cursor": null}));
    t.get("/v1/admin/features?from=x").await.refused(400, "invalid_request");
}
