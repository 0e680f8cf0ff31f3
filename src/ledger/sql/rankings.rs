//! Who used most, and rankings that are kept for their later pages.
//!
//! One day or month is read as it stands: once to count its rows and to find a
//! figure that enough of them reach, once to take and sort these few. Other spans
//! are put together from months and days first.

use std::fmt::Write;
use std::ops::Range;
use std::sync::OnceLock;

use super::{Columns, Failure, Sql, Value, get, values};
use crate::domain::charge::TenantRef;
use crate::domain::time::{Millis, first_day_of_month, month_of_day};
use crate::ledger::LedgerError;
use crate::ledger::ranking::{Figure, Group, KeptPart, Ranked, Ranking, RankingQuery, Sums};

/// Rankings of one tenant that are kept at once; the oldest go.
const KEPT_MAX: u32 = 16;

pub(super) const FIGURES: [&str; 6] =
    ["requests", "input_tokens", "output_tokens", "total_tokens", "credits", "refusals"];

/// Where the totals of a span stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    OneDay,
    OneMonth,
    Many,
}

/// The totals that a span is the sum of.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pieces {
    months: Range<i32>,
    /// Days to be added (1) or taken off again (-1).
    days: [(Range<i32>, i32); 2],
}

const NO_DAYS: (Range<i32>, i32) = (0..0, 1);

impl Pieces {
    /// The fewest days that will do.
    fn of(days: &Range<i32>, today: i32) -> Self {
        let (Range { start, end }, first) = (days.clone(), first_day_of_month);
        let none = Self { months: 0..0, days: [NO_DAYS, NO_DAYS] };
        if start >= end {
            return none;
        }
        let mut months = month_of_day(start)..month_of_day(end);
        // Days that have any rows.
        let cost =
            |days: &Range<i32>| days.end.min(today.saturating_add(1)).saturating_sub(days.start).max(0);
        let tail = (first(months.end)..end, end..first(months.end + 1));
        let head = (first(months.start)..start, start..first(months.start + 1));
        if months.is_empty() {
            // Within one month.
            let off = [(head.0, -1), (tail.1, -1)];
            return match cost(days) <= off.iter().map(|(days, _)| cost(days)).sum() {
                true => Self { days: [(start..end, 1), NO_DAYS], ..none },
                false => Self { months: months.start..months.end + 1, days: off },
            };
        }
        let head = match cost(&head.0) <= cost(&head.1) {
            true => (head.0, -1),
            false => {
                months.start += 1;
                (head.1, 1)
            }
        };
        let tail = match cost(&tail.0) <= cost(&tail.1) {
            true => (tail.0, 1),
            false => {
                months.end += 1;
                (tail.1, -1)
            }
        };
        Self { months, days: [head, tail] }
    }

    fn place(&self) -> Place {
        let [head, tail] = &self.days;
        match (self.months.len(), head.0.len() + tail.0.len()) {
            (0, 1) => Place::OneDay,
            (1, 0) => Place::OneMonth,
            _ => Place::Many,
        }
    }
}

/// Each figure, as `as_text` has it, named.
fn each(as_text: impl Fn(&str) -> String) -> String {
    FIGURES.map(|figure| format!("{} AS {figure}", as_text(figure))).join(", ")
}

/// A sum as JSON's whole numbers have it. Added up as doubles, which are exact as
/// far as these go, and know no overflow that would end the statement.
fn sum(figure: &str) -> String {
    let sum = format!("sum(CAST({figure} AS double precision))");
    format!(
        "CASE WHEN {sum} >= 9007199254740991 THEN 9007199254740991 WHEN {sum} <= 0 THEN 0 \
         ELSE CAST({sum} AS bigint) END"
    )
}

