//! What the service knows besides accounts: tenants, catalogs, keys, users.
//!
//! All of it is a bounded or small copy of the ledger. What this process
//! writes it sees at once; what another process writes within half a second
//! (see `following`), and an unknown tenant or key at once.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::RwLock;
use secrecy::SecretString;

use crate::domain::charge::TenantRef;
use crate::domain::ids::TenantId;
use crate::domain::plan::Models;
use crate::ledger::{Ledger, Record, RecordKind, TenantRow};

use super::cache::Cache;
use super::catalog::{Catalog, Tenant, parse};
use super::clock::WallClock;
use super::following::{Channel, Epochs};
use super::writer::Writer;
use crate::service::access::identity::{TokenCache, UnknownKids, token_cache, unknown_kids};
use crate::service::access::key_files::KeyFiles;
use crate::service::access::keyring::{Key, Keyring, key_of, rests_on_server_key};
use crate::service::entitlement::profiles::{
    OrgCache, UnknownUsers, UserCache, org_cache, unknown_users, user_cache,
};
use crate::service::error::ServiceError;
use crate::service::telling::watchers::Watchers;
use crate::service::upstream::conditions::Conditions;
use crate::service::webhooks::Outbox;

/// Past versions of model lists that are kept at hand, of all tenants.
const PAST_MODELS_MAX: usize = 256;

/// What the operator decides about keys and targets.
#[derive(Debug, Clone)]
pub struct RegistryOptions {
    /// Where private keys and the server's secret lie (`<data>/keys`).
    pub keys_dir: PathBuf,
    /// The server's secret where it does not lie there.
    pub server_key: Option<SecretString>,
    /// Whether tokens of keys made by this program are accepted; off where the
    /// server can be reached from elsewhere, unless a setting allows it.
    pub accept_generated_keys: bool,
    /// The default of the tenants' setting `allow_private_targets`.
    pub allow_private_targets: bool,
}

pub struct Registry {
    pub(in crate::service) ledger: Arc<dyn Ledger>,
    pub(in crate::service) writer: Writer,
    pub(in crate::service) wall: Arc<WallClock>,
    pub(in crate::service) options: RegistryOptions,
    pub(in crate::service) files: KeyFiles,
    tenants: RwLock<Tenants>,
    keys: RwLock<Keyring>,
    pub(in crate::service) tokens: TokenCache,
    pub(in crate::service) unknown_kids: UnknownKids,
    pub(in crate::service) users: UserCache,
    pub(in crate::service) orgs: OrgCache,
    pub(in crate::service) unknown_users: UnknownUsers,
    /// Users and orgs read before others wrote are read again.
    pub(in crate::service) epochs: Epochs,
    pub(super) channel: Arc<Channel>,
    /// Users who want to know of changes.
    pub watchers: Arc<Watchers>,
    pub conditions: Conditions,
    pub outbox: Outbox,
    past_models: Cache<(TenantRef, u32), Arc<Models>>,
    refreshing: tokio::sync::Mutex<()>,
    refreshes_begun: AtomicU64,
    refreshed: AtomicU64,
}

#[derive(Default)]
struct Tenants {
    by_id: HashMap<TenantId, Arc<Tenant>, ahash::RandomState>,
}

impl Registry {
    /// Reads all tenants and keys.
    ///
    /// # Errors
    /// `StoreUnavailable`; `Corrupt` when a record or a key file cannot be read.
    pub async fn open(
        ledger: Arc<dyn Ledger>,
        wall: Arc<WallClock>,
        options: RegistryOptions,
    ) -> Result<Arc<Self>, ServiceError> {
        let channel = Arc::<Channel>::default();
        let registry = Self {
            writer: Writer::new(ledger.clone(), Arc::clone(&channel)),
            files: KeyFiles::open(&options.keys_dir, options.server_key.as_ref())?,
            ledger,
            wall,
            options,
            tenants: RwLock::default(),
            keys: RwLock::default(),
            tokens: token_cache(),
            unknown_kids: unknown_kids(),
            users: user_cache(),
            orgs: org_cache(),
            unknown_users: unknown_users(),
            epochs: Epochs::default(),
            channel,
            watchers: Arc::default(),
            conditions: Conditions::default(),
            outbox: Outbox::default(),
            past_models: Cache::new(PAST_MODELS_MAX, PAST_MODELS_MAX),
            refreshing: tokio::sync::Mutex::default(),
            refreshes_begun: AtomicU64::new(0),
            refreshed: AtomicU64::new(0),
        };
        if let Some(look) = registry.writer.look().await? {
            registry.read_all(true).await?;
            registry.writer.accept(look);
        }
        registry.tell_of_lost_keys().await?;
        Ok(Arc::new(registry))
    }

