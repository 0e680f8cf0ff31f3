//! The pages of holds in doubt, make-goods, webhooks, duplicates and the audit.

use serde_json::json;

use super::browser::Browser;
use crate::harness::sheets::Sheet;
use crate::harness::{Receiver, Tenant};

const DATE: &str = "2026-03-10";

async fn tenant() -> (Tenant, Browser) {
    let t = Tenant::with(Sheet::new().mt(10_000).dr(50)).await;
    let browser = Browser::signed_in(&t, &t.token).await;
    (t, browser)
}

/// A call whose lease has ended; gives the hold and the address of its page.
async fn doubt(t: &Tenant, browser: &Browser, user: &str) -> (String, String) {
    let hold = t
        .check(json!({"user": user, "feature": "chat", "input_tokens": 300, "max_output_tokens": 40,
        "lease_seconds": 60}))
        .await
        .hold_id();
    t.extend(&hold, json!({"lease_seconds": 60, "output_tokens_so_far": 25})).await.ok();
    t.pass(61_000).await;
    let list = browser.page("/console/doubts").await;
    let link = list.split(&format!("/console/doubts/{hold}?")).nth(1).expect("it is in the list");
    let query = link.split('"').next().unwrap().replace("&amp;", "&").replace("&#38;", "&");
    (hold.clone(), format!("/console/doubts/{hold}?{query}"))
}

/// A form in both of its steps.
async fn twice(browser: &Browser, path: &str, fields: &[(&str, &str)]) -> String {
    let with_mark = |html: &str, more: &[(&'static str, &'static str)]| {
        let mut all: Vec<(String, String)> =
            fields.iter().chain(more).map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        all.push(("mark".into(), super::browser::mark(html)));
        all
    };
    let form = browser.page(path).await;
    let send = async |fields: Vec<(String, String)>| {
        let pairs: Vec<(&str, &str)> = fields.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        browser.post(path, &pairs).await
    };
    let asked = send(with_mark(&form, &[])).await;
    assert_eq!(asked.status, 200, "{}", asked.text);
    let done = send(with_mark(&form, &[("confirmed", "yes")])).await;
    assert_eq!(done.status, 303, "{}", done.text);
    asked.text
}

#[tokio::test]
async fn a_hold_in_doubt_is_looked_at_and_resolved() {
    let (t, browser) = tenant().await;
    let (hold, path) = doubt(&t, &browser, "a/b?c&d").await;
    let page = browser.page(&path).await;
    assert!(page.contains("reported 25 output tokens"), "{page}");
    let resolve = path.replace('?', "/resolve?");
    let figures =
        [("action", "settle"), ("input_tokens", "300"), ("output_tokens", "31"), ("reason", "bill")];
    let asked = twice(&browser, &resolve, &figures).await;
    assert!(asked.contains("300 held") && asked.contains("<strong>31 charged</strong>"), "{asked}");
    let settled = t.get(&format!("/v1/holds/{hold}")).await.ok();
    assert_eq!(
        (&settled["hold"]["state"], &settled["hold"]["counted"]["total_tokens"]),
        (&json!("settled"), &json!(331))
    );
    assert!(browser.page("/console/doubts").await.contains("Nothing is in doubt"));
    assert_eq!(browser.get(&path).await.status, 404);
    assert!(browser.page("/console/audit?target=").await.contains("bill"));
}

#[tokio::test]
async fn what_is_wrong_with_a_resolution_stands_at_its_field() {
    let (t, browser) = tenant().await;
    let (_, path) = doubt(&t, &browser, "u").await;
    let resolve = path.replace('?', "/resolve?");
    let mark = super::browser::mark(&browser.page(&resolve).await);
    let fields =
        [("action", "settle"), ("input_tokens", "x"), ("reason", "r"), ("confirmed", "yes"), ("mark", &mark)];
    let reply = browser.post(&resolve, &fields).await;
    assert_eq!(reply.status, 400, "{}", reply.text);
    assert!(
        reply.text.contains("Input tokens must be") && reply.text.contains("Output tokens is required"),
        "{}",
        reply.text
    );
}

#[tokio::test]
async fn all_holds_that_fit_are_resolved_at_once_and_first_it_is_told_how_many() {
    let (t, browser) = tenant().await;
    doubt(&t, &browser, "u").await;
    doubt(&t, &browser, "u").await;
    doubt(&t, &browser, "other").await;
    let fields = [("action", "release"), ("user", "u"), ("reason", "the vendor was down")];
    let asked = twice(&browser, "/console/doubts/all/resolve", &fields).await;
    assert!(asked.contains("2 holds: 600 input and 80 output tokens come back."), "{asked}");
    let left = t.get("/v1/admin/holds").await.ok();
    assert_eq!((left["data"].as_array().unwrap().len(), &left["data"][0]["user"]), (1, &json!("other")));
}

