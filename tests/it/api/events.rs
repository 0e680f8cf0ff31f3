//! The feed of usage: one event for each finished hold, what corrects it, and cursors.

use serde_json::{Value, json};

use crate::harness::compare::assert_has;
use crate::harness::sheets::Sheet;
use crate::harness::{Reply, Tenant};

const FEED: &str = "/v1/admin/usage/events";

async fn after(t: &Tenant, cursor: Option<&str>, limit: usize) -> Value {
    let cursor = cursor.map(|cursor| format!("&after={cursor}")).unwrap_or_default();
    t.get(&format!("{FEED}?limit={limit}{cursor}")).await.ok()
}

/// All events, page by page.
async fn events(t: &Tenant) -> Vec<Value> {
    let (mut all, mut cursor) = (Vec::new(), None);
    loop {
        let page = after(t, cursor.as_deref(), 3).await;
        all.extend_from_slice(page["data"].as_array().expect("events"));
        cursor = page["next_cursor"].as_str().map(str::to_owned);
        if page["more"] == false {
            return all;
        }
    }
}

fn id(hold: &str, part: u8) -> Value {
    format!("{hold}:{part}").into()
}

#[tokio::test]
async fn a_finished_hold_is_one_event_of_the_time_of_its_admission() {
    let t = Tenant::at("Asia/Tokyo", "2026-01-31T14:59:59.000Z").await;
    t.plan(&Sheet::named("p").mt(100_000)).await;
    t.put("/v1/admin/users/u", &json!({"org": "acme", "reason": "r"})).await.ok();
    let models = json!([{"id": "sonnet", "aliases": ["s"], "input": 1_000_000, "output": 2_000_000, "cache_read": 0},
                        {"id": "haiku", "aliases": [], "input": 10_000_000, "output": 0, "cache_read": 0}]);
    t.put("/v1/admin/models", &json!({"models": models, "reason": "r"})).await.ok();
    let call = json!({"user": "u", "model": "s", "feature": "chat", "input_tokens": 10, "max_output_tokens": 10, "amounts": {"images": 2}});
    let settled = t.check(call.clone()).await.hold_id();
    let released = t.check(call.clone()).await.hold_id();
    let fallback = t.check(call).await.hold_id();
    assert_eq!(events(&t).await, Vec::<Value>::new(), "nothing has finished");
    t.set_clock("2026-01-31T15:00:01.000Z").await;
    t.settle(&settled, json!({"input_tokens": 9, "output_tokens": 5, "amounts": {"images": 3}})).await.ok();
    t.release(&released).await.ok();
    t.settle(&fallback, json!({"input_tokens": 1, "output_tokens": 1, "model": "haiku"})).await.ok();
    t.settle(&settled, json!({"input_tokens": 9, "output_tokens": 5})).await.ok();
    let events = events(&t).await;
    assert_eq!(
        events[0],
        json!({
            "id": id(&settled, 1), "hold": settled, "user": "u", "org": "acme", "plan": "p",
            "model": "sonnet", "feature": "chat", "at": "2026-01-31T14:59:59.000Z", "day": "2026-01-31",
            "counted": {"requests": 1, "input_tokens": 9, "output_tokens": 5, "total_tokens": 14, "credits": 19, "images": 3},
            "credits": 19,
        })
    );
    let nothing =
        json!({"requests": 0, "input_tokens": 0, "output_tokens": 0, "total_tokens": 0, "credits": 0});
    assert_has(
        &events[1],
        &json!({"id": id(&released, 1), "model": "sonnet", "counted": nothing, "credits": 0}),
    );
    assert_has(
        &events[2],
        &json!({"id": id(&fallback, 1), "model": "haiku", "credits": 10, "day": "2026-01-31"}),
    );
    assert_eq!(events.len(), 3, "a repeated settle is none");
}

