//! Two versions of a node side by side: the newer one has added to the schema.

use std::process::Command;

use super::nodes::{Load, Loss, Pair, check};
use crate::harness::postgres::Postgres;
use crate::harness::redis::Single;
use crate::harness::{binary, stores};

const SOME: usize = 250;

/// What the first step of two may do (migrations/README.md).
const ADDED: [&str; 5] = [
    "ALTER TABLE holds ADD COLUMN later bigint",
    "ALTER TABLE users ADD COLUMN later bigint NOT NULL DEFAULT 0",
    "CREATE TABLE later (tenant bigint PRIMARY KEY)",
    "CREATE INDEX later_of_users ON users (tenant, later)",
    "INSERT INTO _sqlx_migrations VALUES (9999, 'later', now(), true, '', 0)",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_goes_on_beside_a_newer_version_and_does_not_start_again() {
    let (Some(redis), Some(postgres)) = (Single::start(&[]), Postgres::shared()) else { return };
    let mut pair = Pair::on(&redis.url(), postgres).await;
    let load = Load::start(&pair);
    for step in ADDED {
        load.answers(SOME / 5).await;
        pair.psql(step);
    }
    load.answers(SOME).await;
    let told = load.stop().await;
    check(&pair, &told, &[&redis], "a schema that grew", Loss::Nothing).await;
    tokio::task::block_in_place(|| pair.stop(1));
    let again = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        command.args(arguments).arg("--data").arg(pair.place(1));
        let done = command.env("APPORTION_CONFIG", stores::file(pair.place(1)).unwrap()).output().unwrap();
        assert_eq!(done.status.code(), Some(1), "{arguments:?}");
        String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned()
    };
    let refused = again(&["serve", "--listen", "127.0.0.1:0"]);
    assert!(refused.contains("newer program"), "{refused}");
    let advice = again(&["doctor"]);
    assert!(advice.contains("schema 9999") && advice.contains("use a newer version"), "{advice}");
}
