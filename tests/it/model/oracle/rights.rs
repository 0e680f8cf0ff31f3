//! Changes of plans, users, orgs and settings, and the documents that answer them.

use serde_json::{Map, Value, json};

use super::Oracle;
use super::calendar::{Ms, instant, wire};
use super::expect::Expected;
use super::sheet::{Sheet, text};
use super::terms::{Applies, Grant, Override, Standing, Version};
use super::view::{int, opt_wire};

fn time(value: &Value) -> Option<Ms> {
    value.as_str().map(instant)
}

impl Oracle {
    /// A plan is put, or put again, with `applies` and `to` beside the sheet's fields.
    pub fn put_plan(&mut self, body: &Value) -> Expected {
        let sheet = Sheet::read(body);
        let id = sheet.id.clone();
        let held = self.plans.get(&id).map(|versions| self.held(versions)).unwrap_or_default();
        let smaller = held.iter().any(|version| sheet.is_downgrade_from(&version.sheet));
        let applies = match body.get("applies").and_then(Value::as_str) {
            Some("now") => Applies::Now,
            Some("next_window") => Applies::NextWindow,
            Some(at) => Applies::At(instant(at)),
            None if smaller => Applies::NextWindow,
            None => Applies::Now,
        };
        let everyone = body.get("to").and_then(Value::as_str) != Some("new_users");
        self.order += 1;
        let versions = self.plans.entry(id.clone()).or_default();
        versions.push(Version { sheet, applies, everyone, written: self.now, order: self.order });
        let newest = versions.len() - 1;
        let on_it: Vec<String> =
            self.users.keys().filter(|u| self.plan_id(u).as_deref() == Some(id.as_str())).cloned().collect();
        for user in on_it.into_iter().filter(|_| everyone) {
            let month_end = self.month_end(&user);
            self.blurred |= applies == Applies::NextWindow && self.month_is_open(&user);
            self.users.get_mut(&user).expect("on record").standing.meet(newest, applies, month_end);
        }
        for org in self.orgs.values_mut().filter(|o| o.plan.as_ref() == Some(&id) && everyone) {
            org.meet(newest, applies, Ms::MAX);
        }
        self.retune();
        let to = if everyone { "everyone" } else { "new_users" };
        let mut reply = json!({"id": id, "version": newest + 1, "to": to});
        match applies {
            Applies::Now => reply["applies"] = json!("now"),
            Applies::NextWindow => reply["applies"] = json!("next_window"),
            Applies::At(at) => reply["effective_at"] = json!(wire(at)),
        }
        Expected::new(200, reply)
    }