#[tokio::test]
async fn what_a_rule_ended_is_corrected_by_signed_differences() {
    let t = Tenant::with(Sheet::named("p").mt(100_000)).await;
    t.put_settings(json!({"in_doubt_after": {"hours": 1, "then": "charge"}})).await.ok();
    let call = json!({"user": "u", "model": "sonnet", "input_tokens": 10, "max_output_tokens": 20, "lease_seconds": 60});
    let mut holds = Vec::new();
    for _ in 0..4 {
        holds.push(t.check(call.clone()).await.hold_id());
    }
    let [settled, released, moved, left] = <[String; 4]>::try_from(holds).expect("four holds");
    t.set_clock("2026-03-11T12:00:00.000Z").await;
    let charged = events(&t).await;
    assert_eq!(charged.len(), 4, "the rule has ended them");
    let at = "2026-03-10T12:00:00.000Z";
    assert!(charged.iter().all(|event| event["counted"]["total_tokens"] == 30 && event["at"] == at));
    t.finish(&settled, 10, 50).await.ok();
    t.release(&released).await.ok();
    t.settle(&moved, json!({"input_tokens": 1, "output_tokens": 2, "model": "haiku"})).await.ok();
    let all = events(&t).await;
    assert_eq!(all[..4], charged, "what was told once stays as it was");
    let short = |event: &Value| {
        let counted = &event["counted"];
        json!([
            event["id"],
            event["model"],
            counted["requests"],
            counted["input_tokens"],
            counted["output_tokens"],
            event["at"]
        ])
    };
    assert_eq!(
        all[4..].iter().map(short).collect::<Vec<_>>(),
        [
            json!([id(&settled, 2), "sonnet", 0, 0, 30, at]),
            json!([id(&released, 2), "sonnet", -1, -10, -20, at]),
            json!([id(&moved, 2), "sonnet", -1, -10, -20, at]),
            json!([id(&moved, 3), "haiku", 1, 1, 2, at]),
        ]
    );
    assert!(all.iter().any(|event| event["id"] == id(&left, 1)));
    let sum: i64 = all.iter().map(|event| event["counted"]["total_tokens"].as_i64().expect("a number")).sum();
    assert_has(&t.left("u", "tokens_per_month").await, &json!({"used": sum, "held": 0}));
}

#[tokio::test]
async fn booked_use_is_an_event_of_its_own_time_and_an_erased_user_is_a_pseudonym() {
    let t = Tenant::with(Sheet::named("p").mt(100_000)).await;
    let item = json!({"id": "a", "user": "u", "model": "sonnet", "input_tokens": 9, "output_tokens": 4, "at": "2026-02-28T23:59:59.500Z"});
    t.usage(&item).await.ok();
    t.usage(&item).await.ok();
    t.spend("u", 5, 5).await;
    let before = events(&t).await;
    assert_eq!(before.len(), 2);
    assert_has(
        &before[0],
        &json!({"user": "u", "at": "2026-02-28T23:59:59.500Z", "day": "2026-02-28", "counted": {"requests": 1, "total_tokens": 13}}),
    );
    t.erase("u").await;
    let after = events(&t).await;
    let pseudonym = after[0]["user"].clone();
    assert!(after.iter().all(|event| event["user"] == pseudonym) && pseudonym != "u", "{after:?}");
    let ids = |events: &[Value]| events.iter().map(|event| event["id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&after), ids(&before), "ids stay");
}

#[tokio::test]
async fn a_cursor_goes_on_for_ever_and_only_with_what_is_new() {
    let t = Tenant::with(Sheet::named("p").mt(1_000_000)).await;
    let page = after(&t, None, 2).await;
    assert_has(&page, &json!({"data": [], "more": false}));
    let mut cursor = page["next_cursor"].as_str().expect("never null").to_owned();
    let mut seen = Vec::new();
    for round in 0..4 {
        for _ in 0..round {
            t.spend("u", 1, 1).await;
        }
        loop {
            let page = after(&t, Some(&cursor), 2).await;
            cursor = page["next_cursor"].as_str().expect("never null").to_owned();
            seen.extend_from_slice(page["data"].as_array().expect("events"));
            // The list's own name for it is taken as well.
            let same = t.get(&format!("{FEED}?cursor={cursor}&limit=2")).await.ok();
            assert_eq!(same, after(&t, Some(&cursor), 2).await);
            if page["more"] == false {
                break;
            }
        }
        assert_has(
            &after(&t, Some(&cursor), 2).await,
            &json!({"data": [], "next_cursor": cursor, "more": false}),
        );
    }
    assert_eq!(seen, events(&t).await);
    assert_eq!(seen.len(), 6);
    let refused = async |query: &str| -> Reply { t.get(&format!("{FEED}?{query}")).await };
    for bad in ["after=x", "cursor=x", "limit=0", "limit=501", "limit=x"] {
        refused(bad).await.refused(400, "invalid_request");
    }
    // What another list gave, and numbers that were never reached.
    let users = t.get("/v1/admin/users?limit=1").await.ok();
    if let Some(other) = users["next_cursor"].as_str() {
        refused(&format!("after={other}")).await.refused(400, "invalid_request");
    }
    let empty = Tenant::with(Sheet::named("p").mt(1_000_000)).await;
    let gone = empty.get(&format!("{FEED}?after={cursor}")).await.refused(410, "cursor_expired");
    assert_eq!(gone.body["retryable"], false);
}
