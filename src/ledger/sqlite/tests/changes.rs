//! The log of changes, as far as it is SQLite's own: what is left of it.

use super::*;
use crate::ledger::Ledger;

const LIMIT: u32 = 1_000_000;

async fn put_users(ledger: &SqliteLedger, users: std::ops::Range<u32>) {
    for number in users {
        let user = UserId::parse(&format!("u_{number}")).unwrap();
        let erasure = crate::ledger::Erasure { pseudonym: user.clone(), user };
        // The least that raises the revision.
        ledger.end_erasure(TENANT, erasure, None).await.unwrap();
    }
}

#[tokio::test]
async fn the_log_is_pruned_and_whoever_needs_more_reads_everything() {
    let dir = Dir::new();
    let ledger = dir.open().await;
    put_users(&ledger, 0..3).await;
    // As if very much had been written.
    let text = "UPDATE revision SET value = 100253; UPDATE changes SET revision = revision + 100250";
    execute(&mut dir.other().await, text).await.unwrap();
    let old = "INSERT INTO changes VALUES (252, 0, 'tenant', '', 0), (352, 0, 'tenant', '', 0),
               (353, 0, 'tenant', '', 0)";
    execute(&mut dir.other().await, old).await.unwrap();
    put_users(&ledger, 3..102).await;
    assert_eq!(ledger.revision().await.unwrap(), 100_352);
    let kept = "SELECT min(revision) FROM changes";
    let oldest: i64 = sqlx::query_scalar(kept).fetch_one(&mut dir.other().await).await.unwrap();
    assert_eq!(oldest, 353, "100,352 is the 392nd multiple of 256");
    let known = ledger.changes_since(100_250, LIMIT).await.unwrap();
    assert!(known.told.is_some_and(|told| told.last().unwrap().revision == 100_352));
    assert_eq!(ledger.changes_since(100_249, LIMIT).await.unwrap().told, None);
}

#[tokio::test]
async fn a_write_of_an_older_program_may_have_changed_anything() {
    let dir = Dir::new();
    let ledger = dir.open().await;
    put_users(&ledger, 0..2).await;
    execute(&mut dir.other().await, "UPDATE revision SET value = value + 1").await.unwrap();
    assert_eq!(ledger.changes_since(2, LIMIT).await.unwrap().told, None);
    put_users(&ledger, 2..3).await;
    assert_eq!(ledger.changes_since(2, LIMIT).await.unwrap().told, None);
    assert!(ledger.changes_since(3, LIMIT).await.unwrap().told.is_some());
}
