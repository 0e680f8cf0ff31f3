//! The check: who asks, caps, request ids, limits, and what is taken.

use serde_json::{Value, json};

use super::calendar::Ms;
use super::cells::{Cell, HoldNo};
use super::expect::Expected;
use super::judge::Want;
use super::sheet::{Amounts, Enforce, Kind, Scope};
use super::view::{int, merge};
use super::window::Book;
use super::{Asked, Hold, Oracle, Receipt, State, holding, refill_of};

/// A check body after defaults.
struct Check {
    user: String,
    request_id: Option<String>,
    model: Option<String>,
    feature: Option<String>,
    bulk: bool,
    input: i128,
    output: i128,
    output_min: Option<i128>,
    lease_ms: Ms,
    dry_run: bool,
    extra: Amounts,
}

impl Oracle {
    /// Predicts the reply to a well-formed check and takes what it admits.
    pub fn check(&mut self, body: &Value) -> Expected {
        let check = self.read_check(body);
        if let Some(reply) = self.known_request(&check, body) {
            return reply;
        }
        let barred = self.barred(&check.user).or_else(|| self.over_caps(&check, body));
        let asked = self.asked(&check.user, check.model.as_deref(), check.feature.as_deref(), check.bulk);
        let wants_at = |this: &Self, output| {
            let amounts = this.demand(check.model.as_deref(), check.input, output, &check.extra);
            this.wants(&asked, &amounts)
        };
        let least = check.output_min.unwrap_or(check.output);
        let least_wants = wants_at(self, least);
        if barred.is_none() || self.shadow {
            self.count_shadows(&least_wants, &check, barred.is_some());
        }
        if let Some(reply) = barred.or_else(|| self.refusal(&least_wants)) {
            if !self.shadow {
                return reply;
            }
            // Nothing is refused: what would have been said stands beside the answer.
            let wants = wants_at(self, check.output);
            let said = if reply.pool_waits {
                json!({"$set": true})
            } else {
                json!({"code": reply.body["code"], "limit": reply.body["limit"]})
            };
            return self.admit(&check, body, &asked, &wants, check.output).with("would_refuse", said);
        }
        let (mut low, mut high) = (least, check.output);
        while low < high {
            let middle = low + (high - low + 1) / 2;
            if self.all_fit(&wants_at(self, middle)) { low = middle } else { high = middle - 1 }
        }
        let wants = wants_at(self, low);
        self.admit(&check, body, &asked, &wants, low).with("would_refuse", Value::Null)
    }

    pub fn may_not_ask(&self, user: &str) -> bool {
        self.barred(user).is_some()
    }

    /// Row 5 of the refusals: who may not ask at all.
    fn barred(&self, user: &str) -> Option<Expected> {
        let entry = self.user(user);
        if entry.suspended {
            return Some(Expected::problem(403, "user_suspended"));
        }
        let strict = self.plan(user).0.requires_verified && !entry.verified;
        strict.then(|| Expected::problem(403, "user_unverified"))
    }

    fn read_check(&self, body: &Value) -> Check {
        let text = |name: &str| body.get(name).and_then(Value::as_str).map(str::to_owned);
        let number = |name: &str| body.get(name).and_then(Value::as_i64).map(i128::from);
        let user = text("user").expect("a check has a user");
        let cap = self.plan(&user).0.max_output.map(|cap| cap.min(self.max_tokens_per_call));
        let dry_run = body.get("dry_run").and_then(Value::as_bool).unwrap_or(false);
        Check {
            request_id: text("request_id").filter(|_| !dry_run),
            model: text("model"),
            feature: text("feature"),
            bulk: text("priority").as_deref() == Some("bulk"),
            input: number("input_tokens").unwrap_or(0),
            output: number("max_output_tokens").or(cap).unwrap_or(0),
            output_min: number("min_output_tokens"),
            lease_ms: number("lease_seconds").map_or(600_000, |s| s as Ms * 1000),
            dry_run,
            extra: body
                .get("amounts")
                .and_then(Value::as_object)
                .map(|o| o.iter().map(|(m, n)| (m.clone(), i128::from(n.as_i64().expect("whole")))).collect())
                .unwrap_or_default(),
            user,
        }
    }