/// The first three digits of a figure: many rows fall into few groups.
pub(super) fn edge(figure: &str) -> String {
    let mut text = format!("CASE WHEN {figure} < 1000 THEN {figure}");
    let mut step = 10_u64;
    while step < 10_000_000_000_000 {
        _ = write!(text, " WHEN {figure} < {} THEN {figure} / {step} * {step}", step * 1000);
        step *= 10;
    }
    text + &format!(" ELSE {figure} / {step} * {step} END")
}

/// `$1` tenant, `$2` group, `$3` rows; `$4` the day or month, or `$4`..`$5` months and
/// `$6`..`$7`, `$9`..`$10` days times `$8`, `$11`.
fn text(place: Place, group: Group, by: &str) -> String {
    let any = FIGURES.map(|figure| format!("{figure} > 0")).join(" OR ");
    let one = |table: &str| {
        format!(
            "used AS NOT MATERIALIZED (SELECT name, {} FROM {table}
             WHERE tenant = $1 AND kind = $2 AND start = $4 AND ({any}))",
            FIGURES.join(", ")
        )
    };
    let used = match place {
        Place::OneDay => one("day_totals"),
        Place::OneMonth => one("month_totals"),
        Place::Many => {
            let piece = |table: &str, from: u32, sign: &str| {
                let figures = each(|figure| format!("{sign}{figure}"));
                format!(
                    "SELECT name, {figures} FROM {table}
                     WHERE tenant = $1 AND kind = $2 AND start >= ${from} AND start < ${}",
                    from + 1
                )
            };
            let months = piece("month_totals", 4, "");
            let days = ["$8 * ", "$11 * "];
            let [head, tail] =
                [(6, days[0]), (9, days[1])].map(|(from, sign)| piece("day_totals", from, sign));
            format!(
                "summed AS (SELECT name, {} FROM ({months} UNION ALL {head} UNION ALL {tail}) AS pieces
                 GROUP BY name),
                 used AS MATERIALIZED (SELECT * FROM summed WHERE {any})",
                each(sum)
            )
        }
    };
    let (plan, record) = match group {
        Group::User => ("users.plan", "LEFT JOIN users ON users.tenant = $1 AND users.id = name"),
        Group::Org => ("orgs.plan", "LEFT JOIN orgs ON orgs.tenant = $1 AND orgs.id = name"),
        Group::Feature | Group::Model | Group::Plan => ("CAST(NULL AS text)", ""),
    };
    format!(
        "WITH {used},
         counted AS MATERIALIZED (SELECT {edge} AS edge, count(*) AS rows_of, {parts} FROM used GROUP BY 1),
         whole AS (SELECT CAST(sum(rows_of) AS bigint) AS rows_of, {totals} FROM counted),
         reached AS (SELECT edge, sum(rows_of) OVER (ORDER BY edge DESC) AS upto FROM counted),
         first AS (SELECT * FROM used
          WHERE {by} >= coalesce((SELECT max(edge) FROM reached WHERE upto >= CAST($3 AS bigint)), -9007199254740991)
          ORDER BY {by} DESC, name LIMIT $3)
         SELECT name, {plan}, {first}, {of_all}, rows_of FROM whole CROSS JOIN first {record}
         ORDER BY first.{by} DESC, name",
        edge = edge(by),
        parts = FIGURES.map(|figure| format!("sum(CAST({figure} AS double precision)) AS {figure}")).join(", "),
        totals = each(sum),
        first = FIGURES.map(|figure| format!("first.{figure}")).join(", "),
        of_all = FIGURES.map(|figure| format!("whole.{figure}")).join(", "),
    )
}

static TEXTS: [[[OnceLock<String>; 6]; 5]; 3] = [const { [const { [const { OnceLock::new() }; 6] }; 5] }; 3];

/// Where a figure stands in [`FIGURES`].
pub(super) fn place_of(figure: Figure) -> usize {
    match figure {
        Figure::Requests => 0,
        Figure::InputTokens => 1,
        Figure::OutputTokens => 2,
        Figure::TotalTokens => 3,
        Figure::Credits => 4,
        Figure::Refusals => 5,
    }
}

