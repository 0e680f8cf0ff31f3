//! Who used most, and rankings that are kept for their later pages.

use super::{Columns, Failure, Sql, Value, get, values};
use crate::domain::charge::TenantRef;
use crate::domain::time::Millis;
use crate::ledger::LedgerError;
use crate::ledger::ranking::{Figure, Group, KeptPart, Ranked, Ranking, RankingQuery, Sums};

/// Rankings of one tenant that are kept at once; the oldest go.
const KEPT_MAX: u32 = 16;

/// A sum as JSON's whole numbers have it. Added up as doubles, which are exact as
/// far as these go, and know no overflow that would end the statement.
macro_rules! sum {
    ($figure:literal) => {
        concat!(
            "CASE WHEN sum(CAST(",
            $figure,
            " AS double precision)) >= 9007199254740991 THEN 9007199254740991
             WHEN sum(CAST(",
            $figure,
            " AS double precision)) <= 0 THEN 0
             ELSE CAST(sum(CAST(",
            $figure,
            " AS double precision)) AS bigint) END"
        )
    };
}

/// `$1` tenant, `$2`..`$3` days, `$4` rows, `$5` the figure's number.
macro_rules! ranking {
    ($name:literal, $refusals:literal, $plan:literal, $record:literal) => {
        concat!(
            "WITH named (name, requests, input_tokens, output_tokens, total_tokens, credits, refusals) AS
             (SELECT ",
            $name,
            ", requests, input_tokens, output_tokens, total_tokens, credits, CAST(0 AS bigint)
              FROM usage WHERE tenant = $1 AND day >= $2 AND day < $3",
            $refusals,
            "),
             summed (name, requests, input_tokens, output_tokens, total_tokens, credits, refusals) AS
             (SELECT name, ",
            sum!("requests"),
            ", ",
            sum!("input_tokens"),
            ", ",
            sum!("output_tokens"),
            ", ",
            sum!("total_tokens"),
            ", ",
            sum!("credits"),
            ", ",
            sum!("refusals"),
            " FROM named GROUP BY name),
             used AS (SELECT * FROM summed
              WHERE requests > 0 OR total_tokens > 0 OR input_tokens > 0 OR output_tokens > 0
              OR credits > 0 OR refusals > 0),
             whole AS (SELECT count(*) AS rows_of, ",
            sum!("requests"),
            " AS r, ",
            sum!("input_tokens"),
            " AS i, ",
            sum!("output_tokens"),
            " AS o, ",
            sum!("total_tokens"),
            " AS t, ",
            sum!("credits"),
            " AS c, ",
            sum!("refusals"),
            " AS f FROM used),
             first AS (SELECT * FROM used
              ORDER BY CASE $5 WHEN 0 THEN requests WHEN 1 THEN input_tokens WHEN 2 THEN output_tokens
              WHEN 3 THEN total_tokens WHEN 4 THEN credits ELSE refusals END DESC, name LIMIT $4)
             SELECT name, ",
            $plan,
            ", requests, input_tokens, output_tokens, total_tokens, credits, refusals,
             r, i, o, t, c, f, rows_of FROM whole CROSS JOIN first ",
            $record,
            " ORDER BY CASE $5 WHEN 0 THEN requests WHEN 1 THEN input_tokens WHEN 2 THEN output_tokens
              WHEN 3 THEN total_tokens WHEN 4 THEN credits ELSE refusals END DESC, name"
        )
    };
}

const USERS: &str = ranking!(
    "user_id",
    " UNION ALL SELECT user_id, 0, 0, 0, 0, 0, count FROM refusals
      WHERE tenant = $1 AND day >= $2 AND day < $3",
    "users.plan",
    "LEFT JOIN users ON users.tenant = $1 AND users.id = name"
);
const ORGS: &str = ranking!("org", "", "orgs.plan", "LEFT JOIN orgs ON orgs.tenant = $1 AND orgs.id = name");
const FEATURES: &str = ranking!("feature", "", "CAST(NULL AS text)", "");
const MODELS: &str = ranking!("model", "", "CAST(NULL AS text)", "");
const PLANS: &str = ranking!("plan", "", "CAST(NULL AS text)", "");

pub fn statement(tenant: TenantRef, query: &RankingQuery, limit: u32) -> (&'static str, Vec<Value>) {
    let text = match query.group {
        Group::User => USERS,
        Group::Org => ORGS,
        Group::Feature => FEATURES,
        Group::Model => MODELS,
        Group::Plan => PLANS,
    };
    let by = match query.by {
        Figure::Requests => 0,
        Figure::InputTokens => 1,
        Figure::OutputTokens => 2,
        Figure::TotalTokens => 3,
        Figure::Credits => 4,
        Figure::Refusals => 5,
    };
    (text, values![tenant.0, query.days.start, query.days.end, limit, by])
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
    let sum = |at: usize| get::<i64>(row, from + at).map(i64::cast_unsigned);
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
