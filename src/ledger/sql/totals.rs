//! Totals: what users, orgs, features, models and plans used, by local day and by
//! month, added up as it comes on record. A month has what its days have, and so has a
//! pentad, of which any span of days is the sum but for a few days at its ends.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::Kind::{Int, Text};
use super::batch::{TOTAL_MAX, Totals, UsageKey};
use super::{Columns, Failure, ManyRows, Sql, Value, get, values};
use crate::domain::charge::TenantRef;
use crate::domain::hold::Amounts;
use crate::domain::time::{month_of_day, pentad_of_day};
use crate::ledger::{Erasure, Group, LedgerError, UsageRow};

/// Both figures are within +-(2^53 - 1), so the sum cannot overflow before it
/// is cut.
macro_rules! sum {
    ($table:literal, $figure:literal) => {
        concat!(
            $figure,
            " = greatest(-9007199254740991, least(9007199254740991, ",
            $table,
            ".",
            $figure,
            " + excluded.",
            $figure,
            "))"
        )
    };
}
pub(super) use sum;

/// Adds the totals of a row to those that are there.
macro_rules! sums {
    ($table:literal) => {
        concat!(
            sum!($table, "requests"),
            ", ",
            sum!($table, "input_tokens"),
            ", ",
            sum!($table, "output_tokens"),
            ", ",
            sum!($table, "total_tokens"),
            ", ",
            sum!($table, "credits")
        )
    };
}
pub(super) use sums;

macro_rules! totals {
    ($table:literal) => {
        ManyRows::new(
            $table,
            &[
                ("tenant", Int),
                ("kind", Int),
                ("start", Int),
                ("name", Text),
                ("requests", Int),
                ("input_tokens", Int),
                ("output_tokens", Int),
                ("total_tokens", Int),
                ("credits", Int),
                ("refusals", Int),
            ],
            concat!(
                "ON CONFLICT (tenant, kind, start, name) DO UPDATE SET ",
                sums!($table),
                ", ",
                sum!($table, "refusals")
            ),
        )
    };
}

static DAYS: ManyRows = totals!("day_totals");
static PENTADS: ManyRows = totals!("pentad_totals");
static MONTHS: ManyRows = totals!("month_totals");

/// Whose totals, and of which day or month; an absent name is the empty text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TotalKey {
    pub tenant: u32,
    pub group: Group,
    /// Days, pentads or months since 1970.
    pub start: i32,
    pub name: Arc<str>,
}

/// Requests, input, output, total tokens, credits, refusals.
pub type Figures = [i64; 6];
/// Totals to be added, in the order of the tables' keys.
pub type Added = BTreeMap<TotalKey, Figures>;

/// Adds figures, saturating as the tables do.
pub fn count(to: &mut Added, key: TotalKey, figures: &Figures) {
    for (sum, figure) in to.entry(key).or_default().iter_mut().zip(figures) {
        *sum = (*sum + figure).clamp(-TOTAL_MAX, TOTAL_MAX);
    }
}

/// Adds usage to the totals of everybody it belongs to.
pub async fn add_usage(connection: &mut impl Sql, usage: &[(UsageKey, Totals)]) -> sqlx::Result<()> {
    let mut days = Added::new();
    for (key, Totals([requests, input, output, total, credits])) in usage {
        let names = [
            (Group::User, &key.user),
            (Group::Org, &key.org),
            (Group::Feature, &key.feature),
            (Group::Model, &key.model),
            (Group::Plan, &key.plan),
        ];
        let figures = [*requests, *input, *output, *total, *credits, 0];
        for (group, name) in names {
            let key = TotalKey { tenant: key.tenant, group, start: key.day, name: Arc::clone(name) };
            count(&mut days, key, &figures);
        }
    }
    add(connection, &days).await
}

/// Adds to the totals of days, and with them to those of their pentads and months.
pub async fn add(connection: &mut impl Sql, days: &Added) -> sqlx::Result<()> {
    connection.write_rows(&DAYS, rows(days)).await?;
    for (table, of_day) in [(&PENTADS, pentad_of_day as fn(i32) -> i32), (&MONTHS, month_of_day)] {
        let mut longer = Added::new();
        for (key, figures) in days {
            count(&mut longer, TotalKey { start: of_day(key.start), ..key.clone() }, figures);
        }
        connection.write_rows(table, rows(&longer)).await?;
    }
    Ok(())
}

