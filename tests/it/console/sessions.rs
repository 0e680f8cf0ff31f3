//! Sessions, forms and rights.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::json;

use super::browser::{Browser, form, links, mark};
use crate::harness::sheets::Sheet;
use crate::harness::{Reply, Tenant};

const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; \
    connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

fn assert_guarded(reply: &Reply, path: &str) {
    for (name, value) in [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "same-origin"),
    ] {
        assert_eq!(reply.header(name), Some(value), "{path}: {name}");
    }
    let caching = if path.contains("/assets/") { "no-cache" } else { "no-store" };
    assert_eq!(reply.header("cache-control"), Some(caching), "{path}");
    for inline in [" style=", "<style", " onclick=", "javascript:"] {
        assert!(!reply.text.contains(inline), "{path} has {inline}");
    }
    assert_eq!(
        reply.text.matches("<script").count(),
        reply.text.matches("<script type=\"module\" src=").count()
    );
}

/// All pages that links lead to, from the first one on.
async fn crawl(browser: &Browser) -> BTreeSet<String> {
    let mut found = BTreeSet::from(["/console".to_owned()]);
    let mut waiting: Vec<String> = found.iter().cloned().collect();
    while let Some(path) = waiting.pop() {
        let reply = browser.get(&path).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        if !path.contains(".csv") {
            assert_guarded(&reply, &path);
        }
        for link in links(&reply.text) {
            if found.insert(link.clone()) && found.len() < 300 {
                waiting.push(link);
            }
        }
    }
    found
}

async fn tenant() -> Tenant {
    let t = Tenant::with(Sheet::new().dr(50).mt(1_000_000).field("name", json!("Ours"))).await;
    t.put_user("u", json!({"plan": "p", "org": "acme", "signals": {"device": "d"}})).await.ok();
    t.spend("u", 100, 50).await;
    t
}

#[tokio::test]
async fn a_token_signs_in_and_the_cookie_tells_nothing() {
    let t = tenant().await;
    let browser = Browser::new(&t);
    let reply = browser.get("/console?cursor=x&y=%2F").await;
    assert_eq!(
        (reply.status, reply.header("location")),
        (303, Some("/console/sign-in?next=%2Fconsole%3Fcursor%3Dx%26y%3D%252F"))
    );
    let form = browser.page("/console/sign-in?next=%2Fconsole%2Fusers%2Fu").await;
    assert!(form.contains("value=\"/console/users/u\""), "{form}");
    let reply =
        browser.post("/console/sign-in", &[("credential", &t.token), ("next", "/console/users/u")]).await;
    assert_eq!((reply.status, reply.header("location")), (303, Some("/console/users/u")), "{}", reply.text);
    let cookie = reply.header("set-cookie").unwrap();
    assert!(cookie.ends_with("; Path=/console; Max-Age=1800; HttpOnly; SameSite=Strict"), "{cookie}");
    assert!(t.token.split('.').all(|part| !cookie.contains(part)), "{cookie}");
    assert!(browser.page("/console").await.contains(&t.id));
}

#[tokio::test]
async fn over_https_the_cookie_is_secure() {
    let t = tenant().await;
    let browser = Browser::new(&t);
    let request = browser.request(Method::POST, "/console/sign-in");
    let request = form(request, &[("credential", &t.token)]);
    let reply = browser
        .send(request.header("sec-fetch-site", "same-origin").header("x-forwarded-proto", "https"))
        .await;
    assert!(reply.header("set-cookie").unwrap().ends_with("; Secure"));
}

#[tokio::test]
async fn every_page_is_guarded_and_wants_a_session() {
    let t = tenant().await;
    let browser = Browser::signed_in(&t, &t.token).await;
    let pages = crawl(&browser).await;
    let stranger = Browser::new(&t);
    for path in pages.iter().filter(|path| !path.starts_with("/console/sign-")) {
        let reply = stranger.get(path).await;
        let wanted = if path.contains("/parts/") { 401 } else { 303 };
        assert_eq!(reply.status, wanted, "{path}");
        assert!(!reply.text.contains(&t.id), "{path}");
        assert_guarded(&reply, path);
    }
    for asset in ["console.css", "console.js", "forms.js", "live.js", "mark.svg"] {
        let path = format!("/console/assets/{asset}");
        let reply = stranger.get(&path).await;
        assert_eq!(reply.status, 200, "{path}");
        assert_guarded(&reply, &path);
        let again =
            stranger.request(Method::GET, &path).header("if-none-match", reply.header("etag").unwrap());
        assert_eq!(stranger.send(again).await.status, 304, "{path}");
    }
}

