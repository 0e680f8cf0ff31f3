//! A model vendor that enforces its limits the way real ones do, on a clock of one's own.
//!
//! It is no server: whoever drives it says what time it is, so a day passes in seconds. What it
//! tells comes in the words of the vendor it stands for.

use std::collections::VecDeque;

use serde_json::{Value, json};

use crate::model::oracle::calendar::{Ms, wire};

/// Whose headers and bodies it answers with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    OpenAi,
    Anthropic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    Requests,
    Input,
    Output,
    Total,
}

/// How a rate is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Refilled all the time; `burst` at once.
    Bucket { burst: i64 },
    /// Whatever was counted within the last window.
    Sliding,
}

/// What a call counts as on output and total.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    /// `max_output` as of its start; nothing comes back.
    Reserved,
    /// What was generated, when it ends.
    Actual,
}

/// One of its rates: `limit` per `window_ms`.
#[derive(Debug, Clone)]
pub struct Rate {
    pub what: What,
    pub limit: i64,
    pub window_ms: i64,
    pub how: How,
}

impl Rate {
    pub fn per_minute(what: What, limit: i64, how: How) -> Self {
        Self { what, limit, window_ms: 60_000, how }
    }
}

/// What a vendor allows.
#[derive(Debug, Clone)]
pub struct Rules {
    pub style: Style,
    pub rates: Vec<Rate>,
    pub slots: Option<usize>,
    pub counts: Counts,
    /// Whether a call that it rejects counts as a request.
    pub counts_rejected: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub input: i64,
    pub max_output: i64,
}

/// A 429 as it comes over the wire.
#[derive(Debug, Clone)]
pub struct Rejected {
    pub headers: Vec<(String, String)>,
    pub body: Value,
    pub wait_ms: Ms,
}

pub struct Vendor {
    rules: Rules,
    stocks: Vec<Stock>,
    in_flight: usize,
    pub sends: usize,
    pub rejected: usize,
    pub most_in_flight: usize,
}

/// What is counted on one rate.
enum Stock {
    /// Level in 1/window of a unit, so that a millisecond refills `limit` of them.
    Bucket {
        level: i64,
        at: Ms,
    },
    Sliding {
        taken: VecDeque<(Ms, i64)>,
        sum: i64,
    },
}

impl Vendor {
    pub fn new(rules: Rules, now: Ms) -> Self {
        let stock = |rate: &Rate| match rate.how {
            How::Bucket { burst } => Stock::Bucket { level: burst * rate.window_ms, at: now },
            How::Sliding => Stock::Sliding { taken: VecDeque::new(), sum: 0 },
        };
        let stocks = rules.rates.iter().map(stock).collect();
        Self { rules, stocks, in_flight: 0, sends: 0, rejected: 0, most_in_flight: 0 }
    }

    /// A call arrives: it runs from now on, or is rejected.
    pub fn begin(&mut self, call: Call, now: Ms) -> Result<(), Rejected> {
        self.sends += 1;
        let counts = self.rules.counts;
        let asked = |what| match (what, counts) {
            (What::Requests, _) => 1,
            (What::Input, _) | (What::Total, Counts::Actual) => call.input,
            (What::Output, Counts::Reserved) => call.max_output,
            // What is generated is not known yet: there must be some room.
            (What::Output, Counts::Actual) => 1,
            (What::Total, Counts::Reserved) => call.input + call.max_output,
        };
        let waits = self.rules.rates.iter().zip(&mut self.stocks);
        let wait = waits.map(|(rate, stock)| stock.wait(rate, asked(rate.what), now)).max().unwrap_or(0);
        let is_full = self.rules.slots.is_some_and(|slots| self.in_flight >= slots);
        if wait > 0 || is_full {
            self.rejected += 1;
            if self.rules.counts_rejected {
                self.count(|what| i64::from(what == What::Requests), now);
            }
            return Err(self.rejection(wait.max(if is_full { 1000 } else { 0 }), now));
        }
        self.count(
            |what| if (what, counts) == (What::Output, Counts::Actual) { 0 } else { asked(what) },
            now,
        );
        self.in_flight += 1;
        self.most_in_flight = self.most_in_flight.max(self.in_flight);
        Ok(())
    }

    /// A call that ran ends with this output.
    pub fn end(&mut self, output: i64, now: Ms) {
        self.in_flight -= 1;
        if self.rules.counts == Counts::Actual {
            self.count(|what| if matches!(what, What::Output | What::Total) { output } else { 0 }, now);
        }
    }

    /// How full the fullest of its sliding limits is; buckets are as empty as can be at 1.
    pub fn filled(&mut self, now: Ms) -> f64 {
        let shares = self.rules.rates.iter().zip(&mut self.stocks).map(|(rate, stock)| {
            let whole = if let How::Bucket { burst } = rate.how { burst } else { rate.limit };
            1.0 - stock.left(rate, now).max(0) as f64 / whole as f64
        });
        shares.fold(0.0, f64::max)
    }

