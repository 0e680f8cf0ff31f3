//! How long answers were: counters that are added to, for a few days.

use std::collections::BTreeMap;

use super::Kind::{Int, Text};
use super::{Columns, Failure, ManyRows, Sql, each, get, values};
use crate::domain::charge::TenantRef;
use crate::domain::spread::{Counted, Spread};
use crate::ledger::tallies::stored;
use crate::ledger::{LedgerError, Output, Tally};

/// Counters taken out in one transaction.
const PRUNED_AT_ONCE: u32 = 1_000;

static OUTPUTS: ManyRows = ManyRows::new(
    "outputs",
    &[
        ("tenant", Int),
        ("day", Int),
        ("feature", Text),
        ("model", Text),
        ("place", Int),
        ("count", Int),
        ("cut", Int),
        ("reserved", Int),
        ("used", Int),
        ("most", Int),
    ],
    "ON CONFLICT (tenant, day, feature, model, place) DO UPDATE SET
     count = least(9007199254740991, outputs.count + excluded.count),
     cut = least(9007199254740991, outputs.cut + excluded.cut),
     reserved = least(9007199254740991, outputs.reserved + excluded.reserved),
     used = least(9007199254740991, outputs.used + excluded.used),
     most = greatest(outputs.most, excluded.most)",
);

pub async fn add(connection: &mut impl Sql, tally: &Tally) -> Result<(), Failure> {
    let mut outputs: BTreeMap<(u32, i32, &str, &str), Spread> = BTreeMap::new();
    for (tenant, day, output) in &tally.outputs {
        let key = (tenant.0, *day, &*output.feature, &*output.model);
        outputs.entry(key).or_default().merge(&output.spread);
    }
    let mut rows = Vec::new();
    for ((tenant, day, feature, model), spread) in outputs {
        for (place, counted) in spread.places() {
            let Counted { count, cut, reserved, used, most } = counted;
            rows.extend(values![tenant, day, feature, model, i32::from(place)]);
            rows.extend([count, cut, reserved, used, most].into_iter().flat_map(|sum| values![stored(sum)]));
        }
    }
    Ok(connection.write_rows(&OUTPUTS, rows).await?)
}

/// Sums of Postgres are of another type than what is summed.
pub const OUTPUTS_SINCE: &str =
    "SELECT feature, model, place, CAST(sum(count) AS bigint), CAST(sum(cut) AS bigint),
     CAST(sum(reserved) AS bigint), CAST(sum(used) AS bigint), max(most) FROM outputs
     WHERE tenant = $1 AND day >= $2 GROUP BY feature, model, place ORDER BY feature, model, place";

pub async fn since(connection: &mut impl Sql, tenant: TenantRef, day: i32) -> Result<Vec<Output>, Failure> {
    let rows = connection.rows(OUTPUTS_SINCE, values![tenant.0, day]).await?;
    let mut outputs: Vec<Output> = Vec::new();
    for (feature, model, place, counted) in each(&rows, row)? {
        let is_same = |last: &&mut Output| (&*last.feature, &*last.model) == (&*feature, &*model);
        if outputs.last_mut().filter(is_same).is_none() {
            let (feature, model) = (feature.into(), model.into());
            outputs.push(Output { feature, model, spread: Spread::default() });
        }
        outputs.last_mut().into_iter().for_each(|last| last.spread.add(place, counted));
    }
    Ok(outputs)
}

fn row(row: &impl Columns) -> Result<(String, String, u16, Counted), LedgerError> {
    let place = u16::try_from(get::<i32>(row, 2)?);
    let place = place.map_err(|_| LedgerError::Corrupt("a place of outputs".into()))?;
    let sum = |at: usize| get::<i64>(row, at).map(i64::cast_unsigned);
    let (count, cut, reserved, used, most) = (sum(3)?, sum(4)?, sum(5)?, sum(6)?, sum(7)?);
    Ok((get(row, 0)?, get(row, 1)?, place, Counted { count, cut, reserved, used, most }))
}

pub const PRUNE_OUTPUTS: &str = "DELETE FROM outputs WHERE (tenant, day, feature, model, place) IN
     (SELECT tenant, day, feature, model, place FROM outputs WHERE tenant = $1 AND day < $2 LIMIT $3)";

/// As [`tallies::prune`](super::tallies::prune).
pub async fn prune(connection: &mut impl Sql, tenant: TenantRef, day: i32) -> Result<bool, Failure> {
    let gone = connection.execute(PRUNE_OUTPUTS, values![tenant.0, day, PRUNED_AT_ONCE]).await?;
    Ok(gone >= u64::from(PRUNED_AT_ONCE))
}
