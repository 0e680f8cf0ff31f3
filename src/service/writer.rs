//! The one way to write tenants, users and records.
//!
//! The ledger's revision grows with every such write, by whichever process.
//! The writer counts its own, so that a poller can tell whether anything came
//! from elsewhere: new users written here must not make this process read all
//! its catalogs and users again twice a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;
use tokio::sync::RwLock;

use crate::domain::charge::TenantRef;
use crate::domain::ids::TenantId;
use crate::domain::time::Millis;
use crate::ledger::{Erasure, Ledger, LedgerError, Org, Record, TenantRow, User, Written};

pub(super) struct Writer {
    ledger: Arc<dyn Ledger>,
    /// Shared by writers; taken alone for the moment in which the revision is
    /// read, so that no own write is half counted.
    gate: RwLock<()>,
    own: AtomicU64,
    /// The revision up to which this process knows all, and the own writes in
    /// it. `None`: nothing is known for sure.
    known: Mutex<Option<Look>>,
}

/// A revision, and how many writes of this process it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    revision: u64,
    own: u64,
}

impl Writer {
    pub fn new(ledger: Arc<dyn Ledger>) -> Self {
        Self { ledger, gate: RwLock::default(), own: AtomicU64::new(0), known: Mutex::new(None) }
    }

    pub async fn put_user(&self, tenant: TenantRef, user: User, written: Written) -> Result<(), LedgerError> {
        let _counted = self.gate.read().await;
        self.ledger.put_user(tenant, user, written).await?;
        self.count();
        Ok(())
    }

    pub async fn erase_user(
        &self,
        tenant: TenantRef,
        erasure: Erasure,
        version: Option<u32>,
        written: Written,
    ) -> Result<(), LedgerError> {
        let _counted = self.gate.read().await;
        self.ledger.erase_user(tenant, erasure, version, written).await?;
        self.count();
        Ok(())
    }

    pub async fn return_user(
        &self,
        tenant: TenantRef,
        erasure: Erasure,
        written: Written,
    ) -> Result<(), LedgerError> {
        let _counted = self.gate.read().await;
        self.ledger.return_user(tenant, erasure, written).await?;
        self.count();
        Ok(())
    }

    pub async fn put_org(&self, tenant: TenantRef, org: Org, written: Written) -> Result<(), LedgerError> {
        let _counted = self.gate.read().await;
        self.ledger.put_org(tenant, org, written).await?;
        self.count();
        Ok(())
    }

    pub async fn put_record(&self, tenant: Option<TenantRef>, record: Record) -> Result<(), LedgerError> {
        let _counted = self.gate.read().await;
        self.ledger.put_record(tenant, record).await?;
        self.count();
        Ok(())
    }

    pub async fn create_tenant(
        &self,
        id: TenantId,
        test: bool,
        records: Vec<Record>,
    ) -> Result<TenantRow, LedgerError> {
        let _counted = self.gate.read().await;
        let row = self.ledger.create_tenant(id, test, records).await?;
        self.count();
        Ok(row)
    }

    pub async fn set_clock(
        &self,
        tenant: TenantRef,
        now: Millis,
        written: Written,
    ) -> Result<(), LedgerError> {
        let _counted = self.gate.read().await;
        self.ledger.set_clock(tenant, now, written).await?;
        self.count();
        Ok(())
    }

    pub async fn suspend_tenant(
        &self,
        tenant: TenantRef,
        suspended: bool,
        written: Written,
    ) -> Result<(), LedgerError> {
        let _counted = self.gate.read().await;
        self.ledger.suspend_tenant(tenant, suspended, written).await?;
        self.count();
        Ok(())
    }

    pub async fn delete_tenant(&self, tenant: TenantRef, written: Written) -> Result<(), LedgerError> {
        let _counted = self.gate.read().await;
        self.ledger.delete_tenant(tenant, written).await?;
        self.count();
        Ok(())
    }

    /// Looks whether others wrote. `None`: nobody did. `Some`: read everything
    /// again, then [`accept`](Self::accept) this look.
    pub async fn look(&self) -> Result<Option<Look>, LedgerError> {
        let _alone = self.gate.write().await;
        let revision = self.ledger.revision().await?;
        let look = Look { revision, own: self.own.load(SeqCst) };
        let mut known = self.known.lock();
        let all_own =
            known.is_some_and(|known| revision.wrapping_sub(known.revision) == look.own - known.own);
        if all_own {
            *known = Some(look);
        }
        Ok((!all_own).then_some(look))
    }

    /// Everything up to this look has been read.
    pub fn accept(&self, look: Look) {
        *self.known.lock() = Some(look);
    }

    /// Something written here could not be read back: the next look finds
    /// something new.
    pub fn distrust(&self) {
        *self.known.lock() = None;
    }

    fn count(&self) {
        self.own.fetch_add(1, SeqCst);
    }
}
