//! Tenants that are suspended and deleted.

use apportion::domain::charge::{AccountKey, TenantRef};
use apportion::domain::hold::Hold;
use apportion::domain::ids::TenantId;
use apportion::domain::plan::Scope;
use apportion::domain::time::Millis;
use apportion::ledger::RecordKind::{Key, Settings};
use apportion::ledger::{Change, Group, Ledger, LedgerError, StoredAccount, UserQuery};

use super::Room;
use super::samples::*;

const FIRST: Millis = Millis(i64::MIN);

async fn tenant(ledger: &dyn Ledger, id: &str) -> TenantRef {
    let first = vec![record(Settings, "", 1, Some("{}")), record(Key, "k1", 1, Some("a key"))];
    ledger.create_tenant(TenantId::parse(id).unwrap(), false, first).await.unwrap().number
}

fn conflicts<T: std::fmt::Debug>(answer: Result<T, LedgerError>) {
    assert!(matches!(answer, Err(LedgerError::Conflict)), "{answer:?}");
}

fn hold_of(tenant: TenantRef, user_id: &str, number: i64) -> Hold {
    // Holds of two tenants have ids of their own.
    Hold { tenant, admits_user: true, ..hold(user_id, i64::from(tenant.0) * 100_000 + number) }
}

fn account_of(tenant: TenantRef, user_id: &str) -> AccountKey {
    AccountKey { tenant, ..key(Scope::User, user_id) }
}

fn step(tenant: TenantRef, user_id: &str, number: i64) -> Change {
    Change {
        usage: Some(delta(1, 10)),
        accounts: vec![(account_of(tenant, user_id), b"state".as_slice().into())],
        ..change(&hold_of(tenant, user_id, number))
    }
}

/// `many` holds, some finished, each of a user of its own.
async fn fill(ledger: &dyn Ledger, tenant: TenantRef, many: i64) {
    let open = (0..many).map(|number| step(tenant, &format!("u{number}"), number));
    ledger.commit(open.collect()).await.unwrap();
    let done = (0..many / 2).map(|number| {
        let hold = hold_of(tenant, &format!("u{number}"), number);
        change(&finished(&Hold { request: Some(mark("r")), ..hold }, 60_000))
    });
    ledger.commit(done.collect()).await.unwrap();
    ledger.put_user(tenant, person("by hand"), written()).await.unwrap();
}

/// How much there is: holds, accounts, days of usage, users, records.
async fn census(ledger: &dyn Ledger, tenant: TenantRef, many: i64) -> [usize; 5] {
    let (mut holds, mut accounts) = (0, 0);
    for number in 0..many {
        let user_id = format!("u{number}");
        let hold = hold_of(tenant, &user_id, number);
        holds += usize::from(ledger.hold(tenant, hold.id).await.unwrap().is_some());
        let account = ledger.account(account_of(tenant, &user_id), FIRST).await.unwrap();
        let StoredAccount { state, unfinished, requests } = &account;
        accounts += usize::from(state.is_some() || !unfinished.is_empty() || !requests.is_empty());
    }
    let users = ledger.users(tenant, UserQuery { limit: 10_000, ..UserQuery::default() }).await.unwrap();
    let usage = ledger.usage(tenant, Group::User, i32::MIN..i32::MAX).await.unwrap();
    let records = ledger.records(Some(tenant)).await.unwrap();
    [holds, accounts, usage.len(), users.len(), records.len()]
}

async fn purge(ledger: &dyn Ledger, tenant: TenantRef, rows: u32) -> u32 {
    let mut portions = 0;
    while ledger.purge_tenant(tenant, rows).await.unwrap() {
        portions += 1;
    }
    portions
}

pub async fn a_suspension_is_kept_until_it_ends(room: impl Room) {
    let ledger = room.open().await;
    let (one, other) = (tenant(&*ledger, "one").await, tenant(&*ledger, "other").await);
    let suspended = async |ledger: &dyn Ledger| -> Vec<TenantRef> {
        let rows = ledger.tenants().await.unwrap();
        rows.iter().filter(|row| row.suspended).map(|row| row.number).collect()
    };
    for _ in 0..2 {
        ledger.suspend_tenant(one, true, written()).await.unwrap();
        assert_eq!(suspended(&*ledger).await, [one]);
    }
    drop(ledger);
    let ledger = room.open().await;
    assert_eq!(suspended(&*ledger).await, [one]);
    ledger.suspend_tenant(one, false, written()).await.unwrap();
    ledger.suspend_tenant(other, false, written()).await.unwrap();
    assert_eq!(suspended(&*ledger).await, []);
    conflicts(ledger.suspend_tenant(TenantRef(4_000_000_000), true, written()).await);
}

