//! Rows of limits and views of holds, as they stand on the wire.

use serde_json::{Map, Value, json};

use super::calendar::{Ms, wire};
use super::cells::Cell;
use super::doubt::Then;
use super::sheet::{Amounts, Enforce, Kind, Period};
use super::{Asked, Hold, HoldNo, Oracle, State};

impl Oracle {
    /// The row of one limit as it stands now.
    pub fn row(&self, asked: &Asked) -> Value {
        let limit = &asked.limit;
        let mut row = json!({
            "name": limit.name,
            "scope": limit.scope.word(),
            "kind": limit.kind_word(),
            "limit": int(limit.number()),
        });
        let fields = match (self.cell(asked), limit.kind) {
            (Cell::Bucket(bucket), Kind::Bucket { capacity, refill }) => {
                let floor = bucket.floor_tokens(capacity);
                let full: Vec<Value> = bucket.full_at(refill).iter().map(|at| opt_wire(*at)).collect();
                json!({
                    "meter": limit.meter,
                    "remaining": int(floor.max(0)),
                    "held": int(bucket.held_tokens()),
                    "refill_per_minute": int(refill),
                    "full_at": {"$any": full},
                })
            }
            (Cell::Window(window), Kind::Window { limit: most, period }) => {
                let running = window.running(self.now);
                let book = window.book(running);
                let spoken_for = book.used + book.held;
                let bounds = running.filter(|_| period != Period::Lifetime);
                let mut view = json!({
                    "meter": limit.meter,
                    "used": int(book.used),
                    "held": int(book.held),
                    "remaining": int((most + asked.granted - spoken_for).max(0)),
                    "over_by": int((spoken_for - most - asked.granted).max(0)),
                    "granted": if asked.granted > 0 { int(asked.granted) } else { json!({"$any": [0, null]}) },
                    "resets_at": opt_wire(bounds.map(|b| b.1)),
                    "window": bounds.map(|b| json!({"start": wire(b.0), "end": wire(b.1)})),
                });
                if bounds.is_some() && window.rule.calendar.is_some() {
                    view["window"]["zone"] = json!({"$any": window.zones(self.now)});
                }
                view
            }
            (Cell::Slots(leases), Kind::Slots { limit: most }) => json!({
                "in_use": leases.len(),
                "remaining": int((most - leases.len() as i128).max(0)),
            }),
            (cell, kind) => panic!("{cell:?} is not {kind:?}"),
        };
        merge(&mut row, fields);
        if limit.enforce == Enforce::Soft {
            row["over"] = if self.overdrawn(asked) { json!(true) } else { Value::Null };
        }
        row
    }

    /// Whether more was taken from a limit than it gives.
    fn overdrawn(&self, asked: &Asked) -> bool {
        match (self.cell(asked), asked.limit.kind) {
            (Cell::Bucket(bucket), Kind::Bucket { capacity, .. }) => bucket.floor_tokens(capacity) < 0,
            (Cell::Window(window), Kind::Window { limit, .. }) => {
                let book = window.book(window.running(self.now));
                book.used + book.held > limit + asked.granted
            }
            (Cell::Slots(leases), Kind::Slots { limit }) => leases.len() as i128 > limit,
            _ => unreachable!("a cell is of its limit's kind"),
        }
    }

    pub fn rows<'a>(&self, asked: impl IntoIterator<Item = &'a Asked>) -> Value {
        asked.into_iter().filter(|a| a.limit.enforce != Enforce::Shadow).map(|a| self.row(a)).collect()
    }

    /// Rows of what such a call is asked of, by the plan of now.
    pub fn rows_of_hold(&self, no: HoldNo) -> Value {
        let hold = &self.holds[no];
        let org = hold.org.clone();
        self.rows(&self.asked_within(&hold.user, org, hold.model.as_deref(), hold.feature.as_deref(), false))
    }

    pub fn hold_view(&self, no: HoldNo) -> Value {
        let hold = &self.holds[no];
        let state = match hold.state {
            State::Held => "held",
            State::InDoubt(_) => "in_doubt",
            State::Released | State::Ruled(Then::Release) | State::Resolved(Then::Release) => "released",
            State::Ruled(_) | State::Resolved(_) | State::Settled => "settled",
        };
        let mut view = json!({
            "id": {"$hold": no},
            "state": state,
            "request_id": hold.request_id,
            "user": hold.user,
            "created_at": wire(hold.created),
            "expires_at": wire(hold.expires),
            "reserved": amounts_view(&self.reserved(hold)),
        });
        if let Some(settled) = &hold.settled {
            let reserved = self.reserved(hold);
            let counted = &settled.counted;
            let pick = |f: &dyn Fn(i128, i128) -> i128| -> Value {
                ["input_tokens", "output_tokens", "total_tokens", "credits"]
                    .iter()
                    .map(|m| ((*m).to_owned(), int(f(reserved[*m], counted[*m]).max(0))))
                    .collect::<Map<String, Value>>()
                    .into()
            };
            view["actual"] = json!({
                "input_tokens": int(settled.input),
                "output_tokens": int(settled.output),
            });
            view["counted"] = pick(&|_, counted| counted);
            view["returned"] = pick(&|reserved, counted| reserved - counted);
            view["overage"] = pick(&|reserved, counted| counted - reserved);
            view["late"] = json!(hold.late);
            if !hold.late {
                view["late"] = Value::Null;
            }
        }
        view
    }

    /// What a hold reserves now, built-in meters only.
    pub fn reserved(&self, hold: &Hold) -> Amounts {
        self.demand(hold.model.as_deref(), hold.input, hold.output, &Default::default())
    }
}

pub fn amounts_view(amounts: &Amounts) -> Value {
    amounts.iter().map(|(m, n)| (m.clone(), int(*n))).collect::<Map<String, Value>>().into()
}

pub fn int(n: i128) -> Value {
    json!(i64::try_from(n).expect("a figure on the wire"))
}

pub fn opt_wire(at: Option<Ms>) -> Value {
    at.map_or(Value::Null, |at| json!(wire(at)))
}

pub fn merge(into: &mut Value, from: Value) {
    let (Value::Object(into), Value::Object(from)) = (into, from) else { panic!("two objects") };
    into.extend(from);
}
