//! The plans that SQLite makes for our queries. With a million users and many
//! millions of holds, a query for one of them must not read a table.

use sqlx::{AssertSqlSafe, Row};

use super::super::{doubts, read, records, users};
use super::Dir;

async fn plan(dir: &Dir, query: &str) -> String {
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
            read::USER_ACCOUNT,
            &["accounts USING PRIMARY KEY", "holds_open_by_user", "COVERING INDEX holds_requests"][..],
        ),
        (read::ORG_ACCOUNT, &["accounts USING PRIMARY KEY", "holds_open_by_org"]),
        (read::WIDE_ACCOUNT, &["accounts USING PRIMARY KEY", "holds_open_by_"]),
        (read::HOLD, &["sqlite_autoindex_holds_1 (id=?)"]),
        (read::HOLD_BY_REQUEST, &["holds_open_by_user", "holds_requests (tenant=? AND user_id=?"]),
        (doubts::DOUBTFUL, &["holds_open_by_time (tenant=? AND doubtful_from>? AND doubtful_from<?)"]),
        (doubts::DOUBTFUL_OF_USER, &["holds_open_by_user (tenant=? AND user_id=?)"]),
        (read::USAGE, &["usage USING PRIMARY KEY (tenant=? AND day>? AND day<?)"]),
        (users::USER, &["users USING PRIMARY KEY (tenant=? AND id=?)"]),
        (users::ALL, &["users USING PRIMARY KEY (tenant=? AND id>?)"]),
        (users::OF_PLAN, &["users_by_plan (tenant=? AND plan=? AND id>?)"]),
        (users::OF_ORG, &["users_by_org (tenant=? AND org=? AND id>?)"]),
        (records::NEWEST_RECORDS, &["(tenant=?)", "(tenant=? AND kind=? AND id=?)"]),
        (records::VERSIONS, &["(tenant=? AND kind=? AND id=?)"]),
    ];
    for (query, expected) in queries {
        let plan = plan(&dir, query).await;
        println!("{query}\n{plan}\n");
        assert!(!plan.contains("SCAN"), "{query}\n{plan}");
        for part in expected {
            assert!(plan.contains(part), "{part} is not in the plan of {query}\n{plan}");
        }
    }
}

#[tokio::test]
async fn a_page_of_users_is_read_in_order_without_sorting() {
    let dir = Dir::new();
    dir.open().await;
    for query in [users::ALL, users::OF_PLAN, users::OF_ORG, records::VERSIONS, read::USAGE] {
        let plan = plan(&dir, query).await;
        assert!(!plan.contains("TEMP B-TREE"), "{query}\n{plan}");
    }
}
