//! Finished holds go when they are old on their tenant's clock; what was used stays used.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::Tenant;
use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;

/// A walk begins a second after a test clock was moved, on a machine that may be crowded.
const PATIENCE: Duration = Duration::from_secs(20);

/// Until the user's history lacks it. (Redis remembers an ended hold for some minutes more.)
async fn goes(t: &Tenant, hold: &str) {
    let from = Instant::now();
    while t.get("/v1/admin/users/u/ledger").await.ok().to_string().contains(hold) {
        assert!(from.elapsed() < PATIENCE, "{hold} is still there");
    }
}

#[tokio::test]
async fn finished_holds_go_when_they_are_old_and_what_was_used_stays_used() {
    // Long ago in real time, too: ids tell when a hold was made.
    let t = Tenant::at("UTC", "2025-02-01T12:00:00.000Z").await;
    t.plan(&Sheet::named("p").per("ever", json!("lifetime"), 10_000)).await;
    let old = t.check(json!({"user": "u", "request_id": "r", "input_tokens": 100})).await.hold_id();
    t.finish(&old, 100, 200).await.ok();
    let open = t.ask_for("u", 7, 0, 3600).await.hold_id();
    t.set_clock("2025-02-02T12:00:00.000Z").await;
    let later = t.ask("u", 30, 0).await.hold_id();
    t.finish(&later, 30, 40).await.ok();
    let before = t.left("u", "ever").await;
    let feed = async |cursor: &str| t.get(&format!("/v1/admin/usage/events?limit=1{cursor}")).await;
    let first = feed("").await.ok();
    let cursor = format!("&after={}", first["next_cursor"].as_str().expect("a cursor"));
    assert_eq!((&first["data"][0]["hold"], &first["more"]), (&json!(old), &json!(true)));

    t.set_clock("2026-03-08T13:00:00.000Z").await;
    assert_has(&t.left("u", "ever").await, &json!({"used": 100 + 200 + 30 + 40 + 7, "held": 0}));
    assert_eq!(before["limit"], 10_000);
    goes(&t, &old).await;
    t.hold(&later).await.ok();
    assert_has(&t.hold(&open).await.ok(), &json!({"hold": {"state": "settled"}}));
    assert_has(&t.left("u", "ever").await, &json!({"used": 377, "held": 0}));
    // Its request id is nobody's any more.
    t.check(json!({"user": "u", "request_id": "r", "input_tokens": 100})).await.hold_id();

    t.set_clock("2026-03-10T12:00:00.000Z").await;
    goes(&t, &later).await;
    feed(&cursor).await.refused(410, "cursor_expired");
    let rest = feed("").await.ok();
    assert_eq!(rest["data"][0]["hold"], json!(open), "from the oldest that is kept: {rest}");
    assert_has(&t.left("u", "ever").await, &json!({"used": 377, "held": 100}));
}
