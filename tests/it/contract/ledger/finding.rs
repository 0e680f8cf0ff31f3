//! Finding holds again: by account, by request id, by doubt.

use std::sync::Arc;

use apportion::domain::hold::{Hold, Stage};
use apportion::domain::ids::HoldId;
use apportion::domain::plan::Scope;
use apportion::ledger::{DoubtFilter, DoubtQuery, Ledger};

use super::Room;
use super::samples::*;

async fn commit(ledger: &dyn Ledger, holds: &[Hold]) {
    ledger.commit(holds.iter().map(change).collect()).await.unwrap();
}

/// The ids of an account's unfinished holds.
async fn unfinished(ledger: &dyn Ledger, scope: Scope, owner: &str) -> Vec<HoldId> {
    let account = ledger.account(key(scope, owner), at(0)).await.unwrap();
    let mut ids: Vec<HoldId> = account.unfinished.iter().map(|hold: &Arc<Hold>| hold.id).collect();
    ids.sort();
    ids
}

/// One hold in every stage and one without any receipt; the first two and that
/// last one are unfinished.
fn in_all_stages(of: impl Fn(i64) -> Hold) -> Vec<Hold> {
    let mut holds: Vec<Hold> =
        (1..).zip(stages()).map(|(number, stage)| Hold { stage, ..of(number) }).collect();
    holds.push(Hold { receipts: Vec::new(), ..of(5) });
    holds
}