    /// Keys on record that outlived the secret by which they are checked, as
    /// after a restore of the database alone: their owners meet 401 and
    /// nothing else would say why.
    async fn tell_of_lost_keys(&self) -> Result<(), ServiceError> {
        let lost = if self.files.is_new() { self.keys_on_server_key().await? } else { 0 };
        if lost > 0 {
            tracing::warn!(
                keys = lost,
                path = %self.options.keys_dir.display(),
                "server.key was missing and a new one was made: API keys and HS256 keys on record cannot be \
                 checked any more. Stop, put the old keys directory back and start again, or make new keys"
            );
        }
        Ok(())
    }

    /// How many keys on record can only be checked with the server's secret.
    async fn keys_on_server_key(&self) -> Result<usize, ServiceError> {
        let mut keys = 0;
        for tenant in self.tenants() {
            let records = self.ledger.records(Some(tenant.number)).await?;
            let of_key = records.iter().filter(|record| record.kind == RecordKind::Key);
            keys += of_key.filter(|record| rests_on_server_key(record)).count();
        }
        Ok(keys)
    }

    /// Reads again what others wrote, if they wrote. Calls at the same time
    /// share one look, so that unknown keys cannot be used to drown the ledger.
    pub async fn refresh(&self) -> Result<(), ServiceError> {
        let begun_before = self.refreshes_begun.load(SeqCst);
        let _turn = self.refreshing.lock().await;
        // A look that began after we came has seen all that we could see.
        if self.refreshed.load(SeqCst) > begun_before {
            return Ok(());
        }
        let this = self.refreshes_begun.fetch_add(1, SeqCst) + 1;
        if let Some(look) = self.writer.look().await? {
            match &look.changed {
                Some(changes) => self.follow(changes).await?,
                None => {
                    self.epochs.pass_all();
                    self.read_all(false).await?;
                }
            }
            self.writer.accept(look);
        }
        self.refreshed.store(this, SeqCst);
        Ok(())
    }

    /// The wall clock, for what belongs to no tenant.
    pub fn wall(&self) -> &Arc<WallClock> {
        &self.wall
    }

    /// The tenant of that id as known here.
    pub fn known_tenant(&self, id: &TenantId) -> Option<Arc<Tenant>> {
        self.tenants.read().by_id.get(id).cloned()
    }

    /// The tenant of that id; one that is not known is looked up at once.
    pub async fn tenant(&self, id: &TenantId) -> Result<Arc<Tenant>, ServiceError> {
        if let Some(tenant) = self.known_tenant(id) {
            return Ok(tenant);
        }
        self.refresh().await?;
        self.known_tenant(id).ok_or(ServiceError::NotFound("tenant"))
    }

    pub(in crate::service) fn tenant_numbered(&self, number: TenantRef) -> Option<Arc<Tenant>> {
        self.tenants.read().by_id.values().find(|tenant| tenant.number == number).cloned()
    }

    /// All tenants, by id.
    pub fn tenants(&self) -> Vec<Arc<Tenant>> {
        let mut tenants: Vec<_> = self.tenants.read().by_id.values().cloned().collect();
        tenants.sort_by(|a, b| a.id.cmp(&b.id));
        tenants
    }

    /// The model list of that version, for holds made under it; `None` when
    /// there never was one.
    pub async fn models_at(
        &self,
        tenant: &Tenant,
        version: u32,
    ) -> Result<Option<Arc<Models>>, ServiceError> {
        let catalog = tenant.catalog();
        if catalog.models_version == version {
            return Ok(Some(catalog.models.clone()));
        }
        let key = (tenant.number, version);
        if let Some(models) = self.past_models.get(&key, |held| *held == key) {
            return Ok(Some(models));
        }
        let versions = self.ledger.versions(Some(tenant.number), RecordKind::Models, String::new()).await?;
        let Some(record) = versions.iter().find(|record| record.version == version) else {
            return Ok(None);
        };
        let models = Arc::new(parse(record, Models::read)?);
        self.past_models.insert(&key, |held| *held == key, || (key, models.clone()), 1);
        Ok(Some(models))
    }

    pub(in crate::service) fn key(&self, kid: &str) -> Option<Arc<Key>> {
        self.keys.read().get(kid)
    }

    /// The keys of a tenant, or the operators', by kid.
    pub(in crate::service) fn keys_of(&self, tenant: Option<TenantRef>) -> Vec<Arc<Key>> {
        self.keys.read().of(tenant)
    }

    /// Reads back what was just written here. The caller holds
    /// `tenant.changing`.
    pub(super) async fn read_own_write(&self, tenant: &Arc<Tenant>) -> Result<(), ServiceError> {
        self.read_tenant(tenant).await.inspect_err(|_| self.writer.distrust())
    }

