//! The keys in force, ready for use, as read from the ledger.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::{Value, json};

use crate::domain::charge::TenantRef;
use crate::domain::document::Reader;
use crate::domain::time::Millis;
use crate::ledger::Record;

use super::identity::{Caller, Scopes};
use super::key_files::KeyFiles;
use super::public_key::{self, ALGORITHMS};
use crate::service::error::ServiceError;
use crate::service::tenancy::catalog::{Tenant, parse};

/// A key that may sign tokens, or is itself the credential.
pub struct Key {
    pub kid: String,
    /// `None`: an operator's.
    pub tenant: Option<Arc<Tenant>>,
    /// What it may grant.
    pub scopes: Scopes,
    /// Of API keys: what the owner calls it.
    pub name: Option<String>,
    /// Of keys that sign: as given. Never a shared secret.
    pub public_key: Option<String>,
    /// Made by this program for a start without set-up: only good where nobody
    /// else can reach the server.
    pub generated: bool,
    pub created_at: Millis,
    pub version: u32,
    pub(super) proof: Proof,
    removed: AtomicBool,
    caller: OnceLock<Arc<Caller>>,
}

/// How a credential proves that it comes from the key's owner.
pub(super) enum Proof {
    /// By a signature of this algorithm and no other. Any of the keys may have
    /// made it (a shared secret may be meant as text or as base64).
    Signature { algorithm: Algorithm, keys: Vec<DecodingKey> },
    /// By being the secret of which this is the keyed hash.
    Secret([u8; 32]),
}

impl Key {
    /// The key as lists show it, without any secret: `{"kid","kind",
    /// "algorithm","public_key","scopes","name","generated","created_at"}`.
    pub fn to_json(&self) -> Value {
        let (kind, algorithm) = match &self.proof {
            Proof::Signature { algorithm, .. } => ("jwt", Some(public_key::name(*algorithm))),
            Proof::Secret(_) => ("api", None),
        };
        json!({
            "kid": self.kid,
            "kind": kind,
            "algorithm": algorithm,
            "public_key": self.public_key,
            "scopes": self.scopes.names(),
            "name": self.name,
            "generated": self.generated,
            "created_at": self.created_at.to_string(),
        })
    }

    /// The caller that an API key speaks for.
    pub(super) fn caller(&self) -> Arc<Caller> {
        let caller = || {
            Arc::new(Caller {
                tenant: self.tenant.clone(),
                key_id: self.kid.clone(),
                scopes: self.scopes,
                user: None,
                expires_at_unix: None,
            })
        };
        self.caller.get_or_init(caller).clone()
    }

    pub(in crate::service) fn is_removed(&self) -> bool {
        self.removed.load(Relaxed)
    }
}

/// All keys in force, by kid and by owner.
#[derive(Default)]
pub(in crate::service) struct Keyring {
    by_kid: HashMap<String, Arc<Key>, ahash::RandomState>,
    /// Each by kid, ascending; `None` are the operators'.
    by_owner: HashMap<Option<TenantRef>, Vec<Arc<Key>>, ahash::RandomState>,
}

impl Keyring {
    pub fn get(&self, kid: &str) -> Option<Arc<Key>> {
        self.by_kid.get(kid).cloned()
    }

    pub fn of(&self, owner: Option<TenantRef>) -> Vec<Arc<Key>> {
        self.by_owner.get(&owner).cloned().unwrap_or_default()
    }

    /// Ends all keys of a tenant that is no more.
    pub fn remove_owner(&mut self, owner: TenantRef) {
        self.replace(Some(owner), Vec::new());
        self.by_owner.remove(&Some(owner));
    }

    /// Puts `keys` in place of those the owner had; those that are gone end,
    /// with every token that they had verified.
    pub fn replace(&mut self, owner: Option<TenantRef>, mut keys: Vec<Arc<Key>>) {
        keys.sort_by(|a, b| a.kid.cmp(&b.kid));
        for gone in self.by_owner.remove(&owner).unwrap_or_default() {
            if !keys.iter().any(|key| Arc::ptr_eq(key, &gone)) {
                gone.removed.store(true, Relaxed);
            }
            self.by_kid.remove(&gone.kid);
        }
        self.by_kid.extend(keys.iter().map(|key| (key.kid.clone(), key.clone())));
        self.by_owner.insert(owner, keys);
    }
}

