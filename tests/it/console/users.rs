//! The pages of users: what is changed there, and what people wrote.

use serde_json::json;

use super::browser::{Browser, encode};
use crate::harness::Tenant;
use crate::harness::sheets::Sheet;

async fn tenant() -> (Tenant, Browser) {
    let t = Tenant::with(Sheet::new().dr(50).mt(1_000_000)).await;
    t.spend("u", 100, 50).await;
    let browser = Browser::signed_in(&t, &t.token).await;
    (t, browser)
}

/// Names that have made others trip.
fn names() -> Vec<String> {
    let odd = [
        "<script>alert(1)</script>",
        "\"><img src=x onerror=alert(1)>",
        "a/b?c=d&e#f",
        "%2e%2e",
        "{}",
        "مستخدم",
        "'\"&",
    ];
    odd.into_iter().map(str::to_owned).chain(["x".repeat(256), "é".repeat(128)]).collect()
}

fn path(user: &str) -> String {
    format!("/console/users/{}", encode(user))
}

#[tokio::test]
async fn what_people_write_stays_text_on_every_page() {
    let (t, browser) = tenant().await;
    let reason = "<b onclick=alert(1)>why</b>";
    for name in names() {
        let record = json!({"verified": true, "reason": reason, "signals": {"device": reason}});
        t.put(&format!("/v1/admin/users/{}", encode(&name)), &record).await.ok();
        t.spend(&name, 100, 50).await;
        t.ask(&name, 5_000_000, 0).await;
        let mut pages = vec![path(&name)];
        pages.extend(
            ["why", "plan", "override", "grant", "suspend", "erase"]
                .map(|page| format!("{}/{page}", path(&name))),
        );
        for page in pages {
            let html = browser.page(&page).await;
            let shown = name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            let plain = html.replace("&#39;", "'").replace("&quot;", "\"").replace("&#34;", "\"");
            let plain = plain.replace("&#38;", "&amp;").replace("&#60;", "&lt;").replace("&#62;", "&gt;");
            assert!(plain.contains(&shown), "{page} does not show {name}");
            for markup in ["<script>alert", "<img src=x", "<b onclick"] {
                assert!(!html.contains(markup), "{page} has {markup}");
            }
        }
    }
    for page in [
        "/console",
        "/console?whole=yes",
        "/console/users",
        "/console/consumers?whole=yes",
        "/console/parts/consumers",
    ] {
        let html = browser.page(page).await;
        for markup in ["<script>alert", "<img src=x", "<b onclick"] {
            assert!(!html.contains(markup), "{page} has {markup}");
        }
    }
}

#[tokio::test]
async fn a_change_is_shown_before_it_is_made_and_made_once_it_is_meant() {
    let (t, browser) = tenant().await;
    t.plan(&Sheet::named("big").dr(500).mt(9_000_000)).await;
    t.put_user("u", json!({"plan": "p", "reason": "begin"})).await.ok();
    let fields = [("plan", "big"), ("effective", "now"), ("reason", "they paid")];
    let asked = browser.submit("/console/users/u/plan", &fields).await;
    assert_eq!(asked.status, 200, "{}", asked.text);
    assert!(asked.text.contains("What will change") && asked.text.contains("500"), "{}", asked.text);
    assert_eq!(t.get("/v1/admin/users/u").await.ok()["plan"]["id"], "p", "nothing was changed");

    let meant = [&fields[..], &[("confirmed", "yes")]].concat();
    let done = browser.submit("/console/users/u/plan", &meant).await;
    assert_eq!(
        (done.status, done.header("location")),
        (303, Some("/console/users/u?done=saved")),
        "{}",
        done.text
    );
    assert_eq!(t.get("/v1/admin/users/u").await.ok()["plan"]["id"], "big");
}

fn told(page: &str) -> String {
    let after = page.split("name=\"told\" value=\"").nth(1).expect("a page that asks");
    after.split('"').next().unwrap().to_owned()
}

#[tokio::test]
async fn what_has_changed_since_somebody_looked_is_asked_anew() {
    let (t, browser) = tenant().await;
    t.put_user("u", json!({"plan": "p", "reason": "begin"})).await.ok();
    // Two who look at the same time, and both mean it.
    let page = "/console/users/u/suspend";
    let one = told(&browser.submit(page, &[("reason", "a")]).await.text);
    let other = told(&browser.submit(page, &[("reason", "b")]).await.text);
    let confirm = |told: String, reason: &'static str| {
        let browser = &browser;
        async move { browser.submit(page, &[("reason", reason), ("told", &told), ("confirmed", "yes")]).await }
    };
    assert_eq!(confirm(one, "a").await.status, 303);
    let anew = confirm(other, "b").await;
    assert!(anew.status == 200 && anew.text.contains("changed since you looked"), "{}", anew.text);
    assert_eq!(t.get("/v1/admin/users/u").await.ok()["suspended"], true);
    // Meant all the same.
    assert_eq!(confirm(told(&anew.text), "c").await.status, 303);
    assert_eq!(t.get("/v1/admin/users/u").await.ok()["suspended"], false);
}

