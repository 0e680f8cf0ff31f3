//! Traces of calls: whose they are, what they tell, what they keep to themselves, and what
//! becomes of calls when nobody takes them.

use reqwest::Method;
use serde_json::{Value, json};

use crate::faults::process::Process;
use crate::harness::collector::{Came, Collector};
use crate::harness::sheets::Sheet;
use crate::harness::{Client, Server, Tenant, cli};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A tenant on a server of its own that sends traces there, and of calls without a parent this
/// share. The server lives as long as the tests do.
async fn tenant(collector: &str, ratio: &str, sheet: Sheet) -> Tenant {
    let server = Server::start(&[
        ("APPORTION_OTLP_ENDPOINT", collector),
        ("APPORTION_OTLP_SAMPLE_RATIO", ratio),
        ("APPORTION_OTLP_HEADERS", "x-collector=collectors-secret"),
    ]);
    let server: &'static Server = Box::leak(Box::new(server));
    let tenant = Tenant::on(server, "UTC", "2026-03-10T12:00:00.000Z").await;
    tenant.plan(&sheet).await;
    tenant
}

/// With a parent that is recorded, or not.
async fn call(
    client: &Client,
    method: Method,
    path: &str,
    body: &Value,
    flags: &str,
) -> crate::harness::Reply {
    let request = client.request(method, path).header("traceparent", format!("00-{TRACE}-{PARENT}-{flags}"));
    client.send(request.header("tracestate", "vendor=1").json(body)).await
}

fn named<'a>(came: &'a [Came], name: &str) -> Vec<&'a Came> {
    came.iter().filter(|came| came.span.name == name).collect()
}

