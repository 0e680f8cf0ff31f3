//! Counters of refusals and comparisons.

use std::sync::Arc;

use apportion::domain::charge::TenantRef;
use apportion::domain::ids::Label;
use apportion::domain::plan::{Meter, Scope};
use apportion::domain::spread::{Counted, Spread};
use apportion::domain::step::Remedy;
use apportion::domain::time::Millis;
use apportion::ledger::{
    Comparison, Edge, Failed, Grounds, History, HistoryQuery, Ledger, Output, RefusalCount, RefusedCall,
    RefusedUser, Tally,
};

use super::Room;
use super::samples::*;

const CODE: &str = "request_rate_exceeded";

fn grounds() -> Grounds {
    let failed = Failed {
        name: Label::parse("requests").unwrap(),
        scope: Scope::User,
        kind: "bucket".into(),
        meter: Some(Meter::Requests),
        limit: 10,
        remaining: 0,
        requested: 1,
        remedy: Remedy::Wait { retry_after_ms: 6_000 },
        would_fit: 0,
    };
    Grounds {
        plan: Some((name("free"), 2)),
        model: Some(name("sonnet")),
        feature: None,
        bulk: false,
        input_tokens: 1_000,
        max_output_tokens: None,
        min_output_tokens: Some(1),
        failed: vec![failed],
    }
}

