//! Refusals and comparisons: counters that are added to, and the last refusals
//! of each user.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use super::Kind::{Bytes, Int, Text};
use super::totals::{self, Added, TotalKey};
use super::{Columns, Failure, ManyRows, Sql, active, activity, each, get, minutes, outputs, values};
use crate::domain::charge::TenantRef;
use crate::domain::ids::UserId;
use crate::ledger::refused::Recent;
use crate::ledger::tallies::{OTHER, THEIRS_MAX, stored};
use crate::ledger::{Comparison, Group, LedgerError, RefusalCount, RefusedCall, Tally};

/// Counters taken out in one transaction.
const PRUNED_AT_ONCE: u32 = 1_000;

pub static REFUSALS: ManyRows = ManyRows::new(
    "refusals",
    &[("tenant", Int), ("day", Int), ("user_id", Text), ("code", Text), ("count", Int)],
    // Sums end where JSON's whole numbers do.
    "ON CONFLICT (tenant, day, user_id, code)
     DO UPDATE SET count = least(9007199254740991, refusals.count + excluded.count)",
);

static REFUSED: ManyRows = ManyRows::new(
    "refused",
    &[("tenant", Int), ("user_id", Text), ("recent", Bytes)],
    "ON CONFLICT (tenant, user_id) DO UPDATE SET recent = excluded.recent",
);

static COMPARISONS: ManyRows = ManyRows::new(
    "comparisons",
    &[("tenant", Int), ("day", Int), ("ours", Text), ("theirs", Text), ("checks", Int)],
    "ON CONFLICT (tenant, day, ours, theirs)
     DO UPDATE SET checks = least(9007199254740991, comparisons.checks + excluded.checks)",
);

/// Adds everything that was counted.
pub async fn add(connection: &mut impl Sql, tally: &Tally) -> Result<(), Failure> {
    add_counts(connection, tally).await?;
    add_recent(connection, tally).await?;
    add_comparisons(connection, tally).await?;
    outputs::add(connection, tally).await?;
    totals::add(connection, &refused_totals(tally)).await?;
    minutes::add_refused(connection, &tally.minutes).await?;
    active::add(connection, &tally.active).await?;
    activity::add(connection, &tally.used).await
}

async fn add_counts(connection: &mut impl Sql, tally: &Tally) -> Result<(), Failure> {
    let mut counts: BTreeMap<(u32, i32, Arc<str>, &str), u64> = BTreeMap::new();
    for refused in &tally.refused {
        let user = refused.user.as_ref().map(UserId::shared).unwrap_or_default();
        for counted in &refused.counts {
            let key = (refused.tenant.0, counted.day, Arc::clone(&user), &*counted.code);
            let count = counts.entry(key).or_default();
            *count = count.saturating_add(counted.count);
        }
    }
    let values = counts
        .into_iter()
        .flat_map(|((tenant, day, user, code), count)| values![tenant, day, user, code, stored(count)]);
    Ok(connection.write_rows(&REFUSALS, values.collect()).await?)
}

/// What refusals add to the totals of users and of everything else.
fn refused_totals(tally: &Tally) -> Added {
    let mut added = Added::new();
    let mut add = |tenant: TenantRef, group, day, name: Option<Arc<str>>, refusals: u64| {
        let key = TotalKey { tenant: tenant.0, group, start: day, name: name.unwrap_or_default() };
        totals::count(&mut added, key, &[0, 0, 0, 0, 0, stored(refusals)]);
    };
    for refused in &tally.refused {
        for counted in &refused.counts {
            let user = refused.user.as_ref().map(UserId::shared);
            add(refused.tenant, Group::User, counted.day, user, counted.count);
        }
    }
    for of in &tally.groups {
        add(of.tenant, of.group, of.day, of.name.clone(), of.count);
    }
    added
}

async fn add_recent<C: Sql>(connection: &mut C, tally: &Tally) -> Result<(), Failure> {
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
    let rows = connection.rows(C::RECENT_OF_MANY, values![asked]).await?;
    let mut kept: HashMap<(u32, Arc<str>), Recent> = HashMap::with_capacity(rows.len());
    for row in rows {
        let user: &str = get(&row, 1)?;
        kept.insert((get(&row, 0)?, user.into()), Recent::decode(get(&row, 2)?)?);
    }
    let mut packed = Vec::with_capacity(3 * newer.len());
    for (key, calls) in newer {
        let recent = kept.remove(&key).unwrap_or_default().with(&calls)?;
        packed.extend(values![key.0, key.1, recent.encode()?]);
    }
    Ok(connection.write_rows(&REFUSED, packed).await?)
}

const THEIRS: &str = "SELECT DISTINCT theirs FROM comparisons WHERE tenant = $1 AND day = $2";

