//! One account in memory, with the holds and request ids of its user.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::holds::Holds;
use super::promises::Promises;
use super::{Loaded, REQUESTS_KEPT_MS};
use crate::domain::account::Account;
use crate::domain::charge::AccountKey;
use crate::domain::ids::HoldId;
use crate::domain::time::Millis;

/// For so long after its hold finished a request id is known exactly: whoever sends one again
/// does so soon.
const LATELY_MS: i64 = 120_000;
/// Fewer request ids than this are all known exactly: as many as there is room for in the last
/// table that takes about a kilobyte.
const FEW: usize = 28;
/// Of more, old ones are set aside each time when so many have come.
const AT_ONCE: usize = 16;
/// Those of so long a time are let go of at once.
const SPAN_MS: i64 = 4 * 3_600_000;

pub(super) const SHARDS: usize = 256;

/// A table within a shard goes by the lowest bits of the same hash and by the highest: all that
/// is in it would meet in a few places if the shard went by these, too.
pub(super) fn shard_of(hash: u64) -> usize {
    (hash >> 32) as usize % SHARDS
}

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

/// An entry in a table, equal to whatever has its key: with a copy of the key beside it an idle
/// account would take some fifty bytes more.
pub(super) struct ByKey(pub Arc<Entry>);

impl Borrow<AccountKey> for ByKey {
    fn borrow(&self) -> &AccountKey {
        &self.0.key
    }
}

impl Hash for ByKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key.hash(state);
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for ByKey {}

/// What is known of an account.
#[derive(Default)]
pub(super) struct State {
    pub loaded: bool,
    /// What was in here goes by another name.
    pub moved: bool,
    pub account: Account,
    /// Unfinished holds, and finished ones until that is on record (a user's
    /// account only).
    pub holds: Holds,
    /// Request ids, by their digests: those of unfinished holds, and of what finished of late.
    pub requests: AsIsMap<u64, Seen>,
    /// The others; few accounts have any.
    pub older: Option<Box<Older>>,
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

/// Accounts that the ledger is asked for, which must not be dropped meanwhile, with their
/// `asides` of then.
#[derive(Default)]
pub(super) struct Asked(pub(super) SmallVec<[(Arc<Entry>, u32); 2]>);

pub(super) type Guards<'a> = SmallVec<[MutexGuard<'a, State>; 3]>;

impl State {
    /// Whether there is nothing in it.
    pub fn is_blank(&self) -> bool {
        self.account.is_blank() && self.holds.is_empty() && self.requests.is_empty() && !self.has_older()
    }

    /// The hold that a request id stands for, of those that are known exactly.
    pub fn request(&self, digest: u64, now: Millis) -> Option<HoldId> {
        self.requests.get(&digest).filter(|seen| seen.is_kept(now)).map(|seen| seen.hold())
    }

    /// Whether the ledger has to say what a request id stands for.
    pub fn must_ask(&self, digest: u64) -> bool {
        !self.requests.contains_key(&digest)
            && self.older.as_ref().is_some_and(|older| older.may_have(digest))
    }

    /// Whether there are request ids that are not known exactly.
    pub fn has_older(&self) -> bool {
        self.older.as_ref().is_some_and(|older| !older.spans.is_empty())
    }

    /// How often some were set aside.
    pub fn asides(&self) -> u32 {
        self.older.as_ref().map_or(0, |older| older.asides)
    }

    /// Remembers a request id.
    pub fn remember(&mut self, digest: u64, hold: HoldId, finished: Millis, now: Millis) {
        // Before there is room for twice as many; of some dozens, which most users of many calls
        // have at a time, now and then.
        let known = self.requests.len();
        let is_time = (FEW..8 * FEW).contains(&known) && known.is_multiple_of(AT_ONCE);
        if known == self.requests.capacity() || is_time {
            self.set_aside(now);
        }
        self.requests.insert(digest, Seen::new(hold, finished));
    }

    /// Puts in place what the ledger has, for the first time or because it had to be asked for
    /// request ids; `asides` are those of when it was asked. What was put aside since is perhaps
    /// not in its answer: then it is asked again.
    pub fn load(&mut self, loaded: Loaded, asides: u32) {
        if self.loaded && asides != self.asides() {
            return;
        }
        let requests = loaded.requests.into_iter().map(|(digest, id, at)| (digest, Seen::new(id, at)));
        if self.loaded {
            if let Some(older) = &mut self.older {
                older.spans = Vec::new();
            }
            // What is here already may have gone on meanwhile.
            requests.for_each(|(digest, seen)| _ = self.requests.entry(digest).or_insert(seen));
            return;
        }
        self.account = loaded.account;
        self.holds = loaded.unfinished.into_iter().collect();
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
        let aside = requests.extract_if(|_, seen| is_late(seen) && !holds.contains(seen.hold()));
        let aside = aside.filter(|(_, seen)| seen.is_kept(now));
        older.get_or_insert_default().add(aside.map(|(digest, seen)| (digest, seen.finished)), now);
        if requests.len() < requests.capacity() / 4 {
            requests.shrink_to(requests.len() * 2);
        }
    }
}

/// Request ids of finished holds, four bytes each. One that seems to be among them is asked of
/// the ledger: of a million users with a thousand calls each a day, one new id in four million
/// is asked about in vain.
#[derive(Default)]
pub(super) struct Older {
    spans: Vec<Span>,
    /// How often some were put here.
    asides: u32,
}

