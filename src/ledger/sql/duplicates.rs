//! Users who share a device or an address.

use super::{Columns, Sql, Value, get, values};
use crate::domain::charge::TenantRef;
use crate::ledger::{Duplicate, DuplicatesQuery, LedgerError, Signal};

/// `$1` tenant, `$2` the value after which the page begins, `$3` values, `$4`..`$5`
/// days, `$6` users of a value. `$signal`: where the back end finds it.
macro_rules! duplicates {
    ($signal:literal) => {
        concat!(
            "WITH RECURSIVE days (day) AS (SELECT CAST($4 AS bigint) WHERE $4 < $5
              UNION ALL SELECT day + 1 FROM days WHERE day + 1 < $5),
             named AS (SELECT id, ",
            $signal,
            " AS value FROM users WHERE tenant = $1 AND erased = 0 AND signals IS NOT NULL),
             counted AS (SELECT id, value, count(*) OVER (PARTITION BY value) AS users FROM named WHERE value > $2),
             page AS (SELECT id, value, users, dense_rank() OVER (ORDER BY value) AS number
                      FROM counted WHERE users > 1),
             used AS (SELECT page.id AS user_id, sum(CAST(total_tokens AS double precision)) AS total
                      FROM page CROSS JOIN days CROSS JOIN day_totals
                      WHERE number <= $3 AND tenant = $1 AND kind = 0 AND start = day AND name = page.id
                      GROUP BY page.id),
             members AS (SELECT value, users, id, coalesce(total, 0) AS total,
                         row_number() OVER (PARTITION BY value ORDER BY coalesce(total, 0) DESC, id) AS place,
                         sum(coalesce(total, 0)) OVER (PARTITION BY value) AS joint
                         FROM page LEFT JOIN used ON used.user_id = page.id WHERE number <= $3)
             SELECT value, users, id, CASE WHEN joint >= 9007199254740991 THEN 9007199254740991
                    WHEN joint <= 0 THEN 0 ELSE CAST(joint AS bigint) END
             FROM members WHERE place <= $6 ORDER BY value, place"
        )
    };
}
pub(in crate::ledger) use duplicates;

pub fn statement<C: Sql>(tenant: TenantRef, asked: &DuplicatesQuery) -> (&'static str, Vec<Value>) {
    let text = match asked.signal {
        Signal::Device => C::DUPLICATES_BY_DEVICE,
        Signal::Address => C::DUPLICATES_BY_ADDRESS,
    };
    let after = asked.after.clone().unwrap_or_default();
    (text, values![tenant.0, after, asked.limit, asked.days.start, asked.days.end, asked.users])
}

/// Rows of one value come one after the other.
pub fn gather<R: Columns>(rows: &[R]) -> Result<Vec<Duplicate>, LedgerError> {
    let mut found: Vec<Duplicate> = Vec::new();
    for row in rows {
        let (value, user): (&str, String) = (get(row, 0)?, get(row, 2)?);
        match found.last_mut().filter(|last| last.value == value) {
            Some(last) => last.users.push(user),
            None => found.push(Duplicate {
                value: value.to_owned(),
                users: vec![user],
                count: get::<i64>(row, 1)?.cast_unsigned(),
                total_tokens: get::<i64>(row, 3)?.cast_unsigned(),
            }),
        }
    }
    Ok(found)
}
