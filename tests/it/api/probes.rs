//! Probes: always answered, never counted, and silent about tenants.

use crate::harness::sheets::Sheet;
use crate::harness::{Client, Tenant};

#[tokio::test]
async fn probes_are_never_limited_and_change_nobodys_figures() {
    let t = Tenant::with(Sheet::new().dr(1)).await;
    let hold = t.ask("private-user", 0, 0).await.hold_id();
    t.ask("private-user", 0, 0).await.refused(429, "daily_quota_exhausted");
    let before = t.quota("private-user").await.ok();
    let nobody = Client::new(&t.url, "");
    for path in ["/livez", "/readyz", "/metrics"] {
        for _ in 0..50 {
            let reply = Client::send(&nobody, nobody.http.get(format!("{}{path}", nobody.url))).await;
            assert_eq!(reply.status, 200, "{path}: {}", reply.text);
            for secret in ["private-user", &hold, &t.token] {
                assert!(!reply.text.contains(secret), "{path} names {secret}");
            }
        }
    }
    assert_eq!(t.quota("private-user").await.ok(), before);
}

#[tokio::test]
async fn metrics_count_decisions_and_holds_that_are_nobodys() {
    let t = Tenant::with(Sheet::new().dr(1)).await;
    t.ask("u", 0, 0).await.ok();
    t.hold("hold_01890a5d-ac96-774b-bcce-b302099a8057").await.refused(404, "not_found");
    let text = t.get("/metrics").await.text;
    for name in ["apportion_decisions_total", "apportion_orphan_holds_total"] {
        assert!(text.contains(name), "no {name} in\n{text}");
    }
}

#[tokio::test]
async fn the_documents_are_served() {
    let t = Tenant::with(Sheet::new().dr(1)).await;
    let openapi = t.get("/openapi.json").await.ok();
    let paths = openapi["paths"].as_object().expect("paths");
    for path in
        ["/v1/check", "/v1/check/batch", "/v1/holds/{id}/settle", "/v1/users/{user}/quota", "/v1/usage"]
    {
        assert!(paths.contains_key(path), "no {path} in {:?}", paths.keys().collect::<Vec<_>>());
    }
    assert_eq!(t.get("/docs").await.status / 100, 2);
}