    /// A request id that is known already: the hold again, or a word that it cannot be.
    fn known_request(&self, check: &Check, body: &Value) -> Option<Expected> {
        let id = check.request_id.clone()?;
        let (before, no) = self.by_request.get(&(check.user.clone(), id))?;
        if *before != comparable(body) {
            return Some(Expected::problem(422, "request_id_reused"));
        }
        let hold = &self.holds[*no];
        if !matches!(hold.state, State::Held | State::InDoubt(_)) {
            let mut reply = Expected::problem(409, "already_finished").with("hold", self.hold_view(*no));
            reply.hold = Some(*no);
            return Some(reply);
        }
        let mut granted = hold.granted.clone();
        granted.as_object_mut().expect("an object").remove("final");
        // Whether an extend since then counts as granted is left open.
        granted["max_output_tokens"] = json!({"$any": [granted["max_output_tokens"], int(hold.output)]});
        let mut reply = Expected::new(
            200,
            json!({
                "decision": "allow",
                "hold": self.hold_view(*no),
                "granted": granted,
                "limits": self.rows_of_hold(*no),
            }),
        );
        reply.headers = vec![("idempotency-replayed", Some("true".to_owned()))];
        reply.hold = Some(*no);
        Some(reply)
    }

    fn over_caps(&self, check: &Check, body: &Value) -> Option<Expected> {
        let sheet = self.plan(&check.user).0;
        let bound = |cap: Option<i128>| cap.unwrap_or(i128::MAX).min(self.max_tokens_per_call);
        if check.input > bound(sheet.max_input) {
            return Some(Expected::problem(413, "input_too_large").with("max", int(bound(sheet.max_input))));
        }
        let said = body.get("max_output_tokens").is_some();
        if said && check.output > bound(sheet.max_output) {
            return Some(
                Expected::problem(413, "output_too_large").with("max", int(bound(sheet.max_output))),
            );
        }
        None
    }

    /// Shadow limits count what they would have refused; of a call refused anyway it is open.
    fn count_shadows(&mut self, wants: &[Want], check: &Check, barred: bool) {
        if check.dry_run {
            return;
        }
        let refused = barred || self.refusal(wants).is_some();
        for want in wants.iter().filter(|w| w.asked.limit.enforce == Enforce::Shadow) {
            let mut alone = want.clone();
            alone.asked.limit.enforce = Enforce::Hard;
            if self.refusal(&[alone]).is_some() {
                let entry = self.would_refuse.entry(want.asked.key.clone()).or_default();
                entry.0 += u64::from(!refused);
                entry.1 += 1;
            }
        }
    }

    fn admit(
        &mut self,
        check: &Check,
        body: &Value,
        asked: &[Asked],
        wants: &[Want],
        output: i128,
    ) -> Expected {
        let (plan, version) = self.plan(&check.user);
        let (plan, version, weight_ppm, output_cap) =
            (plan.id.clone(), version, plan.weight_ppm, plan.max_output);
        if !check.dry_run {
            self.know(&check.user);
        }
        let last = self.nothing_left(wants);
        let granted = json!({
            "input_tokens": int(check.input),
            "max_output_tokens": int(output),
            "final": if last { json!(true) } else { Value::Null },
        });
        let mut reply = Expected::new(
            200,
            json!({"decision": "allow", "granted": granted, "plan": {"id": plan, "version": version}}),
        );
        if check.dry_run {
            reply.body["hold"] = Value::Null;
            reply.body["limits"] = self.rows(asked);
            return reply;
        }
        let no = self.holds.len();
        let expires = self.now + check.lease_ms.min(self.max_hold_ms);
        let receipts = wants.iter().map(|w| self.take(w, no, expires)).collect();
        self.holds.push(Hold {
            user: check.user.clone(),
            org: self.user(&check.user).org,
            request_id: check.request_id.clone(),
            model: check.model.clone(),
            feature: check.feature.clone(),
            created: self.now,
            expires,
            lease_ms: check.lease_ms,
            state: State::Held,
            input: check.input,
            output,
            amounts: check.extra.clone(),
            receipts,
            progress: 0,
            weight_ppm,
            output_cap,
            late: false,
            granted,
            settled: None,
            counted: None,
            resolved: None,
            extends: Default::default(),
        });
        if let Some(id) = &check.request_id {
            self.by_request.insert((check.user.clone(), id.clone()), (comparable(body), no));
        }
        merge(
            &mut reply.body,
            json!({"hold": self.hold_view(no), "limits": self.rows(asked), "warnings": self.warnings(asked)}),
        );
        reply.headers = vec![("idempotency-replayed", None)];
        reply.hold = Some(no);
        reply
    }