#[tokio::test]
async fn a_call_is_a_span_of_its_callers_trace_if_that_is_recorded() {
    let collector = Collector::start();
    let t = tenant(&collector.url, "0", Sheet::new().dr(9).mt(1000)).await;
    let ask = json!({"user": "u", "input_tokens": 7});
    // What is sent comes in order: were this one recorded, it would come first.
    call(&t, Method::POST, "/v1/check", &ask, "00").await.ok();
    t.check(ask.clone()).await.ok();
    let bad = t.request(Method::POST, "/v1/check").header("traceparent", format!("00-{TRACE}-{PARENT}-1"));
    t.send(bad.json(&ask)).await.ok();
    let hold = call(&t, Method::POST, "/v1/check", &ask, "01").await.hold_id();
    let came = collector.wait_for(1).await;

    let [served] = named(&came, "POST /v1/check")[..] else { panic!("one call: {came:#?}") };
    assert_eq!((served.trace().as_str(), served.parent().as_str()), (TRACE, PARENT));
    assert_eq!((served.span.trace_state.as_str(), served.span.kind), ("vendor=1", 2));
    assert!(served.span.status.is_none() && served.span.flags & 0x301 == 0x301, "{served:?}");
    assert!(served.span.start_time_unix_nano <= served.span.end_time_unix_nano);
    for (key, value) in [
        ("http.request.method", "POST"),
        ("http.route", "/v1/check"),
        ("http.response.status_code", "200"),
        ("url.scheme", "http"),
        ("url.path", "/v1/check"),
        ("server.address", "127.0.0.1"),
        ("apportion.decision", "allow"),
        ("apportion.plan.id", "p"),
        ("apportion.tenant.id", &t.id),
        ("apportion.hold.id", &hold),
    ] {
        served.says(key, value);
    }
    assert_eq!(served.resource["service.name"], "apportion");
    assert_eq!(served.resource["service.version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(served.resource["service.instance.id"].len(), 32);
    assert_eq!(served.header, "collectors-secret");

    for step in ["engine", "ledger.commit"] {
        let steps = named(&came, step);
        assert!(!steps.is_empty(), "no {step}: {came:#?}");
        for inner in steps {
            assert_eq!((inner.trace().as_str(), inner.parent()), (TRACE, served.id()));
            assert!(inner.span.start_time_unix_nano >= served.span.start_time_unix_nano);
            assert!(inner.span.end_time_unix_nano <= served.span.end_time_unix_nano);
        }
    }
}

#[tokio::test]
async fn what_went_wrong_is_told_and_nothing_that_is_somebodys_own() {
    let collector = Collector::start();
    let t = tenant(&collector.url, "0", Sheet::new().dr(1)).await;
    let ask = json!({"user": "private-user", "request_id": "private-request", "feature": "chat"});
    let hold = call(&t, Method::POST, "/v1/check", &ask, "01").await.hold_id();
    let more = json!({"user": "private-user"});
    call(&t, Method::POST, "/v1/check", &more, "01").await.refused(429, "daily_quota_exhausted");
    call(&t, Method::GET, "/v1/users/private-user/quota?x=private-word", &json!({}), "01").await;
    call(&t, Method::POST, "/v1/private-path", &json!({}), "01").await.refused(404, "not_found");
    let path = format!("/v1/holds/{hold}/settle");
    call(&t, Method::POST, &path, &json!({"input_tokens": 1, "output_tokens": 1}), "01").await.ok();
    call(&t, Method::POST, "/v1/check/batch", &json!({"checks": [more, more]}), "01").await.ok();
    let stranger = t.with_token("private-token");
    call(&stranger, Method::POST, "/v1/check", &ask, "01").await.refused(401, "unauthenticated");
    let came = collector.wait_for(7).await;

    let refused = named(&came, "POST /v1/check")[1];
    refused.says("http.response.status_code", 429);
    refused.says("apportion.code", "daily_quota_exhausted");
    refused.says("apportion.decision", "refuse");
    refused.says("apportion.limit.name", "requests_per_day");
    assert!(refused.span.status.is_none(), "a refusal is no fault of the server");
    named(&came, "GET /v1/users/{user}/quota")[0].says("url.path", "/v1/users/{user}/quota");
    let nowhere = named(&came, "POST")[0];
    nowhere.says("http.response.status_code", 404);
    assert!(!nowhere.attributes.contains_key("http.route"));
    named(&came, "POST /v1/holds/{id}/settle")[0].says("apportion.hold.id", &hold);
    named(&came, "POST /v1/check/batch")[0].says("apportion.batch.items", 2);
    named(&came, "POST /v1/check")[2].says("http.response.status_code", 401);

    for span in came {
        let told = format!("{:?} {:?} {:?}", span.span, span.attributes, span.resource);
        for own in ["private-", &t.token, "collectors-secret"] {
            assert!(!told.contains(own), "{own} in {told}");
        }
    }
}

#[tokio::test]
async fn a_call_without_a_parent_may_begin_a_trace_and_a_probe_does_not() {
    let collector = Collector::start();
    let t = tenant(&collector.url, "1", Sheet::new().dr(9)).await;
    let before = collector.wait_for(1).await.len();
    t.get("/livez").await;
    t.get("/metrics").await;
    t.ask("u", 0, 0).await.ok();
    t.ask("u", 0, 0).await.ok();
    let mut came = collector.wait_for(1).await;
    while named(&came, "POST /v1/check").len() < 2 {
        came = collector.wait_for(came.iter().filter(|came| came.span.kind == 2).count() + 1).await;
    }
    assert!(came.len() > before);
    let [first, second] = named(&came, "POST /v1/check")[..] else { panic!("two: {came:#?}") };
    assert!(first.trace() != second.trace() && first.parent().is_empty());
    assert!(came.iter().all(|came| !came.span.name.contains("livez") && !came.span.name.contains("metrics")));
}

/// What `/metrics` says of spans, until there are some of this outcome.
async fn spans(t: &Tenant, outcome: &str) -> u64 {
    let line = format!("apportion_trace_spans_total{{outcome=\"{outcome}\"}} ");
    for _ in 0..2000 {
        let text = t.get("/metrics").await.text;
        let count = text.lines().find_map(|text| text.strip_prefix(&line)).expect("such a line");
        if count != "0" {
            return count.parse().expect("a number");
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("no spans were {outcome}")
}

#[tokio::test]
async fn spans_that_a_collector_refuses_are_counted_and_calls_go_on() {
    let collector = Collector::answering(400);
    let t = tenant(&collector.url, "0", Sheet::new().dr(100)).await;
    for _ in 0..20 {
        call(&t, Method::POST, "/v1/check", &json!({"user": "u"}), "01").await.ok();
    }
    assert!(spans(&t, "dropped").await >= 1);
}

#[tokio::test]
async fn spans_that_are_taken_are_counted() {
    let collector = Collector::start();
    let t = tenant(&collector.url, "0", Sheet::new().dr(100)).await;
    call(&t, Method::POST, "/v1/check", &json!({"user": "u"}), "01").await.ok();
    assert!(spans(&t, "sent").await >= 2);
}

#[tokio::test]
async fn a_collector_that_is_not_there_hinders_nobody() {
    // A port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let t = tenant(&format!("http://{free}"), "1", Sheet::new().dr(9000)).await;
    for _ in 0..100 {
        t.ask("u", 0, 0).await.ok();
    }
}

/// The log of a server that tells everything, and what its collector got before it ended.
#[tokio::test]
async fn what_is_recorded_is_sent_before_the_server_ends_and_its_log_names_trace_limit_and_hold() {
    let collector = Collector::start();
    let kept = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a data directory");
    cli(kept.path(), &["tenant", "create", "t"]);
    let scope = "check admin:write";
    let token = cli(kept.path(), &["token", "mint", "--tenant", "t", "--scope", scope]);
    let process = Process::serve_at(
        kept.path(),
        "127.0.0.1:0",
        &[
            ("APPORTION_LOG", "info,apportion=debug"),
            ("APPORTION_OTLP_ENDPOINT", &collector.url),
            ("APPORTION_OTLP_HEADERS", "x-collector=collectors-secret"),
        ],
    );
    let client = Client::new(&process.url, &token);
    client.put_plan(&Sheet::new().dr(1).json()).await.ok();
    client.put_settings(json!({"default_plan": "p"})).await.ok();
    let ask = json!({"user": "u"});
    let hold = call(&client, Method::POST, "/v1/check", &ask, "01").await.hold_id();
    call(&client, Method::POST, "/v1/check", &ask, "00").await.refused(429, "daily_quota_exhausted");
    call(&client, Method::POST, "/v1/check/batch", &json!({"checks": [ask]}), "00").await.ok();
    let path = format!("/v1/holds/{hold}/settle");
    client.post(&path, &json!({"input_tokens": 1, "output_tokens": 1})).await.ok();
    call(&client, Method::POST, &path, &json!({"usage": "unknown"}), "00")
        .await
        .refused(409, "already_finished");
    process.terminate();
    let came = collector.wait_for(1).await;
    assert_eq!(named(&came, "POST /v1/check").len(), 1);

    while process.said("no longer ready").is_empty() {
        tokio::task::yield_now().await;
    }
    let lines = |words: [&str; 3]| {
        let lines = process.said(words[0]).into_iter();
        lines.filter(|line| words.iter().all(|word| line.contains(word))).count()
    };
    let (trace, held) = (format!("\"trace.id\":\"{TRACE}\""), format!("\"hold.id\":\"{hold}\""));
    let limit = "\"limit.name\":\"requests_per_day\"";
    assert_eq!(lines(["\"http.route\":\"/v1/check\"", &trace, &held]), 1);
    assert_eq!(lines(["\"http.response.status_code\":429", &trace, limit]), 1);
    assert_eq!(lines(["an item was refused", "daily_quota_exhausted", limit]), 1);
    assert_eq!(lines(["\"http.response.status_code\":200", "settle", &held]), 1);
    assert_eq!(lines(["already_finished", &trace, &held]), 1);
    for secret in [&token, token.rsplit('.').next().unwrap(), "collectors-secret", "Bearer"] {
        assert_eq!(process.said(secret), Vec::<String>::new(), "the log tells {secret}");
    }
    process.wait();
}
