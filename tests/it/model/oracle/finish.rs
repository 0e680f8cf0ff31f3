//! How a hold ends: settle, release, unknown usage, and what comes after the end.

use serde_json::{Value, json};

use super::cells::{Cell, HoldNo};
use super::expect::Expected;
use super::sheet::{Amounts, DivCeil};
use super::{Oracle, Receipt, Settled, State, holding};

impl Oracle {
    /// Predicts the reply to a well-formed settle.
    pub fn settle(&mut self, no: HoldNo, body: &Value) -> Expected {
        if body.get("usage").and_then(Value::as_str) == Some("unknown") {
            return self.settle_unknown(no);
        }
        let number = |name: &str| body.get(name).and_then(Value::as_i64).map_or(0, i128::from);
        let (input, output) = (number("input_tokens"), number("output_tokens"));
        let cache_read = number("cache_read_tokens");
        let model = body.get("model").and_then(Value::as_str).map(str::to_owned);
        let hold = &self.holds[no];
        if matches!(hold.state, State::Resolved(_)) {
            return self.already_finished(no);
        }
        if let Some(before) = &hold.settled {
            let served = |model: &Option<String>| self.canonical(model.as_deref().or(hold.model.as_deref()));
            let equal = (before.input, before.output, before.cache_read, served(&before.model))
                == (input, output, cache_read, served(&model));
            return if equal { self.finished(no) } else { self.already_finished(no) };
        }
        if matches!(hold.state, State::Released) {
            return self.already_finished(no);
        }
        self.end_with(no, body)
    }

    /// Ends a hold with reported figures, whatever its state.
    pub fn end_with(&mut self, no: HoldNo, body: &Value) -> Expected {
        let number = |name: &str| body.get(name).and_then(Value::as_i64).map_or(0, i128::from);
        let (input, output) = (number("input_tokens"), number("output_tokens"));
        let (cache_read, cache_write) = (number("cache_read_tokens"), number("cache_write_tokens"));
        let model = body.get("model").and_then(Value::as_str).map(str::to_owned);
        let hold = &self.holds[no];
        if input > self.max_tokens_per_call || output > self.max_tokens_per_call {
            return Expected::problem(422, "usage_implausible");
        }
        let priced = model.clone().or_else(|| hold.model.clone());
        let mut counted =
            self.counted(hold.weight_ppm, priced.as_deref(), [input, output, cache_read, cache_write]);
        for (meter, reserved) in hold.amounts.clone() {
            let said =
                body.get("amounts").and_then(|a| a.get(&meter)).and_then(Value::as_i64).map(i128::from);
            counted.insert(meter, said.unwrap_or(reserved));
        }
        let late = !matches!(hold.state, State::Held);
        self.correct(no, &counted);
        let hold = &mut self.holds[no];
        hold.state = State::Settled;
        hold.late = late;
        hold.settled = Some(Settled { input, output, cache_read, model, counted, body: body.clone() });
        self.finished(no)
    }

    /// What the limits count of reported figures: cache reads by their weight, prices per kind of token.
    pub fn counted(&self, weight_ppm: i128, model: Option<&str>, usage: [i128; 4]) -> Amounts {
        let [input, output, cache_read, cache_write] = usage;
        let prices = self.prices(model);
        let weighted = input - cache_read + (cache_read * weight_ppm).div_ceil_by(1_000_000);
        let micro = (input - cache_read - cache_write) * prices.input
            + cache_read * prices.cache_read
            + cache_write * prices.cache_write
            + output * prices.output;
        let mut counted = self.demand(None, weighted, output, &Amounts::new());
        counted.insert("credits".to_owned(), micro.div_ceil_by(1_000_000));
        counted
    }

    fn settle_unknown(&mut self, no: HoldNo) -> Expected {
        match self.holds[no].state {
            State::Held => {
                self.leave(no);
                self.holds[no].state = State::InDoubt(self.now);
                self.finished(no)
            }
            State::InDoubt(_) => self.finished(no),
            _ => self.already_finished(no),
        }
    }

    /// A hold in doubt keeps its amounts, but neither its place nor its stop on the refill.
    fn leave(&mut self, no: HoldNo) {
        for receipt in self.holds[no].receipts.clone() {
            match &mut self.cells.get_mut(&receipt.key).expect("a receipt has a cell").0 {
                Cell::Bucket(bucket) => drop(bucket.held.remove(&no)),
                Cell::Slots(leases) => drop(leases.remove(&no)),
                Cell::Window(_) => {}
            }
        }
    }

    pub fn release(&mut self, no: HoldNo) -> Expected {
        let hold = &self.holds[no];
        match hold.state {
            State::Released => return self.finished(no),
            State::Settled | State::Resolved(_) => return self.already_finished(no),
            _ if hold.progress > 0 => return Expected::problem(409, "has_progress"),
            _ => {}
        }
        self.correct(no, &Amounts::new());
        self.holds[no].state = State::Released;
        self.finished(no)
    }

    pub fn get_hold(&self, no: HoldNo) -> Expected {
        Expected::new(200, json!({"hold": self.hold_view(no)}))
    }

    pub fn find_hold(&self, user: &str, request_id: &str) -> Expected {
        let known = self.by_request.get(&(user.to_owned(), request_id.to_owned()));
        known.map_or_else(|| Expected::problem(404, "not_found"), |(_, no)| self.get_hold(*no))
    }

    pub fn finished(&self, no: HoldNo) -> Expected {
        let mut reply =
            Expected::new(200, json!({"hold": self.hold_view(no), "limits": self.rows_of_hold(no)}));
        reply.hold = Some(no);
        reply
    }

    pub fn already_finished(&self, no: HoldNo) -> Expected {
        Expected::problem(409, "already_finished").with("hold", self.hold_view(no))
    }

    /// Puts right every cell that the hold took from, in the window it took from.
    pub fn correct(&mut self, no: HoldNo, counted: &Amounts) {
        let created = self.holds[no].created;
        let before = self.holds[no].counted.replace(counted.clone());
        let mut receipts: Vec<Receipt> = self.holds[no].receipts.clone();
        for receipt in &mut receipts {
            let of = |amounts: &Amounts| amounts.get(&receipt.limit.meter).copied().unwrap_or(0);
            let actual = of(counted);
            let stood = before.as_ref().map_or(receipt.reserved, of);
            match &mut self.cells.get_mut(&receipt.key).expect("a receipt has a cell").0 {
                Cell::Bucket(bucket) => bucket.correct(no, stood, actual, receipt.limit.number()),
                Cell::Slots(leases) => drop(leases.remove(&no)),
                Cell::Window(window) => {
                    if receipt.window.is_none() && actual > 0 {
                        receipt.window = Some(window.open(created));
                    }
                    let Some(span) = receipt.window else { continue };
                    if actual > 0 {
                        window.begin(span, self.now);
                    }
                    let book = window.book_mut(span);
                    if holding(&receipt.limit.meter) && before.is_none() {
                        book.held -= receipt.reserved;
                        book.used += actual;
                    } else {
                        book.used += actual - stood;
                    }
                }
            }
        }
        self.holds[no].receipts = receipts;
    }
}