#[tokio::test]
async fn it_is_made_good_to_many_after_a_look_and_taken_back() {
    let (t, browser) = tenant().await;
    for user in ["u", "v", "w"] {
        t.put_user(user, json!({"plan": "p"})).await.ok();
    }
    let fields = [
        ("id", "outage"),
        ("ids", "u\nv\n"),
        ("what", "grant"),
        ("limit", "tokens_per_month"),
        ("amount", "500"),
        ("reason", "the outage"),
    ];
    let asked = twice(&browser, "/console/make-goods/new", &fields).await;
    assert!(asked.contains("2 of them get it, 1,000 in all; 0 are left out."), "{asked}");
    assert_eq!(t.remaining("u", "tokens_per_month").await, 10_500);
    assert_eq!(t.remaining("w", "tokens_per_month").await, 10_000);
    let list = browser.page("/console/make-goods").await;
    assert!(list.contains("2 named one by one") && list.contains("the outage"), "{list}");
    twice(&browser, "/console/make-goods/outage/undo", &[("reason", "twice")]).await;
    assert_eq!(t.remaining("u", "tokens_per_month").await, 10_000);
    assert!(browser.page("/console/make-goods").await.contains("taken back"));

    let wrong = [("id", "x"), ("what", "reset"), ("limit", ""), ("refused_from", DATE), ("reason", "r")];
    let reply = browser.submit("/console/make-goods/new", &wrong).await;
    assert_eq!(reply.status, 400, "{}", reply.text);
    assert!(reply.text.contains("aria-invalid"), "{}", reply.text);
}

#[tokio::test]
async fn messages_to_a_webhook_are_shown_and_sent_again() {
    let (t, browser) = tenant().await;
    assert!(browser.page("/console/webhooks").await.contains("No webhook yet"));
    let receiver = Receiver::always(204).await;
    let webhook = t.add_webhook(&receiver.url, &["plan.changed"]).await;
    let path = format!("/console/webhooks/{}", webhook["id"].as_str().unwrap());
    assert!(browser.page("/console/webhooks").await.contains(&path));
    let sent = browser.submit(&path, &[]).await;
    assert_eq!((sent.status, sent.header("location")), (303, Some(&*format!("{path}?done=sent"))));
    let message = receiver.wait_for(1).await[0].id().to_owned();
    let mut page = String::new();
    for _ in 0..200 {
        page = browser.page(&format!("{path}?state=delivered")).await;
        if page.contains(&message) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(page.contains("webhook.test") && page.contains(&message), "{page}");
    assert_eq!(browser.submit(&path, &[("message", &message)]).await.status, 303);
    assert_eq!(receiver.wait_for(2).await[1].id(), message);
    assert_eq!(browser.get(&format!("{path}?state=lost")).await.status, 400);
    assert_eq!(browser.submit(&path, &[("message", "msg_0")]).await.status, 404);
}

#[tokio::test]
async fn users_who_share_something_are_shown_with_what_they_used() {
    let (t, browser) = tenant().await;
    for user in ["u", "<b>v</b>"] {
        t.put_user(user, json!({"plan": "p", "signals": {"device": "d-1"}})).await.ok();
        t.spend(user, 100, 50).await;
    }
    let page = browser.page("/console/duplicates").await;
    assert!(page.contains("d-1") && page.contains(">300<") && page.contains("&lt;b&gt;v"), "{page}");
    assert!(browser.page("/console/duplicates?signal=address").await.contains("No two users"));
    assert_eq!(browser.get("/console/duplicates?from=soon").await.status, 400);
}

#[tokio::test]
async fn the_audit_shows_what_stood_there_before_and_after() {
    let (t, browser) = tenant().await;
    t.put("/v1/admin/users/u", &json!({"plan": "p", "reason": "<script>"})).await.ok();
    let page = browser.page("/console/audit?target=u").await;
    assert!(page.contains("/console/users/u") && page.contains("&#60;script&#62;"), "{page}");
    assert!(page.contains("Before and after") && !page.contains("New version of plan"), "{page}");
    assert!(browser.page("/console/audit?by=nobody").await.contains("Nothing was changed that fits"));
}

#[tokio::test]
async fn whoever_may_only_read_sees_no_way_to_change_anything() {
    let (t, browser) = tenant().await;
    let (_, path) = doubt(&t, &browser, "u").await;
    let reader = Browser::signed_in(&t, &t.token(&["--scope", "admin:read"])).await;
    for page in ["/console/doubts", &path, "/console/make-goods", "/console/webhooks"] {
        let html = reader.page(page).await;
        assert!(!html.contains("Resolve") && !html.contains("make-goods/new"), "{page}");
    }
    let reply = reader.post(&path.replace('?', "/resolve?"), &[("action", "charge")]).await;
    assert_eq!(reply.status, 403, "{}", reply.text);
}
