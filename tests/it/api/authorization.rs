//! Every operation of the API description, tried by every kind of caller.
//!
//! Nobody has to remember to list a new route here: it is described, or the test of the
//! description fails; and what is described is tried.

pub mod callers;
pub mod operations;

use reqwest::Method;
use serde_json::{Value, json};

use self::callers::{Caller, Standing, everybody};
use self::operations::{Names, Operation};
use crate::harness::sheets::Sheet;
use crate::harness::signer::Signer;
use crate::harness::{Client, Tenant};

/// A tenant that somebody might be after, with something of everything.
async fn target() -> (Tenant, Names) {
    let t = Tenant::with(Sheet::new().dr(50).mt(1_000_000).field("name", json!("secret_plan"))).await;
    let hold =
        t.check(json!({"user": "u", "request_id": "secret_request", "feature": "secret_feature"})).await;
    t.put_user("u", json!({"plan": "p", "org": "acme", "signals": {"device": "secret_device"}})).await.ok();
    let kid = Signer::registered("EdDSA", &t, &["check"]).await.kid;
    let names = Names { hold: hold.hold_id(), kid };
    (t, names)
}

async fn described(t: &Tenant, names: &Names) -> (Value, Vec<Operation>) {
    let document = t.get("/openapi.json").await.ok();
    let operations = operations::all(&document, names);
    assert!(operations.len() > 30, "{} operations are no API", operations.len());
    (document, operations)
}

/// Status, code and text; of a stream that does not end by itself, only its beginning.
async fn answer(request: reqwest::RequestBuilder) -> (u16, String, String) {
    let response = request.send().await.expect("the service answers");
    let status = response.status().as_u16();
    let content_type = response.headers().get("content-type").map(|value| value.to_str().unwrap().to_owned());
    if content_type.is_some_and(|kind| kind.starts_with("text/event-stream")) {
        return (status, String::new(), String::new());
    }
    let text = response.text().await.expect("a body that ends");
    let body: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    (status, body["code"].as_str().unwrap_or_default().to_owned(), text)
}

/// Everything that an admin can read, to see whether anything has changed.
async fn snapshot(t: &Tenant, operations: &[Operation]) -> Vec<(String, String)> {
    let mut pages = Vec::new();
    let readable = |op: &&Operation| op.method == Method::GET && op.admits("check quota admin:read");
    for operation in operations.iter().filter(readable) {
        let (status, _, text) = answer(operation.request(t, Some(&t.token), None)).await;
        pages.push((operation.to_string(), format!("{status} {text}")));
    }
    assert!(pages.len() > 10, "{} pages are no picture", pages.len());
    pages
}

fn expected(operation: &Operation, caller: &Caller) -> Option<(u16, &'static str)> {
    match &caller.standing {
        _ if operation.is_public() => None,
        Standing::Stranger => Some((401, "unauthenticated")),
        Standing::Suspended => Some((403, "tenant_suspended")),
        Standing::Known(scopes) => (!operation.admits(scopes)).then_some((403, "forbidden")),
    }
}

#[tokio::test]
async fn every_operation_admits_whom_it_says_and_nobody_else() {
    let (t, names) = target().await;
    let other = Tenant::with(Sheet::new()).await;
    let (_, operations) = described(&t, &names).await;
    let callers = everybody(&t, &other).await;
    let before = snapshot(&t, &operations).await;
    let mut tried = 0;
    let mut wrong = Vec::new();
    let pairs = || operations.iter().flat_map(|op| callers.iter().map(move |caller| (op, caller)));
    for (operation, caller) in pairs() {
        let Some((status, code)) = expected(operation, caller) else { continue };
        // With a good body: if anybody came in, it would be seen below.
        let request = operation.request(&t, caller.token.as_deref(), operation.body.as_ref());
        let (got, got_code, _) = answer(request).await;
        tried += 1;
        if (got, got_code.as_str()) != (status, code) {
            wrong.push(format!("{operation}: {} got {got} {got_code}, not {status} {code}", caller.name));
        }
    }
    assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(snapshot(&t, &operations).await, before, "who is refused changes nothing");

    // The others come in. What they then hear about their empty body is no matter of who they
    // are; what could be removed is nobody's.
    let nobodys = Names { hold: names.hold.clone(), kid: "nokey".into() };
    let (_, operations) = described(&t, &nobodys).await;
    let pairs = || operations.iter().flat_map(|op| callers.iter().map(move |caller| (op, caller)));
    for (operation, caller) in pairs().filter(|(operation, caller)| expected(operation, caller).is_none()) {
        let body = operation.body.as_ref().map(|_| json!({}));
        let (got, code, text) = answer(operation.request(&t, caller.token.as_deref(), body.as_ref())).await;
        tried += 1;
        let refused = ["unauthenticated", "forbidden", "tenant_suspended"].contains(&code.as_str());
        if got == 401 || refused || got == 405 || got >= 500 {
            wrong.push(format!("{operation}: {} got {got} {text}", caller.name));
        }
    }
    assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
    println!("{} operations x {} callers: {tried} pairs", operations.len(), callers.len());
    assert_eq!(tried, operations.len() * callers.len());
}

