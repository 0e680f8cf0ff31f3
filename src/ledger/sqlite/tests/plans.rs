//! The plans that SQLite makes for our queries. With a million users and many
//! millions of holds, a query for one of them must not read a table.

use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Row};

use super::super::doubts::UNFINISHED_OF_MANY;
use super::super::ended;
use super::Dir;
use crate::ledger::sql::{
    Sql, active, changes, doubts, erasing, feed, history, minutes, outputs, pruning, read, records, tallies,
    totals, users,
};

pub(super) async fn plan(dir: &Dir, query: &str) -> String {
    let text = format!("EXPLAIN QUERY PLAN {query}");
    let rows = sqlx::query(AssertSqlSafe(text)).fetch_all(&mut dir.other().await).await.unwrap();
    let steps: Vec<String> = rows.iter().map(|row| row.get("detail")).collect();
    steps.join("\n")
}

#[tokio::test]
async fn no_query_reads_a_whole_table() {
    let dir = Dir::new();
    dir.open().await;
    let queries = [
        (
            ended::USER_ACCOUNT,
            &[
                "accounts USING PRIMARY KEY",
                "holds_open_by_user (tenant=? AND user_id=?)",
                "COVERING INDEX holds_by_user (tenant=? AND user_id=? AND id>?)",
                "COVERING INDEX holds_ended_late (tenant=? AND user_id=? AND finished_at>?)",
            ][..],
        ),
        (read::ORG_ACCOUNT, &["accounts USING PRIMARY KEY", "holds_open_by_org"]),
        (read::WIDE_ACCOUNT, &["accounts USING PRIMARY KEY", "holds_open_by_"]),
        (read::HOLD, &["sqlite_autoindex_holds_1 (id=?)"]),
        (read::HOLD_BY_REQUEST, &["holds_by_user (tenant=? AND user_id=?"]),
        (
            ended::HISTORY,
            &[
                "holds_by_user (tenant=? AND user_id=? AND id>? AND id<?)",
                "COVERING INDEX holds_by_user (tenant=? AND user_id=? AND id>? AND id<?)",
                "holds USING INTEGER PRIMARY KEY (rowid=?)",
                "holds_ended_late (tenant=? AND user_id=? AND finished_at>? AND (finished_at,id)<(?,?))",
                "holds_open_by_user (tenant=? AND user_id=?)",
                "audit_by_target (tenant=? AND target=?)",
                "sqlite_autoindex_refused_1 (tenant=? AND user_id=?)",
            ],
        ),
        (history::AUDIT_OF_TARGET, &["audit_by_target (tenant=? AND target=? AND rowid<?)"]),
        (history::AUDIT_OF_AUTHOR, &["audit_by_author (tenant=? AND written_by=? AND rowid<?)"]),
        (history::AUDIT_SINCE, &["audit_by_time (tenant=? AND written_at>?"]),
        (history::AUDIT, &["audit_by_tenant (tenant=? AND rowid<?)"]),
        (tallies::COMPARED, &["comparisons USING PRIMARY KEY (tenant=? AND day>? AND day<?)"]),
        (minutes::MINUTES, &["minutes USING PRIMARY KEY (tenant=? AND minute>? AND minute<?)"]),
        (minutes::PRUNE, &["minutes USING PRIMARY KEY (tenant=? AND minute<?)"]),
        (tallies::PRUNE_REFUSALS, &["refusals USING PRIMARY KEY (tenant=? AND day<?)"]),
        (tallies::PRUNE_COMPARISONS, &["comparisons USING PRIMARY KEY (tenant=? AND day<?)"]),
        (outputs::PRUNE_OUTPUTS, &["outputs USING PRIMARY KEY (tenant=? AND day<?)"]),
        (doubts::DOUBTFUL, &["holds_open_by_time (tenant=? AND doubtful_from>? AND doubtful_from<?)"]),
        (doubts::DOUBTFUL_OF_USER, &["holds_open_by_user (tenant=? AND user_id=?)"]),
        (active::SEEN, &["sqlite_autoindex_active_1 (tenant=? AND slot=? AND plan=?)"]),
        (active::PEAKS, &["sqlite_autoindex_active_1 (tenant=? AND slot>? AND slot<?)"]),
        (active::FORGET, &["sqlite_autoindex_active_1 (tenant=? AND slot<?)"]),
        (
            feed::FEED_PAGE,
            &[
                "feed USING INDEX sqlite_autoindex_feed_1 (tenant=? AND number>? AND number<?)",
                "feed USING COVERING INDEX sqlite_autoindex_feed_1 (tenant=? AND number<?)",
            ],
        ),
        (feed::OLDEST, &["feed USING INDEX sqlite_autoindex_feed_1 (tenant=?)"]),
        (feed::PRUNE, &["sqlite_autoindex_feed_1 (tenant=? AND number<?)"]),
        (feed::OLD, &["holds USING INDEX sqlite_autoindex_holds_1 (id>? AND id<?)", "tenants USING INTEGER"]),
        (SqliteConnection::HOLDS_OF_MANY, &["holds USING INDEX sqlite_autoindex_holds_1 (id=?)"]),
        (UNFINISHED_OF_MANY, &["holds USING INDEX sqlite_autoindex_holds_1 (id=?)"]),
        (pruning::END, &["COVERING INDEX sqlite_autoindex_holds_1 (id>? AND id<?)"]),
        (
            pruning::PRUNE,
            &["holds USING INDEX sqlite_autoindex_holds_1 (id>? AND id<?)", "tenants USING INTEGER"],
        ),
        (totals::USAGE, &["day_totals USING PRIMARY KEY (tenant=? AND kind=? AND start>? AND start<?)"]),
        (users::USER, &["users USING PRIMARY KEY (tenant=? AND id=?)"]),
        (users::ALL, &["users USING PRIMARY KEY (tenant=? AND id>? AND id<?)"]),
        (users::ERASED_DUE, &["users_erased (tenant=? AND look_at<?)"]),
        (users::OF_PLAN, &["users_by_plan (tenant=? AND plan=? AND id>? AND id<?)"]),
        (users::OF_ORG, &["users_by_org (tenant=? AND org=? AND id>? AND id<?)"]),
        (records::NEWEST_RECORDS, &["(tenant=?)", "(tenant=? AND kind=? AND id=?)"]),
        (records::VERSIONS, &["(tenant=? AND kind=? AND id=?)"]),
    ];
    for (query, expected) in queries {
        let plan = plan(&dir, query).await;
        println!("{query}\n{plan}\n");
        // Parts of one statement are gone through one after the other.
        // And what has one row, or comes as a parameter, is no table.
        let small = ["SCAN (sub", "SCAN CONSTANT ROW", "SCAN wanted", "SCAN json_each"];
        let is_small = |step: &&str| small.iter().any(|name| step.starts_with(name));
        let scans = plan.lines().filter(|step| step.starts_with("SCAN") && !is_small(step));
        assert_eq!(scans.count(), 0, "{query}\n{plan}");
        for part in expected {
            assert!(plan.contains(part), "{part} is not in the plan of {query}\n{plan}");
        }
    }
}

