//! Tables that are written many rows at once.

use std::sync::OnceLock;

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Int,
    Text,
    Bytes,
}

/// A table, and what happens where a row of the same key is there. Rows of
/// deleted tenants are left out: what was under way when their tenant was
/// deleted does not come back.
pub struct ManyRows {
    pub table: &'static str,
    /// One of them is `tenant`; the first one is never NULL.
    pub columns: &'static [(&'static str, Kind)],
    /// `ON CONFLICT ..`; the smaller and the larger of two are `least` and
    /// `greatest`.
    pub conflict: &'static str,
    /// The statement that takes an array a column.
    pub unnest: OnceLock<String>,
    /// Statements that take a parameter a value, by how many rows they write.
    pub texts: [OnceLock<String>; Self::TEXTS],
}

impl ManyRows {
    pub const TEXTS: usize = 8;

    pub const fn new(
        table: &'static str,
        columns: &'static [(&'static str, Kind)],
        conflict: &'static str,
    ) -> Self {
        Self {
            table,
            columns,
            conflict,
            unnest: OnceLock::new(),
            texts: [const { OnceLock::new() }; Self::TEXTS],
        }
    }

    /// `INSERT INTO .. (..)`
    pub fn into(&self) -> String {
        format!("INSERT INTO {} ({})", self.table, self.names())
    }

    pub fn names(&self) -> String {
        let names: Vec<&str> = self.columns.iter().map(|(name, _)| *name).collect();
        names.join(", ")
    }
}
