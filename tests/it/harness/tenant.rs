//! A test tenant: its own clock, its own sheets, nobody else's figures.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::reply::row;
use super::sheets::{PoolSheet, Sheet};
use super::{Client, Reply, Server};
use crate::model::oracle::calendar::{Ms, instant, wire};

/// Scopes of a backend that may do everything within its tenant.
const ALL: &str = "check quota admin:read admin:write";

/// A tenant and a client that speaks for it.
pub struct Tenant {
    pub id: String,
    pub client: Client,
    pub server: &'static Server,
    now: std::sync::atomic::AtomicI64,
}

impl Deref for Tenant {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Tenant {
    /// A tenant in this zone whose clock stands at this instant.
    pub async fn at(zone: &str, now: &str) -> Self {
        Self::on(Server::shared(), zone, now).await
    }

    /// A tenant in UTC on a day in March, with this sheet for everybody.
    pub async fn with(sheet: Sheet) -> Self {
        let tenant = Self::at("UTC", "2026-03-10T12:00:00.000Z").await;
        tenant.plan(&sheet).await;
        tenant
    }

    pub async fn on(server: &'static Server, zone: &str, now: &str) -> Self {
        let tenant = Self::in_real_time(server, zone);
        // A store may be slow to come up on a crowded machine.
        let from = Instant::now();
        while tenant.put_clock(now).await.status == 503 && from.elapsed() < Duration::from_secs(30) {}
        tenant.set_clock(now).await;
        tenant
    }

    /// A tenant whose clock runs, as nobody has set it.
    pub fn in_real_time(server: &'static Server, zone: &str) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let id = format!("t{}", COUNT.fetch_add(1, Ordering::Relaxed));
        server.office().create_tenant(&id, zone);
        Self {
            client: Client::new(&server.url, &server.office().mint(&id, &["--scope", ALL])),
            server,
            now: std::sync::atomic::AtomicI64::new(0),
            id,
        }
    }

    /// A token of this tenant with other scopes.
    pub fn token(&self, arguments: &[&str]) -> String {
        self.server.office().mint(&self.id, arguments)
    }

    /// The same connections, as the operator of the installation.
    pub fn operator(&self) -> Client {
        self.with_token(&self.server.office().mint_operator())
    }

    /// Puts a sheet and makes it everybody's.
    pub async fn plan(&self, sheet: &Sheet) {
        self.put_plan(&sheet.json()).await.ok();
        self.put_settings(json!({"default_plan": sheet.id()})).await.ok();
    }

    pub async fn pool(&self, pool: &PoolSheet) {
        self.put_pool(&pool.json()).await.ok();
    }

    pub fn now(&self) -> Ms {
        self.now.load(Ordering::SeqCst)
    }

    /// Sets the tenant's clock to an instant.
    pub async fn set_clock(&self, at: &str) {
        self.move_clock(at).await;
    }

    /// The same, with what the service says of those who wait.
    pub async fn move_clock(&self, at: &str) -> Value {
        let moved = self.put_clock(at).await.ok();
        self.now.store(instant(at), Ordering::SeqCst);
        moved
    }

    /// Lets milliseconds pass on the tenant's clock.
    pub async fn pass(&self, ms: Ms) {
        self.set_clock(&wire(self.now() + ms)).await;
    }

    /// `check(u, in, out)` of the cases.
    pub async fn ask(&self, user: &str, input: i64, output: i64) -> Reply {
        self.check(json!({"user": user, "input_tokens": input, "max_output_tokens": output})).await
    }

    /// The same with a lease in seconds.
    pub async fn ask_for(&self, user: &str, input: i64, output: i64, lease_seconds: i64) -> Reply {
        self.check(json!({
            "user": user,
            "input_tokens": input,
            "max_output_tokens": output,
            "lease_seconds": lease_seconds,
        }))
        .await
    }

    /// Settles with input and output.
    pub async fn finish(&self, hold: &str, input: i64, output: i64) -> Reply {
        self.settle(hold, json!({"input_tokens": input, "output_tokens": output})).await
    }

    /// Uses tokens up: a check that is settled with what it asked for.
    pub async fn spend(&self, user: &str, input: i64, output: i64) -> Value {
        let hold = self.ask(user, input, output).await.hold_id();
        self.finish(&hold, input, output).await.ok()
    }

    /// The quota view's row of one limit.
    pub async fn left(&self, user: &str, limit: &str) -> Value {
        row(&self.quota(user).await.ok(), limit)
    }

    /// `remaining` of one limit.
    pub async fn remaining(&self, user: &str, limit: &str) -> i64 {
        self.left(user, limit).await["remaining"].as_i64().expect("a number remains")
    }
}
