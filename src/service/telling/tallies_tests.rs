//! What is counted, what comes of it in the ledger, and what bounds it.

use std::sync::atomic::Ordering::SeqCst;

use super::*;
use crate::domain::decision::Code;
use crate::service::tenancy::bench::Bench;
use crate::service::tenancy::fake_ledger::FakeLedger;

const TENANT: TenantRef = TenantRef(1);
const CODE: &str = "request_rate_exceeded";

fn user(id: &str) -> UserId {
    UserId::parse(id).unwrap()
}

fn count(tallies: &Tallies, id: &str, code: &'static str, times: i64) {
    let limit = Label::parse("requests_per_minute").unwrap();
    let call = |n| RefusedCall {
        at: Millis(n),
        code: Cow::Borrowed(code),
        limit: Some(limit.shared()),
        grounds: None,
    };
    (0..times).for_each(|n| tallies.count(TENANT, &user(id), (20_000, code), || call(n)));
}

/// All users of all tallies that came to the ledger, and how many tallies.
fn written(ledger: &FakeLedger) -> (Vec<RefusedUser>, usize) {
    let tallies = ledger.tallies.lock();
    (tallies.iter().flat_map(|tally| tally.refused.clone()).collect(), tallies.len())
}

#[tokio::test]
async fn a_flood_of_one_user_is_one_row_and_the_last_hundred() {
    let (ledger, tallies) = (FakeLedger::default(), Tallies::default());
    count(&tallies, "u_1", CODE, 10_000);
    count(&tallies, "u_1", "user_suspended", 1);
    tallies.flush(&ledger, true).await.unwrap();
    let (rows, writes) = written(&ledger);
    assert_eq!((rows.len(), writes), (1, 1));
    let counts: Vec<_> = rows[0].counts.iter().map(|row| (row.day, &*row.code, row.count)).collect();
    assert_eq!(counts, [(20_000, CODE, 10_000), (20_000, "user_suspended", 1)]);
    assert_eq!(rows[0].recent.len(), 100);
    assert_eq!((rows[0].recent[0].at, rows[0].recent[98].at), (Millis(9_901), Millis(9_999)));
    assert_eq!(rows[0].recent[99].code, "user_suspended");
    // What is on record is not written again.
    tallies.flush(&ledger, true).await.unwrap();
    assert_eq!(written(&ledger).1, 1);
}

#[tokio::test]
async fn what_cannot_be_written_stays_and_is_written_once() {
    let (ledger, tallies) = (FakeLedger::default(), Tallies::default());
    ledger.down.store(true, SeqCst);
    count(&tallies, "u_1", CODE, 3);
    tallies.flush(&ledger, true).await.unwrap_err();
    count(&tallies, "u_1", CODE, 4);
    tallies.flush(&ledger, true).await.unwrap_err();
    ledger.down.store(false, SeqCst);
    tallies.flush(&ledger, true).await.unwrap();
    let counts: Vec<u64> = written(&ledger).0.iter().map(|row| row.counts[0].count).collect();
    assert_eq!(counts, [3, 4]);
}

#[tokio::test]
async fn too_many_users_are_counted_by_code_alone() {
    let (ledger, tallies) = (FakeLedger::default(), Tallies::default());
    let many = 120_000;
    (0..many).for_each(|n| count(&tallies, &format!("u_{n}"), CODE, 1));
    // Who is counted goes on being counted.
    count(&tallies, "u_0", CODE, 1);
    let uncounted = tallies.uncounted();
    assert!((20_000..30_000).contains(&uncounted), "{uncounted}");
    tallies.flush(&ledger, true).await.unwrap();
    let (rows, _) = written(&ledger);
    let sum =
        |rows: &[&RefusedUser]| rows.iter().flat_map(|row| &row.counts).map(|row| row.count).sum::<u64>();
    let (others, users): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.user.is_none());
    assert_eq!((sum(&others), sum(&users)), (uncounted, many + 1 - uncounted));
    assert!(users.len() <= 100_000 && others.len() <= SHARDS);
    let portions = ledger.tallies.lock();
    assert!(portions.iter().all(|portion| portion.refused.len() <= USERS_AT_ONCE));
}

#[tokio::test]
async fn refusals_kept_one_by_one_are_bounded_in_all() {
    let (ledger, tallies) = (FakeLedger::default(), Tallies::default());
    (0..2_000).for_each(|n| count(&tallies, &format!("u_{n}"), CODE, 100));
    tallies.flush(&ledger, true).await.unwrap();
    let (rows, _) = written(&ledger);
    assert_eq!(rows.iter().map(|row| row.counts[0].count).sum::<u64>(), 200_000);
    let kept: usize = rows.iter().map(|row| row.recent.len()).sum();
    assert!((100_000..=128_000).contains(&kept), "{kept}");
}

#[tokio::test]
async fn another_limiters_words_are_bounded() {
    let bench = Bench::new().await;
    let tenant = bench.tenant("demo").await;
    let tallies = Tallies::default();
    let now = Millis::parse("2026-11-30T12:00:00Z").unwrap();
    for n in 0..100 {
        tallies.compared(&tenant, "allow", &format!("cause_{n}"), now);
    }
    tallies.compared(&tenant, Code::DailyQuotaExhausted.as_str(), "cause_0", now);
    tallies.compared(&tenant, "allow", "cause_0", now);
    tallies.flush(&*bench.ledger, true).await.unwrap();
    let written = bench.ledger.tallies.lock();
    let rows: Vec<&Comparison> = written[0].compared.iter().map(|(_, row)| row).collect();
    let checks = |ours: &str, theirs: &str| {
        let is_it = |row: &&&Comparison| (&*row.ours, &*row.theirs) == (ours, theirs);
        rows.iter().find(is_it).map(|row| row.checks)
    };
    assert_eq!(checks("allow", "cause_0"), Some(2));
    assert_eq!(checks("daily_quota_exhausted", "cause_0"), Some(1));
    assert_eq!(checks("allow", "other"), Some(36));
    assert_eq!(rows.len(), THEIRS_MAX + 2);
}
