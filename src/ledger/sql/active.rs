//! How many users of a plan are active at the same time.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Kind::{Bytes, Int, Text};
use super::read::named;
use super::{Failure, ManyRows, Sql, each, get, values};
use crate::domain::capacity::Headcount;
use crate::domain::charge::TenantRef;
use crate::domain::ids::Name;
use crate::ledger::tallies::ACTIVE_KEPT;
use crate::ledger::{ActiveUsers, LedgerError};

const COLUMNS: [(&str, super::Kind); 5] =
    [("tenant", Int), ("slot", Int), ("plan", Text), ("users", Int), ("seen", Bytes)];

/// Somebody else's row stays: it is read next.
static NEW: ManyRows = ManyRows::new("active", &COLUMNS, "ON CONFLICT (tenant, slot, plan) DO NOTHING");
static ACTIVE: ManyRows = ManyRows::new(
    "active",
    &COLUMNS,
    "ON CONFLICT (tenant, slot, plan) DO UPDATE SET users = excluded.users, seen = excluded.seen",
);

pub const SEEN: &str = "SELECT seen FROM active WHERE tenant = $1 AND slot = $2 AND plan = $3";
pub const PEAKS: &str = "SELECT plan, max(users) FROM active
     WHERE tenant = $1 AND slot >= $2 AND slot < $3 GROUP BY plan ORDER BY plan";
pub const FORGET: &str = "DELETE FROM active WHERE tenant = $1 AND slot < $2";

/// Adds users to those that were active; each counts once, whoever tells of them.
pub async fn add(connection: &mut impl Sql, told: &[ActiveUsers]) -> Result<(), Failure> {
    let mut crowds: BTreeMap<(u32, i64, &str), Vec<u64>> = BTreeMap::new();
    for active in told {
        let key = (active.tenant.0, active.slot, active.plan.as_str());
        crowds.entry(key).or_default().extend(&active.digests);
    }
    for ((tenant, slot, plan), digests) in crowds {
        let mut rows = connection.rows_to_change(SEEN, values![tenant, slot, plan]).await?;
        if rows.is_empty() {
            connection.write_rows(&NEW, values![tenant, slot, plan, 0, Vec::new()]).await?;
            connection.execute(FORGET, values![tenant, slot - ACTIVE_KEPT]).await?;
            rows = connection.rows_to_change(SEEN, values![tenant, slot, plan]).await?;
        }
        // None: of a tenant that was deleted nothing is kept.
        let Some(row) = rows.first() else { continue };
        let unreadable = || LedgerError::Corrupt("the digests of active users".into());
        let mut seen = Headcount::from_bytes(get(row, 0)?).ok_or_else(unreadable)?;
        digests.into_iter().for_each(|digest| _ = seen.add(digest));
        let values =
            values![tenant, slot, plan, seen.count().min(i64::MAX as u64).cast_signed(), seen.to_bytes()];
        connection.write_rows(&ACTIVE, values).await?;
    }
    Ok(())
}

/// By plan the most that were active in one of the slots.
pub async fn peaks(
    connection: &mut impl Sql,
    tenant: TenantRef,
    slots: Range<i64>,
) -> Result<Vec<(Name, u64)>, Failure> {
    let rows = connection.rows(PEAKS, values![tenant.0, slots.start, slots.end]).await?;
    each(&rows, |row| Ok((named(Name::parse(get(row, 0)?))?, get::<i64>(row, 1)?.cast_unsigned())))
}
