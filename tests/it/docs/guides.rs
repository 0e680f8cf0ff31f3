//! The tour and the guides, as they stand on their pages.

use serde_json::json;

use super::installation::{Installation, has_a_shell};
use super::paste::{Shell, blocks};
use crate::harness::lasting::{found_or_skipped, free_port};
use crate::harness::postgres::Postgres;
use crate::harness::redis::Single;
use crate::harness::sheets::{PoolSheet, Sheet};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const INTEGRATE: &str = "docs/integrate.md";
const CHANGE_A_PLAN: &str = "docs/change-a-plan.md";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tour_of_the_readme_prints_what_it_says() {
    if !has_a_shell() {
        return;
    }
    let mut here = Installation::embedded();
    here.shell.say(&format!("ln -s {ROOT}/tests ."));
    here.paste("README.md", "## Five minutes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_calls_around_a_call_print_what_the_guide_says() {
    if !has_a_shell() {
        return;
    }
    let mut here = Installation::embedded();
    here.admin.put_pool(&PoolSheet::new("default", &["*"]).places(100).json()).await.ok();
    here.admin.put_plan(&Sheet::named("wide").json()).await.ok();
    here.admin.put_user("busy", json!({"plan": "wide"})).await.ok();
    for _ in 0..200 {
        let ask = json!({"user": "busy", "feature": "chat", "model": "sonnet", "max_output_tokens": 700});
        let hold = here.admin.check(ask).await.hold_id();
        here.admin.settle(&hold, json!({"input_tokens": 1, "output_tokens": 607})).await.ok();
    }
    here.paste(INTEGRATE, "## The calls, in a shell");
    here.paste(INTEGRATE, "## How much output to reserve");
    let ask = r#"{"user":"u_42","feature":"chat","model":"sonnet","max_output_tokens":"auto"}"#;
    let told = here.shell.say(&format!("call /v1/check -d '{ask}'"));
    assert!(told.contains(r#""max_output_tokens":759,"#), "the page's figure is what is learned: {told}");
    for heading in [
        "## How a hold ends",
        "## What to do with a refusal",
        "## What the vendor answers concerns everybody",
    ] {
        here.paste(INTEGRATE, heading);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_are_set_up_as_the_guide_says() {
    let (Some(redis), Some(postgres)) = (Single::start(&[]), Postgres::start()) else { return };
    if !has_a_shell() || !found_or_skipped("psql") {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // The page's servers are those of the machine, and its ports may be taken.
    let psql = format!("psql {}", postgres.url("postgres"));
    let database = format!("postgres://nodes:choose-one@127.0.0.1:{}/nodes", postgres.port);
    let (first, second) = (free_port().to_string(), free_port().to_string());
    let here = [
        ("sudo apt-get install -y redis-server postgresql", ":"),
        ("sudo -u postgres psql", &psql),
        ("ROLE apportion LOGIN", "ROLE nodes LOGIN"),
        ("DATABASE apportion OWNER apportion", "DATABASE nodes OWNER nodes"),
        ("redis://127.0.0.1:6379", &redis.url()),
        ("postgres://apportion:choose-one@127.0.0.1/apportion", &database),
        ("target/release/apportion", "apportion"),
        ("8081", &first),
        ("8082", &second),
    ];
    let mut shell = Shell::start(folder.path(), &[("APPORTION_LISTEN", "127.0.0.1:0")], &here);
    tokio::task::block_in_place(|| {
        let page = blocks("docs/many-nodes.md", "## Two nodes on one machine, to try it");
        page.iter().for_each(|block| shell.run(block));
        // What the first start says to paste, where the directory is not the usual one.
        let told = shell.say("eval \"$(sed -n 's/.*More of them: //p' node-a.log)\"");
        assert!(told.starts_with("ey") && told.split('.').count() == 3, "a token: {told}");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_is_tried_and_changed_as_the_guide_says() {
    if !has_a_shell() || !found_or_skipped("jq") {
        return;
    }
    let mut here = Installation::embedded();
    here.shell.say(&format!("ln -s {ROOT}/plans . && cp {ROOT}/tests/data/trace.csv calls.csv"));
    here.shell.say("export EDITOR='sed -i s/limit.=.30$/limit=50/'");
    here.paste(CHANGE_A_PLAN, "## Before: try it");
    here.paste(CHANGE_A_PLAN, "## Then: put it");
    let sheet = here.admin.get("/v1/admin/plans/free").await.ok();
    assert_eq!((&sheet["version"], &sheet["limits"][3]["limit"]), (&json!(2), &json!(50)));
    here.shell.read_as("2026-12-31", "2999-12-31");
    here.paste(CHANGE_A_PLAN, "## One user who needs other figures");
    let user = here.admin.get("/v1/admin/users/u_42").await.ok();
    assert_eq!(user["overrides"]["requests_per_day"]["limit"], 500);
    assert_eq!(user["grants"][0]["amount"], 100_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bills_replays_and_tokens_are_made_as_the_guides_say() {
    if !has_a_shell() {
        return;
    }
    let mut here = Installation::embedded();
    here.shell.say("export TOKEN=$ADMIN");
    let price = json!([{"id": "sonnet", "input": 3_000_000, "output": 15_000_000}]);
    here.admin.put_models(&price).await.ok();
    for _ in 0..2 {
        let ask = json!({"user": "u_42", "feature": "chat", "model": "sonnet", "input_tokens": 1200});
        let hold = here.admin.check(ask).await.hold_id();
        here.admin.settle(&hold, json!({"input_tokens": 1180, "output_tokens": 380})).await.ok();
    }
    here.paste("docs/billing.md", "# Billing from the feed");
    here.shell.say(&format!("ln -s {ROOT}/plans . && ln -s plans theirs"));
    here.shell.say(&format!("cp {ROOT}/tests/data/trace.csv calls.csv"));
    here.paste_one("docs/migrate.md", "## 1. Try the plans on past traffic", 0);
    here.paste("docs/console.md", "## Signing in");
    here.paste("docs/quota-ui.md", "## Of your own making");
}
