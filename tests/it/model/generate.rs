//! Commands drawn from a seed, with an eye on what the model knows: borders, lease ends, waits.

mod changes;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::family::Family;
use super::oracle::calendar::{DAY_MS, HOUR_MS, Ms, wire};
use super::oracle::cells::{Cell, HoldNo};
use super::oracle::doubt::Which;
use super::oracle::{Oracle, State};
use super::rng::Rng;
use super::stage::{INPUT_CAP, OUTPUT_CAP, SHEETS, Stage, USERS, sheet};

/// After this long a request id may have been forgotten.
const REQUEST_ID_MS: Ms = 20 * HOUR_MS;

#[derive(Clone, Debug)]
pub enum Command {
    Check { body: Value, key: Option<String> },
    CheckBatch(Vec<Value>),
    Settle { no: HoldNo, body: Value },
    SettleBatch(Vec<(HoldNo, Value)>),
    Release { no: HoldNo },
    Extend { no: HoldNo, body: Value, key: Option<String> },
    GetHold { no: HoldNo },
    FindHold { user: String, request_id: String },
    Quota { user: String },
    Usage(Vec<Value>),
    Clock(Ms),
    PutPlan(Value),
    Move { user: String, body: Value },
    PutUser { user: String, body: Value },
    Overrides { user: String, body: Value },
    Grant { user: String, body: Value },
    PutOrg { org: String, body: Value },
    OrgOverrides { org: String, body: Value },
    OrgGrant { org: String, body: Value },
    Settings(Value),
    Resolve { no: HoldNo, body: Value },
    ResolveAll { which: Which, body: Value },
    InDoubt { which: Which },
    UserDocument { user: String },
    OrgDocument { org: String },
    OrgQuota { org: String },
}

/// What the generator remembers of the commands so far.
pub struct Script {
    pub rng: Rng,
    stage: Stage,
    /// Bodies with request ids, with the time of the first use.
    asked: Vec<(Value, Ms)>,
    usage: Vec<Value>,
    serial: u64,
    /// The wait of the last refusal, and what was refused.
    pub refused: Option<(Ms, Value)>,
    again: Option<Value>,
    /// The newest sheet of each id.
    sheets: BTreeMap<String, Value>,
}

impl Script {
    pub fn new(rng: Rng, stage: Stage) -> Self {
        let sheets = stage.sheets.iter().map(|s| (s["id"].as_str().unwrap().to_owned(), s.clone())).collect();
        let (asked, usage) = (Vec::new(), Vec::new());
        Self { rng, stage, asked, usage, serial: 0, refused: None, again: None, sheets }
    }

    pub fn next(&mut self, oracle: &Oracle) -> Command {
        // What was refused is asked again at the very moment that was told.
        if let Some(body) = self.again.take() {
            return Command::Check { body, key: None };
        }
        // Only what is younger than 31 days can be finished for certain.
        if oracle.holds.last().is_none_or(|h| oracle.now - h.created > 30 * DAY_MS) {
            return if self.rng.chance(70) { self.check(oracle) } else { Command::Clock(self.clock(oracle)) };
        }
        if self.rng.chance(14)
            && let Some(command) = self.change(oracle)
        {
            return command;
        }
        match self.rng.weighted(&[430, 150, 50, 70, 25, 90, 30, 20, 25, 25, 25, 170, 14, 6]) {
            0 => self.check(oracle),
            1 => {
                let no = self.some_hold(oracle);
                Command::Settle { no, body: self.settle_body(oracle, no) }
            }
            2 => Command::Release { no: self.some_hold(oracle) },
            3 => self.extend(oracle),
            4 => Command::Settle { no: self.some_hold(oracle), body: json!({"usage": "unknown"}) },
            5 => Command::Quota { user: (*self.rng.pick(&USERS)).to_owned() },
            6 => Command::GetHold { no: self.some_hold(oracle) },
            7 => self.find_hold(oracle),
            8 => {
                let many = self.rng.between(1, 6);
                Command::CheckBatch((0..many).map(|_| self.check_body(oracle)).collect())
            }
            9 => {
                let many = self.rng.between(1, 4);
                Command::SettleBatch(
                    (0..many)
                        .map(|_| {
                            let no = self.some_hold(oracle);
                            (no, self.settle_body(oracle, no))
                        })
                        .collect(),
                )
            }
            10 => self.usage(oracle),
            11 => Command::Clock(self.clock(oracle)),
            12 => {
                let user = (*self.rng.pick(&USERS)).to_owned();
                let plan = *self.rng.pick(&SHEETS);
                if !self.may_move(oracle, &user, plan) {
                    return Command::Quota { user };
                }
                let mut body = json!({"plan": plan, "effective": "now", "reason": "moved"});
                if let Some(last) = oracle.user(&user).sequence {
                    body["sequence"] = json!(last + 1);
                }
                Command::Move { user, body }
            }
            _ => {
                let id = *self.rng.pick(&SHEETS);
                let mut sheet = sheet(&mut self.rng, id, &self.stage.templates);
                self.sheets.insert(id.to_owned(), sheet.clone());
                sheet["applies"] = json!("now");
                Command::PutPlan(sheet)
            }
        }
    }

