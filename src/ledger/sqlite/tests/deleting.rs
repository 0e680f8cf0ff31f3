//! Deleting tenants, as far as it is SQLite's own: which tables, by which plans.

use sqlx::AssertSqlSafe;

use super::super::purging;
use super::*;
use crate::domain::ids::TenantId;
use crate::ledger::Ledger;

#[tokio::test]
async fn every_table_with_a_tenant_is_purged_by_an_index_but_the_audit() {
    let dir = Dir::new();
    dir.open().await;
    let mut other = dir.other().await;
    let tables = purging::tables(&mut other).await.unwrap();
    let names: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
    for name in ["accounts", "day_totals", "pentad_totals", "month_totals", "records", "taken", "users"] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
    assert!(!names.contains(&"audit") && !names.contains(&"holds"), "{names:?}");
    for text in tables.iter().flat_map(purging::Table::statements) {
        let plan = plans::plan(&dir, &text).await;
        assert!(!plan.contains("SCAN") && !plan.contains("TEMP B-TREE"), "{text}\n{plan}");
    }
}

#[tokio::test]
async fn the_audit_outlives_its_tenant_and_the_journal_does_not() {
    let dir = Dir::new();
    let ledger = dir.open().await;
    let row = ledger.create_tenant(TenantId::parse("shop").unwrap(), false, Vec::new()).await.unwrap();
    assert_eq!(row.number, TENANT);
    ledger.suspend_tenant(TENANT, true, written("op")).await.unwrap();
    ledger.suspend_tenant(TENANT, true, written("op")).await.unwrap();
    ledger.suspend_tenant(TENANT, false, written("op")).await.unwrap();
    ledger.commit(vec![change("u", 1)]).await.unwrap();
    ledger.delete_tenant(TENANT, written("op")).await.unwrap();
    while ledger.purge_tenant(TENANT, 10).await.unwrap() {}
    let mut other = dir.other().await;
    let audit: Vec<(i64, String, String, Option<String>)> =
        sqlx::query_as("SELECT tenant, action, written_by, reason FROM audit ORDER BY number")
            .fetch_all(&mut other)
            .await
            .unwrap();
    let actions: Vec<&str> = audit.iter().map(|(_, action, ..)| action.as_str()).collect();
    assert_eq!(actions, ["tenant.create", "tenant.suspend", "tenant.resume", "tenant.delete"]);
    assert!(audit.iter().all(|(tenant, ..)| *tenant == 1));
    assert_eq!((audit[3].2.as_str(), audit[3].3.as_deref()), ("op", Some("why not")));
    let bodies = "SELECT count(*) FROM journal WHERE length(body) > 0";
    let bodies: i64 = sqlx::query_scalar(AssertSqlSafe(bodies)).fetch_one(&mut other).await.unwrap();
    assert_eq!(bodies, 0, "the journal has nothing of it");
    for table in
        ["holds", "accounts", "day_totals", "pentad_totals", "month_totals", "users", "taken", "records"]
    {
        assert_eq!(count(&dir, table).await, 0, "{table}");
    }
}
