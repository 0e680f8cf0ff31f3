//! Where calls of this node wait, pool by pool.
//!
//! In each room the first of every class of size asks the engine, the others
//! wait for their turn: a thousand who wait ask no more often than a few.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::domain::charge::AccountKey;
use crate::domain::hold::Hold;
use crate::domain::line::{NO_TICKET, Place, Turn};
use crate::domain::plan::Scope;
use crate::domain::time::Millis;
use crate::service::random;

/// Calls that wait on this node, unless a setting says otherwise.
const WAITING_MAX: usize = 10_000;

/// See the module's text.
pub struct Rooms {
    /// This node's name in lines.
    pub(super) node: u64,
    tickets: AtomicU64,
    open: AtomicUsize,
    bulk: AtomicUsize,
    max: AtomicUsize,
    rooms: Mutex<HashMap<AccountKey, Room, ahash::RandomState>>,
    /// Whether somebody shows the engine that this node is there.
    pub(in crate::service) kept: AtomicBool,
}

/// By class of size, then in the order of their turns.
type Room = BTreeMap<(u8, Turn), Arc<Seat>>;

/// One who waits.
#[derive(Default)]
pub(super) struct Seat {
    /// Stands in the engine's line.
    pub stands: AtomicBool,
    /// May stand there, whatever the engine has said since.
    pub entered: AtomicBool,
    pub bell: Notify,
}

impl Default for Rooms {
    fn default() -> Self {
        Self {
            node: number() & (NO_TICKET >> 1),
            tickets: AtomicU64::new(1),
            open: AtomicUsize::new(0),
            bulk: AtomicUsize::new(0),
            max: AtomicUsize::new(WAITING_MAX),
            rooms: Mutex::default(),
            kept: AtomicBool::new(false),
        }
    }
}

fn number() -> u64 {
    let bytes = random::bytes();
    u64::from_le_bytes(std::array::from_fn(|index| bytes[index]))
}

impl Rooms {
    /// Bounds the calls that wait on this node.
    pub fn bound(&self, max: usize) {
        self.max.store(max, Relaxed);
    }

    pub(super) fn ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Relaxed)
    }

    /// How many interactive and how many bulk calls wait.
    pub fn depth(&self) -> (usize, usize) {
        let bulk = self.bulk.load(Relaxed);
        (self.open.load(Relaxed).saturating_sub(bulk), bulk)
    }

    /// Takes a seat; `None` when this node has none left.
    pub(super) fn enter(&self, key: &AccountKey, place: &Place) -> Option<Chair<'_>> {
        if self.open.fetch_add(1, SeqCst) >= self.max.load(Relaxed) {
            self.open.fetch_sub(1, SeqCst);
            return None;
        }
        self.bulk.fetch_add(usize::from(place.bulk), SeqCst);
        let seat = Arc::<Seat>::default();
        let at = (place.class, place.turn);
        self.rooms.lock().entry(key.clone()).or_default().insert(at, Arc::clone(&seat));
        Some(Chair { rooms: self, key: key.clone(), place: *place, seat })
    }

    pub(in crate::service) fn nobody(&self) -> bool {
        self.open.load(SeqCst) == 0
    }

    /// Something was given back by a hold.
    pub(in crate::service) fn given_back(&self, hold: &Hold) {
        if self.nobody() {
            return;
        }
        let key = |scope, owner| AccountKey { tenant: hold.tenant, scope, owner };
        self.ring(&key(Scope::User, hold.user.shared()));
        if let Some(pool) = &hold.pool {
            self.ring(&key(Scope::Pool, pool.shared()));
        }
    }

    /// Wakes whoever would be first.
    fn ring(&self, key: &AccountKey) {
        if let Some(room) = self.rooms.lock().get(key) {
            wake_first(room);
        }
    }

    /// Wakes the first of all rooms that a change may concern.
    pub(in crate::service) fn ring_those(&self, concerns: impl Fn(&AccountKey) -> bool) {
        if !self.nobody() {
            self.rooms.lock().iter().filter(|(key, _)| concerns(key)).for_each(|(_, room)| wake_first(room));
        }
    }

    /// The pools whose lines have somebody of this node, with how many.
    pub(super) fn standing(&self) -> Vec<(AccountKey, usize)> {
        let rooms = self.rooms.lock();
        let stand = |room: &Room| room.values().filter(|seat| seat.stands.load(SeqCst)).count();
        let lines = rooms.iter().map(|(key, room)| (key.clone(), stand(room)));
        lines.filter(|(_, standing)| *standing > 0).collect()
    }

    /// The engine has lost the line: all stand in it anew.
    pub(super) fn lost(&self, key: &AccountKey) {
        if let Some(room) = self.rooms.lock().get(key) {
            for seat in room.values() {
                seat.stands.store(false, SeqCst);
                seat.bell.notify_one();
            }
        }
    }
}

