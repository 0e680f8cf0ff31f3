//! Whatever is sent: the right 4xx, nothing changed, never a 500.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::sheets::Sheet;
use crate::harness::{Server, Tenant};

const TOO_LARGE: &str = "9007199254740992";

/// Bodies that are no check, whatever the plan.
fn bad_checks() -> Vec<Vec<u8>> {
    let long = "x".repeat(300);
    let mut bodies: Vec<Vec<u8>> = [
        "",
        "{",
        "{\"user\":\"u\"",
        "{\"user\":\"u\"}}",
        "{\"user\":\"u\"} x",
        "[]",
        "null",
        "\"u\"",
        "7",
        "nonsense",
        "{\"user\":\"u\",}",
        "{'user':'u'}",
        "{\"user\":\"u\",\"input_tokens\":NaN}",
        "{\"user\":\"u\",\"input_tokens\":Infinity}",
        "{\"user\":\"u\",\"input_tokens\":01}",
        "{\"user\":\"u\",\"user\":\"v\"}",
        "{\"user\":\"u\",\"input_tokens\":1,\"input_tokens\":1}",
        "{\"user\":\"u\",\"amounts\":{\"a\":1,\"a\":1}}",
        "{}",
        "{\"User\":\"u\"}",
        "{\"user\":\"\\ud800\"}",
        "{\"user\":\"u\\u0000\"}",
        "\u{feff}{}",
    ]
    .iter()
    .map(|b| b.as_bytes().to_vec())
    .collect();
    bodies.push(b"{\"user\":\"\xff\xfe\"}".to_vec());
    bodies.push([b"[".repeat(2000), b"]".repeat(2000)].concat());
    bodies.push([b"{\"user\":".repeat(500), b"1".to_vec(), b"}".repeat(500)].concat());
    for user in [
        "7",
        "null",
        "true",
        "[]",
        "{}",
        "\"\"",
        "\" u\"",
        "\"u \"",
        "\"\\t\"",
        "\"a\\u200bb\"",
        "\".\"",
        "\"..\"",
    ] {
        bodies.push(format!("{{\"user\":{user}}}").into_bytes());
    }
    for user in ["u\u{7f}", "u\u{ad}", "\u{202e}u", "\u{3000}u", "u\u{a0}", &long] {
        bodies.push(json!({"user": user}).to_string().into_bytes());
    }
    bodies.extend(bad_fields());
    bodies
}

/// Bodies with one field that cannot be what it is.
fn bad_fields() -> Vec<Vec<u8>> {
    let long = "x".repeat(300);
    let mut bodies: Vec<Vec<u8>> = Vec::new();
    for field in ["input_tokens", "max_output_tokens", "min_output_tokens", "lease_seconds", "wait_ms"] {
        for value in ["-1", "1.5", "1.0", "1e3", "\"100\"", "true", "[1]", "{}", TOO_LARGE, "1e400", "-0.0"] {
            bodies.push(format!("{{\"user\":\"u\",\"{field}\":{value}}}").into_bytes());
        }
    }
    for tail in [
        "\"lease_seconds\":0",
        "\"lease_seconds\":3601",
        "\"wait_ms\":60001",
        "\"priority\":\"urgent\"",
        "\"priority\":7",
        "\"dry_run\":\"yes\"",
        "\"dry_run\":1",
        "\"model\":7",
        "\"model\":\"\"",
        "\"model\":\"a b\"",
        "\"feature\":\"Chat!\"",
        "\"request_id\":\"\"",
        "\"request_id\":7",
        "\"tenant\":\"other\"",
        "\"colour\":\"red\"",
        "\"amounts\":[]",
        "\"amounts\":{\"images\":-1}",
        "\"amounts\":{\"images\":1.5}",
        "\"amounts\":{\"output_tokens\":1}",
        "\"amounts\":{\"Images\":1}",
        "\"max_output_tokens\":5,\"min_output_tokens\":6",
        "\"input_tokens\":9007199254740991,\"max_output_tokens\":1",
    ] {
        bodies.push(format!("{{\"user\":\"u\",{tail}}}").into_bytes());
    }
    bodies.push(json!({"user": "u", "request_id": long}).to_string().into_bytes());
    bodies.push(json!({"user": "u", "model": "m".repeat(129)}).to_string().into_bytes());
    bodies
}

