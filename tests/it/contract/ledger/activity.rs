//! What users used of late, five minutes by five minutes.

use std::sync::Arc;

use apportion::domain::charge::TenantRef;
use apportion::ledger::{Erasure, Ledger, Mover, MoversQuery, Tally, UsedSlot};

use super::Room;
use super::samples::*;

async fn tell(ledger: &dyn Ledger, rows: &[(TenantRef, &str, i64, i64)]) {
    let used = rows.iter().map(|&(tenant, id, slot, tokens)| UsedSlot {
        tenant,
        user: user(id),
        slot,
        figures: [1, tokens, 0, tokens, 0],
    });
    ledger.add_tally(Arc::new(Tally { used: used.collect(), ..Tally::default() })).await.unwrap();
}

fn mover(id: &str, plan: Option<&str>, [requests, total_tokens, before, before_slots]: [u64; 4]) -> Mover {
    Mover { user: id.into(), plan: plan.map(str::to_owned), requests, total_tokens, before, before_slots }
}

pub async fn what_users_used_of_late_stands_beside_what_they_used_before(room: impl Room) {
    let ledger = room.open().await;
    ledger.put_user(TENANT, person("a"), written()).await.unwrap();
    let rows = [
        (TENANT, "a", 99, 50),
        (TENANT, "a", 50, 7),
        (TENANT, "a", 49, 3),
        (TENANT, "a", 9, 1_000),
        (TENANT, "b", 98, 60),
        (TENANT, "c", 99, 10),
        (TENANT, "d", 97, 500),
        (OTHER, "a", 99, 90),
    ];
    tell(&*ledger, &rows).await;
    // What came since, and a correction.
    tell(&*ledger, &[(TENANT, "a", 99, 20), (TENANT, "a", 50, 4), (TENANT, "a", 50, -1)]).await;
    let asked = |least, users| MoversQuery { slots: 98..100, since: 10, least, users };
    let of_a = mover("a", Some("free"), [2, 70, 13, 2]);
    let of_b = mover("b", None, [1, 60, 0, 0]);
    let found = ledger.movers(TENANT, asked(10, 10)).await.unwrap();
    assert_eq!(found, [of_a.clone(), of_b.clone(), mover("c", None, [1, 10, 0, 0])]);
    assert_eq!(ledger.movers(TENANT, asked(11, 10)).await.unwrap(), [of_a.clone(), of_b]);
    assert_eq!(ledger.movers(TENANT, asked(0, 1)).await.unwrap(), [of_a]);
}

pub async fn what_a_user_used_of_late_goes_with_time_and_with_the_user(room: impl Room) {
    let ledger = room.open().await;
    tell(&*ledger, &[(TENANT, "a", 98, 5), (TENANT, "a", 10, 5), (TENANT, "b", 98, 5), (OTHER, "a", 98, 5)])
        .await;
    let before = async |tenant| {
        let asked = MoversQuery { slots: 98..99, since: 0, least: 0, users: 10 };
        let found = ledger.movers(tenant, asked).await.unwrap();
        found.iter().map(|of| (of.user.clone(), of.before)).collect::<Vec<_>>()
    };
    assert_eq!(before(TENANT).await, [("a".to_owned(), 5), ("b".to_owned(), 0)]);
    assert!(!ledger.prune_user_slots(TENANT, 11).await.unwrap());
    assert_eq!(before(TENANT).await, [("a".to_owned(), 0), ("b".to_owned(), 0)]);
    let erasure = Erasure { user: user("a"), pseudonym: user("erased_1") };
    while ledger.rename_history(TENANT, erasure.clone(), 10).await.unwrap().is_some() {}
    assert_eq!(before(TENANT).await, [("b".to_owned(), 0)]);
    assert_eq!(before(OTHER).await, [("a".to_owned(), 0)]);
}
