//! What the model expects of a reply, and how a real one is held against it.
//!
//! An expected body is JSON in which some places are wild:
//! `{"$hold": 7}` is the id of the model's hold 7 (learned when first seen),
//! `{"$any": [..]}` one of several values, `{"$between": [a, b]}` a number in that range,
//! `{"$set": true}` anything but null, `{"$only": {..}}` an object with these fields and no others,
//! `{"$among": [..]}` a list that has these items among others, `{"$word": "one"}` an id, alone or
//! in an object with a version. `null` stands for null, false or absent. An expected
//! object may lack fields that the real one has; an expected list may not.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::cells::HoldNo;

#[derive(Clone, Debug)]
pub struct Expected {
    pub status: u16,
    pub body: Value,
    /// Names in lower case; `None` means that the header must be absent.
    pub headers: Vec<(&'static str, Option<String>)>,
    /// Set when the reply names a hold that the model has just made.
    pub hold: Option<HoldNo>,
    /// A refusal in which a pool takes part: its waits are bounds, and who decides follows from them.
    pub pool_waits: bool,
}

impl Expected {
    pub fn new(status: u16, body: Value) -> Self {
        Self { status, body, headers: Vec::new(), hold: None, pool_waits: false }
    }

    /// A problem that no retry helps against.
    pub fn problem(status: u16, code: &str) -> Self {
        let mut problem = Self::new(status, json!({"code": code, "status": status, "retryable": false}));
        problem.headers = vec![
            ("x-should-retry", Some("false".to_owned())),
            ("retry-after", None),
            ("retry-after-ms", None),
        ];
        problem
    }

    pub fn with(mut self, name: &str, value: Value) -> Self {
        self.body[name] = value;
        self
    }
}

/// The real ids of the model's holds.
#[derive(Debug, Default)]
pub struct Ids {
    pub by_no: HashMap<HoldNo, String>,
}

/// A real reply, reduced to what is compared.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HashMap<String, String>,
    pub body: Value,
}

/// Every difference between what was expected and what came, one sentence each.
pub fn differences(expected: &Expected, reply: &Reply, ids: &mut Ids) -> Vec<String> {
    let mut found = Vec::new();
    if expected.status != reply.status {
        found.push(format!("status {} instead of {}", reply.status, expected.status));
    }
    compare(&expected.body, &reply.body, "", ids, &mut found);
    for (name, value) in &expected.headers {
        let real = reply.headers.get(*name);
        if real != value.as_ref() {
            found.push(format!("header {name}: {real:?} instead of {value:?}"));
        }
    }
    if expected.pool_waits && reply.status == 429 {
        decides_by_longest_wait(reply, &mut found);
    }
    found
}

fn decides_by_longest_wait(reply: &Reply, found: &mut Vec<String>) {
    let empty = Vec::new();
    let violations = reply.body["violations"].as_array().unwrap_or(&empty);
    let longest = violations.iter().filter_map(|v| v["retry_after_ms"].as_i64()).max();
    let told = reply.body["retry_after_ms"].as_i64();
    if longest != told {
        found.push(format!("told to wait {told:?} ms where the longest wait is {longest:?}"));
    }
    let decides = violations.iter().find(|v| v["retry_after_ms"].as_i64() == longest);
    if decides.is_none_or(|v| v["name"] != reply.body["limit"]) {
        found.push(format!("{} decides instead of {decides:?}", reply.body["limit"]));
    }
}

fn compare(expected: &Value, real: &Value, path: &str, ids: &mut Ids, found: &mut Vec<String>) {
    match expected {
        Value::Null => {
            if !(real.is_null() || *real == Value::Bool(false)) {
                found.push(format!("{path}: {real} instead of null"));
            }
        }
        Value::Object(fields) => {
            if let Some(no) = fields.get("$hold").and_then(Value::as_u64) {
                return compare_hold(no as usize, real, path, ids, found);
            }
            if let Some(inner) = fields.get("$only").and_then(Value::as_object) {
                let empty = serde_json::Map::new();
                let there = real.as_object().unwrap_or(&empty);
                for name in there.keys().filter(|n| !inner.contains_key(*n)) {
                    found.push(format!("{path}/{name} should not be there"));
                }
                return compare(&fields["$only"], real, path, ids, found);
            }
            if let Some(items) = fields.get("$among").and_then(Value::as_array) {
                return compare_among(items, real, path, ids, found);
            }
            if let Some(wild) = wildcard(expected, real) {
                if !wild {
                    found.push(format!("{path}: {real} instead of {expected}"));
                }
                return;
            }
            if !real.is_object() {
                found.push(format!("{path}: {real} instead of {expected}"));
                return;
            }
            for (name, value) in fields {
                let inner = real.get(name).unwrap_or(&Value::Null);
                compare(value, inner, &format!("{path}/{name}"), ids, found);
            }
        }
        Value::Array(items) => {
            let Some(real_items) = real.as_array().filter(|r| r.len() == items.len()) else {
                found.push(format!("{path}: {real} instead of {expected}"));
                return;
            };
            for (n, (item, real_item)) in items.iter().zip(real_items).enumerate() {
                compare(item, real_item, &format!("{path}/{n}"), ids, found);
            }
        }
        _ if same(expected, real) => {}
        _ => found.push(format!("{path}: {real} instead of {expected}")),
    }
}

/// Each item stands in the list, told by its `id`.
fn compare_among(items: &[Value], real: &Value, path: &str, ids: &mut Ids, found: &mut Vec<String>) {
    let empty = Vec::new();
    let list = real.as_array().unwrap_or(&empty);
    for item in items {
        match list.iter().find(|r| r["id"] == item["id"]) {
            Some(real) => compare(item, real, &format!("{path}/{}", item["id"]), ids, found),
            None => found.push(format!("{path}: {item} is not among {real}")),
        }
    }
}

fn compare_hold(no: HoldNo, real: &Value, path: &str, ids: &mut Ids, found: &mut Vec<String>) {
    let Some(id) = real.as_str().filter(|id| id.starts_with("hold_")) else {
        found.push(format!("{path}: {real} is no hold id"));
        return;
    };
    let known = ids.by_no.entry(no).or_insert_with(|| id.to_owned());
    if known != id {
        found.push(format!("{path}: {id} instead of {known} (hold {no})"));
    }
}

/// `Some(fits)` when the expected value is a wildcard.
fn wildcard(expected: &Value, real: &Value) -> Option<bool> {
    let fields = expected.as_object()?;
    if let Some(options) = fields.get("$any").and_then(Value::as_array) {
        return Some(options.iter().any(|o| same(o, real) || (o.is_null() && real.is_null())));
    }
    if let Some(range) = fields.get("$between") {
        let number = real.as_i64()?;
        return Some(range[0].as_i64()? <= number && number <= range[1].as_i64()?);
    }
    if let Some(word) = fields.get("$word") {
        return Some(word == real || *word == real["id"]);
    }
    fields.get("$set").map(|_| !real.is_null())
}

fn same(expected: &Value, real: &Value) -> bool {
    match (expected.as_f64(), real.as_f64()) {
        (Some(a), Some(b)) if !(expected.is_i64() && real.is_i64()) => (a - b).abs() < 1e-9,
        _ => expected == real,
    }
}
