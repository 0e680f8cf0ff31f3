//! Comparing JSON without minding what a body has besides.

use serde_json::Value;

/// Every field of `part` is in `whole` with the same value; lists must agree item by item.
#[track_caller]
pub fn assert_has(whole: &Value, part: &Value) {
    if let Some(difference) = first_difference(whole, part, "") {
        panic!("{difference}\nin {whole:#}");
    }
}

fn first_difference(whole: &Value, part: &Value, path: &str) -> Option<String> {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part.iter().find_map(|(name, value)| {
            let inner = whole.get(name).unwrap_or(&Value::Null);
            first_difference(inner, value, &format!("{path}/{name}"))
        }),
        (Value::Array(whole), Value::Array(part)) if whole.len() == part.len() => whole
            .iter()
            .zip(part)
            .enumerate()
            .find_map(|(n, (w, p))| first_difference(w, p, &format!("{path}/{n}"))),
        _ => (whole != part).then(|| format!("{path}: {whole} instead of {part}")),
    }
}