fn rows(added: &Added) -> Vec<Value> {
    let row = |(key, figures): (&TotalKey, &Figures)| {
        let mut row = values![key.tenant, key.group as u8, key.start, Arc::clone(&key.name)];
        row.extend(figures.map(|figure| Value::Int(Some(figure))));
        row
    };
    added.iter().flat_map(row).collect()
}

pub const USAGE: &str = "SELECT start, name, requests, input_tokens, output_tokens, total_tokens, credits
     FROM day_totals WHERE tenant = $1 AND kind = $2 AND start >= $3 AND start < $4
     ORDER BY start, name";

pub fn usage(tenant: TenantRef, group: Group, days: &Range<i32>) -> (&'static str, Vec<Value>) {
    (USAGE, values![tenant.0, group as u8, days.start, days.end])
}

pub fn usage_row(row: &impl Columns) -> Result<UsageRow, LedgerError> {
    // Below zero only between a correction and what it corrects.
    let amount = |at: usize| get::<i64>(row, at).map(|sum| sum.max(0).cast_unsigned());
    Ok(UsageRow {
        day: get(row, 0)?,
        name: Some(get::<String>(row, 1)?).filter(|name| !name.is_empty()),
        amounts: Amounts {
            requests: amount(2)?,
            input_tokens: amount(3)?,
            output_tokens: amount(4)?,
            total_tokens: amount(5)?,
            credits: amount(6)?,
        },
    })
}

/// A user's rows, found day by day: no index has them by user.
macro_rules! of_user {
    ($table:literal) => {
        concat!(
            "WITH RECURSIVE starts (start) AS (
                 SELECT min(start) FROM ",
            $table,
            " WHERE tenant = $1 AND kind = 0
                 UNION ALL
                 SELECT (SELECT min(start) FROM ",
            $table,
            " WHERE tenant = $1 AND kind = 0 AND start > starts.start)
                 FROM starts WHERE starts.start IS NOT NULL)
             SELECT theirs.start, requests, input_tokens, output_tokens, total_tokens, credits, refusals
             FROM starts CROSS JOIN ",
            $table,
            " AS theirs WHERE theirs.tenant = $1 AND theirs.kind = 0 AND theirs.start = starts.start
             AND theirs.name = $2 LIMIT $3"
        )
    };
}

pub const DAYS_OF_USER: &str = of_user!("day_totals");
pub const PENTADS_OF_USER: &str = of_user!("pentad_totals");
pub const MONTHS_OF_USER: &str = of_user!("month_totals");

macro_rules! forget {
    ($table:literal) => {
        concat!("DELETE FROM ", $table, " WHERE tenant = $1 AND kind = 0 AND start = $2 AND name = $3")
    };
}

/// Each table, what a user has in it, and what removes that.
static OF_USERS: [(&ManyRows, &str, &str); 3] = [
    (&DAYS, DAYS_OF_USER, forget!("day_totals")),
    (&PENTADS, PENTADS_OF_USER, forget!("pentad_totals")),
    (&MONTHS, MONTHS_OF_USER, forget!("month_totals")),
];

/// Gives the next rows of a user to the pseudonym. `false`: there are none.
pub async fn rename(
    connection: &mut impl Sql,
    tenant: TenantRef,
    erasure: &Erasure,
    rows: u32,
) -> Result<bool, Failure> {
    let mut any = false;
    for (table, of_user, forget) in OF_USERS {
        let mut renamed = Added::new();
        for row in &connection.rows(of_user, values![tenant.0, erasure.user.shared(), rows]).await? {
            let start: i32 = get(row, 0)?;
            let figures =
                [get(row, 1)?, get(row, 2)?, get(row, 3)?, get(row, 4)?, get(row, 5)?, get(row, 6)?];
            let name = erasure.pseudonym.shared();
            count(&mut renamed, TotalKey { tenant: tenant.0, group: Group::User, start, name }, &figures);
            connection.execute(forget, values![tenant.0, start, erasure.user.shared()]).await?;
        }
        connection.write_rows(table, self::rows(&renamed)).await?;
        any |= !renamed.is_empty();
    }
    Ok(any)
}