    /// Reads the records of a tenant anew. The caller holds `tenant.changing`.
    pub(in crate::service) async fn read_tenant(&self, tenant: &Arc<Tenant>) -> Result<(), ServiceError> {
        if tenant.is_deleted() {
            return Err(ServiceError::NotFound("tenant"));
        }
        let records = self.ledger.records(Some(tenant.number)).await?;
        tenant.replace_catalog(self.catalog_of(tenant.number, &records, &tenant.catalog()).await?);
        self.replace_keys(Some(tenant), &records);
        self.outbox.look_at(tenant);
        self.watchers.tenant_changed(tenant.number);
        self.conditions.bell.notify_waiters();
        Ok(())
    }

    /// The catalog of `records`, with the plans' earlier figures.
    async fn catalog_of(
        &self,
        tenant: TenantRef,
        records: &[Record],
        before: &Catalog,
    ) -> Result<Catalog, ServiceError> {
        let mut earlier = HashMap::new();
        for record in before.needs_versions(records) {
            let versions = self.ledger.versions(Some(tenant), record.kind, record.id.clone()).await?;
            earlier.insert((record.kind, record.id.clone()), versions);
        }
        let conditions = self.ledger.conditions(tenant).await?;
        Catalog::build(records, &conditions, before, &earlier)
    }

    /// Reads the operators' keys anew.
    pub(in crate::service) async fn read_operators(&self) -> Result<(), ServiceError> {
        let records = self.ledger.records(None).await?;
        self.replace_keys(None, &records);
        Ok(())
    }

    /// Takes a tenant on that was just found or made, and reads its records.
    pub(super) async fn take_on(&self, row: &TenantRow) -> Result<Arc<Tenant>, ServiceError> {
        let records = self.ledger.records(Some(row.number)).await?;
        let catalog = self.catalog_of(row.number, &records, &Catalog::empty()).await?;
        let fresh = Arc::new(Tenant::new(row, self.wall.clone(), catalog));
        // Nobody may change it before its keys are in.
        let _turn = fresh.changing.lock().await;
        {
            let mut tenants = self.tenants.write();
            // Two may come at once: there is one object per tenant.
            match tenants.by_id.get(&row.id) {
                Some(first) if first.number >= row.number => return Ok(first.clone()),
                _ => {}
            }
            tenants.by_id.insert(row.id.clone(), fresh.clone());
        }
        self.replace_keys(Some(&fresh), &records);
        self.outbox.look_at(&fresh);
        Ok(fresh.clone())
    }

    /// Reads everything. When `strict`, the first tenant that cannot be read
    /// is an error; else it keeps what it had, and the log tells.
    async fn read_all(&self, strict: bool) -> Result<(), ServiceError> {
        let tolerate = |result, whose: &str| match strict {
            true => result,
            false => self.tolerate(result, whose),
        };
        tolerate(self.read_operators().await, "")?;
        // Who is known before the list is read, and not in it, is no more.
        let known = self.tenants();
        let rows = self.ledger.tenants().await?;
        for tenant in known.iter().filter(|known| rows.iter().all(|row| row.number != known.number)) {
            let _turn = tenant.changing.lock().await;
            self.let_go(tenant);
        }
        for row in rows {
            tolerate(self.read_row(&row).await, row.id.as_str())?;
        }
        Ok(())
    }

    /// Forgets a tenant that was deleted. The caller holds `tenant.changing`.
    pub(super) fn let_go(&self, tenant: &Arc<Tenant>) {
        tenant.delete();
        {
            let mut tenants = self.tenants.write();
            if tenants.by_id.get(&tenant.id).is_some_and(|known| Arc::ptr_eq(known, tenant)) {
                tenants.by_id.remove(&tenant.id);
            }
        }
        self.keys.write().remove_owner(tenant.number);
        self.outbox.look_at(tenant);
        self.watchers.tenant_changed(tenant.number);
    }

    async fn read_row(&self, row: &TenantRow) -> Result<(), ServiceError> {
        let Some(tenant) = self.known_tenant(&row.id).filter(|known| known.number == row.number) else {
            self.take_on(row).await?;
            return Ok(());
        };
        let _turn = tenant.changing.lock().await;
        // Or it was deleted here since the list was read.
        if tenant.is_deleted() {
            return Ok(());
        }
        self.follow_row(&tenant, row).await?;
        self.read_tenant(&tenant).await
    }

    /// Puts the keys among `records` in place of those the owner had.
    fn replace_keys(&self, tenant: Option<&Arc<Tenant>>, records: &[Record]) {
        let number = tenant.map(|tenant| tenant.number);
        let before = self.keys_of(number);
        let mut now = Vec::new();
        for record in records.iter().filter(|record| record.kind == RecordKind::Key) {
            let known = before.iter().find(|key| key.kid == record.id && key.version == record.version);
            match known {
                Some(key) => now.push(key.clone()),
                None => match key_of(record, tenant.cloned(), &self.files) {
                    Ok(key) => now.push(Arc::new(key)),
                    // One key that is of no use must not keep the others out.
                    Err(error) => tracing::error!(key.id = record.id, %error, "a key cannot be used"),
                },
            }
        }
        self.keys.write().replace(number, now);
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
