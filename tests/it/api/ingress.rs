//! The tenant's own limit on its calls, and that probes know none.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::sheets::Sheet;
use crate::harness::{Client, Reply, Tenant};

#[track_caller]
fn assert_told_to_wait(reply: &Reply) {
    assert_eq!((reply.status, reply.code()), (429, "ingress_rate_exceeded"), "{}", reply.text);
    reply.assert_problem();
    let number = |name: &str| -> u64 {
        reply.header(name).unwrap_or_else(|| panic!("no {name}")).parse().expect("a whole number")
    };
    let ms = number("retry-after-ms");
    assert!((1..=1000).contains(&ms), "{ms} ms");
    assert_eq!(number("retry-after"), 1);
    assert_eq!(reply.body["retry_after_ms"], ms);
    assert_eq!((&reply.body["retryable"], reply.header("x-should-retry")), (&json!(true), Some("true")));
}

/// Calls until one is refused: the limit is in real time, so a slow machine needs more of them.
async fn until_refused(client: &Client) -> Reply {
    for _ in 0..10_000 {
        let reply = client.quota("u").await;
        if reply.status == 429 {
            return reply;
        }
        reply.ok();
    }
    panic!("10,000 calls in one second?");
}

#[tokio::test]
async fn calls_above_the_tenants_own_limit_wait_and_nothing_is_decided() {
    let t = Tenant::with(Sheet::new().dr(1000)).await;
    let other = Tenant::with(Sheet::new().dr(1000)).await;
    let set = t.put_settings(json!({"requests_per_second": 1})).await.ok();
    assert_eq!(set["requests_per_second"], 1);
    let refused = until_refused(&t).await;
    assert_told_to_wait(&refused);
    let wait = refused.body["retry_after_ms"].as_u64().unwrap();
    // All its credentials and all its routes together; a body is not even read.
    let user = t.with_token(&t.token(&["--user", "u"]));
    for reply in [
        user.get("/v1/me/quota").await,
        t.post_raw("/v1/check", "{ no JSON").await,
        t.get("/v1/admin/settings").await,
    ] {
        if reply.status != 429 {
            // A second has passed on a slow machine.
            assert!([200, 400].contains(&reply.status), "{}", reply.text);
            continue;
        }
        assert_told_to_wait(&reply);
    }
    // Who may not call at all is told that, and nobody else is held up.
    let quota_only = t.with_token(&t.token(&["--scope", "quota"]));
    quota_only.get("/v1/admin/settings").await.refused(403, "forbidden");
    t.with_token("garbage").quota("u").await.refused(401, "unauthenticated");
    for _ in 0..5 {
        other.quota("u").await.ok();
    }
    tokio::time::sleep(Duration::from_millis(wait)).await;
    loop {
        // Told again to wait, as refused calls took nothing, by less than one call's worth.
        let reply = t.put_settings(json!({"requests_per_second": 0})).await;
        if reply.status == 200 {
            break;
        }
        let wait = reply.body["retry_after_ms"].as_u64().expect("a wait");
        tokio::time::sleep(Duration::from_millis(wait)).await;
    }
    for _ in 0..20 {
        t.quota("u").await.ok();
    }
    assert_eq!(t.left("u", "requests_per_day").await["used"], 0);
}

#[tokio::test]
async fn its_bounds_are_told() {
    let t = Tenant::with(Sheet::new().dr(1)).await;
    assert_eq!(t.get("/v1/admin/settings").await.ok()["requests_per_second"], 0);
    for bad in [json!(-1), json!(1.5), json!("1"), json!(1_000_001)] {
        let refused =
            t.put_settings(json!({"requests_per_second": bad})).await.refused(400, "invalid_request");
        assert_eq!(refused.body["errors"][0]["pointer"], "/requests_per_second");
    }
}

/// C85: probes passed through the limiter, and every node was taken out of service.
#[tokio::test]
async fn probes_are_answered_while_a_tenant_is_at_its_limit() {
    let t = Tenant::with(Sheet::new().dr(2)).await;
    t.ask("u", 0, 0).await.ok();
    let before = t.quota("u").await.ok();
    t.put_settings(json!({"requests_per_second": 1})).await.ok();
    let nobody = Client::new(&t.url, "");
    let mut refused = 0;
    for _ in 0..30 {
        refused += usize::from(t.quota("u").await.status == 429);
        for path in ["/livez", "/readyz", "/metrics"] {
            for request in [nobody.http.get(format!("{}{path}", t.url)), t.request(Method::GET, path)] {
                let reply = t.send(request).await;
                assert_eq!(reply.status, 200, "{path}: {}", reply.text);
                assert!(!reply.text.contains(&t.token), "{path}");
            }
        }
    }
    assert!(refused > 0, "the tenant was never at its limit");
    let after: Value = loop {
        let reply = t.quota("u").await;
        if reply.status == 200 {
            break reply.body;
        }
        tokio::time::sleep(Duration::from_millis(reply.body["retry_after_ms"].as_u64().unwrap())).await;
    };
    assert_eq!(after, before, "probes take from nobody");
}

/// One after another over one connection, each with a body: the statuses of the answers.
fn over_one_connection(url: &str, calls: Vec<(&'static str, String)>) -> Vec<u16> {
    let stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    let ask = |(path, token): (&'static str, String)| {
        let body = json!({"user": "u"}).to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        (&stream).write_all(head.as_bytes()).unwrap();
        // A body may come later than its head.
        (&stream).write_all(body.as_bytes()).unwrap();
        let (mut status, mut length) = (0, 0);
        for line in answers.by_ref().lines() {
            let line = line.unwrap().to_ascii_lowercase();
            match line.split_once(": ") {
                Some(("content-length", value)) => length = value.parse().unwrap(),
                None if line.is_empty() => break,
                None => status = line.split(' ').nth(1).unwrap().parse().unwrap(),
                Some(_) => {}
            }
        }
        answers.read_exact(&mut vec![0; length]).expect("a whole answer");
        status
    };
    calls.into_iter().map(ask).collect()
}

#[tokio::test]
async fn who_is_refused_before_the_body_is_read_keeps_the_connection() {
    let t = Tenant::with(Sheet::new().dr(1000)).await;
    let (url, ours, nobodys) = (t.url.clone(), t.token.clone(), "nobodys".to_owned());
    let calls = vec![
        ("/v1/check", nobodys.clone()),
        ("/v1/no-such-path", ours.clone()),
        ("/v1/check", ours.clone()),
        ("/v1/check", nobodys),
        ("/v1/check", ours),
    ];
    let asked = tokio::task::spawn_blocking(move || over_one_connection(&url, calls));
    assert_eq!(asked.await.unwrap(), [401, 404, 200, 401, 200]);
}
