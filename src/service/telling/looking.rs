//! What metrics tell and nobody counts on the way: looked at from time to time,
//! so that `/metrics` costs the same however much there is, and a decision
//! nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::histogram::Histogram;
use tokio::task::JoinHandle;

use super::by_plan::OTHER;
use crate::domain::cell::Standing;
use crate::service::{PoolEntry, Service, ServiceError};

const EVERY: Duration = Duration::from_secs(10);
/// Pools that are looked at, of all tenants together; each is a question to the
/// engine.
const LOOKED_AT: usize = 256;
/// Limits of pools that are told by name, as their names are tenants' words;
/// the fullest of the others is told for all of them.
pub const LIMITS_MAX: usize = 64;

/// Pool and limit.
type Named = (Arc<str>, Arc<str>);

#[derive(Debug, Default)]
pub struct Looked {
    /// Holds whose leases run, and those in doubt.
    holds: [AtomicU64; 2],
    loads: Mutex<BTreeMap<Named, f64>>,
}

impl Looked {
    /// Holds whose leases run, and those in doubt, as last counted.
    pub fn holds(&self) -> [u64; 2] {
        self.holds.each_ref().map(|count| count.load(Relaxed))
    }

    /// Of pools' limits the shares that were taken, as last seen.
    pub fn loads(&self) -> Vec<(Named, f64)> {
        self.loads.lock().iter().map(|(name, load)| (name.clone(), *load)).collect()
    }
}

/// What commits come to.
#[derive(Debug)]
pub struct Commits {
    pub changes: Histogram,
    pub seconds: Histogram,
}

impl Default for Commits {
    fn default() -> Self {
        let powers = (0..=10).map(|power| f64::from(1 << power));
        let seconds = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];
        Self { changes: Histogram::new(powers), seconds: Histogram::new(seconds) }
    }
}

impl Commits {
    pub fn note(&self, changes: usize, took: Duration) {
        self.changes.observe(changes as f64);
        self.seconds.observe(took.as_secs_f64());
    }
}

impl Service {
    /// Starts looking; abort the task to stop.
    pub fn start_looking(self: &Arc<Self>) -> JoinHandle<()> {
        let service = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                // A store that is away is told of elsewhere; the figures stay.
                if let Err(error) = service.look().await {
                    tracing::debug!(error = &error as &dyn std::error::Error, "figures for metrics are old");
                }
                tokio::time::sleep(EVERY).await;
            }
        })
    }

    async fn look(&self) -> Result<(), ServiceError> {
        let tenants = self.registry.tenants();
        let holds = tenants.iter().map(|tenant| (tenant.number, tenant.now())).collect();
        let holds = self.ledger.unfinished(holds).await?;
        let (mut loads, mut left) = (BTreeMap::new(), LOOKED_AT);
        for tenant in tenants {
            let catalog = tenant.catalog();
            let enforced = catalog.pools.iter().map(|entry| &**entry).filter(|entry| entry.pool.enforced);
            let pools: Vec<&PoolEntry> = enforced.take(left).collect();
            left -= pools.len();
            for (entry, rows) in pools.iter().zip(self.pool_loads(&tenant, &pools).await?) {
                for (row, _) in rows {
                    // Pools of several tenants may have one name.
                    let name = (entry.pool.id.shared(), row.name.shared());
                    let kept: &mut f64 = loads.entry(name).or_default();
                    *kept = kept.max(taken(&row.standing));
                }
            }
        }
        self.looked.holds.iter().zip(holds).for_each(|(kept, count)| kept.store(count, Relaxed));
        *self.looked.loads.lock() = bounded(loads);
        Ok(())
    }
}

/// The share of a limit that is taken.
fn taken(standing: &Standing) -> f64 {
    match standing.limit() {
        0 => 1.0,
        limit => limit.saturating_sub(standing.remaining()) as f64 / limit as f64,
    }
}

/// The first by name as they are, the others in one.
fn bounded(loads: BTreeMap<Named, f64>) -> BTreeMap<Named, f64> {
    let mut told = BTreeMap::new();
    for (nth, (name, load)) in loads.into_iter().enumerate() {
        let name = if nth < LIMITS_MAX { name } else { (OTHER.into(), OTHER.into()) };
        let kept: &mut f64 = told.entry(name).or_default();
        *kept = kept.max(load);
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fullest_limit_beyond_the_bound_is_told_for_all_of_them() {
        let named = |n: usize| (format!("pool-{n:03}").into(), "tokens".into());
        let loads = (0..LIMITS_MAX + 3).map(|n| (named(n), n as f64)).collect();
        let told = bounded(loads);
        assert_eq!(told.len(), LIMITS_MAX + 1);
        assert_eq!(told[&(OTHER.into(), OTHER.into())], (LIMITS_MAX + 2) as f64);
    }
}
