//! Changes of rights on both sides: plans, users, orgs, settings, doubt.

use serde_json::{Value, json};

use super::generate::Command;
use super::oracle::State;
use super::oracle::calendar::{Ms, wire};
use super::oracle::doubt::{Then, Which};
use super::world::World;
use crate::harness::percent;

impl World {
    pub(super) async fn run_change(&mut self, command: &Command) -> Result<(), String> {
        match command {
            Command::PutPlan(sheet) => {
                let mut body = sheet.clone();
                body["reason"] = json!("test");
                let path = format!("plans/{}", sheet["id"].as_str().expect("a sheet has an id"));
                let expected = self.oracle.put_plan(sheet);
                self.admin("PUT", &path, &body, expected).await
            }
            Command::Move { user, body } => {
                let expected = self.oracle.move_user(user, body);
                self.admin("POST", &format!("users/{user}/plan"), body, expected).await?;
                self.quota(user).await
            }
            Command::PutUser { user, body } => {
                let expected = self.oracle.put_user(user, body);
                self.admin("PUT", &format!("users/{user}"), &with_reason(body), expected).await?;
                self.quota(user).await
            }
            Command::Overrides { user, body } => {
                let expected = self.oracle.put_overrides(user, body);
                self.admin("PUT", &format!("users/{user}/overrides"), body, expected).await
            }
            Command::Grant { user, body } => {
                let expected = self.oracle.give(user, body);
                self.admin("POST", &format!("users/{user}/grants"), body, expected).await
            }
            Command::UserDocument { user } => {
                let expected = self.oracle.user_document(user);
                let reply = self.client.get(&format!("/v1/admin/users/{user}")).await;
                self.hold_up(&format!("document of {user}"), expected, &reply)
            }
            Command::Settings(body) => {
                self.model_settings(body);
                self.history.push(format!("settings {body}"));
                self.client.put_settings(body.clone()).await.ok();
                self.change_arrives().await;
                self.rules_applied().await
            }
            _ => self.run_org(command).await,
        }
    }

    async fn run_org(&mut self, command: &Command) -> Result<(), String> {
        match command {
            Command::PutOrg { org, body } => {
                let expected = self.oracle.put_org(org, body);
                self.admin("PUT", &format!("orgs/{org}"), &with_reason(body), expected).await
            }
            Command::OrgOverrides { org, body } => {
                let expected = self.oracle.put_org_overrides(org, body);
                self.admin("PUT", &format!("orgs/{org}/overrides"), body, expected).await
            }
            Command::OrgGrant { org, body } => {
                let expected = self.oracle.give_org(org, body);
                self.admin("POST", &format!("orgs/{org}/grants"), body, expected).await
            }
            Command::OrgDocument { org } if self.oracle.orgs.contains_key(org) => {
                let expected = self.oracle.org_document(org);
                let reply = self.client.get(&format!("/v1/admin/orgs/{org}")).await;
                self.hold_up(&format!("document of {org}"), expected, &reply)
            }
            Command::OrgQuota { org } if self.oracle.org_sheet(org).is_some() => {
                let expected = self.oracle.org_quota(org);
                let reply = self.client.get(&format!("/v1/admin/orgs/{org}/quota")).await;
                self.hold_up(&format!("quota of {org}"), expected, &reply)
            }
            Command::OrgDocument { .. } | Command::OrgQuota { .. } => Ok(()),
            _ => self.run_doubt(command).await,
        }
    }

    async fn run_doubt(&mut self, command: &Command) -> Result<(), String> {
        match command {
            Command::Resolve { no, body } => {
                let reply =
                    self.client.post(&format!("/v1/admin/holds/{}/resolve", self.id(*no)), body).await;
                let expected = self.oracle.resolve(*no, body);
                self.hold_up(&format!("resolve {no} {body}"), expected, &reply)
            }
            Command::ResolveAll { which, body } => {
                // The filter may stand in the query or in the body.
                let reply = if self.history.len().is_multiple_of(2) {
                    let path = format!("/v1/admin/holds/resolve?{}", query(which));
                    self.client.post(&path, body).await
                } else {
                    let mut whole = body.clone();
                    for (name, value) in pairs(which) {
                        whole[name] = json!(value);
                    }
                    self.client.post("/v1/admin/holds/resolve", &whole).await
                };
                let expected = self.oracle.resolve_all(which, body);
                self.hold_up(&format!("resolve all {} {body}", query(which)), expected, &reply)
            }
            Command::InDoubt { which } => self.list_in_doubt(which).await,
            _ => unreachable!("handled before"),
        }
    }

