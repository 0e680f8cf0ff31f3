//! What an engine apart from this process must do besides: many nodes work on
//! it, answers get lost, it forgets.

use apportion::domain::slot::Slot;
use apportion::engine::redis::Options;
use apportion::engine::{Answers, EngineError};

use super::engines::{at, in_redis};
use super::*;
use crate::harness::proxy::Proxy;
use crate::harness::redis::{Node, Single};

pub(super) const FIRST: Slot = Slot { epoch: 1, drained: 0 };
const TENANT: TenantRef = TenantRef(1);

/// A server of the test's own, with one node on it.
async fn alone(options: Options) -> Option<(Node, Arc<dyn Engine>)> {
    let server = Single::start(&[])?;
    let engine = at(&server.url(), options, FIRST).await;
    Some((server, engine))
}

/// Runs an operation as the service does: a slot that the engine is not sure of
/// is compared with the ledger, here one in which nothing is on record.
macro_rules! sure {
    ($engine:expr, $operation:expr) => {
        loop {
            match $operation.await {
                Ok(Step::Done(outcome)) => break outcome,
                Ok(Step::Missing(missing)) => {
                    let nothing = missing.keys.iter().map(|_| Loaded::default()).collect();
                    // Whoever is not sure is asked again by the operation.
                    let _ = $engine.load(&missing, nothing).await;
                }
                Err(EngineError::Unsure(tenant)) => {
                    assert!($engine.admit(tenant, FIRST).await.expect("up"), "nothing was lost");
                }
                Err(error) => panic!("{error}"),
            }
        }
    };
}

#[tokio::test]
async fn what_is_asked_again_because_its_answer_was_lost_is_done_once() {
    let Some(server) = Single::start(&[]) else { return };
    let proxy = Proxy::before(&server.address());
    let engine = at(&format!("redis://{}", proxy.address), Options::default(), FIRST).await;
    let calm = at(&server.url(), Options::default(), FIRST).await;
    for (round, every) in [3, 4].into_iter().enumerate() {
        let user = format!("u{round}");
        let [one, two] = [1, 2].map(|n| round as u128 * 10 + n);
        let _ = done!(calm, calm.take(&take(&user, one + 100, 0, None), NOW));
        proxy.lose_replies(every, b"EVALSHA");
        let ask = take(&user, one, 30, Some("r"));
        let Taken::Hold { hold, standings, .. } = sure!(engine, engine.take(&ask, NOW)) else {
            panic!("fits")
        };
        assert_eq!(standings[0].standing.remaining(), 70);
        let more = extend(&user, &hold, 20, None);
        let Extended::Done { hold, .. } = sure!(engine, engine.extend(&more, NOW)) else { panic!("fits") };
        assert_eq!(hold.receipts[0].reserved, 50);
        let Taken::Hold { .. } = sure!(engine, engine.take(&take(&user, two, 10, None), NOW)) else {
            panic!()
        };
        // An end that was asked for again has happened already.
        let ended = sure!(engine, engine.finish(&settle(&user, one, 5), NOW));
        let (Finished::Done { hold, .. } | Finished::Already(hold)) = ended else { panic!("it was open") };
        assert!(hold.is_finished());
        assert_eq!(left_to_user(&calm, &user, NOW).await, 85);
        let doubt = sure!(engine, engine.finish(&finish(&user, two, How::Doubt), NOW));
        let (Finished::Done { hold, .. } | Finished::Already(hold)) = doubt else { panic!("it was open") };
        assert!(matches!(hold.stage, Stage::InDoubt { .. }));
        proxy.lose_replies(0, b"");
        assert_eq!(left_to_user(&calm, &user, NOW).await, 85);
    }
    assert!(proxy.lost() >= 3, "{} answers were lost", proxy.lost());
    // In the stream there is one change a step, too.
    let steps = calm.changes().await.changes;
    assert_eq!(steps.iter().filter(|change| change.hold.is_some()).count(), 12);
}

#[tokio::test]
async fn without_memory_nothing_is_taken_and_everything_ends() {
    let Some((server, engine)) = alone(Options::default()).await else { return };
    admitted(&engine, &take("u", 1, 30, None), NOW).await;
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let refused = engine.take(&take("u", 2, 10, None), NOW).await;
    assert!(matches!(refused, Err(EngineError::Unavailable)));
    let ended = done!(engine, engine.finish(&settle("u", 1, 5), NOW));
    assert!(matches!(ended, Finished::Done { .. }));
    assert_eq!(left_to_user(&engine, "u", NOW).await, 95);
}

#[tokio::test]
async fn while_too_much_waits_to_be_recorded_nothing_is_taken_and_everything_ends() {
    let Some((_server, engine)) = alone(Options { longest: 2, ..Options::default() }).await else { return };
    admitted(&engine, &take("u", 1, 10, None), NOW).await;
    admitted(&engine, &take("u", 2, 10, None), NOW).await;
    let refused = engine.take(&take("u", 3, 10, None), NOW).await;
    assert!(matches!(refused, Err(EngineError::Overloaded)));
    let ended = done!(engine, engine.finish(&settle("u", 1, 10), NOW));
    assert!(matches!(ended, Finished::Done { .. }));
    commit(&engine).await;
    admitted(&engine, &take("u", 3, 10, None), NOW).await;
}

