//! Files that are not what we hope for.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use super::super::{Portions, inspect};
use super::*;
use crate::ledger::{DoubtFilter, DoubtQuery, Group, Ledger, LedgerError, Reports};

async fn refusal(path: &Path) -> String {
    match SqliteLedger::open(path, Durability::Commit).await {
        Err(LedgerError::Unusable(text)) => {
            assert!(text.contains(path.to_str().unwrap()), "names the file: {text}");
            text
        }
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("{} was opened", path.display()),
    }
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused() {
    let dir = Dir::new();
    for content in ["no database\n".repeat(1000), "x".repeat(4096), "short".into()] {
        fs::write(dir.path(), &content).unwrap();
        assert!(refusal(&dir.path()).await.contains("is no SQLite database"));
        assert_eq!(fs::read_to_string(dir.path()).unwrap(), content, "and is left as it is");
        assert!(inspect(&dir.path()).await.is_err());
    }
}

#[tokio::test]
async fn another_programs_database_is_refused() {
    let dir = Dir::new();
    execute(&mut dir.other().await, "CREATE TABLE theirs (x)").await.unwrap();
    assert!(refusal(&dir.path()).await.contains("another program"));
    assert!(inspect(&dir.path()).await.is_err());
    assert_eq!(count(&dir, "sqlite_master").await, 1, "nothing was added to it");
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let dir = Dir::new();
    dir.open().await.close().await;
    let newer = "INSERT INTO _sqlx_migrations VALUES (9999, 'later', 0, true, x'00', 0)";
    execute(&mut dir.other().await, newer).await.unwrap();
    let text = refusal(&dir.path()).await;
    assert!(text.contains("9999") && text.contains("newer"), "{text}");
    let found = inspect(&dir.path()).await.unwrap().unwrap();
    assert!(found.schema == 9999 && found.schema_known < 9999, "{found:?}");
}

#[tokio::test]
async fn a_schema_step_that_was_edited_is_refused() {
    let dir = Dir::new();
    dir.open().await.close().await;
    execute(&mut dir.other().await, "UPDATE _sqlx_migrations SET checksum = x'00'").await.unwrap();
    assert!(refusal(&dir.path()).await.contains("schema step 1"));
}

#[tokio::test]
async fn a_place_where_no_file_can_be_is_refused() {
    let dir = Dir::new();
    fs::create_dir(dir.path()).unwrap();
    refusal(&dir.path()).await;
    refusal(&dir.path().join("missing/apportion.db")).await;
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    refusal(&file.join("apportion.db")).await;
    if cfg!(target_os = "linux") {
        refusal(Path::new("/proc/apportion.db")).await;
    }
}

#[tokio::test]
async fn a_damaged_file_is_reported_and_never_panics() {
    let dir = Dir::new();
    let ledger = dir.open().await;
    ledger.commit((0..500).map(|number| change("u_1", number)).collect()).await.unwrap();
    ledger.close().await;
    let whole = fs::read(dir.path()).unwrap();
    let mut faults = 0;
    for at in (0..whole.len()).step_by(4096) {
        let mut bytes = whole.clone();
        bytes[at..at + 4096].fill(0xa5);
        fs::write(dir.path(), bytes).unwrap();
        let Ok(ledger) = SqliteLedger::open(&dir.path(), Durability::Os).await else {
            faults += 1;
            continue;
        };
        let key = AccountKey { tenant: TENANT, scope: Scope::User, owner: "u_1".into() };
        let faulty = ledger.account(key, Millis(0)).await.is_err();
        let now = Millis(i64::MAX);
        let query = DoubtQuery { now, filter: DoubtFilter::default(), after: None, limit: 1000 };
        let faulty = ledger.doubts(TENANT, query).await.is_err() || faulty;
        let faulty = ledger.commit(vec![change("u_1", 1)]).await.is_err() || faulty;
        faults += usize::from(faulty);
        ledger.close().await;
    }
    assert!(faults > 3, "{faults} of {} pages", whole.len() / 4096);
}

#[tokio::test]
async fn an_inspection_tells_schema_and_damage() {
    let dir = Dir::new();
    assert_eq!(inspect(&dir.path()).await.unwrap(), None, "no file yet");
    let ledger = dir.open().await;
    let beside = inspect(&dir.path()).await.unwrap().unwrap();
    assert!(
        beside.schema == beside.schema_known && beside.schema > 0 && beside.damage.is_none(),
        "{beside:?}"
    );
    ledger.commit((0..500).map(|number| change("u_1", number)).collect()).await.unwrap();
    ledger.close().await;
    let mut bytes = fs::read(dir.path()).unwrap();
    let last = bytes.len() - 4096;
    bytes[last..].fill(0xa5);
    fs::write(dir.path(), bytes).unwrap();
    assert!(inspect(&dir.path()).await.unwrap().unwrap().damage.is_some());
}

#[tokio::test]
async fn commits_are_as_durable_as_asked() {
    let dir = Dir::new();
    for (durability, expected) in [(Durability::Commit, 2), (Durability::Os, 1)] {
        let ledger = SqliteLedger::open(&dir.path(), durability).await.unwrap();
        let mut lane = ledger.writer.lane().await.unwrap();
        let connection = lane.connection().unwrap();
        let synchronous: i64 =
            sqlx::query_scalar("PRAGMA synchronous").fetch_one(&mut *connection).await.unwrap();
        let journal: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(connection).await.unwrap();
        assert_eq!((synchronous, &*journal), (expected, "wal"), "{durability:?}");
    }
}

const CHILD: &str = "APPORTION_TEST_LEDGER";

/// This test binary as another process that runs one test of this file.
fn child(test: &str, dir: &Dir) -> Command {
    let test = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&test, "--exact", "--nocapture"]).env(CHILD, dir.path());
    command
}