    fn check(&mut self, oracle: &Oracle) -> Command {
        let body = self.check_body(oracle);
        // The id may come as a header just as well.
        if body.get("request_id").is_some() && self.rng.chance(40) {
            let mut bare = body.clone();
            let id = bare.as_object_mut().unwrap().remove("request_id").unwrap();
            return Command::Check { body: bare, key: id.as_str().map(str::to_owned) };
        }
        Command::Check { body, key: None }
    }

    fn check_body(&mut self, oracle: &Oracle) -> Value {
        let now = oracle.now;
        self.asked.retain(|(_, at)| now - at < REQUEST_ID_MS);
        // What a call that takes less gets of a tenant that refuses nothing is left open.
        let known: Vec<Value> = self
            .asked
            .iter()
            .filter(|(body, _)| !oracle.shadow || body.get("min_output_tokens").is_none())
            .map(|(body, _)| body.clone())
            .collect();
        if !known.is_empty() && self.rng.chance(12) {
            let mut body = self.rng.pick(&known).clone();
            match self.rng.between(0, 9) {
                0 | 1 => body["input_tokens"] = json!(self.rng.between(0, 80)),
                2 => body["lease_seconds"] = json!(self.rng.between(1, 100)),
                _ => {}
            }
            return body;
        }
        let mut body = json!({"user": *self.rng.pick(&USERS)});
        if self.rng.chance(85) {
            body["input_tokens"] = json!(self.tokens(INPUT_CAP));
        }
        if self.rng.chance(85) {
            let output = self.tokens(OUTPUT_CAP);
            body["max_output_tokens"] = json!(output);
            if self.rng.chance(25) && !oracle.shadow {
                body["min_output_tokens"] = json!(self.rng.between(0, output));
            }
        }
        if self.rng.chance(75) {
            body["model"] = json!(*self.rng.pick(&[
                "opus-4",
                "OPUS",
                "smart",
                "sonnet",
                "default-chat",
                "haiku",
                "other"
            ]));
        }
        if self.rng.chance(40) {
            body["feature"] = json!(*self.rng.pick(&["chat", "batch_job"]));
        }
        if self.rng.chance(25) {
            body["priority"] = json!(*self.rng.pick(&["bulk", "bulk", "interactive"]));
        }
        if self.rng.chance(70) {
            body["lease_seconds"] = json!(self.rng.between(1, 90));
        }
        if self.rng.chance(10) {
            body["amounts"] = json!({"images": self.rng.between(0, 4)});
        }
        if self.rng.chance(8) {
            body["dry_run"] = json!(true);
        }
        if self.rng.chance(30) {
            self.serial += 1;
            body["request_id"] = json!(format!("r{}", self.serial));
            if body.get("dry_run").is_none() && body.get("max_output_tokens").is_some() {
                self.asked.push((body.clone(), now));
            }
        }
        body
    }