#[tokio::test]
async fn what_is_missing_or_no_figure_is_said_before_anybody_is_asked() {
    let (t, browser) = tenant().await;
    t.put_user("u", json!({"plan": "p", "reason": "begin"})).await.ok();
    let at = [("plan", "p"), ("effective", "at"), ("time", ""), ("reason", "r")];
    let grant = |amount: &'static str, until: &'static str, reason: &'static str| {
        [("limit", "mt"), ("amount", amount), ("expires_at", until), ("reason", reason)]
    };
    for (page, field, fields) in [
        ("plan", "time", at),
        ("grant", "amount", grant("-1", "", "r")),
        ("grant", "amount", grant("", "", "r")),
        ("grant", "expires_at", grant("1", "garbage", "r")),
        ("grant", "reason", grant("1", "", "")),
    ] {
        let page = format!("/console/users/u/{page}");
        let reply = browser.submit(&page, &fields).await;
        let input = reply.text.split(&format!("id=\"f-{field}\"")).nth(1).unwrap_or_default();
        let input = &input[..input.find('>').unwrap_or_default()];
        assert!(reply.status == 400 && input.contains("aria-invalid"), "{page}: {}", reply.text);
    }
    // Whoever confirms without having been asked changes nothing either.
    let sent = [&at[..], &[("confirmed", "yes")]].concat();
    assert_eq!(browser.submit("/console/users/u/plan", &sent).await.status, 400);
    // Back from the question, the form is as it was.
    let sent = [("limit", "mt"), ("amount", "77"), ("reason", "for the outage"), ("back", "yes")];
    let back = browser.submit("/console/users/u/grant", &sent).await;
    assert!(
        back.text.contains("value=\"77\"") && back.text.contains("value=\"for the outage\""),
        "{}",
        back.text
    );
}

#[tokio::test]
async fn what_the_api_finds_wrong_stands_at_its_field() {
    let (t, browser) = tenant().await;
    t.put_user("u", json!({"plan": "p", "reason": "begin"})).await.ok();
    let sent = [("limit", "dr"), ("number", "many"), ("reason", ""), ("confirmed", "yes")];
    let reply = browser.submit("/console/users/u/override", &sent).await;
    assert_eq!(reply.status, 400, "{}", reply.text);
    for field in ["number", "reason"] {
        let input = reply.text.split(&format!("id=\"f-{field}\"")).nth(1).unwrap();
        assert!(
            input[..input.find('>').unwrap()].contains("aria-invalid=\"true\""),
            "{field}: {}",
            reply.text
        );
    }
    assert!(reply.text.contains("value=\"many\""), "what was written is still there");
}

#[tokio::test]
async fn who_may_only_read_sees_no_way_to_change_and_has_none() {
    let (t, _) = tenant().await;
    t.put_user("u", json!({"plan": "p", "reason": "begin"})).await.ok();
    let browser = Browser::signed_in(&t, &t.token(&["--scope", "admin:read"])).await;
    let page = browser.page("/console/users/u").await;
    assert!(!page.contains("Change plan") && page.contains("scope <code>quota</code>"), "{page}");
    for page in ["plan", "override", "grant", "suspend", "erase"] {
        let form = browser.get(&format!("/console/users/u/{page}")).await;
        assert!(form.status == 403 && form.text.contains("admin:write"), "{page}: {}", form.text);
        assert!(form.text.contains("Signed in") || form.text.contains("read only"), "{page}: {}", form.text);
    }
    let sent = [("reason", "because"), ("confirmed", "yes")];
    let reply = browser.post("/console/users/u/suspend", &sent).await;
    assert_eq!(reply.status, 403, "{}", reply.text);
    assert_eq!(t.get("/v1/admin/users/u").await.ok()["suspended"], false);
}

