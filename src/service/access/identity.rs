//! Who is calling: a bearer token or API key becomes a [`Caller`].
//!
//! The tenant comes from the key and from nowhere else, the user from the
//! token's `sub` alone. A signature check costs more than a decision, so tokens
//! that were verified are remembered, in bounded memory, and each use asks
//! again what may have changed since: the time, the key, the tenant.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use secrecy::zeroize::Zeroizing;

use crate::domain::ids::UserId;

use super::keyring::{Key, Proof};
use super::token::Credential;
use crate::service::error::ServiceError;
use crate::service::tenancy::cache::Cache;
use crate::service::tenancy::catalog::Tenant;
use crate::service::tenancy::clock::real_unix_seconds;
use crate::service::tenancy::registry::Registry;

/// What a caller may do: a set of the contract's scopes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Scopes(u8);

impl Scopes {
    pub const NONE: Self = Self(0);
    pub const CHECK: Self = Self(1);
    pub const QUOTA: Self = Self(2);
    pub const ADMIN_READ: Self = Self(4);
    /// Includes `admin:read`.
    pub const ADMIN_WRITE: Self = Self(8 | 4);
    pub const ME: Self = Self(16);
    pub const OPERATOR: Self = Self(32);
    /// All that a tenant's key may grant.
    pub const TENANT: Self = Self(1 | 2 | 4 | 8 | 16);

    /// Widest first: where one includes another, the wider name says it all.
    const NAMES: [(&'static str, Self); 6] = [
        ("check", Self::CHECK),
        ("quota", Self::QUOTA),
        ("admin:write", Self::ADMIN_WRITE),
        ("admin:read", Self::ADMIN_READ),
        ("me", Self::ME),
        ("operator", Self::OPERATOR),
    ];

    /// Parses names separated by spaces; an unknown one is an error that names it.
    pub fn parse(text: &str) -> Result<Self, String> {
        text.split_ascii_whitespace().try_fold(Self::NONE, |set, name| Ok(set | Self::named(name)?))
    }

    /// Parses what a token asks for: names of other systems are no concern of ours.
    pub(super) fn parse_known(text: &str) -> Self {
        text.split_ascii_whitespace().filter_map(|name| Self::named(name).ok()).fold(Self::NONE, |a, b| a | b)
    }

    fn named(name: &str) -> Result<Self, String> {
        let known = Self::NAMES.iter().find(|(known, _)| *known == name);
        known.map(|(_, scope)| *scope).ok_or_else(|| {
            let names: Vec<&str> = Self::NAMES.iter().map(|(name, _)| *name).collect();
            format!("'{name}' is no scope; there are: {}", names.join(", "))
        })
    }

    /// Whether everything in `other` is in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether anything in `other` is in this set.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// What is in both sets.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The names of the set, each said once.
    pub fn names(self) -> Vec<&'static str> {
        let mut rest = self;
        let mut names = Vec::new();
        for (name, scope) in Self::NAMES {
            if self.contains(scope) && rest.intersects(scope) {
                names.push(name);
                rest = Self(rest.0 & !scope.0);
            }
        }
        names
    }
}

impl std::ops::BitOr for Scopes {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(" "))
    }
}

/// Who calls, as far as the credentials prove it.
#[derive(Debug)]
pub struct Caller {
    /// `None` for operators.
    pub tenant: Option<Arc<Tenant>>,
    pub key_id: String,
    pub scopes: Scopes,
    /// Of user tokens (scope `me`) only.
    pub user: Option<UserId>,
    /// When the token ends, in seconds of real time; `None` for API keys.
    pub expires_at_unix: Option<i64>,
}

impl Caller {
    /// Who did it, for the audit: the key, never a secret.
    pub fn name(&self) -> String {
        format!("key:{}", self.key_id)
    }
}

/// Why credentials are not accepted: for logs and tests. Callers are told in
/// one shape, whatever it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    #[error("it is neither a token nor an API key")]
    Malformed,
    #[error("it is too long")]
    TooLong,
    #[error("its key is not known")]
    UnknownKey,
    #[error("its key is of another algorithm")]
    WrongAlgorithm,
    #[error("the signature or the secret is wrong")]
    BadSignature,
    #[error("it has critical extensions")]
    CriticalHeader,
    #[error("it has expired, or never does")]
    Expired,
    #[error("it is not valid yet")]
    NotYetValid,
    #[error("it is meant for another service")]
    WrongAudience,
    #[error("it names another tenant than its key's")]
    WrongTenant,
    #[error("it speaks for a user but names none")]
    NoUser,
    #[error("its key was generated for local use only")]
    LocalKey,
}