pub async fn a_users_holds_come_in_the_order_of_their_making(room: impl Room) {
    let ledger = room.open().await;
    let mine: Vec<Hold> = (1..=7).map(|number| hold("u_1", 10 * number)).collect();
    let theirs = hold("u_2", 35);
    commit(&*ledger, &[&mine[3..], &[theirs], &mine[..3]].concat()).await;
    let read = async |from: i64, to: i64, after: Option<HoldId>, limit: u32| {
        let (first, last) = (at(from), at(to));
        let holds = ledger.holds_made(TENANT, user("u_1"), first..last, after, limit).await.unwrap();
        holds.into_iter().map(|hold| (hold.created_at.0 - at(0).0) / 10).collect::<Vec<_>>()
    };
    assert_eq!(read(0, 1_000, None, 100).await, [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(read(0, 1_000, None, 3).await, [1, 2, 3]);
    assert_eq!(read(0, 1_000, Some(mine[2].id), 3).await, [4, 5, 6]);
    // Half-open, and what comes after is not before the beginning.
    assert_eq!(read(20, 50, None, 100).await, [2, 3, 4]);
    assert_eq!(read(30, 1_000, Some(mine[0].id), 2).await, [3, 4]);
    assert_eq!(read(20, 20, None, 100).await, [0; 0]);
    let elsewhere = ledger.holds_made(OTHER, user("u_1"), at(0)..at(1_000), None, 9).await.unwrap();
    assert_eq!(elsewhere, []);
}

pub async fn an_unknown_account_is_empty(room: impl Room) {
    let ledger = room.open().await;
    for scope in [Scope::User, Scope::Org, Scope::Tenant, Scope::Pool] {
        let account = ledger.account(key(scope, "nobody"), at(0)).await.unwrap();
        assert!(account.state.is_none() && account.unfinished.is_empty() && account.requests.is_empty());
    }
}

pub async fn a_users_account_comes_with_its_unfinished_holds(room: impl Room) {
    let ledger = room.open().await;
    let holds = in_all_stages(|number| hold("u_1", number));
    commit(&*ledger, &holds).await;
    commit(&*ledger, &[hold("u_2", 9)]).await;
    let last = holds.last().map(|hold| hold.id).unwrap();
    // It is the user's although no limit of theirs counts it.
    assert_eq!(unfinished(&*ledger, Scope::User, "u_1").await, [holds[0].id, holds[1].id, last]);
    let account = ledger.account(key(Scope::User, "u_1"), at(0)).await.unwrap();
    assert!(account.unfinished.iter().any(|found| **found == holds[0]), "whole, not in part");
    commit(&*ledger, &[finished(&holds[0], 50)]).await;
    assert_eq!(unfinished(&*ledger, Scope::User, "u_1").await, [holds[1].id, last]);
}

pub async fn an_orgs_account_comes_with_its_unfinished_holds(room: impl Room) {
    let ledger = room.open().await;
    let of_org = |org: &str, number| Hold {
        org: Some(name(org)),
        receipts: vec![receipt(Scope::User), receipt(Scope::Org)],
        ..hold(&format!("u_{number}"), number)
    };
    let holds = in_all_stages(|number| of_org("acme", number));
    commit(&*ledger, &holds).await;
    let elsewhere = of_org("Acme", 8);
    commit(&*ledger, &[elsewhere.clone(), hold("u_9", 9)]).await;
    assert_eq!(unfinished(&*ledger, Scope::Org, "acme").await, [holds[0].id, holds[1].id]);
    assert_eq!(unfinished(&*ledger, Scope::Org, "Acme").await, [elsewhere.id]);
}

pub async fn a_tenants_account_comes_with_its_unfinished_holds(room: impl Room) {
    let ledger = room.open().await;
    let of_tenant =
        |number| Hold { receipts: vec![receipt(Scope::Tenant)], ..hold(&format!("u_{number}"), number) };
    let holds = in_all_stages(of_tenant);
    commit(&*ledger, &holds).await;
    let elsewhere = Hold { tenant: OTHER, ..of_tenant(9) };
    commit(&*ledger, &[elsewhere]).await;
    assert_eq!(unfinished(&*ledger, Scope::Tenant, "").await, [holds[0].id, holds[1].id]);
}

pub async fn a_pools_account_comes_with_its_unfinished_holds(room: impl Room) {
    let ledger = room.open().await;
    let of_pool = |pool: &str, number| Hold {
        pool: Some(name(pool)),
        receipts: vec![receipt(Scope::Pool)],
        ..hold(&format!("u_{number}"), number)
    };
    let holds = in_all_stages(|number| of_pool("opus", number));
    commit(&*ledger, &holds).await;
    commit(&*ledger, &[of_pool("default", 8), hold("u_9", 9)]).await;
    assert_eq!(unfinished(&*ledger, Scope::Pool, "opus").await, [holds[0].id, holds[1].id]);
}

pub async fn request_ids_come_with_the_users_account_while_they_are_kept(room: impl Room) {
    let ledger = room.open().await;
    let asked = |number: i64| Hold { request: Some(mark(&format!("r{number}"))), ..hold("u_1", number) };
    let open = Hold { receipts: Vec::new(), ..asked(1) };
    let doubtful = Hold { stage: Stage::InDoubt { since: at(5) }, ..asked(2) };
    let (early, border, late) =
        (finished(&asked(3), 999), finished(&asked(4), 1000), finished(&asked(5), 1001));
    let others = [hold("u_1", 6), finished(&hold("u_1", 7), 2000), Hold { user: user("u_2"), ..asked(8) }];
    commit(&*ledger, &[open.clone(), doubtful.clone(), early, border.clone(), late.clone()]).await;
    commit(&*ledger, &others).await;

    let mut found = ledger.account(key(Scope::User, "u_1"), at(1000)).await.unwrap().requests;
    found.sort_by_key(|(_, id, _)| *id);
    let expected = [&open, &doubtful, &border, &late]
        .map(|hold| (hold.request.as_ref().unwrap().id.digest(), hold.id, hold.finished_at()));
    assert_eq!(found, expected);
    let org = ledger.account(key(Scope::Org, "u_1"), at(0)).await.unwrap();
    assert_eq!(org.requests, [], "request ids belong to users");
}

pub async fn the_newest_hold_of_a_request_id_is_found(room: impl Room) {
    let ledger = room.open().await;
    let asked =
        |user_id: &str, id: &str, number: i64| Hold { request: Some(mark(id)), ..hold(user_id, number) };
    let find = async |user_id: &str, id: &str| {
        ledger.hold_by_request(TENANT, user(user_id), request(id)).await.unwrap().map(|hold| hold.id)
    };
    assert_eq!(find("u_1", "r").await, None);
    let (first, second, third) = (asked("u_1", "r", 1), asked("u_1", "r", 2), asked("u_1", "r", 3));
    commit(&*ledger, &[first.clone(), asked("u_1", "R", 8), asked("u_2", "r", 9)]).await;
    assert_eq!(find("u_1", "r").await, Some(first.id));
    // Finished in another order than they were made.
    commit(&*ledger, &[finished(&second, 10), finished(&first, 20)]).await;
    assert_eq!(find("u_1", "r").await, Some(second.id));
    commit(&*ledger, std::slice::from_ref(&third)).await;
    assert_eq!(find("u_1", "r").await, Some(third.id));
    assert_eq!(find("u_1", "r ").await, None);
    assert_eq!(find("U_1", "r").await, None);
}

pub async fn holds_in_doubt_come_oldest_first(room: impl Room) {
    let ledger = room.open().await;
    let told =
        |number: i64, since: i64| Hold { stage: Stage::InDoubt { since: at(since) }, ..hold("u_1", number) };
    let lease_over = Hold { expires_at: at(300), ..hold("u_2", 1) };
    let early = told(2, 100);
    let late = told(3, 500);
    let done = finished(&hold("u_3", 4), 50);
    commit(&*ledger, &[late.clone(), lease_over.clone(), done, early.clone(), hold("u_4", 5)]).await;

    let find = async |before: i64, limit: u32| -> Vec<HoldId> {
        let query = DoubtQuery { now: at(before), filter: DoubtFilter::default(), after: None, limit };
        ledger.doubts(TENANT, query).await.unwrap().holds.iter().map(|hold| hold.id).collect()
    };
    assert_eq!(find(1000, 10).await, [early.id, lease_over.id, late.id]);
    assert_eq!(find(1000, 2).await, [early.id, lease_over.id]);
    assert_eq!(find(300, 10).await, [early.id, lease_over.id], "the border belongs to it");
    assert_eq!(find(299, 10).await, [early.id]);
    assert_eq!(find(99, 10).await, []);
    // A lease that is renewed puts the doubt off; a finish ends it.
    commit(&*ledger, &[Hold { expires_at: at(900), ..lease_over.clone() }, finished(&early, 600)]).await;
    assert_eq!(find(1000, 10).await, [late.id, lease_over.id]);
}
