//! Old holds go, in the order of their ids: a walk that is interrupted goes on
//! where it was, in whichever process.

use super::feed;
use super::history::first_id;
use super::read::hold_id;
use super::{Columns, Failure, Sql, get, values};
use crate::domain::time::Millis;
use crate::ledger::{LedgerError, Pruned, Pruning};

/// Other processes leave the walk to who was at it until then.
const HELD_MS: i64 = 30_000;
const HOUR_MS: i64 = 3_600_000;
/// No clock is further ahead of another one.
const AHEAD_MS: i64 = 24 * HOUR_MS;

const PLACE: &str = "SELECT place, ended_at, holder, held_until FROM pruning WHERE only_row = 1";
pub const END: &str = "SELECT id FROM holds WHERE id >= $1 AND id < $2 ORDER BY id LIMIT 1 OFFSET $3";
/// By the clock of their tenant. What a deleted one left goes otherwise.
pub const PRUNE: &str = "DELETE FROM holds WHERE id >= $1 AND id < $2 AND finished_at <
     (SELECT coalesce(tenants.clock, $3) - $4 FROM tenants WHERE tenants.number = holds.tenant)";

/// The ids worth a look. Most begin with the time at which their hold was made:
/// those of old holds are below the first bound. Ids of booked use are digests,
/// nearly all above the second one, as are those of test clocks ahead. The few
/// in between are looked at once their turn in time has come.
fn zones(asked: &Pruning) -> [(u128, u128); 2] {
    // By the hour: a bound that moves with every step is never reached.
    let now = Millis(asked.now.0 - asked.now.0.rem_euclid(HOUR_MS));
    let old = first_id(now.plus_ms(asked.keep_ms.saturating_neg()));
    [(0, old), (first_id(now.plus_ms(AHEAD_MS)).max(old), u128::MAX)]
}

pub struct Walk {
    place: u128,
    ended_at: i64,
    holder: i64,
    held_until: i64,
}

impl Walk {
    pub fn is_at_its_start(&self) -> bool {
        self.place == 0
    }

    fn is_for(&self, origin: i64, asked: &Pruning) -> bool {
        let is_anothers = self.holder != origin && self.held_until > asked.now.0;
        let is_due = self.place > 0 || self.ended_at.saturating_add(asked.every_ms) <= asked.now.0;
        is_due && !is_anothers
    }
}

/// The walk, if it is due and nobody else's.
pub async fn find(connection: &mut impl Sql, origin: i64, asked: &Pruning) -> Result<Option<Walk>, Failure> {
    let walk = read(connection.rows(PLACE, values![]).await?.first())?;
    Ok(Some(walk).filter(|walk| walk.is_for(origin, asked)))
}

/// Goes the next step of the walk, if that is still to be gone.
pub async fn step(connection: &mut impl Sql, origin: i64, asked: &Pruning) -> Result<Pruned, Failure> {
    let walk = read(connection.rows_to_change(PLACE, values![]).await?.first())?;
    if !walk.is_for(origin, asked) {
        return Ok(Pruned::Nothing);
    }
    let mut zones = zones(asked).into_iter().filter(|(_, to)| walk.place < *to);
    let text =
        "UPDATE pruning SET place = $1, ended_at = $2, holder = $3, held_until = $4 WHERE only_row = 1";
    let Some((from, to)) = zones.next() else {
        let start = 0u128.to_be_bytes();
        connection.execute(text, values![start, asked.now.0, origin, 0]).await?;
        return Ok(Pruned::Nothing);
    };
    let (place, removed) = prune(connection, (walk.place.max(from), to), asked).await?;
    let held_until = asked.now.plus_ms(HELD_MS).0;
    connection.execute(text, values![place.to_be_bytes(), walk.ended_at, origin, held_until]).await?;
    Ok(Pruned::Rows(removed))
}

/// Removes what is old among the next holds; answers how far it came.
async fn prune(
    connection: &mut impl Sql,
    (from, to): (u128, u128),
    asked: &Pruning,
) -> Result<(u128, u64), Failure> {
    let ids = |from: u128, to: u128| values![from.to_be_bytes(), to.to_be_bytes()];
    let mut values = ids(from, to);
    values.extend(values![asked.rows]);
    let rows = connection.rows(END, values).await?;
    let end = rows.first().map(|row| hold_id(get(row, 0)?)).transpose()?.map_or(to, |id| id.0);
    // The feed first: what it tells needs the holds.
    if !feed::prune(connection, (from, end), asked).await? {
        return Ok((from, 0));
    }
    let mut values = ids(from, end);
    values.extend(values![asked.now.0, asked.keep_ms]);
    Ok((end, connection.execute(PRUNE, values).await?))
}

fn read(row: Option<&impl Columns>) -> Result<Walk, LedgerError> {
    let row = row.ok_or_else(|| LedgerError::Corrupt("the row of `pruning` is missing".into()))?;
    let [ended_at, holder, held_until] = [get(row, 1)?, get(row, 2)?, get(row, 3)?];
    Ok(Walk { place: hold_id(get(row, 0)?)?.0, ended_at, holder, held_until })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walk_looks_at_old_ids_and_at_those_that_tell_no_time() {
        let asked = |now| Pruning { now: Millis(now), keep_ms: 2 * HOUR_MS, rows: 1, every_ms: 1 };
        let [(from, old), (ahead, end)] = zones(&asked(5 * HOUR_MS));
        assert_eq!((from, old), (0, first_id(Millis(3 * HOUR_MS))));
        assert_eq!((ahead, end), (first_id(Millis(29 * HOUR_MS)), u128::MAX));
        assert_eq!(zones(&asked(6 * HOUR_MS - 1)), zones(&asked(5 * HOUR_MS)), "it can be gone to its end");
    }
}
