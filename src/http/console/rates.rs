//! Rates to be tried: numbers of limits in place of those that the plans have, saved nowhere.

use serde_json::{Map, Value};

use super::api::Fault;
use super::deed::{Control, Field};
use super::plans::edit::{NOT_SENT, NUMBERS, number};
use super::visit::Visit;

/// Of so many plans all are offered; of more, those with somebody active.
const PLANS_ALL: usize = 4;

/// A plan's part of the form.
pub struct TriedPlan {
    pub id: String,
    pub title: String,
    pub limits: Vec<TriedLimit>,
}

pub struct TriedLimit {
    pub name: String,
    pub fields: Vec<Field>,
}

#[derive(Default)]
pub struct Rates {
    pub plans: Vec<TriedPlan>,
    /// The sheets that differ from their plans, by id.
    pub sheets: Map<String, Value>,
}

impl Rates {
    /// What the address says of each plan's numbers; what it does not name is as it is.
    pub fn of(visit: &Visit, sheets: &[Value], is_active: impl Fn(&str) -> bool) -> Self {
        let mut rates = Self::default();
        for own in sheets {
            let id = own["id"].as_str().unwrap_or_default();
            let mut sheet = own.clone();
            let mut limits = Vec::new();
            for (place, limit) in sheet["limits"].as_array_mut().into_iter().flatten().enumerate() {
                limits.push(limit_of(
                    visit,
                    &format!("{id}.{place}"),
                    &format!("{id}/limits/{place}"),
                    limit,
                ));
            }
            if sheet != *own {
                if let Value::Object(fields) = &mut sheet {
                    fields.retain(|name, _| !NOT_SENT.contains(&name.as_str()));
                }
                rates.sheets.insert(id.to_owned(), sheet);
            } else if sheets.len() > PLANS_ALL && !is_active(id) {
                continue;
            }
            let title = own["name"].as_str().unwrap_or(id).to_owned();
            rates.plans.push(TriedPlan { id: id.to_owned(), title, limits });
        }
        rates
    }

    pub fn is_tried(&self) -> bool {
        !self.sheets.is_empty()
    }

    /// Puts what the API finds wrong at its field; the rest is told by itself.
    pub fn tell(&mut self, fault: &Fault) {
        let limits = self.plans.iter_mut().flat_map(|plan| &mut plan.limits);
        for field in limits.flat_map(|limit| &mut limit.fields) {
            field.wrong = fault.at(&field.pointer).map(str::to_owned);
        }
    }

    /// What is wrong with a sheet and belongs to none of its numbers.
    pub fn rest(&self, fault: &Fault) -> Vec<String> {
        let limits = self.plans.iter().flat_map(|plan| &plan.limits);
        let fields: Vec<&Field> = limits.flat_map(|limit| &limit.fields).collect();
        let is_rest = |pointer: &str| {
            pointer.starts_with("/plans/") && fields.iter().all(|field| field.pointer != pointer)
        };
        let errors = fault.errors.iter().filter(|error| is_rest(&error.pointer));
        errors.map(|error| format!("{} {}", error.pointer, error.message)).collect()
    }
}

/// The fields of a limit's numbers, which are then as the address says.
fn limit_of(visit: &Visit, name: &str, pointer: &str, limit: &mut Value) -> TriedLimit {
    let mut fields = Vec::new();
    for (part, label) in NUMBERS {
        let Some(own) = limit.get(part).and_then(Value::as_u64) else { continue };
        let name = format!("rate.{name}.{part}");
        let text = match visit.query.has(&name) {
            true => {
                limit[part] = number(visit.query.get(&name));
                visit.query.get(&name).to_owned()
            }
            false => own.to_string(),
        };
        let pointer = format!("/plans/{pointer}/{part}");
        fields.push(Field::new(name, label, Control::Number).value(text).pointer(pointer));
    }
    TriedLimit { name: limit["name"].as_str().unwrap_or_default().to_owned(), fields }
}
