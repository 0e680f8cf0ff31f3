//! The tour, the guides and the recipes, as they stand on their pages.

use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use super::paste::{Shell, blocks};
use crate::faults::process::Process;
use crate::harness::lasting::found_or_skipped;
use crate::harness::postgres::Postgres;
use crate::harness::redis::{Node, Single};
use crate::harness::sheets::PoolSheet;
use crate::harness::{Client, cli, stores};

const INCIDENTS: &str = "docs/incidents.md";
const OPERATIONS: &str = "docs/operations.md";

/// A server that has just been started for the first time, and a shell beside it.
struct Installation {
    shell: Shell,
    admin: Client,
    #[expect(dead_code, reason = "it ends with the test")]
    server: Process,
    _folder: TempDir,
}

impl Installation {
    fn embedded() -> Self {
        Self::on(&[])
    }

    fn on(own: &[(&'static str, String)]) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let data = folder.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let (data, mut environment) = (data.as_path(), Vec::new());
        if !own.is_empty() {
            stores::keep(data, own);
            environment.push(("APPORTION_CONFIG".to_owned(), text(&stores::file(data).unwrap()).to_owned()));
        }
        let server = Process::serve_at(data, "127.0.0.1:0", &[]);
        let mint = |more: &[&str]| cli(data, &[&["token", "mint"][..], more].concat());
        let scope = "check quota admin:read admin:write";
        let token = mint(&["--tenant", "demo", "--scope", scope]);
        let named =
            own.iter().map(|(name, value)| (format!("APPORTION_{}", name.to_uppercase()), value.clone()));
        environment.extend(named);
        for (name, value) in [("URL", &server.url), ("ADMIN", &token), ("OPERATOR", &mint(&["--operator"]))] {
            environment.push((name.to_owned(), value.clone()));
        }
        let environment: Vec<(&str, &str)> =
            environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let here = [
            ("http://127.0.0.1:8080", server.url.as_str()),
            ("/var/lib/apportion", text(data)),
            ("target/release/apportion", "apportion"),
        ];
        let shell = Shell::start(folder.path(), &environment, &here);
        Self { shell, admin: Client::new(&server.url, &token), server, _folder: folder }
    }

    /// One that decides by Redis and remembers in Postgres, with its user `mia`.
    async fn shared(redis: &Node, database: String) -> Self {
        let installation = Self::on(&[("redis_url", redis.url()), ("database_url", database)]);
        installation.admin.put_user("mia", json!({"plan": "pro"})).await.ok();
        // After the second one nobody is looked up any more.
        for _ in 0..2 {
            let hold = installation.check().await;
            installation.admin.settle(&hold, json!({"input_tokens": 1180, "output_tokens": 380})).await.ok();
        }
        installation
    }

    async fn check(&self) -> String {
        let asked = json!({"user": "mia", "model": "sonnet", "input_tokens": 1200, "max_output_tokens": 512});
        self.admin.check(asked).await.hold_id()
    }

    /// All blocks below a heading.
    fn paste(&mut self, page: &str, heading: &str) {
        tokio::task::block_in_place(|| blocks(page, heading).iter().for_each(|block| self.shell.run(block)));
    }

    fn paste_one(&mut self, page: &str, heading: &str, number: usize) {
        tokio::task::block_in_place(|| self.shell.run(&blocks(page, heading)[number]));
    }

    /// What all recipes begin with.
    fn begin(&mut self) {
        self.paste(INCIDENTS, "## Before anything else");
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn has_a_shell() -> bool {
    found_or_skipped("bash") && found_or_skipped("curl")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tour_of_the_readme_prints_what_it_says() {
    if !has_a_shell() {
        return;
    }
    let mut here = Installation::embedded();
    here.shell.say(&format!("ln -s {}/tests .", env!("CARGO_MANIFEST_DIR")));
    here.paste("README.md", "## Five minutes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_operators_paste_works() {
    if !has_a_shell() {
        return;
    }
    let mut here = Installation::embedded();
    here.begin();
    here.paste_one(OPERATIONS, "## Start", 1);
    here.paste(OPERATIONS, "## Backup and restore");
    here.admin.check(json!({"user": "u_42"})).await.ok();
    here.paste(OPERATIONS, "## Erasing a user");
    here.paste(OPERATIONS, "## Suspending and deleting a tenant");
    here.paste("docs/migrate.md", "## 2. Decide beside the old limiter");
    let settings = here.admin.get("/v1/admin/settings").await.ok();
    assert_eq!(settings["enforcement"], "shadow");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recipes_for_calls_and_keys_work() {
    if !has_a_shell() {
        return;
    }
    let mut here = Installation::embedded();
    here.begin();
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
    here.begin();
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
    here.begin();
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
