//! The pages of plans and of capacity.

use serde_json::{Value, json};

use super::browser::Browser;
use crate::harness::Tenant;
use crate::harness::sheets::Sheet;

const EDIT: &str = "/console/plans/p/edit";

async fn tenant() -> (Tenant, Browser) {
    let t = Tenant::with(Sheet::new().rb(3, 3).dr(50).field("name", json!("Ours"))).await;
    t.put_user("u", json!({"plan": "p"})).await.ok();
    t.spend("u", 100, 50).await;
    let browser = Browser::signed_in(&t, &t.token).await;
    (t, browser)
}

async fn sheet(t: &Tenant) -> Value {
    t.get("/v1/admin/plans/p").await.ok()
}

/// The form as it comes, with these fields changed.
fn filled<'a>(html: &'a str, changes: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut fields = Vec::new();
    for input in html.split("<input ").skip(1) {
        let value = |name: &str| input.split(&format!("{name}=\"")).nth(1)?.split('"').next();
        let is_sent = !input.starts_with("type=\"checkbox\"");
        if let (Some(name), true) = (value("name"), is_sent) {
            fields.push((name, value(" value").unwrap_or_default()));
        }
    }
    fields.retain(|(name, _)| *name != "mark" && !changes.iter().any(|(changed, _)| changed == name));
    fields.extend(changes);
    fields
}

#[tokio::test]
async fn a_plan_is_changed_in_two_steps_and_what_is_not_on_the_form_stays() {
    let (t, browser) = tenant().await;
    let html = browser.page(EDIT).await;
    let before = sheet(&t).await;
    let changes = [("limits.1.limit", "80"), ("applies", "now"), ("to", "everyone"), ("reason", "more")];
    let asked = browser.submit(EDIT, &filled(&html, &[&changes[..], &[("do", "check")]].concat())).await;
    assert_eq!(asked.status, 200, "{}", asked.text);
    assert!(asked.text.contains("<strong>80 requests a day</strong>"), "{}", asked.text);
    assert_eq!(sheet(&t).await, before, "nothing was changed");

    let tried = browser.submit(EDIT, &filled(&html, &[&changes[..], &[("do", "preview")]].concat())).await;
    assert!(tried.status == 200 && tried.text.contains("What it would have done"), "{}", tried.text);

    let put = browser.submit(EDIT, &filled(&html, &[&changes[..], &[("do", "put")]].concat())).await;
    assert_eq!(
        (put.status, put.header("location")),
        (303, Some("/console/plans/p?done=saved")),
        "{}",
        put.text
    );
    let after = sheet(&t).await;
    assert_eq!(after["limits"][1]["limit"], 80);
    assert_eq!((&after["limits"][0], &after["name"]), (&before["limits"][0], &before["name"]));
    let version = before["version"].as_u64().unwrap();
    assert_eq!(after["version"], version + 1);

    // Whoever began from the version before is told that it has changed.
    let late = browser.submit(EDIT, &filled(&html, &[&changes[..], &[("do", "put")]].concat())).await;
    assert!(late.status == 412 && late.text.contains("changed the plan meanwhile"), "{}", late.text);

    let restore = format!("/console/plans/p/versions/{version}/restore");
    assert!(browser.page("/console/plans/p").await.contains(&restore));
    let fields = [("applies", "now"), ("to", "everyone"), ("reason", "back"), ("confirmed", "yes")];
    assert_eq!(browser.submit(&restore, &fields).await.status, 303);
    assert_eq!(sheet(&t).await["limits"], before["limits"]);
}

#[tokio::test]
async fn limits_come_and_go_and_faults_stand_at_the_field_that_was_meant() {
    let (t, browser) = tenant().await;
    let html = browser.page(EDIT).await;
    let changes = [
        ("limits.0.remove", "yes"),
        ("limits.1.limit", "none"),
        ("new.name", "tokens_per_week"),
        ("new.kind", "window"),
        ("new.meter", "total_tokens"),
        ("new.period", "week"),
        ("new.limit", "-1"),
        ("reason", "because"),
    ];
    let faulty = browser.submit(EDIT, &filled(&html, &changes)).await;
    assert_eq!(faulty.status, 400, "{}", faulty.text);
    let is_wrong = |field: &str| {
        let input = faulty.text.split(&format!("id=\"f-{field}\"")).nth(1).expect("the field is there");
        input[..input.find('>').unwrap()].contains("aria-invalid")
    };
    assert!(is_wrong("limits.1.limit") && is_wrong("new.limit"), "{}", faulty.text);
    assert!(!is_wrong("limits.0.capacity") && !is_wrong("new.name"), "{}", faulty.text);

    let good = [("limits.1.limit", "50"), ("new.limit", "7000"), ("applies", "now"), ("do", "put")];
    let kept = changes.into_iter().filter(|(name, _)| !good.iter().any(|(changed, _)| changed == name));
    let fields: Vec<_> = kept.chain(good).collect();
    let put = browser.submit(EDIT, &filled(&html, &fields)).await;
    assert_eq!(put.status, 303, "{}", put.text);
    let names: Vec<Value> =
        sheet(&t).await["limits"].as_array().unwrap().iter().map(|l| l["name"].clone()).collect();
    assert_eq!(names, ["requests_per_day", "tokens_per_week"]);
}

