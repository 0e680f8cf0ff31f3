//! Tenants, and versioned records.

use apportion::domain::charge::TenantRef;
use apportion::domain::ids::TenantId;
use apportion::ledger::RecordKind::{Key, Models, Plan, Pool, Settings};
use apportion::ledger::{Ledger, LedgerError, Record, TenantRow};

use super::Room;
use super::samples::*;

fn tenant(id: &str) -> TenantId {
    TenantId::parse(id).unwrap()
}

async fn put(ledger: &dyn Ledger, records: impl IntoIterator<Item = Record>) {
    for record in records {
        ledger.put_record(Some(TENANT), record).await.unwrap();
    }
}

fn conflicts<T: std::fmt::Debug>(answer: Result<T, LedgerError>) {
    assert!(matches!(answer, Err(LedgerError::Conflict)), "{answer:?}");
}

pub async fn a_tenant_is_created_with_its_first_records_or_not_at_all(room: impl Room) {
    let ledger = room.open().await;
    assert_eq!(ledger.tenants().await.unwrap(), []);
    let first = vec![record(Settings, "", 1, Some("{}")), record(Plan, "free", 1, Some("{\"id\":\"free\"}"))];
    let row = ledger.create_tenant(tenant("demo"), true, first.clone()).await.unwrap();
    assert_eq!((row.id.as_str(), row.test, row.suspended, row.clock), ("demo", true, false, None));
    assert!(row.number.0 > 0);
    let mut records = plain(ledger.records(Some(row.number)).await.unwrap());
    records.sort_by_key(|record| record.kind != Settings);
    assert_eq!(records, first);

    // The second record cannot be a first version: nothing of it stays.
    let bad = vec![record(Settings, "", 1, Some("{}")), record(Plan, "free", 2, Some("{}"))];
    let revision = ledger.revision().await.unwrap();
    conflicts(ledger.create_tenant(tenant("half"), false, bad).await);
    assert_eq!(ledger.tenants().await.unwrap(), std::slice::from_ref(&row));
    assert_eq!(ledger.revision().await.unwrap(), revision);
    let half = ledger.create_tenant(tenant("half"), false, Vec::new()).await.unwrap();
    assert_eq!(plain(ledger.records(Some(half.number)).await.unwrap()), []);
    assert_eq!(ledger.tenants().await.unwrap(), [row, half]);
}

pub async fn a_tenants_id_is_given_once(room: impl Room) {
    let ledger = room.open().await;
    let row = ledger.create_tenant(tenant("demo"), false, Vec::new()).await.unwrap();
    conflicts(ledger.create_tenant(tenant("demo"), true, Vec::new()).await);
    let other = ledger.create_tenant(tenant("demo2"), true, Vec::new()).await.unwrap();
    assert_ne!(row.number, other.number);
    ledger.close().await;
    let ledger = room.open().await;
    assert_eq!(ledger.tenants().await.unwrap(), [row, other]);
}

pub async fn a_clock_is_kept(room: impl Room) {
    let ledger = room.open().await;
    let row = ledger.create_tenant(tenant("demo"), true, Vec::new()).await.unwrap();
    for clock in [at(5), at(0)] {
        ledger.set_clock(row.number, clock, written()).await.unwrap();
        let expected = TenantRow { clock: Some(clock), ..row.clone() };
        assert_eq!(ledger.tenants().await.unwrap(), [expected]);
    }
    conflicts(ledger.set_clock(TenantRef(4_000_000_000), at(0), written()).await);
}

pub async fn the_newest_version_of_each_record_is_listed(room: impl Room) {
    let ledger = room.open().await;
    let old = [record(Plan, "free", 1, Some("1")), record(Plan, "free", 2, Some("2"))];
    let newest = [
        record(Key, "k1", 1, Some("secret")),
        record(Models, "", 1, Some("[]")),
        record(Plan, "Free", 1, Some("other case, other plan")),
        record(Plan, "free", 3, Some("3")),
        record(Pool, "free", 1, Some("a pool of the same name")),
        record(Settings, "", 1, Some("{\"zone\":\"Asia/Tokyo\"}")),
    ];
    put(&*ledger, old.into_iter().chain(newest.clone())).await;
    let mut found = plain(ledger.records(Some(TENANT)).await.unwrap());
    found.sort_by(|a, b| (a.kind.as_str(), &a.id).cmp(&(b.kind.as_str(), &b.id)));
    assert_eq!(found, newest);
}

