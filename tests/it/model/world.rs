//! The service and the model side by side: each command goes to both, and the replies are compared.

use std::collections::{BTreeMap, HashSet};
use std::time::Instant;

use serde_json::{Value, json};

use super::generate::Command;
use super::oracle::calendar::{Ms, wire};
use super::oracle::cells::HoldNo;
use super::oracle::expect::{Expected, Ids, Reply as Seen, differences};
use super::oracle::{Oracle, State};
use super::second::Second;
use super::stage::{Stage, USERS};
use crate::faults::process::Process;
use crate::harness::stores::{self, Stores};
use crate::harness::{Client, Reply, Server, Tenant, cli};

/// Where the service runs.
enum Host {
    /// A tenant among many of the service that the tests share.
    Shared,
    /// A process with a directory of its own, to be killed.
    Own { kept: tempfile::TempDir, process: Option<Process> },
}

pub struct World {
    pub oracle: Oracle,
    pub(super) client: Client,
    /// Where there are two nodes, they take turns: this one has the next command.
    second: Option<Second>,
    host: Host,
    pub(super) ids: Ids,
    pub history: Vec<String>,
    /// The replies to the last command, with numbers for the ids of holds.
    pub replies: Vec<String>,
    last_wait: Option<Ms>,
    /// Holds that the tenant's rule is known to have resolved.
    ruled: HashSet<HoldNo>,
}

type Place = (Client, Option<Second>, Host);

async fn shared(stage: &Stage, server: &'static Server, beside: Option<&'static Server>) -> Place {
    let tenant = Tenant::on(server, &stage.zone, &wire(stage.start)).await;
    let second = match beside {
        Some(server) => Some(Second::new(&tenant, server).await),
        None => None,
    };
    (tenant.client, second, Host::Shared)
}

fn own(stage: &Stage) -> Place {
    let kept = tempfile::Builder::new()
        .prefix(&format!("apportion-it-{}-", std::process::id()))
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("a directory");
    let stores = Stores::of_this_run().settings();
    if !stores.is_empty() {
        stores::keep(kept.path(), &stores);
    }
    cli(kept.path(), &["tenant", "create", "oracle", "--test", "--zone", &stage.zone]);
    let scope = "check quota admin:read admin:write";
    let token = cli(kept.path(), &["token", "mint", "--tenant", "oracle", "--scope", scope, "--ttl", "24h"]);
    let process = Process::serve(kept.path(), Stores::of_this_run().lasting());
    let client = Client::new(&process.url, &token);
    (client, None, Host::Own { kept, process: Some(process) })
}

impl World {
    /// Puts the stage's sheets, pool, models and users up on both sides.
    pub async fn set(stage: &Stage, to_be_killed: bool) -> Self {
        if to_be_killed {
            return Self::set_at(stage, own(stage)).await;
        }
        let servers = || (Server::shared(), Server::second());
        let (server, beside) = tokio::task::spawn_blocking(servers).await.expect("they start");
        Self::set_at(stage, shared(stage, server, beside).await).await
    }

    /// The same at one node of one's own choice.
    pub async fn set_on(stage: &Stage, server: &'static Server) -> Self {
        Self::set_at(stage, shared(stage, server, None).await).await
    }

    async fn set_at(stage: &Stage, (client, second, host): Place) -> Self {
        client.put_clock(&wire(stage.start)).await.ok();
        let mut oracle = Oracle::new(&stage.zone, stage.start);
        let mut history = vec![format!("{} from {}", stage.zone, wire(stage.start))];
        client.put_models(&json!(stage.models)).await.ok();
        oracle.put_models(&stage.models);
        for sheet in &stage.sheets {
            history.push(format!("sheet {sheet}"));
            client.put_plan(sheet).await.ok();
            oracle.put_plan(sheet);
        }
        client.put_settings(json!({"default_plan": "one"})).await.ok();
        oracle.default_plan = Some("one".to_owned());
        if let Some(pool) = &stage.pool {
            history.push(format!("pool {pool}"));
            client.put_pool(pool).await.ok();
            oracle.put_pool(pool);
        }
        for (user, org) in USERS.iter().zip(&stage.orgs) {
            if let Some(org) = org {
                client.put_user(user, json!({"org": org})).await.ok();
                oracle.put_user(user, &json!({"org": org}));
            }
        }
        let (ids, ruled, replies) = (Ids::default(), HashSet::new(), Vec::new());
        let mut world = Self { oracle, client, second, host, ids, history, replies, last_wait: None, ruled };
        world.change_arrives().await;
        world
    }

