//! Use that had no hold: booked once, never refused.

use serde_json::json;

use crate::harness::Tenant;
use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;

#[tokio::test]
async fn use_without_a_hold_charges_its_window_once_and_the_buckets_of_now() {
    let t = Tenant::with(Sheet::new().dr(3).mt(1000).ob(100, 60).rb(2, 1)).await;
    let item = json!({"id": "a", "user": "u", "input_tokens": 900, "output_tokens": 400, "at": "2026-03-09T10:00:00.000Z"});
    let first = t.usage(&item).await.ok();
    assert_eq!(first["results"][0]["id"], "a");
    let mut again = item.clone();
    again["output_tokens"] = json!(7);
    let second = t.usage(&again).await.ok();
    assert_ne!(first["results"][0]["status"], second["results"][0]["status"], "the first body of an id wins");
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": 1300, "over_by": 300}));
    assert_has(&t.left("u", "requests_per_day").await, &json!({"used": 0}));
    assert_has(&t.left("u", "requests_per_minute").await, &json!({"remaining": 1}));
    // A debt of 300 at 60 a minute, and one more for the call.
    let mut plan = Sheet::new().dr(3).ob(100, 60);
    plan = plan.mt(10_000);
    t.plan(&plan).await;
    let refused = t.ask("u", 0, 1).await.refused(429, "output_rate_exceeded");
    assert_eq!(refused.body["retry_after_ms"], 301_000);
}

#[tokio::test]
async fn items_are_booked_together_and_old_or_future_ones_are_not() {
    let t = Tenant::with(Sheet::new().mt(1000)).await;
    let item = |id: &str, at: &str| json!({"id": id, "user": "new", "input_tokens": 10, "output_tokens": 0, "at": at});
    let items = [
        item("1", "2026-03-10T12:00:00.000Z"),
        item("2", "2026-03-01T00:00:00.000Z"),
        item("1", "2026-03-10T12:00:00.000Z"),
    ];
    let results = t.usage(&json!({"items": items})).await.ok();
    assert_eq!(results["results"].as_array().map(Vec::len), Some(3));
    assert_has(&t.left("new", "tokens_per_month").await, &json!({"used": 20}));
    for at in ["2026-03-10T12:00:00.001Z", "2026-02-07T11:59:59.999Z", "yesterday"] {
        t.usage(&item("3", at)).await.refused(400, "invalid_request");
    }
    let too_many: Vec<_> = (0..101).map(|n| item(&format!("m{n}"), "2026-03-10T12:00:00.000Z")).collect();
    t.usage(&json!({"items": too_many})).await.refused(400, "invalid_request");
    t.usage(&json!({"items": []})).await.refused(400, "invalid_request");
    for missing in ["id", "user", "input_tokens", "output_tokens"] {
        let mut body = item("4", "2026-03-10T12:00:00.000Z");
        body.as_object_mut().unwrap().remove(missing);
        t.usage(&body).await.refused(400, "invalid_request");
    }
    assert_has(&t.left("new", "tokens_per_month").await, &json!({"used": 20}));
}

#[tokio::test]
async fn use_of_an_earlier_session_is_charged_there() {
    let t = Tenant::with(Sheet::new().per("session", json!({"session_hours": 2}), 1000)).await;
    t.spend("u", 10, 0).await;
    t.spend("v", 10, 0).await;
    t.set_clock("2026-03-10T18:00:00.000Z").await;
    t.spend("u", 20, 0).await;
    t.spend("v", 20, 0).await;
    let item = |user: &str, at: &str| json!({"id": user, "user": user, "input_tokens": 500, "output_tokens": 0, "at": at});
    // In the session that began at noon, and between the two.
    t.usage(&item("u", "2026-03-10T13:00:00.000Z")).await.ok();
    t.usage(&item("v", "2026-03-10T15:00:00.000Z")).await.ok();
    for user in ["u", "v"] {
        assert_has(
            &t.left(user, "session").await,
            &json!({"used": 20, "window": {"start": "2026-03-10T18:00:00.000Z"}}),
        );
    }
    // A session ends, the next begins at once: what was used in the first is not the second's.
    let t = Tenant::with(Sheet::new().per("session", json!({"session_hours": 2}), 1000)).await;
    t.ask("u", 10, 0).await.ok();
    t.set_clock("2026-03-10T14:00:01.000Z").await;
    t.ask("u", 20, 0).await.ok();
    t.usage(&item("u", "2026-03-10T13:30:00.000Z")).await.ok();
    assert_has(&t.left("u", "session").await, &json!({"used": 0, "held": 20}));
}
