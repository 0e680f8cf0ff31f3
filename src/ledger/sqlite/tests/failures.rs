//! Writes that fail midway.

use std::error::Error;

use sqlx::Row;

use super::super::Portions;
use super::*;
use crate::domain::ids::TenantId;
use crate::ledger::{
    Group, Ledger, LedgerError, MinutesQuery, Note, Record, RecordKind, Reports, Signals, SqliteLedger, User,
};

fn chain(error: &dyn Error) -> String {
    std::iter::successors(Some(error), |error: &&dyn Error| (*error).source())
        .map(|error| format!("{error}; "))
        .collect()
}

/// The failure's causes, all in one text; it must be one that can pass.
fn unavailable(answer: Result<(), LedgerError>) -> String {
    match answer {
        Err(error @ LedgerError::Unavailable(_)) => chain(&error),
        other => panic!("{other:?}"),
    }
}

async fn pragma(ledger: &SqliteLedger, text: &'static str) {
    let mut lane = ledger.writer.lane().await.unwrap();
    lane.connection().unwrap().execute(text).await.unwrap();
}

async fn trap(dir: &Dir, table: &str, how: &str) {
    let text = format!(
        "CREATE TRIGGER trap BEFORE INSERT ON {table} BEGIN SELECT RAISE({how}, 'the trap shuts'); END"
    );
    execute(&mut dir.other().await, &text).await.unwrap();
}

async fn open_trap(dir: &Dir) {
    execute(&mut dir.other().await, "DROP TRIGGER trap").await.unwrap();
}

// ABORT fails the statement, ROLLBACK ends the transaction behind the driver's
// back, as a full disk does.
const HOWS: [&str; 3] = ["ABORT", "ROLLBACK", "FAIL"];

#[tokio::test]
async fn a_commit_that_fails_midway_leaves_nothing() {
    for how in HOWS {
        for table in ["journal", "users", "taken"] {
            let dir = Dir::new();
            let ledger = dir.open().await;
            trap(&dir, table, how).await;
            let mut admitting = change("u_2", 2);
            let before = Hold::clone(admitting.hold.as_ref().unwrap());
            admitting.hold = Some(Arc::new(Hold { admits_user: true, ..before }));
            let text = unavailable(ledger.commit(vec![change("u_1", 1), admitting]).await);
            assert!(text.contains("the trap shuts") && text.contains("apportion.db"), "{text}");
            assert!(ledger.hold(TENANT, change("u_1", 1).hold.unwrap().id).await.unwrap().is_none());
            for empty in ["journal", "holds", "users", "taken"] {
                assert_eq!(count(&dir, empty).await, 0, "{empty} after {how} in {table}");
            }
            open_trap(&dir).await;
            ledger.commit(vec![change("u_1", 1)]).await.unwrap();
            ledger.close().await;
            assert_eq!(count(&dir, "holds").await, 1, "and the next one goes through, after {how}");
        }
    }
}

#[tokio::test]
async fn what_cannot_be_written_to_the_tables_stays_in_the_journal() {
    for how in HOWS {
        for table in ["holds", "accounts", "day_totals", "pentad_totals", "month_totals", "minutes"] {
            let dir = Dir::new();
            let ledger = dir.open().await;
            ledger.commit(vec![change("u_1", 1), change("u_2", 2)]).await.unwrap();
            trap(&dir, table, how).await;
            let text = unavailable(ledger.usage(TENANT, Group::User, -1..1).await.map(drop));
            assert!(text.contains("the trap shuts"), "{text}");
            assert_eq!(count(&dir, "holds").await, 0, "all or nothing, {how} in {table}");
            assert!(
                ledger.hold(TENANT, change("u_1", 1).hold.unwrap().id).await.unwrap().is_some(),
                "but known"
            );
            ledger.commit(vec![change("u_1", 3)]).await.unwrap();
            open_trap(&dir).await;
            let usage = ledger.usage(TENANT, Group::User, -1..1).await.unwrap();
            assert_eq!(
                usage.iter().map(|row| row.amounts.requests).collect::<Vec<_>>(),
                [2, 1],
                "added once"
            );
            assert_eq!(of_minutes(&ledger).await, 3, "these too, {how} in {table}");
            assert_eq!(count(&dir, "holds").await, 3);
            assert_eq!(count(&dir, "journal WHERE body <> x''").await, 0);
        }
    }
}