pub(super) fn refused(
    tenant: TenantRef,
    user_id: &str,
    counts: &[(i32, &'static str, u64)],
    calls: i64,
) -> RefusedUser {
    let count =
        |&(day, code, count): &(i32, &'static str, u64)| RefusalCount { day, code: code.into(), count };
    let call = |n| RefusedCall {
        at: at(n),
        code: CODE.into(),
        limit: Some("requests".into()),
        grounds: (n % 2 == 0).then(|| Box::new(grounds())),
    };
    RefusedUser {
        tenant,
        user: Some(user(user_id)),
        counts: counts.iter().map(count).collect(),
        recent: (0..calls).map(call).collect(),
    }
}

pub(super) async fn add(ledger: &dyn Ledger, refused: Vec<RefusedUser>) {
    ledger.add_tally(Arc::new(Tally { refused, ..Tally::default() })).await.unwrap();
}

/// Day, code and count of a user.
pub(super) async fn counts(ledger: &dyn Ledger, tenant: TenantRef, id: &str) -> Vec<(i32, String, u64)> {
    let rows = ledger.refusals(tenant, user(id), 90..121).await.unwrap();
    rows.into_iter().map(|row| (row.day, row.code.into_owned(), row.count)).collect()
}

pub(super) async fn history(ledger: &dyn Ledger, tenant: TenantRef, id: &str, limit: u32) -> History {
    let end = Edge { at: Millis::MAX, id: 0 };
    let query = HistoryQuery {
        user: user(id),
        from: Millis(0),
        now: at(1_000_000_000),
        made: end,
        ended: end,
        doubtful: end,
        changed: end,
        limit,
    };
    ledger.history(tenant, query).await.unwrap()
}

pub async fn refusals_add_up_by_user_day_and_code(room: impl Room) {
    let ledger = room.open().await;
    add(&*ledger, vec![refused(TENANT, "u_1", &[(100, CODE, 3), (101, CODE, 1)], 0)]).await;
    let more = [(100, CODE, 4), (100, "user_suspended", 1), (89, CODE, 9), (121, CODE, 9)];
    add(&*ledger, vec![refused(TENANT, "u_1", &more, 0), refused(TENANT, "U_1", &[(100, CODE, 1)], 0)]).await;
    let nobody = RefusedUser { user: None, ..refused(TENANT, "x", &[(100, CODE, 50)], 0) };
    add(&*ledger, vec![nobody]).await;
    ledger.close().await;
    let ledger = room.open().await;
    let expected =
        [(101, CODE.to_owned(), 1), (100, CODE.to_owned(), 7), (100, "user_suspended".to_owned(), 1)];
    assert_eq!(counts(&*ledger, TENANT, "u_1").await, expected);
    assert_eq!(counts(&*ledger, TENANT, "U_1").await, [(100, CODE.to_owned(), 1)]);
    // Another tenant's user of the same id is another user.
    assert_eq!(counts(&*ledger, OTHER, "u_1").await, []);
    add(&*ledger, vec![refused(TENANT, "u_1", &[(101, CODE, u64::MAX), (100, CODE, u64::MAX)], 0)]).await;
    let most = counts(&*ledger, TENANT, "u_1").await;
    assert!(most.iter().all(|row| row.2 < 1 << 53), "{most:?}");
}

pub async fn the_last_hundred_refusals_of_a_user_stay(room: impl Room) {
    let ledger = room.open().await;
    for _ in 0..7 {
        add(&*ledger, vec![refused(TENANT, "u_1", &[], 30), refused(TENANT, "u_2", &[], 1)]).await;
    }
    ledger.close().await;
    let ledger = room.open().await;
    let kept = history(&*ledger, TENANT, "u_1", 10).await.refused;
    let numbers: Vec<u64> = kept.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (111..=210).collect::<Vec<_>>());
    assert_eq!(kept[99].1, refused(TENANT, "u_1", &[], 30).recent[29]);
    assert_eq!(history(&*ledger, TENANT, "u_2", 10).await.refused.len(), 7);
    let last = ledger.last_refusals(TENANT, user("u_1")).await.unwrap();
    assert_eq!(last, kept.into_iter().map(|(_, call)| call).collect::<Vec<_>>());
    assert_eq!(ledger.last_refusals(OTHER, user("u_1")).await.unwrap(), []);
    assert!(history(&*ledger, OTHER, "u_1", 10).await.refused.is_empty());
}

pub async fn words_of_another_limiter_are_bounded_by_day(room: impl Room) {
    let ledger = room.open().await;
    let compare = async |day, words: std::ops::Range<u32>| {
        let row = |n| Comparison { day, ours: "allow".into(), theirs: format!("w{n}").into(), checks: 2 };
        let compared = words.map(|n| (TENANT, row(n))).collect();
        ledger.add_tally(Arc::new(Tally { compared, ..Tally::default() })).await.unwrap();
    };
    compare(100, 0..40).await;
    compare(100, 0..100).await;
    compare(101, 99..100).await;
    let rows = ledger.comparisons(TENANT, 100..101).await.unwrap();
    assert_eq!(rows.len(), 65);
    let checks = |word: &str| rows.iter().find(|row| &*row.theirs == word).map(|row| row.checks);
    assert_eq!(
        (checks("w39"), checks("w63"), checks("w64"), checks("other")),
        (Some(4), Some(2), None, Some(72))
    );
    assert_eq!(&*ledger.comparisons(TENANT, 101..200).await.unwrap()[0].theirs, "w99");
    assert_eq!(ledger.comparisons(OTHER, 0..200).await.unwrap(), []);
}

pub async fn old_counters_are_taken_out_bit_by_bit(room: impl Room) {
    let ledger = room.open().await;
    for part in 0..25 {
        let users =
            (0..100).map(|n| refused(TENANT, &format!("u_{part}_{n}"), &[(100, CODE, 1), (101, CODE, 1)], 1));
        add(&*ledger, users.collect()).await;
    }
    add(&*ledger, vec![refused(OTHER, "u_0_0", &[(100, CODE, 1)], 0)]).await;
    let mut rounds = 1;
    while ledger.prune_tallies(TENANT, 101).await.unwrap() {
        rounds += 1;
    }
    assert!((2..10).contains(&rounds), "{rounds}");
    assert_eq!(counts(&*ledger, TENANT, "u_24_99").await, [(101, CODE.to_owned(), 1)]);
    assert_eq!(counts(&*ledger, OTHER, "u_0_0").await.len(), 1);
    assert_eq!(history(&*ledger, TENANT, "u_0_0", 10).await.refused.len(), 1);
}

/// Calls of a feature by a model, by reservation and use.
fn output(feature: &str, model: &str, calls: &[(u64, u64)]) -> Output {
    let mut spread = Spread::default();
    calls.iter().for_each(|(reserved, used)| spread.note(*reserved, *used));
    Output { feature: feature.into(), model: model.into(), spread }
}

async fn add_outputs(ledger: &dyn Ledger, outputs: Vec<(TenantRef, i32, Output)>) {
    ledger.add_tally(Arc::new(Tally { outputs, ..Tally::default() })).await.unwrap();
}

pub async fn outputs_add_up_by_feature_and_model_and_old_days_go(room: impl Room) {
    let ledger = room.open().await;
    let chat = |calls: &[(u64, u64)]| output("chat", "opus", calls);
    add_outputs(
        &*ledger,
        vec![
            (TENANT, 99, chat(&[(512, 7)])),
            (TENANT, 100, chat(&[(512, 40), (512, 512)])),
            (TENANT, 100, chat(&[(600, 41)])),
            (TENANT, 100, output("chat", "", &[(1, 2)])),
            (OTHER, 100, chat(&[(9, 1)])),
        ],
    )
    .await;
    add_outputs(&*ledger, vec![(TENANT, 101, chat(&[(512, 40)])), (TENANT, 101, output("", "", &[(1, 0)]))])
        .await;
    ledger.close().await;
    let ledger = room.open().await;
    let told = ledger.outputs(TENANT, 100).await.unwrap();
    let all = chat(&[(512, 40), (512, 512), (600, 41), (512, 40)]);
    assert_eq!(told, [output("", "", &[(1, 0)]), output("chat", "", &[(1, 2)]), all]);
    assert_eq!(ledger.outputs(OTHER, 0).await.unwrap(), [chat(&[(9, 1)])]);
    assert_eq!(ledger.outputs(TENANT, 102).await.unwrap(), []);
    while ledger.prune_outputs(TENANT, 101).await.unwrap() {}
    let kept = [output("", "", &[(1, 0)]), chat(&[(512, 40)])];
    assert_eq!(ledger.outputs(TENANT, 0).await.unwrap(), kept);
    assert_eq!(ledger.outputs(OTHER, 0).await.unwrap().len(), 1);
}

pub async fn sums_of_outputs_end_where_whole_numbers_do(room: impl Room) {
    let ledger = room.open().await;
    let most = Counted { count: u64::MAX, cut: 1, reserved: u64::MAX, used: 1 << 53, most: u64::MAX };
    let mut spread = Spread::default();
    spread.add(300, most);
    for day in [100, 100, 101] {
        let output = Output { feature: "chat".into(), model: "*".into(), spread: spread.clone() };
        add_outputs(&*ledger, vec![(TENANT, day, output)]).await;
    }
    let told = ledger.outputs(TENANT, 100).await.unwrap();
    assert!(told[0].spread.count() < 1 << 53 && told[0].spread.total().cut == 3, "{told:?}");
}
