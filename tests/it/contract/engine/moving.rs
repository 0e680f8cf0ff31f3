//! Accounts that go over to another name.

use apportion::engine::{Moved, Rest, Ticket};

use super::*;

fn id(user: &str) -> UserId {
    UserId::parse(user).expect("valid")
}

fn account(user: &str) -> AccountKey {
    key(1, Scope::User, user)
}

async fn moved(engine: &Arc<dyn Engine>, from: &str, to: &str, now: Millis) -> Option<Ticket> {
    let (from, to) = (id(from), id(to));
    match done!(engine, engine.move_account(TenantRef(1), &from, &to, now)) {
        Moved::Done(ticket) => Some(ticket),
        Moved::Occupied => None,
    }
}

async fn has_moved(engine: &Arc<dyn Engine>, user: &str) -> bool {
    matches!(engine.take(&take(user, 999, 1, None), NOW).await, Err(EngineError::Moved))
}

#[tokio::test]
async fn a_moved_account_takes_everything_along_in_one_change() {
    for (name, engine) in engines().await {
        admitted(&engine, &take("u", 1, 50, Some("r")), NOW).await;
        admitted(&engine, &take("u", 2, 20, None), NOW).await;
        let _ = done!(engine, engine.finish(&settle("u", 2, 5), NOW));
        let ticket = moved(&engine, "u", "p", NOW).await.expect("nobody is there");
        assert!(has_moved(&engine, "u").await, "{name}");
        let on_u = engine.finish(&settle("u", 1, 30), NOW).await;
        assert!(matches!(on_u, Err(EngineError::Moved)), "{name}");
        let held = engine.hold(TenantRef(1), HoldId(1)).await.expect("up").expect("open");
        assert_eq!(held.user, id("p"), "{name}");
        assert_eq!(left_to_user(&engine, "p", NOW).await, 45, "{name}");
        let digest = RequestId::parse("r").expect("valid").digest();
        let known = done!(engine, engine.request(&account("p"), digest, NOW));
        assert_eq!(known, Some(HoldId(1)), "{name}");

        let mut batch = engine.changes().await;
        let change = batch.changes.pop().expect("the move is the last");
        assert!(
            change.hold.is_none() && batch.changes.iter().all(|change| change.moved.is_empty()),
            "{name}"
        );
        let mut with: Vec<_> = change.moved.iter().map(|hold| (hold.id.0, hold.user.clone())).collect();
        with.sort_unstable_by_key(|(id, _)| *id);
        assert_eq!(with, [(1, id("p")), (2, id("p"))], "{name}: what is not on record yet goes along");
        let states: Vec<_> =
            change.accounts.iter().map(|(key, state)| (&key.owner[..], state.len())).collect();
        assert!(states[0] == ("u", 0) && states[1].0 == "p" && states[1].1 > 0, "{name}: {states:?}");
        batch.changes.push(change);
        engine.committed(batch).await;
        assert!(ticket.recorded().await, "{name}");
        let finished = engine.hold(TenantRef(1), HoldId(2)).await.expect("up");
        assert_eq!(
            finished.is_none(),
            name == "memory",
            "{name}: it is on record, elsewhere known for a while"
        );

        // It ends under the new name, once, and frees what it held everywhere.
        let ended = done!(engine, engine.finish(&settle("p", 1, 30), NOW));
        assert!(matches!(ended, Finished::Done { .. }), "{name}");
        assert_eq!(
            (left_to_user(&engine, "p", NOW).await, left_in_pool(&engine, NOW).await),
            (65, 115),
            "{name}"
        );
    }
}

#[tokio::test]
async fn an_account_comes_back_and_goes_again() {
    for (name, engine) in engines().await {
        admitted(&engine, &take("u", 1, 50, None), NOW).await;
        moved(&engine, "u", "p", NOW).await.expect("nobody is there");
        moved(&engine, "p", "u", NOW).await.expect("nobody is there any more");
        assert!(has_moved(&engine, "p").await, "{name}");
        admitted(&engine, &take("u", 2, 20, None), NOW).await;
        assert_eq!(left_to_user(&engine, "u", NOW).await, 30, "{name}");
        moved(&engine, "u", "p", NOW).await.expect("nobody is there any more");
        assert_eq!(left_to_user(&engine, "p", NOW).await, 30, "{name}");
        // Nothing is left there to move: only the sign is put up.
        moved(&engine, "u", "p", NOW).await.expect("there is nothing to move");
        assert_eq!(left_to_user(&engine, "p", NOW).await, 30, "{name}");
        assert!(has_moved(&engine, "u").await, "{name}");
        engine.reopen(&account("u")).await.expect("up");
        admitted(&engine, &take("u", 3, 60, None), NOW).await;
        assert!(moved(&engine, "u", "p", NOW).await.is_none(), "{name}: two accounts cannot become one");
    }
}

#[tokio::test]
async fn an_account_at_rest_makes_room() {
    for (name, engine) in engines().await {
        // A bucket of 100 that refills one a second.
        admitted(&engine, &take("p", 1, 50, None), NOW).await;
        let rest = |unfinished, ms| Rest { at: Some(NOW.plus_ms(ms)), unfinished };
        // From the end of the lease on it refills to the brim.
        assert_eq!(done!(engine, engine.rest(&account("p"), NOW)), rest(true, 60_000), "{name}");
        let _ = done!(engine, engine.finish(&settle("p", 1, 40), NOW));
        assert_eq!(done!(engine, engine.rest(&account("p"), NOW)), rest(false, 40_000), "{name}");
        admitted(&engine, &take("u", 2, 10, None), NOW).await;
        assert!(moved(&engine, "u", "p", NOW.plus_ms(39_999)).await.is_none(), "{name}");
        moved(&engine, "u", "p", NOW.plus_ms(40_000)).await.expect("at rest");
        assert_eq!(
            engine.hold(TenantRef(1), HoldId(2)).await.expect("up").expect("open").user,
            id("p"),
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_move_that_is_not_recorded_never_was() {
    for (name, engine) in in_memory() {
        admitted(&engine, &take("u", 1, 50, None), NOW).await;
        commit(&engine).await;
        let ticket = moved(&engine, "u", "p", NOW).await.expect("nobody is there");
        let batch = engine.changes().await;
        engine.failed(batch).await;
        assert!(!ticket.recorded().await, "{name}");
        for user in ["u", "p"] {
            let asked = engine.take(&take(user, 9, 1, None), NOW).await.expect("up");
            assert!(matches!(asked, Step::Missing(_)), "{name}: the ledger knows {user}");
        }
    }
}
