//! How the users of a plan stand to its limits.

use std::sync::OnceLock;

use super::rankings::{FIGURES, edge, place_of};
use super::{Failure, Sql, each, get, values};
use crate::domain::charge::TenantRef;
use crate::domain::ids::Name;
use crate::ledger::{PlanRefusals, SpreadQuery, Used};

/// `$1` tenant, `$2` plan, `$3`..`$4` when.
fn text(used: &Used, by: &str) -> String {
    let of_user = |table: &str, name: &str, kind: &str, start: &str, figure: &str| {
        format!(
            "SELECT users.id, {figure} AS used FROM {table} AS each_of JOIN users
             ON users.tenant = $1 AND users.id = each_of.{name} AND users.plan = $2 AND users.erased = 0
             WHERE each_of.tenant = $1 {kind} AND each_of.{start} >= $3 AND each_of.{start} < $4
             GROUP BY users.id"
        )
    };
    let sum = format!("sum(CAST({by} AS double precision))");
    let of_user = match used {
        Used::Days(_) => of_user("day_totals", "name", "AND kind = 0", "start", &sum),
        Used::Month(_) => of_user("month_totals", "name", "AND kind = 0", "start", &sum),
        Used::Peaks(_) => of_user("user_slots", "user_id", "", "slot", &format!("max({by})")),
    };
    format!(
        "SELECT {} AS edge, count(*) FROM (SELECT CAST(used AS bigint) AS used FROM ({of_user}) AS by_user
         WHERE used > 0) AS counted GROUP BY 1 ORDER BY 1",
        edge("used")
    )
}

static TEXTS: [[OnceLock<String>; 6]; 3] = [const { [const { OnceLock::new() }; 6] }; 3];

/// How many users used how much, ascending; the first three digits of it.
pub async fn spread(
    connection: &mut impl Sql,
    tenant: TenantRef,
    asked: &SpreadQuery,
) -> Result<Vec<(u64, u64)>, Failure> {
    let (kind, start, end) = match &asked.used {
        Used::Days(days) => (0, i64::from(days.start), i64::from(days.end)),
        Used::Month(month) => (1, i64::from(*month), i64::from(*month) + 1),
        Used::Peaks(slots) => (2, slots.start, slots.end),
    };
    let by = place_of(asked.by);
    let text = TEXTS[kind][by].get_or_init(|| text(&asked.used, FIGURES[by]));
    let rows = connection.rows(text, values![tenant.0, asked.plan.shared(), start, end]).await?;
    each(&rows, |row| Ok((get::<i64>(row, 0)?.cast_unsigned(), get::<i64>(row, 1)?.cast_unsigned())))
}

/// `$1` tenant, `$2` plan, `$3`..`$4` days, `$5` days of those who are blocked. The row
/// without a code is of all codes that a limit of theirs gives.
pub const REFUSALS: &str = "WITH by_user AS (
         SELECT refusals.user_id, code, day, count FROM refusals JOIN users
         ON users.tenant = $1 AND users.id = refusals.user_id AND users.plan = $2 AND users.erased = 0
         WHERE refusals.tenant = $1 AND refusals.day >= $3 AND refusals.day < $4),
     by_code AS (
         SELECT user_id, code, sum(CAST(count AS double precision)) AS refused, count(*) AS days
         FROM by_user GROUP BY user_id, code
         UNION ALL
         SELECT user_id, CAST(NULL AS text), sum(CAST(count AS double precision)), count(DISTINCT day)
         FROM by_user WHERE code LIKE '%exhausted' OR code LIKE '%rate_exceeded' OR code = 'concurrency_exceeded'
         GROUP BY user_id)
     SELECT code, CAST(sum(refused) AS bigint), count(*), sum(CASE WHEN days >= $5 THEN 1 ELSE 0 END)
     FROM by_code GROUP BY code ORDER BY code";

pub async fn refusals(
    connection: &mut impl Sql,
    tenant: TenantRef,
    plan: &Name,
    days: &std::ops::Range<i32>,
    least: u32,
) -> Result<Vec<PlanRefusals>, Failure> {
    let values = values![tenant.0, plan.shared(), days.start, days.end, least];
    each(&connection.rows(REFUSALS, values).await?, |row| {
        let count = |at: usize| get::<i64>(row, at).map(i64::cast_unsigned);
        Ok(PlanRefusals { code: get(row, 0)?, refusals: count(1)?, users: count(2)?, blocked: count(3)? })
    })
}
