//! Refusals and comparisons: counters that are added to, and the last refusals
//! of each user.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::error::Failure;
use super::read::get;
use super::statement::ManyRows;
use crate::domain::charge::TenantRef;
use crate::domain::ids::UserId;
use crate::ledger::tallies::{OTHER, Recent, THEIRS_MAX};
use crate::ledger::{Comparison, LedgerError, RefusalCount, RefusedCall, Tally};

/// Counters taken out in one transaction.
const PRUNED_AT_ONCE: u32 = 1_000;

/// Sums end where JSON's whole numbers do.
macro_rules! add_up {
    ($keys:literal, $table:literal, $column:literal) => {
        concat!(
            "ON CONFLICT (",
            $keys,
            ") DO UPDATE SET ",
            $column,
            " = min(9007199254740991, ",
            $table,
            ".",
            $column,
            " + excluded.",
            $column,
            ")"
        )
    };
}

static REFUSALS: ManyRows = ManyRows::new(
    "INSERT INTO refusals (tenant, day, user_id, code, count)",
    5,
    1,
    add_up!("tenant, day, user_id, code", "refusals", "count"),
);

static REFUSED: ManyRows = ManyRows::new(
    "INSERT INTO refused (tenant, user_id, recent)",
    3,
    1,
    "ON CONFLICT (tenant, user_id) DO UPDATE SET recent = excluded.recent",
);

static COMPARISONS: ManyRows = ManyRows::new(
    "INSERT INTO comparisons (tenant, day, ours, theirs, checks)",
    5,
    1,
    add_up!("tenant, day, ours, theirs", "comparisons", "checks"),
);

/// Both parts of a sum are within 2^53, so that it does not overflow before it
/// is cut.
fn stored(count: u64) -> i64 {
    count.min(1 << 53).cast_signed()
}

/// Adds everything that was counted.
pub(super) async fn add(connection: &mut SqliteConnection, tally: &Tally) -> Result<(), Failure> {
    add_counts(connection, tally).await?;
    add_recent(connection, tally).await?;
    add_comparisons(connection, tally).await
}

async fn add_counts(connection: &mut SqliteConnection, tally: &Tally) -> Result<(), Failure> {
    let mut counts: BTreeMap<(u32, i32, Arc<str>, &str), u64> = BTreeMap::new();
    for refused in &tally.refused {
        let user = refused.user.as_ref().map(UserId::shared).unwrap_or_default();
        for counted in &refused.counts {
            let key = (refused.tenant.0, counted.day, Arc::clone(&user), &*counted.code);
            let count = counts.entry(key).or_default();
            *count = count.saturating_add(counted.count);
        }
    }
    let write = REFUSALS.write(connection, counts.iter(), |query, ((tenant, day, user, code), count)| {
        let query = query.bind(*tenant).bind(*day).bind(Arc::clone(user));
        query.bind((*code).to_owned()).bind(stored(*count))
    });
    Ok(write.await?)
}

/// Of users whose last refusals are on record, and who have new ones.
const RECENT_OF_MANY: &str = "SELECT kept.tenant, kept.user_id, kept.recent FROM json_each($1) AS asked
     CROSS JOIN refused AS kept ON kept.tenant = json_extract(asked.value, '$[0]')
     AND kept.user_id = json_extract(asked.value, '$[1]')";

async fn add_recent(connection: &mut SqliteConnection, tally: &Tally) -> Result<(), Failure> {
    let mut newer: BTreeMap<(u32, Arc<str>), Vec<RefusedCall>> = BTreeMap::new();
    for refused in &tally.refused {
        if let Some(user) = refused.user.as_ref().filter(|_| !refused.recent.is_empty()) {
            let calls = newer.entry((refused.tenant.0, user.shared())).or_default();
            calls.extend_from_slice(&refused.recent);
        }
    }
    if newer.is_empty() {
        return Ok(());
    }
    let asked: Vec<(u32, &str)> = newer.keys().map(|(tenant, user)| (*tenant, &**user)).collect();
    let asked = serde_json::json!(asked).to_string();
    let rows = sqlx::query(RECENT_OF_MANY).bind(asked).fetch_all(&mut *connection).await?;
    let mut kept: HashMap<(u32, Arc<str>), Recent> = HashMap::with_capacity(rows.len());
    for row in rows {
        let user: &str = get(&row, 1)?;
        kept.insert((get(&row, 0)?, user.into()), Recent::decode(get(&row, 2)?)?);
    }
    let mut packed = Vec::with_capacity(newer.len());
    for (key, calls) in newer {
        let recent = kept.remove(&key).unwrap_or_default().with(&calls);
        packed.push((key, recent.encode()?));
    }
    let write = REFUSED.write(connection, packed.into_iter(), |query, ((tenant, user), recent)| {
        query.bind(tenant).bind(user).bind(recent)
    });
    Ok(write.await?)
}

const THEIRS: &str = "SELECT DISTINCT theirs FROM comparisons WHERE tenant = $1 AND day = $2";