#[tokio::test]
async fn nothing_is_served_that_is_not_described() {
    let (t, names) = target().await;
    let (document, operations) = described(&t, &names).await;
    for (template, item) in document["paths"].as_object().unwrap() {
        let mut described: Vec<String> = item.as_object().unwrap().keys().map(|m| m.to_uppercase()).collect();
        if described.contains(&"GET".to_owned()) {
            described.push("HEAD".into());
        }
        described.sort();
        let path = &operations.iter().find(|op| op.template == *template).unwrap().path;
        let reply = t.send(t.request(Method::TRACE, path)).await.refused(405, "method_not_allowed");
        let allow = reply.header("allow").unwrap_or_default();
        let mut served: Vec<String> = allow.split(", ").map(str::to_owned).collect();
        served.sort();
        assert_eq!(served, described, "{template}");
    }
    // What is nowhere is shown to nobody who has no business here.
    let stranger = Client::new(&t.url, "garbage");
    stranger.get("/v1/nowhere").await.refused(401, "unauthenticated");
    t.get("/v1/nowhere").await.refused(404, "not_found");
}

#[tokio::test]
async fn another_tenants_credentials_find_nothing_and_change_nothing() {
    let (t, names) = target().await;
    let other = Tenant::with(Sheet::named("theirs").dr(5)).await;
    let (_, operations) = described(&t, &names).await;
    let (_, api_key) = callers::api_key(&other, &["check", "quota", "admin:write"]).await;
    let user = other.token(&["--user", "u"]);
    let before = snapshot(&t, &operations).await;
    for (name, token) in [("a token", &other.token), ("an API key", &api_key), ("a user", &user)] {
        for operation in operations.iter().filter(|operation| !operation.is_public()) {
            let (status, code, text) =
                answer(operation.request(&other, Some(token), operation.body.as_ref())).await;
            assert!(!text.contains("secret_"), "{operation} shows {name} what is not theirs: {text}");
            assert!(!text.contains(&names.kid), "{operation} shows {name} a key that is not theirs: {text}");
            if operation.names_a_secret() {
                let not_there = [(404, "not_found"), (403, "forbidden"), (400, "invalid_request")];
                assert!(not_there.contains(&(status, &code)), "{operation} by {name}: {status} {text}");
            }
        }
    }
    for body in [json!({"input_tokens": 1, "output_tokens": 1}), json!({"usage": "unknown"})] {
        other.settle(&names.hold, body.clone()).await.refused(404, "not_found");
        let mut item = body;
        item["id"] = json!(names.hold);
        let batch = other.settle_batch(&[item]).await.ok();
        assert_eq!(batch["results"][0]["status"], 404, "{batch}");
    }
    other.release(&names.hold).await.refused(404, "not_found");
    other.extend(&names.hold, json!({"lease_seconds": 60})).await.refused(404, "not_found");
    other.hold(&names.hold).await.refused(404, "not_found");
    other.hold_by_request("u", "secret_request").await.refused(404, "not_found");
    let key = format!("/v1/admin/keys/{}", names.kid);
    other.send(other.request(Method::DELETE, &key)).await.refused(404, "not_found");
    assert_eq!(snapshot(&t, &operations).await, before);
    t.finish(&names.hold, 1, 1).await.ok();
}

#[tokio::test]
async fn operators_see_no_tenants_figures() {
    let (t, names) = target().await;
    let (_, operations) = described(&t, &names).await;
    let operator = t.operator();
    for operation in operations.iter().filter(|op| !op.is_public() && !op.admits("operator")) {
        let (status, code, _) = answer(operation.request(&t, Some(&operator.token), None)).await;
        assert_eq!((status, code.as_str()), (403, "forbidden"), "{operation}");
    }
    assert!(!operator.get("/v1/operator/tenants").await.text.contains("secret_"));
}
