//! Whether limits let an amount pass, and the refusal when they do not (CONTRACT 4, 13.1-13.7).

use serde_json::{Value, json};

use super::calendar::{Ms, wire};
use super::cells::Cell;
use super::expect::Expected;
use super::sheet::{Amounts, DivCeil, Enforce, Kind, Period, Scope};
use super::view::{int, opt_wire};
use super::window::Span;
use super::{Account, Asked, Oracle, Receipt};

/// One limit and what is wanted of it; an extend looks at the receipt's window.
#[derive(Clone, Debug)]
pub struct Want {
    pub asked: Asked,
    pub amount: i128,
    /// What must fit the capacity: for an extend the sum, else the amount.
    pub sum: i128,
    pub window: Option<Option<Span>>,
}

#[derive(Clone, Debug)]
enum Wait {
    /// Row 7 of the refusals: the instant of the reset, none if there is none.
    Reset(Option<Ms>),
    /// Row 8: milliseconds.
    Retry(Ms),
}

#[derive(Clone, Debug)]
struct Failing {
    want: Want,
    code: &'static str,
    remaining: i128,
    would_fit: i128,
    wait: Wait,
}

impl Oracle {
    /// What a call takes of each meter. Credits are summed and rounded up once.
    pub fn demand(&self, model: Option<&str>, input: i128, output: i128, extra: &Amounts) -> Amounts {
        let prices = self.prices(model);
        let credits = (input * prices.input + output * prices.output).div_ceil_by(1_000_000);
        let mut amounts: Amounts = [
            ("requests", 1),
            ("input_tokens", input),
            ("output_tokens", output),
            ("total_tokens", input + output),
            ("credits", credits),
        ]
        .into_iter()
        .map(|(m, n)| (m.to_owned(), n))
        .collect();
        amounts.extend(extra.clone());
        amounts
    }

    pub fn wants(&self, asked: &[Asked], amounts: &Amounts) -> Vec<Want> {
        asked
            .iter()
            .map(|a| {
                let amount = a.limit.demand(amounts);
                Want { asked: a.clone(), amount, sum: amount, window: None }
            })
            .collect()
    }

    /// The most that this limit alone lets pass now, in its own meter.
    fn available(&self, want: &Want) -> i128 {
        let asked = &want.asked;
        match (self.cell(asked), asked.limit.kind) {
            (Cell::Bucket(bucket), Kind::Bucket { capacity, .. }) => {
                bucket.floor_tokens(capacity) - asked.kept
            }
            (Cell::Window(window), Kind::Window { limit, .. }) => {
                let book = window.book(want.window.unwrap_or_else(|| window.running(self.now)));
                limit + asked.granted - book.used - book.held
            }
            (Cell::Slots(leases), Kind::Slots { limit }) => limit - asked.kept - leases.len() as i128,
            _ => unreachable!("a cell is of its limit's kind"),
        }
    }

    /// Whether every hard limit from which something is wanted has it.
    pub fn all_fit(&self, wants: &[Want]) -> bool {
        wants.iter().all(|w| !is_asked(w) || w.amount <= self.available(w))
    }

    /// The refusal for these wants, or none if they all fit.
    pub fn refusal(&self, wants: &[Want]) -> Option<Expected> {
        if let Some(never) = self.never_fits(wants) {
            return Some(never);
        }
        let failing: Vec<Failing> = wants
            .iter()
            .filter(|w| is_asked(w) && w.amount > self.available(w))
            .map(|w| self.failing(w))
            .collect();
        (!failing.is_empty()).then(|| self.refused(&failing))
    }

    /// 413 when more is wanted than a hard limit can ever give. Limits of 0 count as exhausted.
    fn never_fits(&self, wants: &[Want]) -> Option<Expected> {
        let never: Vec<(&Want, i128)> = wants
            .iter()
            .filter(|w| is_asked(w) && w.asked.limit.number() > 0)
            .map(|w| (w, w.asked.limit.number() + w.asked.granted - w.asked.kept))
            .filter(|(w, most)| w.sum > *most)
            .collect();
        let (decides, most) =
            never.iter().min_by_key(|(w, most)| (*most, std::cmp::Reverse(w.asked.limit.period_rank())))?;
        let names: Vec<&str> = never.iter().map(|(w, _)| w.asked.limit.name.as_str()).collect();
        Some(
            Expected::problem(413, "exceeds_capacity")
                .with("limit", json!(decides.asked.limit.name))
                .with("max", int(*most))
                .with("violated-policies", json!(names))
                .with("violations", names.iter().map(|n| json!({"name": n})).collect()),
        )
    }