    /// The list of holds in doubt has each of them once, the oldest first.
    async fn list_in_doubt(&mut self, which: &Which) -> Result<(), String> {
        let mut seen: Vec<(Ms, String)> = Vec::new();
        let mut cursor = String::new();
        loop {
            let path = format!("/v1/admin/holds?{}&limit=7{cursor}", query(which));
            let page = self.client.get(&path).await.ok();
            for hold in page["data"].as_array().expect("a list") {
                let created = super::oracle::calendar::instant(hold["created_at"].as_str().expect("a time"));
                seen.push((created, hold["id"].as_str().expect("an id").to_owned()));
            }
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={}", percent(next)),
                None => break,
            }
        }
        self.history.push(format!("list in doubt {}: {}", query(which), seen.len()));
        // The oldest first: by the check, or by the change to `in_doubt`.
        let since = |id: &String| {
            let no = self.ids.by_no.iter().find(|(_, known)| *known == id).expect("a hold of the model").0;
            match self.oracle.holds[*no].state {
                State::InDoubt(since) => since,
                _ => Ms::MAX,
            }
        };
        let ordered = seen.is_sorted_by_key(|s| s.0) || seen.is_sorted_by_key(|s| since(&s.1));
        let mut real: Vec<String> = seen.into_iter().map(|s| s.1).collect();
        let mut expected: Vec<String> =
            self.oracle.in_doubt(which).into_iter().map(|no| self.id(no)).collect();
        real.sort();
        expected.sort();
        if real == expected && ordered {
            return Ok(());
        }
        Err(format!(
            "in doubt, by age: {ordered}\n--- the service lists {real:?}\n--- the model has {expected:?}"
        ))
    }

    fn model_settings(&mut self, body: &Value) {
        let oracle = &mut self.oracle;
        if let Some(zone) = body["zone"].as_str() {
            oracle.set_zone(zone);
        }
        if let Some(hours) = body["in_doubt_after"]["hours"].as_i64() {
            let then = match body["in_doubt_after"]["then"].as_str() {
                Some("charge") => Then::Charge,
                Some("release") => Then::Release,
                _ => Then::Progress,
            };
            oracle.set_doubt_rule(hours, then);
        }
        if let Some(status) = body["denial_status"].as_u64() {
            oracle.denial_status = u16::try_from(status).expect("a status");
        }
        if let Some(mode) = body["enforcement"].as_str() {
            oracle.shadow = mode == "shadow";
        }
    }

    async fn admin(
        &mut self,
        method: &str,
        path: &str,
        body: &Value,
        expected: super::oracle::expect::Expected,
    ) -> Result<(), String> {
        let url = format!("/v1/admin/{path}");
        let reply = match method {
            "PUT" => self.client.put(&url, body).await,
            _ => self.client.post(&url, body).await,
        };
        self.change_arrives().await;
        self.hold_up(&format!("{method} {path} {body}"), expected, &reply)
    }
}

fn with_reason(body: &Value) -> Value {
    let mut body = body.clone();
    body["reason"] = json!("test");
    body
}

fn pairs(which: &Which) -> Vec<(&'static str, String)> {
    let mut all = vec![("state", "in_doubt".to_owned())];
    let texts = [("user", &which.user), ("feature", &which.feature), ("model", &which.model)];
    all.extend(texts.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
    let times = [("from", which.from), ("to", which.to)];
    all.extend(times.into_iter().filter_map(|(name, at)| Some((name, wire(at?)))));
    all
}

fn query(which: &Which) -> String {
    let parts: Vec<String> =
        pairs(which).into_iter().map(|(name, value)| format!("{name}={}", percent(&value))).collect();
    parts.join("&")
}
