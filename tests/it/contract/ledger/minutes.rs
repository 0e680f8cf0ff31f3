//! What features used, minute by minute.

use std::sync::Arc;

use apportion::domain::hold::Hold;
use apportion::domain::ids::Label;
use apportion::domain::time::Millis;
use apportion::ledger::{Change, MinuteRow, MinutesQuery, RefusedMinute, Tally};

use super::Room;
use super::samples::*;

fn asked(minutes: std::ops::Range<i64>, limit: u32) -> MinutesQuery {
    MinutesQuery { minutes, after: None, limit }
}

/// Minute, feature, requests, tokens, refusals.
fn short(rows: &[MinuteRow]) -> Vec<(i64, Option<&str>, u64, u64, u64)> {
    rows.iter()
        .map(|row| {
            (
                row.minute,
                row.feature.as_ref().map(Label::as_str),
                row.amounts.requests,
                row.amounts.total_tokens,
                row.refusals,
            )
        })
        .collect()
}

fn used(number: i64, feature: Option<&str>, minute: i64, tokens: i64) -> Change {
    let feature = feature.map(|name| Label::parse(name).unwrap());
    let created_at = Millis(minute * 60_000 + 59_999);
    let hold = Hold { feature, created_at, ..hold("u_1", number) };
    Change { usage: Some(delta(1, tokens)), ..change(&hold) }
}

pub async fn minutes_are_the_sums_of_what_was_admitted_then(room: impl Room) {
    let ledger = room.open().await;
    let first = vec![used(1, Some("chat"), 7, 1), used(2, Some("chat"), 7, 10), used(3, None, 7, 100)];
    ledger.commit(first).await.unwrap();
    ledger.commit(vec![used(4, Some("chat"), 8, 1000), used(5, Some("batch"), 7, 5)]).await.unwrap();
    let refused = |minute, feature: Option<&str>, count| RefusedMinute {
        tenant: TENANT,
        minute,
        feature: feature.map(|name| Label::parse(name).unwrap()),
        count,
    };
    let minutes = vec![refused(7, Some("chat"), 2), refused(9, None, 3)];
    ledger.add_tally(Arc::new(Tally { minutes, ..Tally::default() })).await.unwrap();
    let minutes = vec![refused(7, Some("chat"), 5)];
    ledger.add_tally(Arc::new(Tally { minutes, ..Tally::default() })).await.unwrap();
    let all = [
        (7, None, 1, 300, 0),
        (7, Some("batch"), 1, 15, 0),
        (7, Some("chat"), 2, 33, 7),
        (8, Some("chat"), 1, 3000, 0),
        (9, None, 0, 0, 3),
    ];
    assert_eq!(short(&ledger.minutes(TENANT, asked(0..100, 50)).await.unwrap()), all);
    assert_eq!(short(&ledger.minutes(TENANT, asked(8..9, 50)).await.unwrap()), all[3..4]);
    assert_eq!(ledger.minutes(OTHER, asked(0..100, 50)).await.unwrap(), []);
    // Pages.
    let after = Some((7, "batch".to_owned()));
    let next = MinutesQuery { after, ..asked(0..100, 2) };
    assert_eq!(short(&ledger.minutes(TENANT, next).await.unwrap()), all[2..4]);
    // What was opened anew has the same.
    drop(ledger);
    let ledger = room.open().await;
    assert_eq!(short(&ledger.minutes(TENANT, asked(0..100, 50)).await.unwrap()), all);
    // Old ones go.
    while ledger.prune_minutes(TENANT, 8).await.unwrap() {}
    assert_eq!(short(&ledger.minutes(TENANT, asked(0..100, 50)).await.unwrap()), all[3..]);
}

pub async fn a_correction_counts_in_the_minute_of_the_admission(room: impl Room) {
    let ledger = room.open().await;
    ledger.commit(vec![used(1, Some("chat"), 7, 100)]).await.unwrap();
    let back = Change { usage: Some(delta(0, -40)), ..used(1, Some("chat"), 7, 0) };
    ledger.commit(vec![back]).await.unwrap();
    let rows = ledger.minutes(TENANT, asked(0..100, 50)).await.unwrap();
    assert_eq!(short(&rows), [(7, Some("chat"), 1, 180, 0)]);
}
