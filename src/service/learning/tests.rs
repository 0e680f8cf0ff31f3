//! What is learned, how it is bounded, and how nodes hear of each other's calls.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::outputs::Outputs;
use crate::domain::charge::TenantRef;
use crate::service::tenancy::fake_ledger::FakeLedger;

const TENANT: TenantRef = TenantRef(1);
const TODAY: i32 = 20_000;

/// Calls of a feature by `opus`, each settled with so much.
fn settle(outputs: &Outputs, feature: &str, calls: u64, used: u64) {
    (0..calls).for_each(|_| outputs.note(feature, "opus", TODAY, 10_000, used));
}

async fn known(ledger: &FakeLedger, today: i32) -> Outputs {
    let outputs = Outputs::default();
    outputs.know(ledger, TENANT, today).await;
    outputs
}

#[test]
fn a_feature_has_its_own_figure_once_enough_is_known_and_that_of_its_model_before() {
    let outputs = Outputs::default();
    settle(&outputs, "code", 199, 20);
    assert_eq!(outputs.likely("code", "opus"), None);
    settle(&outputs, "code", 1, 20);
    assert_eq!(outputs.likely("code", "opus"), Some(25));
    assert_eq!(outputs.likely("chat", "opus"), Some(25), "of the model, for want of better");
    assert_eq!(outputs.likely("code", "haiku"), None);
    settle(&outputs, "chat", 200, 500);
    assert_eq!(outputs.likely("chat", "opus"), Some(639));
    assert_eq!(outputs.likely("code", "opus"), Some(25));
}

#[test]
fn answers_that_become_longer_are_not_outweighed_by_many_short_ones() {
    let outputs = Outputs::default();
    settle(&outputs, "chat", 100_000, 100);
    let mut calls = 0;
    while outputs.likely("chat", "opus").unwrap() < 3_000 {
        let reserved = outputs.likely("chat", "opus").unwrap();
        outputs.note("chat", "opus", TODAY, reserved, reserved.min(3_000));
        calls += 1;
    }
    assert!(calls < 300, "{calls} calls were cut off");
}

#[tokio::test]
async fn what_one_node_counts_another_one_reads() {
    let ledger = FakeLedger::default();
    let (here, there) = (known(&ledger, TODAY).await, known(&ledger, TODAY).await);
    settle(&here, "chat", 150, 500);
    settle(&there, "chat", 150, 100);
    for node in [&here, &there] {
        node.flush(&ledger, TENANT).await.unwrap();
        assert_eq!(node.likely("chat", "opus"), None);
    }
    settle(&here, "chat", 10, 500);
    for node in [&here, &there] {
        node.refresh(&ledger, TENANT, TODAY).await.unwrap();
        assert_eq!(node.likely("chat", "opus"), Some(639));
    }
    // Nothing counts twice, however often it is read.
    here.know(&ledger, TENANT, TODAY).await;
    here.refresh(&ledger, TENANT, TODAY).await.unwrap();
    here.flush(&ledger, TENANT).await.unwrap();
    let written: u64 = ledger
        .tallies
        .lock()
        .iter()
        .flat_map(|tally| &tally.outputs)
        .map(|(.., row)| row.spread.count())
        .sum();
    assert_eq!(written, 310);
    // A process that starts knows it all, and nobody of another tenant.
    assert_eq!(known(&ledger, TODAY).await.likely("chat", "opus"), Some(639));
    let other = Outputs::default();
    other.know(&ledger, TenantRef(2), TODAY).await;
    assert_eq!(other.likely("chat", "opus"), None);
}

#[tokio::test]
async fn what_is_a_week_old_counts_no_more() {
    let ledger = FakeLedger::default();
    let outputs = known(&ledger, TODAY).await;
    settle(&outputs, "chat", 1_000, 500);
    for day in 1..7 {
        outputs.know(&ledger, TENANT, TODAY + day).await;
        assert_eq!(outputs.likely("chat", "opus"), Some(639), "{day}");
    }
    outputs.know(&ledger, TENANT, TODAY + 7).await;
    assert_eq!(outputs.likely("chat", "opus"), None);
}

#[tokio::test]
async fn what_cannot_be_written_stays_and_is_written_once() {
    let ledger = FakeLedger::default();
    let outputs = known(&ledger, TODAY).await;
    ledger.down.store(true, SeqCst);
    settle(&outputs, "chat", 100, 500);
    outputs.flush(&ledger, TENANT).await.unwrap_err();
    settle(&outputs, "chat", 100, 500);
    outputs.flush(&ledger, TENANT).await.unwrap_err();
    assert_eq!(outputs.likely("chat", "opus"), Some(639), "what is known here stays known");
    ledger.down.store(false, SeqCst);
    outputs.flush(&ledger, TENANT).await.unwrap();
    let counts: Vec<u64> =
        ledger.tallies.lock().iter().map(|tally| tally.outputs[0].2.spread.count()).collect();
    assert_eq!(counts, [100, 100]);
}

#[tokio::test]
async fn features_and_models_are_bounded_whatever_callers_name() {
    let ledger = FakeLedger::default();
    let outputs = known(&ledger, TODAY).await;
    settle(&outputs, "chat", 500, 100);
    for n in 0..5_000 {
        outputs.note(&format!("feature_{n}"), "opus", TODAY, 10_000, 200);
        outputs.note("chat", &format!("model-{n}"), TODAY, 10_000, 300);
    }
    outputs.flush(&ledger, TENANT).await.unwrap();
    let rows = || ledger.tallies.lock().iter().map(|tally| tally.outputs.len()).sum::<usize>();
    let first_day = rows();
    assert!((256..=260).contains(&first_day), "{first_day}");
    assert_eq!(outputs.likely("chat", "opus"), Some(129));
    assert_eq!(outputs.likely("feature_4999", "opus"), Some(259), "of its model");
    // The next day the most used ones are there, and there is room for some others.
    outputs.know(&ledger, TENANT, TODAY + 1).await;
    assert_eq!(outputs.likely("chat", "opus"), Some(129));
    (0..5_000).for_each(|n| outputs.note(&format!("later_{n}"), "opus", TODAY + 1, 10_000, 200));
    outputs.flush(&ledger, TENANT).await.unwrap();
    let second_day = rows() - first_day;
    assert!((1..=70).contains(&second_day), "{second_day}");
}

#[tokio::test]
async fn many_calls_settle_at_once() {
    let (ledger, outputs) = (Arc::new(FakeLedger::default()), Arc::new(Outputs::default()));
    let mut tasks = Vec::new();
    for task in 0..8u64 {
        let (ledger, outputs) = (Arc::clone(&ledger), Arc::clone(&outputs));
        tasks.push(tokio::spawn(async move {
            for n in 0..500 {
                outputs.note(["chat", "code"][(task % 2) as usize], "opus", TODAY, 1_000, n % 7 + task);
                if n % 100 == 0 {
                    outputs.know(&*ledger, TENANT, TODAY).await;
                    outputs.refresh(&*ledger, TENANT, TODAY).await.unwrap();
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    outputs.flush(&*ledger, TENANT).await.unwrap();
    let written: u64 = ledger
        .tallies
        .lock()
        .iter()
        .flat_map(|tally| &tally.outputs)
        .map(|(.., row)| row.spread.count())
        .sum();
    assert_eq!(written, 4_000);
}