#[tokio::test]
async fn what_was_not_recorded_is_handed_over_again() {
    for (name, engine) in in_redis().await {
        admitted(&engine, &take("u", 1, 10, None), NOW).await;
        let batch = engine.changes().await;
        let (fence, count) = (batch.fence, batch.changes.len());
        assert_eq!(count, 1, "{name}");
        engine.failed(batch).await;
        let again = engine.changes().await;
        assert_eq!((again.fence, again.changes.len()), (fence, count), "{name}");
        engine.committed(again).await;
    }
}

#[tokio::test]
async fn an_answer_that_waits_for_the_ledger_comes_whichever_node_records_it() {
    let options = Options { answers: Answers::ByLedger, ..Options::default() };
    let Some((server, one)) = alone(options).await else { return };
    let two = at(&server.url(), options, FIRST).await;
    let Taken::Hold { ticket, .. } = taken(&one, &take("u", 1, 10, None), NOW).await else { panic!("fits") };
    // A refusal may rest on it.
    let Taken::Refused { ticket: refused, .. } = taken(&one, &take("u", 2, 99, None), NOW).await else {
        panic!("does not fit")
    };
    commit(&two).await;
    let watching = tokio::spawn(async move { one.changes().await });
    assert!(ticket.recorded().await);
    assert!(refused.expect("it rests on something").recorded().await);
    watching.abort();
}

#[tokio::test]
async fn a_slot_that_forgot_what_is_on_record_is_built_anew() {
    let Some((server, engine)) = alone(Options::default()).await else { return };
    admitted(&engine, &take("u", 1, 10, None), NOW).await;
    commit(&engine).await;
    let recorded = Slot { epoch: 1, drained: 1 };
    assert!(engine.admit(TENANT, recorded).await.expect("up"));
    assert!(!engine.admit(TENANT, Slot { epoch: 1, drained: 2 }).await.expect("up"), "it is behind");
    assert!(!engine.admit(TENANT, Slot { epoch: 2, drained: 1 }).await.expect("up"), "of another epoch");

    assert!(engine.admit(TENANT, recorded).await.expect("up"));
    admitted(&engine, &take("u", 2, 20, None), NOW).await;
    engine.close_slot(TENANT, 1).await.expect("up");
    assert!(!engine.admit(TENANT, recorded).await.expect("up"), "it is closed");
    let rest = engine.remaining(TENANT, recorded).await.expect("up").expect("the second check");
    assert_eq!(rest.changes[0].hold.as_ref().map(|hold| hold.id), Some(HoldId(2)));
    let anew = Slot { epoch: 2, drained: 2 };
    assert!(engine.remaining(TENANT, Slot { epoch: 1, drained: 2 }).await.expect("up").is_none());
    engine.open_slot(TENANT, anew).await.expect("up");
    assert!(engine.admit(TENANT, anew).await.expect("up"));
    engine.set_clock(TENANT, NOW).await.expect("up");
    let Ok(Step::Missing(missing)) = engine.take(&take("u", 3, 10, None), NOW).await else {
        panic!("all accounts come from the ledger")
    };
    assert_eq!(missing.after.map(|after| (after.epoch, after.number)), Some((2, 2)));

    server.flush_all();
    let emptied = engine.take(&take("u", 3, 10, None), NOW).await;
    assert!(matches!(emptied, Err(EngineError::Unsure(TENANT))));
    assert!(!engine.admit(TENANT, anew).await.expect("up"), "it is empty");
}

#[tokio::test]
async fn a_node_whose_clock_is_off_is_told_the_servers_time() {
    let Some(server) = Single::start(&[]) else { return };
    let redis = apportion::engine::redis::Redis::connect(&server.url()).await.expect("up");
    let engine = apportion::engine::redis::RedisEngine::new(redis, Options::default());
    engine.open_slot(TENANT, FIRST).await.expect("up");
    assert!(engine.admit(TENANT, FIRST).await.expect("up"));
    let told = engine.take(&take("u", 1, 10, None), NOW).await;
    let Err(EngineError::Clock(TENANT, now)) = told else { panic!("months behind") };
    assert!(matches!(engine.take(&take("u", 1, 10, None), now).await, Ok(Step::Missing(_))));
}

#[tokio::test]
async fn an_unfinished_hold_whose_record_ended_here_is_finished_as_the_caller_found_it() {
    let Some((server, engine)) = alone(Options::default()).await else { return };
    let hold = admitted(&engine, &take("u", 1, 30, None), NOW).await;
    let records: Vec<String> = server.run(&["KEYS", "*:h:*"]);
    server.run::<()>(&["DEL", &records[0]]);
    let unknown = done!(engine, engine.finish(&settle("u", 1, 5), NOW));
    assert!(matches!(unknown, Finished::NotOpen), "the ledger knows it");
    let found = Finish { found: Some(hold.clone()), ..settle("u", 1, 5) };
    assert!(matches!(done!(engine, engine.finish(&found, NOW)), Finished::Done { .. }));
    assert_eq!(left_to_user(&engine, "u", NOW).await, 95);
    // Once: it is nobody's open hold any more.
    let records: Vec<String> = server.run(&["KEYS", "*:h:*"]);
    server.run::<()>(&["DEL", &records[0]]);
    assert!(matches!(done!(engine, engine.finish(&found, NOW)), Finished::NotOpen));
}