/// What a key's record holds. As JSON: `{"kind":"jwt","algorithm","public_key"
/// or "sealed","scopes","generated"}` or `{"kind":"api","hash","scopes","name"}`.
pub(super) struct KeyRecord {
    pub scopes: Scopes,
    pub name: Option<String>,
    pub generated: bool,
    pub proof: StoredProof,
}

pub(super) enum StoredProof {
    PublicKey(Algorithm, String),
    /// A shared secret for HS256, encrypted under the server's own.
    Sealed(String),
    /// The keyed hash of a whole API key.
    Hash([u8; 32]),
}

impl KeyRecord {
    pub fn to_json(&self) -> Value {
        let mut body = json!({
            "scopes": self.scopes.names(),
            "name": self.name,
            "generated": self.generated,
        });
        let (kind, algorithm, field, text) = match &self.proof {
            StoredProof::PublicKey(algorithm, text) => {
                ("jwt", Some(public_key::name(*algorithm)), "public_key", text.clone())
            }
            StoredProof::Sealed(text) => ("jwt", Some("HS256"), "sealed", text.clone()),
            StoredProof::Hash(hash) => ("api", None, "hash", URL_SAFE_NO_PAD.encode(hash)),
        };
        body["kind"] = kind.into();
        body["algorithm"] = algorithm.into();
        body[field] = text.into();
        body
    }

    fn read(fields: &mut Reader<'_, '_>) -> Option<Self> {
        let scopes = fields.required("scopes").list(16, |scope| scope.parsed(Scopes::parse))?;
        let name = fields.optional("name").text().map(str::to_owned);
        let generated = fields.optional("generated").flag().unwrap_or(false);
        let is_api = fields.required("kind").choice(&[("jwt", false), ("api", true)])?;
        let algorithm = fields.optional("algorithm").choice(&ALGORITHMS);
        let proof = if is_api {
            StoredProof::Hash(fields.required("hash").parsed(read_hash)?)
        } else if algorithm == Some(Algorithm::HS256) {
            StoredProof::Sealed(fields.required("sealed").text()?.to_owned())
        } else {
            StoredProof::PublicKey(algorithm?, fields.required("public_key").text()?.to_owned())
        };
        let scopes = scopes.into_iter().fold(Scopes::NONE, |all, scope| all | scope);
        Some(Self { scopes, name, generated, proof })
    }
}

fn read_hash(text: &str) -> Result<[u8; 32], &'static str> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok();
    bytes.and_then(|bytes| bytes.try_into().ok()).ok_or("must be 32 bytes as base64url")
}

/// Whether a key on record can only be checked with the server's own secret:
/// API keys and shared secrets.
pub(in crate::service) fn rests_on_server_key(record: &Record) -> bool {
    let stored = parse(record, |node| node.read(KeyRecord::read));
    stored.is_ok_and(|stored| matches!(stored.proof, StoredProof::Sealed(_) | StoredProof::Hash(_)))
}

/// Makes a stored key ready for use.
pub(in crate::service) fn key_of(
    record: &Record,
    tenant: Option<Arc<Tenant>>,
    files: &KeyFiles,
) -> Result<Key, ServiceError> {
    let stored = parse(record, |node| node.read(KeyRecord::read))?;
    let corrupt = |what| ServiceError::Corrupt(format!("key '{}': {what}", record.id));
    let (proof, public_key) = match stored.proof {
        StoredProof::Hash(hash) => (Proof::Secret(hash), None),
        StoredProof::PublicKey(algorithm, text) => {
            let key = public_key::parse(algorithm, &text).map_err(corrupt)?;
            (Proof::Signature { algorithm, keys: vec![key] }, Some(text))
        }
        StoredProof::Sealed(sealed) => {
            let secret = files.unseal(&record.id, &sealed)?;
            let keys = public_key::shared_secrets(&secret).map_err(corrupt)?;
            (Proof::Signature { algorithm: Algorithm::HS256, keys }, None)
        }
    };
    // Whatever the record says: operators are no tenant's, and tenants no operators.
    let may_grant = if tenant.is_some() { Scopes::TENANT } else { Scopes::OPERATOR };
    Ok(Key {
        kid: record.id.clone(),
        tenant,
        scopes: stored.scopes.and(may_grant),
        name: stored.name,
        public_key,
        generated: stored.generated,
        created_at: record.written.at,
        version: record.version,
        proof,
        removed: AtomicBool::new(false),
        caller: OnceLock::new(),
    })
}
