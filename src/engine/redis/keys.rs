//! Names of keys. All of a tenant carry one hash tag, so that they lie in one
//! slot; the owner comes last, so that no two names are ever the same.

use crate::domain::charge::{AccountKey, TenantRef};
use crate::domain::ids::HoldId;
use crate::domain::plan::Scope;

/// A tenant of one installation: several may share a Redis.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    pub installation: u64,
    pub tenant: TenantRef,
}

/// The keys of one tenant in one epoch.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    tenant: TenantRef,
    /// `ap:{T}:`
    slot: String,
    epoch: u64,
}

/// What stands between the braces: our own hash, as ids may hold any bytes.
pub(super) fn tag(owner: Owner) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&owner.installation.to_le_bytes());
    hasher.update(&owner.tenant.0.to_le_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    format!("{:016x}", u64::from_be_bytes(first))
}

fn letter(scope: Scope) -> char {
    match scope {
        Scope::User => 'u',
        Scope::Org => 'o',
        Scope::Tenant => 't',
        Scope::Pool => 'p',
    }
}

fn scope(letter: u8) -> Option<Scope> {
    [Scope::User, Scope::Org, Scope::Tenant, Scope::Pool]
        .into_iter()
        .find(|scope| self::letter(*scope) as u8 == letter)
}

impl Keys {
    pub fn new(owner: Owner, epoch: u64) -> Self {
        Self { tenant: owner.tenant, slot: format!("ap:{{{}}}:", tag(owner)), epoch }
    }

    /// Epoch, numbers, clock.
    pub fn meta(&self) -> String {
        format!("{}meta", self.slot)
    }

    pub fn account(&self, key: &AccountKey) -> String {
        format!("{}{}:a:{}:{}", self.slot, self.epoch, letter(key.scope), key.owner)
    }

    /// The account's unfinished holds, by the end of their lease.
    pub fn open(&self, key: &AccountKey) -> String {
        format!("{}{}:o:{}:{}", self.slot, self.epoch, letter(key.scope), key.owner)
    }

    pub fn hold(&self, id: HoldId) -> String {
        format!("{}{}:h:{:032x}", self.slot, self.epoch, id.0)
    }

    /// Request ids of a user.
    pub fn requests(&self, user: &str) -> String {
        format!("{}{}:q:{user}", self.slot, self.epoch)
    }

    /// Who waits for a pool.
    pub fn line(&self, pool: &AccountKey) -> String {
        format!("{}{}:l:{}", self.slot, self.epoch, pool.owner)
    }

    /// What is not on record yet.
    pub fn stream(&self) -> String {
        format!("{}{}:e", self.slot, self.epoch)
    }

    /// Everything of the tenant, as a pattern.
    pub fn everything(&self) -> String {
        format!("{}*", self.slot)
    }

    /// Whether a key is of an epoch before this one.
    pub fn is_outlived(&self, key: &str) -> bool {
        let epoch = key.strip_prefix(&self.slot).and_then(|rest| rest.split_once(':')?.0.parse::<u64>().ok());
        epoch.is_some_and(|epoch| epoch < self.epoch)
    }

    /// The way back from [`account`](Self::account).
    pub fn read_account(&self, key: &[u8]) -> Option<AccountKey> {
        let rest = key.strip_prefix(self.slot.as_bytes())?;
        let rest = rest.strip_prefix(format!("{}:a:", self.epoch).as_bytes())?;
        let (&letter, owner) = rest.split_first()?;
        let owner = std::str::from_utf8(owner.strip_prefix(b":")?).ok()?;
        Some(AccountKey { tenant: self.tenant, scope: scope(letter)?, owner: owner.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accounts_name_can_be_read_back_whatever_is_in_it() {
        let seven = Owner { installation: 1, tenant: TenantRef(7) };
        let keys = Keys::new(seven, 3);
        for owner in ["", "u", "a:b", "{x}:a:u:", "ü\u{301}"] {
            let key = AccountKey { tenant: TenantRef(7), scope: Scope::Org, owner: owner.into() };
            assert_eq!(keys.read_account(keys.account(&key).as_bytes()), Some(key));
        }
        assert!(keys.is_outlived(&Keys::new(seven, 2).stream()));
        assert!(!keys.is_outlived(&keys.stream()) && !keys.is_outlived(&keys.meta()));
    }
}
