//! What webhooks are told, and how it reaches them.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::compare::assert_has;
use crate::harness::receiver::{Answer, Came};
use crate::harness::sheets::{PoolSheet, Sheet};
use crate::harness::{Receiver, Reply, Tenant};

const ALL: [&str; 6] =
    ["quota.warned", "quota.exhausted", "hold.in_doubt", "plan.changed", "pool.paused", "pool.closed"];

async fn with_plans() -> Tenant {
    let t = Tenant::with(Sheet::named("free").mt(1000)).await;
    t.put_plan(&Sheet::named("pro").mt(100_000).json()).await.ok();
    t
}

fn path(webhook: &Value, rest: &str) -> String {
    format!("/v1/admin/webhooks/{}{rest}", webhook["id"].as_str().expect("an id"))
}

/// Waits until a webhook's newest message stands so, and gives it.
async fn newest(t: &Tenant, webhook: &Value, is_there: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..1200 {
        if let Some(newest) = t.deliveries(webhook).await.first().filter(|newest| is_there(newest)) {
            return newest.clone();
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("{:?}", t.deliveries(webhook).await)
}

async fn delete(t: &Tenant, webhook: &Value) -> Reply {
    t.send(t.request(Method::DELETE, &path(webhook, ""))).await
}

fn types(came: &[Came]) -> Vec<&str> {
    came.iter().map(|came| came.body["type"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_change_of_plan_is_told_in_a_message_that_its_secret_signs() {
    let t = with_plans().await;
    let receiver = Receiver::always(204).await;
    let webhook = t.add_webhook(&receiver.url, &["plan.changed"]).await;
    t.put_user("u_42", json!({"org": "acme"})).await.ok();
    let change = json!({"plan": "pro", "effective": "now", "sequence": 7, "reason": "paid"});
    t.move_user("u_42", change).await.ok();
    let came = receiver.wait_for(1).await.remove(0);
    assert_eq!(came.signed_by(webhook["secret"].as_str().unwrap()), 1);
    assert_eq!(came.head, "POST /hook HTTP/1.1");
    assert_eq!(came.headers["content-type"], "application/json");
    assert!(came.id().starts_with("msg_") && !came.id().contains('.'), "{}", came.id());
    let seconds: i64 = came.headers["webhook-timestamp"].parse().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!((now as i64 - seconds).abs() < 60, "the time of sending is the wall's: {seconds}");
    assert_has(
        &came.body,
        &json!({
            "type": "plan.changed",
            "timestamp": "2026-03-10T12:00:00.000Z",
            "data": {
                "changed": "user",
                "user": "u_42",
                "org": "acme",
                "plan": {"id": "pro", "version": 2},
                "previous_plan": {"id": "free"},
                "effective_at": "2026-03-10T12:00:00.000Z",
                "scheduled": false,
                "cancelled": false,
                "sequence": 7,
                "reason": "paid",
            },
        }),
    );
    let told = newest(&t, &webhook, |newest| newest["state"] == "delivered").await;
    assert_has(
        &told,
        &json!({"id": came.id(), "type": "plan.changed", "tries": 1, "last_status": 204, "next_try_at": null,
            "last_error": null, "payload": came.body}),
    );
}

#[tokio::test]
async fn changes_to_come_are_told_when_they_are_written_and_when_they_are_taken_back() {
    let t = with_plans().await;
    let receiver = Receiver::always(200).await;
    t.add_webhook(&receiver.url, &["plan.changed"]).await;
    let trial = json!({"plan": "pro", "effective": "now", "until": "2026-03-20T00:00:00.000Z"});
    t.move_user("u", trial).await.ok();
    let mut told: Vec<Value> = receiver.wait_for(2).await.into_iter().map(|came| came.body).collect();
    told.sort_by_key(|told| told["data"]["effective_at"].to_string());
    assert_has(&told[0]["data"], &json!({"plan": {"id": "pro"}, "scheduled": false}));
    let back = json!({"plan": {"id": "free"}, "previous_plan": {"id": "pro"}, "scheduled": true,
        "cancelled": false, "effective_at": "2026-03-20T00:00:00.000Z"});
    assert_has(&told[1]["data"], &back);
    // What has come was told; nobody is told again.
    t.set_clock("2026-03-21T00:00:00.000Z").await;
    t.put_user("u", json!({"verified": true})).await.ok();
    t.move_user("u", json!({"plan": "pro", "effective": "2026-04-01T00:00:00.000Z"})).await.ok();
    t.move_user("u", json!({"plan": "free", "effective": "now"})).await.ok();
    let came = receiver.wait_for(4).await;
    assert_has(&came[2].body["data"], &json!({"plan": {"id": "pro"}, "scheduled": true, "cancelled": false}));
    assert_has(&came[3].body["data"], &json!({"plan": {"id": "pro"}, "scheduled": true, "cancelled": true}));
    let ids: std::collections::HashSet<&str> = came.iter().map(Came::id).collect();
    assert_eq!((came.len(), ids.len()), (4, 4));
}

#[tokio::test]
async fn new_sheets_and_plans_of_orgs_are_told_too() {
    let t = with_plans().await;
    let receiver = Receiver::always(200).await;
    t.add_webhook(&receiver.url, &["plan.changed"]).await;
    t.put_plan(&Sheet::named("free").mt(500).field("applies", json!("next_window")).json()).await.ok();
    let came = receiver.wait_for(1).await;
    let data = json!({"changed": "sheet", "plan": {"id": "free", "version": 3}, "previous_plan":
        {"id": "free", "version": 2}, "applies": "next_window", "scheduled": true,
        "effective_at": "2026-04-01T00:00:00.000Z"});
    assert_has(&came[0].body["data"], &data);
    t.put_org("acme", json!({"plan": "pro"})).await.ok();
    t.put_org("acme", json!({"zone": "Asia/Tokyo"})).await.ok();
    t.put_org("acme", json!({"plan": null})).await.ok();
    let came = receiver.wait_for(3).await;
    let data = json!({"changed": "org", "org": "acme", "plan": {"id": "pro"}, "previous_plan": null});
    assert_has(&came[1].body["data"], &data);
    assert_has(&came[2].body["data"], &json!({"plan": null, "previous_plan": {"id": "pro"}}));
}

#[tokio::test]
async fn a_pause_of_a_pool_is_told_once_and_its_closure_once() {
    let t = Tenant::with(Sheet::new()).await;
    t.pool(&PoolSheet::new("default", &["*"]).requests(100, 100)).await;
    let receiver = Receiver::always(200).await;
    t.add_webhook(&receiver.url, &["pool.paused", "pool.closed"]).await;
    let tell = async |headers: Value| {
        let body = json!({"status": 429, "headers": headers});
        t.post("/v1/pools/default/feedback", &body).await.ok();
    };
    for _ in 0..3 {
        tell(json!({"retry-after": "20"})).await;
    }
    let came = receiver.wait_for(1).await;
    let data = json!({"pool": "default", "state": "paused", "paused_until": "2026-03-10T12:00:20.000Z"});
    assert_has(&came[0].body, &json!({"type": "pool.paused", "data": data}));
    t.pass(60_000).await;
    tell(json!({"retry-after": "5"})).await;
    let spent = json!({"status": 429, "headers": {}, "body":
        {"error": {"type": "insufficient_quota", "code": "insufficient_quota", "message": "spent"}}});
    t.post("/v1/pools/default/feedback", &spent).await;
    let came = receiver.wait_for(2).await;
    assert_eq!(came[1].body["type"], "pool.paused");
}

#[tokio::test]
async fn what_fails_comes_again_under_the_same_id_and_redirects_are_not_followed() {
    let t = with_plans().await;
    let elsewhere = Receiver::always(200).await;
    let to = format!("location: {}\r\n", elsewhere.url);
    let receiver = Receiver::start(move |count| match count {
        0 => Answer::With(302, to.clone()),
        _ => Answer::Status(200),
    })
    .await;
    let webhook = t.add_webhook(&receiver.url, &["plan.changed"]).await;
    t.set_plan("u", "pro").await.ok();
    let failed = newest(&t, &webhook, |newest| newest["last_status"] == 302).await;
    assert_has(&failed, &json!({"state": "pending", "tries": 1, "last_error": "the receiver answered 302"}));
    // The first retry comes within ten seconds.
    let told = newest(&t, &webhook, |newest| newest["state"] == "delivered").await;
    assert_has(&told, &json!({"tries": 2, "last_status": 200, "last_error": null, "next_try_at": null}));
    let came = receiver.came();
    assert_eq!((came.len(), came[0].id(), &came[0].text), (2, came[1].id(), &came[1].text));
    assert!(elsewhere.came().is_empty());
    // And whenever somebody asks for it.
    let again = t.post(&path(&webhook, &format!("/deliveries/{}/retry", came[0].id())), &json!({})).await;
    assert_eq!((again.status, &again.body["state"]), (202, &json!("pending")), "{}", again.text);
    assert_eq!(receiver.wait_for(3).await[2].id(), came[0].id());
    t.post(&path(&webhook, "/deliveries/msg_0/retry"), &json!({})).await.refused(404, "not_found");
}

#[tokio::test]
async fn receivers_that_hang_break_off_or_send_without_end_delay_nobody_else() {
    let t = with_plans().await;
    let hangs = Receiver::start(|_| Answer::Never).await;
    let endless = Receiver::start(|_| Answer::Endless).await;
    let fails = Receiver::always(500).await;
    let good = Receiver::always(200).await;
    for bad in [&hangs, &endless, &fails] {
        t.add_webhook(&bad.url, &["plan.changed"]).await;
    }
    let nobody = t.add_webhook("http://127.0.0.1:1/", &["plan.changed"]).await;
    let webhook = t.add_webhook(&good.url, &["plan.changed"]).await;
    for user in 0..30 {
        t.set_plan(&format!("u{user}"), "pro").await.ok();
    }
    let came = good.wait_for(30).await;
    let ids: std::collections::HashSet<&str> = came.iter().map(Came::id).collect();
    assert_eq!(ids.len(), 30);
    newest(&t, &webhook, |newest| newest["state"] == "delivered").await;
    // No more at a time than a few.
    assert!(hangs.came().len() <= 4, "{}", hangs.came().len());
    // Its head is an answer; the rest is nobody's business.
    endless.wait_for(30).await;
    let refused = newest(&t, &nobody, |newest| newest["last_error"] != Value::Null).await;
    assert_has(&refused, &json!({"state": "pending", "last_status": null, "last_error": "no connection"}));
}

#[tokio::test]
async fn after_a_new_secret_both_sign_for_a_while() {
    let t = with_plans().await;
    let receiver = Receiver::always(200).await;
    let webhook = t.add_webhook(&receiver.url, &["plan.changed"]).await;
    let renewed = t.post(&path(&webhook, "/secret"), &json!({"reason": "leaked"})).await.ok();
    let (old, new) = (webhook["secret"].as_str().unwrap(), renewed["secret"].as_str().unwrap());
    assert_ne!(old, new);
    assert!(renewed["overlap_until"].is_string(), "{renewed}");
    t.set_plan("u", "pro").await.ok();
    let came = receiver.wait_for(1).await;
    assert_eq!((came[0].signed_by(old), came[0].signed_by(new)), (1, 1));
    let at_once = t.post(&path(&webhook, "/secret"), &json!({"overlap_seconds": 0})).await.ok();
    t.set_plan("u", "free").await.ok();
    t.post(&path(&webhook, "/test"), &json!({})).await.ok();
    let came = receiver.wait_for(2).await;
    let newest = at_once["secret"].as_str().unwrap();
    let signed = (came[1].signed_by(old), came[1].signed_by(new), came[1].signed_by(newest));
    assert_eq!(signed, (0, 0, 1));
}

#[tokio::test]
async fn a_webhook_is_shown_without_its_secret_changed_under_its_version_and_removed() {
    let t = with_plans().await;
    let receiver = Receiver::always(200).await;
    let created = t.add_webhook(&receiver.url, &["plan.changed", "plan.changed"]).await;
    assert!(created["secret"].as_str().unwrap().starts_with("whsec_"), "{created}");
    let shown = t.get(&path(&created, "")).await;
    assert_eq!(shown.header("etag"), Some("\"1\""));
    assert_has(&shown.body, &json!({"url": receiver.url, "events": ["plan.changed"], "enabled": true}));
    let list = t.get("/v1/admin/webhooks").await.ok();
    assert_eq!(list["data"], json!([shown.body]));
    for body in [&shown.body, &list] {
        assert!(!body.to_string().contains("whsec"), "{body}");
    }
    let put = |version: &str, body: Value| {
        let request = t.request(Method::PUT, &path(&created, "")).header("if-match", version.to_owned());
        t.send(request.json(&body))
    };
    let changed =
        put("\"1\"", json!({"events": ALL, "description": "all of it", "reason": "more"})).await.ok();
    assert_has(
        &changed,
        &json!({"version": 2, "events": ALL, "url": receiver.url, "description": "all of it"}),
    );
    put("\"1\"", json!({"enabled": false})).await.refused(412, "changed_meanwhile");
    assert_has(
        &put("\"2\"", json!({"enabled": false, "description": null})).await.ok(),
        &json!({"description": null}),
    );
    t.set_plan("u", "pro").await.ok();
    assert!(t.deliveries(&created).await.is_empty(), "nothing is told to one that is not enabled");
    assert_eq!(delete(&t, &created).await.status, 204);
    for gone in [delete(&t, &created).await, t.get(&path(&created, "")).await] {
        gone.refused(404, "not_found");
    }
    t.get(&path(&created, "/deliveries")).await.refused(404, "not_found");
    let audit = t.get(&format!("/v1/admin/audit?target={}", created["id"].as_str().unwrap())).await.ok();
    let actions: Vec<&Value> = audit["data"].as_array().unwrap().iter().map(|row| &row["action"]).collect();
    assert_eq!(json!(actions), json!(["webhook.delete", "webhook.put", "webhook.put", "webhook.put"]));
    assert_eq!(audit["data"][2]["reason"], "more");
}

#[tokio::test]
async fn another_tenants_webhook_is_not_there() {
    let (t, other) = (with_plans().await, with_plans().await);
    let receiver = Receiver::always(200).await;
    let webhook = t.add_webhook(&receiver.url, &ALL).await;
    for rest in ["", "/deliveries"] {
        other.get(&path(&webhook, rest)).await.refused(404, "not_found");
    }
    for rest in ["/secret", "/test"] {
        other.post(&path(&webhook, rest), &json!({})).await.refused(404, "not_found");
    }
    delete(&other, &webhook).await.refused(404, "not_found");
    other.set_plan("u", "pro").await.ok();
    t.set_plan("mine", "pro").await.ok();
    assert_eq!(receiver.wait_for(1).await[0].body["data"]["user"], "mine");
}

#[tokio::test]
async fn every_fault_of_a_webhook_is_told_with_its_field() {
    let t = with_plans().await;
    let long = format!("https://example.com/{}", "a".repeat(3000));
    for (body, pointers) in [
        (json!({}), vec!["/events", "/url"]),
        (json!({"url": "ftp://example.com", "events": []}), vec!["/events", "/url"]),
        (json!({"url": "https://u:p@example.com", "events": ["plan.changed"]}), vec!["/url"]),
        (json!({"url": long, "events": ["plan.changed"]}), vec!["/url"]),
        (json!({"url": "https://example.com", "events": ["plan.moved"]}), vec!["/events/0"]),
        (json!({"url": 7, "events": "plan.changed", "colour": "red"}), vec!["/colour", "/events", "/url"]),
    ] {
        let refused = t.post("/v1/admin/webhooks", &body).await.refused(400, "invalid_request");
        let errors = refused.body["errors"].as_array().unwrap().iter();
        let mut told: Vec<&str> = errors.map(|error| error["pointer"].as_str().unwrap()).collect();
        told.sort_unstable();
        assert!(pointers.iter().all(|pointer| told.contains(pointer)), "{body}: {told:?}");
    }
}

#[tokio::test]
async fn private_addresses_are_refused_and_not_called_where_the_setting_is_off() {
    let t = with_plans().await;
    let receiver = Receiver::always(200).await;
    let webhook = t.add_webhook(&receiver.url, &["plan.changed"]).await;
    t.put_settings(json!({"allow_private_targets": false})).await.ok();
    t.set_plan("u", "pro").await.ok();
    let failed = newest(&t, &webhook, |newest| newest["last_error"] != Value::Null).await;
    assert_has(&failed, &json!({"state": "pending", "last_status": null}));
    assert!(failed["last_error"].as_str().unwrap().contains("allow_private_targets"), "{failed}");
    assert!(receiver.came().is_empty());
    for url in [
        receiver.url.as_str(),
        "http://169.254.169.254/latest/meta-data",
        "http://[::ffff:10.0.0.1]/",
        "http://2130706433/",
        "http://localhost:8080/",
    ] {
        let body = json!({"url": url, "events": ["plan.changed"]});
        let refused = t.post("/v1/admin/webhooks", &body).await.refused(400, "invalid_request");
        assert_eq!(refused.body["errors"][0]["pointer"], "/url", "{url}");
    }
    t.put(&path(&webhook, ""), &json!({"url": "http://10.0.0.1/"})).await.refused(400, "invalid_request");
    t.put_settings(json!({"allow_private_targets": true})).await.ok();
    receiver.wait_for(1).await;
}

#[tokio::test]
async fn a_receiver_that_is_gone_for_good_is_left_alone() {
    let t = with_plans().await;
    let receiver = Receiver::always(410).await;
    let webhook = t.add_webhook(&receiver.url, &["plan.changed"]).await;
    t.set_plan("u", "pro").await.ok();
    let dead = newest(&t, &webhook, |newest| newest["state"] == "dead").await;
    assert_has(&dead, &json!({"tries": 1, "last_status": 410, "next_try_at": null}));
    for _ in 0..200 {
        if t.get(&path(&webhook, "")).await.ok()["enabled"] == false {
            return;
        }
    }
    panic!("it is enabled");
}

#[tokio::test]
async fn messages_are_listed_page_by_page_newest_first() {
    let t = with_plans().await;
    let receiver = Receiver::always(200).await;
    let webhook = t.add_webhook(&receiver.url, &["plan.changed"]).await;
    for user in 0..7 {
        t.set_plan(&format!("u{user}"), "pro").await.ok();
    }
    receiver.wait_for(7).await;
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = t.get(&path(&webhook, &format!("/deliveries?limit=3{cursor}"))).await.ok();
        seen.extend(
            page["data"].as_array().unwrap().iter().map(|row| row["payload"]["data"]["user"].clone()),
        );
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(json!(seen), json!(["u6", "u5", "u4", "u3", "u2", "u1", "u0"]));
    newest(&t, &webhook, |newest| newest["state"] == "delivered").await;
    let dead = t.get(&path(&webhook, "/deliveries?state=dead")).await.ok();
    assert_eq!(dead, json!({"data": [], "next_cursor": null}));
    t.get(&path(&webhook, "/deliveries?state=lost")).await.refused(400, "invalid_request");
}

#[tokio::test]
async fn a_test_message_shows_whether_anything_arrives() {
    let t = with_plans().await;
    let receiver = Receiver::always(200).await;
    let webhook = t.add_webhook(&receiver.url, &["pool.closed"]).await;
    let told = t.post(&path(&webhook, "/test"), &json!({})).await;
    assert_eq!((told.status, &told.body["type"]), (202, &json!("webhook.test")), "{}", told.text);
    let came = receiver.wait_for(1).await;
    assert_eq!((types(&came), came[0].id()), (vec!["webhook.test"], told.body["id"].as_str().unwrap()));
}

#[tokio::test]
async fn nothing_is_sent_about_whoever_was_erased() {
    let t = with_plans().await;
    let receiver = Receiver::always(500).await;
    let webhook = t.add_webhook(&receiver.url, &["plan.changed"]).await;
    t.set_plan("gone", "pro").await.ok();
    t.set_plan("stays", "pro").await.ok();
    receiver.wait_for(2).await;
    t.erase("gone").await;
    let left = t.deliveries(&webhook).await;
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(left[0]["payload"]["data"]["user"], "stays");
}
