//! Daily totals.

use apportion::domain::hold::{Amounts, Hold};
use apportion::domain::ids::Label;
use apportion::domain::quantity::MAX_AMOUNT;
use apportion::ledger::{Change, Ledger, UsageDelta, UsageRow};

use super::Room;
use super::samples::*;

fn used(hold: &Hold, delta: UsageDelta) -> Change {
    Change { usage: Some(delta), ..change(hold) }
}

async fn all(ledger: &dyn Ledger) -> Vec<UsageRow> {
    ledger.usage(TENANT, i32::MIN, i32::MAX).await.unwrap()
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

    let rows = all(&*ledger).await;
    assert_eq!(rows.len(), 8, "one row a group of this tenant");
    assert!(rows.iter().all(|row| row.amounts == amounts(4, 40)), "{rows:?}");
    assert_eq!(rows.iter().filter(|row| row.model.is_none()).count(), 1);
    assert_eq!(rows.iter().filter(|row| row.feature.is_none()).count(), 1);
    assert_eq!(
        rows.iter().filter(|row| row.org.as_ref().is_some_and(|org| org.as_str() == "acme")).count(),
        1
    );
    assert_eq!(ledger.usage(OTHER, i32::MIN, i32::MAX).await.unwrap().len(), 1);
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
    let model = |text: &str| UsageDelta { model: Some(name(text)), ..delta(1, 1) };
    let changes = vec![
        used(&at_day(20, "b"), model("m")),
        used(&at_day(20, "a"), model("z")),
        used(&at_day(20, "a"), model("A")),
        used(&at_day(19, "c"), model("m")),
        used(&at_day(21, "a"), model("m")),
        used(&at_day(-3, "a"), model("m")),
        used(&at_day(20, "B"), model("m")),
    ];
    ledger.commit(changes).await.unwrap();
    let find = async |from, to| -> Vec<String> {
        let rows = ledger.usage(TENANT, from, to).await.unwrap();
        rows.iter().map(|row| format!("{} {} {}", row.day, row.user, row.model.as_ref().unwrap())).collect()
    };
    assert_eq!(find(19, 21).await, ["19 c m", "20 B m", "20 a A", "20 a z", "20 b m"]);
    assert_eq!(find(-5, 0).await, ["-3 a m"]);
    assert_eq!(find(21, 21).await, [""; 0]);
    assert_eq!(find(i32::MIN, i32::MAX).await.len(), 7);
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