#[tokio::test]
async fn a_plan_that_does_not_fit_is_told_of() {
    let (_, browser) = tenant().await;
    let html = browser.page("/console/capacity?active.free=60&active.standard=20&active.pro=5").await;
    assert!(html.contains("It fits sustained"), "{html}");
    let html = browser.page("/console/capacity?active.free=60&active.standard=20&active.pro=9").await;
    assert!(html.contains("It does not fit") && html.contains("value=\"84000\""), "{html}");
    let reply = browser.get("/console/capacity?active.free=lots").await;
    assert!(reply.status == 400 && reply.text.contains("aria-invalid"), "{}", reply.text);
    assert_eq!(browser.get("/console/capacity?pool=nowhere").await.status, 400);
    assert_eq!(browser.get("/console/plans/nowhere").await.status, 404);
}

#[tokio::test]
async fn a_limit_is_narrowed_on_the_form() {
    let (t, browser) = tenant().await;
    let html = browser.page(EDIT).await;
    let changes = [
        ("limits.1.models", "opus*, sonnet"),
        ("limits.1.features", "chat"),
        ("limits.1.scope", "org"),
        ("reason", "dear models"),
        ("do", "put"),
    ];
    let put = browser.submit(EDIT, &filled(&html, &changes)).await;
    assert_eq!(put.status, 303, "{}", put.text);
    let limit = sheet(&t).await["limits"][1].clone();
    assert_eq!(
        (&limit["models"], &limit["features"], &limit["scope"]),
        (&json!(["opus*", "sonnet"]), &json!(["chat"]), &json!("org"))
    );
    let html = browser.page(EDIT).await;
    assert!(
        html.contains("value=\"opus*, sonnet\"") && html.contains("<option value=\"org\" selected>"),
        "{html}"
    );
    // Empty is everything again; a select is sent as well.
    let changes =
        [("limits.1.models", ""), ("limits.1.scope", "user"), ("reason", "all of them"), ("do", "put")];
    let put = browser.submit(EDIT, &filled(&html, &changes)).await;
    assert_eq!(put.status, 303, "{}", put.text);
    let limit = sheet(&t).await["limits"][1].clone();
    assert_eq!((limit.get("models"), limit.get("scope")), (None, None), "{limit}");
    let wrong = [("limits.1.models", "a, b**["), ("reason", "r"), ("do", "check")];
    let asked = browser.submit(EDIT, &filled(&browser.page(EDIT).await, &wrong)).await;
    let field = asked.text.split("id=\"f-limits.1.models\"").nth(1).unwrap();
    assert!(
        asked.status == 200 || field[..field.find('>').unwrap()].contains("aria-invalid"),
        "{}",
        asked.text
    );
}

#[tokio::test]
async fn other_rates_are_tried_on_the_page_of_capacity() {
    let (t, browser) = tenant().await;
    let pool = json!({"models": ["*"], "reason": "r", "limits": [
        {"name": "requests", "kind": "bucket", "meter": "requests", "vendor_limit": 100, "window_seconds": 60}]});
    t.put("/v1/admin/pools/default", &pool).await.ok();
    let before = sheet(&t).await;
    let page = "/console/capacity?pool=default&active.p=10";
    let html = browser.page(page).await;
    assert!(html.contains("name=\"rate.p.0.refill_per_minute\"") && html.contains("It fits"), "{html}");
    let tried = browser.page(&format!("{page}&rate.p.0.refill_per_minute=300&rate.p.1.limit=500000")).await;
    assert!(tried.contains("Other rates are tried") && tried.contains("does not fit"), "{tried}");
    let wrong = browser.get(&format!("{page}&rate.p.0.refill_per_minute=lots")).await;
    let field = wrong.text.split("id=\"f-rate.p.0.refill_per_minute\"").nth(1).unwrap();
    assert!(
        wrong.status == 400 && field[..field.find('>').unwrap()].contains("aria-invalid"),
        "{}",
        wrong.text
    );
    assert_eq!(sheet(&t).await, before, "nothing was saved");
}
