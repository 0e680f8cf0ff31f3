//! kill -9 right after a tenant was deleted: the next start goes on removing what it left.

use std::path::Path;
use std::time::{Duration, Instant};

use apportion::domain::charge::TenantRef;
use apportion::ledger::{Durability, Ledger, SqliteLedger, UserQuery};
use reqwest::Method;
use serde_json::json;

use super::process::Process;
use crate::harness::{Client, cli};

const USERS: usize = 1_500;

async fn open(data: &Path) -> SqliteLedger {
    SqliteLedger::open(&data.join("apportion.db"), Durability::Os).await.unwrap()
}

/// Users and records of a tenant on record.
async fn left(ledger: &SqliteLedger, tenant: TenantRef) -> usize {
    let query = UserQuery { limit: 10_000, ..UserQuery::default() };
    ledger.users(tenant, query).await.unwrap().len() + ledger.records(Some(tenant)).await.unwrap().len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_that_was_killed_goes_on_with_the_next_start() {
    let kept = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let data = kept.path();
    for id in ["gone", "stays"] {
        cli(data, &["tenant", "create", id]);
    }
    let token =
        |id: &str| cli(data, &["token", "mint", "--tenant", id, "--scope", "check quota admin:write"]);
    let (gone, stays) = (token("gone"), token("stays"));
    let operator = cli(data, &["token", "mint", "--operator"]);
    let process = Process::serve(data, "os");
    let client = Client::new(&process.url, &gone);
    for batch in 0..USERS / 100 {
        let checks: Vec<_> = (0..100).map(|n| json!({"user": format!("u{}", batch * 100 + n)})).collect();
        client.check_batch(&checks).await.ok();
    }
    client.with_token(&stays).check(json!({"user": "u"})).await.ok();
    let ledger = open(data).await;
    let number = ledger.tenants().await.unwrap().iter().find(|row| row.id.as_str() == "gone").unwrap().number;
    assert!(left(&ledger, number).await > USERS);
    let operator = client.with_token(&operator);
    let deleted = operator.send(operator.request(Method::DELETE, "/v1/operator/tenants/gone")).await;
    assert_eq!(deleted.status, 204);
    process.kill();
    let rest = left(&ledger, number).await;
    println!("{rest} rows were left when it was killed");

    let process = Process::serve(data, "os");
    let client = Client::new(&process.url, &gone);
    client.quota("u1").await.refused(401, "unauthenticated");
    let begun = Instant::now();
    while left(&ledger, number).await > 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "{} rows stay", left(&ledger, number).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let quota = client.with_token(&stays).quota("u").await;
    assert_eq!(quota.row("requests_per_day")["used"], 1, "the other tenant is as it was");
    let private = |kid: &str| data.join("keys").join(format!("{kid}.pem")).exists();
    let kid = |token: &str| {
        use base64::Engine as _;
        let header = token.split('.').next().unwrap();
        let header = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(header).unwrap();
        let header: serde_json::Value = serde_json::from_slice(&header).unwrap();
        header["kid"].as_str().unwrap().to_owned()
    };
    assert!(!private(&kid(&gone)) && private(&kid(&stays)));
    ledger.close().await;
}