pub fn statement(
    tenant: TenantRef,
    query: &RankingQuery,
    today: i32,
    limit: u32,
) -> (&'static str, Vec<Value>) {
    let by = place_of(query.by);
    let pieces = Pieces::of(&query.days, today);
    let place = pieces.place();
    let text =
        TEXTS[place as usize][query.group as usize][by].get_or_init(|| text(place, query.group, FIGURES[by]));
    let mut values = values![tenant.0, query.group as u8, limit];
    let [head, tail] = pieces.days;
    match place {
        Place::OneDay => values.extend(values![if head.0.is_empty() { tail.0.start } else { head.0.start }]),
        Place::OneMonth => values.extend(values![pieces.months.start]),
        Place::Many => {
            values.extend(values![pieces.months.start, pieces.months.end]);
            values.extend(
                [head, tail].into_iter().flat_map(|(days, sign)| values![days.start, days.end, sign]),
            );
        }
    }
    (text, values)
}

pub fn ranking<R: Columns>(rows: &[R]) -> Result<Ranking, LedgerError> {
    let ranked = rows.iter().map(|row| {
        let name = get::<String>(row, 0)?;
        let name = Some(name).filter(|name| !name.is_empty());
        Ok(Ranked { name, plan: get(row, 1)?, sums: sums(row, 2)? })
    });
    Ok(Ranking {
        rows: ranked.collect::<Result<_, LedgerError>>()?,
        total: rows.first().map_or(Ok(Sums::default()), |row| sums(row, 8))?,
        count: rows.first().map_or(Ok(0), |row| get::<i64>(row, 14))?.cast_unsigned(),
    })
}

fn sums(row: &impl Columns, from: usize) -> Result<Sums, LedgerError> {
    // Below zero only between a correction and what it corrects.
    let sum = |at: usize| get::<i64>(row, from + at).map(|sum| sum.max(0).cast_unsigned());
    Ok(Sums {
        requests: sum(0)?,
        input_tokens: sum(1)?,
        output_tokens: sum(2)?,
        total_tokens: sum(3)?,
        credits: sum(4)?,
        refusals: sum(5)?,
    })
}

const PRUNE_OLD: &str = "DELETE FROM rankings WHERE tenant = $1 AND made_at < $2";
const PRUNE_MANY: &str = "DELETE FROM rankings WHERE tenant = $1 AND id NOT IN
     (SELECT id FROM rankings WHERE tenant = $1 AND part = 0 ORDER BY made_at DESC, id DESC LIMIT $2)";

/// Keeps a ranking, and lets go of those made before `since` and of the oldest.
pub async fn keep(
    connection: &mut impl Sql,
    tenant: TenantRef,
    id: u128,
    parts: &[KeptPart],
    since: Millis,
) -> Result<(), Failure> {
    super::records::refuse_deleted(connection, tenant.0).await?;
    connection.execute(PRUNE_OLD, values![tenant.0, since.0]).await?;
    connection.execute(PRUNE_MANY, values![tenant.0, KEPT_MAX - 1]).await?;
    for (number, part) in (0..).zip(parts) {
        let text = "INSERT INTO rankings (tenant, id, part, made_at, body) VALUES ($1, $2, $3, $4, $5)";
        let number: u32 = number;
        let values = values![tenant.0, id.to_be_bytes(), number, part.made_at.0, part.encode()?];
        connection.execute(text, values).await?;
    }
    Ok(())
}

const PART: &str = "SELECT body FROM rankings WHERE tenant = $1 AND id = $2 AND part = $3";

pub async fn part(
    connection: &mut impl Sql,
    tenant: TenantRef,
    id: u128,
    part: u32,
) -> Result<Option<KeptPart>, Failure> {
    let rows = connection.rows(PART, values![tenant.0, id.to_be_bytes(), part]).await?;
    Ok(rows.first().map(|row| KeptPart::decode(get(row, 0)?)).transpose()?)
}