    /// What a bucket's figures are known to become: when, capacity, refill.
    pub fn figures_to_come(&self, asked: &Asked) -> Vec<(Ms, i128, i128)> {
        let mut instants = match &asked.key.0 {
            Account::User(name) => self.users.get(name).map_or_else(Vec::new, |user| {
                user.standing.instants().into_iter().chain(user.pending.iter().map(|m| m.0)).collect()
            }),
            Account::Org(name) => self
                .orgs
                .get(name)
                .filter(|org| org.plan.is_some())
                .map_or_else(Vec::new, |org| org.instants().into_iter().collect()),
            _ => Vec::new(),
        };
        instants.sort_unstable();
        instants.dedup();
        let at_that_time = |at: Ms| {
            let mut world = self.clone();
            world.holds.clear();
            world.set_clock(at);
            let limits = match &asked.key.0 {
                Account::User(name) => world.plan_limits(name),
                Account::Org(name) => world.org_limits(name),
                _ => Vec::new(),
            };
            let same = limits.into_iter().find(|known| known.key == asked.key)?;
            match same.limit.kind {
                Kind::Bucket { capacity, refill } => Some((at, capacity, refill)),
                _ => None,
            }
        };
        instants.into_iter().filter(|at| *at > self.now).filter_map(at_that_time).collect()
    }

    fn failing(&self, want: &Want) -> Failing {
        let asked = &want.asked;
        let limit = &asked.limit;
        let would_fit = self.available(want).max(0);
        let (code, wait, remaining) = match (self.cell(asked), limit.kind) {
            (_, Kind::Bucket { capacity: 0, .. } | Kind::Slots { limit: 0 }) => {
                ("quota_exhausted", Wait::Reset(None), 0)
            }
            (Cell::Bucket(bucket), Kind::Bucket { capacity, refill }) => {
                let ready = bucket
                    .ready_at((capacity, refill), &self.figures_to_come(asked), want.amount + asked.kept)
                    .expect("it fits an empty bucket");
                (
                    rate_code(limit.scope, &limit.meter),
                    Wait::Retry(ready - self.now),
                    bucket.floor_tokens(capacity),
                )
            }
            (Cell::Slots(leases), Kind::Slots { limit: most }) => {
                let mut ends: Vec<Ms> = leases.values().copied().collect();
                ends.sort_unstable();
                // So many must end until one place (beyond what bulk leaves) is free.
                let must_end = leases.len() as i128 + 1 + asked.kept - most;
                let end = ends[usize::try_from(must_end).expect("at least one") - 1];
                let code = if limit.scope == Scope::Pool {
                    "upstream_capacity_exceeded"
                } else {
                    "concurrency_exceeded"
                };
                (code, Wait::Retry(end - self.now), most - leases.len() as i128)
            }
            (Cell::Window(window), Kind::Window { limit: most, period }) => {
                let running = window.running(self.now);
                let span = want.window.unwrap_or(running);
                let over = want.window.is_some() && span != running;
                let resets = span.filter(|_| period != Period::Lifetime && !over).map(|s| s.1);
                let book = window.book(span);
                (period.exhausted_code(), Wait::Reset(resets), most + asked.granted - book.used - book.held)
            }
            _ => unreachable!("a cell is of its limit's kind"),
        };
        Failing { want: want.clone(), code, remaining: remaining.max(0), would_fit, wait }
    }

