//! Commands that change rights: sheets, plans, users, orgs, settings, and what is done about doubt.

use serde_json::{Value, json};

use super::{Command, Script};
use crate::model::family::Family;
use crate::model::oracle::calendar::{DAY_MS, HOUR_MS, MINUTE_MS, Ms, wire};
use crate::model::oracle::cells::HoldNo;
use crate::model::oracle::doubt::Which;
use crate::model::oracle::sheet::{Kind, Scope};
use crate::model::oracle::{Oracle, State};
use crate::model::stage::{ORG_SHEETS, ORGS, SHEETS, USERS, ZONES};

impl Script {
    /// A command of one of the families at play; none if that family has nothing to do now.
    pub(super) fn change(&mut self, oracle: &Oracle) -> Option<Command> {
        let families = self.stage.families.clone();
        if families.is_empty() {
            return None;
        }
        let user = (*self.rng.pick(&USERS)).to_owned();
        match *self.rng.pick(&families) {
            Family::Versions => Some(self.version(oracle)),
            Family::Moves => self.movement(oracle, user),
            Family::Overrides => self.overrides(oracle, user),
            Family::Grants => self.grant(oracle, user),
            Family::Orgs => self.org(),
            Family::OrgRights => self.org_rights(oracle),
            Family::Calendars => self.calendars(oracle, user),
            Family::Standing => Some(self.standing(oracle, user)),
            Family::Rules => self.rule(oracle),
            Family::Resolve => self.resolve(oracle),
            Family::Shadow => {
                let mode = if oracle.shadow { "enforce" } else { "shadow" };
                // Mostly the tenant enforces.
                (oracle.shadow || self.rng.chance(40))
                    .then(|| Command::Settings(json!({"enforcement": mode})))
            }
            Family::Denial => {
                Some(Command::Settings(json!({"denial_status": *self.rng.pick(&[402, 403, 429])})))
            }
            Family::Documents => Some(if self.stage.orgs_play() && self.rng.chance(40) {
                let org = (*self.rng.pick(&ORGS)).to_owned();
                if self.rng.chance(50) { Command::OrgDocument { org } } else { Command::OrgQuota { org } }
            } else {
                Command::UserDocument { user }
            }),
        }
    }

    /// An instant to come: near, or one at which something happens anyway.
    fn instant(&mut self, oracle: &Oracle) -> Ms {
        let now = oracle.now;
        let borders = self.borders(oracle, 40 * DAY_MS);
        match self.rng.between(0, 9) {
            0..=2 => now + self.rng.between(1, 90_000),
            3 => now + self.rng.between(1, 59) * MINUTE_MS,
            4 => now + self.rng.between(1, 72) * HOUR_MS,
            5 => now + self.rng.between(1, 40) * DAY_MS + self.rng.between(0, DAY_MS),
            _ if borders.is_empty() => now + 5000,
            _ => (*self.rng.pick(&borders) + self.rng.between(-1, 1)).max(now + 1),
        }
    }

    fn expiry(&mut self, oracle: &Oracle) -> Value {
        if self.rng.chance(35) { Value::Null } else { json!(wire(self.instant(oracle))) }
    }

    fn version(&mut self, oracle: &Oracle) -> Command {
        let of_orgs = self.stage.orgs_play() && self.rng.chance(25);
        let id = if of_orgs { *self.rng.pick(&ORG_SHEETS) } else { *self.rng.pick(&SHEETS) };
        let newest = self.sheets[id].clone();
        let zones = self.stage.families.contains(&Family::Calendars);
        let sheet = self.stage.revise(&mut self.rng, &newest, zones);
        self.sheets.insert(id.to_owned(), sheet.clone());
        let mut body = sheet;
        if of_orgs || !self.rng.chance(40) {
            body["applies"] = match self.rng.between(0, 9) {
                0..=3 => json!("now"),
                4..=6 if !of_orgs => json!("next_window"),
                _ => json!(wire(self.instant(oracle))),
            };
        }
        if !of_orgs && self.rng.chance(25) {
            body["to"] = json!("new_users");
        } else if self.rng.chance(30) {
            body["to"] = json!("everyone");
        }
        Command::PutPlan(body)
    }

    /// Whether staying is coming again is left open while there is a newer version.
    pub(super) fn may_move(&self, oracle: &Oracle, user: &str, plan: &str) -> bool {
        oracle.plan_id(user).as_deref() != Some(plan)
            || oracle.plans[plan].len() == oracle.user(user).standing.version + 1
    }

