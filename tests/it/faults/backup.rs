//! Backups that are made under traffic, and what is there when a server goes on from one.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::kill::{Book, Callers, SCOPES, prepare, verify};
use super::process::Process;
use crate::harness::postgres::Postgres;
use crate::harness::redis::Single;
use crate::harness::{Client, cli, stores};

/// Calls before the backup, and after it.
const SOME: usize = 200;

/// What must be as it was, whatever else was lost.
struct Before {
    token: String,
    api_key: String,
    audit: Vec<Value>,
    book: Book,
}

impl Before {
    /// Makes a backup while callers work, and lets them go on after it. What they learn
    /// afterwards is no promise of the backup's.
    async fn of(process: Process, token: String, back_up: impl FnOnce()) -> Self {
        let client = Client::new(&process.url, &token);
        let body = json!({"kind": "api", "scopes": ["check", "quota", "admin:read"], "name": "backend"});
        let api_key = client.post("/v1/admin/keys", &body).await.ok()["secret"].as_str().unwrap().to_owned();
        let book = Book::default();
        let mut callers = Callers::start(&client, &book, 0);
        callers.answered(SOME).await;
        let audit = audit(&client).await;
        let known = book.lock().unwrap().clone();
        tokio::task::block_in_place(back_up);
        let so_far = book.lock().unwrap().len();
        callers.answered(so_far + SOME).await;
        process.kill();
        callers.end().await;
        for (place, call) in book.lock().unwrap().iter_mut().enumerate() {
            let known = known.get(place);
            call.hold = known.and_then(|call| call.hold.clone());
            call.ended = known.and_then(|call| call.ended.clone());
        }
        Self { token, api_key, audit, book }
    }

    /// Every hold, sum, row of the audit and credential is there, and calls go on.
    async fn is_there(&self, data: &Path, durability: &str) {
        let process = Process::serve(data, durability);
        let minted = cli(data, &["token", "mint", "--tenant", "crash", "--scope", SCOPES]);
        for credential in [&self.token, &self.api_key, &minted] {
            let client = Client::new(&process.url, credential);
            assert_eq!(audit(&client).await, self.audit);
        }
        let client = Client::new(&process.url, &self.token);
        verify(&client, &self.book, 0).await;
        let held = self.book.lock().unwrap().iter().filter(|call| call.hold.is_some()).count();
        assert!(held > SOME / 2, "{held} holds were answered before the backup");
        let hold =
            client.check(json!({"user": "u0", "input_tokens": 5, "max_output_tokens": 5})).await.hold_id();
        client.settle(&hold, json!({"input_tokens": 5, "output_tokens": 5})).await.ok();
    }
}

async fn audit(client: &Client) -> Vec<Value> {
    let rows = client.get("/v1/admin/audit?limit=500").await.ok()["data"].as_array().unwrap().clone();
    // A moment without the store has a row of its own.
    rows.into_iter().filter(|row| row["action"] != "node.degraded").collect()
}

fn scratch() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_made_under_traffic_has_all_that_was_answered_before_it() {
    let (kept, out) = (scratch(), scratch());
    let token = prepare(kept.path(), "commit").await;
    let backup = out.path().join("tonight");
    let process = Process::serve(kept.path(), "commit");
    let before = Before::of(process, token, || {
        let said = cli(kept.path(), &["backup", "--out", text(&backup)]);
        assert!(said.contains(text(&backup)), "{said}");
    });
    let before = before.await;
    std::fs::remove_dir_all(kept.path()).unwrap();
    assert!(only_the_owner_may_read(&backup));
    before.is_there(&backup, "commit").await;
}

/// Of a directory and all that is in it.
fn only_the_owner_may_read(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    let metadata = std::fs::metadata(path).unwrap();
    let within =
        || std::fs::read_dir(path).unwrap().all(|entry| only_the_owner_may_read(&entry.unwrap().path()));
    metadata.permissions().mode() & 0o077 == 0 && (metadata.is_file() || within())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dump_of_postgres_and_an_emptied_redis_have_all_that_was_answered_before_it() {
    restore_a_dump(true).await;
}

/// As where a replica of Postgres that was behind takes its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_knows_more_than_a_restored_postgres_is_built_anew() {
    restore_a_dump(false).await;
}

async fn restore_a_dump(empties_redis: bool) {
    let (Some(redis), Some(postgres)) = (Single::start(&[]), Postgres::shared()) else { return };
    let (first, second, out) = (scratch(), scratch(), scratch());
    let (database, restored) = (postgres.empty(), postgres.empty());
    let on = |url: String| [("redis_url", redis.url()), ("database_url", url)];
    stores::keep(first.path(), &on(database.url()));
    let token = prepare(first.path(), "ledger").await;
    let file = out.path().join("apportion.dump");
    let process = Process::serve(first.path(), "ledger");
    let before = Before::of(process, token, || database.dump(&file)).await;
    restored.restore(&file);
    stores::keep(second.path(), &on(restored.url()));
    std::fs::create_dir(second.path().join("keys")).unwrap();
    for entry in std::fs::read_dir(first.path().join("keys")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, second.path().join("keys").join(path.file_name().unwrap())).unwrap();
    }
    if empties_redis {
        redis.flush_all();
    } else {
        first_change_finds_out(second.path(), &before.token).await;
    }
    before.is_there(second.path(), "ledger").await;
}

/// A call that cannot come on record behind what Postgres has forgotten.
async fn first_change_finds_out(data: &Path, token: &str) {
    let process = Process::serve(data, "engine");
    let client = Client::new(&process.url, token);
    client.check(json!({"user": "canary"})).await;
    while process.said("has forgotten what was on record").is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    while !client.get("/metrics").await.text.contains("apportion_ledger_lag_changes 0\n") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
