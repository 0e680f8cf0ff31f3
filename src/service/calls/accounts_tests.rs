//! How often the ledger is asked for what the engine lacks.

use std::sync::atomic::Ordering::SeqCst;

use futures_util::future::join_all;

use super::*;
use crate::engine::MemoryEngine;
use crate::service::Outage;
use crate::service::tenancy::bench::Bench;

/// With thousands of calls that wait and thousands of open holds in an account,
/// none would ever see the end of it.
#[tokio::test]
async fn what_many_share_is_read_once_for_all_who_wait_for_it() {
    let bench = Bench::new().await;
    let engine = Arc::new(MemoryEngine::new(1000));
    let service = Service::new(bench.registry.clone(), engine, bench.ledger.clone(), Outage::closed());
    bench.ledger.slow.store(true, SeqCst);
    let now = Millis(0);
    let key = AccountKey { tenant: TenantRef(1), scope: Scope::Tenant, owner: "".into() };
    let asked = || service.apply(now, || service.engine.touch(&key, &[], now));
    let answers = join_all((0..50).map(|_| asked())).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(bench.ledger.accounts_read.load(SeqCst), 1);
}