pub async fn a_deleted_tenants_id_is_free_and_its_number_is_not(room: impl Room) {
    let ledger = room.open().await;
    let old = tenant(&*ledger, "shop").await;
    let revision = ledger.revision().await.unwrap();
    ledger.delete_tenant(old, written()).await.unwrap();
    assert_eq!(ledger.revision().await.unwrap(), revision + 1);
    assert_eq!(ledger.tenants().await.unwrap(), []);
    assert_eq!(ledger.deleted_tenants().await.unwrap(), [(old, written().at)]);
    conflicts(ledger.delete_tenant(old, written()).await);
    conflicts(ledger.suspend_tenant(old, true, written()).await);
    conflicts(ledger.set_clock(old, at(0), written()).await);
    let new = tenant(&*ledger, "shop").await;
    assert_ne!(new, old);
    purge(&*ledger, old, 1).await;
    assert_eq!(ledger.records(Some(new)).await.unwrap().len(), 2);
    ledger.end_purge(old).await.unwrap();
    assert_eq!(ledger.deleted_tenants().await.unwrap(), []);
}

pub async fn what_a_deleted_tenant_had_goes_in_portions_and_nobody_elses(room: impl Room) {
    let ledger = room.open().await;
    let (gone, stays) = (tenant(&*ledger, "gone").await, tenant(&*ledger, "stays").await);
    for tenant in [gone, stays] {
        fill(&*ledger, tenant, 40).await;
        assert_eq!(census(&*ledger, tenant, 40).await, [40, 40, 40, 41, 2]);
    }
    ledger.delete_tenant(gone, written()).await.unwrap();
    let portions = purge(&*ledger, gone, 7).await;
    assert!(portions >= 40 * 4 / 7, "{portions} portions of 7 rows");
    assert_eq!(census(&*ledger, gone, 40).await, [0; 5]);
    assert!(!ledger.ever_taken(gone).await.unwrap());
    assert_eq!(census(&*ledger, stays, 40).await, [40, 40, 40, 41, 2]);
    ledger.close().await;
    drop(ledger);
    let ledger = room.open().await;
    assert_eq!(census(&*ledger, gone, 40).await, [0; 5], "nor does the journal bring it back");
    assert_eq!(census(&*ledger, stays, 40).await, [40, 40, 40, 41, 2]);
}

pub async fn what_is_under_way_for_a_deleted_tenant_is_left_out(room: impl Room) {
    let ledger = room.open().await;
    let (gone, stays) = (tenant(&*ledger, "gone").await, tenant(&*ledger, "stays").await);
    ledger.commit(vec![step(gone, "u0", 0)]).await.unwrap();
    ledger.delete_tenant(gone, written()).await.unwrap();
    purge(&*ledger, gone, 100).await;
    // A batch that was decided before, with others in it.
    let batch = vec![step(gone, "u1", 1), step(stays, "u1", 1), step(gone, "u0", 0)];
    ledger.commit(batch).await.unwrap();
    conflicts(ledger.put_user(gone, person("late"), written()).await);
    conflicts(ledger.put_record(Some(gone), record(Key, "late", 1, Some("a key"))).await);
    purge(&*ledger, gone, 100).await;
    assert_eq!(census(&*ledger, gone, 2).await, [0; 5]);
    assert!(!ledger.ever_taken(gone).await.unwrap());
    assert_eq!(census(&*ledger, stays, 2).await, [1, 1, 1, 1, 2]);
}

pub async fn a_purge_goes_on_where_it_was_stopped(room: impl Room) {
    let ledger = room.open().await;
    let gone = tenant(&*ledger, "gone").await;
    fill(&*ledger, gone, 30).await;
    ledger.delete_tenant(gone, written()).await.unwrap();
    for _ in 0..4 {
        assert!(ledger.purge_tenant(gone, 5).await.unwrap());
    }
    // No farewell.
    drop(ledger);
    let ledger = room.open().await;
    assert_eq!(ledger.deleted_tenants().await.unwrap(), [(gone, written().at)]);
    assert!(census(&*ledger, gone, 30).await.iter().any(|left| *left > 0));
    purge(&*ledger, gone, 5).await;
    assert_eq!(census(&*ledger, gone, 30).await, [0; 5]);
}
