//! A bounded map for many threads: what was not asked for of late makes room.
//!
//! Sharded, each shard a table over a ring of entries. The hand of the ring
//! spares an entry once for every time it was used since it last came by, so
//! what is hot stays, and nothing is ever scanned as a whole.

use std::hash::Hash;

use ahash::RandomState;
use hashbrown::HashTable;
use parking_lot::Mutex;

const SHARDS: usize = 64;

/// Keys are looked up by anything that hashes like them, with a closure that
/// compares, so that a look-up need not own what it asks for.
pub(in crate::service) struct Cache<K, V> {
    shards: Box<[Mutex<Shard<K, V>>]>,
    hasher: RandomState,
}

struct Shard<K, V> {
    /// Places in `ring`.
    table: HashTable<u32>,
    ring: Vec<Option<Slot<K, V>>>,
    free: Vec<u32>,
    hand: usize,
    weight: usize,
    entries_max: usize,
    weight_max: usize,
    /// How often something was put or removed by a writer.
    writes: u64,
}

struct Slot<K, V> {
    hash: u64,
    key: K,
    value: V,
    weight: usize,
    used: bool,
}

impl<K, V: Clone> Cache<K, V> {
    /// At most about `entries_max` entries, whose weights sum up to at most
    /// `weight_max`.
    pub fn new(entries_max: usize, weight_max: usize) -> Self {
        let shard = || {
            Mutex::new(Shard {
                table: HashTable::new(),
                ring: Vec::new(),
                free: Vec::new(),
                hand: 0,
                weight: 0,
                entries_max: entries_max.div_ceil(SHARDS).max(1),
                weight_max: weight_max.div_ceil(SHARDS),
                writes: 0,
            })
        };
        Self { shards: (0..SHARDS).map(|_| shard()).collect(), hasher: RandomState::new() }
    }

    pub fn get<Q: Hash + ?Sized>(&self, asked: &Q, is_it: impl Fn(&K) -> bool) -> Option<V> {
        let hash = self.hasher.hash_one(asked);
        let mut shard = self.shard(hash).lock();
        let place = shard.find(hash, is_it)?;
        let slot = shard.ring[place].as_mut()?;
        slot.used = true;
        Some(slot.value.clone())
    }

    /// Puts an entry in place of any of that key. One that is heavier than a
    /// shard may be is not kept.
    pub fn insert<Q: Hash + ?Sized>(
        &self,
        asked: &Q,
        is_it: impl Fn(&K) -> bool,
        entry: impl FnOnce() -> (K, V),
        weight: usize,
    ) {
        let hash = self.hasher.hash_one(asked);
        let mut shard = self.shard(hash).lock();
        shard.writes += 1;
        shard.put(hash, is_it, entry, weight);
    }

    pub fn remove<Q: Hash + ?Sized>(&self, asked: &Q, is_it: impl Fn(&K) -> bool) {
        let hash = self.hasher.hash_one(asked);
        let mut shard = self.shard(hash).lock();
        shard.writes += 1;
        if let Some(place) = shard.find(hash, is_it) {
            shard.take_out(place);
        }
    }

    /// A mark to be taken before reading from the store what
    /// [`insert_read`](Self::insert_read) will put.
    pub fn mark<Q: Hash + ?Sized>(&self, asked: &Q) -> u64 {
        self.shard(self.hasher.hash_one(asked)).lock().writes
    }

    /// Puts what was read from the store, unless a writer came in between:
    /// what was read may then be older than what was written.
    pub fn insert_read<Q: Hash + ?Sized>(
        &self,
        mark: u64,
        asked: &Q,
        is_it: impl Fn(&K) -> bool,
        entry: impl FnOnce() -> (K, V),
        weight: usize,
    ) {
        let hash = self.hasher.hash_one(asked);
        let mut shard = self.shard(hash).lock();
        if shard.writes == mark {
            shard.put(hash, is_it, entry, weight);
        }
    }

    fn shard(&self, hash: u64) -> &Mutex<Shard<K, V>> {
        // The table uses the low and the top bits; these are in between.
        &self.shards[(hash >> 40) as usize % SHARDS]
    }
}