    /// Mostly within the cap, sometimes nothing, sometimes far too much.
    fn tokens(&mut self, cap: i64) -> i64 {
        match self.rng.between(0, 19) {
            0 | 1 => 0,
            2 => self.rng.between(cap, 4 * cap),
            _ => self.rng.between(1, cap),
        }
    }

    /// A recent hold as a rule, an old one now and then.
    fn some_hold(&mut self, oracle: &Oracle) -> HoldNo {
        let count = oracle.holds.len();
        let recent = if self.rng.chance(85) { 10 } else { 400 };
        let first = count.saturating_sub(recent);
        let mut no = first + usize::try_from(self.rng.between(0, (count - first) as i64 - 1)).unwrap();
        // Only what is younger than 31 days can be finished for certain.
        while oracle.now - oracle.holds[no].created > 30 * DAY_MS && no + 1 < count {
            no += 1;
        }
        no
    }

    fn settle_body(&mut self, oracle: &Oracle, no: HoldNo) -> Value {
        let hold = &oracle.holds[no];
        if let Some(before) = &hold.settled {
            let mut body = before.body.clone();
            if self.rng.chance(30) {
                // Whether another name of the same model makes another settle is left open.
                body["input_tokens"] = json!(before.input as i64 + self.rng.between(1, 3));
            }
            return body;
        }
        let about = |rng: &mut Rng, reserved: i128| {
            let most = if rng.chance(20) { 3 * reserved + 20 } else { reserved };
            rng.between(0, most as i64)
        };
        let (reserved_input, reserved_output) = (hold.input, hold.output);
        let input = about(&mut self.rng, reserved_input);
        let output = about(&mut self.rng, reserved_output);
        let mut body = json!({"input_tokens": input, "output_tokens": output});
        if self.rng.chance(25) {
            let read = self.rng.between(0, input);
            body["cache_read_tokens"] = json!(read);
            if self.rng.chance(50) {
                body["cache_write_tokens"] = json!(self.rng.between(0, input - read));
            }
        }
        if self.rng.chance(30) {
            body["model"] = json!(*self.rng.pick(&["haiku", "smart", "sonnet", "other"]));
        }
        if self.rng.chance(20) {
            body["outcome"] = json!("completed");
        }
        if self.rng.chance(1) {
            body["input_tokens"] = json!(10_000_001);
        }
        body
    }

    fn extend(&mut self, oracle: &Oracle) -> Command {
        let open: Vec<HoldNo> =
            (0..oracle.holds.len()).filter(|no| oracle.holds[*no].state == State::Held).collect();
        let no = if open.is_empty() || self.rng.chance(30) {
            self.some_hold(oracle)
        } else {
            *self.rng.pick(&open)
        };
        let mut body = json!({});
        if self.rng.chance(60) {
            body["lease_seconds"] = json!(self.rng.between(1, 120));
        }
        // So is what an extend may reserve there, and of somebody who may not ask.
        let barred = oracle.shadow || oracle.may_not_ask(&oracle.holds[no].user);
        if self.rng.chance(60) && !barred {
            body["add_output_tokens"] = json!(self.rng.between(0, 30));
        }
        if self.rng.chance(30) {
            body["output_tokens_so_far"] = json!(self.rng.between(0, 40));
        }
        let known: Vec<(&String, &Value)> = oracle.holds[no].extends.iter().collect();
        let mut key = None;
        if let (Some((before, same)), true) = (known.first(), self.rng.chance(50)) {
            key = Some((*before).clone());
            if self.rng.chance(70) && !barred {
                body = (*same).clone();
            }
        } else if self.rng.chance(30) {
            self.serial += 1;
            key = Some(format!("x{}", self.serial));
        }
        Command::Extend { no, body, key }
    }

    fn find_hold(&mut self, oracle: &Oracle) -> Command {
        let no = self.some_hold(oracle);
        let hold = &oracle.holds[no];
        match &hold.request_id {
            Some(id) if oracle.now - hold.created < REQUEST_ID_MS => {
                Command::FindHold { user: hold.user.clone(), request_id: id.clone() }
            }
            _ => Command::GetHold { no },
        }
    }

