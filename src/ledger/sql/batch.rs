//! Changes as rows: only the last state of every hold and account, and one sum
//! for every group of usage and every minute of a feature.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::feed::{self, Feed};
use crate::domain::charge::AccountKey;
use crate::domain::hold::Hold;
use crate::domain::quantity::MAX_AMOUNT;
use crate::ledger::encoding::pack_hold;
use crate::ledger::{Change, LedgerError, Telling, UsageDelta};

/// Sums of usage stay within +- this: exact in JSON, and two of them always
/// add without overflow.
pub const TOTAL_MAX: i64 = MAX_AMOUNT as i64;

/// What some changes come to, by the keys of their tables. The maps are
/// ordered so that neighbours in the file are written together.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Batch {
    pub holds: BTreeMap<[u8; 16], Arc<HoldRow>>,
    pub accounts: BTreeMap<AccountRow, Blob>,
    pub usage: BTreeMap<UsageKey, Totals>,
    pub minutes: BTreeMap<MinuteKey, Totals>,
    pub feed: Feed,
    /// Users who come on record with their first hold. They are not journaled
    /// but written at once: each comes once.
    #[serde(skip)]
    pub users: NewUsers,
    /// Those of `holds` that have another user from now on. Such a batch goes
    /// to the tables at once.
    #[serde(skip)]
    pub moved: BTreeSet<[u8; 16]>,
    /// What webhooks are told of it: written at once, too.
    #[serde(skip)]
    pub telling: Telling,
}

/// By tenant and id.
pub type NewUsers = BTreeMap<(u32, Arc<str>), NewUser>;

#[derive(Debug)]
pub struct NewUser {
    pub plan: Arc<str>,
    pub since: i64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct HoldRow {
    pub tenant: u32,
    pub user: Arc<str>,
    pub org: Option<Arc<str>>,
    pub request: Option<i64>,
    pub finished_at: Option<i64>,
    pub doubtful_from: Option<i64>,
    pub body: Blob,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AccountRow {
    pub tenant: u32,
    pub scope: u8,
    pub owner: Arc<str>,
}

/// The group a sum belongs to; an absent name is the empty text.
#[derive(Default, Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UsageKey {
    pub tenant: u32,
    pub day: i32,
    pub user: Arc<str>,
    pub model: Arc<str>,
    pub org: Arc<str>,
    pub plan: Arc<str>,
    pub feature: Arc<str>,
}

/// A minute's use by one feature; minutes since 1970.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MinuteKey {
    pub tenant: u32,
    pub minute: i64,
    pub feature: Arc<str>,
}

/// Requests, input, output, total tokens, credits.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals(pub [i64; 5]);

const FORMAT: u8 = 3;
/// Without the feed.
const FORMAT_OF_MINUTES: u8 = 2;
/// Without minutes and the feed.
const FORMAT_OF_DAYS: u8 = 1;

#[derive(Deserialize)]
struct BatchOfMinutes {
    days: BatchOfDays,
    minutes: BTreeMap<MinuteKey, Totals>,
}

#[derive(Deserialize)]
struct BatchOfDays {
    holds: BTreeMap<[u8; 16], Arc<HoldRow>>,
    accounts: BTreeMap<AccountRow, Blob>,
    usage: BTreeMap<UsageKey, Totals>,
}

