//! A user's history: one statement over holds, the audit and the last refusals,
//! so that all of it is of one moment.

use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::read::get;
use super::tallies;
use crate::domain::charge::TenantRef;
use crate::domain::hold::Hold;
use crate::domain::time::Millis;
use crate::ledger::encoding::unpack_hold;
use crate::ledger::{AuditEntry, AuditQuery, Edge, History, HistoryQuery, LedgerError, Written};

/// The condition of the index `holds_ended_late`, as the schema has it.
macro_rules! ended_late {
    () => {
        "finished_at IS NOT NULL
         AND (id < unhex(printf('%012X', finished_at - 120000)) OR id >= unhex(printf('%012X', finished_at + 1)))"
    };
}
pub(super) use ended_late;

/// Parts told apart by their first column, each from one index.
///
/// What ended late is in the order of ends already. The others ended within two
/// minutes, so the newest ends are among the ids from the edge back to two
/// minutes before the earliest end of a full page that is sure to lie behind
/// the edge; only these are looked at, by the index alone, and sorted.
pub(super) const HISTORY: &str = concat!(
    "
SELECT * FROM (SELECT 0 AS part, body, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM holds INDEXED BY holds_by_user
    WHERE tenant = $1 AND user_id = $2 AND id >= $3 AND id < $4 ORDER BY id DESC LIMIT $5)
UNION ALL
SELECT 1, body, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM holds WHERE rowid IN (
    SELECT rowid FROM holds INDEXED BY holds_by_user
    WHERE tenant = $1 AND user_id = $2 AND id < unhex(printf('%012X', min(max($7, 0), 281474976710000) + 1))
    AND id >= unhex(printf('%012X', max(0, -120000 + coalesce((
        SELECT min(finished_at) FROM (
            SELECT finished_at FROM holds INDEXED BY holds_by_user
            WHERE tenant = $1 AND user_id = $2 AND id < unhex(printf('%012X', min(max($7 - 120000, 0), 281474976710000)))
            AND id >= unhex(printf('%012X', max($6 - 120000, 0)))
            AND finished_at IS NOT NULL AND NOT (",
    ended_late!(),
    ") ORDER BY id DESC LIMIT $5)
        HAVING count(*) = $5), $6))))
    AND finished_at >= $6 AND (finished_at, id) < ($7, $8) AND NOT (",
    ended_late!(),
    ") ORDER BY finished_at DESC, id DESC LIMIT $5)
UNION ALL
SELECT * FROM (SELECT 1, body, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM holds INDEXED BY holds_ended_late
    WHERE tenant = $1 AND user_id = $2 AND finished_at >= $6 AND (finished_at, id) < ($7, $8) AND ",
    ended_late!(),
    " ORDER BY finished_at DESC, id DESC LIMIT $5)
UNION ALL
SELECT * FROM (SELECT 2, body, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM holds INDEXED BY holds_open_by_user
    WHERE tenant = $1 AND user_id = $2 AND finished_at IS NULL AND doubtful_from >= $6
    AND doubtful_from <= $9 AND (doubtful_from, id) < ($10, $11)
    ORDER BY doubtful_from DESC, id DESC LIMIT $5)
UNION ALL
SELECT * FROM (SELECT 3, NULL, number, action, target, old, new, written_at, written_by, reason
    FROM audit INDEXED BY audit_by_target
    WHERE tenant = $1 AND target = $2 AND action >= 'user.' AND action < 'user/'
    AND written_at >= $6 AND (written_at, number) < ($12, $13)
    ORDER BY written_at DESC, number DESC LIMIT $5)
UNION ALL
SELECT 4, recent, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM refused WHERE tenant = $1 AND user_id = $2"
);

pub(super) async fn rows(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    asked: &HistoryQuery,
) -> sqlx::Result<Vec<SqliteRow>> {
    let bytes = |id: u128| id.to_be_bytes().to_vec();
    let query = sqlx::query(HISTORY).bind(tenant.0).bind(asked.user.shared());
    let query = query.bind(bytes(first_id(asked.from))).bind(bytes(made_before(asked.made)));
    let query = query.bind(asked.limit).bind(asked.from.0);
    let query = query.bind(asked.ended.at.0).bind(bytes(asked.ended.id)).bind(asked.now.0);
    let query = query.bind(asked.doubtful.at.0).bind(bytes(asked.doubtful.id));
    let number = i64::try_from(asked.changed.id).unwrap_or(i64::MAX);
    query.bind(asked.changed.at.0).bind(number).fetch_all(connection).await
}

/// Ids of holds that were made then or later begin here.
fn first_id(at: Millis) -> u128 {
    (at.0.max(0) as u128) << 80
}

/// The id below which all holds were made before the edge.
fn made_before(edge: Edge) -> u128 {
    edge.id.clamp(first_id(edge.at), first_id(Millis(edge.at.0.saturating_add(1))))
}

/// At most `limit` of what ended: it comes in two parts.
pub(super) fn read(rows: &[SqliteRow], limit: u32) -> Result<History, LedgerError> {
    let hold = |row: &SqliteRow| -> Result<Hold, LedgerError> { unpack_hold(get(row, 1)?) };
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
fn entry(row: &SqliteRow, first: usize) -> Result<AuditEntry, LedgerError> {
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

pub(super) fn audit_entry(row: &SqliteRow) -> Result<AuditEntry, LedgerError> {
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

pub(super) const AUDIT_OF_TARGET: &str = audit_page!(
    "audit_by_target",
    "target = $7 AND ($6 IS NULL OR written_by = $6) AND ($4 IS NULL OR written_at >= $4)
     AND ($5 IS NULL OR written_at < $5)"
);
pub(super) const AUDIT_OF_AUTHOR: &str = audit_page!(
    "audit_by_author",
    "written_by = $6 AND ($4 IS NULL OR written_at >= $4) AND ($5 IS NULL OR written_at < $5)"
);
/// What happened since: little of it, and sorted for that.
pub(super) const AUDIT_SINCE: &str =
    audit_page!("audit_by_time", "written_at >= $4 AND ($5 IS NULL OR written_at < $5)");
pub(super) const AUDIT: &str = audit_page!("audit_by_tenant", "($5 IS NULL OR written_at < $5)");

/// Newest first: in the order in which the rows came, also where a test clock
/// was set back.
pub(super) async fn audit_rows(
    connection: &mut SqliteConnection,
    tenant: TenantRef,
    asked: AuditQuery,
) -> sqlx::Result<Vec<SqliteRow>> {
    let text = match (&asked.target, &asked.by, asked.from) {
        (Some(_), _, _) => AUDIT_OF_TARGET,
        (None, Some(_), _) => AUDIT_OF_AUTHOR,
        (None, None, Some(_)) => AUDIT_SINCE,
        (None, None, None) => AUDIT,
    };
    let before = asked.before.and_then(|number| i64::try_from(number).ok()).unwrap_or(i64::MAX);
    let query = sqlx::query(text).bind(tenant.0).bind(before).bind(asked.limit);
    let query = query.bind(asked.from.map(|at| at.0)).bind(asked.to.map(|at| at.0));
    query.bind(asked.by).bind(asked.target).fetch_all(connection).await
}