pub async fn a_deleted_record_is_gone_and_can_come_back(room: impl Room) {
    let ledger = room.open().await;
    put(&*ledger, [record(Key, "k1", 1, Some("a")), record(Key, "k1", 2, None)]).await;
    assert_eq!(plain(ledger.records(Some(TENANT)).await.unwrap()), []);
    conflicts(ledger.put_record(Some(TENANT), record(Key, "k1", 1, Some("b"))).await);
    put(&*ledger, [record(Key, "k1", 3, Some("b"))]).await;
    assert_eq!(plain(ledger.records(Some(TENANT)).await.unwrap()), [record(Key, "k1", 3, Some("b"))]);
}

pub async fn all_versions_are_kept_newest_first(room: impl Room) {
    let ledger = room.open().await;
    let all: Vec<Record> = (1..=12)
        .map(|version| {
            let body = format!("{version}");
            record(Plan, "free", version, (version != 7).then_some(body.as_str()))
        })
        .collect();
    put(&*ledger, all.clone()).await;
    put(&*ledger, [record(Plan, "pro", 1, Some("p")), record(Pool, "free", 1, Some("q"))]).await;
    let mut found = plain(ledger.versions(Some(TENANT), Plan, "free".into()).await.unwrap());
    found.reverse();
    assert_eq!(found, all);
    assert_eq!(plain(ledger.versions(Some(TENANT), Plan, "none".into()).await.unwrap()), []);
}

pub async fn a_version_follows_the_newest_or_conflicts(room: impl Room) {
    let ledger = room.open().await;
    for early in [0, 2, u32::MAX] {
        conflicts(ledger.put_record(Some(TENANT), record(Plan, "free", early, Some("x"))).await);
    }
    put(&*ledger, [record(Plan, "free", 1, Some("1"))]).await;
    for wrong in [0, 1, 3] {
        conflicts(ledger.put_record(Some(TENANT), record(Plan, "free", wrong, Some("x"))).await);
    }
    assert_eq!(ledger.versions(Some(TENANT), Plan, "free".into()).await.unwrap().len(), 1);
}

pub async fn records_belong_to_their_tenant_or_to_nobody(room: impl Room) {
    let ledger = room.open().await;
    let operator = record(Key, "k_op", 1, Some("operator"));
    ledger.put_record(None, operator.clone()).await.unwrap();
    put(&*ledger, [record(Key, "k_1", 1, Some("tenant"))]).await;
    assert_eq!(plain(ledger.records(None).await.unwrap()), [operator]);
    assert_eq!(ledger.records(Some(TENANT)).await.unwrap().len(), 1);
    assert_eq!(plain(ledger.records(Some(OTHER)).await.unwrap()), []);
    assert_eq!(plain(ledger.versions(Some(OTHER), Key, "k_1".into()).await.unwrap()), []);
    assert_eq!(plain(ledger.versions(None, Key, "k_1".into()).await.unwrap()), []);
}

pub async fn of_writers_at_the_same_time_one_wins(room: impl Room) {
    let (server, tool) = (room.open().await, room.open().await);
    for version in 1..=5 {
        let write = |text: String| record(Plan, "free", version, Some(&text));
        let writes = (0..8).map(|writer| {
            let ledger = if writer % 2 == 0 { &server } else { &tool };
            ledger.put_record(Some(TENANT), write(format!("{writer}")))
        });
        let answers = futures_util::future::join_all(writes).await;
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1, "{answers:?}");
        answers.into_iter().filter(Result::is_err).for_each(conflicts);
    }
}

pub async fn the_revision_grows_by_one_with_every_write(room: impl Room) {
    let ledger = room.open().await;
    let mut before = ledger.revision().await.unwrap();
    let mut grows_by = async |by: u64, what: &str| {
        let now = ledger.revision().await.unwrap();
        assert_eq!(now - before, by, "{what}");
        before = now;
    };
    let first = vec![record(Settings, "", 1, Some("{}")), record(Plan, "free", 1, Some("{}"))];
    let row = ledger.create_tenant(tenant("demo"), true, first).await.unwrap();
    grows_by(1, "a tenant with two records").await;
    ledger.set_clock(row.number, at(1), written()).await.unwrap();
    grows_by(1, "a clock").await;
    ledger.put_user(row.number, person("u_1"), written()).await.unwrap();
    grows_by(1, "a user").await;
    ledger.put_record(None, record(Key, "k", 1, Some("x"))).await.unwrap();
    grows_by(1, "a record").await;
    conflicts(ledger.put_record(None, record(Key, "k", 1, Some("x"))).await);
    conflicts(ledger.put_user(row.number, person("u_1"), written()).await);
    grows_by(0, "conflicts").await;
    ledger.commit(vec![change(&full_hold())]).await.unwrap();
    grows_by(0, "a commit").await;
    ledger.note(row.number, note(), written()).await.unwrap();
    grows_by(0, "a note").await;
}
