//! Who used most, and rankings that are kept for their later pages.
//!
//! One day or month is read as it stands: once to count its rows and to find a
//! figure that enough of them reach, once to take and sort these few. Other spans
//! are put together from months, pentads and days first.

use std::fmt::Write;
use std::ops::Range;
use std::sync::OnceLock;

use super::{Columns, Failure, Sql, Value, get, values};
use crate::domain::charge::TenantRef;
use crate::domain::time::{Millis, PENTADS_OF_MONTH, first_day_of_pentad, pentad_of_day};
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

/// The totals that a span is the sum of: those of months, and those of pentads and of
/// days to be added (1) or taken off again (-1).
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pieces {
    months: Range<i32>,
    pentads: Ends,
    days: Ends,
}

/// What of the smaller ones is added or taken off at a span's two ends.
type Ends = [(Range<i32>, i32); 2];

const NO_END: (Range<i32>, i32) = (0..0, 1);

/// Of what a span of something is the sum: a span of something longer, and what is
/// added or taken off at its ends, the fewest of them that `cost` anything.
fn split(
    span: &Range<i32>,
    longer: impl Fn(i32) -> i32,
    first: impl Fn(i32) -> i32,
    cost: impl Fn(&Range<i32>) -> i32,
) -> (Range<i32>, Ends) {
    let Range { start, end } = span.clone();
    if start >= end {
        return (0..0, [NO_END, NO_END]);
    }
    let mut whole = longer(start)..longer(end);
    let tail = (first(whole.end)..end, end..first(whole.end + 1));
    let head = (first(whole.start)..start, start..first(whole.start + 1));
    if whole.is_empty() {
        // Within one.
        let off = [(head.0, -1), (tail.1, -1)];
        return match cost(span) <= 1 + off.iter().map(|(part, _)| cost(part)).sum::<i32>() {
            true => (0..0, [(start..end, 1), NO_END]),
            false => (whole.start..whole.end + 1, off),
        };
    }
    // What something is taken off from is read, too.
    let head = match cost(&head.0) < cost(&head.1) {
        true => (head.0, -1),
        false => {
            whole.start += 1;
            (head.1, 1)
        }
    };
    let tail = match cost(&tail.0) <= 1 + cost(&tail.1) {
        true => (tail.0, 1),
        false => {
            whole.end += 1;
            (tail.1, -1)
        }
    };
    (whole, [head, tail])
}

impl Pieces {
    /// The fewest that will do.
    fn of(days: &Range<i32>, today: i32) -> Self {
        // What is to come has no rows.
        let until = |last: i32| {
            move |span: &Range<i32>| span.end.min(last.saturating_add(1)).saturating_sub(span.start).max(0)
        };
        let (pentads, days) = split(days, pentad_of_day, first_day_of_pentad, until(today));
        let month = |pentad: i32| pentad.div_euclid(PENTADS_OF_MONTH);
        let first = |month: i32| month * PENTADS_OF_MONTH;
        let (months, pentads) = split(&pentads, month, first, until(pentad_of_day(today)));
        Self { months, pentads, days }
    }

