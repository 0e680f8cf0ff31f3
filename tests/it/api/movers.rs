//! Who uses far more than they are used to.

use serde_json::{Value, json};

use crate::harness::Tenant;
use crate::harness::sheets::Sheet;

async fn movers(t: &Tenant, query: &str) -> Vec<Value> {
    let body = t.get(&format!("/v1/admin/movers{query}")).await.ok();
    body["data"].as_array().expect("rows").clone()
}

/// Who works an hour each morning and sleeps at night is no mover; ten times as much is
/// one, at once.
#[tokio::test]
async fn ten_times_what_a_user_is_used_to_is_listed_and_a_morning_is_not() {
    let t = Tenant::at("UTC", "2026-03-02T09:00:00.000Z").await;
    t.plan(&Sheet::new()).await;
    for _ in 0..6 {
        for _ in 0..4 {
            t.spend("worker", 900, 100).await;
            t.spend("jumper", 900, 100).await;
            t.pass(300_000).await;
        }
        t.pass(24 * 3_600_000 - 4 * 300_000).await;
    }
    t.spend("worker", 900, 100).await;
    t.spend("jumper", 900, 100).await;
    assert_eq!(movers(&t, "").await, [json!(null); 0]);
    t.spend("jumper", 18_000, 1_000).await;
    t.spend("new", 3_000, 0).await;
    let rows = movers(&t, "").await;
    assert_eq!(
        rows,
        [
            json!({"user": "jumper", "plan": "p", "requests": 2, "total_tokens": 20_000, "baseline": 2_000, "ratio": 10.0}),
            json!({"user": "new", "plan": "p", "requests": 1, "total_tokens": 3_000, "baseline": null, "ratio": null}),
        ]
    );
    assert_eq!(movers(&t, "?limit=1").await, rows[..1]);
    assert_eq!(movers(&t, "?min=3001").await, rows[..1]);
    // A quarter of an hour later it is over.
    t.pass(900_000).await;
    assert_eq!(movers(&t, "").await, [json!(null); 0]);
    for bad in ["?limit=0", "?limit=501", "?min=-1", "?min=x"] {
        t.get(&format!("/v1/admin/movers{bad}")).await.refused(400, "invalid_request");
    }
}

#[tokio::test]
async fn nobody_sees_another_tenants_movers() {
    let (one, other) = (Tenant::with(Sheet::new()).await, Tenant::with(Sheet::new()).await);
    one.spend("u", 5_000, 0).await;
    assert_eq!((movers(&one, "").await.len(), movers(&other, "").await.len()), (1, 0));
}
