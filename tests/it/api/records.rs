//! What is on record: a user's ledger, refusals, the audit, comparisons.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;
use crate::harness::{Client, Tenant};

fn rows(body: &Value) -> Vec<Value> {
    body["data"].as_array().unwrap_or_else(|| panic!("no list: {body}")).clone()
}

/// `field` of every row.
fn each(rows: &[Value], field: &str) -> Vec<String> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    rows.iter().map(|row| text(&row[field])).collect()
}

async fn ledger(t: &Client, query: &str) -> Value {
    t.get(&format!("/v1/admin/users/u/ledger{query}")).await.ok()
}

async fn audit(t: &Client, query: &str) -> Vec<Value> {
    rows(&t.get(&format!("/v1/admin/audit{query}")).await.ok())
}

/// All rows of a list, page by page; `between` runs after every page.
async fn paged(t: &Client, path: &str, limit: usize, between: impl AsyncFn()) -> Vec<Value> {
    let mut all = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = t.get(&format!("{path}?limit={limit}{cursor}")).await.ok();
        assert!(rows(&page).len() <= limit, "{page}");
        all.extend(rows(&page));
        let Some(next) = page["next_cursor"].as_str() else { return all };
        assert_eq!(rows(&page).len(), limit, "only the last page is short");
        cursor = format!("&cursor={next}");
        between().await;
    }
}

#[tokio::test]
async fn a_users_ledger_tells_what_happened_newest_first() {
    let t = Tenant::with(Sheet::new().rb(10, 10)).await;
    t.put_user("u", json!({"plan": "p"})).await.ok();
    t.pass(1000).await;
    let settled = t.ask("u", 100, 50).await.hold_id();
    t.pass(1000).await;
    let released = t.ask("u", 10, 5).await.hold_id();
    t.pass(1000).await;
    let unknown = t.ask("u", 1, 1).await.hold_id();
    let left = t.ask_for("u", 2, 2, 10).await.hold_id();
    t.pass(1000).await;
    t.finish(&settled, 90, 40).await.ok();
    t.pass(1000).await;
    t.release(&released).await.ok();
    t.pass(1000).await;
    t.settle(&unknown, json!({"usage": "unknown"})).await.ok();
    t.pass(10_000).await;
    t.put_user("u", json!({"suspended": true})).await.ok();
    t.pass(1000).await;
    t.ask("u", 1, 1).await.refused(403, "user_suspended");

    let body = ledger(&t, "").await;
    let expected = [
        ("12:00:17.000", "refused", None, Some("user_suspended"), None, "rule"),
        ("12:00:16.000", "changed", None, Some("user.put"), None, ""),
        ("12:00:13.000", "in_doubt", Some(&left), None, Some(4), "rule"),
        ("12:00:06.000", "in_doubt", Some(&unknown), None, Some(2), "caller"),
        ("12:00:05.000", "released", Some(&released), Some("not_sent"), None, "caller"),
        ("12:00:04.000", "settled", Some(&settled), None, Some(130), "caller"),
        ("12:00:03.000", "checked", Some(&left), None, Some(4), "caller"),
        ("12:00:03.000", "checked", Some(&unknown), None, Some(2), "caller"),
        ("12:00:02.000", "checked", Some(&released), None, Some(15), "caller"),
        ("12:00:01.000", "checked", Some(&settled), None, Some(150), "caller"),
        ("12:00:00.000", "changed", None, Some("user.put"), None, ""),
    ];
    let mut found = rows(&body);
    // Of two holds of one instant either may have the higher id.
    if found[6]["hold"] != left.as_str() {
        found.swap(6, 7);
    }
    assert_eq!(found.len(), expected.len(), "{body:#}");
    for (row, (at, kind, hold, code, total, by)) in found.iter().zip(expected) {
        assert_has(
            row,
            &json!({"at": format!("2026-03-10T{at}Z"), "kind": kind, "hold": hold, "code": code}),
        );
        assert_eq!(row["amounts"]["total_tokens"].as_u64(), total, "{row}");
        match by {
            "" => assert!(row["by"].as_str().is_some_and(|by| !by.is_empty()), "{row}"),
            by => assert_eq!(row["by"], by, "{row}"),
        }
    }
    let day = json!([{"day": "2026-03-10", "code": "user_suspended", "count": 1}]);
    assert_eq!(body["refusals"], day);
    assert_eq!(found[0]["limit"], Value::Null);

    // From here to there, half-open.
    let span = ledger(&t, "?from=2026-03-10T12:00:04Z&to=2026-03-10T12:00:06Z").await;
    assert_eq!(each(&rows(&span), "kind"), ["released", "settled"]);
    assert!(rows(&ledger(&t, "?from=2026-03-11").await).is_empty());
    assert_eq!(ledger(&t, "?from=2026-03-11").await["refusals"], json!([]));
}