#[tokio::test]
async fn usage_counts_once_when_a_process_dies_between_portions() {
    for extra in [0, 1, 2] {
        let dir = Dir::new();
        let portions = Portions { freeze_at: 1_000, rows: 4, ..Portions::default() };
        let ledger = SqliteLedger::open_with(&dir.path(), Durability::Os, portions).await.unwrap();
        let batch =
            |from: i64| (from..from + 30).map(|number| change(&format!("u_{number}"), number)).collect();
        ledger.commit(batch(0)).await.unwrap();
        while count(&dir, "journal WHERE number = 0").await == 0 {
            assert!(ledger.journal.write_portion().await.unwrap());
        }
        for _ in 0..extra {
            assert!(ledger.journal.write_portion().await.unwrap());
        }
        // Changes of the same groups come after those that are being written.
        ledger.commit(batch(0)).await.unwrap();
        let written = count(&dir, "day_totals WHERE kind = 0").await;
        assert!(written > 0 && written < 30, "{written} of 30 were written before it died");
        drop(ledger);
        let usage = dir.open().await.usage(TENANT, Group::User, -1..1).await.unwrap();
        assert_eq!(usage.len(), 30);
        assert!(usage.iter().all(|row| row.amounts.requests == 2), "{usage:?}");
        assert_eq!(of_minutes(&dir.open().await).await, 60);
        assert_eq!(count(&dir, "journal").await, 1, "the newest row alone, without a body");
    }
}

/// Requests of all minutes.
async fn of_minutes(ledger: &SqliteLedger) -> u64 {
    let query = MinutesQuery { minutes: -1..1, after: None, limit: 100 };
    let rows = ledger.minutes(TENANT, query).await.unwrap();
    rows.iter().map(|row| row.amounts.requests).sum()
}

#[tokio::test]
async fn a_full_disk_loses_nothing_and_passes() {
    let dir = Dir::new();
    let portions = Portions { freeze_at: 50, rows: 20, ..Portions::default() };
    let ledger = SqliteLedger::open_with(&dir.path(), Durability::Os, portions).await.unwrap();
    ledger.commit(vec![change("u_1", 1)]).await.unwrap();
    pragma(&ledger, "PRAGMA max_page_count = 80").await;
    let mut number = 1;
    let error = loop {
        let batch = (1..=20).map(|more| change("u_2", number + more)).collect();
        match ledger.commit(batch).await {
            Ok(()) => number += 20,
            failed => break unavailable(failed),
        }
        assert!(number < 10_000, "the file was to be full by now");
    };
    assert!(error.contains("full") && error.contains("apportion.db"), "{error}");
    assert!(number > 1);
    for known in 1..=number {
        let id = change("u_1", known).hold.unwrap().id;
        assert!(ledger.hold(TENANT, id).await.unwrap().is_some(), "{known} of {number} was acknowledged");
    }
    assert!(ledger.hold(TENANT, change("u_1", number + 1).hold.unwrap().id).await.unwrap().is_none());
    pragma(&ledger, "PRAGMA max_page_count = 1000000").await;
    ledger.commit(vec![change("u_1", 20_000)]).await.unwrap();
    ledger.close().await;
    assert_eq!(count(&dir, "holds").await, number + 1);
    assert_eq!(count(&dir, "day_totals WHERE kind = 0").await, 2);
}

#[tokio::test]
async fn a_file_that_others_lock_is_unavailable_until_they_let_go() {
    let dir = Dir::new();
    let ledger = dir.open().await;
    pragma(&ledger, "PRAGMA busy_timeout = 20").await;
    let mut other = dir.other().await;
    execute(&mut other, "BEGIN IMMEDIATE").await.unwrap();
    let text = unavailable(ledger.commit(vec![change("u_1", 1)]).await);
    assert!(text.contains("locked"), "{text}");
    assert!(!ledger.ever_taken(TENANT).await.unwrap(), "reading goes on");
    execute(&mut other, "COMMIT").await.unwrap();
    ledger.commit(vec![change("u_1", 1)]).await.unwrap();
}

#[tokio::test]
async fn who_waits_behind_a_wait_in_vain_waits_no_longer() {
    let dir = Dir::new();
    let ledger = dir.open().await;
    pragma(&ledger, "PRAGMA busy_timeout = 200").await;
    let mut other = dir.other().await;
    execute(&mut other, "BEGIN IMMEDIATE").await.unwrap();
    let write = |number| ledger.set_clock(TENANT, Millis(number), written("key_1"));
    let answers: Vec<String> =
        futures_util::future::join_all((1..=30).map(write)).await.into_iter().map(unavailable).collect();
    assert!(answers.iter().all(|text| text.contains("locked")), "{answers:?}");
    // SQLite was asked by the first one alone.
    let asked = answers.iter().filter(|text| text.contains("code: 5"));
    assert_eq!(asked.count(), 1, "{answers:?}");
    execute(&mut other, "COMMIT").await.unwrap();
    // By now it is asked again: there is no such tenant.
    assert!(matches!(write(31).await, Err(LedgerError::Conflict)));
}