    fn place(&self) -> Place {
        let count = |ends: &Ends| ends.iter().map(|(span, _)| span.len()).sum::<usize>();
        match (self.months.len(), count(&self.pentads), count(&self.days)) {
            (0, 0, 1) => Place::OneDay,
            (1, 0, 0) => Place::OneMonth,
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

/// `$1` tenant, `$2` group, `$3` rows; `$4` the day or month, or `$4`..`$5` months, and
/// `$6`..`$7`, `$9`..`$10` pentads and `$12`..`$13`, `$15`..`$16` days times what follows.
fn text_of<C: Sql>(place: Place, group: Group, by: &str) -> String {
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
            let piece = |part: &str, table: &str, from: u32, sign: &str| {
                let figures = each(|figure| format!("{sign}{figure}"));
                // In the order in which they are asked for: then nothing is done to a row between.
                format!(
                    "SELECT name, {figures}, kind FROM {table}
                     WHERE tenant = $1 AND kind = $2 AND start >= ${from} AND start < ${}{part}",
                    from + 1
                )
            };
            let summed = |part: &&str| {
                let signed =
                    |(table, from): (&str, u32)| piece(part, table, from, &format!("${} * ", from + 2));
                let ends =
                    [("pentad_totals", 6), ("pentad_totals", 9), ("day_totals", 12), ("day_totals", 15)];
                let pieces = [piece(part, "month_totals", 4, "")].into_iter().chain(ends.map(signed));
                let pieces = pieces.collect::<Vec<_>>().join(" UNION ALL ");
                format!("SELECT name, {} FROM ({pieces}) AS pieces GROUP BY {}", each(sum), C::PIECES_BY)
            };
            let summed = C::PIECES_PARTS.iter().map(summed).collect::<Vec<_>>().join(" UNION ALL ");
            format!("summed AS ({summed}), used AS MATERIALIZED (SELECT * FROM summed WHERE {any})")
        }
    };
    // Looked up for each of the first, whatever the planner thinks of their number.
    let plan = |table: &str| format!("(SELECT plan FROM {table} WHERE tenant = $1 AND id = first.name)");
    let plan = match group {
        Group::User => plan("users"),
        Group::Org => plan("orgs"),
        Group::Feature | Group::Model | Group::Plan => "CAST(NULL AS text)".to_owned(),
    };
    format!(
        "WITH {used},
         counted AS MATERIALIZED (SELECT {edge} AS edge, count(*) AS rows_of, {parts} FROM used GROUP BY 1),
         whole AS (SELECT CAST(sum(rows_of) AS bigint) AS rows_of, {totals} FROM counted),
         reached AS (SELECT edge, sum(rows_of) OVER (ORDER BY edge DESC) AS upto FROM counted),
         first AS (SELECT * FROM used
          WHERE {by} >= coalesce((SELECT max(edge) FROM reached WHERE upto >= CAST($3 AS bigint)), -9007199254740991)
          ORDER BY {by} DESC, name LIMIT $3)
         SELECT name, {plan}, {first}, {of_all}, rows_of FROM whole CROSS JOIN first
         ORDER BY first.{by} DESC, name",
        edge = edge(by),
        parts = FIGURES.map(|figure| format!("sum(CAST({figure} AS double precision)) AS {figure}")).join(", "),
        totals = each(sum),
        first = FIGURES.map(|figure| format!("first.{figure}")).join(", "),
        of_all = FIGURES.map(|figure| format!("whole.{figure}")).join(", "),
    )
}

/// Those of one back end.
pub struct Texts([[[OnceLock<String>; 6]; 5]; 3]);

impl Texts {
    pub const fn new() -> Self {
        Self([const { [const { [const { OnceLock::new() }; 6] }; 5] }; 3])
    }
}

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

pub fn statement<C: Sql>(
    tenant: TenantRef,
    query: &RankingQuery,
    today: i32,
    limit: u32,
) -> (&'static str, Vec<Value>) {
    let by = place_of(query.by);
    let pieces = Pieces::of(&query.days, today);
    let place = pieces.place();
    let text = &C::rankings().0[place as usize][query.group as usize][by];
    let text = text.get_or_init(|| text_of::<C>(place, query.group, FIGURES[by]));
    let mut values = values![tenant.0, query.group as u8, limit];
    let Pieces { months, pentads, days } = pieces;
    match place {
        Place::OneDay => {
            let [head, tail] = days;
            values.extend(values![if head.0.is_empty() { tail.0.start } else { head.0.start }]);
        }
        Place::OneMonth => values.extend(values![months.start]),
        Place::Many => {
            values.extend(values![months.start, months.end]);
            let ends = pentads.into_iter().chain(days);
            values.extend(ends.flat_map(|(span, sign)| values![span.start, span.end, sign]));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::time::first_day_of_month;

    /// How often each day from 0 on is counted.
    fn counted(pieces: &Pieces) -> Vec<i32> {
        let mut counts = vec![0; 500];
        let mut add = |days: Range<i32>, sign: i32| days.for_each(|day| counts[day as usize] += sign);
        for month in pieces.months.clone() {
            add(first_day_of_month(month)..first_day_of_month(month + 1), 1);
        }
        for (pentads, sign) in &pieces.pentads {
            pentads.clone().for_each(|pentad| {
                add(first_day_of_pentad(pentad)..first_day_of_pentad(pentad + 1), *sign);
            });
        }
        pieces.days.iter().for_each(|(days, sign)| add(days.clone(), *sign));
        counts
    }

    #[test]
    fn any_span_is_the_sum_of_few_pieces() {
        for (start, end) in (0..430).flat_map(|start| (start..430).map(move |end| (start, end))) {
            for today in [429, 1_000] {
                let pieces = Pieces::of(&(start..end), today);
                let is_within = |(day, count): (usize, &i32)| {
                    *count == i32::from((start..end).contains(&(day as i32))) || day as i32 > today
                };
                assert!(counted(&pieces).iter().enumerate().all(is_within), "{start}..{end}: {pieces:?}");
                let ends = pieces.pentads.iter().chain(&pieces.days);
                let read = pieces.months.len() + ends.map(|(span, _)| span.len()).sum::<usize>();
                // The pieces at its two ends, and the months between.
                assert!(read <= 10 + (end - start) as usize / 28, "{start}..{end}: {pieces:?}");
            }
        }
    }

    #[test]
    fn a_day_and_a_month_are_read_as_they_stand() {
        let place = |days: Range<i32>| Pieces::of(&days, 10_000).place();
        assert_eq!(place(17..18), Place::OneDay);
        assert_eq!(place(0..31), Place::OneMonth);
        assert_eq!(place(31..59), Place::OneMonth);
        assert_eq!(place(0..30), Place::Many);
        assert_eq!(place(0..59), Place::Many);
    }
}
