//! One account in memory, with the holds and request ids of its user.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::REQUESTS_KEPT_MS;
use super::promises::Promises;
use crate::domain::account::Account;
use crate::domain::charge::AccountKey;
use crate::domain::hold::Hold;
use crate::domain::ids::HoldId;
use crate::domain::time::Millis;

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
    /// Request ids, by their digests.
    pub requests: AsIsMap<u64, Seen>,
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
        self.account.is_blank() && self.holds.is_empty() && self.requests.is_empty()
    }

    /// The hold that a request id stands for.
    pub fn request(&mut self, digest: u64, now: Millis) -> Option<HoldId> {
        self.requests.get(&digest).filter(|seen| seen.is_kept(now)).map(|seen| seen.hold())
    }

    /// Remembers a request id.
    pub fn remember(&mut self, digest: u64, hold: HoldId, finished: Millis, now: Millis) {
        if self.requests.len() == self.requests.capacity() {
            self.requests.retain(|_, seen| seen.is_kept(now));
        }
        self.requests.insert(digest, Seen::new(hold, finished));
    }
}
