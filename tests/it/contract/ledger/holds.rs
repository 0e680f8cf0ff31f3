//! Changes: what is committed is there, wholly or not at all.

use std::task::{Context, Poll, Waker};

use apportion::domain::hold::Hold;
use apportion::domain::plan::Scope;
use apportion::ledger::{Change, DoubtFilter, DoubtQuery, Group, Ledger, LedgerError, User};

use super::Room;
use super::samples::*;

async fn found(ledger: &dyn Ledger, hold: &Hold) -> Option<Hold> {
    ledger.hold(hold.tenant, hold.id).await.unwrap()
}

pub async fn a_hold_reads_back_as_it_was_written(room: impl Room) {
    let ledger = room.open().await;
    for stage in stages() {
        for hold in [full_hold(), hold("u_1", 2)] {
            let hold = Hold { stage: stage.clone(), ..hold };
            ledger.commit(vec![change(&hold)]).await.unwrap();
            assert_eq!(found(&*ledger, &hold).await, Some(hold));
        }
    }
    assert_eq!(found(&*ledger, &hold("u_1", 3)).await, None);
}

pub async fn what_was_committed_survives_reopening(room: impl Room) {
    let ledger = room.open().await;
    let mut step = change(&full_hold());
    step.usage = Some(delta(1, 10));
    step.accounts = vec![(key(Scope::User, "u_42"), b"state".as_slice().into())];
    ledger.commit(vec![step]).await.unwrap();
    ledger.put_user(TENANT, person("u_9"), written()).await.unwrap();
    ledger.close().await;
    drop(ledger);

    let ledger = room.open().await;
    assert_eq!(found(&*ledger, &full_hold()).await, Some(full_hold()));
    let account = ledger.account(key(Scope::User, "u_42"), at(0)).await.unwrap();
    assert_eq!(account.state.as_deref(), Some(b"state".as_slice()));
    assert_eq!(ledger.usage(TENANT, Group::User, i32::MIN..i32::MAX).await.unwrap().len(), 1);
    assert_eq!(ledger.user(TENANT, user("u_9")).await.unwrap().map(as_written), Some(person("u_9")));
    assert!(ledger.ever_taken(TENANT).await.unwrap());
}

pub async fn a_hold_that_admits_its_user_puts_them_on_record(room: impl Room) {
    let ledger = room.open().await;
    let admitting = |user_id: &str, number, plan: &str| Hold {
        admits_user: true,
        plan: name(plan),
        ..hold(user_id, number)
    };
    let known = User { plan: name("pro"), ..person("known") };
    ledger.put_user(TENANT, known.clone(), written()).await.unwrap();
    // Two at the same moment, one who is known by now, one who was known before.
    let batch = [
        admitting("new", 5, "free"),
        admitting("new", 6, "other"),
        admitting("known", 7, "free"),
        hold("old", 8),
    ];
    ledger.commit(batch.iter().map(change).collect()).await.unwrap();
    let new = User { plan_since: at(5), created_at: at(5), ..person("new") };
    assert_eq!(ledger.user(TENANT, user("new")).await.unwrap().map(as_written), Some(new.clone()));
    assert_eq!(ledger.user(TENANT, user("known")).await.unwrap().map(as_written), Some(known));
    assert_eq!(ledger.user(TENANT, user("old")).await.unwrap().map(as_written), None);
    // From then on they change like any other.
    let moved = User { version: 2, plan: name("pro"), ..new };
    ledger.put_user(TENANT, moved.clone(), written()).await.unwrap();
    ledger.commit(vec![change(&finished(&batch[0], 90))]).await.unwrap();
    assert_eq!(ledger.user(TENANT, user("new")).await.unwrap().map(as_written), Some(moved));
}

pub async fn the_last_change_of_a_hold_and_an_account_stays(room: impl Room) {
    let ledger = room.open().await;
    let steps: Vec<_> = stages().into_iter().map(|stage| Hold { stage, ..full_hold() }).collect();
    let batch = |states: &[&str], holds: &[Hold]| {
        let step = |(state, hold): (&&str, &Hold)| {
            let mut step = change(hold);
            step.accounts = vec![(key(Scope::User, "u_42"), state.as_bytes().into())];
            step
        };
        states.iter().zip(holds).map(step).collect::<Vec<_>>()
    };
    ledger.commit(batch(&["1", "2"], &steps[..2])).await.unwrap();
    assert_eq!(found(&*ledger, &steps[0]).await.as_ref(), Some(&steps[1]));
    ledger.commit(batch(&["3", "4"], &steps[2..])).await.unwrap();
    assert_eq!(found(&*ledger, &steps[0]).await.as_ref(), Some(&steps[3]));
    let account = ledger.account(key(Scope::User, "u_42"), at(0)).await.unwrap();
    assert_eq!(account.state.as_deref(), Some(b"4".as_slice()));
}

pub async fn a_change_of_accounts_alone_is_kept(room: impl Room) {
    let ledger = room.open().await;
    let states = |state: &str| {
        let accounts = vec![(key(Scope::User, "u_1"), state.as_bytes().into())];
        Change { accounts, ..Change::default() }
    };
    let state = async |ledger: &dyn Ledger| {
        let account = ledger.account(key(Scope::User, "u_1"), at(0)).await.unwrap();
        account.state.map(|state| String::from_utf8(state).unwrap())
    };
    ledger.commit(vec![states("1"), states("2")]).await.unwrap();
    assert_eq!(state(&*ledger).await.as_deref(), Some("2"));
    assert!(!ledger.ever_taken(TENANT).await.unwrap(), "no hold was taken");
    ledger.commit(vec![states("3"), change(&hold("u_1", 1))]).await.unwrap();
    ledger.close().await;
    assert_eq!(state(&*room.open().await).await.as_deref(), Some("3"));
}

