//! Queries: their faults, and lists page by page.

use serde_json::{Value, json};

use crate::harness::sheets::Sheet;
use crate::harness::{Client, Reply, Tenant};

/// Pointer and message of every fault.
fn faults(refused: &Reply) -> Vec<(String, String)> {
    let text = |fault: &Value, member: &str| fault[member].as_str().unwrap().to_owned();
    let errors = refused.body["errors"].as_array().unwrap();
    errors.iter().map(|fault| (text(fault, "pointer"), text(fault, "message"))).collect()
}

fn pointers(refused: &Reply) -> Vec<String> {
    faults(refused).into_iter().map(|(pointer, _)| pointer).collect()
}

#[tokio::test]
async fn every_fault_of_a_query_is_told_with_its_parameter() {
    let t = Tenant::with(Sheet::new()).await;
    let refused = t.get("/v1/holds").await.refused(400, "invalid_request");
    let required = |name: &str| (name.to_owned(), "is required".to_owned());
    assert_eq!(faults(&refused), [required("/user"), required("/request_id")]);
    let refused = t.get("/v1/holds?user=u").await.refused(400, "invalid_request");
    assert_eq!(faults(&refused), [required("/request_id")]);
    assert_eq!(refused.body["detail"], "The query parameter request_id is required.");
    for query in ["user=%20&request_id=", "user=%ff&request_id=%", "user=a&user=b&request_id=1&request_id=1"]
    {
        let refused = t.get(&format!("/v1/holds?{query}")).await.refused(400, "invalid_request");
        assert_eq!(pointers(&refused), ["/user", "/request_id"], "{query}");
    }
    let query = "limit=0&cursor=%25%25&plan=A%20B&org=";
    let refused = t.get(&format!("/v1/admin/users?{query}")).await.refused(400, "invalid_request");
    assert_eq!(pointers(&refused), ["/limit", "/cursor", "/plan", "/org"]);
}

#[tokio::test]
async fn every_list_refuses_a_page_that_it_cannot_give() {
    let t = Tenant::with(Sheet::new()).await;
    let operator = t.operator();
    t.ask("u", 1, 1).await.ok();
    let lists =
        ["users", "plans", "pools", "keys", "plans/p/versions", "audit", "decisions", "users/u/ledger"];
    for path in lists.into_iter().chain(["tenants"]) {
        let (client, path) = match path {
            "tenants" => (&operator, "/v1/operator/tenants".to_owned()),
            _ => (&t.client, format!("/v1/admin/{path}")),
        };
        for bad in ["cursor=", "cursor=%25", "cursor=!!!", "cursor=gICA", "cursor=ICAg"] {
            let refused = client.get(&format!("{path}?{bad}")).await.refused(400, "invalid_request");
            assert_eq!(pointers(&refused), ["/cursor"], "{path} {bad}");
        }
        for bad in ["limit=0", "limit=501", "limit=-1", "limit=x", "limit=", "limit=1.0"] {
            let refused = client.get(&format!("{path}?{bad}")).await.refused(400, "invalid_request");
            assert_eq!(pointers(&refused), ["/limit"], "{path} {bad}");
        }
        client.get(&format!("{path}?limit=500&unknown=1")).await.ok();
    }
}

#[tokio::test]
async fn pages_together_are_the_whole_list() {
    let t = Tenant::with(Sheet::new()).await;
    for limit in [1, 2, 3] {
        t.plan(&Sheet::new().dr(limit)).await;
    }
    for n in 0..3 {
        let body = json!({"kind": "api", "scopes": ["check"], "name": format!("k{n}")});
        t.post("/v1/admin/keys", &body).await.ok();
    }
    for path in ["/v1/admin/plans", "/v1/admin/plans/p/versions", "/v1/admin/keys", "/v1/admin/pools"] {
        let whole = t.get(path).await.ok();
        assert_eq!(whole["next_cursor"], Value::Null);
        for limit in [1, 2, 4] {
            assert_eq!(json!(pages(&t, path, limit).await), whole["data"], "{path} by {limit}");
        }
    }
    assert_eq!(t.get("/v1/admin/plans/p/versions?limit=1").await.ok()["data"][0]["version"], 4);
    let tenants = pages(&t.operator(), "/v1/operator/tenants", 3).await;
    assert!(tenants.iter().any(|tenant| tenant["id"] == t.id.as_str()));
}

/// The rows of all pages of at most `limit`.
async fn pages(client: &Client, path: &str, limit: usize) -> Vec<Value> {
    let mut rows = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = client.get(&format!("{path}?limit={limit}{cursor}")).await.ok();
        let data = page["data"].as_array().unwrap();
        assert!(data.len() <= limit, "{page}");
        rows.extend(data.iter().cloned());
        let Some(next) = page["next_cursor"].as_str() else { return rows };
        assert_eq!(data.len(), limit, "only the last page is short");
        cursor = format!("&cursor={next}");
    }
}