/// Tokens that were verified.
const TOKENS_MAX: usize = 100_000;
/// What they may take together, in bytes of token text.
const TOKEN_BYTES_MAX: usize = 64 << 20;

/// A verified token: what it proved and the key that proves it.
#[derive(Clone)]
pub(in crate::service) struct Verified {
    caller: Arc<Caller>,
    key: Arc<Key>,
}

impl Verified {
    fn is_good(&self, now_unix: i64) -> bool {
        self.caller.expires_at_unix.is_none_or(|end| now_unix < end) && !self.key.is_removed()
    }
}

/// For how long an unknown key id is not looked up again.
const UNKNOWN_KID_KEPT: Duration = Duration::from_secs(1);

/// Key ids that nobody has, and when that was seen.
pub(in crate::service) type UnknownKids = Cache<Box<str>, Instant>;

pub(in crate::service) fn unknown_kids() -> UnknownKids {
    Cache::new(4_096, 1 << 20)
}

pub(in crate::service) type TokenCache = Cache<Box<str>, Verified>;

pub(in crate::service) fn token_cache() -> TokenCache {
    Cache::new(TOKENS_MAX, TOKEN_BYTES_MAX)
}

impl Registry {
    /// Verifies what came after `Authorization: Bearer `.
    ///
    /// A key that this process does not know is looked up at once, so that one
    /// made by another process works with its first call.
    ///
    /// # Errors
    /// `Unauthenticated`, `TenantSuspended`, or `StoreUnavailable` when an
    /// unknown key cannot be looked up.
    pub async fn authenticate(&self, bearer: &str) -> Result<Arc<Caller>, ServiceError> {
        let now = real_unix_seconds();
        if let Some(caller) = self.remembered(bearer, now) {
            return admit(caller);
        }
        let credential = Credential::parse(bearer)?;
        let key = self.key_of_caller(credential.kid()).await?;
        let token = match (&credential, &key.proof) {
            (Credential::ApiKey { .. }, Proof::Secret(hash)) if self.files.secret_matches(bearer, hash) => {
                return admit(key.caller());
            }
            (Credential::ApiKey { .. }, _) => return Err(Rejection::BadSignature.into()),
            (Credential::Token(token), _) => token,
        };
        let caller = Arc::new(token.verify(&key, now)?);
        let verified = Verified { caller: caller.clone(), key };
        self.tokens.insert(bearer, |known| **known == *bearer, || (bearer.into(), verified), bearer.len());
        admit(caller)
    }

    /// Encrypts what a browser keeps in place of credentials.
    pub fn seal_session(&self, text: &str) -> Result<String, ServiceError> {
        self.files.seal_session(text)
    }

    /// What was sealed as a session; `None` if it was not, or under another secret.
    pub fn unseal_session(&self, sealed: &str) -> Option<Zeroizing<String>> {
        self.files.unseal_session(sealed)
    }

    /// The key of that id, looked up at once if it is not known here.
    ///
    /// Ids are random: one that nobody has will not be somebody's a moment
    /// later, so whoever keeps coming with it is not looked up each time.
    async fn key_of_caller(&self, kid: &str) -> Result<Arc<Key>, ServiceError> {
        let mut key = self.key(kid);
        if key.is_none() {
            let looked = self.unknown_kids.get(kid, |known| **known == *kid);
            if looked.is_none_or(|at| at.elapsed() > UNKNOWN_KID_KEPT) {
                self.refresh().await?;
                key = self.key(kid);
            }
        }
        let Some(key) = key else {
            let entry = || (kid.into(), Instant::now());
            self.unknown_kids.insert(kid, |known| **known == *kid, entry, kid.len());
            return Err(Rejection::UnknownKey.into());
        };
        if key.generated && !self.options.accept_generated_keys {
            return Err(Rejection::LocalKey.into());
        }
        Ok(key)
    }

    fn remembered(&self, bearer: &str, now: i64) -> Option<Arc<Caller>> {
        let known = self.tokens.get(bearer, |known| **known == *bearer)?;
        if known.is_good(now) {
            return Some(known.caller);
        }
        self.tokens.remove(bearer, |known| **known == *bearer);
        None
    }
}

fn admit(caller: Arc<Caller>) -> Result<Arc<Caller>, ServiceError> {
    match &caller.tenant {
        Some(tenant) if tenant.is_deleted() => Err(Rejection::UnknownKey.into()),
        Some(tenant) if tenant.is_suspended() => Err(ServiceError::TenantSuspended),
        _ => Ok(caller),
    }
}

#[cfg(test)]
#[path = "identity_tests.rs"]
mod tests;