#[tokio::test]
async fn a_body_that_is_no_check_is_refused_and_changes_nothing() {
    let t = Tenant::with(Sheet::new().mt(10_000).rb(10, 10).cc(3)).await;
    t.ask("u", 100, 100).await.ok();
    let before = t.quota("u").await.ok();
    let mut wrong = Vec::new();
    for body in bad_checks() {
        let shown = String::from_utf8_lossy(&body[..body.len().min(120)]).into_owned();
        let reply = t.post_raw("/v1/check", body).await;
        if (reply.status, reply.code()) == (400, "invalid_request") {
            reply.assert_problem();
            let errors = reply.body["errors"].as_array().cloned().unwrap_or_default();
            if errors.is_empty()
                || !errors.iter().all(|e| e["pointer"].is_string() && e["message"].is_string())
            {
                wrong.push(format!("{shown}: no errors in {}", reply.text));
            }
        } else {
            wrong.push(format!("{shown}: {} {}", reply.status, reply.text));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(t.quota("u").await.ok(), before);
}

#[tokio::test]
async fn every_fault_of_a_body_is_told_with_its_place() {
    let t = Tenant::with(Sheet::new().mt(10_000)).await;
    let body = json!({"user": "", "input_tokens": -1, "amounts": {"images": 1.5}, "colour/tone": 1});
    let refused = t.check(body).await.refused(400, "invalid_request");
    let mut pointers: Vec<&str> =
        refused.body["errors"].as_array().unwrap().iter().map(|e| e["pointer"].as_str().unwrap()).collect();
    pointers.sort_unstable();
    assert_eq!(pointers, ["/amounts/images", "/colour~1tone", "/input_tokens", "/user"]);
}

#[tokio::test]
async fn figures_that_are_no_usage_leave_the_hold_open() {
    let t = Tenant::with(Sheet::new().mt(10_000)).await;
    let hold = t.ask("u", 100, 100).await.hold_id();
    let before = t.quota("u").await.ok();
    let mut bodies = vec![
        json!({}),
        json!({"input_tokens": 100}),
        json!({"output_tokens": 100}),
        json!({"usage": "known"}),
        json!({"usage": "unknown", "input_tokens": 1, "output_tokens": 1}),
        json!({"input_tokens": 1, "output_tokens": 1, "cache_read_tokens": 2}),
        json!({"input_tokens": 10, "output_tokens": 1, "cache_read_tokens": 6, "cache_write_tokens": 5}),
        json!({"input_tokens": 1, "output_tokens": 1, "colour": "red"}),
        json!({"input_tokens": 1, "output_tokens": 1, "outcome": 7}),
    ];
    for bad in [json!(-1), json!(-5000), json!(1.5), json!("100"), json!(true), Value::Null, json!([1])] {
        bodies.push(json!({"input_tokens": bad, "output_tokens": 1}));
        bodies.push(json!({"input_tokens": 1, "output_tokens": bad}));
    }
    for body in &bodies {
        let reply = t.settle(&hold, body.clone()).await;
        assert_eq!((reply.status, reply.code()), (400, "invalid_request"), "{body}: {}", reply.text);
    }
    for raw in [
        "{\"input_tokens\":1e3,\"output_tokens\":1}",
        "{\"input_tokens\":NaN,\"output_tokens\":1}",
        "{\"input_tokens\":1",
    ] {
        t.post_raw(&format!("/v1/holds/{hold}/settle"), raw).await.refused(400, "invalid_request");
    }
    for raw in [
        r#"{"lease_seconds":0}"#,
        r#"{"lease_seconds":3601}"#,
        r#"{"add_output_tokens":-1}"#,
        r#"{"x":1}"#,
        "[]",
    ] {
        t.post_raw(&format!("/v1/holds/{hold}/extend"), raw).await.refused(400, "invalid_request");
    }
    for raw in [r#"{"reason":"boredom"}"#, r#"{"reason":7}"#, r#"{"x":1}"#, "[]"] {
        t.post_raw(&format!("/v1/holds/{hold}/release"), raw).await.refused(400, "invalid_request");
    }
    assert_eq!(t.quota("u").await.ok(), before);
    t.finish(&hold, 100, 50).await.ok();
    assert_eq!(t.left("u", "tokens_per_month").await["used"], 150);
}

#[tokio::test]
async fn usage_that_no_model_could_have_is_refused_and_counted_nowhere() {
    let t = Tenant::with(Sheet::new().mt(1_000_000).input(200_000).output(5000)).await;
    let hold = t.ask("u", 120_000, 2000).await.hold_id();
    let before = t.quota("u").await.ok();
    for (input, output) in [(9_007_199_254_740_991, 10), (10, 10_000_001)] {
        t.finish(&hold, input, output).await.refused(422, "usage_implausible");
    }
    assert_eq!(t.quota("u").await.ok(), before);
    t.finish(&hold, 110_170, 10).await.ok();
    t.finish(&hold, 10_000_001, 10).await.refused(409, "already_finished");
    t.finish("hold_none", 10_000_001, 10).await.refused(404, "not_found");
    assert_eq!(t.left("u", "tokens_per_month").await["used"], 110_180);
}

#[tokio::test]
async fn what_is_no_json_or_too_much_of_it_is_refused_in_the_same_form() {
    let t = Tenant::with(Sheet::new().mt(10_000)).await;
    let large = json!({"user": "u", "model": "x".repeat(1_000_000)}).to_string();
    t.post_raw("/v1/check", large.clone()).await.refused(413, "body_too_large");
    t.post_raw("/v1/usage", large).await.refused(413, "body_too_large");
    let text =
        t.request(Method::POST, "/v1/check").header("content-type", "text/plain").body("{\"user\":\"u\"}");
    t.send(text).await.refused(415, "unsupported_media_type");
    t.get("/v1/check").await.refused(405, "method_not_allowed");
    t.get("/v1/nowhere").await.refused(404, "not_found");
    t.send(t.request(Method::DELETE, "/v1/users/u/quota")).await.refused(405, "method_not_allowed");
    t.post("/v1/check?user=carol&unknown=1", &json!({"user": "u"})).await.ok();
}

#[tokio::test]
async fn a_body_that_drips_is_cut_off() {
    static SERVER: std::sync::OnceLock<Server> = std::sync::OnceLock::new();
    let server = SERVER.get_or_init(|| Server::start(&[("APPORTION_BODY_TIMEOUT_MS", "300")]));
    let t = Tenant::on(server, "UTC", "2026-03-10T12:00:00.000Z").await;
    let token = t.token(&["--scope", "check"]);
    let address = server.url.strip_prefix("http://").unwrap().to_owned();
    let answer = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let head = format!(
            "POST /v1/check HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{{\"user\""
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    })
    .await
    .unwrap();
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("request_timeout"), "{answer}");
}

