//! Plan sheets as the API shows them, and what their limits say in words.

use serde::Deserialize;
use serde_json::Value;

use super::figures::{Count, amount, full};
use crate::domain::time::Millis;

#[derive(Debug, Clone, Deserialize)]
pub struct Sheet {
    pub id: String,
    pub name: Option<String>,
    pub version: u32,
    #[serde(default)]
    pub requires_verified: bool,
    #[serde(default)]
    pub per_call: PerCall,
    #[serde(default)]
    pub limits: Vec<Limit>,
    pub effective_at: Option<Millis>,
    pub warnings: Option<Vec<Warning>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub struct PerCall {
    pub max_input_tokens: Option<Count>,
    pub max_output_tokens: Option<Count>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Limit {
    pub name: String,
    pub kind: String,
    pub meter: Option<String>,
    pub scope: Option<String>,
    pub period: Option<Value>,
    pub limit: Option<u64>,
    pub capacity: Option<u64>,
    pub refill_per_minute: Option<u64>,
    pub enforce: Option<String>,
    #[serde(default)]
    pub models: Option<Vec<String>>,
    #[serde(default)]
    pub features: Option<Vec<String>>,
}

/// What can never bite, or what a pool cannot give.
#[derive(Debug, Clone, Deserialize)]
pub struct Warning {
    pub message: String,
    pub pointer: String,
    pub pool: Option<String>,
}

impl Sheet {
    pub fn title(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.id)
    }

    pub fn limit(&self, name: &str) -> Option<&Limit> {
        self.limits.iter().find(|limit| limit.name == name)
    }
}

impl Limit {
    /// Such as `200,000 total tokens a month`.
    pub fn sentence(&self) -> String {
        let meter = self.meter.as_deref().unwrap_or_default();
        let number = |value: Option<u64>| value.map_or("?".into(), |value| amount(value, meter));
        let meter = meter.replace('_', " ");
        let mut text = match self.kind.as_str() {
            "bucket" => {
                let (capacity, refill) = (number(self.capacity), number(self.refill_per_minute));
                format!("{refill} {meter} a minute, {capacity} at once")
            }
            "slots" if self.limit == Some(1) => "1 call at the same time".into(),
            "slots" => format!("{} calls at the same time", number(self.limit)),
            _ => format!("{} {meter} {}", number(self.limit), self.period_words()),
        };
        if let Some(models) = self.models.as_ref().filter(|globs| !globs.is_empty()) {
            text.push_str(&format!(", of models {}", models.join(", ")));
        }
        if let Some(features) = self.features.as_ref().filter(|globs| !globs.is_empty()) {
            text.push_str(&format!(", of features {}", features.join(", ")));
        }
        if let Some(scope) = self.scope.as_deref().filter(|scope| *scope != "user") {
            text.push_str(&format!(", shared by the {scope}"));
        }
        match self.enforce.as_deref() {
            Some("soft") => text.push_str(", told and not refused"),
            Some("shadow") => text.push_str(", only counted"),
            _ => {}
        }
        text
    }

    fn period_words(&self) -> String {
        match &self.period {
            Some(Value::String(word)) if word == "lifetime" => "in a lifetime".into(),
            Some(Value::String(word)) => format!("a {word}"),
            Some(Value::Object(fields)) => {
                let words = fields.iter().map(|(unit, count)| match unit.as_str() {
                    "session_hours" => format!("a session of {count} hours"),
                    unit => format!("in {count} {unit}"),
                });
                words.collect::<Vec<_>>().join(" ")
            }
            _ => String::new(),
        }
    }
}

/// One line of two sheets side by side.
pub struct Pair {
    pub what: String,
    pub before: Option<String>,
    pub after: Option<String>,
}

impl Pair {
    pub fn differs(&self) -> bool {
        self.before != self.after
    }
}

/// Two sheets side by side: the limits of both, in their order.
pub fn pairs(before: &Sheet, after: &Sheet) -> Vec<Pair> {
    let cap = |sheet: &Sheet, input: bool| {
        let cap = if input { sheet.per_call.max_input_tokens } else { sheet.per_call.max_output_tokens };
        cap.map(|cap| full(cap.0))
    };
    let mut pairs: Vec<Pair> = [("most input of a call", true), ("most output of a call", false)]
        .map(|(what, input)| Pair { what: what.into(), before: cap(before, input), after: cap(after, input) })
        .into_iter()
        .filter(|pair| pair.before.is_some() || pair.after.is_some())
        .collect();
    let new = after.limits.iter().filter(|limit| before.limit(&limit.name).is_none());
    for name in before.limits.iter().chain(new).map(|limit| &limit.name) {
        pairs.push(Pair {
            what: name.clone(),
            before: before.limit(name).map(Limit::sentence),
            after: after.limit(name).map(Limit::sentence),
        });
    }
    pairs
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn limit(value: Value) -> String {
        serde_json::from_value::<Limit>(value).unwrap().sentence()
    }

    #[test]
    fn limits_are_sentences() {
        assert_eq!(
            limit(
                json!({"name": "a", "kind": "bucket", "meter": "requests", "capacity": 3, "refill_per_minute": 5})
            ),
            "5 requests a minute, 3 at once"
        );
        assert_eq!(
            limit(
                json!({"name": "a", "kind": "window", "meter": "total_tokens", "limit": 200_000, "period": "month",
                "scope": "org", "models": ["opus*"], "enforce": "soft"})
            ),
            "200,000 total tokens a month, of models opus*, shared by the org, told and not refused"
        );
        assert_eq!(
            limit(
                json!({"name": "a", "kind": "window", "meter": "credits", "limit": 1_500_000, "period": {"session_hours": 5}})
            ),
            "1.5 credits a session of 5 hours"
        );
        assert_eq!(limit(json!({"name": "a", "kind": "slots", "limit": 2})), "2 calls at the same time");
    }
}
