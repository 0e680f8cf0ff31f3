//! Statements about what a user's holds came to, from the indexes that SQLite
//! has for them.

/// The condition of the index `holds_ended_late`, as the schema has it.
macro_rules! ended_late {
    () => {
        "finished_at IS NOT NULL
         AND (id < unhex(printf('%012X', finished_at - 120000)) OR id >= unhex(printf('%012X', finished_at + 1)))"
    };
}

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

/// Whatever ended since then is young, or ended late.
pub(super) const USER_ACCOUNT: &str = concat!(
    "SELECT 0, state, NULL, NULL FROM accounts WHERE tenant = $1 AND scope = $2 AND owner = $3
     UNION ALL SELECT 1, body, NULL, NULL FROM holds
         WHERE tenant = $1 AND finished_at IS NULL AND user_id = $3",
    " UNION ALL SELECT 2, id, request, finished_at FROM holds INDEXED BY holds_by_user
      WHERE tenant = $1 AND user_id = $3 AND id >= unhex(printf('%012X', max($4 - 120000, 0)))
      AND request IS NOT NULL AND finished_at >= $4
      UNION ALL SELECT 2, id, request, finished_at FROM holds INDEXED BY holds_ended_late
      WHERE tenant = $1 AND user_id = $3 AND id < unhex(printf('%012X', max($4 - 120000, 0)))
      AND request IS NOT NULL AND finished_at >= $4 AND ",
    ended_late!()
);
