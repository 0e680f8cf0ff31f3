//! What a form says, and what a page's address says: names and texts.

use crate::http::call::Call;
use crate::http::problem::Problem;
use crate::http::query::pairs;

/// Fields in their order. A name may come more than once, where many things can be ticked.
#[derive(Clone, Default)]
pub struct Fields(Vec<(String, String)>);

impl Fields {
    /// Of the page's address.
    pub fn of_query(call: &Call) -> Result<Self, Problem> {
        Self::read(call.head.uri().query().unwrap_or_default())
    }

    /// Of a form that was sent.
    pub fn read(text: &str) -> Result<Self, Problem> {
        let pairs = pairs(text);
        pairs.map(Self).ok_or_else(|| Problem::invalid_part("form", "is not percent-encoded UTF-8"))
    }

    /// The first value of that name, without spaces around it; empty when there is none.
    pub fn get(&self, name: &str) -> &str {
        self.all(name).next().unwrap_or_default()
    }

    /// The same; `None` when it is empty.
    pub fn given(&self, name: &str) -> Option<&str> {
        Some(self.get(name)).filter(|value| !value.is_empty())
    }

    /// Whether the form has such a field, filled in or not.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(key, _)| key == name)
    }

    pub fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.trim())
    }

    /// As they came, less those named; to be carried through a page that asks once more.
    pub fn without<'a>(&'a self, names: &'a [&str]) -> impl Iterator<Item = (&'a str, &'a str)> {
        let kept = self.0.iter().filter(|(name, _)| !names.contains(&name.as_str()));
        kept.map(|(name, value)| (name.as_str(), value.as_str()))
    }
}
