//! The line before a pool: the same in every engine.

use apportion::domain::line::{NO_TICKET, Place, Turn, Waiter};
use apportion::engine::LineStep;

use super::*;

fn place(rank: i64, ticket: u64, class: u8) -> Place {
    Place {
        turn: Turn { rank: NOW.plus_ms(rank), ticket, node: 7 },
        class,
        bulk: false,
        stands: ticket != NO_TICKET,
    }
}

fn pool() -> AccountKey {
    key(1, Scope::Pool, "p")
}

async fn enter(engine: &Arc<dyn Engine>, place: Place, most: usize) -> bool {
    let waiter = Waiter { place, deadline: NOW.plus_ms(60_000), input: 0, output: 30 };
    engine.stand(&pool(), &LineStep::Enter { waiter, most }).await.expect("up").stands
}

async fn leave(engine: &Arc<dyn Engine>, place: Place) {
    engine.stand(&pool(), &LineStep::Leave(place.turn)).await.expect("up");
}

fn at(place: Place, take: Take) -> Take {
    Take { place: Some(place), ..take }
}

/// Where the pool refuses a check: what would fit, the wait, and that at best.
async fn refused(engine: &Arc<dyn Engine>, take: &Take, now: Millis) -> Option<(u64, u64, u64)> {
    match taken(engine, take, now).await {
        Taken::Hold { .. } => None,
        Taken::Refused { shortfalls, at_best_ms, .. } => {
            let [short] = &shortfalls[..] else { panic!("one shortfall: {shortfalls:?}") };
            assert_eq!(short.charge, 1, "the pool's");
            let apportion::domain::step::Remedy::Wait { retry_after_ms } = short.remedy else {
                panic!("a wait")
            };
            Some((short.would_fit, retry_after_ms, at_best_ms))
        }
        _ => panic!("decided"),
    }
}

#[tokio::test]
async fn who_stands_in_the_line_goes_before_who_comes() {
    for (name, engine) in engines().await {
        let (first, new) = (place(0, 1, 0), place(10, NO_TICKET, 0));
        assert_eq!(
            refused(&engine, &at(new, take("a", 1, 60, None)), NOW).await,
            None,
            "{name}: nobody waits"
        );
        assert!(enter(&engine, first, 10).await);
        let come = at(new, take("b", 2, 60, None));
        // There is room for 90, but 30 of them are spoken for; 60 are held by the first call.
        assert_eq!(refused(&engine, &come, NOW).await, Some((0, 30_000, 30_000)), "{name}");
        let later = place(5, 2, 0);
        assert!(refused(&engine, &at(later, take("b", 3, 10, None)), NOW).await.is_some(), "{name}");
        assert_eq!(refused(&engine, &at(first, take("c", 4, 30, None)), NOW).await, None, "{name}");
        assert_eq!(refused(&engine, &come, NOW).await, None, "{name}: who is admitted stands there no more");
        leave(&engine, later).await;
    }
}

#[tokio::test]
async fn a_small_call_overtakes_a_large_one_for_a_while() {
    for (name, engine) in engines().await {
        let large = place(0, 1, 4);
        assert!(enter(&engine, large, 10).await);
        let small = |id, now: i64| at(place(now, NO_TICKET, 1), take("s", id, 1, None));
        assert_eq!(refused(&engine, &small(1, 100), NOW.plus_ms(100)).await, None, "{name}");
        assert!(refused(&engine, &small(2, 5_000), NOW.plus_ms(5_000)).await.is_some(), "{name}");
        leave(&engine, large).await;
        assert_eq!(refused(&engine, &small(2, 5_000), NOW.plus_ms(5_000)).await, None, "{name}");
    }
}

#[tokio::test]
async fn whoever_is_late_blocks_nobody() {
    for (name, engine) in engines().await {
        let first = place(0, 1, 0);
        assert!(enter(&engine, first, 10).await);
        let come = |id, now: i64| at(place(now, NO_TICKET, 0), take("b", id, 1, None));
        assert!(refused(&engine, &come(1, 59_999), NOW.plus_ms(59_999)).await.is_some(), "{name}");
        assert_eq!(refused(&engine, &come(2, 60_000), NOW.plus_ms(60_000)).await, None, "{name}");
        leave(&engine, first).await;
    }
}

#[tokio::test]
async fn a_line_is_bounded_and_counts_who_stands_there_by_node() {
    for (name, engine) in engines().await {
        let [a, b, c] = [place(0, 1, 0), place(0, 2, 0), place(0, 3, 0)];
        assert!(enter(&engine, a, 2).await && enter(&engine, b, 2).await, "{name}");
        assert!(enter(&engine, a, 2).await, "{name}: it is there already");
        assert!(!enter(&engine, c, 2).await, "{name}");
        let keep = |node| LineStep::Keep { node };
        assert_eq!(engine.stand(&pool(), &keep(7)).await.expect("up").of_node, 2, "{name}");
        assert_eq!(engine.stand(&pool(), &keep(8)).await.expect("up").of_node, 0, "{name}");
        leave(&engine, a).await;
        assert!(enter(&engine, c, 2).await, "{name}");
        for who in [b, c] {
            leave(&engine, who).await;
        }
        assert_eq!(engine.stand(&pool(), &keep(7)).await.expect("up").of_node, 0, "{name}");
    }
}

#[tokio::test]
async fn what_is_only_asked_takes_no_place() {
    for (name, engine) in engines().await {
        let first = place(0, 1, 0);
        assert!(enter(&engine, first, 10).await);
        let dry = Take { dry_run: true, ..at(place(1, NO_TICKET, 0), take("d", 1, 1, None)) };
        assert!(refused(&engine, &dry, NOW).await.is_some(), "{name}");
        // What has happened, and who is in shadow, asks nobody.
        let mut shadowed = at(place(1, NO_TICKET, 0), take("d", 2, 1, None));
        shadowed.ask.taking = Taking::Shadowed;
        assert_eq!(refused(&engine, &shadowed, NOW).await, None, "{name}");
        leave(&engine, first).await;
    }
}