pub async fn batches_of_every_size_are_written_whole(room: impl Room) {
    let ledger = room.open().await;
    let mut number = 0;
    for size in [1, 2, 3, 5, 8, 63, 64, 65, 127, 128, 129, 300] {
        let holds: Vec<Hold> =
            (0..size).map(|_| (number += 1, hold(&format!("u_{number}"), number)).1).collect();
        let step = |hold: &Hold| {
            let mut step = change(hold);
            step.usage = Some(delta(1, size));
            step.accounts =
                vec![(key(Scope::User, hold.user.as_str()), hold.user.as_str().as_bytes().into())];
            step
        };
        ledger.commit(holds.iter().map(step).collect()).await.unwrap();
        for hold in &holds {
            assert_eq!(found(&*ledger, hold).await.as_ref(), Some(hold), "batch of {size}");
            let account = ledger.account(key(Scope::User, hold.user.as_str()), at(0)).await.unwrap();
            assert_eq!(account.state.as_deref(), Some(hold.user.as_str().as_bytes()), "batch of {size}");
            assert_eq!(account.unfinished.len(), 1, "batch of {size}");
        }
    }
    assert_eq!(ledger.usage(TENANT, Group::User, 0..i32::MAX).await.unwrap().len() as i64, number);
}

pub async fn an_empty_batch_changes_nothing(room: impl Room) {
    let ledger = room.open().await;
    ledger.commit(Vec::new()).await.unwrap();
    assert!(!ledger.ever_taken(TENANT).await.unwrap());
}

pub async fn a_hold_belongs_to_its_tenant(room: impl Room) {
    let ledger = room.open().await;
    let mut mine = full_hold();
    mine.stage = stages()[1].clone();
    ledger.commit(vec![change(&mine)]).await.unwrap();
    assert_eq!(ledger.hold(OTHER, mine.id).await.unwrap(), None);
    let mark = mine.request.clone().unwrap();
    assert_eq!(ledger.hold_by_request(OTHER, mine.user.clone(), mark.id).await.unwrap(), None);
    let query =
        DoubtQuery { now: at(i64::from(i32::MAX)), filter: DoubtFilter::default(), after: None, limit: 10 };
    assert_eq!(ledger.doubts(OTHER, query).await.unwrap().holds, []);
    for scope in [Scope::User, Scope::Org, Scope::Tenant, Scope::Pool] {
        for owner in ["u_42", "acme/eu", "default", ""] {
            let other = apportion::domain::charge::AccountKey { tenant: OTHER, ..key(scope, owner) };
            let account = ledger.account(other, at(0)).await.unwrap();
            assert!(account.state.is_none() && account.unfinished.is_empty() && account.requests.is_empty());
        }
    }
}

pub async fn a_tenant_has_taken_once_a_hold_is_on_record(room: impl Room) {
    let ledger = room.open().await;
    assert!(!ledger.ever_taken(TENANT).await.unwrap());
    ledger.commit(vec![change(&hold("u_1", 1))]).await.unwrap();
    assert!(ledger.ever_taken(TENANT).await.unwrap());
    assert!(!ledger.ever_taken(OTHER).await.unwrap());
    ledger
        .commit(vec![change(&finished(&hold("u_1", 1), 9)), change(&Hold { tenant: OTHER, ..hold("u", 2) })])
        .await
        .unwrap();
    assert!(ledger.ever_taken(TENANT).await.unwrap(), "and stays so when all holds have finished");
    assert!(ledger.ever_taken(OTHER).await.unwrap());
}

pub async fn a_caller_that_goes_away_leaves_nothing_half_done(room: impl Room) {
    let ledger = room.open().await;
    // Left after 0, 1, 2, .. steps of its own: in every state it can be in.
    for steps in 0..40 {
        let pair = [hold("u_1", 2 * steps), hold("u_2", 2 * steps + 1)];
        let mut call = ledger.commit(pair.iter().map(change).collect());
        for _ in 0..steps {
            let poll = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if let Poll::Ready(answer) = poll {
                answer.unwrap();
                break;
            }
            tokio::time::sleep(std::time::Duration::from_micros(200)).await;
        }
        drop(call);
        // The next write goes through, whatever state the last one was left in.
        ledger.commit(vec![change(&hold("u_3", 1000 + steps))]).await.unwrap();
        let first = found(&*ledger, &pair[0]).await.is_some();
        assert_eq!(found(&*ledger, &pair[1]).await.is_some(), first, "half a batch after {steps} steps");
        assert!(found(&*ledger, &hold("u_3", 1000 + steps)).await.is_some());
    }
}

pub async fn a_closed_ledger_refuses_instead_of_hanging(room: impl Room) {
    let ledger = room.open().await;
    ledger.close().await;
    let refused = |error| matches!(error, LedgerError::Unavailable(_));
    assert!(ledger.commit(vec![change(&full_hold())]).await.is_err_and(refused));
    assert!(ledger.hold(TENANT, full_hold().id).await.is_err_and(refused));
    ledger.close().await;
}

pub async fn another_process_sees_what_was_committed(room: impl Room) {
    let (server, tool) = (room.open().await, room.open().await);
    server.commit(vec![change(&full_hold())]).await.unwrap();
    assert_eq!(found(&*tool, &full_hold()).await, Some(full_hold()));
    tool.put_user(TENANT, person("u_9"), written()).await.unwrap();
    assert!(server.user(TENANT, user("u_9")).await.unwrap().is_some());
    assert_eq!(server.revision().await.unwrap(), tool.revision().await.unwrap());
    server.commit(vec![change(&hold("u_1", 5))]).await.unwrap();
}