#[tokio::test]
async fn without_the_scope_or_with_nonsense_nobody_comes_in() {
    let t = tenant().await;
    let browser = Browser::new(&t);
    let user = t.token(&["--scope", "me", "--user", "u"]);
    let check = t.token(&["--scope", "check quota"]);
    let operator = t.server.office().mint_operator();
    for (credential, status) in
        [("", 400), ("x", 401), ("ap_x", 401), (&*user, 403), (&*check, 403), (&*operator, 403)]
    {
        let reply = browser.post("/console/sign-in", &[("credential", credential)]).await;
        assert_eq!(reply.status, status, "{credential}: {}", reply.text);
        assert_guarded(&reply, "/console/sign-in");
        assert!(reply.header("set-cookie").is_none() && reply.text.contains("role=\"alert\""));
        assert!(
            credential.is_empty() || !reply.text.contains(&format!("\"{credential}\"")),
            "it is not repeated"
        );
        let says_which = reply.text.contains("a token of the product, which the operator mints");
        assert_eq!(says_which, credential == operator, "{}", reply.text);
    }
    assert_eq!(browser.get("/console").await.status, 303);
}

#[tokio::test]
async fn forms_of_other_sites_and_other_sessions_do_nothing() {
    let t = tenant().await;
    let stranger = Browser::new(&t);
    let attempt = |origin: &str| {
        let request = stranger.request(Method::POST, "/console/sign-in");
        let request = form(request, &[("credential", &t.token)]);
        if origin.is_empty() { request } else { request.header("origin", origin) }
    };
    for origin in ["", "null", "https://evil.example"] {
        let reply = stranger.send(attempt(origin)).await;
        assert_eq!((reply.status, reply.header("set-cookie")), (403, None), "{origin}");
    }
    let cross = attempt(&t.url).header("sec-fetch-site", "cross-site");
    assert_eq!(stranger.send(cross).await.status, 403);
}

#[tokio::test]
async fn a_session_ends_with_its_key_with_the_sign_out_and_when_it_is_tampered_with() {
    let t = tenant().await;
    let key =
        t.post("/v1/admin/keys", &json!({"kind": "api", "name": "c", "scopes": ["admin:read"]})).await.ok();
    let browser = Browser::signed_in(&t, key["secret"].as_str().unwrap()).await;
    assert!(browser.page("/console").await.contains("read only"));
    let removed =
        t.send(t.request(Method::DELETE, &format!("/v1/admin/keys/{}", key["kid"].as_str().unwrap()))).await;
    assert_eq!(removed.status, 204);
    let reply = browser.get("/console").await;
    assert_eq!(reply.status, 303, "{}", reply.text);
    assert!(browser.cookie.lock().unwrap().is_none(), "the browser forgets it");

    let browser = Browser::signed_in(&t, &t.token).await;
    let cookie = browser.cookie.lock().unwrap().clone().unwrap();
    // Two browsers with the same cookie, of which one is a thief's.
    let thief = Browser::new(&t);
    *thief.cookie.lock().unwrap() = Some(cookie.clone());
    thief.page("/console").await;
    let reply = browser.post("/console/sign-out", &[]).await;
    assert_eq!((reply.status, reply.header("location")), (303, Some("/console/sign-in?out=yes")));
    assert_eq!(browser.get("/console").await.status, 303);
    assert_eq!(thief.get("/console").await.status, 303, "a copy of the cookie opens nothing");
    let (name, value) = cookie.split_once('=').unwrap();
    for broken in [&value[1..], &value[..value.len() - 2], "x", ""] {
        *browser.cookie.lock().unwrap() = Some(format!("{name}={broken}"));
        assert_eq!(browser.get("/console").await.status, 303, "{broken}");
    }
}

#[tokio::test]
async fn a_link_of_another_site_leads_to_the_page_of_whoever_is_signed_in() {
    let t = tenant().await;
    // The browser keeps the cookie back on its way from another site.
    let away = Browser::new(&t);
    let from_elsewhere =
        away.request(Method::GET, "/console/users/a%2Fb?cursor=%22").header("sec-fetch-site", "cross-site");
    let reply = away.send(from_elsewhere).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_guarded(&reply, "/console/users");
    assert!(
        reply.text.contains("http-equiv=\"refresh\" content=\"0; url=/console/users/a%2Fb?cursor=%22\""),
        "{}",
        reply.text
    );
    // Without a session it is the sign-in then.
    let again = away.request(Method::GET, "/console/users/a%2Fb").header("sec-fetch-site", "same-origin");
    assert_eq!(away.send(again).await.status, 303);
    assert_eq!(away.get("/console/").await.header("location"), Some("/console"));
}

#[tokio::test]
async fn a_session_is_as_good_on_every_node() {
    let Some(second) = crate::harness::Server::second() else { return };
    let t = tenant().await;
    let browser = Browser::signed_in(&t, &t.token).await;
    let mut there = Browser::new(&t);
    there.url = second.url.clone();
    *there.cookie.lock().unwrap() = browser.cookie.lock().unwrap().clone();
    assert!(there.page("/console").await.contains(&t.id));
}

#[tokio::test]
async fn marks_differ_from_session_to_session() {
    let t = tenant().await;
    let one = Browser::signed_in(&t, &t.token).await;
    let other = Browser::signed_in(&t, &t.token).await;
    let (one, other) =
        (mark(&one.page("/console/users/u/plan").await), mark(&other.page("/console/users/u/plan").await));
    assert!(one.len() >= 20 && one != other, "{one} {other}");
}