#[tokio::test]
async fn a_settled_call_out_of_order_stands_where_it_ended() {
    let t = Tenant::with(Sheet::new().rb(100, 100)).await;
    let mut holds = Vec::new();
    for _ in 0..12 {
        holds.push(t.ask("u", 1, 1).await.hold_id());
        t.pass(1000).await;
    }
    // The oldest ends last.
    for hold in holds.iter().rev() {
        t.finish(hold, 1, 1).await.ok();
        t.pass(1000).await;
    }
    let usage =
        json!({"id": "x", "user": "u", "input_tokens": 7, "output_tokens": 0, "at": "2026-03-01T00:00:00Z"});
    t.usage(&usage).await.ok();
    let whole = rows(&ledger(&t, "").await);
    // Use that was booked was never checked.
    assert_eq!(whole.len(), 25);
    assert_eq!(whole[0]["amounts"]["input_tokens"], 7);
    let ends: Vec<String> = whole[1..13].iter().map(|row| row["hold"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ends, holds);
    let times = each(&whole, "at");
    assert!(times.windows(2).all(|pair| pair[0] >= pair[1]), "{times:?}");
    for limit in [1, 2, 5, 24, 25] {
        let pages = paged(&t, "/v1/admin/users/u/ledger", limit, async || {}).await;
        assert_eq!(pages, whole, "by {limit}");
    }
}

#[tokio::test]
async fn no_row_is_shown_twice_and_none_is_missing_while_traffic_runs() {
    let t = Tenant::with(Sheet::new().rb(1000, 1000)).await;
    for _ in 0..30 {
        let hold = t.ask("u", 1, 1).await.hold_id();
        t.finish(&hold, 1, 1).await.ok();
        t.pass(7).await;
    }
    let key = |row: &Value| format!("{} {} {}", row["at"], row["kind"], row["hold"]);
    let before: HashSet<String> = rows(&ledger(&t, "?limit=500").await).iter().map(key).collect();
    assert_eq!(before.len(), 60);
    t.pass(1).await;
    let traffic = async || {
        let hold = t.ask("u", 1, 1).await.hold_id();
        t.finish(&hold, 1, 1).await.ok();
        t.ask("v", 1, 1).await.ok();
        t.pass(1).await;
    };
    let shown: Vec<String> =
        paged(&t, "/v1/admin/users/u/ledger", 4, traffic).await.iter().map(key).collect();
    let once: HashSet<String> = shown.iter().cloned().collect();
    assert_eq!(once.len(), shown.len(), "a row was shown twice");
    assert!(before.is_subset(&once), "a row is missing");
}

#[tokio::test]
async fn ten_thousand_refusals_of_a_user_are_one_counter_and_a_hundred_rows() {
    let t = Tenant::with(Sheet::new().rb(2, 2)).await;
    for _ in 0..2 {
        t.ask("u", 1, 1).await.ok();
    }
    let batch: Vec<Value> = (0..100).map(|_| json!({"user": "u"})).collect();
    for _ in 0..100 {
        t.check_batch(&batch).await.ok();
    }
    let body = ledger(&t, "?limit=500").await;
    let refused: Vec<Value> = rows(&body).into_iter().filter(|row| row["kind"] == "refused").collect();
    assert_eq!(refused.len(), 100);
    assert_has(
        &refused[0],
        &json!({"code": "request_rate_exceeded", "limit": "requests_per_minute", "hold": null}),
    );
    let counted = json!([{"day": "2026-03-10", "code": "request_rate_exceeded", "count": 10_000}]);
    assert_eq!(body["refusals"], counted);
    // However long that goes on.
    t.pass(1).await;
    t.check_batch(&batch[..5]).await.ok();
    let newer = rows(&ledger(&t, "?limit=500").await);
    assert_eq!(newer.iter().filter(|row| row["kind"] == "refused").count(), 100);
    assert_eq!(newer.iter().filter(|row| row["at"] == "2026-03-10T12:00:00.001Z").count(), 5);
    let pages = paged(&t, "/v1/admin/users/u/ledger", 7, async || {}).await;
    assert_eq!(pages, newer);
}

#[tokio::test]
async fn every_refusal_counts_by_local_day_and_dry_runs_never() {
    let t = Tenant::at("Asia/Tokyo", "2026-03-10T14:59:59.999Z").await;
    t.plan(&Sheet::new().rb(1, 1).field("per_call", json!({"max_input_tokens": 10}))).await;
    t.ask("u", 11, 0).await.refused(413, "input_too_large");
    t.check(json!({"user": "u", "input_tokens": 11, "dry_run": true})).await.refused(413, "input_too_large");
    t.check(json!({"user": "u", "input_tokens": -1})).await.refused(400, "invalid_request");
    t.pass(1).await;
    t.ask("u", 11, 0).await.refused(413, "input_too_large");
    t.check(json!({"user": "u", "request_id": "a"})).await.ok();
    t.check(json!({"user": "u", "request_id": "a", "input_tokens": 1}))
        .await
        .refused(422, "request_id_reused");
    t.ask("u", 1, 0).await.refused(429, "request_rate_exceeded");
    let expected = json!([
        {"day": "2026-03-11", "code": "input_too_large", "count": 1},
        {"day": "2026-03-11", "code": "request_id_reused", "count": 1},
        {"day": "2026-03-11", "code": "request_rate_exceeded", "count": 1},
        {"day": "2026-03-10", "code": "input_too_large", "count": 1},
    ]);
    assert_eq!(ledger(&t, "").await["refusals"], expected);
    let yesterday = ledger(&t, "?to=2026-03-11").await;
    assert_eq!(yesterday["refusals"], json!([expected[3]]));
    // Of the last 31 days of the span.
    t.set_clock("2026-04-10T15:00:00.000Z").await;
    assert_eq!(ledger(&t, "").await["refusals"], json!([]));
    assert_eq!(ledger(&t, "?to=2026-04-11").await["refusals"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn a_ledger_of_nobody_is_404_and_another_tenants_is_nobodys() {
    let (a, b) = (Tenant::with(Sheet::new().rb(1, 1)).await, Tenant::with(Sheet::new().rb(1, 1)).await);
    a.ask("u", 1, 1).await.ok();
    a.ask("u", 1, 1).await.refused(429, "request_rate_exceeded");
    b.get("/v1/admin/users/u/ledger").await.refused(404, "not_found");
    a.get("/v1/admin/users/nobody/ledger").await.refused(404, "not_found");
    // Who was only ever refused is looked for too.
    a.put_settings(json!({"max_tokens_per_call": 10})).await.ok();
    a.ask("w", 50, 1).await.refused(413, "input_too_large");
    assert_eq!(rows(&a.get("/v1/admin/users/w/ledger").await.ok()).len(), 1);
    // On record, and nothing happened yet in that span.
    assert!(rows(&ledger(&a, "?to=2020-01-01").await).is_empty());
    a.with_token(&a.token(&["--scope", "check quota"]))
        .get("/v1/admin/users/u/ledger")
        .await
        .refused(403, "forbidden");
}

#[tokio::test]
async fn every_change_is_in_the_audit_newest_first() {
    let t = Tenant::with(Sheet::new()).await;
    t.put_user("u", json!({"plan": "free"})).await.ok();
    t.set_plan("u", "p").await.ok();
    t.put_models(&json!([{"id": "m", "input": 1, "output": 2}])).await.ok();
    let created =
        t.post("/v1/admin/keys", &json!({"kind": "api", "scopes": ["check"], "name": "k"})).await.ok();
    let kid = created["kid"].as_str().unwrap();
    t.send(t.request(reqwest::Method::DELETE, &format!("/v1/admin/keys/{kid}"))).await;
    let all = audit(&t, "?limit=500").await;
    let words: Vec<String> = all
        .iter()
        .map(|row| format!("{} {}", row["action"].as_str().unwrap(), row["target"].as_str().unwrap()))
        .collect();
    let expected = [
        format!("key.delete {kid}"),
        format!("key.create {kid}"),
        "models.put models".into(),
        "user.plan u".into(),
        "user.put u".into(),
        "settings.put settings".into(),
        "plan.put p".into(),
        format!("clock.set {}", t.id),
    ];
    assert_eq!(words[..8], expected);
    assert!(words.contains(&format!("tenant.create {}", t.id)), "{words:?}");
    // Documents, not texts.
    assert_eq!((&all[3]["before"]["plan"], &all[3]["after"]["plan"]), (&json!("free"), &json!("p")));
    assert_eq!(all[4]["before"], Value::Null);
    assert_eq!(all[5]["after"]["default_plan"], "p");
    assert_has(&all[3], &json!({"reason": "test", "at": "2026-03-10T12:00:00.000Z"}));
    assert!(all.iter().all(|row| row["by"].as_str().is_some_and(|by| !by.is_empty())));
    // What was done with a key, and nothing by which it could be used.
    let shown =
        json!({"kind": "api", "scopes": ["check"], "name": "k", "algorithm": null, "generated": false});
    assert_eq!(all[1]["after"], shown);
    let text = serde_json::to_string(&all).unwrap();
    let secret = created["secret"].as_str().unwrap();
    assert!(!text.contains(secret) && !text.contains("\"hash\"") && !text.contains("sealed"));
    for limit in [1, 3, 500] {
        assert_eq!(paged(&t, "/v1/admin/audit", limit, async || {}).await, all, "by {limit}");
    }
}

#[tokio::test]
async fn the_audit_is_asked_by_author_target_and_time() {
    let t = Tenant::with(Sheet::new()).await;
    let other = t.with_token(&t.token(&["--scope", "admin:write", "--ttl", "2h"]));
    t.put_user("u", json!({"verified": true})).await.ok();
    t.pass(60_000).await;
    other.put_user("u", json!({"verified": false})).await.ok();
    other.put_user("v", json!({"verified": true})).await.ok();
    let of_u = audit(&t, "?target=u").await;
    assert_eq!(each(&of_u, "action"), ["user.put", "user.put"]);
    let late = audit(&t, "?target=u&from=2026-03-10T12:01:00Z").await;
    assert_eq!(late, of_u[..1]);
    assert_eq!(audit(&t, "?target=u&to=2026-03-10T12:01:00Z").await, of_u[1..]);
    assert_eq!(
        audit(&t, "?from=2026-03-10T12:01:00Z&to=2026-03-11").await.len(),
        3,
        "two users and the clock"
    );
    assert!(audit(&t, "?from=2026-03-11&to=2026-03-12").await.is_empty());
    let by = of_u[0]["by"].as_str().unwrap();
    let by_author = audit(&t, &format!("?by={by}&limit=500")).await;
    assert!(by_author.iter().all(|row| row["by"] == by) && by_author.contains(&of_u[0]));
    assert!(audit(&t, "?by=nobody").await.is_empty());
    let span = "?from=2026-03-11&to=2026-03-10";
    for path in ["audit", "users/u/ledger", "decisions"] {
        let refused = t.get(&format!("/v1/admin/{path}{span}")).await.refused(400, "invalid_request");
        assert_has(
            &refused.body["errors"],
            &json!([{"pointer": "/to", "message": "must not be before from"}]),
        );
    }
}

#[tokio::test]
async fn the_audit_cannot_be_changed_and_belongs_to_its_tenant() {
    let (a, b) = (Tenant::with(Sheet::new()).await, Tenant::with(Sheet::new()).await);
    a.put_user("only_a", json!({"verified": true})).await.ok();
    let mine = audit(&a, "?target=only_a").await;
    assert_eq!(mine.len(), 1);
    assert!(audit(&b, "?target=only_a").await.is_empty());
    let theirs = serde_json::to_string(&audit(&b, "?limit=500").await).unwrap();
    assert!(!theirs.contains("only_a") && !theirs.contains(&format!("\"{}\"", a.id)));
    // A cursor of one tenant leads into no other.
    let cursor = a.get("/v1/admin/audit?limit=1").await.ok()["next_cursor"].as_str().unwrap().to_owned();
    let from_theirs = audit(&b, &format!("?limit=500&cursor={cursor}")).await;
    assert!(!serde_json::to_string(&from_theirs).unwrap().contains("only_a"));
    for method in [reqwest::Method::PUT, reqwest::Method::POST, reqwest::Method::DELETE] {
        a.send(a.request(method, "/v1/admin/audit").json(&json!({})))
            .await
            .refused(405, "method_not_allowed");
    }
    assert_eq!(audit(&a, "?target=only_a").await, mine);
}

#[tokio::test]
async fn decisions_that_nobody_compared_are_an_empty_list() {
    let t = Tenant::with(Sheet::new()).await;
    let body = t.get("/v1/admin/decisions").await.ok();
    assert_eq!(body, json!({"data": [], "next_cursor": null}));
    t.get("/v1/admin/decisions?from=2026-01-01&to=2026-03-10").await.ok();
    let refused = t.get("/v1/admin/decisions?from=2025-01-01").await.refused(400, "invalid_request");
    assert_eq!(refused.body["errors"][0]["pointer"], "/from");
}

#[tokio::test]
async fn what_was_counted_by_code_alone_is_told() {
    let t = Tenant::with(Sheet::new()).await;
    let metrics = t.get("/metrics").await.text;
    assert!(metrics.contains("apportion_refusals_uncounted_total 0"), "{metrics}");
}
