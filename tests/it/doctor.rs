//! What `apportion doctor` says of installations that are ill.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::faults::process::Process;
use crate::harness::postgres::Postgres;
use crate::harness::redis::Single;
use crate::harness::{binary, stores};

fn scratch() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// What it says, and whether a server would run.
fn doctor(data: &Path, environment: &[(&str, &str)]) -> (String, bool) {
    let mut command = Command::new("sh");
    // A usual shell, whatever this one allows itself.
    command.args(["-c", "ulimit -n 1024; exec \"$0\" doctor --data \"$1\""]).arg(binary()).arg(data);
    if let Some(file) = stores::file(data) {
        command.env("APPORTION_CONFIG", file);
    }
    let done =
        command.env("APPORTION_LISTEN", "127.0.0.1:0").envs(environment.iter().copied()).output().unwrap();
    (String::from_utf8(done.stdout).unwrap(), done.status.success())
}

#[test]
fn it_tells_how_many_connections_the_open_files_are_enough_for() {
    let data = scratch();
    let (said, runs) = doctor(data.path(), &[]);
    assert!(runs && said.contains("odd files") && said.contains("enough for 384 connections"), "{said}");
    let (said, _) = doctor(data.path(), &[("APPORTION_MAX_CONNECTIONS", "300")]);
    assert!(said.contains("ok  files"), "{said}");
    assert!(said.contains("ok  disk") && said.contains("MB are free"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_tells_what_is_wrong_with_redis_and_postgres_and_what_to_do() {
    let (Some(redis), Some(postgres)) = (Single::start(&[]), Postgres::shared()) else { return };
    let database = postgres.empty();
    let at = |url: &str| {
        let data = scratch();
        stores::keep(data.path(), &[("redis_url", redis.url()), ("database_url", url.to_owned())]);
        data
    };
    let data = at(&database.url());
    let (said, runs) = doctor(data.path(), &[]);
    assert!(runs && said.contains("has schema 0; the next start"), "{said}");
    Process::serve_at(data.path(), "127.0.0.1:0", &[]).kill();

    let (said, runs) = doctor(data.path(), &[]);
    assert!(runs && said.contains("has this version's schema"), "{said}");
    assert!(said.contains("ok  server_key"), "{said}");
    for odd in ["append-only file: off", "fsync or synchronous_commit is off"] {
        assert!(said.lines().any(|line| line.starts_with("odd ") && line.contains(odd)), "{odd}: {said}");
    }

    let (said, runs) = doctor(data.path(), &[("APPORTION_SERVER_KEY", &"A".repeat(43))]);
    assert!(
        !runs && said.contains("BAD server_key") && said.contains("not that of the other nodes"),
        "{said}"
    );

    let stranger = format!("stranger_{}", std::process::id());
    database.psql(&format!("CREATE ROLE {stranger} LOGIN"));
    database.psql(&format!("ALTER ROLE {stranger} SET default_transaction_read_only = on"));
    let theirs = at(&database.url().replace("apportion:", &format!("{stranger}:")));
    let (said, runs) = doctor(theirs.path(), &[]);
    assert!(!runs && said.contains("another role's") && said.contains("takes no writes"), "{said}");
    database.psql("REVOKE CREATE ON SCHEMA public FROM PUBLIC");
    database.psql("DELETE FROM _sqlx_migrations WHERE version > 1");
    database.psql(&format!("GRANT SELECT ON _sqlx_migrations TO {stranger}"));
    let (said, _) = doctor(theirs.path(), &[]);
    assert!(said.contains("may not make tables"), "{said}");
    database.psql(&format!("DROP OWNED BY {stranger}; DROP ROLE {stranger}"));

    redis.run::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let (said, runs) = doctor(data.path(), &[]);
    assert!(!runs && said.contains("must be noeviction"), "{said}");
}