    /// The versions that somebody may be on.
    fn held<'v>(&self, versions: &'v [Version]) -> Vec<&'v Version> {
        let mut held = Vec::new();
        // A time that is later than a newer version for everyone never comes.
        let mut newer = self.now;
        for version in versions.iter().rev() {
            match version.applies {
                Applies::At(at) if at > newer => continue,
                Applies::NextWindow if self.now < version.written + 62 * 86_400_000 => {
                    held.push(version);
                    newer = if version.everyone { version.written.min(newer) } else { newer };
                }
                _ if version.everyone => {
                    held.push(version);
                    break;
                }
                _ => held.push(version),
            }
        }
        held
    }

    /// `PUT users/{user}`: what is not named stays; a plan acts now.
    pub fn put_user(&mut self, user: &str, body: &Value) -> Expected {
        if body.get("plan").is_some() && self.users.get(user).is_some_and(|u| u.sequence.is_some()) {
            return Expected::problem(409, "sequence_required");
        }
        let mut entry = self.know(user).clone();
        if let Some(plan) = text(body, "plan") {
            self.arrive(&mut entry.standing, Some(&plan), self.now);
            entry.standing.plan = Some(plan);
            entry.pending.clear();
        }
        for (name, value) in body.as_object().expect("an object") {
            let word = value.as_str().map(str::to_owned);
            match name.as_str() {
                "org" => entry.org = word,
                "zone" => {
                    entry.zone_changed = true;
                    entry.standing.zone = word;
                }
                "anchor_day" => entry.anchor_day = value.as_u64().map(|d| d as u8),
                "verified" => entry.verified = value == &json!(true),
                "suspended" => entry.suspended = value == &json!(true),
                _ => {}
            }
        }
        self.users.insert(user.to_owned(), entry);
        self.retune();
        self.reschedule();
        self.user_document(user)
    }

    /// `POST users/{user}/plan`: a move, now or later, in the order that `sequence` tells.
    pub fn move_user(&mut self, user: &str, body: &Value) -> Expected {
        let mut entry = self.know(user).clone();
        let sequence = body.get("sequence").and_then(Value::as_i64);
        match (entry.sequence, sequence) {
            (Some(_), None) => return Expected::problem(409, "sequence_required"),
            (Some(last), Some(new)) if new <= last => {
                return self.user_document(user).with("stale", json!(new < last));
            }
            _ => {}
        }
        let plan = text(body, "plan").expect("a move has a plan");
        let left = self.plan_id(user).expect("everybody has a plan");
        let at = match body.get("effective").and_then(Value::as_str) {
            Some("now") => self.now,
            Some("next_window") => self.month_end(user),
            Some(at) => instant(at),
            None if self.target(&entry.standing, &plan).is_downgrade_from(self.plan(user).0) => {
                self.month_end(user)
            }
            None => self.now,
        };
        let told = body.get("effective").and_then(Value::as_str);
        self.blurred |=
            at > self.now && matches!(told, None | Some("next_window")) && self.month_is_open(user);
        entry.sequence = sequence.or(entry.sequence);
        let before = std::mem::take(&mut entry.pending);
        if at > self.now {
            entry.pending.push((at, plan));
        } else {
            self.arrive(&mut entry.standing, Some(&plan), at);
            entry.standing.plan = Some(plan);
        }
        if let Some(until) = body.get("until").and_then(time) {
            // Told nothing else, it goes on as it would have without the trial.
            let come = before.iter().rev().find(|m| m.0 <= until).map(|m| m.1.clone());
            let then = text(body, "then");
            let is_told = then.is_some();
            entry.pending.push((until, then.or(come).unwrap_or(left)));
            if !is_told {
                entry.pending.extend(before.into_iter().filter(|m| m.0 > until));
            }
        }
        self.users.insert(user.to_owned(), entry);
        self.retune();
        self.user_document(user).with("stale", json!(false))
    }

    /// The sheet that somebody would have who came to a plan now.
    fn target(&self, standing: &Standing, plan: &str) -> &Sheet {
        let mut there = standing.clone();
        self.arrive(&mut there, Some(plan), self.now);
        &self.plans[plan][there.version].sheet
    }

    pub fn put_overrides(&mut self, user: &str, body: &Value) -> Expected {
        self.know(user).standing.overrule(body);
        self.retune();
        self.user_document(user)
    }

    pub fn give(&mut self, user: &str, body: &Value) -> Expected {
        let now = self.now;
        let reply = self.know(user).standing.grant(body, now);
        self.retune();
        reply
    }

    pub fn put_org(&mut self, org: &str, body: &Value) -> Expected {
        let mut standing = self.org(org);
        if !self.orgs.contains_key(org) {
            self.order += 1;
            (standing.created, standing.order) = (self.now, self.order);
        }
        if body.get("plan").is_some() {
            standing.plan = text(body, "plan");
            let plan = standing.plan.clone();
            standing.waiting = None;
            self.arrive(&mut standing, plan.as_deref(), self.now);
        }
        if body.get("zone").is_some() {
            standing.zone = text(body, "zone");
        }
        self.orgs.insert(org.to_owned(), standing);
        self.retune();
        self.org_document(org)
    }

    pub fn put_org_overrides(&mut self, org: &str, body: &Value) -> Expected {
        self.orgs.get_mut(org).expect("an org on record").overrule(body);
        self.retune();
        self.org_document(org)
    }

    pub fn give_org(&mut self, org: &str, body: &Value) -> Expected {
        let now = self.now;
        let reply = self.orgs.get_mut(org).expect("an org on record").grant(body, now);
        self.retune();
        reply
    }

    /// The tenant's own zone changes.
    pub fn set_zone(&mut self, zone: &str) {
        zone.clone_into(&mut self.zone);
        self.zones_changed = true;
        self.retune();
        self.reschedule();
    }

    pub fn user_document(&self, user: &str) -> Expected {
        if !self.users.contains_key(user) {
            return Expected::new(404, json!({"status": 404}));
        }
        let entry = self.user(user);
        let (sheet, version) = self.plan(user);
        let mut body = json!({
            "user": user,
            "plan": {"id": sheet.id, "version": version},
            "org": entry.org,
            "verified": entry.verified,
            "suspended": entry.suspended,
            "zone": entry.standing.zone,
            "anchor_day": entry.anchor_day,
            "pending": self.pending(&entry.standing, &entry.pending),
            "created_at": wire(entry.standing.created),
        });
        self.rights(&entry.standing, &mut body);
        Expected::new(200, body)
    }

    pub fn org_document(&self, org: &str) -> Expected {
        let standing = self.org(org);
        let mut body = json!({
            "org": org,
            "plan": self.org_sheet(org).map(|(sheet, v)| json!({"id": sheet.id, "version": v})),
            "zone": standing.zone,
            "created_at": wire(standing.created),
        });
        self.rights(&standing, &mut body);
        Expected::new(200, body)
    }

    fn pending(&self, standing: &Standing, moves: &[(Ms, String)]) -> Value {
        let Some((at, plan)) = moves.first() else { return Value::Null };
        let mut there = standing.clone();
        self.arrive(&mut there, Some(plan), *at);
        json!({
            "plan": {"id": plan, "version": there.version + 1},
            "effective_at": wire(*at),
            "then": moves.get(1).map(|(at, plan)| json!({"plan": {"$word": plan}, "effective_at": wire(*at)})),
        })
    }

    /// The change that comes first: a move, or a version of the present plan.
    pub fn upcoming(&self, user: &str) -> Value {
        let entry = self.user(user);
        let move_at = entry.pending.first().map_or(Ms::MAX, |m| m.0);
        if let Some((version, at)) = entry.standing.waiting.filter(|w| w.1 < move_at) {
            let id = self.plan_id(user);
            return json!({"plan": {"id": id, "version": version + 1}, "effective_at": wire(at)});
        }
        let mut pending = self.pending(&entry.standing, &entry.pending);
        if let Some(fields) = pending.as_object_mut() {
            fields.remove("then");
        }
        pending
    }

    /// Overrides in force, and grants that are alive and of which something is left.
    fn rights(&self, standing: &Standing, body: &mut Value) {
        let now = self.now;
        let mut overrides = Map::new();
        for (name, over) in &standing.overrides {
            if over.expires.is_none_or(|end| now < end) {
                let mut view = over.figures.clone();
                view["expires_at"] = opt_wire(over.expires);
                overrides.insert(name.clone(), view);
            }
        }
        body["overrides"] = json!({"$only": overrides});
        let alive = standing.grants.iter().filter(|g| g.lives_at(now) && g.left > 0);
        body["grants"] = json!({"$among": alive.map(Grant::view).collect::<Vec<_>>()});
    }
}

