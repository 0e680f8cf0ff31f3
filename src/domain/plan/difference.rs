//! What differs between two sheets, as whoever reads them has to know.

use serde_json::{Map, Value};

use super::Sheet;

/// One field that differs.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// A JSON pointer into the sheet, in which limits stand by their names:
    /// `/limits/tokens_per_month/limit`.
    pub path: String,
    /// Null: it was not there.
    pub before: Value,
    /// Null: it is not there any more.
    pub after: Value,
}

impl Sheet {
    /// What changes from this sheet to `new`, ascending by path.
    pub fn differences_to(&self, new: &Self) -> Vec<Difference> {
        let mut found = Vec::new();
        compare("", &self.by_name(), &new.by_name(), &mut found);
        found
    }

    /// The sheet with its limits by name, less its id. A change of order alone is none.
    fn by_name(&self) -> Value {
        let mut sheet = self.to_json();
        if let Some(fields) = sheet.as_object_mut() {
            fields.remove("id");
            for list in ["limits", "degrade"] {
                if let Some(rows) = fields.get_mut(list) {
                    *rows = named(rows.take());
                }
            }
        }
        sheet
    }
}

/// Rows by the `name` or `limit` that they begin with; rows of one name keep their order.
fn named(rows: Value) -> Value {
    let Value::Array(rows) = rows else { return rows };
    let mut named = Map::new();
    for mut row in rows {
        let name = row.as_object_mut().and_then(|row| row.remove("name"));
        let name =
            name.or_else(|| row.get("limit").cloned()).and_then(|name| name.as_str().map(str::to_owned));
        let mut name = name.unwrap_or_default();
        while named.contains_key(&name) {
            name.push('+');
        }
        named.insert(name, row);
    }
    Value::Object(named)
}

fn compare(path: &str, before: &Value, after: &Value, found: &mut Vec<Difference>) {
    if before == after {
        return;
    }
    let (Value::Object(old), Value::Object(new)) = (before, after) else {
        let (before, after) = (before.clone(), after.clone());
        found.push(Difference { path: path.to_owned(), before, after });
        return;
    };
    let names: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for name in names {
        let of = |fields: &Map<String, Value>| fields.get(name).cloned().unwrap_or_default();
        compare(&format!("{path}/{}", escaped(name)), &of(old), &of(new), found);
    }
}

/// A name as a part of a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::document::Node;

    fn sheet(body: &Value) -> Sheet {
        Sheet::read(&Node::from_json(body.to_string().as_bytes()).unwrap()).unwrap().0
    }

    fn body(limits: &Value) -> Value {
        json!({"id": "p", "name": "P", "per_call": {"max_output_tokens": 100}, "limits": limits})
    }

    #[test]
    fn each_field_that_differs_is_named_once() {
        let slots = json!({"name": "concurrency", "kind": "slots", "limit": 2});
        let month = |limit: u64| {
            json!({"name": "tokens_per_month", "kind": "window", "meter": "total_tokens",
                   "period": "month", "limit": limit})
        };
        let old = sheet(&body(&json!([month(1_000), slots])));
        let mut changed = body(&json!([month(2_000)]));
        changed["per_call"]["max_output_tokens"] = json!(200);
        let found = old.differences_to(&sheet(&changed));
        let paths: Vec<&str> = found.iter().map(|row| row.path.as_str()).collect();
        assert_eq!(
            paths,
            ["/limits/concurrency", "/limits/tokens_per_month/limit", "/per_call/max_output_tokens"]
        );
        assert_eq!(
            (&found[0].after, &found[1].before, &found[1].after),
            (&Value::Null, &json!(1_000), &json!(2_000))
        );
    }

    #[test]
    fn another_order_is_no_difference() {
        let first = json!({"name": "a", "kind": "slots", "limit": 2});
        let second = json!({"name": "b", "kind": "slots", "limit": 2});
        let old = sheet(&body(&json!([first, second])));
        assert_eq!(old.differences_to(&sheet(&body(&json!([second, first])))), []);
    }
}
