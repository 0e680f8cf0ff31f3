//! Daily totals.

use apportion::domain::hold::{Amounts, Hold};
use apportion::domain::ids::Label;
use apportion::domain::quantity::MAX_AMOUNT;
use apportion::ledger::{Change, Group, Ledger, UsageDelta, UsageRow};

use super::Room;
use super::samples::*;

fn used(hold: &Hold, delta: UsageDelta) -> Change {
    Change { usage: Some(delta), ..change(hold) }
}

async fn all(ledger: &dyn Ledger) -> Vec<UsageRow> {
    ledger.usage(TENANT, Group::User, i32::MIN..i32::MAX).await.unwrap()
}

fn amounts(requests: u64, tokens: u64) -> Amounts {
    Amounts {
        requests,
        input_tokens: tokens,
        output_tokens: 2 * tokens,
        total_tokens: 3 * tokens,
        credits: 4 * tokens,
    }
}

pub async fn usage_adds_up_by_day_and_group(room: impl Room) {
    let ledger = room.open().await;
    let base = hold("u_1", 1);
    let groups = [
        base.clone(),
        Hold { day: base.day + 1, ..base.clone() },
        Hold { user: user("u_2"), ..base.clone() },
        Hold { org: Some(name("acme")), ..base.clone() },
        Hold { plan: name("pro"), ..base.clone() },
        Hold { feature: None, ..base.clone() },
        Hold { feature: Some(Label::parse("search").unwrap()), ..base.clone() },
        Hold { tenant: OTHER, ..base.clone() },
    ];
    let mut changes: Vec<Change> = groups.iter().map(|hold| used(hold, delta(1, 10))).collect();
    changes.push(used(&base, UsageDelta { model: None, ..delta(1, 10) }));
    changes.extend(changes.clone());
    ledger.commit(changes.clone()).await.unwrap();
    ledger.commit(changes).await.unwrap();

    // Each hold came four times.
    let of = async |group: Group| -> Vec<String> {
        let rows = ledger.usage(TENANT, group, i32::MIN..i32::MAX).await.unwrap();
        let row = |row: &UsageRow| {
            let times = row.amounts.requests / 4;
            assert_eq!(row.amounts, amounts(4 * times, 40 * times));
            format!("{} {} {times}", row.day - base.day, row.name.as_deref().unwrap_or("-"))
        };
        rows.iter().map(row).collect()
    };
    assert_eq!(of(Group::User).await, ["0 u_1 6", "0 u_2 1", "1 u_1 1"]);
    assert_eq!(of(Group::Org).await, ["0 - 6", "0 acme 1", "1 - 1"]);
    assert_eq!(of(Group::Plan).await, ["0 free 6", "0 pro 1", "1 free 1"]);
    assert_eq!(of(Group::Feature).await, ["0 - 1", "0 chat 5", "0 search 1", "1 chat 1"]);
    assert_eq!(of(Group::Model).await, ["0 - 1", "0 claude-opus-5 6", "1 claude-opus-5 1"]);
    assert_eq!(ledger.usage(OTHER, Group::User, i32::MIN..i32::MAX).await.unwrap().len(), 1);
}

pub async fn usage_saturates_instead_of_overflowing(room: impl Room) {
    let ledger = room.open().await;
    let base = hold("u_1", 1);
    let most = UsageDelta { credits: i64::MAX, total_tokens: MAX_AMOUNT as i64, ..delta(1, 10) };
    for _ in 0..3 {
        ledger.commit(vec![used(&base, most.clone()), used(&base, most.clone())]).await.unwrap();
    }
    let row = all(&*ledger).await.remove(0);
    assert_eq!((row.amounts.credits, row.amounts.total_tokens), (MAX_AMOUNT, MAX_AMOUNT));
    assert_eq!((row.amounts.requests, row.amounts.input_tokens), (6, 60), "the others stay exact");
    let least = UsageDelta { credits: i64::MIN, ..delta(0, 0) };
    for _ in 0..3 {
        ledger.commit(vec![used(&base, least.clone())]).await.unwrap();
    }
    assert_eq!(all(&*ledger).await[0].amounts.credits, 0, "a sum below zero shows as zero");
}

pub async fn usage_comes_in_order_and_within_its_days(room: impl Room) {
    let ledger = room.open().await;
    let at_day = |day, user_id: &str| Hold { day, user: user(user_id), ..hold("u", 1) };
    let changes = [(20, "b"), (20, "a"), (20, "a"), (19, "c"), (21, "a"), (-3, "a"), (20, "B")];
    let changes = changes.map(|(day, user)| used(&at_day(day, user), delta(1, 1)));
    ledger.commit(changes.into()).await.unwrap();
    let find = async |from, to| -> Vec<String> {
        let rows = ledger.usage(TENANT, Group::User, from..to).await.unwrap();
        rows.iter().map(|row| format!("{} {}", row.day, row.name.as_ref().unwrap())).collect()
    };
    assert_eq!(find(19, 21).await, ["19 c", "20 B", "20 a", "20 b"]);
    assert_eq!(find(-5, 0).await, ["-3 a"]);
    assert_eq!(find(21, 21).await, [""; 0]);
    assert_eq!(find(i32::MIN, i32::MAX).await.len(), 6);
}

pub async fn a_correction_moves_usage(room: impl Room) {
    let ledger = room.open().await;
    let base = hold("u_1", 1);
    ledger.commit(vec![used(&base, delta(1, 100))]).await.unwrap();
    let less = UsageDelta { requests: 0, ..delta(-1, -60) };
    ledger.commit(vec![used(&base, less)]).await.unwrap();
    assert_eq!(all(&*ledger).await[0].amounts, amounts(1, 40));
    // Taken back before it came: the sum is what both come to.
    let base = hold("u_2", 2);
    ledger.commit(vec![used(&base, delta(-1, -60))]).await.unwrap();
    ledger.commit(vec![used(&base, delta(2, 100))]).await.unwrap();
    assert_eq!(all(&*ledger).await[1].amounts, amounts(1, 40));
}
