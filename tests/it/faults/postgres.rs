//! Postgres goes away in the middle: what it has taken is there when it is back, once.

use std::sync::Arc;

use apportion::domain::plan::Scope;
use apportion::domain::slot::Fence;
use apportion::domain::time::Millis;
use apportion::ledger::{
    AuditQuery, Change, DoubtFilter, DoubtQuery, Edge, Exports, FeedMark, FeedPage, FeedQuery, Group,
    HistoryQuery, Ledger, LedgerError, PostgresLedger, Pruned, Pruning, Reports, UserQuery,
};
use futures_util::future::join_all;

use crate::contract::ledger::samples::*;
use crate::harness::postgres::Postgres;

const KILLS: u64 = 3;
const BETWEEN_KILLS: u64 = 100;

/// The change that follows the `drained`-th.
fn step(drained: u64) -> Change {
    let number = drained.cast_signed();
    let accounts = vec![(key(Scope::User, "u_1"), number.to_string().as_bytes().into())];
    let event = Some(FeedMark { part: 1, amounts: Vec::new() });
    Change { usage: Some(delta(1, 10)), event, accounts, ..change(&hold("u_1", number)) }
}

/// Records change after change up to `target`, beside others that do the same. Returns how often
/// the ledger was away.
async fn drain(ledger: Arc<PostgresLedger>, target: u64) -> u32 {
    let mut away = 0;
    loop {
        let done = async {
            let from = ledger.slot(TENANT).await?.drained;
            if from == target {
                return Ok(true);
            }
            let fence = Fence { tenant: TENANT, epoch: 1, from, to: from + 1 };
            ledger.commit_fenced(vec![step(from)], fence).await.map(|()| false)
        };
        match done.await {
            Ok(true) => return away,
            Ok(false) | Err(LedgerError::Fenced) => {}
            Err(LedgerError::Unavailable(_)) => away += 1,
            Err(error) => panic!("{error}: {error:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_postgres_took_before_it_was_killed_is_on_record_once_and_the_ledger_goes_on() {
    let Some(server) = Postgres::start() else { return };
    let ledger = Arc::new(PostgresLedger::open(&server.url("postgres"), 6).await.unwrap());
    let target = (KILLS + 1) * BETWEEN_KILLS;
    let drains: Vec<_> = (0..3).map(|_| tokio::spawn(drain(Arc::clone(&ledger), target))).collect();
    for round in 1..=KILLS {
        while ledger.slot(TENANT).await.unwrap().drained < round * BETWEEN_KILLS {}
        server.kill();
        assert!(matches!(ledger.revision().await, Err(LedgerError::Unavailable(_))));
        server.restart();
        // Whatever connections there were, none is in the way.
        ledger.revision().await.unwrap();
    }
    let away: u32 = join_all(drains).await.into_iter().map(Result::unwrap).sum();
    assert!(away > 0, "the kills were noticed");
    let usage = ledger.usage(TENANT, Group::User, i32::MIN..i32::MAX).await.unwrap();
    assert_eq!(usage.iter().map(|row| row.amounts.requests).sum::<u64>(), target);
    for drained in 0..target {
        let id = hold("u_1", drained.cast_signed()).id;
        assert!(ledger.hold(TENANT, id).await.unwrap().is_some(), "hold {drained}");
    }
}

/// A server behind a broken line neither answers nor refuses.
#[tokio::test]
async fn a_postgres_that_stands_still_is_told_as_away_and_used_again_when_it_moves() {
    let Some(server) = Postgres::start() else { return };
    let ledger = PostgresLedger::open(&server.url("postgres"), 6).await.unwrap();
    ledger.commit(vec![step(1)]).await.unwrap();
    server.freeze();
    // One finds its connection dumb, the others get none: more than there are.
    let asked = join_all((0..6).map(|_| ledger.revision()));
    let written = join_all((0..6).map(|n| ledger.commit(vec![step(10 + n)])));
    let (asked, written) = futures_util::future::join(asked, written).await;
    let away = |error: Option<LedgerError>| matches!(error, Some(LedgerError::Unavailable(_)));
    assert!(asked.into_iter().all(|answer| away(answer.err())));
    assert!(written.into_iter().all(|answer| away(answer.err())));
    server.thaw();
    ledger.commit(vec![step(2)]).await.unwrap();
    let [one, other] = [1, 2].map(|n| hold("u_1", n).id);
    assert!(ledger.hold(TENANT, one).await.unwrap().is_some());
    assert!(ledger.hold(TENANT, other).await.unwrap().is_some());
}

#[tokio::test]
async fn texts_that_postgres_cannot_hold_do_not_close_the_door() {
    let Some(server) = Postgres::shared() else { return };
    let database = server.with_schema();
    let ledger = PostgresLedger::open(&database.url(), 2).await.unwrap();
    let reason = apportion::ledger::Written { reason: Some("a\0b".into()), ..written() };
    ledger.put_user(TENANT, person("u_1"), reason).await.unwrap();
    let query = AuditQuery { limit: 1, ..AuditQuery::default() };
    let audit = ledger.audit(TENANT, query).await.unwrap();
    assert_eq!(audit[0].written.reason.as_deref(), Some("a\u{FFFD}b"));
}

#[tokio::test]
async fn a_database_that_is_not_there_is_told_and_no_password_with_it() {
    let Some(server) = Postgres::shared() else { return };
    let url = server.url("nowhere").replace("not-asked-for", "s3cret");
    let Err(error) = PostgresLedger::open(&url, 2).await else { panic!("it was opened") };
    let told = format!("{error} {error:?}");
    assert!(matches!(error, LedgerError::Unusable(_)), "{told}");
    assert!(told.contains("/nowhere") && !told.contains("s3cret"), "{told}");
    let gone = format!("postgres://me:s3cret@127.0.0.1:{}/gone", crate::harness::lasting::free_port());
    let Err(error) = PostgresLedger::open(&gone, 2).await else { panic!("it was opened") };
    assert!(matches!(error, LedgerError::Unavailable(_)), "{error:?}");
    assert!(!format!("{error:?}").contains("s3cret"));
}

#[tokio::test]
async fn a_newer_schema_and_a_strangers_tables_are_refused() {
    let Some(server) = Postgres::shared() else { return };
    let newer = server.with_schema();
    newer.psql("INSERT INTO _sqlx_migrations VALUES (9999, 'later', now(), true, '', 0)");
    let stranger = server.empty();
    stranger.psql("CREATE TABLE holds (something text)");
    for (database, word) in [(&newer, "newer program"), (&stranger, "holds")] {
        let Err(error) = PostgresLedger::open(&database.url(), 2).await else { panic!("it was opened") };
        assert!(matches!(&error, LedgerError::Unusable(told) if told.contains(word)), "{error:?}");
    }
    assert_eq!(stranger.psql("SELECT count(*) FROM holds"), "0");
}

/// The planner's own counters tell. It would read small tables as a whole: so that is made dear.
#[tokio::test]
async fn no_question_reads_a_whole_table_and_the_audit_is_not_changed() {
    let Some(server) = Postgres::shared() else { return };
    let database = server.with_schema();
    let url = format!("{}?options=-c%20enable_seqscan%3Doff", database.url());
    let ledger = PostgresLedger::open(&url, 2).await.unwrap();
    ledger.commit((0..50).map(step).collect()).await.unwrap();
    ledger.put_user(TENANT, person("u_1"), written()).await.unwrap();
    // More often than it takes until plans are made for all parameters alike.
    for _ in 0..12 {
        ask_everything(&ledger).await;
    }
    ledger.close().await;
    // What is told when its session ends.
    let text = "SELECT string_agg(relname || ' ' || seq_scan, ', ' ORDER BY relname) FROM pg_stat_user_tables
                WHERE seq_scan > 0 AND relname IN ('holds', 'accounts', 'day_totals', 'pentad_totals', 'month_totals', 'users', 'orgs',
                    'records', 'audit', 'refusals', 'refused', 'comparisons', 'outputs', 'erasures', 'slots', 'feed',
                    'feeds')";
    assert_eq!(database.psql(text), "");
    assert_ne!(database.psql("SELECT sum(idx_scan) FROM pg_stat_user_tables"), "0", "they were counted");
    for change in ["UPDATE audit SET target = ''", "DELETE FROM audit", "TRUNCATE audit"] {
        let text = format!("DO $$ BEGIN {change}; EXCEPTION WHEN raise_exception THEN RETURN; END $$");
        database.psql(&text);
    }
    assert_eq!(database.psql("SELECT count(*) FROM audit WHERE target = 'u_1'"), "1");
}

async fn ask_everything(ledger: &PostgresLedger) {
    for (scope, owner) in
        [(Scope::User, "u_1"), (Scope::Org, "acme"), (Scope::Tenant, ""), (Scope::Pool, "p")]
    {
        ledger.account(key(scope, owner), Millis(0)).await.unwrap();
    }
    ledger.hold(TENANT, hold("u_1", 1).id).await.unwrap();
    ledger.hold_by_request(TENANT, user("u_1"), request("r")).await.unwrap();
    for of in [None, Some(user("u_1"))] {
        let filter = DoubtFilter { user: of, ..DoubtFilter::default() };
        let query = DoubtQuery { now: at(i64::from(u32::MAX)), filter, after: None, limit: 10 };
        assert!(!ledger.doubts(TENANT, query).await.unwrap().holds.is_empty());
    }
    ledger.usage(TENANT, Group::User, 20_000..21_000).await.unwrap();
    ledger.user(TENANT, user("u_1")).await.unwrap();
    for (plan, org) in [(None, None), (Some(name("free")), None), (None, Some(name("acme")))] {
        let query = UserQuery { plan, org, limit: 10, ..UserQuery::default() };
        ledger.nth_user(TENANT, query.clone(), 1).await.unwrap();
        ledger.users(TENANT, UserQuery { prefix: Some("u_".into()), ..query.clone() }).await.unwrap();
        ledger.users(TENANT, query).await.unwrap();
    }
    ledger.users_to_move(TENANT, at(0), 10).await.unwrap();
    ledger.erased_due(TENANT, at(0), 10).await.unwrap();
    ledger.erasures(TENANT).await.unwrap();
    ledger.org(TENANT, name("acme")).await.unwrap();
    ledger.records(Some(TENANT)).await.unwrap();
    let (none, text) = (AuditQuery { limit: 10, ..AuditQuery::default() }, || Some("x".to_owned()));
    let asked = [
        none.clone(),
        AuditQuery { target: text(), ..none.clone() },
        AuditQuery { by: text(), ..none.clone() },
        AuditQuery { from: Some(at(0)), ..none },
    ];
    for query in asked {
        ledger.audit(TENANT, query).await.unwrap();
    }
    let edge = Edge { at: at(i64::from(u32::MAX)), id: u128::MAX };
    let query = HistoryQuery {
        user: user("u_1"),
        from: at(0),
        now: at(0),
        made: edge,
        ended: edge,
        doubtful: edge,
        changed: edge,
        limit: 10,
    };
    assert_eq!(ledger.history(TENANT, query).await.unwrap().made.len(), 10);
    for after in [None, Some(7)] {
        let page = ledger.feed(TENANT, FeedQuery { after, seal: 0, limit: 10 }).await.unwrap();
        assert!(matches!(page, FeedPage::Events { events, .. } if events.len() == 10));
    }
    ledger.refusals(TENANT, user("u_1"), 20_000..20_003).await.unwrap();
    ledger.comparisons(TENANT, 20_000..20_003).await.unwrap();
    ledger.outputs(TENANT, 20_000).await.unwrap();
    ledger.prune_tallies(TENANT, 20_000).await.unwrap();
    let all = Pruning { now: at(i64::from(u32::MAX)), keep_ms: 0, rows: 10, every_ms: 0 };
    while ledger.prune_holds(all).await.unwrap() != Pruned::Nothing {}
    ledger.slot(TENANT).await.unwrap();
}