#[tokio::test]
async fn admin_bodies_are_checked_as_strictly() {
    let t = Tenant::with(Sheet::new().mt(10_000)).await;
    for body in [
        json!({"zone": 7, "reason": "x"}),
        json!({"colour": "red", "reason": "x"}),
        json!({"max_hold_seconds": -1, "reason": "x"}),
        json!({"max_tokens_per_call": 1_000_000_001, "reason": "x"}),
        json!({"in_doubt_after": {"hours": 1, "then": "forget"}, "reason": "x"}),
    ] {
        t.put("/v1/admin/settings", &body).await.refused(400, "invalid_request");
    }
    for body in
        [json!({"anchor_day": 0}), json!({"anchor_day": 32}), json!({"verified": "yes"}), json!({"plan": 7})]
    {
        t.put_user("u", body).await.refused(400, "invalid_request");
    }
    for now in ["", "yesterday", "2026-02-30T00:00:00Z", "1767225600"] {
        t.put_clock(now).await.refused(400, "invalid_request");
    }
    t.put_clock("2025-01-01T00:00:00Z").await.ok();
    t.put_clock("2026-03-10T12:00:00Z").await.ok();
    t.ask("u", 1, 1).await.ok();
    t.put_clock("2026-03-10T11:59:59.999Z").await.refused(409, "clock_backwards");
    t.put_clock("2026-03-10T12:00:00Z").await.ok();
}