    fn movement(&mut self, oracle: &Oracle, user: String) -> Option<Command> {
        let plan = (*self.rng.pick(&SHEETS)).to_owned();
        let entry = oracle.user(&user);
        if !self.may_move(oracle, &user, &plan) {
            return None;
        }
        if entry.sequence.is_none() && self.rng.chance(10) {
            return Some(Command::PutUser { user, body: json!({"plan": plan}) });
        }
        if entry.sequence.is_some() && self.rng.chance(4) {
            return Some(Command::PutUser { user, body: json!({"plan": plan}) });
        }
        let mut body = json!({"plan": plan, "reason": "moved"});
        let mut after = oracle.month_end(&user);
        // Whether somebody who will be on a plan anyway comes to it is left open, too.
        let stays = oracle.plan_id(&user).as_ref() == Some(&plan);
        match self.rng.between(0, 9) {
            3..=9 if stays => body["effective"] = json!("now"),
            0..=2 => {}
            3..=5 => {
                body["effective"] = json!("now");
                after = oracle.now;
            }
            6 | 7 => body["effective"] = json!("next_window"),
            _ => {
                after = self.instant(oracle);
                body["effective"] = json!(wire(after));
            }
        }
        if self.rng.chance(30) && !stays {
            let span = *self.rng.pick(&[MINUTE_MS, HOUR_MS, 3 * DAY_MS, 20 * DAY_MS]);
            body["until"] = json!(wire(after + self.rng.between(1, span)));
            let then = *self.rng.pick(&SHEETS);
            if self.rng.chance(50) && then != plan {
                body["then"] = json!(then);
            }
        }
        if let Some(last) = entry.sequence {
            match self.rng.between(0, 19) {
                0 => {}
                1 | 2 => body["sequence"] = json!(last),
                3..=5 => body["sequence"] = json!((last - self.rng.between(1, 3)).max(0)),
                _ => body["sequence"] = json!(last + self.rng.between(1, 3)),
            }
        } else if self.rng.chance(20) {
            body["sequence"] = json!(self.rng.between(0, 9));
        }
        Some(Command::Move { user, body })
    }

    /// Names of limits of a kind of scope, and whether they are windows, of what a user or org has.
    fn names(limits: &[crate::model::oracle::Asked], scope: Scope) -> Vec<(String, bool)> {
        let own = limits.iter().filter(|a| a.limit.scope == scope && a.limit.number() > 0);
        own.map(|a| (a.limit.name.clone(), matches!(a.limit.kind, Kind::Window { .. }))).collect()
    }

    fn override_body(&mut self, oracle: &Oracle, names: &[(String, bool)]) -> Value {
        let mut overrides = json!({});
        for _ in 0..self.rng.between(1, 2) {
            let (name, _) = self.rng.pick(names).clone();
            overrides[&name] =
                if self.rng.chance(20) { Value::Null } else { self.stage.figures(&mut self.rng, &name) };
        }
        json!({"overrides": overrides, "expires_at": self.expiry(oracle), "reason": "asked for"})
    }

    fn grant_body(&mut self, oracle: &Oracle, names: &[(String, bool)]) -> Option<Value> {
        let windows: Vec<_> = names.iter().filter(|n| n.1).cloned().collect();
        if windows.is_empty() {
            return None;
        }
        let (limit, _) = self.rng.pick(&windows).clone();
        let most = self.stage.figures(&mut self.rng, &limit)["limit"].as_i64().expect("a window");
        let amount = self.rng.between(1, most);
        Some(json!({"limit": limit, "amount": amount, "expires_at": self.expiry(oracle), "reason": "a gift"}))
    }

    fn overrides(&mut self, oracle: &Oracle, user: String) -> Option<Command> {
        let names = Self::names(&oracle.plan_limits(&user), Scope::User);
        if names.is_empty() || !oracle.users.contains_key(&user) {
            return None;
        }
        Some(Command::Overrides { body: self.override_body(oracle, &names), user })
    }

    fn grant(&mut self, oracle: &Oracle, user: String) -> Option<Command> {
        let names = Self::names(&oracle.plan_limits(&user), Scope::User);
        if !oracle.users.contains_key(&user) {
            return None;
        }
        Some(Command::Grant { body: self.grant_body(oracle, &names)?, user })
    }

    fn org(&mut self) -> Option<Command> {
        if !self.stage.orgs_play() {
            return None;
        }
        let org = *self.rng.pick(&ORGS);
        if self.rng.chance(40) {
            let user = (*self.rng.pick(&USERS)).to_owned();
            let org = if self.rng.chance(20) { Value::Null } else { json!(org) };
            return Some(Command::PutUser { user, body: json!({"org": org}) });
        }
        let plan = if self.rng.chance(25) { Value::Null } else { json!(*self.rng.pick(&ORG_SHEETS)) };
        Some(Command::PutOrg { org: org.to_owned(), body: json!({"plan": plan}) })
    }

    fn org_rights(&mut self, oracle: &Oracle) -> Option<Command> {
        let org = (*self.rng.pick(&ORGS)).to_owned();
        let names = Self::names(&oracle.org_limits(&org), Scope::Org);
        if names.is_empty() {
            return None;
        }
        if self.rng.chance(50) {
            return Some(Command::OrgOverrides { body: self.override_body(oracle, &names), org });
        }
        Some(Command::OrgGrant { body: self.grant_body(oracle, &names)?, org })
    }

