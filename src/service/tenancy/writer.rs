//! The one way to write tenants, users and records.
//!
//! The ledger's revision grows with every such write, by whichever process.
//! The writer counts its own, so that a poller can tell whether anything came
//! from elsewhere: what was written here is known here, and not read again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;
use tokio::sync::RwLock;

use super::following::Channel;
use crate::domain::charge::TenantRef;
use crate::domain::ids::{TenantId, UserId};
use crate::domain::time::Millis;
use crate::ledger::{
    Answer, Changed, Erasure, Ledger, LedgerError, Message, Record, TenantRow, User, Write, Written,
};

/// Whoever is more revisions behind reads everything.
const FOLLOWED_MAX: u32 = 20_000;

pub(in crate::service) struct Writer {
    ledger: Arc<dyn Ledger>,
    channel: Arc<Channel>,
    /// Shared by writers; taken alone for the moment in which the revision is
    /// read, so that no own write is half counted.
    gate: RwLock<()>,
    own: AtomicU64,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Up to where this process knows all. `None`: nothing is known for sure.
    upto: Option<Upto>,
    /// How often that was put in doubt.
    doubts: u64,
}

/// A revision, and how many writes of this process it holds.
#[derive(Debug, Clone, Copy)]
struct Upto {
    revision: u64,
    own: u64,
}

/// What is to be read again, and up to where that is all.
#[derive(Debug)]
pub(in crate::service) struct Look {
    /// `None`: everything.
    pub changed: Option<Vec<Changed>>,
    upto: Upto,
    doubts: u64,
}

impl Writer {
    pub fn new(ledger: Arc<dyn Ledger>, channel: Arc<Channel>) -> Self {
        let (gate, own, known) = (RwLock::default(), AtomicU64::new(0), Mutex::default());
        Self { ledger, channel, gate, own, known }
    }

    pub async fn put_users(
        &self,
        tenant: TenantRef,
        users: Vec<(User, User)>,
        written: Written,
    ) -> Result<(), LedgerError> {
        self.counted(|ledger| ledger.put_users(tenant, users, written)).await
    }

    pub async fn erase_user(
        &self,
        tenant: TenantRef,
        erasure: Erasure,
        version: Option<u32>,
        written: Written,
    ) -> Result<(), LedgerError> {
        self.counted(|ledger| ledger.erase_user(tenant, erasure, version, written)).await
    }

    pub async fn end_erasure(
        &self,
        tenant: TenantRef,
        erasure: Erasure,
        look_at: Option<Millis>,
    ) -> Result<(), LedgerError> {
        self.counted(|ledger| ledger.end_erasure(tenant, erasure, look_at)).await
    }

    pub async fn return_user(
        &self,
        tenant: TenantRef,
        erasure: Erasure,
        written: Written,
    ) -> Result<(), LedgerError> {
        self.counted(|ledger| ledger.return_user(tenant, erasure, written)).await
    }

    pub async fn forget_erased(&self, tenant: TenantRef, id: UserId) -> Result<(), LedgerError> {
        self.counted(|ledger| ledger.forget_erased(tenant, id)).await
    }

    pub async fn put_record(&self, tenant: Option<TenantRef>, record: Record) -> Result<(), LedgerError> {
        self.counted(|ledger| ledger.put_record(tenant, record)).await
    }

    pub async fn create_tenant(
        &self,
        id: TenantId,
        test: bool,
        records: Vec<Record>,
    ) -> Result<TenantRow, LedgerError> {
        self.counted(|ledger| ledger.create_tenant(id, test, records)).await
    }

    pub async fn set_clock(
        &self,
        tenant: TenantRef,
        now: Millis,
        written: Written,
    ) -> Result<(), LedgerError> {
        self.counted(|ledger| ledger.set_clock(tenant, now, written)).await
    }

    pub async fn suspend_tenant(
        &self,
        tenant: TenantRef,
        suspended: bool,
        written: Written,
    ) -> Result<(), LedgerError> {
        self.counted(|ledger| ledger.suspend_tenant(tenant, suspended, written)).await
    }

    pub async fn delete_tenant(&self, tenant: TenantRef, written: Written) -> Result<(), LedgerError> {
        self.counted(|ledger| ledger.delete_tenant(tenant, written)).await
    }

    /// Writes a user, an org, a record or a pool's condition, and what webhooks are
    /// told of it.
    pub async fn write_telling(
        &self,
        tenant: TenantRef,
        write: Write,
        messages: Vec<Message>,
    ) -> Result<(), LedgerError> {
        self.counted(|ledger| ledger.write_telling(tenant, write, messages)).await
    }

    /// Counts the write as ours once it is known to be on record. One of which
    /// nobody saw the end (the caller went away) is read again like another's.
    async fn counted<'l, T>(
        &'l self,
        write: impl FnOnce(&'l dyn Ledger) -> Answer<'l, T>,
    ) -> Result<T, LedgerError> {
        let _counted = self.gate.read().await;
        let answer = write(&*self.ledger).await?;
        self.own.fetch_add(1, SeqCst);
        self.channel.written();
        Ok(answer)
    }

    /// Looks whether others wrote. `None`: nobody did. `Some`: read that again,
    /// then [`accept`](Self::accept) this look.
    pub async fn look(&self) -> Result<Option<Look>, LedgerError> {
        let _alone = self.gate.write().await;
        let own = self.own.load(SeqCst);
        let (known, doubts) = {
            let known = self.known.lock();
            (known.upto, known.doubts)
        };
        let Some(known) = known else {
            let upto = Upto { revision: self.ledger.revision().await?, own };
            return Ok(Some(Look { changed: None, upto, doubts }));
        };
        let changes = self.ledger.changes_since(known.revision, FOLLOWED_MAX).await?;
        let upto = Upto { revision: changes.upto, own };
        let Some(mut told) = changes.told else {
            return Ok(Some(Look { changed: None, upto, doubts }));
        };
        let ours = told.chunk_by(|a, b| a.revision == b.revision).filter(|told| told[0].ours).count();
        if ours as u64 == own - known.own {
            told.retain(|told| !told.ours);
        }
        let look = Look { changed: Some(told.into_iter().map(|told| told.changed).collect()), upto, doubts };
        if look.changed.as_ref().is_some_and(Vec::is_empty) {
            self.accept(look);
            return Ok(None);
        }
        Ok(Some(look))
    }

    /// Everything up to this look has been read, unless that was put in doubt
    /// meanwhile.
    pub fn accept(&self, look: Look) {
        let mut known = self.known.lock();
        if known.doubts == look.doubts {
            known.upto = Some(look.upto);
        }
    }

    /// Something written here could not be read back: the next look reads
    /// everything.
    pub fn distrust(&self) {
        let mut known = self.known.lock();
        known.upto = None;
        known.doubts += 1;
    }
}