impl<K, V> Shard<K, V> {
    fn find(&self, hash: u64, is_it: impl Fn(&K) -> bool) -> Option<usize> {
        let is_place = |place: &u32| {
            let slot = self.ring[*place as usize].as_ref();
            slot.is_some_and(|slot| slot.hash == hash && is_it(&slot.key))
        };
        self.table.find(hash, is_place).map(|place| *place as usize)
    }

    fn put(&mut self, hash: u64, is_it: impl Fn(&K) -> bool, entry: impl FnOnce() -> (K, V), weight: usize) {
        if let Some(place) = self.find(hash, is_it) {
            self.take_out(place);
        }
        if weight > self.weight_max {
            return;
        }
        while self.table.len() >= self.entries_max || self.weight + weight > self.weight_max {
            self.make_room();
        }
        let (key, value) = entry();
        let slot = Some(Slot { hash, key, value, weight, used: false });
        let place = match self.free.pop() {
            Some(place) => {
                self.ring[place as usize] = slot;
                place
            }
            None => {
                self.ring.push(slot);
                (self.ring.len() - 1) as u32
            }
        };
        self.weight += weight;
        let ring = &self.ring;
        let rehash = |place: &u32| ring[*place as usize].as_ref().map_or(0, |slot| slot.hash);
        self.table.insert_unique(hash, place, rehash);
    }

    /// Takes out the next entry that was not used since the hand was there.
    fn make_room(&mut self) {
        loop {
            self.hand = if self.hand + 1 < self.ring.len() { self.hand + 1 } else { 0 };
            match &mut self.ring[self.hand] {
                Some(slot) if slot.used => slot.used = false,
                Some(_) => return self.take_out(self.hand),
                None => {}
            }
        }
    }

    fn take_out(&mut self, place: usize) {
        let Some(slot) = self.ring[place].take() else { return };
        self.weight -= slot.weight;
        self.free.push(place as u32);
        if let Ok(entry) = self.table.find_entry(slot.hash, |held| *held as usize == place) {
            entry.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(cache: &Cache<u64, u64>, key: u64, weight: usize) {
        cache.insert(&key, |held| *held == key, || (key, key * 2), weight);
    }

    fn get(cache: &Cache<u64, u64>, key: u64) -> Option<u64> {
        cache.get(&key, |held| *held == key)
    }

    fn len(cache: &Cache<u64, u64>) -> usize {
        cache.shards.iter().map(|shard| shard.lock().table.len()).sum()
    }

    #[test]
    fn it_stays_within_its_bounds_whatever_is_put() {
        let cache = Cache::new(640, usize::MAX / 2);
        (0..10_000).for_each(|key| put(&cache, key, 1));
        assert!(len(&cache) <= 640);
        assert!(len(&cache) > 500);
        let cache = Cache::new(1_000_000, 64_000);
        (0..10_000).for_each(|key| put(&cache, key, 100));
        assert!(len(&cache) <= 640);
        put(&cache, 1, 1_001);
        assert_eq!(get(&cache, 1), None, "heavier than a shard may be");
    }

    #[test]
    fn what_is_used_stays_when_others_make_room() {
        let cache = Cache::new(640, usize::MAX / 2);
        put(&cache, 7, 1);
        for key in 100..20_000 {
            put(&cache, key, 1);
            assert_eq!(get(&cache, 7), Some(14), "after {key}");
        }
    }

    #[test]
    fn a_read_that_a_write_overtook_is_not_kept() {
        let cache = Cache::new(64, 1 << 20);
        let mark = cache.mark(&5u64);
        put(&cache, 5, 1);
        cache.insert_read(mark, &5u64, |held| *held == 5, || (5, 0), 1);
        assert_eq!(get(&cache, 5), Some(10));
        cache.remove(&5u64, |held| *held == 5);
        assert_eq!(get(&cache, 5), None);
        let mark = cache.mark(&5u64);
        cache.insert_read(mark, &5u64, |held| *held == 5, || (5, 0), 1);
        assert_eq!(get(&cache, 5), Some(0));
    }
}
