//! A second node on the same stores. What one decides holds at the other at once; what admins
//! change gets around in less than a second, and so long the commands wait.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::json;

use crate::harness::{Client, Server, Tenant, percent};

/// Who is not on record is remembered for half a second: so long a node takes somebody for a
/// newcomer who was admitted by the other one.
const NEWCOMER: Duration = Duration::from_millis(550);

pub struct Second {
    /// Speaks for the tenant, to the node whose turn it is next.
    pub client: Client,
    /// A tenant beside it, at both nodes: whoever knows its last change knows all before.
    marks: [Client; 2],
    suspended: bool,
    known: HashSet<String>,
}

impl Second {
    pub async fn new(tenant: &Tenant, server: &Server) -> Self {
        let marks = Tenant::on(tenant.server, "UTC", "2026-03-10T12:00:00.000Z").await;
        let there = Client::new(&server.url, &marks.client.token);
        let client = Client::new(&server.url, &tenant.client.token);
        marks.put_user("mark", json!({"suspended": false})).await.ok();
        Self { client, marks: [marks.client, there], suspended: false, known: HashSet::new() }
    }

    /// What was changed at the node of `teller` is known here.
    pub async fn hears(&mut self, teller: &Client) {
        if self.marks[0].url != teller.url {
            self.marks.reverse();
        }
        let [teller, hearer] = &self.marks;
        let is_suspended =
            async || hearer.check(json!({"user": "mark", "dry_run": true})).await.status == 403;
        // What a node has not read of late it reads anew, whether it heard of a change or not.
        is_suspended().await;
        self.suspended = !self.suspended;
        teller.put_user("mark", json!({"suspended": self.suspended})).await.ok();
        let begun = std::time::Instant::now();
        while is_suspended().await != self.suspended {
            assert!(begun.elapsed() < Duration::from_secs(30), "a change does not get around");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Both nodes know of these: an admin put them on record.
    pub fn met<'a>(&mut self, users: impl Iterator<Item = &'a String>) {
        self.known.extend(users.cloned());
    }

    /// Waits for those who were admitted first by the last command.
    pub async fn meets<'a>(&mut self, users: impl Iterator<Item = &'a String>) {
        let newcomers: Vec<&String> = users.filter(|user| !self.known.contains(*user)).collect();
        if newcomers.is_empty() {
            return;
        }
        for user in &newcomers {
            // What is read of the record waits until it is there.
            self.client.get(&format!("/v1/admin/users/{}", percent(user))).await.ok();
        }
        tokio::time::sleep(NEWCOMER).await;
        self.known.extend(newcomers.into_iter().cloned());
    }
}
