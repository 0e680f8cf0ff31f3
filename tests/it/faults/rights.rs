//! Killed between changes of plans, rights and zones: what was answered holds, and what is to come comes.

use std::path::Path;

use serde_json::{Value, json};

use super::process::Process;
use crate::harness::compare::assert_has;
use crate::harness::sheets::{PoolSheet, Sheet};
use crate::harness::{Client, cli, row};

const USERS: [&str; 9] =
    ["moves", "tries", "has numbers", "was given", "has moved", "was there", "is new", "counted", "member"];
const APRIL: &str = "2026-04-01T00:00:00.000Z";

/// A service that is killed and started again on the same data.
struct Life<'d> {
    data: &'d Path,
    token: String,
    process: Option<Process>,
    client: Client,
}

impl<'d> Life<'d> {
    fn begin(data: &'d Path) -> Self {
        cli(data, &["tenant", "create", "rights", "--test"]);
        let scope = "check quota admin:read admin:write";
        let token = cli(data, &["token", "mint", "--tenant", "rights", "--scope", scope, "--ttl", "24h"]);
        let process = Process::serve(data, "commit");
        let client = Client::new(&process.url, &token);
        Self { data, token, process: Some(process), client }
    }

    fn kill(&mut self) {
        self.process.take().expect("it runs").kill();
        let process = Process::serve(self.data, "commit");
        self.client = Client::new(&process.url, &self.token);
        self.process = Some(process);
    }

    /// Everything that can be read of users, plans and the org.
    async fn everything(&self) -> Vec<Value> {
        let mut all = Vec::new();
        let org = ["/v1/admin/orgs/acme", "/v1/admin/orgs/acme/quota"].map(str::to_owned);
        let plans =
            ["/v1/admin/plans/p/versions", "/v1/admin/plans/own", "/v1/admin/settings"].map(str::to_owned);
        let users = USERS.map(|user| user.replace(' ', "%20"));
        let of_users = users
            .iter()
            .flat_map(|user| [format!("/v1/admin/users/{user}"), format!("/v1/users/{user}/quota")]);
        for path in org.into_iter().chain(plans).chain(of_users) {
            let reply = self.client.get(&path).await;
            let etag = reply.header("etag").map(str::to_owned);
            all.push(json!([path, etag, reply.ok()]));
        }
        all
    }

    /// Sets the clock, kills the service, and sees that nothing is another.
    async fn at(&mut self, now: &str) {
        self.client.put_clock(now).await.ok();
        let before = self.everything().await;
        self.kill();
        for (before, after) in before.into_iter().zip(self.everything().await) {
            assert_eq!(after, before, "killed at {now}");
        }
    }

    async fn left(&self, user: &str, limit: &str) -> Value {
        row(&self.client.quota(user).await.ok(), limit)
    }

    async fn spend(&self, user: &str, input: i64, output: i64) {
        let body = json!({"user": user, "input_tokens": input, "max_output_tokens": output});
        let hold = self.client.check(body).await.hold_id();
        self.client.settle(&hold, json!({"input_tokens": input, "output_tokens": output})).await.ok();
    }
}