#[tokio::test]
async fn forms_without_their_sessions_mark_do_nothing() {
    let (t, browser) = tenant().await;
    t.put_user("u", json!({"plan": "p", "reason": "begin"})).await.ok();
    let other = Browser::signed_in(&t, &t.token).await;
    let foreign = super::browser::mark(&other.page("/console/users/u/suspend").await);
    assert!(foreign.len() > 20);
    for mark in ["", "x", &foreign] {
        let sent = [("reason", "because"), ("confirmed", "yes"), ("mark", mark)];
        assert_eq!(browser.post("/console/users/u/suspend", &sent).await.status, 403, "{mark}");
    }
    assert_eq!(t.get("/v1/admin/users/u").await.ok()["suspended"], false);
    // A session that is over leads to the sign-in, and nothing is done.
    *browser.cookie.lock().unwrap() = None;
    let reply =
        browser.post("/console/users/u/suspend", &[("reason", "because"), ("confirmed", "yes")]).await;
    assert_eq!(reply.header("location"), Some("/console/sign-in?next=%2Fconsole%2Fusers%2Fu%2Fsuspend"));
}

#[tokio::test]
async fn nothing_of_another_product_is_shown() {
    let (t, _) = tenant().await;
    let record = json!({"plan": "p", "reason": "secret_reason"});
    t.put("/v1/admin/users/secret_user", &record).await.ok();
    let other = Tenant::with(Sheet::new().dr(50)).await;
    let browser = Browser::signed_in(&other, &other.token).await;
    for page in
        ["/console?whole=yes", "/console/users", "/console/users?q=secret", "/console/consumers?whole=yes"]
    {
        let html = browser.page(page).await;
        assert!(
            !html.contains("secret_user") && !html.contains("secret_reason") && !html.contains(&t.id),
            "{page}"
        );
    }
    assert!(browser.page("/console/users/secret_user").await.contains("not on record"));
}

#[tokio::test]
async fn refusals_are_explained_and_the_file_for_spreadsheets_is_the_apis() {
    let (t, browser) = tenant().await;
    t.ask("u", 2_000_000, 0).await;
    t.put("/v1/admin/users/u", &json!({"suspended": true, "reason": "for a while"})).await.ok();
    t.ask("u", 1, 1).await;
    let why = browser.page("/console/users/u/why").await;
    assert!(why.contains("user_suspended") && why.contains("for a while"), "{why}");
    let at = browser.get("/console/users/u/why?at=soon").await;
    assert!(at.status == 200 && at.text.contains("role=\"alert\""), "{}", at.text);
    let csv = browser.get("/console/consumers.csv?span=30").await;
    assert!(csv.header("content-type").unwrap().starts_with("text/csv"), "{:?}", csv.headers);
    assert!(csv.text.contains("\nu,") || csv.text.contains(",u,"), "{}", csv.text);
}

/// What the hidden field of that name holds.
fn hidden(page: &str, name: &str) -> String {
    let after = page.split(&format!("name=\"{name}\" value=\"")).nth(1).expect("a field");
    after.split('"').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_form_that_is_sent_twice_gives_once() {
    let (t, browser) = tenant().await;
    t.put_user("u", json!({"plan": "p", "reason": "begin"})).await.ok();
    let page = "/console/users/u/grant";
    let sent = [("limit", "tokens_per_month"), ("amount", "77"), ("reason", "for the outage")];
    let asked = browser.submit(page, &sent).await.text;
    let (told, once) = (told(&asked), hidden(&asked, "once"));
    let meant = [&sent[..], &[("told", &*told), ("once", &*once), ("confirmed", "yes")]].concat();
    for _ in 0..2 {
        let done = browser.submit(page, &meant).await;
        assert_eq!((done.status, done.header("location")), (303, Some("/console/users/u?done=saved")));
    }
    let grants = t.get("/v1/admin/users/u").await.ok()["grants"].clone();
    assert_eq!(grants.as_array().map(Vec::len), Some(1), "{grants}");
    // Who is asked again, and means it again, gives again.
    assert_ne!(hidden(&browser.submit(page, &sent).await.text, "once"), once);
}

#[tokio::test]
async fn an_override_is_changed_from_what_it_is() {
    let (t, browser) = tenant().await;
    t.put_user("u", json!({"plan": "p", "zone": "Asia/Tokyo", "reason": "begin"})).await.ok();
    let page = "/console/users/u/override?limit=requests_per_day";
    let field =
        |html: &str, name: &str| hidden(&html.replace("type=\"text\" inputmode=\"numeric\" ", ""), name);
    assert_eq!(field(&browser.page(page).await, "number"), "50", "the plan's own, where there is none yet");
    let put = json!({"overrides": {"requests_per_day": {"limit": 70}}, "expires_at": "2026-03-11T00:00:00Z", "reason": "r"});
    t.put("/v1/admin/users/u/overrides", &put).await.ok();
    let html = browser.page(page).await;
    assert_eq!(field(&html, "number"), "70");
    assert!(html.contains("value=\"2026-03-11T09:00:00\""), "in the user's zone: {html}");
}
