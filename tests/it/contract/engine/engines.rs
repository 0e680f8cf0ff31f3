//! The engines there are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use apportion::domain::charge::TenantRef;
use apportion::domain::slot::Slot;
use apportion::engine::redis::{Options, Redis, RedisEngine};
use apportion::engine::{Engine, MemoryEngine};
use tokio::sync::{Mutex, MutexGuard};

use super::NOW;
use crate::harness::redis::{Cluster, Node, Single};

/// The engines, and for as long as they are looked at the turn to do so: they
/// share servers, and the tests tenants.
pub struct Engines {
    list: std::vec::IntoIter<(&'static str, Arc<dyn Engine>)>,
    _turn: Option<MutexGuard<'static, ()>>,
}

impl Iterator for Engines {
    type Item = (&'static str, Arc<dyn Engine>);

    fn next(&mut self) -> Option<Self::Item> {
        self.list.next()
    }
}

/// For what an engine does only whose state is in this process.
pub fn in_memory() -> Engines {
    let memory: Arc<dyn Engine> = Arc::new(MemoryEngine::new(1_000));
    Engines { list: vec![("memory", memory)].into_iter(), _turn: None }
}

/// All of them.
pub async fn engines() -> Engines {
    let apart = in_redis().await;
    Engines { list: in_memory().chain(apart.list).collect::<Vec<_>>().into_iter(), _turn: apart._turn }
}

/// Those that several processes can work on, with slots that are open.
pub async fn in_redis() -> Engines {
    static TURN: Mutex<()> = Mutex::const_new(());
    static EPOCH: AtomicU64 = AtomicU64::new(1);
    let turn = TURN.lock().await;
    let slot = Slot { epoch: EPOCH.fetch_add(1, Ordering::Relaxed), drained: 0 };
    let servers =
        [("redis", Single::shared().map(Node::url)), ("redis cluster", Cluster::shared().map(Cluster::url))];
    let mut list = Vec::new();
    for (name, url) in servers {
        let Some(url) = url else { continue };
        list.push((name, at(&url, Options::default(), slot).await));
    }
    Engines { list: list.into_iter(), _turn: Some(turn) }
}

/// One node's engine, with the slots of two test tenants.
pub async fn at(url: &str, options: Options, slot: Slot) -> Arc<dyn Engine> {
    let redis = Redis::connect(url).await.expect("it is up");
    let engine = RedisEngine::new(redis, Options { checks: true, ..options });
    for tenant in [TenantRef(1), TenantRef(2)] {
        engine.open_slot(tenant, slot).await.expect("up");
        assert!(engine.admit(tenant, slot).await.expect("up"));
        engine.set_clock(tenant, NOW).await.expect("up");
    }
    Arc::new(engine)
}
