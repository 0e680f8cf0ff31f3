//! The conditions of pools.

use apportion::domain::charge::TenantRef;
use apportion::domain::ids::TenantId;
use apportion::ledger::{AuditQuery, Ledger, LedgerError, PoolCondition};

use super::Room;
use super::samples::*;

fn condition(pool: &str, version: u32, body: &str) -> PoolCondition {
    PoolCondition { pool: pool.into(), version, body: body.into() }
}

async fn put(ledger: &dyn Ledger, tenant: TenantRef, condition: PoolCondition) {
    ledger.put_condition(tenant, condition, None).await.unwrap();
}

pub async fn a_condition_is_replaced_only_by_the_next_version(room: impl Room) {
    let ledger = &*room.open().await;
    assert_eq!(ledger.conditions(TENANT).await.unwrap(), []);
    put(ledger, TENANT, condition("b", 1, "{}")).await;
    put(ledger, TENANT, condition("a", 1, "{\"x\":1}")).await;
    put(ledger, TENANT, condition("a", 2, "{\"x\":2}")).await;
    let revision = ledger.revision().await.unwrap();
    for wrong in [condition("a", 2, "{}"), condition("a", 4, "{}"), condition("c", 2, "{}")] {
        let answer = ledger.put_condition(TENANT, wrong, None).await;
        assert!(matches!(answer, Err(LedgerError::Conflict)), "{answer:?}");
    }
    assert_eq!(ledger.revision().await.unwrap(), revision);
    let expected = [condition("a", 2, "{\"x\":2}"), condition("b", 1, "{}")];
    assert_eq!(ledger.conditions(TENANT).await.unwrap(), expected);
    ledger.close().await;
    assert_eq!(room.open().await.conditions(TENANT).await.unwrap(), expected);
}

pub async fn conditions_belong_to_their_tenant_and_go_with_it(room: impl Room) {
    let ledger = &*room.open().await;
    let tenant = ledger.create_tenant(TenantId::parse("t").unwrap(), false, Vec::new()).await.unwrap().number;
    put(ledger, tenant, condition("p", 1, "{}")).await;
    put(ledger, OTHER, condition("p", 1, "{\"other\":1}")).await;
    ledger.delete_tenant(tenant, written()).await.unwrap();
    let late = ledger.put_condition(tenant, condition("p", 2, "{}"), None).await;
    assert!(matches!(late, Err(LedgerError::Conflict)), "{late:?}");
    while ledger.purge_tenant(tenant, 100).await.unwrap() {}
    assert_eq!(ledger.conditions(tenant).await.unwrap(), []);
    assert_eq!(ledger.conditions(OTHER).await.unwrap(), [condition("p", 1, "{\"other\":1}")]);
}

pub async fn a_condition_may_come_with_its_audit_row(room: impl Room) {
    let ledger = &*room.open().await;
    ledger.put_condition(TENANT, condition("p", 1, "{}"), Some((note(), written()))).await.unwrap();
    put(ledger, TENANT, condition("p", 2, "{}")).await;
    let refused = ledger.put_condition(TENANT, condition("p", 2, "{}"), Some((note(), written()))).await;
    assert!(matches!(refused, Err(LedgerError::Conflict)), "{refused:?}");
    let rows = ledger.audit(TENANT, AuditQuery { limit: 10, ..AuditQuery::default() }).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.action.as_str()).collect::<Vec<_>>(), [note().action]);
}
