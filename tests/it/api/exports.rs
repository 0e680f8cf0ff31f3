//! What is kept is handed out whole, and without secrets.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::harness::sheets::Sheet;
use crate::harness::{Tenant, cli, percent};

/// Rows by their kind.
fn by_kind(rows: impl IntoIterator<Item = Value>) -> BTreeMap<String, Vec<Value>> {
    let mut kinds = BTreeMap::<String, Vec<Value>>::new();
    for row in rows {
        kinds.entry(row["kind"].as_str().expect("a kind").to_owned()).or_default().push(row);
    }
    kinds
}

/// Two users, one of them in an org, with calls that ended in each way, booked use and two refusals.
async fn busy() -> (Tenant, String) {
    let t = Tenant::with(Sheet::named("p").mt(1_000)).await;
    t.put("/v1/admin/users/a%2Fb", &json!({"org": "acme", "signals": {"device": "phone-1"}, "reason": "r"}))
        .await
        .ok();
    t.put("/v1/admin/orgs/empty", &json!({"zone": "Asia/Tokyo", "reason": "r"})).await.ok();
    t.spend("a/b", 10, 20).await;
    t.spend("c", 1, 2).await;
    let released = t.ask("a/b", 5, 5).await.hold_id();
    t.release(&released).await.ok();
    t.ask("a/b", 7, 7).await.hold_id();
    t.ask("a/b", 2_000, 0).await;
    t.ask("a/b", 960, 0).await;
    t.usage(&json!({"id": "i", "user": "a/b", "input_tokens": 3, "output_tokens": 4})).await.ok();
    let key = t
        .post("/v1/admin/keys", &json!({"kind": "api", "scopes": ["check"], "name": "k", "reason": "r"}))
        .await;
    let secret = key.body["secret"].as_str().unwrap_or_else(|| panic!("{}", key.text)).to_owned();
    (t, secret)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_products_export_has_all_that_is_kept_and_no_secret() {
    let (t, secret) = busy().await;
    let kept = tempfile::tempdir().unwrap();
    let file = kept.path().join("export.jsonl");
    let out = file.to_str().unwrap().to_owned();
    let arguments = ["export", "--tenant", &t.id, "--out", &out];
    let said = tokio::task::block_in_place(|| cli(&t.server.data, &arguments));
    let text = std::fs::read_to_string(&file).unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(said.contains(&format!("{} lines", rows.len())), "{said}");
    assert_eq!(rows.last().unwrap()["lines"].as_u64(), Some(rows.len() as u64 - 1));
    let kinds = by_kind(rows);
    let count = |kind: &str| kinds.get(kind).map_or(0, Vec::len);
    assert_eq!([count("tenant"), count("end"), count("user"), count("org")], [1, 1, 2, 1]);
    assert_eq!([count("hold"), count("usage"), count("key")], [5, 4, 0]);
    assert!(
        count("plan") >= 4 && count("settings") >= 2 && count("models") == 1 && count("pool") == 1,
        "all versions"
    );
    assert!(count("audit") > 5);
    let counted: i64 = kinds["hold"].iter().filter_map(|hold| hold["counted"]["total_tokens"].as_i64()).sum();
    let used: i64 = kinds["usage"].iter().filter_map(|event| event["counted"]["total_tokens"].as_i64()).sum();
    assert_eq!((counted, used), (40, 40));
    let random = secret.rsplit('_').next().unwrap();
    assert!(!text.contains(random), "the key's secret is in it");
    assert_eq!(kinds["user"][0]["signals"]["device"], "phone-1");
}

#[tokio::test]
async fn a_users_export_has_all_that_is_kept_about_them_page_by_page() {
    let (t, _) = busy().await;
    let (mut rows, mut cursor) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/admin/users/{}/export?limit=1{cursor}", percent("a/b"));
        let page = t.get(&path).await.ok();
        rows.extend_from_slice(page["data"].as_array().expect("rows"));
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    let kinds = by_kind(rows);
    assert_eq!(kinds["user"].len(), 1);
    assert_eq!(kinds["user"][0]["signals"]["device"], "phone-1");
    assert_eq!(kinds["hold"].len(), 4, "with what was booked");
    assert!(kinds["hold"].iter().all(|hold| hold["user"] == "a/b"));
    assert!(kinds["audit"].iter().any(|row| row["action"] == "user.put"));
    assert_eq!(kinds["refused"].len(), 2, "{kinds:?}");
    assert_eq!(kinds["refusals"].iter().filter_map(|row| row["count"].as_i64()).sum::<i64>(), 2);
    t.get("/v1/admin/users/nobody/export").await.refused(404, "not_found");
    t.get("/v1/admin/users/c/export?cursor=x").await.refused(400, "invalid_request");
}