/// The other processes of the next test.
#[tokio::test]
async fn a_child_opens_the_file() {
    if let Some(path) = std::env::var_os(CHILD) {
        let ledger = SqliteLedger::open(Path::new(&path), Durability::Commit).await.unwrap();
        let number = i64::from(std::process::id());
        ledger.commit(vec![change("u_1", number)]).await.unwrap();
        ledger.close().await;
    }
}

#[test]
fn processes_that_open_a_new_file_at_once_all_get_it() {
    let dir = Dir::new();
    let outputs: Vec<_> = std::thread::scope(|scope| {
        let run = || child("a_child_opens_the_file", &dir).output();
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
    });
    for output in outputs {
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(runtime.block_on(count(&dir, "holds")), 6);
    let steps = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/sqlite")).unwrap().count();
    assert_eq!(runtime.block_on(count(&dir, "_sqlx_migrations")), steps as i64, "each step once");
}

#[tokio::test]
async fn whoever_commits_beside_others_against_the_rules_loses_nothing() {
    let dir = Dir::new();
    let (ours, theirs) = (dir.open().await, dir.open().await);
    let commit = async |ledger: &SqliteLedger, number| {
        ledger.commit(vec![change("u_1", number)]).await.unwrap();
    };
    commit(&ours, 1).await;
    commit(&theirs, 2).await;
    commit(&theirs, 3).await;
    // What stood behind the first row is taken out, so its number is free.
    theirs.journal.write_out().await.unwrap();
    commit(&ours, 4).await;
    commit(&theirs, 5).await;
    theirs.close().await;
    // Killed, with all that it had in memory.
    drop(ours);
    let ledger = dir.open().await;
    for number in 1..=5 {
        let id = change("u_1", number).hold.unwrap().id;
        assert!(ledger.hold(TENANT, id).await.unwrap().is_some(), "hold {number} is lost");
    }
}

/// The other process of the next test: commits until it is killed, and tells
/// what was acknowledged.
#[tokio::test]
async fn a_child_commits_for_ever() {
    if let Some(path) = std::env::var_os(CHILD) {
        let portions = Portions { freeze_at: 40, rows: 7, ..Portions::default() };
        let ledger = SqliteLedger::open_with(Path::new(&path), Durability::Commit, portions).await.unwrap();
        for number in (1..).step_by(3) {
            let user = format!("u_{}", number % 5);
            ledger.commit((0..3).map(|more| change(&user, number + more)).collect()).await.unwrap();
            println!("acknowledged {}", number + 2);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_kill_9() {
    for lines in [1, 2, 30, 31, 32, 33] {
        let dir = Dir::new();
        let mut process = child("a_child_commits_for_ever", &dir).stdout(Stdio::piped()).spawn().unwrap();
        let told = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
        let acknowledged = told.filter_map(|line| line.strip_prefix("acknowledged ")?.parse::<i64>().ok());
        let last = acknowledged.take(lines).last().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();

        let ledger = dir.open().await;
        for number in 1..=last {
            let id = change("u", number).hold.unwrap().id;
            assert!(ledger.hold(TENANT, id).await.unwrap().is_some(), "{number} of {last}");
        }
        let requests = ledger
            .usage(TENANT, Group::User, -1..1)
            .await
            .unwrap()
            .iter()
            .map(|row| row.amounts.requests)
            .sum::<u64>();
        assert_eq!(requests as i64, count(&dir, "holds").await, "usage adds up to the holds");
        assert_eq!(requests % 3, 0, "whole batches");
    }
}