    fn count(&mut self, amount: impl Fn(What) -> i64, now: Ms) {
        for (rate, stock) in self.rules.rates.iter().zip(&mut self.stocks) {
            stock.take(rate, amount(rate.what), now);
        }
    }

    fn rejection(&mut self, wait_ms: Ms, now: Ms) -> Rejected {
        let mut headers = self.told(wait_ms, now);
        let seconds = (wait_ms + 999) / 1000;
        let message = "Rate limit reached";
        let body = match self.rules.style {
            Style::OpenAi => {
                headers.push(("retry-after".into(), seconds.to_string()));
                headers.push(("retry-after-ms".into(), wait_ms.to_string()));
                json!({"error": {"message": message, "type": "tokens", "param": null, "code": "rate_limit_exceeded"}})
            }
            Style::Anthropic => {
                headers.push(("retry-after".into(), seconds.to_string()));
                json!({"type": "error", "error": {"type": "rate_limit_error", "message": message}})
            }
        };
        Rejected { headers, body, wait_ms }
    }

    /// Limits, what is left of them and when they are whole again.
    fn told(&mut self, wait_ms: Ms, now: Ms) -> Vec<(String, String)> {
        let style = self.rules.style;
        let mut headers = Vec::new();
        for (rate, stock) in self.rules.rates.iter().zip(&mut self.stocks) {
            let left = stock.left(rate, now).max(0);
            let reset_ms = stock.whole_in(rate, now).max(wait_ms);
            let (family, name) = match (style, rate.what) {
                (Style::Anthropic, What::Requests) => ("anthropic-ratelimit", "requests"),
                (Style::Anthropic, What::Input) => ("anthropic-ratelimit", "input-tokens"),
                (Style::Anthropic, What::Output) => ("anthropic-ratelimit", "output-tokens"),
                (Style::Anthropic, What::Total) => ("anthropic-ratelimit", "tokens"),
                (_, What::Requests) => ("x-ratelimit", "requests"),
                (_, _) => ("x-ratelimit", "tokens"),
            };
            let reset = match style {
                Style::OpenAi => format!("{}.{:03}s", reset_ms / 1000, reset_ms % 1000),
                Style::Anthropic => wire(now + reset_ms),
            };
            let fields =
                [("limit", rate.limit.to_string()), ("remaining", left.to_string()), ("reset", reset)];
            for (field, value) in fields {
                let header = match style {
                    Style::Anthropic => format!("{family}-{name}-{field}"),
                    _ => format!("{family}-{field}-{name}"),
                };
                headers.push((header, value));
            }
        }
        headers
    }
}

impl Stock {
    /// How long until `amount` is there; 0: it is.
    fn wait(&mut self, rate: &Rate, amount: i64, now: Ms) -> Ms {
        self.bring_to(rate, now);
        match self {
            Self::Bucket { level, .. } => {
                let missing = amount * rate.window_ms - *level;
                if missing <= 0 { 0 } else { (missing + rate.limit - 1) / rate.limit }
            }
            Self::Sliding { taken, sum } => {
                let mut over = *sum + amount - rate.limit;
                let mut wait = 0;
                for (at, amount) in taken.iter() {
                    if over <= 0 {
                        break;
                    }
                    over -= amount;
                    wait = at + rate.window_ms - now;
                }
                wait
            }
        }
    }

    fn take(&mut self, rate: &Rate, amount: i64, now: Ms) {
        self.bring_to(rate, now);
        match self {
            _ if amount == 0 => {}
            Self::Bucket { level, .. } => *level -= amount * rate.window_ms,
            Self::Sliding { taken, sum } => {
                taken.push_back((now, amount));
                *sum += amount;
            }
        }
    }

    fn left(&mut self, rate: &Rate, now: Ms) -> i64 {
        self.bring_to(rate, now);
        match self {
            Self::Bucket { level, .. } => level.div_euclid(rate.window_ms),
            Self::Sliding { sum, .. } => rate.limit - *sum,
        }
    }

    fn whole_in(&mut self, rate: &Rate, now: Ms) -> Ms {
        self.bring_to(rate, now);
        match (self, rate.how) {
            (Self::Bucket { level, .. }, How::Bucket { burst }) => {
                (burst * rate.window_ms - *level + rate.limit - 1) / rate.limit
            }
            (Self::Sliding { taken, .. }, _) => taken.back().map_or(0, |(at, _)| at + rate.window_ms - now),
            (Self::Bucket { .. }, How::Sliding) => 0,
        }
    }

    fn bring_to(&mut self, rate: &Rate, now: Ms) {
        match (self, rate.how) {
            (Self::Bucket { level, at }, How::Bucket { burst }) => {
                *level = (*level + (now - *at).max(0) * rate.limit).min(burst * rate.window_ms);
                *at = now;
            }
            (Self::Sliding { taken, sum }, _) => {
                while let Some((at, amount)) = taken.front().copied() {
                    if at + rate.window_ms > now {
                        break;
                    }
                    *sum -= amount;
                    taken.pop_front();
                }
            }
            (Self::Bucket { .. }, How::Sliding) => {}
        }
    }
}
