//! A user's history: one statement over holds, the audit and the last refusals,
//! so that all of it is of one moment.

use std::ops::Range;

use super::read::Query;
use super::tallies;
use super::{Columns, Failure, Sql, Value, each, get, values};
use crate::domain::charge::TenantRef;
use crate::domain::hold::Hold;
use crate::domain::ids::{HoldId, UserId};
use crate::domain::time::Millis;
use crate::ledger::encoding::unpack_hold;
use crate::ledger::{AuditEntry, AuditQuery, Edge, History, HistoryQuery, LedgerError, Written};

/// The parameters of [`Sql::HISTORY`].
pub fn parameters(tenant: TenantRef, asked: &HistoryQuery) -> Vec<Value> {
    values![
        tenant.0,
        asked.user.shared(),
        first_id(asked.from).to_be_bytes(),
        made_before(asked.made).to_be_bytes(),
        asked.limit,
        asked.from.0,
        asked.ended.at.0,
        asked.ended.id.to_be_bytes(),
        asked.now.0,
        asked.doubtful.at.0,
        asked.doubtful.id.to_be_bytes(),
        asked.changed.at.0,
        i64::try_from(asked.changed.id).unwrap_or(i64::MAX)
    ]
}

/// Ids of holds that were made then or later begin here.
pub(super) fn first_id(at: Millis) -> u128 {
    (at.0.max(0) as u128) << 80
}

/// A user's holds that were made within `instants`, after `after`.
pub fn made(
    tenant: TenantRef,
    user: UserId,
    instants: &Range<Millis>,
    after: Option<HoldId>,
    limit: u32,
) -> Query {
    let first = HoldId(first_id(instants.start).saturating_sub(1));
    let after = after.map_or(first, |after| after.max(first));
    Query::Made { tenant, user, after, before: HoldId(first_id(instants.end)), limit }
}

/// The id below which all holds were made before the edge.
fn made_before(edge: Edge) -> u128 {
    edge.id.clamp(first_id(edge.at), first_id(Millis(edge.at.0.saturating_add(1))))
}

/// At most `limit` of what ended: it may come in two parts.
pub fn read<R: Columns>(rows: &[R], limit: u32) -> Result<History, LedgerError> {
    let hold = |row: &R| -> Result<Hold, LedgerError> { unpack_hold(get(row, 1)?) };
    let mut history = History::default();
    for row in rows {
        match get::<i64>(row, 0)? {
            0 => history.made.push(hold(row)?),
            1 => history.ended.push(hold(row)?),
            2 => history.doubtful.push(hold(row)?),
            3 => history.changed.push(entry(row, 2)?),
            _ => history.refused = tallies::recent(row, 1)?,
        }
    }
    history.ended.sort_by_key(|hold| std::cmp::Reverse((hold.finished_at(), hold.id)));
    history.ended.truncate(limit as usize);
    Ok(history)
}

/// An audit row, of which the first column stands at `first`.
fn entry(row: &impl Columns, first: usize) -> Result<AuditEntry, LedgerError> {
    Ok(AuditEntry {
        number: get::<i64>(row, first)?.cast_unsigned(),
        action: get(row, first + 1)?,
        target: get(row, first + 2)?,
        old: get(row, first + 3)?,
        new: get(row, first + 4)?,
        written: Written {
            at: Millis(get(row, first + 5)?),
            by: get(row, first + 6)?,
            reason: get(row, first + 7)?,
        },
    })
}

pub fn audit_entry(row: &impl Columns) -> Result<AuditEntry, LedgerError> {
    entry(row, 0)
}

macro_rules! audit_page {
    ($index:literal, $which:literal) => {
        concat!(
            "SELECT number, action, target, old, new, written_at, written_by, reason
             FROM audit INDEXED BY ",
            $index,
            " WHERE tenant = $1 AND number < $2 AND ",
            $which,
            " ORDER BY number DESC LIMIT $3"
        )
    };
}

pub const AUDIT_OF_TARGET: &str = audit_page!(
    "audit_by_target",
    "target = $7 AND ($6 IS NULL OR written_by = $6) AND ($4 IS NULL OR written_at >= $4)
     AND ($5 IS NULL OR written_at < $5)"
);
pub const AUDIT_OF_AUTHOR: &str = audit_page!(
    "audit_by_author",
    "written_by = $6 AND ($4 IS NULL OR written_at >= $4) AND ($5 IS NULL OR written_at < $5)"
);
/// What happened since: little of it, and sorted for that.
pub const AUDIT_SINCE: &str =
    audit_page!("audit_by_time", "written_at >= $4 AND ($5 IS NULL OR written_at < $5)");
pub const AUDIT: &str = audit_page!("audit_by_tenant", "($5 IS NULL OR written_at < $5)");

/// Newest first: in the order in which the rows came, also where a test clock
/// was set back.
pub async fn audit_rows(
    connection: &mut impl Sql,
    tenant: TenantRef,
    asked: AuditQuery,
) -> Result<Vec<AuditEntry>, Failure> {
    let text = match (&asked.target, &asked.by, asked.from) {
        (Some(_), _, _) => AUDIT_OF_TARGET,
        (None, Some(_), _) => AUDIT_OF_AUTHOR,
        (None, None, Some(_)) => AUDIT_SINCE,
        (None, None, None) => AUDIT,
    };
    let before = asked.before.and_then(|number| i64::try_from(number).ok()).unwrap_or(i64::MAX);
    let (from, to) = (asked.from.map(|at| at.0), asked.to.map(|at| at.0));
    let values = values![tenant.0, before, asked.limit, from, to, asked.by, asked.target];
    each(&connection.rows(text, values).await?, audit_entry)
}
