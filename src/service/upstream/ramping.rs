//! How fast the traffic of a pool may grow.
//!
//! The limit of any minute is exact, in the pool's account like its other
//! limits. How high it is follows from how busy the minutes were that are long
//! over: each node notes what it sees of the account with its admissions, and
//! what it has seen is on record in the pool's condition within seconds, for the
//! others and for whoever starts later. Who knows less allows less.

use crate::domain::cell::Standing;
use crate::domain::hold::Hold;
use crate::domain::step::Shown;
use crate::domain::time::Millis;
use crate::service::calls::charging::Charging;
use crate::service::tenancy::catalog::{Catalog, PoolEntry, Tenant};
use crate::service::{Service, ServiceError};

impl PoolEntry {
    /// What its ramp allows in the minute that ends now, if it has one.
    pub(in crate::service) fn ramp_allows(&self, now: Millis) -> Option<u64> {
        let ramp = self.pool.ramp.as_ref()?;
        Some(ramp.allows(&[self.condition().peaks(), &self.observed.lock().peaks], now))
    }

    fn note_busy(&self, counted: u64, now: Millis) {
        let Some(ramp) = &self.pool.ramp else { return };
        let mut lately = self.observed.lock();
        let surely = ramp.surely(counted, &[self.condition().peaks(), &lately.peaks], now);
        lately.peaks.note(surely, now);
    }
}

impl Catalog {
    /// A call was admitted: what its pool's minute has come to.
    pub(in crate::service) fn note_busy(&self, hold: &Hold, charging: &Charging<'_>, standings: &[Shown]) {
        let Some(entry) = hold.pool.as_ref().and_then(|pool| self.pool(pool)) else { return };
        let Some((_, cell)) = &entry.ramp else { return };
        let of_ramp = charging.charges.iter().zip(standings).find(|(charge, _)| charge.cell == *cell);
        if let Some((_, Shown { standing: Standing::Rolling { used, .. }, .. })) = of_ramp {
            entry.note_busy(*used, hold.created_at);
        }
    }
}

impl Service {
    /// Puts on record how busy pools were, where that is new and matters.
    pub(in crate::service) async fn record_busy(&self, tenant: &Tenant) -> Result<(), ServiceError> {
        for entry in &tenant.catalog().pools {
            let Some(ramp) = entry.pool.ramp.as_ref().filter(|_| entry.pool.enforced) else { continue };
            let seen = entry.observed.lock().peaks.clone();
            self.registry
                .change_condition(tenant, &entry.pool.id, None, |known, now| known.busy(&seen, ramp, now))
                .await?;
        }
        Ok(())
    }
}