impl Batch {
    /// Packs the batch for the journal.
    pub fn encode(&self) -> Result<Vec<u8>, LedgerError> {
        let mut bytes = Vec::with_capacity(1024 * self.holds.len());
        bytes.push(FORMAT);
        postcard::to_extend(self, bytes)
            .map_err(|error| LedgerError::Corrupt(format!("a batch cannot be packed: {error}")))
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, LedgerError> {
        let unreadable = |error| LedgerError::Corrupt(format!("a row of the journal: {error}"));
        match bytes.split_first() {
            Some((&FORMAT, fields)) => postcard::from_bytes(fields).map_err(unreadable),
            Some((&FORMAT_OF_MINUTES, fields)) => {
                let BatchOfMinutes { days, minutes } = postcard::from_bytes(fields).map_err(unreadable)?;
                Ok(Self { minutes, ..days.into() })
            }
            Some((&FORMAT_OF_DAYS, fields)) => {
                Ok(postcard::from_bytes::<BatchOfDays>(fields).map_err(unreadable)?.into())
            }
            _ => Err(LedgerError::Corrupt("a row of the journal in an unknown form".into())),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.holds.is_empty() && self.accounts.is_empty() && self.usage.is_empty() && self.telling.is_empty()
    }

    /// Whether anything in it belonged to somebody else before.
    pub fn moves_anything(&self) -> bool {
        !self.moved.is_empty() || self.accounts.values().any(|state| state.0.is_empty())
    }

    /// # Errors
    /// `Corrupt` when a hold cannot be packed.
    pub fn of(changes: &[Change]) -> Result<Self, LedgerError> {
        let mut batch = Self::default();
        let mut last = BTreeMap::new();
        for change in changes {
            if let Some(hold) = &change.hold {
                last.insert(hold.id, hold);
                if hold.admits_user {
                    // Who comes with use that was booked later comes when it is booked.
                    let since = hold.finished_at().unwrap_or(hold.created_at).0;
                    let new = NewUser { plan: hold.plan.shared(), since };
                    batch.users.entry((hold.tenant.0, hold.user.shared())).or_insert(new);
                }
                if let Some(delta) = &change.usage {
                    let totals = Totals::of(delta);
                    batch.usage.entry(UsageKey::of(hold, delta)).or_default().add(totals);
                    batch.minutes.entry(MinuteKey::of(hold)).or_default().add(totals);
                }
                if let Some(mark) = &change.event {
                    let ended_at = hold.finished_at().unwrap_or(hold.created_at).0;
                    let entry = feed::entry(hold, mark, change.usage.as_ref());
                    batch.feed.entry(hold.tenant.0).or_default().push((ended_at, entry));
                }
            }
            for hold in &change.moved {
                last.insert(hold.id, hold);
                batch.moved.insert(hold.id.0.to_be_bytes());
            }
            for (key, state) in &change.accounts {
                batch.accounts.insert(AccountRow::of(key), Blob(Arc::clone(state)));
            }
        }
        for (id, hold) in last {
            batch.holds.insert(id.0.to_be_bytes(), Arc::new(HoldRow::of(hold)?));
        }
        Ok(batch)
    }
}

impl From<BatchOfDays> for Batch {
    fn from(BatchOfDays { holds, accounts, usage }: BatchOfDays) -> Self {
        Self { holds, accounts, usage, ..Self::default() }
    }
}

impl HoldRow {
    fn of(hold: &Hold) -> Result<Self, LedgerError> {
        Ok(Self {
            tenant: hold.tenant.0,
            user: hold.user.shared(),
            org: hold.org.as_ref().map(|org| org.shared()),
            request: hold.request.as_ref().map(|mark| stored_digest(mark.id.digest())),
            finished_at: hold.finished_at().map(|at| at.0),
            doubtful_from: hold.doubtful_from().map(|at| at.0),
            body: Blob(pack_hold(hold)?.into()),
        })
    }
}

impl AccountRow {
    pub fn of(key: &AccountKey) -> Self {
        Self { tenant: key.tenant.0, scope: key.scope as u8, owner: Arc::clone(&key.owner) }
    }
}

impl UsageKey {
    fn of(hold: &Hold, delta: &UsageDelta) -> Self {
        let or_empty = |name: Option<Arc<str>>| name.unwrap_or_default();
        Self {
            tenant: hold.tenant.0,
            day: hold.day,
            user: hold.user.shared(),
            model: or_empty(delta.model.as_ref().map(|model| model.shared())),
            org: or_empty(hold.org.as_ref().map(|org| org.shared())),
            plan: hold.plan.shared(),
            feature: or_empty(hold.feature.as_ref().map(|feature| feature.shared())),
        }
    }
}

impl MinuteKey {
    /// Of the admission.
    fn of(hold: &Hold) -> Self {
        let feature = hold.feature.as_ref().map(|feature| feature.shared()).unwrap_or_default();
        Self { tenant: hold.tenant.0, minute: hold.created_at.0.div_euclid(60_000), feature }
    }
}

impl Totals {
    pub fn of(delta: &UsageDelta) -> Self {
        let figures =
            [delta.requests, delta.input_tokens, delta.output_tokens, delta.total_tokens, delta.credits];
        Self(figures.map(|figure| figure.clamp(-TOTAL_MAX, TOTAL_MAX)))
    }

    /// Adds, saturating at +-[`TOTAL_MAX`].
    pub fn add(&mut self, more: Self) {
        for (sum, figure) in self.0.iter_mut().zip(more.0) {
            *sum = (*sum + figure).clamp(-TOTAL_MAX, TOTAL_MAX);
        }
    }
}

/// The back ends have no unsigned numbers: the same 64 bits, signed.
pub fn stored_digest(digest: u64) -> i64 {
    digest.cast_signed()
}

/// Bytes, shared; packed as a whole instead of one by one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob(pub Arc<[u8]>);

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&[u8]>::deserialize(deserializer).map(|bytes| Self(bytes.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_journal_from_before_there_were_minutes_or_a_feed_are_read() {
        let key = UsageKey {
            tenant: 1,
            day: 2,
            user: "u".into(),
            model: "".into(),
            org: "".into(),
            plan: "free".into(),
            feature: "".into(),
        };
        let usage = BTreeMap::from([(key, Totals([1, 2, 3, 5, 0]))]);
        let (holds, accounts) =
            (BTreeMap::<[u8; 16], Arc<HoldRow>>::new(), BTreeMap::<AccountRow, Blob>::new());
        let before = postcard::to_extend(&(&holds, &accounts, &usage), vec![FORMAT_OF_DAYS]).unwrap();
        let batch = Batch::decode(&before).unwrap();
        assert_eq!(batch.usage, usage);
        assert!(batch.minutes.is_empty() && batch.feed.is_empty());
        let minutes =
            BTreeMap::from([(MinuteKey { tenant: 1, minute: 9, feature: "".into() }, Totals([1; 5]))]);
        let before = (&holds, &accounts, &usage, &minutes);
        let before = postcard::to_extend(&before, vec![FORMAT_OF_MINUTES]).unwrap();
        let with_minutes = Batch::decode(&before).unwrap();
        assert_eq!((with_minutes.usage, with_minutes.minutes), (usage.clone(), minutes));
        assert_eq!(Batch::decode(&batch.encode().unwrap()).unwrap().usage, usage);
    }
}
