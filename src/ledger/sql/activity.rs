//! What users used of late, five minutes by five minutes.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Kind::{Int, Text};
use super::batch::TOTAL_MAX;
use super::totals::{sum, sums};
use super::{Failure, ManyRows, Sql, Value, each, get, values};
use crate::domain::charge::TenantRef;
use crate::ledger::{Erasure, Mover, MoversQuery, UsedSlot};

/// Rows taken out in one transaction.
const PRUNED_AT_ONCE: u32 = 1_000;

static USED: ManyRows = ManyRows::new(
    "user_slots",
    &[
        ("tenant", Int),
        ("user_id", Text),
        ("slot", Int),
        ("requests", Int),
        ("input_tokens", Int),
        ("output_tokens", Int),
        ("total_tokens", Int),
        ("credits", Int),
    ],
    concat!("ON CONFLICT (tenant, user_id, slot) DO UPDATE SET ", sums!("user_slots")),
);

pub async fn add(connection: &mut impl Sql, used: &[UsedSlot]) -> Result<(), Failure> {
    let mut slots: BTreeMap<(u32, Arc<str>, i64), [i64; 5]> = BTreeMap::new();
    for UsedSlot { tenant, user, slot, figures } in used {
        let sums = slots.entry((tenant.0, user.shared(), *slot)).or_default();
        for (sum, figure) in sums.iter_mut().zip(figures) {
            *sum = sum.saturating_add(*figure).clamp(-TOTAL_MAX, TOTAL_MAX);
        }
    }
    let values = slots.into_iter().flat_map(|((tenant, user, slot), figures)| {
        let mut row = values![tenant, user, slot];
        row.extend(figures.map(|figure| Value::Int(Some(figure))));
        row
    });
    Ok(connection.write_rows(&USED, values.collect()).await?)
}

/// `$1` tenant, `$2`..`$3` slots, `$4` the first slot before, `$5` the least, `$6` users.
pub const MOVERS: &str = "WITH late AS (
         SELECT user_id, sum(CAST(requests AS double precision)) AS requests,
                sum(CAST(total_tokens AS double precision)) AS used
         FROM user_slots INDEXED BY user_slots_by_time
         WHERE tenant = $1 AND slot >= $2 AND slot < $3 GROUP BY user_id),
     looked_at AS MATERIALIZED (
         SELECT user_id, requests, used FROM late WHERE used >= $5 AND used > 0
         ORDER BY used DESC, user_id LIMIT $6),
     before AS (
         SELECT looked_at.user_id AS name, sum(CAST(total_tokens AS double precision)) AS used, count(*) AS slots
         FROM looked_at CROSS JOIN user_slots AS past
         WHERE past.tenant = $1 AND past.user_id = looked_at.user_id AND past.slot >= $4 AND past.slot < $2
         AND past.total_tokens > 0 GROUP BY looked_at.user_id)
     SELECT looked_at.user_id, users.plan, CAST(looked_at.requests AS bigint), CAST(looked_at.used AS bigint),
            CAST(coalesce(before.used, 0) AS bigint), coalesce(before.slots, 0)
     FROM looked_at LEFT JOIN before ON before.name = looked_at.user_id
     LEFT JOIN users ON users.tenant = $1 AND users.id = looked_at.user_id
     ORDER BY looked_at.used DESC, looked_at.user_id";

pub async fn movers(
    connection: &mut impl Sql,
    tenant: TenantRef,
    asked: &MoversQuery,
) -> Result<Vec<Mover>, Failure> {
    let MoversQuery { slots, since, least, users } = asked;
    let values = values![tenant.0, slots.start, slots.end, *since, least.cast_signed(), *users];
    each(&connection.rows(MOVERS, values).await?, |row| {
        let figure = |at: usize| get::<i64>(row, at).map(|figure| figure.max(0).cast_unsigned());
        Ok(Mover {
            user: get(row, 0)?,
            plan: get(row, 1)?,
            requests: figure(2)?,
            total_tokens: figure(3)?,
            before: figure(4)?,
            before_slots: figure(5)?,
        })
    })
}

pub const FORGET_USER: &str = "DELETE FROM user_slots WHERE tenant = $1 AND user_id = $2";

/// Of an erased user nothing of it stays.
pub async fn forget_user(
    connection: &mut impl Sql,
    tenant: TenantRef,
    erasure: &Erasure,
) -> Result<(), Failure> {
    connection.execute(FORGET_USER, values![tenant.0, erasure.user.shared()]).await?;
    Ok(())
}

pub const PRUNE: &str =
    "DELETE FROM user_slots WHERE (tenant, user_id, slot) IN (SELECT tenant, user_id, slot
     FROM user_slots INDEXED BY user_slots_by_time WHERE tenant = $1 AND slot < $2 ORDER BY slot LIMIT $3)";

/// Takes out some of what is older than `slot`. `false`: there is no more.
pub async fn prune(connection: &mut impl Sql, tenant: TenantRef, slot: i64) -> Result<bool, Failure> {
    let gone = connection.execute(PRUNE, values![tenant.0, slot, PRUNED_AT_ONCE]).await?;
    Ok(gone >= u64::from(PRUNED_AT_ONCE))
}