    fn usage(&mut self, oracle: &Oracle) -> Command {
        let mut items = Vec::new();
        for _ in 0..self.rng.between(1, 3) {
            if !self.usage.is_empty() && self.rng.chance(20) {
                items.push(self.rng.pick(&self.usage).clone());
                continue;
            }
            self.serial += 1;
            let mut item = json!({
                "id": format!("u{}", self.serial),
                "user": *self.rng.pick(&USERS),
                "input_tokens": self.rng.between(0, 60),
                "output_tokens": self.rng.between(0, 40),
            });
            if self.rng.chance(60) {
                item["model"] = json!(*self.rng.pick(&["opus-4", "sonnet", "haiku"]));
            }
            if self.rng.chance(50) {
                let back = if self.rng.chance(50) { 2 * HOUR_MS } else { 20 * DAY_MS };
                item["at"] = json!(wire(oracle.now - self.rng.between(0, back)));
            }
            self.usage.push(item.clone());
            items.push(item);
        }
        Command::Usage(items)
    }

    /// Where the clock goes: a little on, or to an instant at which something changes.
    fn clock(&mut self, oracle: &Oracle) -> Ms {
        let now = oracle.now;
        let nudge = self.rng.between(-1, 1);
        let aimed = match self.rng.weighted(&[150, 300, 200, 60, 15, 5, 110, 100, 80]) {
            0 => now + self.rng.between(1, 50),
            1 => now + self.rng.between(100, 3000),
            2 => now + self.rng.between(3000, 60_000),
            3 => now + self.rng.between(60_000, 900_000),
            4 => now + self.rng.between(1, 9) * HOUR_MS + self.rng.between(0, 5000),
            5 => now + self.rng.between(1, 6) * DAY_MS,
            6 => {
                let open: Vec<Ms> = oracle
                    .holds
                    .iter()
                    .filter(|h| h.state == State::Held && h.expires - now < 200_000)
                    .map(|h| h.expires)
                    .collect();
                if open.is_empty() { now + 1000 } else { self.rng.pick(&open) + nudge }
            }
            7 => {
                // Far ones, of which there are many, are rarely aimed at.
                let horizon = *self.rng.pick(&[HOUR_MS, HOUR_MS, 2 * DAY_MS, 2 * DAY_MS, 33 * DAY_MS]);
                let borders = self.borders(oracle, horizon);
                let plain = self.stage.families.is_empty() && !self.rng.chance(30);
                if borders.is_empty() || plain { now + 1000 } else { self.rng.pick(&borders) + nudge }
            }
            _ => match self.refused.take() {
                Some((at, body)) if at < now + HOUR_MS => {
                    self.again = Some(body);
                    at + if self.rng.chance(30) { -1 } else { 0 }
                }
                _ => now + 500,
            },
        };
        self.not_past_a_rule(oracle, aimed.max(now))
    }

    /// The service carries the rule for holds in doubt out when it comes by: at the instant that is
    /// due only if the clock stops there.
    fn not_past_a_rule(&self, oracle: &Oracle, aimed: Ms) -> Ms {
        if !self.stage.families.contains(&Family::Rules) {
            return aimed;
        }
        let due = oracle.holds.iter().filter_map(|hold| match hold.state {
            State::Held => Some(hold.expires + oracle.in_doubt_ms),
            State::InDoubt(since) => Some(since + oracle.in_doubt_ms),
            _ => None,
        });
        due.filter(|at| *at > oracle.now).min().map_or(aimed, |at| aimed.min(at))
    }

    /// Ends of windows and other instants at which something changes by itself, within a horizon.
    fn borders(&self, oracle: &Oracle, horizon: Ms) -> Vec<Ms> {
        let now = oracle.now;
        let windows = oracle.cells.values().filter_map(|(cell, _)| match cell {
            Cell::Window(window) => window.running(now).map(|w| w.1),
            _ => None,
        });
        let mut all: Vec<Ms> = windows.chain(oracle.changes()).collect();
        all.retain(|at| *at > now && *at - now < horizon);
        all.sort_unstable();
        all.dedup();
        all
    }
}