    fn calendars(&mut self, oracle: &Oracle, user: String) -> Option<Command> {
        let zone = json!(*self.rng.pick(&ZONES));
        let zone_or_none = if self.rng.chance(20) { Value::Null } else { zone.clone() };
        Some(match self.rng.between(0, 9) {
            0..=6 if oracle.any_window_aside(&[&user]) => return None,
            0..=3 => Command::PutUser { user, body: json!({"zone": zone_or_none}) },
            4..=6 => {
                let day = *self.rng.pick(&[1, 2, 15, 28, 29, 30, 31]);
                Command::PutUser { user, body: json!({"anchor_day": day}) }
            }
            7 if self.stage.orgs_play() => {
                let org = (*self.rng.pick(&ORGS)).to_owned();
                Command::PutOrg { org, body: json!({"zone": zone_or_none}) }
            }
            _ if oracle.any_window_aside(&USERS) => return None,
            _ => Command::Settings(json!({"zone": zone})),
        })
    }

    fn standing(&mut self, oracle: &Oracle, user: String) -> Command {
        // Nobody stays suspended for long.
        let suspended = oracle.users.iter().find(|(_, u)| u.suspended);
        if let (Some((user, _)), true) = (suspended, self.rng.chance(70)) {
            return Command::PutUser { user: user.clone(), body: json!({"suspended": false}) };
        }
        if self.rng.chance(35) {
            return Command::PutUser { user, body: json!({"suspended": true}) };
        }
        Command::PutUser { user, body: json!({"verified": self.rng.chance(85)}) }
    }

    /// A rule by which nothing becomes due at once: when that acts is a matter of its own.
    fn rule(&mut self, oracle: &Oracle) -> Option<Command> {
        let oldest = oracle.holds.iter().filter_map(|hold| match hold.state {
            State::InDoubt(since) => Some(since),
            _ => None,
        });
        let oldest = oldest.min().unwrap_or(oracle.now);
        let later: Vec<i64> =
            [1, 2, 5, 24, 72, 100].into_iter().filter(|h| oldest + h * HOUR_MS > oracle.now).collect();
        if later.is_empty() {
            return None;
        }
        let hours = *self.rng.pick(&later);
        let then = *self.rng.pick(&["charge", "release", "progress"]);
        Some(Command::Settings(json!({"in_doubt_after": {"hours": hours, "then": then}})))
    }

    fn resolve(&mut self, oracle: &Oracle) -> Option<Command> {
        if self.rng.chance(35) {
            let which = self.which(oracle);
            if self.rng.chance(30) {
                return Some(Command::InDoubt { which });
            }
            let action = *self.rng.pick(&["charge", "release"]);
            let body = json!({"action": action, "dry_run": self.rng.chance(60), "reason": "cleared"});
            return Some(Command::ResolveAll { which, body });
        }
        let young = |no: &HoldNo| oracle.now - oracle.holds[*no].created < 30 * DAY_MS;
        let open: Vec<HoldNo> = (0..oracle.holds.len())
            .filter(|no| {
                let hold = &oracle.holds[*no];
                matches!(hold.state, State::InDoubt(_) | State::Ruled(_)) || hold.resolved.is_some()
            })
            .filter(young)
            .collect();
        let no = if open.is_empty() || self.rng.chance(20) {
            self.some_hold(oracle)
        } else {
            *self.rng.pick(&open)
        };
        if let (Some(before), true) = (&oracle.holds[no].resolved, self.rng.chance(60)) {
            let mut body = before.clone();
            body["reason"] = json!("again");
            return Some(Command::Resolve { no, body });
        }
        let mut body =
            json!({"action": *self.rng.pick(&["charge", "release", "settle"]), "reason": "looked up"});
        if body["action"] == "settle" {
            body["input_tokens"] = json!(self.rng.between(0, 90));
            body["output_tokens"] = json!(self.rng.between(0, 60));
        }
        Some(Command::Resolve { no, body })
    }

    fn which(&mut self, oracle: &Oracle) -> Which {
        let back = |rng: &mut crate::model::rng::Rng| {
            let span = *rng.pick(&[5000, HOUR_MS, 3 * DAY_MS]);
            oracle.now - rng.between(0, span)
        };
        let (mut from, mut to) = (back(&mut self.rng), back(&mut self.rng));
        if from > to {
            std::mem::swap(&mut from, &mut to);
        }
        Which {
            user: self.rng.chance(50).then(|| (*self.rng.pick(&USERS)).to_owned()),
            feature: self.rng.chance(20).then(|| "chat".to_owned()),
            model: self.rng.chance(20).then(|| "haiku".to_owned()),
            from: self.rng.chance(25).then_some(from),
            to: self.rng.chance(25).then_some(to),
        }
    }
}