    /// Until both nodes go by what one of them was told last: rights may take a moment to get
    /// around, decisions may not.
    pub(super) async fn change_arrives(&mut self) {
        if let Some(second) = &mut self.second {
            second.hears(&self.client).await;
            second.met(self.oracle.users.keys());
        }
    }

    /// SIGKILL between two commands; what was answered must be there when it serves again.
    pub fn kill(&mut self) {
        self.history.push("kill -9".to_owned());
        let Host::Own { kept, process } = &mut self.host else { panic!("the shared service lives on") };
        process.take().expect("it serves").kill();
        let next = Process::serve(kept.path(), Stores::of_this_run().lasting());
        self.client = Client::new(&next.url, &self.client.token);
        *process = Some(next);
    }

    /// Gives one command to both sides; the differences, if the replies differ.
    pub async fn run(&mut self, command: &Command) -> Result<(), String> {
        if let Some(second) = &mut self.second {
            std::mem::swap(&mut self.client, &mut second.client);
        }
        self.replies.clear();
        self.run_at_one(command).await?;
        if let Some(second) = &mut self.second {
            second.meets(self.oracle.users.keys()).await;
        }
        Ok(())
    }

    async fn run_at_one(&mut self, command: &Command) -> Result<(), String> {
        match command {
            Command::Check { body, key } => self.run_check(body, key.as_deref()).await,
            Command::Settle { no, body } => {
                let reply = self.client.settle(&self.id(*no), body.clone()).await;
                let expected = self.oracle.settle(*no, body);
                self.hold_up(&format!("settle {no} {body}"), expected, &reply)
            }
            Command::Release { no } => {
                let reply = self.client.release(&self.id(*no)).await;
                let expected = self.oracle.release(*no);
                self.hold_up(&format!("release {no}"), expected, &reply)
            }
            Command::Extend { no, body, key } => {
                let id = self.id(*no);
                let reply = match key {
                    Some(key) => self.client.extend_with_key(&id, key, body.clone()).await,
                    None => self.client.extend(&id, body.clone()).await,
                };
                let expected = self.oracle.extend(*no, body, key.as_deref());
                self.hold_up(&format!("extend {no} {body} {key:?}"), expected, &reply)
            }
            Command::GetHold { no } => {
                let reply = self.client.hold(&self.id(*no)).await;
                self.hold_up(&format!("get hold {no}"), self.oracle.get_hold(*no), &reply)
            }
            Command::FindHold { user, request_id } => {
                let reply = self.client.hold_by_request(user, request_id).await;
                let expected = self.oracle.find_hold(user, request_id);
                self.hold_up(&format!("find hold {user} {request_id}"), expected, &reply)
            }
            Command::Quota { user } => self.quota(user).await,
            _ => self.run_other(command).await,
        }
    }

    async fn run_check(&mut self, body: &Value, key: Option<&str>) -> Result<(), String> {
        let reply = match key {
            Some(key) => self.client.check_with_key(key, body.clone()).await,
            None => self.client.check(body.clone()).await,
        };
        let mut full = body.clone();
        if let Some(key) = key {
            full["request_id"] = json!(key);
        }
        let expected = self.oracle.check(&full);
        self.hold_up(&format!("check {full}"), expected, &reply)
    }

    async fn run_other(&mut self, command: &Command) -> Result<(), String> {
        match command {
            Command::CheckBatch(bodies) => {
                let reply = self.client.check_batch(bodies).await;
                let expected = bodies.iter().map(|b| self.oracle.check(b)).collect();
                self.hold_up_each("check batch", json!(bodies), expected, &reply)
            }
            Command::SettleBatch(settles) => {
                let items: Vec<Value> = settles
                    .iter()
                    .map(|(no, body)| {
                        let mut item = body.clone();
                        item["id"] = json!(self.id(*no));
                        item
                    })
                    .collect();
                let reply = self.client.settle_batch(&items).await;
                let expected = settles.iter().map(|(no, body)| self.oracle.settle(*no, body)).collect();
                let said = settles.iter().map(|(no, body)| json!([no, body])).collect();
                self.hold_up_each("settle batch", said, expected, &reply)
            }
            Command::Usage(items) => {
                let reply = self.client.usage(&json!({"items": items})).await;
                let expected = self.oracle.usage(items);
                self.hold_up(&format!("usage {}", json!(items)), expected, &reply)
            }
            Command::Clock(at) => {
                self.history.push(format!("clock {}", wire(*at)));
                self.client.put_clock(&wire(*at)).await.ok();
                self.oracle.set_clock(*at);
                self.rules_applied().await
            }
            _ => self.run_change(command).await,
        }
    }

