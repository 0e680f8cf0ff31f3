//! Holds in doubt: the end of the lease, the tenant's rule, and an admin's word (13.19, 13.63).

use serde_json::{Value, json};

use super::calendar::{HOUR_MS, Ms};
use super::cells::HoldNo;
use super::expect::Expected;
use super::sheet::Amounts;
use super::view::{amounts_view, int};
use super::{Oracle, State};

/// What becomes of a hold in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Charge,
    Release,
    Progress,
    /// By an admin, with figures.
    Settle,
}

/// Which holds an admin means.
#[derive(Clone, Debug, Default)]
pub struct Which {
    pub user: Option<String>,
    pub feature: Option<String>,
    pub model: Option<String>,
    pub from: Option<Ms>,
    pub to: Option<Ms>,
}

impl Oracle {
    pub fn set_doubt_rule(&mut self, hours: Ms, then: Then) {
        self.in_doubt_ms = hours * HOUR_MS;
        self.in_doubt_then = then;
        for no in 0..self.holds.len() {
            self.age(no);
        }
    }

    /// When the hold's state changes by itself.
    pub fn next_age(&self, no: HoldNo) -> Option<Ms> {
        match self.holds[no].state {
            State::Held => Some(self.holds[no].expires),
            State::InDoubt(since) => Some(since + self.in_doubt_ms),
            _ => None,
        }
    }

    pub fn age(&mut self, no: HoldNo) {
        let hold = &mut self.holds[no];
        if hold.state == State::Held && self.now >= hold.expires {
            hold.state = State::InDoubt(hold.expires);
        }
        let State::InDoubt(since) = hold.state else { return };
        if self.now < since + self.in_doubt_ms {
            return;
        }
        let then = self.in_doubt_then;
        let counted = self.outcome(no, then);
        self.correct(no, &counted);
        self.holds[no].state = State::Ruled(then);
    }

    /// What the limits count of a hold that is ended without its caller.
    fn outcome(&self, no: HoldNo, then: Then) -> Amounts {
        let hold = &self.holds[no];
        match then {
            Then::Release => Amounts::new(),
            Then::Progress => {
                let usage = [hold.input, hold.progress, 0, 0];
                let mut counted = self.counted(hold.weight_ppm, hold.model.as_deref(), usage);
                counted.extend(hold.amounts.clone());
                counted
            }
            _ => self.demand(hold.model.as_deref(), hold.input, hold.output, &hold.amounts),
        }
    }

    /// Predicts `POST holds/{id}/resolve`.
    pub fn resolve(&mut self, no: HoldNo, body: &Value) -> Expected {
        let mut word = body.clone();
        word.as_object_mut().expect("an object").remove("reason");
        if let Some(before) = &self.holds[no].resolved {
            return if *before == word { self.finished(no) } else { self.already_finished(no) };
        }
        match self.holds[no].state {
            State::Held => return Expected::problem(409, "not_in_doubt"),
            State::InDoubt(_) | State::Ruled(_) => {}
            _ => return self.already_finished(no),
        }
        let then = match body["action"].as_str() {
            Some("charge") => Then::Charge,
            Some("release") => Then::Release,
            _ => Then::Settle,
        };
        if then == Then::Settle {
            word.as_object_mut().expect("an object").remove("action");
            let refused = self.end_with(no, &word);
            word["action"] = json!("settle");
            if refused.status != 200 {
                return refused;
            }
        } else {
            let counted = self.outcome(no, then);
            self.correct(no, &counted);
        }
        self.holds[no].state = State::Resolved(then);
        self.holds[no].resolved = Some(word);
        self.finished(no)
    }

    pub fn in_doubt(&self, which: &Which) -> Vec<HoldNo> {
        let fits = |wanted: &Option<String>, has: Option<&String>| wanted.is_none() || wanted.as_ref() == has;
        (0..self.holds.len())
            .filter(|no| {
                let hold = &self.holds[*no];
                matches!(hold.state, State::InDoubt(_))
                    && fits(&which.user, Some(&hold.user))
                    && fits(&which.feature, hold.feature.as_ref())
                    && (which.model.is_none()
                        || self.canonical(which.model.as_deref()) == self.canonical(hold.model.as_deref()))
                    && which.from.is_none_or(|from| from <= hold.created)
                    && which.to.is_none_or(|to| hold.created < to)
            })
            .collect()
    }

    /// Predicts `POST holds/resolve`.
    pub fn resolve_all(&mut self, which: &Which, body: &Value) -> Expected {
        let matched = self.in_doubt(which);
        let mut sums: Amounts = self.demand(None, 0, 0, &Amounts::new());
        sums.insert("requests".to_owned(), 0);
        for no in &matched {
            for (meter, n) in self.reserved(&self.holds[*no]) {
                *sums.entry(meter).or_default() += n;
            }
        }
        if body["dry_run"] != json!(true) {
            for no in &matched {
                self.resolve(*no, &json!({"action": body["action"]}));
            }
        }
        let matched = int(matched.len() as i128);
        Expected::new(200, json!({"matched": matched, "amounts": amounts_view(&sums)}))
    }
}