#[tokio::test]
async fn ids_are_counted_along_an_index() {
    let dir = Dir::new();
    dir.open().await;
    for (query, expected) in [
        (users::NTH, "users USING PRIMARY KEY (tenant=? AND id>? AND id<?)"),
        (users::NTH_OF_PLAN, "users_by_plan (tenant=? AND plan=? AND id>? AND id<?)"),
        (users::NTH_OF_ORG, "users_by_org (tenant=? AND org=? AND id>? AND id<?)"),
    ] {
        let plan = plan(&dir, query).await;
        assert!(plan.contains(expected) && !plan.contains("TEMP B-TREE"), "{query}\n{plan}");
    }
}

#[tokio::test]
async fn a_page_is_read_in_order_without_sorting() {
    let dir = Dir::new();
    dir.open().await;
    let audit = [history::AUDIT, history::AUDIT_OF_TARGET, history::AUDIT_OF_AUTHOR];
    let others =
        [users::ALL, users::OF_PLAN, users::OF_ORG, records::VERSIONS, totals::USAGE, tallies::COMPARED];
    for query in others.into_iter().chain(audit) {
        let plan = plan(&dir, query).await;
        assert!(!plan.contains("TEMP B-TREE"), "{query}\n{plan}");
    }
}

#[tokio::test]
async fn counters_of_one_user_are_found_day_by_day() {
    let dir = Dir::new();
    dir.open().await;
    let plan = plan(&dir, tallies::REFUSALS_OF_USER).await;
    assert!(plan.contains("refusals USING PRIMARY KEY (tenant=? AND day=? AND user_id=?)"), "{plan}");
    assert!(!plan.contains("SCAN refusals"), "{plan}");
    for (query, seek) in [
        (totals::DAYS_OF_USER, "theirs USING PRIMARY KEY (tenant=? AND kind=? AND start=? AND name=?)"),
        (totals::PENTADS_OF_USER, "theirs USING PRIMARY KEY (tenant=? AND kind=? AND start=? AND name=?)"),
        (totals::MONTHS_OF_USER, "theirs USING PRIMARY KEY (tenant=? AND kind=? AND start=? AND name=?)"),
        (erasing::REFUSALS, "refusals USING PRIMARY KEY (tenant=? AND day=? AND user_id=?)"),
    ] {
        let plan = super::plans::plan(&dir, query).await;
        assert!(plan.contains(seek) && !plan.contains("SCAN refusals"), "{plan}");
        assert!(!plan.contains("SCAN theirs"), "{plan}");
    }
}

#[tokio::test]
async fn of_a_users_history_only_changes_doubt_and_a_page_of_ends_are_sorted() {
    let dir = Dir::new();
    dir.open().await;
    let plan = plan(&dir, ended::HISTORY).await;
    assert_eq!(plan.matches("TEMP B-TREE").count(), 3, "{plan}");
}

#[tokio::test]
async fn a_poller_reads_the_revision_and_what_came_since() {
    let dir = Dir::new();
    dir.open().await;
    let plan = plan(&dir, changes::SINCE).await;
    assert!(plan.contains("changes USING PRIMARY KEY (revision>?)"), "{plan}");
    assert_eq!(plan.matches("SCAN").count(), 1, "the one row of the revision: {plan}");
}
