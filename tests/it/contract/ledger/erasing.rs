//! Users whose identity is erased.

use std::collections::BTreeSet;
use std::sync::Arc;

use apportion::domain::hold::{Amounts, Hold};
use apportion::domain::plan::Scope;
use apportion::domain::time::Millis;
use apportion::ledger::{
    AuditQuery, Change, Erasure, Figure, Group, Ledger, LedgerError, RankingQuery, Signals, User, UserQuery,
    Written,
};

use super::Room;
use super::samples::*;
use super::tallies::{add, counts, history, refused};

fn erasure() -> Erasure {
    Erasure { user: user("u_1"), pseudonym: user("erased_1") }
}

async fn users(ledger: &dyn Ledger) -> Vec<String> {
    let all = ledger.users(TENANT, UserQuery { limit: 10, ..UserQuery::default() }).await.unwrap();
    all.into_iter().map(|user| user.id.as_str().to_owned()).collect()
}

/// A move of these holds, as they stand, and of the account.
fn moving(from: &str, to: &str, holds: &[Hold], state: &[u8]) -> Change {
    let moved = holds.iter().map(|hold| Arc::new(Hold { user: user(to), ..hold.clone() })).collect();
    let accounts = vec![(key(Scope::User, from), [].into()), (key(Scope::User, to), state.into())];
    Change { accounts, moved, ..Change::default() }
}

pub async fn a_record_goes_over_to_a_pseudonym_and_comes_back(room: impl Room) {
    let ledger = room.open().await;
    let signals = Some(Signals { device: Some("phone".into()), address: None });
    let known = User { signals, verified: true, suspended: true, ..person("u_1") };
    ledger.put_user(TENANT, known.clone(), written()).await.unwrap();
    ledger.put_user(TENANT, person("u_2"), written()).await.unwrap();
    let revision = ledger.revision().await.unwrap();
    for version in [0, 2] {
        let erased = ledger.erase_user(TENANT, erasure(), Some(version), written()).await;
        assert!(matches!(erased, Err(LedgerError::Conflict)), "version {version}");
    }
    assert_eq!(ledger.revision().await.unwrap(), revision);
    ledger.erase_user(TENANT, erasure(), Some(1), written()).await.unwrap();
    assert_eq!(ledger.revision().await.unwrap(), revision + 1);
    assert!(ledger.user(TENANT, user("u_1")).await.unwrap().is_none());
    let erased = ledger.user(TENANT, user("erased_1")).await.unwrap().unwrap();
    let expected = User { id: user("erased_1"), signals: None, erased: true, version: 2, ..known.clone() };
    assert_eq!(as_written(erased), expected);
    assert_eq!(users(&*ledger).await, ["u_2"]);
    assert!(ledger.tenants().await.unwrap().iter().all(|row| row.has_erased == (row.number == TENANT)));
    assert_eq!(ledger.erasures(TENANT).await.unwrap(), [erasure()]);
    assert!(ledger.erasures(OTHER).await.unwrap().is_empty());
    let audit = AuditQuery { limit: 1, ..AuditQuery::default() };
    let row = ledger.audit(TENANT, audit).await.unwrap().pop().unwrap();
    assert_eq!(
        (row.action.as_str(), row.target.as_str(), row.written),
        ("user.erase", "erased_1", written())
    );
    for again in [user("u_1"), user("erased_1")] {
        let erasure = Erasure { user: again, pseudonym: user("erased_2") };
        let erased = ledger.erase_user(TENANT, erasure, None, written()).await;
        assert!(matches!(erased, Err(LedgerError::Conflict)));
    }

    // A check that knew nothing of the user came in between: the record that is stays.
    let hold = Hold { admits_user: true, ..hold("u_1", 1) };
    ledger.commit(vec![change(&hold)]).await.unwrap();
    assert!(ledger.user(TENANT, user("u_1")).await.unwrap().is_some());
    ledger.end_erasure(TENANT, erasure(), None).await.unwrap();
    assert_eq!((users(&*ledger).await.len(), ledger.erasures(TENANT).await.unwrap().len()), (1, 0));

    ledger.begin_return(TENANT, erasure(), at(1)).await.unwrap();
    ledger.close().await;
    let ledger = room.open().await;
    assert_eq!(ledger.erasures(TENANT).await.unwrap(), [erasure()]);
    ledger.return_user(TENANT, erasure(), Written { reason: None, ..written() }).await.unwrap();
    let back = ledger.user(TENANT, user("u_1")).await.unwrap().unwrap();
    assert_eq!(as_written(back), User { signals: None, version: 3, ..known });
    assert!(ledger.erasures(TENANT).await.unwrap().is_empty());
    let again = ledger.return_user(TENANT, erasure(), written()).await;
    assert!(matches!(again, Err(LedgerError::Conflict)));
}