const FIRST: Turn = Turn { rank: Millis(i64::MIN), ticket: 0, node: 0 };

/// The first of each class.
fn wake_first(room: &Room) {
    let mut class = None;
    while let Some(((next, _), seat)) =
        room.range(class.map_or((0, FIRST), |class| (class + 1, FIRST))..).next()
    {
        seat.bell.notify_one();
        class = Some(*next);
    }
}

/// A seat that is taken, until this is dropped.
pub(super) struct Chair<'r> {
    rooms: &'r Rooms,
    pub key: AccountKey,
    pub place: Place,
    pub seat: Arc<Seat>,
}

impl Chair<'_> {
    /// Whether it is the turn of this one, among those of its size.
    pub fn is_first(&self) -> bool {
        let rooms = self.rooms.rooms.lock();
        let Place { class, turn, .. } = self.place;
        rooms.get(&self.key).is_none_or(|room| room.range((class, FIRST)..(class, turn)).next().is_none())
    }
}

impl Drop for Chair<'_> {
    fn drop(&mut self) {
        let mut rooms = self.rooms.rooms.lock();
        if let Some(room) = rooms.get_mut(&self.key) {
            room.remove(&(self.place.class, self.place.turn));
            wake_first(room);
            if room.is_empty() {
                rooms.remove(&self.key);
            }
        }
        drop(rooms);
        self.rooms.bulk.fetch_sub(usize::from(self.place.bulk), SeqCst);
        self.rooms.open.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::charge::TenantRef;

    fn key() -> AccountKey {
        AccountKey { tenant: TenantRef(1), scope: Scope::Pool, owner: "p".into() }
    }

    fn place(rooms: &Rooms, rank: i64, class: u8) -> Place {
        let turn = Turn { rank: Millis(rank), ticket: rooms.ticket(), node: rooms.node };
        Place { turn, class, bulk: class == 1, stands: false }
    }

    #[test]
    fn the_first_of_each_size_asks() {
        let rooms = Rooms::default();
        let enter = |rank, class| rooms.enter(&key(), &place(&rooms, rank, class)).expect("a seat");
        let (late, large, first) = (enter(20, 0), enter(15, 1), enter(10, 0));
        assert_eq!([first.is_first(), late.is_first(), large.is_first()], [true, false, true]);
        assert_eq!(rooms.depth(), (2, 1));
        drop(first);
        assert!(late.is_first());
        drop((late, large));
        assert_eq!(rooms.depth(), (0, 0));
        assert!(rooms.rooms.lock().is_empty());
    }

    #[test]
    fn seats_are_bounded() {
        let rooms = Rooms::default();
        rooms.bound(1);
        let first = rooms.enter(&key(), &place(&rooms, 0, 0));
        assert!(first.is_some() && rooms.enter(&key(), &place(&rooms, 0, 0)).is_none());
        drop(first);
        assert!(rooms.enter(&key(), &place(&rooms, 0, 0)).is_some());
    }
}
