//! What a machine makes of the API description is answered as described.
//!
//! `SCHEMATHESIS=schemathesis` (the program of that name from PyPI, or where it is) and
//! `--ignored` run this; `SCHEMATHESIS_EXAMPLES` says how many calls of each operation are made up.

use std::path::Path;
use std::process::Stdio;

use reqwest::Method;
use serde_json::{Value, json};

use super::authorization::operations::{self, Names};
use crate::harness::sheets::{PoolSheet, Sheet};
use crate::harness::{Tenant, number_from_env};

/// No answer that is a fault of the service, or that the description does not know.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_headers_conformance,response_schema_conformance";

/// What is there, so that calls come further than to a 404.
fn names(hold: &str) -> String {
    let mut text = String::new();
    for (kind, known) in [
        ("user", "u"),
        ("org", "acme"),
        ("pool", "default"),
        ("version", "1"),
        ("plan", "p"),
        ("good", "outage"),
        ("hold", hold),
    ] {
        text += &format!("[dictionaries.{kind}]\nvalues = [\"{known}\"]\n");
    }
    text += "[parameters]\n";
    for name in ["user", "org", "pool", "version"] {
        text += &format!("\"path.{name}\" = {{ dictionary = \"{name}\", probability = 0.8 }}\n");
    }
    for (path, kind) in [
        ("^/v1/admin/plans/", "plan"),
        ("^/v1/admin/pools/", "pool"),
        ("make-goods/", "good"),
        ("/holds/", "hold"),
    ] {
        text += &format!(
            "[[operations]]\ninclude-path-regex = \"{path}\"\n\
             parameters = {{ \"path.id\" = {{ dictionary = \"{kind}\", probability = 0.8 }} }}\n"
        );
    }
    text
}

/// One of everything.
async fn one_of_each() -> (Tenant, String) {
    let sheet = Sheet::new().rb(1_000, 1_000).dr(10_000).mt(10_000_000).cc(100);
    let t = Tenant::with(sheet).await;
    t.pool(&PoolSheet::new("default", &["*"])).await;
    t.put_org("acme", json!({"plan": "p"})).await.ok();
    t.put_user("u", json!({"plan": "p", "org": "acme"})).await.ok();
    let grant = json!({"limit": "tokens_per_month", "amount": 5});
    let good = json!({"users": {"ids": ["u"]}, "grant": grant, "reason": "a test"});
    t.put("/v1/admin/make-goods/outage", &good).await.ok();
    t.spend("u", 10, 5).await;
    let hold = t.ask("u", 10, 5).await.hold_id();
    (t, hold)
}

#[tokio::test]
async fn a_body_that_is_too_large_is_answered_as_described_everywhere() {
    let (t, hold) = one_of_each().await;
    let document = t.get("/openapi.json").await.ok();
    let operator = t.server.office().mint_operator();
    let names = Names { hold, kid: "no-such-key".to_owned() };
    let body = Value::from(" ".repeat(70_000));
    let mut too_large = 0;
    for operation in operations::all(&document, &names) {
        if operation.method == Method::GET {
            continue;
        }
        let is_operators = operation.template.starts_with("/v1/operator");
        let token = if is_operators { &operator } else { &t.token };
        let answer = operation.request(&t, Some(token), Some(&body)).send().await.expect("an answer");
        let status = answer.status().as_u16();
        let path = operation.template.replace('~', "~0").replace('/', "~1");
        let method = operation.method.as_str().to_lowercase();
        let described = format!("/paths/{path}/{method}/responses/{status}");
        assert!(document.pointer(&described).is_some(), "{operation} answers {status}");
        too_large += usize::from(status == 413);
    }
    assert!(too_large > 20, "{too_large} operations found it too large");
}

#[tokio::test]
async fn a_denial_is_described_by_each_status_that_it_may_have() {
    let t = Tenant::with(Sheet::new().dr(1).cc(10)).await;
    let document = t.get("/openapi.json").await.ok();
    t.ask("u", 1, 1).await.hold_id();
    for status in [402, 403, 429] {
        t.put_settings(json!({"denial_status": status})).await.ok();
        let denied = t.ask("u", 1, 1).await;
        assert_eq!((denied.status, denied.code()), (status, "daily_quota_exhausted"));
        for path in ["~1v1~1check", "~1v1~1holds~1{id}~1extend"] {
            let described = document.pointer(&format!("/paths/{path}/post/responses/{status}"));
            assert!(described.is_some(), "{path}, {status}");
        }
    }
}

fn examine(program: &str, t: &Tenant, config: &Path, token: &str, which: &[&str]) {
    let examples = number_from_env("SCHEMATHESIS_EXAMPLES", 10).to_string();
    let document = format!("{}/openapi.json", t.url);
    let bearer = format!("Authorization: Bearer {token}");
    let mut command = std::process::Command::new(program);
    command.arg("--config-file").arg(config);
    command.args(["run", &document, "-u", &t.url, "-c", CHECKS, "-n", &examples, "-H", &bearer]);
    command.args(["--phases", "examples,coverage,fuzzing", "--continue-on-failure", "--no-shrink"]);
    command.args(["--suppress-health-check", "all", "--request-timeout", "60", "--warnings", "off"]);
    let told = command.args(which).stdin(Stdio::null()).output().expect("the program runs");
    let text = String::from_utf8_lossy(&told.stdout);
    println!("{text}");
    assert!(told.status.success(), "{which:?}: {text}{}", String::from_utf8_lossy(&told.stderr));
}

#[tokio::test]
#[ignore = "needs SCHEMATHESIS, the program from PyPI"]
async fn whatever_the_description_allows_is_answered_as_described() {
    let program = std::env::var("SCHEMATHESIS").expect("SCHEMATHESIS names the program");
    let (t, hold) = one_of_each().await;
    let dir = tempfile::tempdir().expect("a directory");
    let config = dir.path().join("schemathesis.toml");
    std::fs::write(&config, names(&hold)).expect("a file");
    // Streams have no end; without its key nobody comes in any more.
    let tenants = ["--exclude-path-regex", "^/v1/(me|operator)", "--exclude-operation-id", "delete_key"];
    examine(&program, &t, &config, &t.token, &tenants);
    let user = t.token(&["--user", "u"]);
    examine(&program, &t, &config, &user, &["--include-path", "/v1/me/quota"]);
    let operator = t.server.office().mint_operator();
    let operators = ["--include-path-regex", "^/v1/operator"];
    examine(&program, &t, &config, &operator, &operators);
    examine(&program, &t, &config, &t.token, &["--include-operation-id", "delete_key"]);
}
