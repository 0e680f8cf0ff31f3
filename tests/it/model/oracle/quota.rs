//! What is left: rows with their state and the next moment at which a small call would pass.

use serde_json::{Value, json};

use super::calendar::Ms;
use super::cells::Cell;
use super::expect::Expected;
use super::sheet::{Enforce, Kind, Period};
use super::view::opt_wire;
use super::{Asked, Oracle};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Word {
    Ok,
    Waiting,
    Exhausted,
}

impl Oracle {
    /// Predicts `GET users/{user}/quota` for a caller of the tenant.
    pub fn quota(&self, user: &str) -> Expected {
        let asked = self.plan_limits(user);
        let (sheet, version) = self.plan(user);
        let rows: Vec<Value> = asked.iter().map(|a| self.quota_row(a)).collect();
        let mut body = json!({
            "user": user,
            "plan": {"id": sheet.id, "version": version},
            "limits": rows,
            "upcoming": self.upcoming(user),
        });
        self.at_the_top(&asked, &mut body);
        Expected::new(200, body)
    }

    /// Predicts `GET orgs/{org}/quota` of an org with a sheet of its own.
    pub fn org_quota(&self, org: &str) -> Expected {
        let asked = self.org_limits(org);
        let rows: Vec<Value> = asked.iter().map(|a| self.quota_row(a)).collect();
        let (sheet, version) = self.org_sheet(org).expect("an org with a sheet");
        let mut body = json!({"org": org, "plan": {"id": sheet.id, "version": version}, "limits": rows});
        self.at_the_top(&asked, &mut body);
        Expected::new(200, body)
    }

    fn at_the_top(&self, asked: &[Asked], body: &mut Value) {
        let deciding: Vec<&Asked> =
            asked.iter().filter(|a| a.limit.enforce == Enforce::Hard && !a.limit.filtered()).collect();
        if deciding.iter().any(|a| !self.judged(a)) {
            return;
        }
        let states: Vec<(Word, Option<Ms>)> = deciding.iter().map(|a| self.state(a)).collect();
        let worst = states.iter().map(|s| s.0).max().unwrap_or(Word::Ok);
        let never = states.iter().any(|s| s.0 != Word::Ok && s.1.is_none());
        let latest = states.iter().filter(|s| s.0 != Word::Ok).filter_map(|s| s.1).max();
        body["state"] = json!(worst.text());
        body["next_call_at"] = opt_wire(latest.filter(|_| !never));
    }

    fn quota_row(&self, asked: &Asked) -> Value {
        let mut row = self.row(asked);
        if asked.limit.enforce == Enforce::Shadow {
            let (least, most) = self.would_refuse.get(&asked.key).copied().unwrap_or_default();
            row["would_refuse"] = json!({"$between": [least, most]});
        }
        if asked.limit.enforce == Enforce::Hard && self.judged(asked) {
            let (word, next) = self.state(asked);
            row["state"] = json!(word.text());
            row["next_call_at"] = opt_wire(next.filter(|_| word != Word::Ok));
        }
        row
    }

    /// What one token costs, and how many images a call of one token has, is left open.
    fn judged(&self, asked: &Asked) -> bool {
        let meter = asked.limit.meter.as_str();
        meter.is_empty() || meter == "requests" || meter.ends_with("_tokens")
    }

    /// Whether a call of one request and one token passes this limit, and when.
    fn state(&self, asked: &Asked) -> (Word, Option<Ms>) {
        let number = asked.limit.number();
        match (self.cell(asked), asked.limit.kind) {
            (_, Kind::Bucket { capacity: 0, .. } | Kind::Slots { limit: 0 }) => (Word::Exhausted, None),
            (Cell::Bucket(bucket), Kind::Bucket { refill, .. }) => {
                match bucket.ready_at((number, refill), &self.figures_to_come(asked), 1) {
                    Some(at) if at <= self.now => (Word::Ok, None),
                    at => (Word::Waiting, at),
                }
            }
            (Cell::Window(window), Kind::Window { period, .. }) => {
                let running = window.running(self.now);
                let book = window.book(running);
                if book.used + book.held < number + asked.granted {
                    return (Word::Ok, None);
                }
                (Word::Exhausted, running.map(|r| r.1).filter(|_| period != Period::Lifetime))
            }
            (Cell::Slots(leases), Kind::Slots { .. }) => {
                let mut ends: Vec<Ms> = leases.values().copied().collect();
                ends.sort_unstable();
                let places = usize::try_from(number).expect("a number of places");
                if ends.len() < places {
                    return (Word::Ok, None);
                }
                (Word::Waiting, Some(ends[ends.len() - places]))
            }
            _ => unreachable!("a cell is of its limit's kind"),
        }
    }
}

impl Word {
    fn text(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Waiting => "waiting",
            Self::Exhausted => "exhausted",
        }
    }
}