async fn prepare(life: &Life<'_>) {
    let c = &life.client;
    c.put_clock("2026-03-10T12:00:00.000Z").await.ok();
    let sheet = |id: &str, month: u64, rate: u64| Sheet::named(id).mt(month).ob(10_000, rate);
    c.put_plan(&sheet("p", 1000, 60).json()).await.ok();
    c.put_plan(&sheet("q", 5000, 600).json()).await.ok();
    c.put_plan(&Sheet::named("own").dr(50).but("scope", json!("org")).json()).await.ok();
    c.put_pool(&PoolSheet::new("default", &["*"]).output_tokens(10_000, 60).json()).await.ok();
    c.put_settings(json!({"default_plan": "p"})).await.ok();
    for user in ["moves", "tries", "has numbers", "was given", "has moved", "was there", "counted"] {
        life.spend(user, 100, 200).await;
    }
    c.move_user("moves", json!({"plan": "q", "effective": "2026-03-10T12:00:10Z"})).await.ok();
    c.move_user("tries", json!({"plan": "q", "until": "2026-03-10T12:00:20Z"})).await.ok();
    let numbers = json!({"output_tokens_per_minute": {"refill_per_minute": 1200}});
    let body = json!({"overrides": numbers, "expires_at": "2026-03-10T12:00:30Z"});
    c.put_overrides("users/has%20numbers", body).await.ok();
    c.put_overrides("users/has%20numbers", json!({"overrides": {"tokens_per_month": {"limit": 77}}}))
        .await
        .ok();
    c.give("users/was%20given", json!({"limit": "tokens_per_month", "amount": 500, "expires_at": APRIL}))
        .await
        .ok();
    c.give("users/was%20given", json!({"limit": "tokens_per_month", "amount": 500})).await.ok();
    life.spend("was given", 1300, 0).await;
    c.put_user("has moved", json!({"zone": "Asia/Tokyo"})).await.ok();
    c.move_user("counted", json!({"plan": "q", "sequence": 7, "effective": "next_window"})).await.ok();
    c.put_org("acme", json!({"plan": "own"})).await.ok();
    c.give("orgs/acme", json!({"limit": "requests_per_day", "amount": 5})).await.ok();
    c.put_overrides("orgs/acme", json!({"overrides": {"requests_per_day": {"limit": 3}}})).await.ok();
    c.put_user("member", json!({"org": "acme"})).await.ok();
    life.spend("member", 0, 0).await;
    let smaller = sheet("p", 400, 60).field("applies", json!("next_window"));
    c.put_plan(&smaller.json()).await.ok();
    c.put_user("is new", json!({})).await.ok();
}

#[tokio::test]
async fn rights_and_what_is_to_come_outlive_a_kill_at_any_moment() {
    let kept = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a data directory");
    let mut life = Life::begin(kept.path());
    prepare(&life).await;
    for second in [0, 5, 10, 15, 20, 25, 30, 40] {
        life.at(&format!("2026-03-10T12:00:{second:02}.000Z")).await;
    }
    // Buckets lacked 200: each ran by what held, for as long as it did.
    for (user, lacks) in [
        ("moves", 0),
        ("tries", 0),
        ("has numbers", 0),
        ("was there", 160),
        ("has moved", 160),
        ("counted", 160),
    ] {
        let left = life.left(user, "output_tokens_per_minute").await["remaining"].clone();
        assert_eq!(left, 10_000 - lacks, "{user}");
    }
    assert_has(&life.left("has numbers", "tokens_per_month").await, &json!({"limit": 77}));
    assert_has(
        &life.left("was given", "tokens_per_month").await,
        &json!({"limit": 1000, "granted": 1000, "used": 1600, "remaining": 400}),
    );
    assert_has(&life.left("was there", "tokens_per_month").await, &json!({"limit": 1000}));
    assert_has(&life.left("is new", "tokens_per_month").await, &json!({"limit": 400}));
    assert_has(&life.left("member", "requests_per_day").await, &json!({"limit": 3, "granted": 5, "used": 1}));
    let stale =
        life.client.move_user("counted", json!({"plan": "p", "effective": "now", "sequence": 6})).await;
    assert_eq!(stale.ok()["stale"], true);
    for now in ["2026-03-31T15:00:00.000Z", "2026-03-31T23:59:59.999Z", APRIL, "2026-04-30T15:00:00.000Z"] {
        life.at(now).await;
    }
    assert_has(&life.left("counted", "tokens_per_month").await, &json!({"limit": 5000, "used": 0}));
    assert_has(&life.left("was there", "tokens_per_month").await, &json!({"limit": 400, "used": 0}));
    // The first grant was alive to the last instant of March, and paid 500 of 600.
    assert_has(&life.left("was given", "tokens_per_month").await, &json!({"limit": 400, "granted": 400}));
    // From the running month's end to the first of Tokyo's months that is far enough.
    let window = life.left("has moved", "tokens_per_month").await["window"].clone();
    assert_has(&window, &json!({"start": "2026-04-30T15:00:00.000Z", "end": "2026-05-31T15:00:00.000Z"}));
}

