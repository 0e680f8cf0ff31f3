//! Several processes, and batches that may come on record once only.

use std::sync::Arc;

use apportion::domain::plan::Scope;
use apportion::domain::slot::{Fence, Slot};
use apportion::domain::time::Millis;
use apportion::ledger::{Change, Group, Ledger, LedgerError};
use futures_util::future::join_all;

use super::Room;
use super::samples::*;

fn fence(epoch: u64, from: u64, to: u64) -> Fence {
    Fence { tenant: TENANT, epoch, from, to }
}

/// A hold of `u_1`, its account and its usage.
fn step(number: i64) -> Change {
    let accounts = vec![(key(Scope::User, "u_1"), number.to_string().as_bytes().into())];
    Change { usage: Some(delta(1, 10)), accounts, ..change(&hold("u_1", number)) }
}

fn fenced<T: std::fmt::Debug>(answer: Result<T, LedgerError>) {
    assert!(matches!(answer, Err(LedgerError::Fenced)), "{answer:?}");
}

/// Requests counted in all.
async fn counted(ledger: &dyn Ledger) -> u64 {
    let rows = ledger.usage(TENANT, Group::User, i32::MIN..i32::MAX).await.unwrap();
    rows.iter().map(|row| row.amounts.requests).sum()
}

pub async fn a_fenced_batch_comes_on_record_once(room: impl Room) {
    let ledger = room.open().await;
    assert_eq!(ledger.slot(TENANT).await.unwrap(), Slot { epoch: 1, drained: 0 });
    ledger.commit_fenced(vec![step(1), step(2)], fence(1, 0, 2)).await.unwrap();
    assert_eq!(ledger.slot(TENANT).await.unwrap(), Slot { epoch: 1, drained: 2 });
    fenced(ledger.commit_fenced(vec![step(1), step(2)], fence(1, 0, 2)).await);
    ledger.commit_fenced(vec![step(3)], fence(1, 2, 3)).await.unwrap();
    assert_eq!(counted(&*ledger).await, 3);
    ledger.close().await;
    let ledger = room.open().await;
    assert_eq!(ledger.slot(TENANT).await.unwrap(), Slot { epoch: 1, drained: 3 });
    assert_eq!(counted(&*ledger).await, 3);
    assert_eq!(ledger.slot(OTHER).await.unwrap(), Slot { epoch: 1, drained: 0 });
}

pub async fn a_batch_that_is_not_next_leaves_nothing(room: impl Room) {
    let ledger = room.open().await;
    // Not even begun: nobody has looked at the slot.
    fenced(ledger.commit_fenced(vec![step(1)], fence(1, 0, 1)).await);
    ledger.slot(TENANT).await.unwrap();
    for wrong in [fence(1, 1, 2), fence(2, 0, 1), fence(0, 0, 1)] {
        let new = change(&full_hold());
        fenced(ledger.commit_fenced(vec![step(1), new], wrong).await);
    }
    assert_eq!(counted(&*ledger).await, 0);
    assert_eq!(ledger.hold(TENANT, hold("u_1", 1).id).await.unwrap(), None);
    assert_eq!(ledger.user(TENANT, user("u_42")).await.unwrap(), None, "nor is anybody admitted");
    assert!(!ledger.ever_taken(TENANT).await.unwrap());
    assert_eq!(ledger.slot(TENANT).await.unwrap(), Slot { epoch: 1, drained: 0 });
}

pub async fn a_fence_may_be_all_there_is(room: impl Room) {
    let ledger = room.open().await;
    ledger.slot(TENANT).await.unwrap();
    ledger.commit_fenced(Vec::new(), fence(1, 0, 7)).await.unwrap();
    assert_eq!(ledger.slot(TENANT).await.unwrap().drained, 7);
}

pub async fn a_fenced_batch_may_move_holds(room: impl Room) {
    let ledger = room.open().await;
    ledger.slot(TENANT).await.unwrap();
    ledger.commit_fenced(vec![step(1)], fence(1, 0, 1)).await.unwrap();
    let mut moved = hold("u_1", 1);
    moved.user = user("erased");
    let accounts = vec![(key(Scope::User, "u_1"), [].as_slice().into())];
    let moving =
        || Change { accounts: accounts.clone(), moved: vec![Arc::new(moved.clone())], ..Change::default() };
    fenced(ledger.commit_fenced(vec![moving()], fence(1, 0, 1)).await);
    assert_eq!(ledger.hold(TENANT, moved.id).await.unwrap(), Some(hold("u_1", 1)));
    ledger.commit_fenced(vec![moving()], fence(1, 1, 2)).await.unwrap();
    assert_eq!(ledger.hold(TENANT, moved.id).await.unwrap(), Some(moved));
    let left = ledger.account(key(Scope::User, "u_1"), Millis(0)).await.unwrap();
    assert!(left.state.is_none() && left.unfinished.is_empty());
}