/// What finished within the same four hours, counted from 1970.
struct Span {
    number: i64,
    /// In their order.
    digests: Vec<u32>,
}

impl Older {
    fn may_have(&self, digest: u64) -> bool {
        self.spans.iter().any(|span| span.digests.binary_search(&(digest as u32)).is_ok())
    }

    /// Adds what finished when, and lets go of spans in which nothing counts any more.
    fn add(&mut self, requests: impl Iterator<Item = (u64, Millis)>, now: Millis) {
        let kept_from = now.plus_ms(-REQUESTS_KEPT_MS).0.div_euclid(SPAN_MS);
        self.spans.retain(|span| span.number >= kept_from);
        let mut is_any = false;
        for (digest, finished) in requests {
            is_any = true;
            let number = finished.0.div_euclid(SPAN_MS);
            match self.spans.iter_mut().rev().find(|span| span.number == number) {
                Some(span) => span.push(digest as u32),
                None => self.spans.push(Span { number, digests: vec![digest as u32] }),
            }
        }
        if is_any {
            self.spans.iter_mut().for_each(|span| span.digests.sort_unstable());
            self.asides = self.asides.wrapping_add(1);
        }
    }
}

impl Span {
    /// They are many and small: no room for twice as many.
    fn push(&mut self, digest: u32) {
        if self.digests.len() == self.digests.capacity() {
            self.digests.reserve_exact(self.digests.len() / 8 + 8);
        }
        self.digests.push(digest);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const HOUR_MS: i64 = 3_600_000;
    const CALLS: u64 = 2_000;

    fn digest(call: u64) -> u64 {
        // Spread over all bits, as digests are.
        call.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn hold(call: u64) -> HoldId {
        HoldId(u128::from(call) << 64 | 7)
    }

    /// Calls of a user, one each 36 s, each finished at once.
    fn after_calls(calls: u64) -> (State, impl Fn(u64) -> Millis) {
        let at = |call: u64| Millis(call as i64 * 36_000);
        let mut state = State { loaded: true, ..State::default() };
        for call in 0..calls {
            state.remember(digest(call), hold(call), at(call), at(call));
        }
        (state, at)
    }

    fn answer(calls: impl Iterator<Item = u64>, at: &impl Fn(u64) -> Millis) -> Loaded {
        let requests = calls.map(|call| (digest(call), hold(call), at(call))).collect();
        Loaded { account: Account::default(), unfinished: Vec::new(), requests }
    }

    #[test]
    fn of_a_users_calls_few_are_known_exactly_and_none_is_lost_for_a_day() {
        // A day and a half of them: of the first half nothing counts any more.
        let calls = 3_600;
        let (state, at) = after_calls(calls);
        assert!(state.requests.len() <= 2 * FEW, "{} known exactly", state.requests.len());
        let now = at(calls - 1);
        for call in 0..calls {
            let is_kept = at(call).plus_ms(REQUESTS_KEPT_MS) > now;
            let is_known =
                state.request(digest(call), now) == Some(hold(call)) || state.must_ask(digest(call));
            assert!(is_known || !is_kept, "call {call} is lost");
        }
        assert!(
            (calls..2 * calls).all(|call| !state.must_ask(digest(call))),
            "of new ones none is asked about"
        );
        let numbers: Vec<_> =
            state.older.iter().flat_map(|older| &older.spans).map(|span| span.number).collect();
        assert!(numbers.len() as i64 <= REQUESTS_KEPT_MS / SPAN_MS + 1, "{numbers:?}");
    }

    #[test]
    fn what_is_in_one_shard_is_spread_over_its_table() {
        let of_one = (0..256 * 256).map(digest).filter(|hash| shard_of(*hash) == 7);
        let (places, tags): (BTreeSet<u64>, BTreeSet<u64>) =
            of_one.map(|hash| (hash % 256, hash >> 57)).unzip();
        assert!(places.len() > 128 && tags.len() > 64, "{} places, {} tags", places.len(), tags.len());
    }

    #[test]
    fn an_answer_from_before_others_were_set_aside_is_not_put_in_place() {
        let (mut state, at) = after_calls(300);
        let asked = state.asides();
        let stale = answer(0..300, &at);
        // Meanwhile the user goes on, and more is set aside.
        for call in 300..600 {
            state.remember(digest(call), hold(call), at(call), at(call));
        }
        assert_ne!(state.asides(), asked);
        state.load(stale, asked);
        let now = at(600);
        let known = |state: &State, call| state.request(digest(call), now) == Some(hold(call));
        for call in 0..600 {
            assert!(known(&state, call) || state.must_ask(digest(call)), "call {call} is lost");
        }
        state.load(answer(0..600, &at), state.asides());
        assert!((0..600).all(|call| known(&state, call)) && !state.has_older());
    }

    #[test]
    fn what_came_under_another_name_is_known_exactly() {
        let (mut state, at) = after_calls(0);
        state.came = true;
        for call in 0..CALLS {
            state.remember(digest(call), hold(call), at(call), at(call));
        }
        let now = Millis(23 * HOUR_MS);
        assert!(!state.has_older() && state.asides() == 0);
        assert!((0..CALLS).all(|call| state.request(digest(call), now) == Some(hold(call))));
    }
}
