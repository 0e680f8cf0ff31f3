//! What was written to tenants, users and records, told to other processes.

use std::hash::{BuildHasher, Hasher};

use super::{Erasure, LedgerError, RecordKind};
use crate::domain::charge::TenantRef;

/// What was written since a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    /// The newest revision: what is told goes up to here.
    pub upto: u64,
    /// In the order of writing. `None`: too much was written since, or not all
    /// of it is known any more; anything may have changed.
    pub told: Option<Vec<Told>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub revision: u64,
    /// Written through the ledger object that is asked.
    pub ours: bool,
    pub changed: Changed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// `None`: what belongs to no tenant.
    pub tenant: Option<TenantRef>,
    pub what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A tenant came or went, or what its row says has changed.
    Tenant,
    User(Bucket),
    Org(Bucket),
    Record(RecordKind, String),
}

/// One of 65,536 parts of all users and orgs. It is told instead of the id:
/// what is on its way to other processes must not outlive an erasure, and a
/// bucket names nobody. Whoever shares it with the one that changed is read
/// once more in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bucket(pub u16);

impl Bucket {
    pub const COUNT: usize = 1 << 16;

    /// The same in every process and every version of the program: FNV-1a,
    /// folded.
    pub fn of(tenant: TenantRef, id: &str) -> Self {
        let bytes = tenant.0.to_le_bytes().into_iter().chain(id.bytes());
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325, step);
        let hash = hash ^ (hash >> 32);
        Self((hash ^ (hash >> 16)) as u16)
    }
}

impl Changed {
    pub(super) fn tenant(tenant: TenantRef) -> Self {
        Self { tenant: Some(tenant), what: What::Tenant }
    }

    pub(super) fn user(tenant: TenantRef, id: &str) -> Self {
        Self { tenant: Some(tenant), what: What::User(Bucket::of(tenant, id)) }
    }

    /// Many users; those of one bucket once.
    pub(super) fn users<'u>(tenant: TenantRef, ids: impl Iterator<Item = &'u str>) -> Vec<Self> {
        let buckets: std::collections::BTreeSet<u16> = ids.map(|id| Bucket::of(tenant, id).0).collect();
        buckets.into_iter().map(|id| Self { tenant: Some(tenant), what: What::User(Bucket(id)) }).collect()
    }

    /// What an erasure changes, or its return: both records, and that the
    /// tenant has erased users.
    pub(super) fn erased(tenant: TenantRef, erasure: &Erasure) -> Vec<Self> {
        let users = [&erasure.user, &erasure.pseudonym].map(|id| Self::user(tenant, id.as_str()));
        std::iter::once(Self::tenant(tenant)).chain(users).collect()
    }

    pub(super) fn org(tenant: TenantRef, id: &str) -> Self {
        Self { tenant: Some(tenant), what: What::Org(Bucket::of(tenant, id)) }
    }

    pub(super) fn record(tenant: Option<TenantRef>, kind: RecordKind, id: &str) -> Self {
        Self { tenant, what: What::Record(kind, id.to_owned()) }
    }
}

impl What {
    /// Kind and id as stored.
    pub(super) fn stored(&self) -> (&'static str, String) {
        match self {
            Self::Tenant => ("tenant", String::new()),
            Self::User(bucket) => ("user", bucket.0.to_string()),
            Self::Org(bucket) => ("org", bucket.0.to_string()),
            Self::Record(kind, id) => (kind.as_str(), id.clone()),
        }
    }

    pub(super) fn read(kind: &str, id: &str) -> Result<Self, LedgerError> {
        let bucket = || {
            let number = id.parse().map_err(|_| LedgerError::Corrupt(format!("a bucket {id:?}")))?;
            Ok(Bucket(number))
        };
        Ok(match kind {
            "tenant" => Self::Tenant,
            "user" => Self::User(bucket()?),
            "org" => Self::Org(bucket()?),
            kind => Self::Record(RecordKind::parse(kind)?, id.to_owned()),
        })
    }
}

impl Changes {
    /// What the rows of the log come to: `told` has all that are newer than
    /// `since`, in order, or is `None` where they are too many to be read. A
    /// revision without a row is one that was pruned, or another program's:
    /// then anything may have changed.
    pub(super) fn of(since: u64, upto: u64, told: Option<Vec<Told>>) -> Self {
        let is_whole = |told: &Vec<Told>| {
            let revisions = told.chunk_by(|a, b| a.revision == b.revision).count();
            since <= upto && revisions as u64 == upto - since
        };
        Self { upto, told: told.filter(is_whole) }
    }
}

/// A number by which a process knows its own rows again.
pub(super) fn new_origin() -> i64 {
    std::hash::RandomState::new().build_hasher().finish().cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_the_same_for_ever_and_spread() {
        assert_eq!(Bucket::of(TenantRef(1), "u_1"), Bucket::of(TenantRef(1), "u_1"));
        assert_ne!(Bucket::of(TenantRef(1), "u_1"), Bucket::of(TenantRef(2), "u_1"));
        let mut held = vec![0u32; Bucket::COUNT];
        for user in 0..655_360 {
            held[usize::from(Bucket::of(TenantRef(1), &format!("user-{user}")).0)] += 1;
        }
        // Ten on average; of a good hash no bucket has three times as many.
        assert!(held.iter().all(|count| (1..40).contains(count)), "{:?}", held.iter().max());
    }

    #[test]
    fn what_is_stored_reads_back() {
        let all = [
            What::Tenant,
            What::User(Bucket(0)),
            What::Org(Bucket(u16::MAX)),
            What::Record(RecordKind::Settings, String::new()),
            What::Record(RecordKind::Plan, "tenant".into()),
        ];
        for what in all {
            let (kind, id) = what.stored();
            assert_eq!(What::read(kind, &id).unwrap(), what);
        }
        assert!(What::read("user", "70000").is_err() && What::read("?", "").is_err());
    }
}