pub async fn holds_and_accounts_go_over_in_one_commit(room: impl Room) {
    let ledger = room.open().await;
    let open = Hold { request: Some(mark("r")), org: Some(name("acme")), ..hold("u_1", 1) };
    let closing = hold("u_1", 2);
    let other = hold("u_2", 3);
    let mut first: Vec<Change> = [&open, &closing, &other].map(change).into();
    first[0].accounts = vec![(key(Scope::User, "u_1"), [1].into()), (key(Scope::Org, "acme"), [9].into())];
    ledger.commit(first).await.unwrap();
    // In one batch: an end under the old name, the move, an end under the new one.
    let ended = finished(&closing, 5);
    let both = [open.clone(), ended.clone()];
    let batch = vec![change(&ended), moving("u_1", "erased_1", &both, &[2])];
    ledger.commit(batch).await.unwrap();
    for _ in 0..2 {
        let before = ledger.account(key(Scope::User, "u_1"), at(0)).await.unwrap();
        assert!(before.state.is_none() && before.unfinished.is_empty() && before.requests.is_empty());
        let after = ledger.account(key(Scope::User, "erased_1"), at(0)).await.unwrap();
        assert_eq!((after.state, after.unfinished.len(), after.requests.len()), (Some(vec![2]), 1, 1));
        assert_eq!(after.unfinished[0].user, user("erased_1"));
        let org = ledger.account(key(Scope::Org, "acme"), at(0)).await.unwrap();
        assert_eq!((org.state, org.unfinished.len()), (Some(vec![9]), 0), "it has no receipt on the org");
        assert_eq!(
            ledger.hold(TENANT, ended.id).await.unwrap().unwrap(),
            Hold { user: user("erased_1"), ..ended.clone() }
        );
        assert_eq!(ledger.hold(TENANT, other.id).await.unwrap().unwrap(), other);
        let asked = ledger.hold_by_request(TENANT, user("erased_1"), request("r")).await.unwrap();
        assert_eq!(asked.unwrap().id, open.id);
        assert!(ledger.hold_by_request(TENANT, user("u_1"), request("r")).await.unwrap().is_none());
        assert_eq!(history(&*ledger, TENANT, "erased_1", 10).await.made.len(), 2);
        assert!(history(&*ledger, TENANT, "u_1", 10).await.made.is_empty());
    }
    // It goes on under the new name, and comes back.
    let ended = Hold { user: user("erased_1"), ..finished(&open, 7) };
    ledger.commit(vec![change(&ended), moving("erased_1", "u_1", &[], &[3])]).await.unwrap();
    ledger.close().await;
    let ledger = room.open().await;
    let back = ledger.account(key(Scope::User, "u_1"), at(0)).await.unwrap();
    assert_eq!((back.state, back.requests.len()), (Some(vec![3]), 0));
    assert!(ledger.account(key(Scope::User, "erased_1"), at(0)).await.unwrap().state.is_none());
    assert_eq!(ledger.hold(TENANT, open.id).await.unwrap().unwrap(), ended);
}