fn user(version: u32) -> User {
    let signals = Signals { device: Some("phone-77".into()), address: Some("1.2.3.4".into()) };
    User {
        id: UserId::parse("u_1").unwrap(),
        plan: Name::parse(if version == 1 { "free" } else { "pro" }).unwrap(),
        plan_since: Millis(0),
        plan_sequence: None,
        org: None,
        verified: true,
        suspended: false,
        zone: None,
        anchor_day: None,
        signals: Some(signals),
        rights: None,
        erased: false,
        born: 0,
        moved: 0,
        created_at: Millis(0),
        version,
    }
}

fn record(kind: RecordKind, id: &str, version: u32, body: Option<&str>) -> Record {
    Record {
        kind,
        id: id.into(),
        version,
        body: body.map(str::to_owned),
        effective_at: Millis(0),
        written: written("key_2"),
        revision: 0,
    }
}

/// Action, target, who, old and new of every audit row.
async fn audit(dir: &Dir) -> Vec<[String; 5]> {
    let text = "SELECT action, target, written_by || ' ' || reason || ' ' || written_at, coalesce(old, '-'),
                coalesce(new, '-') FROM audit ORDER BY number";
    let rows = sqlx::query(text).fetch_all(&mut dir.other().await).await.unwrap();
    rows.iter().map(|row| std::array::from_fn(|at| row.get(at))).collect()
}

#[tokio::test]
async fn every_write_of_rights_is_in_the_audit() {
    let dir = Dir::new();
    let ledger = dir.open().await;
    ledger.put_user(TENANT, user(1), written("key_1")).await.unwrap();
    ledger.put_user(TENANT, user(2), written("key_1")).await.unwrap();
    let first = vec![record(RecordKind::Settings, "", 1, Some("{}"))];
    ledger.create_tenant(TenantId::parse("demo").unwrap(), true, first).await.unwrap();
    ledger.put_record(Some(TENANT), record(RecordKind::Plan, "pro", 1, Some("{\"a\":1}"))).await.unwrap();
    ledger.put_record(Some(TENANT), record(RecordKind::Plan, "pro", 2, Some("{\"a\":2}"))).await.unwrap();
    ledger.put_record(Some(TENANT), record(RecordKind::Plan, "pro", 3, None)).await.unwrap();
    ledger.put_record(None, record(RecordKind::Key, "kid", 1, Some("hash of a secret"))).await.unwrap();
    let after = Some(serde_json::json!({"state": "settled"}));
    let note = Note { action: "hold.resolve", target: "hold_1".into(), before: None, after };
    ledger.note(TENANT, note, written("key_3")).await.unwrap();
    // What is refused leaves no row.
    ledger.put_record(None, record(RecordKind::Key, "kid", 1, Some("again"))).await.unwrap_err();
    ledger.put_user(TENANT, user(2), written("key_1")).await.unwrap_err();

    let rows = audit(&dir).await;
    let actions: Vec<String> = rows.iter().map(|[action, target, ..]| format!("{action} {target}")).collect();
    let expected = [
        "user.put u_1",
        "user.plan u_1",
        "tenant.create demo",
        "settings.put settings",
        "plan.put pro",
        "plan.put pro",
        "plan.delete pro",
        "key.create kid",
        "hold.resolve hold_1",
    ];
    assert_eq!(actions, expected);
    assert_eq!(rows[0][2], "key_1 why not 5");
    assert!(
        rows[1][3].contains("\"plan\":\"free\"") && rows[1][4].contains("\"plan\":\"pro\""),
        "{:?}",
        rows[1]
    );
    assert_eq!(rows[5][3..], ["{\"a\":1}", "{\"a\":2}"]);
    assert_eq!(rows[6][3..], ["{\"a\":2}", "-"]);
    assert_eq!(rows[8][2..], ["key_3 why not 5", "-", "{\"state\":\"settled\"}"]);
    let all = format!("{rows:?}");
    for hidden in ["phone-77", "1.2.3.4", "hash of a secret"] {
        assert!(!all.contains(hidden), "{hidden} is in the audit");
    }
}

#[tokio::test]
async fn the_audit_cannot_be_changed() {
    let dir = Dir::new();
    dir.open().await.put_user(TENANT, user(1), written("key_1")).await.unwrap();
    let before = audit(&dir).await;
    let mut other = dir.other().await;
    for text in [
        "UPDATE audit SET written_by = 'nobody'",
        "DELETE FROM audit",
        "INSERT OR REPLACE INTO audit VALUES (1, 1, 1, 'x', 'x', 'x', NULL, NULL, NULL)",
        "REPLACE INTO audit (number, tenant, written_at, written_by, action, target) VALUES (1, 1, 1, '', '', '')",
    ] {
        let error = execute(&mut other, text).await.unwrap_err().to_string();
        assert!(error.contains("the audit cannot be"), "{text}: {error}");
    }
    assert_eq!(audit(&dir).await, before);
}
