//! Old holds go, and what was added up stays.

use apportion::domain::charge::TenantRef;
use apportion::domain::hold::Hold;
use apportion::domain::ids::{HoldId, TenantId};
use apportion::domain::plan::Scope;
use apportion::domain::time::Millis;
use apportion::ledger::{Change, Group, Ledger, Pruned, Pruning};

use super::Room;
use super::samples::*;

const DAY: i64 = 86_400_000;
const KEPT_DAYS: i64 = 400;

/// A walk at `START` + `days`, in steps of `rows`.
fn walk(days: i64, rows: u32) -> Pruning {
    Pruning { now: at(days * DAY), keep_ms: KEPT_DAYS * DAY, rows, every_ms: DAY }
}

/// Goes the whole walk; tells how many went in how many steps.
async fn prune(ledger: &dyn Ledger, asked: Pruning) -> (u64, u32) {
    let (mut gone, mut steps) = (0, 0);
    while let Pruned::Rows(rows) = ledger.prune_holds(asked).await.unwrap() {
        gone += rows;
        steps += 1;
    }
    (gone, steps)
}

async fn tenant(ledger: &dyn Ledger, id: &str, clock: Option<Millis>) -> TenantRef {
    let id = TenantId::parse(id).unwrap();
    let row = ledger.create_tenant(id, clock.is_some(), Vec::new()).await.unwrap();
    if let Some(clock) = clock {
        ledger.set_clock(row.number, clock, written()).await.unwrap();
    }
    row.number
}

/// A hold of the tenant that was made on that day, and finished on the other.
fn made(tenant: TenantRef, number: i64, day: i64, finished_day: Option<i64>) -> Hold {
    let open = Hold { tenant, ..hold("u", day * DAY + number) };
    match finished_day {
        Some(finished_day) => finished(&open, finished_day * DAY + number),
        None => open,
    }
}

async fn commit(ledger: &dyn Ledger, holds: &[Hold]) {
    let changes = holds.iter().map(|hold| Change { usage: Some(delta(1, 10)), ..change(hold) });
    ledger.commit(changes.collect()).await.unwrap();
}

async fn left(ledger: &dyn Ledger, holds: &[Hold]) -> Vec<bool> {
    let mut left = Vec::new();
    for hold in holds {
        left.push(ledger.hold(hold.tenant, hold.id).await.unwrap().is_some());
    }
    left
}

pub async fn finished_holds_go_once_they_are_old_and_sums_stay(room: impl Room) {
    let ledger = room.open().await;
    let tenant = tenant(&*ledger, "shop", None).await;
    // An id that tells no time, as booked use has.
    let booked = Hold { id: HoldId(u128::MAX / 3 * 2), ..made(tenant, 5, 0, Some(0)) };
    let holds = [
        made(tenant, 1, 0, Some(0)),
        made(tenant, 2, 0, Some(1)),
        made(tenant, 3, 0, Some(2)),
        made(tenant, 4, 0, None),
        booked,
        made(tenant, 6, 300, Some(300)),
    ];
    commit(&*ledger, &holds).await;
    let mut account = change(&holds[0]);
    account.accounts.push((AccountOf(tenant).key(), [1, 2, 3][..].into()));
    ledger.commit(vec![account]).await.unwrap();
    let sums = ledger.usage(tenant, Group::User, i32::MIN..i32::MAX).await.unwrap();

    assert_eq!(prune(&*ledger, walk(KEPT_DAYS, 100)).await.0, 0, "they are kept for so long");
    assert_eq!(prune(&*ledger, walk(KEPT_DAYS + 2, 100)).await.0, 3);
    assert_eq!(left(&*ledger, &holds).await, [false, false, true, true, false, true]);
    assert_eq!(prune(&*ledger, walk(KEPT_DAYS + 3, 100)).await.0, 1);
    assert_eq!(left(&*ledger, &holds).await, [false, false, false, true, false, true], "what is open stays");

    assert_eq!(ledger.usage(tenant, Group::User, i32::MIN..i32::MAX).await.unwrap(), sums);
    let stored = ledger.account(AccountOf(tenant).key(), Millis(0)).await.unwrap();
    assert_eq!(stored.state.as_deref(), Some(&[1, 2, 3][..]));
    assert_eq!(stored.unfinished.len(), 1);
    assert!(ledger.ever_taken(tenant).await.unwrap());
}

struct AccountOf(TenantRef);

impl AccountOf {
    fn key(&self) -> apportion::domain::charge::AccountKey {
        apportion::domain::charge::AccountKey { tenant: self.0, ..key(Scope::User, "u") }
    }
}

pub async fn holds_are_old_by_their_tenants_clock(room: impl Room) {
    let ledger = room.open().await;
    let real = tenant(&*ledger, "real", None).await;
    let behind = tenant(&*ledger, "behind", Some(at(10 * DAY))).await;
    let ahead = tenant(&*ledger, "ahead", Some(at(2_000 * DAY))).await;
    let gone = tenant(&*ledger, "gone", None).await;
    let holds = [
        made(real, 1, 0, Some(0)),
        made(behind, 2, 0, Some(0)),
        made(ahead, 3, 1_599, Some(1_599)),
        made(ahead, 4, 1_601, Some(1_601)),
        made(gone, 5, 0, Some(0)),
    ];
    commit(&*ledger, &holds).await;
    ledger.delete_tenant(gone, written()).await.unwrap();
    assert_eq!(prune(&*ledger, walk(KEPT_DAYS + 1, 100)).await.0, 2);
    assert_eq!(left(&*ledger, &holds[..4]).await, [false, true, false, true]);
    ledger.set_clock(behind, at((KEPT_DAYS + 1) * DAY), written()).await.unwrap();
    assert_eq!(prune(&*ledger, walk(KEPT_DAYS + 3, 100)).await.0, 1);
    assert_eq!(left(&*ledger, &holds[1..2]).await, [false]);
}

pub async fn one_process_walks_at_a_time_and_another_goes_on(room: impl Room) {
    let ledger = room.open().await;
    let tenant = tenant(&*ledger, "shop", None).await;
    let holds: Vec<Hold> = (1..=50).map(|number| made(tenant, number, 0, Some(0))).collect();
    commit(&*ledger, &holds).await;
    let asked = walk(KEPT_DAYS + 1, 10);
    assert_eq!(ledger.prune_holds(asked).await.unwrap(), Pruned::Rows(10));
    assert_eq!(ledger.prune_holds(asked).await.unwrap(), Pruned::Rows(10));
    let other = room.open().await;
    assert_eq!(other.prune_holds(asked).await.unwrap(), Pruned::Nothing, "somebody is at it");
    ledger.close().await;
    let later = Pruning { now: asked.now.plus_ms(60_000), ..asked };
    let (gone, steps) = prune(&*other, later).await;
    assert_eq!(gone, 30);
    assert!((4..=6).contains(&steps), "three steps with holds and the end, not {steps}");
    assert_eq!(left(&*other, &holds).await, vec![false; 50]);
    assert_eq!(other.prune_holds(later).await.unwrap(), Pruned::Nothing, "until the next walk");
}