/// However many words another limiter has, a day has a bounded number of rows.
async fn add_comparisons(connection: &mut impl Sql, tally: &Tally) -> Result<(), Failure> {
    let mut words: HashMap<(u32, i32), HashSet<Arc<str>>> = HashMap::new();
    let mut checks: BTreeMap<(u32, i32, &str, Arc<str>), u64> = BTreeMap::new();
    for (tenant, compared) in &tally.compared {
        let day = (tenant.0, compared.day);
        let known = match words.entry(day) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let rows = connection.rows(THEIRS, values![day.0, day.1]).await?;
                let known = rows.iter().map(|row| get::<&str>(row, 0).map(Arc::from));
                place.insert(known.collect::<Result<_, _>>()?)
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
    let values = checks
        .into_iter()
        .flat_map(|((tenant, day, ours, theirs), checks)| values![tenant, day, ours, theirs, stored(checks)]);
    Ok(connection.write_rows(&COMPARISONS, values.collect()).await?)
}

/// Day by day, since a day's users may be many and this one has few days.
pub const REFUSALS_OF_USER: &str =
    "WITH RECURSIVE days (day) AS (SELECT $3 WHERE $3 < $4 UNION ALL SELECT day + 1 FROM days WHERE day + 1 < $4)
     SELECT refusals.day, code, count FROM days CROSS JOIN refusals WHERE tenant = $1 AND refusals.day = days.day
     AND user_id = $2 ORDER BY refusals.day DESC, code";

pub async fn refusals_of(
    connection: &mut impl Sql,
    tenant: TenantRef,
    user: UserId,
    days: Range<i32>,
) -> Result<Vec<RefusalCount>, Failure> {
    each(
        &connection.rows(REFUSALS_OF_USER, values![tenant.0, user.shared(), days.start, days.end]).await?,
        refusal_count,
    )
}

pub fn refusal_count(row: &impl Columns) -> Result<RefusalCount, LedgerError> {
    let code: String = get(row, 1)?;
    Ok(RefusalCount { day: get(row, 0)?, code: code.into(), count: get::<i64>(row, 2)?.cast_unsigned() })
}

pub const COMPARED: &str = "SELECT day, ours, theirs, checks FROM comparisons
     WHERE tenant = $1 AND day >= $2 AND day < $3 ORDER BY day, ours, theirs";

pub async fn comparisons(
    connection: &mut impl Sql,
    tenant: TenantRef,
    days: Range<i32>,
) -> Result<Vec<Comparison>, Failure> {
    each(&connection.rows(COMPARED, values![tenant.0, days.start, days.end]).await?, comparison)
}

pub fn comparison(row: &impl Columns) -> Result<Comparison, LedgerError> {
    let ours: String = get(row, 1)?;
    Ok(Comparison {
        day: get(row, 0)?,
        ours: ours.into(),
        theirs: get::<&str>(row, 2)?.into(),
        checks: get::<i64>(row, 3)?.cast_unsigned(),
    })
}

pub const PRUNE_REFUSALS: &str =
    "DELETE FROM refusals WHERE (tenant, day, user_id, code) IN (SELECT tenant, day, user_id, code
     FROM refusals WHERE tenant = $1 AND day < $2 LIMIT $3)";
pub const PRUNE_COMPARISONS: &str = "DELETE FROM comparisons WHERE (tenant, day, ours, theirs) IN
     (SELECT tenant, day, ours, theirs FROM comparisons WHERE tenant = $1 AND day < $2 LIMIT $3)";

/// Takes counters of days before `day` out, a bounded number of them. `false`:
/// there are no more.
pub async fn prune(connection: &mut impl Sql, tenant: TenantRef, day: i32) -> Result<bool, Failure> {
    let mut pruned = 0;
    for text in [PRUNE_REFUSALS, PRUNE_COMPARISONS] {
        let gone = connection.execute(text, values![tenant.0, day, PRUNED_AT_ONCE]).await?;
        pruned = gone.max(pruned);
    }
    Ok(pruned >= u64::from(PRUNED_AT_ONCE))
}

const RECENT: &str = "SELECT recent FROM refused WHERE tenant = $1 AND user_id = $2";

/// A user's last refusals, oldest first.
pub async fn last_refusals(
    connection: &mut impl Sql,
    tenant: TenantRef,
    user: UserId,
) -> Result<Vec<RefusedCall>, Failure> {
    let rows = connection.rows(RECENT, values![tenant.0, user.shared()]).await?;
    let kept = rows.first().map_or(Ok(Vec::new()), |row| recent(row, 0))?;
    Ok(kept.into_iter().map(|(_, call)| call).collect())
}

/// A user's last refusals, as the column that holds them.
pub fn recent(row: &impl Columns, at: usize) -> Result<Vec<(u64, RefusedCall)>, LedgerError> {
    get::<Option<&[u8]>>(row, at)?.map_or(Ok(Vec::new()), |bytes| Recent::decode(bytes)?.calls())
}
