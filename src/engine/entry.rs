//! One account in memory, with the holds and request ids of its user.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::promises::Promises;
use super::{Loaded, REQUESTS_KEPT_MS};
use crate::domain::account::Account;
use crate::domain::charge::AccountKey;
use crate::domain::hold::Hold;
use crate::domain::ids::HoldId;
use crate::domain::time::Millis;

/// For so long after its hold finished a request id is known exactly: whoever sends one again
/// does so soon.
const LATELY_MS: i64 = 600_000;
/// Fewer request ids than this are all known exactly.
const FEW: usize = 56;
/// How long a time is let go of at once.
const GENERATION_MS: i64 = 4 * 3_600_000;

/// Keys that are random or hashed already need no second hash.
#[derive(Default, Clone)]
pub(super) struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
    fn write_u128(&mut self, value: u128) {
        self.0 = value as u64;
    }
}

pub(super) type AsIsMap<K, V> = HashMap<K, V, BuildHasherDefault<AsIs>>;

/// One account in memory.
pub(super) struct Entry {
    pub key: AccountKey,
    pub state: Mutex<State>,
    /// The sweep during which it was last used.
    pub used_in: AtomicU32,
}

/// What is known of an account.
#[derive(Default)]
pub(super) struct State {
    pub loaded: bool,
    /// What was in here goes by another name.
    pub moved: bool,
    pub account: Account,
    /// Unfinished holds, and finished ones until that is on record (a user's
    /// account only).
    pub holds: AsIsMap<HoldId, Arc<Hold>>,
    /// Request ids, by their digests: those of unfinished holds, and of what finished of late.
    pub requests: AsIsMap<u64, Seen>,
    /// The others.
    pub older: Older,
    /// Its holds may be on record by another name still.
    pub came: bool,
    /// Waits told by a pool.
    pub promises: Option<Box<Promises>>,
}

/// The hold that a request id stands for. There is one for each call of a day, so the id
/// is kept in words: with a number of sixteen bytes an entry would take half as much again.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    hold: [u64; 2],
    /// `Millis::MAX` while it has not.
    finished: Millis,
}

impl Seen {
    pub fn new(hold: HoldId, finished: Millis) -> Self {
        Self { hold: [(hold.0 >> 64) as u64, hold.0 as u64], finished }
    }

    fn hold(self) -> HoldId {
        let [high, low] = self.hold.map(u128::from);
        HoldId(high << 64 | low)
    }

    /// A request id counts until a day after its hold finished.
    fn is_kept(self, now: Millis) -> bool {
        self.finished == Millis::MAX || self.finished.plus_ms(REQUESTS_KEPT_MS) > now
    }
}

/// Accounts that must not be dropped.
#[derive(Default, Clone)]
pub(super) struct Pins(pub(super) SmallVec<[Arc<Entry>; 2]>);

pub(super) type Guards<'a> = SmallVec<[MutexGuard<'a, State>; 3]>;

impl State {
    /// Whether there is nothing in it.
    pub fn is_blank(&self) -> bool {
        self.account.is_blank() && self.holds.is_empty() && self.requests.is_empty() && self.older.is_empty()
    }

    /// The hold that a request id stands for, of those that are known exactly.
    pub fn request(&self, digest: u64, now: Millis) -> Option<HoldId> {
        self.requests.get(&digest).filter(|seen| seen.is_kept(now)).map(|seen| seen.hold())
    }

    /// Whether the ledger has to say what a request id stands for.
    pub fn must_ask(&self, digest: u64) -> bool {
        !self.requests.contains_key(&digest) && self.older.may_have(digest)
    }

    /// Remembers a request id.
    pub fn remember(&mut self, digest: u64, hold: HoldId, finished: Millis, now: Millis) {
        // Before there is room for twice as many; of some dozens, which most users of many calls
        // have at a time, now and then.
        let known = self.requests.len();
        let is_time = (FEW..4 * FEW).contains(&known) && known.is_multiple_of(32);
        if known == self.requests.capacity() || is_time {
            self.set_aside(now);
        }
        self.requests.insert(digest, Seen::new(hold, finished));
    }

    /// Puts in place what the ledger has, for the first time or because it had to be asked for
    /// request ids.
    pub fn load(&mut self, loaded: Loaded) {
        let requests = loaded.requests.into_iter().map(|(digest, id, at)| (digest, Seen::new(id, at)));
        if self.loaded {
            self.older = Older::default();
            // What is here already may have gone on meanwhile.
            requests.for_each(|(digest, seen)| _ = self.requests.entry(digest).or_insert(seen));
            return;
        }
        self.account = loaded.account;
        self.holds = loaded.unfinished.into_iter().map(|hold| (hold.id, hold)).collect();
        self.requests = requests.collect();
        self.loaded = true;
        self.set_aside(self.account.advanced_to());
    }

    /// Keeps of request ids whose holds finished a while ago as little as will do, and lets go
    /// of those that do not count any more.
    fn set_aside(&mut self, now: Millis) {
        let Self { requests, older, holds, came, .. } = self;
        if *came || requests.len() < FEW {
            requests.retain(|_, seen| seen.is_kept(now));
            return;
        }
        let is_late = |seen: &Seen| seen.finished != Millis::MAX && seen.finished.plus_ms(LATELY_MS) <= now;
        // On record, so that the ledger can be asked.
        let aside = requests.extract_if(|_, seen| is_late(seen) && !holds.contains_key(&seen.hold()));
        older.add(
            aside.filter(|(_, seen)| seen.is_kept(now)).map(|(digest, seen)| (digest, seen.finished)),
            now,
        );
        if requests.len() < requests.capacity() / 4 {
            requests.shrink_to(requests.len() * 2);
        }
    }
}

/// Request ids of finished holds, four bytes each. One that seems to be among them is asked of
/// the ledger: of a million users with a thousand calls each a day, one new id in four million
/// is asked about in vain.
#[derive(Default)]
pub(super) struct Older(Vec<Generation>);

/// What finished within some hours of each other.
struct Generation {
    first: Millis,
    last: Millis,
    /// In their order.
    digests: Vec<u32>,
}

impl Older {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn may_have(&self, digest: u64) -> bool {
        self.0.iter().any(|generation| generation.digests.binary_search(&(digest as u32)).is_ok())
    }

    fn add(&mut self, requests: impl Iterator<Item = (u64, Millis)>, now: Millis) {
        self.0.retain(|generation| generation.last.plus_ms(REQUESTS_KEPT_MS) > now);
        let mut requests: Vec<_> = requests.collect();
        requests.sort_unstable_by_key(|(_, finished)| *finished);
        for (digest, finished) in requests {
            let is_within = |generation: &&mut Generation| {
                let first = generation.first.min(finished);
                first.plus_ms(GENERATION_MS) > generation.last.max(finished)
            };
            match self.0.iter_mut().rev().find(is_within) {
                Some(generation) => {
                    generation.first = generation.first.min(finished);
                    generation.last = generation.last.max(finished);
                    generation.push(digest as u32);
                }
                None => {
                    self.0.push(Generation { first: finished, last: finished, digests: vec![digest as u32] })
                }
            }
        }
        self.0.iter_mut().for_each(|generation| generation.digests.sort_unstable());
    }
}

impl Generation {
    /// They are many and small: no room for twice as many.
    fn push(&mut self, digest: u32) {
        if self.digests.len() == self.digests.capacity() {
            self.digests.reserve_exact(self.digests.len() / 8 + 8);
        }
        self.digests.push(digest);
    }
}