    /// The tenant's rule for holds in doubt is carried out by the service in its own time.
    pub(super) async fn rules_applied(&mut self) -> Result<(), String> {
        let due: Vec<HoldNo> = (0..self.oracle.holds.len())
            .filter(|no| matches!(self.oracle.holds[*no].state, State::Ruled(_)) && self.ruled.insert(*no))
            .collect();
        let started = Instant::now();
        for no in due {
            let id = self.id(no);
            while self.client.hold(&id).await.ok()["hold"]["state"] == "in_doubt" {
                if started.elapsed().as_secs() > 30 {
                    return Err(format!("hold {no} is still in doubt after 30 s of real time"));
                }
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    pub async fn quota(&mut self, user: &str) -> Result<(), String> {
        let reply = self.client.quota(user).await;
        let expected = self.oracle.quota(user);
        self.hold_up(&format!("quota {user}"), expected, &reply)
    }

    /// The figures of every user, at the end of a run.
    pub async fn all_quotas(&mut self) -> Result<(), String> {
        for user in USERS {
            self.quota(user).await?;
        }
        self.oracle.add_up()
    }

    /// The wait that the last reply told, if it was a refusal with one.
    pub fn last_wait(&self) -> Option<Ms> {
        self.last_wait
    }

    /// Looks at the figures of all users, also those that only a check shows.
    pub async fn probe(&mut self) -> Result<(), String> {
        self.all_quotas().await?;
        for user in USERS {
            let body = json!({"user": user, "dry_run": true});
            self.run_check(&body, None).await?;
        }
        Ok(())
    }

    pub(super) fn id(&self, no: HoldNo) -> String {
        self.ids.by_no.get(&no).unwrap_or_else(|| panic!("hold {no} has no real id")).clone()
    }

    pub(super) fn hold_up(&mut self, said: &str, expected: Expected, reply: &Reply) -> Result<(), String> {
        self.history.push(format!("{said} -> {} {}", reply.status, reply.code()));
        self.last_wait = reply.body["retry_after_ms"].as_i64().filter(|_| reply.status == 429);
        let seen = Seen { status: reply.status, headers: reply.headers.clone(), body: reply.body.clone() };
        let found = differences(&expected, &seen, &mut self.ids);
        self.replies.push(self.without_ids(reply));
        if found.is_empty() {
            return Ok(());
        }
        Err(format!(
            "{}\n--- the service said {} {:#}\n--- the model says {} {:#}",
            found.join("\n"),
            reply.status,
            reply.body,
            expected.status,
            expected.body
        ))
    }

    fn without_ids(&self, reply: &Reply) -> String {
        // Of the call, not of its answer.
        let own = ["date", "x-request-id", "content-length"];
        let headers: BTreeMap<&String, &String> =
            reply.headers.iter().filter(|(name, _)| !own.contains(&name.as_str())).collect();
        let body = if reply.text.is_empty() { reply.body.to_string() } else { reply.text.clone() };
        let mut said = format!("{} {headers:?} {body}", reply.status);
        for (no, id) in &self.ids.by_no {
            if said.contains(id) {
                said = said.replace(id, &format!("hold {no}"));
            }
        }
        // Each installation signs with a key of its own.
        let mut parts = said.split("\"key:");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |said, part| format!("{said}\"key{}", part.trim_start_matches(|c: char| c != '"')))
    }

    fn hold_up_each(
        &mut self,
        what: &str,
        said: Value,
        expected: Vec<Expected>,
        reply: &Reply,
    ) -> Result<(), String> {
        self.history.push(format!("{what} -> {}", reply.status));
        let results = reply.body["results"].as_array().cloned().unwrap_or_default();
        if reply.status != 200 || results.len() != expected.len() {
            return Err(format!("{what}: {} {}", reply.status, reply.body));
        }
        for (n, (expected, result)) in expected.into_iter().zip(results).enumerate() {
            let headers = result["headers"]
                .as_object()
                .map(|h| {
                    h.iter()
                        .map(|(name, value)| {
                            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                            (name.to_ascii_lowercase(), text)
                        })
                        .collect()
                })
                .unwrap_or_default();
            let item = Reply {
                status: u16::try_from(result["status"].as_u64().unwrap_or(0)).unwrap_or(0),
                headers,
                body: result["body"].clone(),
                text: String::new(),
            };
            self.hold_up(&format!("  {}", said[n]), expected, &item)?;
        }
        Ok(())
    }
}
