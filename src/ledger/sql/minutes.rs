//! What features used, minute by minute.

use super::Kind::{Int, Text};
use super::read::unnamed;
use super::{Columns, Failure, ManyRows, Sql, Value, get, values};
use crate::domain::charge::TenantRef;
use crate::domain::hold::Amounts;
use crate::domain::ids::Label;
use crate::ledger::{LedgerError, MinuteRow, MinutesQuery, RefusedMinute};

/// Rows taken out in one transaction.
const PRUNED_AT_ONCE: u32 = 1_000;

pub const MINUTES: &str =
    "SELECT minute, feature, requests, input_tokens, output_tokens, total_tokens, credits, refusals
     FROM minutes WHERE tenant = $1 AND minute >= $2 AND minute < $3
     AND (minute > $4 OR (minute = $4 AND feature > $5)) ORDER BY minute, feature LIMIT $6";

pub fn statement(tenant: TenantRef, asked: &MinutesQuery) -> (&'static str, Vec<Value>) {
    let (minute, feature) = asked.after.clone().unwrap_or((i64::MIN, String::new()));
    // What was shown already is not looked through again.
    let from = asked.minutes.start.max(minute);
    (MINUTES, values![tenant.0, from, asked.minutes.end, minute, feature, asked.limit])
}

pub fn row(row: &impl Columns) -> Result<MinuteRow, LedgerError> {
    // Below zero only between a correction and what it corrects.
    let sum = |at: usize| get::<i64>(row, at).map(|sum| sum.max(0).cast_unsigned());
    let feature = Some(get::<&str>(row, 1)?).filter(|feature| !feature.is_empty());
    Ok(MinuteRow {
        minute: get(row, 0)?,
        feature: feature.map(Label::parse).transpose().map_err(unnamed)?,
        amounts: Amounts {
            requests: sum(2)?,
            input_tokens: sum(3)?,
            output_tokens: sum(4)?,
            total_tokens: sum(5)?,
            credits: sum(6)?,
        },
        refusals: sum(7)?,
    })
}

static REFUSED: ManyRows = ManyRows::new(
    "minutes",
    &[("tenant", Int), ("minute", Int), ("feature", Text), ("refusals", Int)],
    "ON CONFLICT (tenant, minute, feature)
     DO UPDATE SET refusals = least(9007199254740991, minutes.refusals + excluded.refusals)",
);

/// Adds refusals; of one minute and feature they come once.
pub async fn add_refused(connection: &mut impl Sql, refused: &[RefusedMinute]) -> Result<(), Failure> {
    let values = refused.iter().flat_map(|of| {
        let feature = of.feature.as_ref().map(|feature| feature.shared()).unwrap_or_default();
        values![of.tenant.0, of.minute, feature, of.count.min(1 << 53).cast_signed()]
    });
    Ok(connection.write_rows(&REFUSED, values.collect()).await?)
}

pub const PRUNE: &str = "DELETE FROM minutes WHERE (tenant, minute, feature) IN
     (SELECT tenant, minute, feature FROM minutes WHERE tenant = $1 AND minute < $2 LIMIT $3)";

/// Takes rows of minutes before `minute` out, a bounded number. `false`: there are
/// no more.
pub async fn prune(connection: &mut impl Sql, tenant: TenantRef, minute: i64) -> Result<bool, Failure> {
    let gone = connection.execute(PRUNE, values![tenant.0, minute, PRUNED_AT_ONCE]).await?;
    Ok(gone >= u64::from(PRUNED_AT_ONCE))
}
