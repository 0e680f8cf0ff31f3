//! What the back ends that speak SQL share: the statements, and what they mean.
//!
//! The texts are the same for all of them, written in what they have in common.
//! A back end is an implementation of [`Sql`] for its connection; how it gets
//! to one, in which transaction, and when it tries again, is its own affair.

pub(super) mod active;
pub(super) mod activity;
pub(super) mod audit;
pub(super) mod batch;
pub(super) mod changes;
pub(super) mod commit;
pub(super) mod conditions;
pub(super) mod deleting;
pub(super) mod doubts;
pub(super) mod duplicates;
pub(super) mod erasing;
pub(super) mod feed;
pub(super) mod history;
mod many;
pub(super) mod minutes;
pub(super) mod orgs;
pub(super) mod outputs;
pub(super) mod pruning;
pub(super) mod rankings;
pub(super) mod read;
pub(super) mod records;
pub(super) mod slots;
pub(super) mod tallies;
pub(super) mod totals;
pub(super) mod tuning;
pub(super) mod users;
pub mod users_many;
mod value;
pub(super) mod webhooks;

use std::future::Future;

use super::LedgerError;
use crate::domain::ids::HoldId;

pub(super) use many::{Kind, ManyRows};
pub(super) use value::{Columns, Value, each, get, values};

/// A connection, and what is different about its SQL.
pub(super) trait Sql: Send {
    type Row: Columns;

    /// A user's account, with the unfinished holds and the request ids.
    const USER_ACCOUNT: &'static str;

    /// A user's history: one statement over holds, the audit and the last
    /// refusals, so that all of it is of one moment.
    const HISTORY: &'static str;

    /// Of users (JSON pairs of tenant and id) those whose last refusals are on
    /// record.
    const RECENT_OF_MANY: &'static str;
    /// Id and version of users (`$1` tenant, `$2` their ids as JSON).
    const VERSIONS_OF_MANY: &'static str;

    /// Holds of a tenant by their ids (JSON, in hexadecimal digits).
    const HOLDS_OF_MANY: &'static str;

    /// Conditions, each naming a part of the rows of a span by their names, whose sums
    /// can be made side by side; and by what they are grouped.
    const PIECES_PARTS: &'static [&'static str];
    const PIECES_BY: &'static str;

    /// Where the texts of rankings are kept once made.
    fn rankings() -> &'static rankings::Texts;

    /// Users who share a device, and those who share an address.
    const DUPLICATES_BY_DEVICE: &'static str;
    const DUPLICATES_BY_ADDRESS: &'static str;

    /// The rows of a statement. Hints to the planner (`INDEXED BY`) are for
    /// those that take any.
    fn rows(
        &mut self,
        text: &'static str,
        values: Vec<Value>,
    ) -> impl Future<Output = sqlx::Result<Vec<Self::Row>>> + Send;

    /// Rows that the transaction is going to change: nobody else does before
    /// it ends.
    fn rows_to_change(
        &mut self,
        text: &'static str,
        values: Vec<Value>,
    ) -> impl Future<Output = sqlx::Result<Vec<Self::Row>>> + Send;

    /// Runs a statement; returns the number of rows that it changed.
    fn execute(
        &mut self,
        text: &'static str,
        values: Vec<Value>,
    ) -> impl Future<Output = sqlx::Result<u64>> + Send;

    /// Writes many rows to a table, their values one row after the other.
    fn write_rows(
        &mut self,
        table: &'static ManyRows,
        values: Vec<Value>,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;
}

/// Ids as one text: JSON, in hexadecimal digits.
pub(super) fn listed(ids: impl Iterator<Item = HoldId>) -> String {
    let ids: Vec<String> = ids.map(|id| format!("{:032x}", id.0)).collect();
    serde_json::Value::from(ids).to_string()
}

/// What a piece of work fails with, before it is known where.
#[derive(Debug)]
pub(super) enum Failure {
    Sql(sqlx::Error),
    Ledger(LedgerError),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<LedgerError> for Failure {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

impl Failure {
    /// Whether a row of the same key was there.
    pub fn is_taken(&self) -> bool {
        matches!(self, Self::Sql(sqlx::Error::Database(error)) if error.is_unique_violation())
    }
}