/// Versions that came one after the other while nobody called, and a service that read them anew.
#[tokio::test]
async fn every_step_of_plans_pools_and_zones_is_known_after_a_kill() {
    let kept = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a data directory");
    let mut life = Life::begin(kept.path());
    life.client.put_clock("2026-03-10T12:00:00.000Z").await.ok();
    let sheet = |rate: u64| Sheet::named("p").ob(100_000, rate).dr(100).json();
    let pool = |rate: u64| PoolSheet::new("default", &["*"]).output_tokens(100_000, rate).json();
    life.client.put_plan(&sheet(60)).await.ok();
    life.client.put_pool(&pool(120)).await.ok();
    life.client.put_settings(json!({"default_plan": "p"})).await.ok();
    life.spend("u", 0, 50_000).await;
    for (second, zone, rate) in
        [(10, "Asia/Tokyo", 600), (20, "America/Los_Angeles", 1200), (30, "UTC", 6000)]
    {
        life.client.put_clock(&format!("2026-03-10T12:00:{second}.000Z")).await.ok();
        life.client.put_plan(&sheet(rate)).await.ok();
        life.client.put_pool(&pool(2 * rate)).await.ok();
        life.client.put_settings(json!({"zone": zone})).await.ok();
        life.kill();
    }
    life.client.put_clock("2026-03-10T12:00:31.000Z").await.ok();
    let check = life.client.check(json!({"user": "u", "dry_run": true})).await;
    let gained = 10 + 100 + 200 + 100;
    assert_eq!(check.row("output_tokens_per_minute")["remaining"], 50_000 + gained);
    assert_eq!(check.row("pool_output")["remaining"], 50_000 + 2 * gained);
    // The day that ran ends as it began.
    assert_has(&check.row("requests_per_day"), &json!({"used": 1, "resets_at": "2026-03-11T00:00:00.000Z"}));
}

#[tokio::test]
async fn every_spelling_of_a_user_is_a_user_of_its_own_after_a_kill() {
    let kept = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a data directory");
    let mut life = Life::begin(kept.path());
    life.client.put_clock("2026-03-10T12:00:00.000Z").await.ok();
    life.client.put_plan(&Sheet::named("p").dr(1).json()).await.ok();
    life.client.put_settings(json!({"default_plan": "p"})).await.ok();
    let users = [
        "Alice@X.com",
        "alice@x.com",
        "Jos\u{e9}",
        "Jose\u{301}",
        "bob",
        "BOB",
        "a b",
        "a%2Fb",
        "a/b",
        "日本",
    ];
    for user in users {
        life.client.check(json!({"user": user})).await.ok();
    }
    life.kill();
    for user in users {
        life.client.check(json!({"user": user})).await.refused(429, "daily_quota_exhausted");
        assert_eq!(life.left(user, "requests_per_day").await["used"], 1, "{user}");
    }
    life.client.check(json!({"user": "Bob"})).await.ok();
    let list = life.client.get("/v1/admin/users").await.ok();
    assert_eq!(list["data"].as_array().map(Vec::len), Some(users.len() + 1), "{list}");
}

/// Nothing of it is in any account: only the hold itself says that it is open.
#[tokio::test]
async fn a_call_that_no_limit_counts_goes_on_after_a_kill() {
    let kept = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a data directory");
    let mut life = Life::begin(kept.path());
    life.client.put_clock("2026-03-10T12:00:00.000Z").await.ok();
    life.client.put_plan(&Sheet::named("p").json()).await.ok();
    life.client.put_settings(json!({"default_plan": "p"})).await.ok();
    let body = json!({"user": "u", "input_tokens": 5, "max_output_tokens": 5, "lease_seconds": 60});
    let hold = life.client.check(body).await.hold_id();
    life.kill();
    let more = json!({"lease_seconds": 120, "add_output_tokens": 7});
    let longer = life.client.extend(&hold, more).await.ok();
    let known = json!({"expires_at": "2026-03-10T12:02:00.000Z", "reserved": {"output_tokens": 12}});
    assert_has(&longer["hold"], &known);
    life.kill();
    let usage = json!({"input_tokens": 5, "output_tokens": 9});
    assert_has(
        &life.client.settle(&hold, usage).await.ok()["hold"],
        &json!({"state": "settled", "late": false}),
    );
}
