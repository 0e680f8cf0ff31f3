//! The keys in force, ready for use, as read from the ledger.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use jsonwebtoken::{Algorithm, DecodingKey};

use crate::domain::time::Millis;

use super::catalog::Tenant;
use super::identity::{Caller, Scopes};

/// A key that may sign tokens, or is itself the credential.
pub struct Key {
    pub kid: String,
    /// `None`: an operator's.
    pub tenant: Option<Arc<Tenant>>,
    /// What it may grant.
    pub scopes: Scopes,
    pub proof: Proof,
    /// Of API keys.
    pub name: Option<String>,
    /// As given, of keys that sign (never a shared secret).
    pub public_key: Option<String>,
    /// Made by this program for a start without set-up: only good where nobody
    /// else can reach the server.
    pub generated: bool,
    pub created_at: Millis,
    pub version: u32,
    removed: AtomicBool,
    caller: OnceLock<Arc<Caller>>,
}

/// How a credential proves that it comes from the key's owner.
pub enum Proof {
    /// By a signature of this algorithm and no other. Any of the keys may have
    /// made it (a shared secret may be meant as text or as base64).
    Signature { algorithm: Algorithm, keys: Vec<DecodingKey> },
    /// By being the secret of which this is the keyed hash.
    Secret([u8; 32]),
}

impl Key {
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

    pub(super) fn is_removed(&self) -> bool {
        self.removed.load(Relaxed)
    }

    /// Ends every token that was verified by this key.
    pub(super) fn remove(&self) {
        self.removed.store(true, Relaxed);
    }
}