/// However many words another limiter has, a day has a bounded number of rows.
async fn add_comparisons(connection: &mut SqliteConnection, tally: &Tally) -> Result<(), Failure> {
    let mut words: HashMap<(u32, i32), HashSet<Arc<str>>> = HashMap::new();
    let mut checks: BTreeMap<(u32, i32, &str, Arc<str>), u64> = BTreeMap::new();
    for (tenant, compared) in &tally.compared {
        let day = (tenant.0, compared.day);
        let known = match words.entry(day) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let query = sqlx::query_scalar(THEIRS).bind(day.0).bind(day.1);
                let known: Vec<String> = query.fetch_all(&mut *connection).await?;
                place.insert(known.into_iter().map(Arc::from).collect())
            }
        };
        let mut theirs = Arc::clone(&compared.theirs);
        if !known.contains(&theirs) {
            match known.len() < THEIRS_MAX {
                true => _ = known.insert(Arc::clone(&theirs)),
                false => theirs = OTHER.into(),
            }
        }
        let sum = checks.entry((day.0, day.1, &*compared.ours, theirs)).or_default();
        *sum = sum.saturating_add(compared.checks);
    }
    let write =
        COMPARISONS.write(connection, checks.iter(), |query, ((tenant, day, ours, theirs), checks)| {
            let query = query.bind(*tenant).bind(*day).bind((*ours).to_owned());
            query.bind(Arc::clone(theirs)).bind(stored(*checks))
        });
    Ok(write.await?)
}

/// Day by day, since a day's users may be many and this one has few days.
pub(super) const REFUSALS_OF_USER: &str =
    "WITH RECURSIVE days (day) AS (SELECT $3 WHERE $3 < $4 UNION ALL SELECT day + 1 FROM days WHERE day + 1 < $4)
     SELECT refusals.day, code, count FROM days CROSS JOIN refusals ON tenant = $1 AND refusals.day = days.day
     AND user_id = $2 ORDER BY refusals.day DESC, code";

pub(super) async fn refusals_of(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    user: UserId,
    days: Range<i32>,
) -> sqlx::Result<Vec<SqliteRow>> {
    let query = sqlx::query(REFUSALS_OF_USER).bind(tenant.0).bind(user.shared());
    query.bind(days.start).bind(days.end).fetch_all(connection).await
}

pub(super) fn refusal_count(row: &SqliteRow) -> Result<RefusalCount, LedgerError> {
    let code: String = get(row, 1)?;
    Ok(RefusalCount { day: get(row, 0)?, code: code.into(), count: get::<i64>(row, 2)?.cast_unsigned() })
}

pub(super) const COMPARED: &str = "SELECT day, ours, theirs, checks FROM comparisons
     WHERE tenant = $1 AND day >= $2 AND day < $3 ORDER BY day, ours, theirs";

pub(super) async fn comparisons(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    days: Range<i32>,
) -> sqlx::Result<Vec<SqliteRow>> {
    sqlx::query(COMPARED).bind(tenant.0).bind(days.start).bind(days.end).fetch_all(connection).await
}

pub(super) fn comparison(row: &SqliteRow) -> Result<Comparison, LedgerError> {
    let ours: String = get(row, 1)?;
    Ok(Comparison {
        day: get(row, 0)?,
        ours: ours.into(),
        theirs: get::<&str>(row, 2)?.into(),
        checks: get::<i64>(row, 3)?.cast_unsigned(),
    })
}

pub(super) const PRUNE_REFUSALS: &str =
    "DELETE FROM refusals WHERE (tenant, day, user_id, code) IN (SELECT tenant, day, user_id, code
     FROM refusals WHERE tenant = $1 AND day < $2 LIMIT $3)";
pub(super) const PRUNE_COMPARISONS: &str = "DELETE FROM comparisons WHERE (tenant, day, ours, theirs) IN
     (SELECT tenant, day, ours, theirs FROM comparisons WHERE tenant = $1 AND day < $2 LIMIT $3)";

/// Takes counters of days before `day` out, a bounded number of them. `false`:
/// there are no more.
pub(super) async fn prune(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    day: i32,
) -> Result<bool, Failure> {
    let mut pruned = 0;
    for text in [PRUNE_REFUSALS, PRUNE_COMPARISONS] {
        let query = sqlx::query(text).bind(tenant.0).bind(day).bind(PRUNED_AT_ONCE);
        let gone = query.execute(&mut *connection).await?.rows_affected();
        pruned = gone.max(pruned);
    }
    Ok(pruned >= u64::from(PRUNED_AT_ONCE))
}

/// A user's last refusals, as the column that holds them.
pub(super) fn recent(row: &SqliteRow, at: usize) -> Result<Vec<(u64, RefusedCall)>, LedgerError> {
    row.try_get::<Option<&[u8]>, _>(at)
        .map_err(|error| LedgerError::Corrupt(error.to_string()))?
        .map_or(Ok(Vec::new()), |bytes| Ok(Recent::decode(bytes)?.calls()))
}
