//! Which limits are the same limit.
//!
//! What was used carries over between plans and versions for limits that are
//! the same in name, kind, meter, period, scope and filter; figures, zone,
//! anchor and enforcement may change without a fresh start. The cell's id is a
//! hash of exactly these. It is kept with every account, so **the encoding
//! below never changes**; the test with fixed values holds it.

use super::filter::normal_form;
use super::{Limit, Rule};
use crate::domain::charge::CellId;
use crate::domain::time::Period;

impl Limit {
    /// The cell that this limit counts in, within an account of its scope.
    pub fn cell(&self) -> CellId {
        let mut text = Encoding(Vec::with_capacity(128));
        text.field(self.name.as_str().as_bytes());
        text.field(self.rule.kind().as_bytes());
        text.field(self.rule.meter().map_or("", |meter| meter.as_str()).as_bytes());
        match &self.rule {
            Rule::Window { period, .. } => text.period(*period),
            Rule::Rolling { window_seconds, .. } => text.field(&window_seconds.to_be_bytes()),
            Rule::Bucket { .. } | Rule::Slots { .. } => text.field(&[]),
        }
        text.field(self.scope.as_str().as_bytes());
        text.list(&self.filter.models);
        text.list(&self.filter.features);
        let hash = blake3::hash(&text.0);
        let (first, _) = hash.as_bytes().split_at(8);
        CellId(first.iter().fold(0, |id, byte| id << 8 | u64::from(*byte)))
    }
}

/// Fields with their lengths in front, so that no two limits read alike.
struct Encoding(Vec<u8>);

impl Encoding {
    fn field(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
        self.0.extend_from_slice(bytes);
    }

    fn list(&mut self, globs: &[String]) {
        let globs = normal_form(globs);
        self.0.extend_from_slice(&(globs.len() as u32).to_be_bytes());
        for glob in globs {
            self.field(glob.as_bytes());
        }
    }

    fn period(&mut self, period: Period) {
        let (tag, n) = match period {
            Period::Day => (1, 0),
            Period::Week => (2, 0),
            Period::Month => (3, 0),
            Period::Hours(n) => (4, n),
            Period::Days(n) => (5, n),
            Period::SessionHours(n) => (6, n),
            Period::Lifetime => (7, 0),
        };
        let mut bytes = [tag, 0, 0, 0, 0];
        bytes[1..].copy_from_slice(&u32::to_be_bytes(n));
        self.field(&bytes);
    }
}
