//! The extend: a new lease, more output, and news of progress.

use serde_json::Value;

use super::calendar::Ms;
use super::cells::{Cell, HoldNo};
use super::check::add;
use super::expect::Expected;
use super::judge::Want;
use super::sheet::{Kind, Scope};
use super::view::int;
use super::{Oracle, Receipt, State, holding};

impl Oracle {
    /// Predicts the reply to a well-formed extend; `key` is the `Idempotency-Key`.
    pub fn extend(&mut self, no: HoldNo, body: &Value, key: Option<&str>) -> Expected {
        if !matches!(self.holds[no].state, State::Held | State::InDoubt(_)) {
            return self.already_finished(no);
        }
        if let Some(before) = key.and_then(|k| self.holds[no].extends.get(k)) {
            return if before == body {
                self.finished(no)
            } else {
                Expected::problem(422, "request_id_reused")
            };
        }
        if self.holds[no].state != State::Held {
            return Expected::problem(409, "lease_ended");
        }
        let number = |name: &str| body.get(name).and_then(Value::as_i64);
        let more = i128::from(number("add_output_tokens").unwrap_or(0));
        if more > 0
            && let Some(reply) = self.reserve_more(no, more)
        {
            return reply;
        }
        let (now, max_hold_ms) = (self.now, self.max_hold_ms);
        let hold = &mut self.holds[no];
        hold.lease_ms = number("lease_seconds").map_or(hold.lease_ms, |s| s * 1000);
        hold.expires = hold.expires.max((now + hold.lease_ms).min(hold.created + max_hold_ms));
        hold.progress = hold.progress.max(i128::from(number("output_tokens_so_far").unwrap_or(0)));
        if let Some(key) = key {
            hold.extends.insert(key.to_owned(), body.clone());
        }
        let (expires, receipts) = (hold.expires, hold.receipts.clone());
        for receipt in receipts {
            self.renew(no, &receipt, expires);
        }
        self.finished(no)
    }

    fn renew(&mut self, no: HoldNo, receipt: &Receipt, expires: Ms) {
        match &mut self.cells.get_mut(&receipt.key).expect("a receipt has a cell").0 {
            Cell::Bucket(bucket) => {
                if let Some((_, end)) = bucket.held.get_mut(&no) {
                    *end = expires;
                }
            }
            Cell::Slots(leases) => {
                leases.insert(no, expires);
            }
            Cell::Window(_) => {}
        }
    }

    /// Asks for more output and takes it; the refusal, if there is one.
    fn reserve_more(&mut self, no: HoldNo, more: i128) -> Option<Expected> {
        let hold = self.holds[no].clone();
        let cap = hold.output_cap.unwrap_or(i128::MAX).min(self.max_tokens_per_call);
        if hold.output + more > cap {
            return Some(Expected::problem(413, "output_too_large").with("max", int(cap)));
        }
        let before = self.demand(hold.model.as_deref(), hold.input, hold.output, &hold.amounts);
        let after = self.demand(hold.model.as_deref(), hold.input, hold.output + more, &hold.amounts);
        let present = self.limits_within(&hold.user, hold.org.clone());
        let extra = |receipt: &Receipt| match receipt.limit.kind {
            Kind::Slots { .. } => 0,
            _ => {
                after.get(&receipt.limit.meter).unwrap_or(&0) - before.get(&receipt.limit.meter).unwrap_or(&0)
            }
        };
        // What grants still give to a window that has ended is left open.
        self.blurred |= hold.receipts.iter().any(|r| {
            let granted = self.grants_of(&r.key).iter().any(|g| g.limit == r.limit.name);
            granted && r.window.is_some_and(|span| span.1 <= self.now)
        });
        let mut wants = Vec::new();
        for receipt in &hold.receipts {
            let asked = match receipt.limit.scope {
                Scope::Pool => self.present_pool_limit(receipt),
                _ => present.iter().find(|a| a.key == receipt.key).cloned(),
            };
            // A limit that is gone from the plan is charged, not asked.
            let Some(asked) = asked else { continue };
            let amount = extra(receipt);
            let window = receipt.window.map(Some);
            wants.push(Want { asked, amount, sum: receipt.reserved + amount, window });
        }
        if let Some(reply) = self.refusal(&wants) {
            return Some(reply);
        }
        let receipts =
            hold.receipts.iter().map(|r| self.charge_more(no, r, extra(r), hold.expires)).collect();
        let hold = &mut self.holds[no];
        hold.receipts = receipts;
        hold.output += more;
        None
    }

    fn charge_more(&mut self, no: HoldNo, receipt: &Receipt, amount: i128, expires: Ms) -> Receipt {
        let mut receipt = receipt.clone();
        if amount == 0 {
            return receipt;
        }
        receipt.reserved += amount;
        let now = self.now;
        match &mut self.cells.get_mut(&receipt.key).expect("a receipt has a cell").0 {
            Cell::Bucket(bucket) => bucket.take(amount, Some((no, expires)), receipt.limit.number()),
            Cell::Slots(_) => {}
            Cell::Window(window) => {
                let span = receipt.window.unwrap_or_else(|| window.open(now));
                window.begin(span, now);
                add(window.book_mut(span), holding(&receipt.limit.meter), amount);
                receipt.window = Some(span);
            }
        }
        receipt
    }
}
