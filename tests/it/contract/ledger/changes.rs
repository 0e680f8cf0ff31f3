//! What other processes are told to read again.

use apportion::domain::charge::TenantRef;
use apportion::domain::ids::TenantId;
use apportion::ledger::RecordKind::{Key, Plan, Pool, Settings};
use apportion::ledger::{Bucket, Changed, Changes, Erasure, Ledger, Org, PoolCondition, Told, User, What};

use super::Room;
use super::samples::*;

const LIMIT: u32 = 100;

async fn told(ledger: &dyn Ledger, since: u64) -> Vec<Told> {
    let changes = ledger.changes_since(since, LIMIT).await.unwrap();
    assert_eq!(changes.upto, ledger.revision().await.unwrap());
    changes.told.expect("not everything")
}

fn of(tenant: TenantRef, what: What) -> Changed {
    Changed { tenant: Some(tenant), what }
}

fn user_of(tenant: TenantRef, id: &str) -> Changed {
    of(tenant, What::User(Bucket::of(tenant, id)))
}

fn org(id: &str) -> Org {
    Org {
        id: name(id),
        plan: None,
        plan_since: at(0),
        zone: None,
        rights: None,
        created_at: at(0),
        born: 0,
        moved: 0,
        version: 1,
    }
}

/// What is new since the last time, which is one revision.
struct Ear<'l> {
    ledger: &'l dyn Ledger,
    heard: u64,
}

impl Ear<'_> {
    async fn hears(&mut self, expected: &[Changed], what: &str) {
        let told = told(self.ledger, self.heard).await;
        let revisions: Vec<u64> = told.iter().map(|told| told.revision).collect();
        assert_eq!(revisions, vec![self.heard + 1; expected.len()], "{what}");
        for changed in expected {
            assert!(told.iter().any(|told| told.changed == *changed), "{what}: {told:?}");
        }
        self.heard += 1;
        self.hears_nothing(what).await;
    }

    async fn hears_nothing(&self, what: &str) {
        assert_eq!(told(self.ledger, self.heard).await, [], "{what}");
        assert_eq!(self.ledger.revision().await.unwrap(), self.heard, "{what}");
    }
}

pub async fn every_write_tells_what_it_changed(room: impl Room) {
    let ledger = &*room.open().await;
    let mut ear = Ear { ledger, heard: ledger.revision().await.unwrap() };
    let first = vec![record(Settings, "", 1, Some("{}")), record(Plan, "free", 1, Some("{}"))];
    let row = ledger.create_tenant(TenantId::parse("demo").unwrap(), true, first).await.unwrap();
    let tenant = row.number;
    ear.hears(&[of(tenant, What::Tenant)], "a tenant comes").await;
    ledger.set_clock(tenant, at(1), written()).await.unwrap();
    ear.hears(&[of(tenant, What::Tenant)], "a clock").await;
    ledger.suspend_tenant(tenant, true, written()).await.unwrap();
    ear.hears(&[of(tenant, What::Tenant)], "a suspension").await;
    ledger.put_record(Some(tenant), record(Plan, "free", 2, None)).await.unwrap();
    ear.hears(&[of(tenant, What::Record(Plan, "free".into()))], "a record that goes").await;
    ledger.put_record(None, record(Key, "k", 1, Some("x"))).await.unwrap();
    let key = Changed { tenant: None, what: What::Record(Key, "k".into()) };
    ear.hears(&[key], "an operator's key").await;
    ledger.put_user(tenant, person("u_1"), written()).await.unwrap();
    ear.hears(&[user_of(tenant, "u_1")], "a user").await;
    ledger.put_user(tenant, User { version: 2, ..person("u_1") }, written()).await.unwrap();
    ear.hears(&[user_of(tenant, "u_1")], "a user again").await;
    ledger.put_org(tenant, org("acme"), written()).await.unwrap();
    ear.hears(&[of(tenant, What::Org(Bucket::of(tenant, "acme")))], "an org").await;
    let condition = PoolCondition { pool: "p".into(), version: 1, body: "{}".into() };
    ledger.put_condition(tenant, condition, None).await.unwrap();
    ear.hears(&[of(tenant, What::Record(Pool, "p".into()))], "a pool's condition").await;
    ledger.delete_tenant(tenant, written()).await.unwrap();
    ear.hears(&[of(tenant, What::Tenant)], "a tenant goes").await;
    while ledger.purge_tenant(tenant, 100).await.unwrap() {}
    ledger.end_purge(tenant).await.unwrap();
    ear.hears_nothing("a purge").await;
    let all = told(ledger, ear.heard - 10).await;
    assert_eq!(all.last().unwrap().changed, of(tenant, What::Tenant), "after the purge as well");
}