    fn refused(&self, failing: &[Failing]) -> Expected {
        let exhausted = failing.iter().filter(|f| matches!(f.wait, Wait::Reset(_))).reduce(|best, f| {
            let key = |f: &Failing| match f.wait {
                Wait::Reset(at) => (at.unwrap_or(Ms::MAX), f.want.asked.limit.period_rank()),
                Wait::Retry(_) => unreachable!(),
            };
            if key(f) > key(best) { f } else { best }
        });
        let names: Vec<&str> = failing.iter().map(|f| f.want.asked.limit.name.as_str()).collect();
        let pool_waits = failing.iter().any(|f| f.want.asked.limit.scope == Scope::Pool);
        let violations: Vec<Value> = failing.iter().map(violation).collect();
        let mut reply;
        if let Some(decides) = exhausted {
            let Wait::Reset(at) = decides.wait else { unreachable!() };
            reply = Expected::problem(self.denial_status, decides.code)
                .with("limit", json!(decides.want.asked.limit.name))
                .with("resets_at", at.map_or(Value::Null, |at| json!(wire(at))));
        } else {
            let decides = failing
                .iter()
                .reduce(|best, f| if retry(f) > retry(best) { f } else { best })
                .expect("something failed");
            reply = Expected::new(429, json!({"status": 429, "retryable": true}));
            if pool_waits {
                reply.pool_waits = true;
            } else {
                let wait = retry(decides);
                reply = reply
                    .with("code", json!(decides.code))
                    .with("limit", json!(decides.want.asked.limit.name))
                    .with("retry_after_ms", json!(wait));
                reply.headers = vec![
                    ("retry-after", Some(((wait + 999) / 1000).max(1).to_string())),
                    ("retry-after-ms", Some(wait.to_string())),
                    ("x-should-retry", Some((wait <= 60_000).to_string())),
                ];
            }
        }
        reply.with("violated-policies", json!(names)).with("violations", json!(violations))
    }

    /// The pool's limit by which a receipt is judged now, with what bulk leaves.
    pub fn present_pool_limit(&self, receipt: &Receipt) -> Option<Asked> {
        let Account::Pool(id) = &receipt.key.0 else { return None };
        let pool = self.pools.iter().find(|p| p.id == *id)?;
        let limit = pool.limits.iter().find(|l| l.identity == receipt.key.1)?;
        Some(Asked {
            limit: limit.clone(),
            key: receipt.key.clone(),
            rule: super::Rule { zone: self.zone.clone(), calendar: None },
            kept: receipt.kept,
            granted: 0,
        })
    }
}

/// A hard limit from which nothing is wanted is not asked.
fn is_asked(want: &Want) -> bool {
    want.amount > 0 && want.asked.limit.enforce == Enforce::Hard
}

fn retry(failing: &Failing) -> Ms {
    match failing.wait {
        Wait::Retry(ms) => ms,
        Wait::Reset(_) => unreachable!("only asked of waits"),
    }
}

fn violation(failing: &Failing) -> Value {
    let limit = &failing.want.asked.limit;
    let mut view = json!({
        "name": limit.name,
        "scope": limit.scope.word(),
        "kind": limit.kind_word(),
        "limit": int(limit.number()),
        "remaining": int(failing.remaining),
        "requested": int(failing.want.amount),
        "would_fit": int(failing.would_fit),
    });
    if !limit.meter.is_empty() {
        view["meter"] = json!(limit.meter);
    }
    match failing.wait {
        Wait::Reset(at) => view["resets_at"] = opt_wire(at),
        // A pool tells callers refused together successive moments, never too early ones.
        Wait::Retry(ms) if limit.scope == Scope::Pool => {
            view["retry_after_ms"] = json!({"$between": [ms, i64::MAX]})
        }
        Wait::Retry(ms) => view["retry_after_ms"] = json!(ms),
    }
    view
}

fn rate_code(scope: Scope, meter: &str) -> &'static str {
    match meter {
        _ if scope == Scope::Pool => "upstream_capacity_exceeded",
        "requests" => "request_rate_exceeded",
        "input_tokens" => "input_rate_exceeded",
        "output_tokens" => "output_rate_exceeded",
        "total_tokens" => "token_rate_exceeded",
        "credits" => "credit_rate_exceeded",
        other => panic!("the contract names no code for a bucket on {other}"),
    }
}