pub async fn the_past_goes_over_bit_by_bit(room: impl Room) {
    let ledger = room.open().await;
    let used = |user_id: &str, number: i64| {
        let day = 20_000 + i32::try_from(number / 3 % 10).unwrap();
        let hold = Hold { day, admits_user: true, ..finished(&hold(user_id, number), number) };
        Change { usage: Some(delta(1, 10)), ..change(&hold) }
    };
    ledger.commit((0..9).map(|number| used("u_1", number)).collect()).await.unwrap();
    ledger.commit((9..12).map(|number| used("u_2", number)).collect()).await.unwrap();
    // The pseudonym has a past of its own, of a day that both have.
    ledger.commit(vec![used("erased_1", 33)]).await.unwrap();
    let code = "user_suspended";
    let counted = [
        refused(TENANT, "u_1", &[(100, code, 3), (101, code, 1)], 2),
        refused(TENANT, "erased_1", &[(100, code, 5)], 0),
    ];
    add(&*ledger, counted.into()).await;
    // What comes before the past goes over writes the journal out.
    ledger.commit(vec![moving("u_1", "erased_1", &[], &[1])]).await.unwrap();
    let (mut portions, mut holds) = (0, BTreeSet::new());
    while let Some(renamed) = ledger.rename_history(TENANT, erasure(), 2).await.unwrap() {
        portions += 1;
        holds.extend(renamed);
        assert!(portions < 20, "it ends");
    }
    assert_eq!(holds.len(), 9, "each is told");
    assert!(portions >= 8, "{portions} portions of 2 are too few for 9 holds, 3 days and 2 counters");
    let old = history(&*ledger, TENANT, "u_1", 20).await;
    assert!(old.made.is_empty() && old.ended.is_empty() && old.refused.is_empty());
    let new = history(&*ledger, TENANT, "erased_1", 20).await;
    assert_eq!((new.ended.len(), new.refused.len()), (10, 2));
    assert!(new.ended.iter().all(|hold| hold.user == user("erased_1")));
    assert_eq!(new.ended.iter().filter(|hold| hold.admits_user).count(), 1, "the one of before");
    assert_eq!(history(&*ledger, TENANT, "u_2", 20).await.ended.len(), 3);
    assert!(counts(&*ledger, TENANT, "u_1").await.is_empty());
    let sums = [(101, code.to_owned(), 1), (100, code.to_owned(), 8)];
    assert_eq!(counts(&*ledger, TENANT, "erased_1").await, sums);
    let usage = ledger.usage(TENANT, Group::User, 0..30_000).await.unwrap();
    let of = |id: &str| -> Vec<(i32, Amounts)> {
        usage.iter().filter(|row| row.name.as_deref() == Some(id)).map(|row| (row.day, row.amounts)).collect()
    };
    assert!(of("u_1").is_empty());
    let requests: Vec<_> = of("erased_1").into_iter().map(|(day, sum)| (day, sum.requests)).collect();
    // On two days there were refusals alone.
    assert_eq!(requests, [(100, 0), (101, 0), (20_000, 3), (20_001, 4), (20_002, 3)]);
    assert_eq!(of("erased_1")[3].1.credits, 160);
    let months = RankingQuery { days: 0..30_000, group: Group::User, by: Figure::Requests };
    let ranking = ledger.ranking(TENANT, months, 30_000, 10).await.unwrap();
    let of_all: Vec<_> = ranking.rows.iter().map(|row| (row.name.as_deref(), row.sums.requests)).collect();
    assert_eq!(of_all, [(Some("erased_1"), 10), (Some("u_2"), 3)]);
    assert_eq!(ranking.rows[0].sums.refusals, 9);
    assert_eq!(of("u_2").len(), 1);
}

pub async fn erased_users_are_looked_at_when_it_is_time(room: impl Room) {
    let ledger = room.open().await;
    let due = async |now: Millis| -> Vec<String> {
        let due = ledger.erased_due(TENANT, now, 10).await.unwrap();
        due.into_iter().map(|user| user.id.as_str().to_owned()).collect()
    };
    for (id, look_at) in [("a", Some(at(20))), ("b", Some(at(10))), ("c", None)] {
        ledger.put_user(TENANT, person(id), written()).await.unwrap();
        let erasure = Erasure { user: user(id), pseudonym: user(&format!("erased_{id}")) };
        ledger.erase_user(TENANT, erasure.clone(), None, written()).await.unwrap();
        assert!(due(at(1_000)).await.iter().all(|found| found.as_str() != format!("erased_{id}")));
        ledger.commit(vec![moving(id, &format!("erased_{id}"), &[], &[1])]).await.unwrap();
        ledger.end_erasure(TENANT, erasure, look_at).await.unwrap();
    }
    assert!(due(at(9)).await.is_empty());
    assert_eq!(due(at(20)).await, ["erased_b", "erased_a"]);
    ledger.look_at_erased(TENANT, user("erased_b"), Some(at(30))).await.unwrap();
    assert_eq!(due(at(20)).await, ["erased_a"]);
    ledger.look_at_erased(TENANT, user("erased_b"), None).await.unwrap();
    assert_eq!(due(at(1_000)).await, ["erased_a"]);
    ledger.forget_erased(TENANT, user("erased_a")).await.unwrap();
    assert!(ledger.user(TENANT, user("erased_a")).await.unwrap().is_none());
    assert!(ledger.account(key(Scope::User, "erased_a"), at(0)).await.unwrap().state.is_none());
    assert!(ledger.account(key(Scope::User, "erased_b"), at(0)).await.unwrap().state.is_some());
    // Nobody who is not erased is forgotten.
    ledger.put_user(TENANT, person("d"), written()).await.unwrap();
    ledger.forget_erased(TENANT, user("d")).await.unwrap();
    assert!(ledger.user(TENANT, user("d")).await.unwrap().is_some());
}