pub async fn an_erasure_tells_of_both_records_and_leaves_no_id(room: impl Room) {
    let ledger = &*room.open().await;
    ledger.put_user(TENANT, person("u_1"), written()).await.unwrap();
    let mut ear = Ear { ledger, heard: ledger.revision().await.unwrap() };
    let erasure = || Erasure { user: user("u_1"), pseudonym: user("erased_1") };
    let both = [of(TENANT, What::Tenant), user_of(TENANT, "u_1"), user_of(TENANT, "erased_1")];
    ledger.erase_user(TENANT, erasure(), None, written()).await.unwrap();
    ear.hears(&both, "an erasure begins").await;
    while ledger.rename_history(TENANT, erasure(), 100).await.unwrap().is_some() {}
    ear.hears_nothing("the past").await;
    ledger.end_erasure(TENANT, erasure(), Some(at(1))).await.unwrap();
    ear.hears(&both, "an erasure ends").await;
    ledger.begin_return(TENANT, erasure(), at(1)).await.unwrap();
    ear.hears_nothing("a return is about to be").await;
    ledger.return_user(TENANT, erasure(), written()).await.unwrap();
    ear.hears(&both, "a return").await;
    ledger.erase_user(TENANT, erasure(), None, written()).await.unwrap();
    ear.hears(&both, "an erasure again").await;
    ledger.look_at_erased(TENANT, user("erased_1"), Some(at(2))).await.unwrap();
    ear.hears_nothing("another look").await;
    ledger.forget_erased(TENANT, user("erased_1")).await.unwrap();
    ear.hears(&[user_of(TENANT, "erased_1")], "a record that goes").await;
}

pub async fn what_changes_no_record_is_not_told(room: impl Room) {
    let ledger = &*room.open().await;
    let ear = Ear { ledger, heard: ledger.revision().await.unwrap() };
    // Nobody keeps users at hand who are not on record.
    ledger.commit(vec![change(&full_hold())]).await.unwrap();
    ledger.note(TENANT, note(), written()).await.unwrap();
    ledger.put_user(TENANT, User { version: 7, ..person("u_1") }, written()).await.unwrap_err();
    ledger.put_record(None, record(Key, "k", 2, Some("x"))).await.unwrap_err();
    ear.hears_nothing("a commit, a note, two conflicts").await;
}

pub async fn whoever_asks_knows_their_own_writes(room: impl Room) {
    let (here, there) = (room.open().await, room.open().await);
    let before = here.revision().await.unwrap();
    here.put_user(TENANT, person("a"), written()).await.unwrap();
    there.put_user(TENANT, person("b"), written()).await.unwrap();
    here.put_user(TENANT, person("c"), written()).await.unwrap();
    let ours = async |ledger: &dyn Ledger| -> Vec<bool> {
        told(ledger, before).await.iter().map(|told| told.ours).collect()
    };
    assert_eq!(ours(&*here).await, [true, false, true]);
    assert_eq!(ours(&*there).await, [false, true, false]);
    let later = room.open().await;
    assert_eq!(ours(&*later).await, [false; 3], "a process that starts has written nothing yet");
    assert_eq!(told(&*here, before + 2).await.len(), 1);
}

pub async fn whoever_is_too_far_behind_or_ahead_is_told_so(room: impl Room) {
    let ledger = &*room.open().await;
    let before = ledger.revision().await.unwrap();
    for version in 1..=5 {
        ledger.put_user(TENANT, User { version, ..person("u_1") }, written()).await.unwrap();
    }
    let upto = before + 5;
    let since = async |revision: u64, limit: u32| ledger.changes_since(revision, limit).await.unwrap();
    assert_eq!(since(before, 5).await.told.map(|told| told.len()), Some(5));
    assert_eq!(since(before, 4).await, Changes { upto, told: None });
    assert_eq!(since(before + 1, 4).await.told.map(|told| told.len()), Some(4));
    assert_eq!(since(upto, 0).await, Changes { upto, told: Some(Vec::new()) });
    // As after a restore of an older backup.
    assert_eq!(since(upto + 1, 5).await, Changes { upto, told: None });
    assert_eq!(since(u64::MAX >> 1, 5).await, Changes { upto, told: None });
}

pub async fn changes_come_in_order_while_many_write(room: impl Room) {
    let (here, there) = (room.open().await, room.open().await);
    let before = here.revision().await.unwrap();
    let ids: Vec<String> = (0..40).map(|number| format!("u_{number}")).collect();
    let writes = ids.iter().enumerate().map(|(n, id)| {
        let ledger = if n % 2 == 0 { &here } else { &there };
        ledger.put_user(TENANT, person(id), written())
    });
    let mut writes = std::pin::pin!(futures_util::future::join_all(writes));
    let (mut at, mut heard) = (before, Vec::new());
    let mut is_done = false;
    while !is_done {
        is_done = tokio::select! {
            answers = &mut writes => { answers.into_iter().for_each(|answer| answer.unwrap()); true }
            () = tokio::task::yield_now() => false,
        };
        // Whatever was told up to a revision, nothing comes before it later.
        let changes = there.changes_since(at, LIMIT).await.unwrap();
        let told = changes.told.unwrap();
        assert!(told.iter().map(|told| told.revision).eq(at + 1..=changes.upto));
        heard.extend(told.into_iter().map(|told| told.changed));
        at = changes.upto;
    }
    assert_eq!(at, before + 40);
    for id in &ids {
        assert!(heard.contains(&user_of(TENANT, id)), "{id}");
    }
}