pub async fn an_epoch_is_renewed_once(room: impl Room) {
    let (one, other) = (room.open().await, room.open().await);
    one.slot(TENANT).await.unwrap();
    one.commit_fenced(vec![step(1)], fence(1, 0, 4)).await.unwrap();
    let renewed =
        join_all((0..6).map(|n| if n % 2 == 0 { &one } else { &other }.renew_slot(TENANT, 1))).await;
    for slot in renewed {
        assert_eq!(slot.unwrap(), Slot { epoch: 2, drained: 4 });
    }
    fenced(other.commit_fenced(vec![step(2)], fence(1, 4, 5)).await);
    other.commit_fenced(vec![step(2)], fence(2, 4, 5)).await.unwrap();
    assert_eq!(one.slot(TENANT).await.unwrap(), Slot { epoch: 2, drained: 5 });
    assert_eq!(one.renew_slot(OTHER, 1).await.unwrap(), Slot { epoch: 2, drained: 0 });
}

pub async fn of_processes_that_record_the_same_changes_one_does(room: impl Room) {
    let (one, other) = (room.open().await, room.open().await);
    one.slot(TENANT).await.unwrap();
    for round in 0..10 {
        let batch = || vec![step(2 * round as i64), step(2 * round as i64 + 1)];
        let write = |n: u64| {
            if n.is_multiple_of(2) { &one } else { &other }.commit_fenced(batch(), fence(1, round, round + 1))
        };
        let answers = join_all((0..6).map(write)).await;
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1, "{answers:?}");
        answers.into_iter().filter(Result::is_err).for_each(fenced);
    }
    assert_eq!(counted(&*other).await, 20);
    assert_eq!(one.slot(TENANT).await.unwrap(), Slot { epoch: 1, drained: 10 });
}

pub async fn a_deleted_tenants_slot_goes_and_does_not_come_back(room: impl Room) {
    let ledger = room.open().await;
    let id = apportion::domain::ids::TenantId::parse("gone").unwrap();
    let gone = ledger.create_tenant(id, false, Vec::new()).await.unwrap().number;
    ledger.slot(gone).await.unwrap();
    ledger.delete_tenant(gone, written()).await.unwrap();
    while ledger.purge_tenant(gone, 10).await.unwrap() {}
    let late = ledger.slot(gone).await;
    assert!(matches!(late, Err(LedgerError::Conflict)), "{late:?}");
    fenced(ledger.commit_fenced(vec![step(1)], Fence { tenant: gone, epoch: 1, from: 0, to: 1 }).await);
}

pub async fn writes_of_two_processes_have_a_revision_each(room: impl Room) {
    let (one, other) = (room.open().await, room.open().await);
    let before = one.revision().await.unwrap();
    let writes = (0..20).map(|n| {
        let ledger = if n % 2 == 0 { &one } else { &other };
        ledger.put_user(TENANT, person(&format!("u{n}")), written())
    });
    join_all(writes).await.into_iter().for_each(|answer| answer.unwrap());
    let mut born = Vec::new();
    for n in 0..20 {
        born.push(other.user(TENANT, user(&format!("u{n}"))).await.unwrap().unwrap().born);
    }
    born.sort_unstable();
    assert_eq!(born, (before + 1..=before + 20).collect::<Vec<_>>());
    assert_eq!(one.revision().await.unwrap(), before + 20);
    // Of writers of the same user one wins; nobody waits for ever.
    for version in 1..=5 {
        let mut next = person("same");
        next.version = version;
        let writes =
            (0..8).map(|n| if n % 2 == 0 { &one } else { &other }.put_user(TENANT, next.clone(), written()));
        let answers = join_all(writes).await;
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1, "{answers:?}");
        assert!(
            answers
                .iter()
                .filter_map(|answer| answer.as_ref().err())
                .all(|e| matches!(e, LedgerError::Conflict))
        );
    }
    assert_eq!(one.revision().await.unwrap(), before + 25);
}

pub async fn a_new_database_may_be_opened_by_many_at_once<R: Room>(_: R) {
    let Some(room) = R::bare() else { return };
    let ledgers = join_all((0..4).map(|_| room.open())).await;
    for (n, ledger) in ledgers.iter().enumerate() {
        assert_eq!(ledger.revision().await.unwrap(), n as u64);
        ledger.put_user(TENANT, person(&format!("u{n}")), written()).await.unwrap();
    }
}