impl Grant {
    fn view(&self) -> Value {
        json!({
            "id": self.id,
            "limit": self.limit,
            "amount": {"$any": [int(self.amount), int(self.left)]},
            "given_at": wire(self.given),
            "expires_at": opt_wire(self.expires),
        })
    }
}

impl Standing {
    /// A newer version of the plan: the newest is the one that holds or waits.
    fn meet(&mut self, version: usize, applies: Applies, month_end: Ms) {
        self.waiting = match applies {
            Applies::Now => {
                self.version = version;
                None
            }
            Applies::NextWindow => Some((version, month_end)),
            Applies::At(at) => Some((version, at)),
        };
    }

    fn overrule(&mut self, body: &Value) {
        let expires = body.get("expires_at").and_then(time);
        for (name, figures) in body["overrides"].as_object().expect("overrides by name") {
            if figures.is_null() {
                self.overrides.remove(name);
            } else {
                self.overrides.insert(name.clone(), Override { figures: figures.clone(), expires });
            }
        }
    }

    fn grant(&mut self, body: &Value, now: Ms) -> Expected {
        let amount = i128::from(body["amount"].as_i64().expect("an amount"));
        let grant = Grant {
            id: (self.grants.len() + 1).to_string(),
            limit: text(body, "limit").expect("a limit"),
            amount,
            left: amount,
            given: now,
            expires: body.get("expires_at").and_then(time),
        };
        let reply = Expected::new(201, grant.view());
        self.grants.push(grant);
        reply
    }
}
