//! The recipes for operators, as they stand on their pages.

use serde_json::json;

use super::installation::{Installation, has_a_shell};
use crate::harness::lasting::found_or_skipped;
use crate::harness::postgres::Postgres;
use crate::harness::redis::Single;
use crate::harness::sheets::PoolSheet;

const INCIDENTS: &str = "docs/incidents.md";
const OPERATIONS: &str = "docs/operations.md";

/// What all recipes begin with.
fn begin(here: &mut Installation) {
    here.paste(INCIDENTS, "## Before anything else");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_operators_paste_works() {
    if !has_a_shell() {
        return;
    }
    let mut here = Installation::embedded();
    begin(&mut here);
    here.paste_one(OPERATIONS, "## Start", 1);
    here.paste(OPERATIONS, "## Backup and restore");
    here.admin.check(json!({"user": "u_42"})).await.ok();
    here.paste(OPERATIONS, "## Erasing a user");
    here.paste(OPERATIONS, "## Suspending and deleting a tenant");
    here.paste("docs/migrate.md", "## 2. Decide beside the old limiter");
    let settings = here.admin.get("/v1/admin/settings").await.ok();
    assert_eq!(settings["enforcement"], "shadow");
    let keys = here.shell.say("apportion key list --operator --data data");
    let key = keys.lines().find_map(|line| line.split_whitespace().next()).expect("one has been made");
    here.shell.read_as("KID", key);
    here.paste(OPERATIONS, "## Keys and how to rotate them");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recipes_for_calls_and_keys_work() {
    if !has_a_shell() {
        return;
    }
    let mut here = Installation::embedded();
    begin(&mut here);
    here.admin.put_pool(&PoolSheet::new("default", &["*"]).places(100).json()).await.ok();
    here.paste(INCIDENTS, "## The vendor is down");
    here.paste(INCIDENTS, "## One tenant floods");
    for user in ["mia", "zoe"] {
        let hold =
            here.admin.check(json!({"user": user, "input_tokens": 100, "max_output_tokens": 50})).await;
        here.admin.settle(&hold.hold_id(), json!({"usage": "unknown"})).await.ok();
    }
    here.paste(INCIDENTS, "## Many holds in doubt after a deploy");
    here.paste(INCIDENTS, "## A key leaked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recipes_for_a_redis_that_is_lost_or_stale_work() {
    let (Some(redis), Some(postgres)) = (Single::start(&[]), Postgres::shared()) else { return };
    if !has_a_shell() || !found_or_skipped("redis-cli") {
        return;
    }
    let database = postgres.empty();
    let mut here = Installation::shared(&redis, database.url()).await;
    begin(&mut here);
    redis.kill();
    redis.restart();
    here.paste(INCIDENTS, "## Redis is lost");
    here.paste(INCIDENTS, "## Redis came back with old data");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recipes_for_a_postgres_that_is_away_work() {
    let (Some(redis), Some(postgres)) = (Single::start(&[]), Postgres::start()) else { return };
    if !has_a_shell() || !found_or_skipped("psql") {
        return;
    }
    let mut here = Installation::shared(&redis, postgres.url("postgres")).await;
    begin(&mut here);
    postgres.kill();
    // Whoever is known is decided about as ever.
    let hold = here.check().await;
    here.admin.settle(&hold, json!({"input_tokens": 1180, "output_tokens": 380})).await.ok();
    here.paste_one(INCIDENTS, "## Postgres is away, or full", 0);
    postgres.restart();
    here.paste_one(INCIDENTS, "## Postgres is away, or full", 1);
    let quota = here.admin.quota("mia").await;
    assert_eq!(quota.row("tokens_per_month")["used"], 3 * (1180 + 380));
}