    /// Whether some hard window of user, org or tenant has nothing left once these are taken.
    fn nothing_left(&self, wants: &[Want]) -> bool {
        wants.iter().any(|w| {
            let (Cell::Window(window), Kind::Window { limit, .. }) =
                (self.cell(&w.asked), w.asked.limit.kind)
            else {
                return false;
            };
            let book = window.book(window.running(self.now));
            let hard = w.asked.limit.enforce == Enforce::Hard && w.asked.limit.scope != Scope::Pool;
            hard && w.amount > 0 && book.used + book.held + w.amount >= limit + w.asked.granted
        })
    }

    /// Takes a want for a hold and writes the receipt.
    fn take(&mut self, want: &Want, no: HoldNo, expires: Ms) -> Receipt {
        let (now, limit, amount) = (self.now, want.asked.limit.clone(), want.amount);
        let held = holding(&limit.meter);
        let mut window = None;
        let cell = self.cell_mut(&want.asked);
        match cell {
            Cell::Bucket(bucket) => {
                bucket.refill = refill_of(&limit);
                bucket.take(amount, held.then_some((no, expires)), limit.number());
            }
            Cell::Window(cell) => {
                window = if amount > 0 { Some(cell.open(now)) } else { cell.running(now) };
                if let (Some(span), true) = (window, amount > 0) {
                    add(cell.book_mut(span), held, amount);
                }
            }
            Cell::Slots(leases) => {
                leases.insert(no, expires);
            }
        }
        self.cells.get_mut(&want.asked.key).expect("just there").1 = limit.clone();
        Receipt { key: want.asked.key.clone(), limit, reserved: amount, window, kept: want.asked.kept }
    }

    /// The highest threshold that each window has reached.
    fn warnings(&self, asked: &[Asked]) -> Value {
        let mut list = Vec::new();
        for a in asked.iter().filter(|a| a.limit.enforce != Enforce::Shadow) {
            let (Cell::Window(window), Kind::Window { limit, .. }) = (self.cell(a), a.limit.kind) else {
                continue;
            };
            let book = window.book(window.running(self.now));
            let spoken_for = book.used + book.held;
            let limit = limit + a.granted;
            let reached = a.limit.warn_at_ppm.iter().filter(|t| spoken_for * 1_000_000 >= **t * limit).max();
            if let (Some(reached), true) = (reached, limit > 0) {
                // Five decimals, half up.
                let ratio = (spoken_for * 200_000 + limit).div_euclid(2 * limit);
                list.push(json!({
                    "limit": a.limit.name,
                    "ratio": *reached as f64 / 1e6,
                    "used_ratio": ratio as f64 / 1e5,
                }));
            }
        }
        json!(list)
    }
}

/// Requests and named amounts are used at once, tokens and credits held first.
pub fn add(book: &mut Book, held: bool, amount: i128) {
    if held {
        book.held += amount;
    } else {
        book.used += amount;
    }
}

/// A body as replays are compared: without what does not change what is asked for.
fn comparable(body: &Value) -> Value {
    let mut same = body.clone();
    let fields = same.as_object_mut().expect("a body is an object");
    for skipped in ["wait_ms", "lease_seconds", "dry_run"] {
        fields.remove(skipped);
    }
    for (name, default) in [("input_tokens", json!(0)), ("priority", json!("interactive"))] {
        fields.entry(name).or_insert(default);
    }
    same
}
