//! Where calls of this node wait, pool by pool.
//!
//! In each room the first of every class of size asks the engine, the others
//! wait for their turn: a thousand who wait ask no more often than a few.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::domain::charge::{AccountKey, TenantRef};
use crate::domain::hold::Hold;
use crate::domain::line::{NO_TICKET, Place, Turn};
use crate::domain::plan::Scope;
use crate::domain::time::Millis;
use crate::service::random;

/// Calls that wait on this node, unless a setting says otherwise.
const WAITING_MAX: usize = 10_000;
/// Whoever moved a clock hears no later what came of it.
const REST: Duration = Duration::from_secs(5);

/// See the module's text.
pub struct Rooms {
    /// This node's name in lines.
    pub(super) node: u64,
    tickets: AtomicU64,
    open: AtomicUsize,
    bulk: AtomicUsize,
    max: AtomicUsize,
    rooms: Mutex<HashMap<AccountKey, Room, ahash::RandomState>>,
    /// The latest turn of a bulk call in each of them that it may live to see.
    bulk_turns: Mutex<HashMap<AccountKey, Millis, ahash::RandomState>>,
    /// Rung when one of a tenant with a clock of its own has looked.
    looked: Notify,
    /// Whether somebody shows the engine that this node is there.
    pub(in crate::service) kept: AtomicBool,
}

/// By class of size, then in the order of their turns.
type Room = BTreeMap<(u8, Turn), Arc<Seat>>;

/// One who waits.
pub(super) struct Seat {
    /// Stands in the engine's line.
    pub stands: AtomicBool,
    /// May stand there, whatever the engine has said since.
    pub entered: AtomicBool,
    pub bell: Notify,
    /// How often the bell was rung, and after how many of these it has looked.
    rung: AtomicU64,
    heard: AtomicU64,
    /// When it would look by itself, in its tenant's time.
    looks_at: AtomicI64,
}

impl Default for Seat {
    fn default() -> Self {
        Self {
            stands: AtomicBool::new(false),
            entered: AtomicBool::new(false),
            bell: Notify::new(),
            // Whoever sits down is about to look.
            rung: AtomicU64::new(1),
            heard: AtomicU64::new(0),
            looks_at: AtomicI64::new(i64::MAX),
        }
    }
}

impl Seat {
    fn ring(&self) {
        self.rung.fetch_add(1, SeqCst);
        self.bell.notify_one();
    }

    /// To be read before a look, and told when it came to nothing.
    pub fn rung(&self) -> u64 {
        self.rung.load(SeqCst)
    }
}

/// Those of a tenant who wait on this node, when nothing is left to be done for
/// any of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resting {
    pub waiting: usize,
    /// When one of them would look by itself.
    pub looks_at: Option<Millis>,
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
            bulk_turns: Mutex::default(),
            looked: Notify::new(),
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

    /// The rank of a bulk call that would rank at `own` were it the only one:
    /// some time after the one before it. A turn that comes after its deadline
    /// keeps nobody back.
    pub(super) fn bulk_rank(&self, key: &AccountKey, own: Millis, gap_ms: i64, deadline: Millis) -> Millis {
        let mut turns = self.bulk_turns.lock();
        let rank = turns.get(key).map_or(own, |last| own.max(last.plus_ms(gap_ms)));
        if rank < deadline {
            turns.insert(key.clone(), rank);
        }
        rank
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

    /// The clock of a tenant was moved: everybody looks.
    pub(in crate::service) fn ring_tenant(&self, tenant: TenantRef) {
        if !self.nobody() {
            let rooms = self.rooms.lock();
            let theirs = rooms.iter().filter(|(key, _)| key.tenant == tenant);
            theirs.flat_map(|(_, room)| room.values()).for_each(|seat| seat.ring());
        }
    }

    /// Waits until all of a tenant who wait have looked since their bells rang.
    pub(in crate::service) async fn at_rest(&self, tenant: TenantRef) -> Resting {
        let all_rest = async {
            loop {
                let looked = self.looked.notified();
                let (resting, all) = self.resting(tenant);
                if all {
                    return resting;
                }
                looked.await;
            }
        };
        let waited = tokio::time::timeout(REST, all_rest).await;
        waited.unwrap_or_else(|_| self.resting(tenant).0)
    }

    /// Who waits, and whether all of them rest.
    fn resting(&self, tenant: TenantRef) -> (Resting, bool) {
        let rooms = self.rooms.lock();
        let theirs = rooms.iter().filter(|(key, _)| key.tenant == tenant);
        let seats = theirs.flat_map(|(_, room)| room.values());
        let (mut resting, mut all) = (Resting::default(), true);
        for seat in seats {
            let heard = seat.heard.load(SeqCst);
            all &= heard == seat.rung();
            resting.waiting += 1;
            let looks_at = Some(seat.looks_at.load(SeqCst)).filter(|at| *at != i64::MAX).map(Millis);
            resting.looks_at = resting.looks_at.into_iter().chain(looks_at).min();
        }
        (resting, all)
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
                seat.ring();
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
        seat.ring();
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
    /// A look after so many bells came to nothing; the next one is at an
    /// instant of the tenant's clock, if it is set by hand.
    pub fn rests(&self, rung: u64, looks_at: Option<Millis>) {
        self.seat.looks_at.store(looks_at.map_or(i64::MAX, |at| at.0), SeqCst);
        self.seat.heard.store(rung, SeqCst);
        if looks_at.is_some() {
            self.rooms.looked.notify_waiters();
        }
    }

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
                self.rooms.bulk_turns.lock().remove(&self.key);
            }
        }
        drop(rooms);
        self.rooms.looked.notify_waiters();
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

    #[tokio::test]
    async fn who_moves_a_clock_hears_when_all_have_looked() {
        let rooms = Rooms::default();
        let enter = |rank| rooms.enter(&key(), &place(&rooms, rank, 0)).expect("a seat");
        let (first, second) = (enter(10), enter(20));
        for chair in [&first, &second] {
            chair.rests(chair.seat.rung(), Some(Millis(chair.place.turn.rank.0 + 100)));
        }
        let rest = |waiting, at| Resting { waiting, looks_at: Some(Millis(at)) };
        assert_eq!(rooms.at_rest(TenantRef(1)).await, rest(2, 110));
        assert_eq!(rooms.at_rest(TenantRef(2)).await, Resting::default());
        rooms.ring_tenant(TenantRef(1));
        let before = (first.seat.rung(), second.seat.rung());
        let resting = rooms.at_rest(TenantRef(1));
        let look = async {
            second.rests(before.1, Some(Millis(130)));
            // Admitted: the next one is woken before anybody could think that all rest.
            drop(first);
            assert!(second.seat.rung() > before.1);
            second.rests(second.seat.rung(), Some(Millis(140)));
        };
        assert_eq!(tokio::join!(resting, look).0, rest(1, 140));
    }

    #[test]
    fn bulk_calls_that_waited_long_do_not_all_have_their_turn_at_once() {
        let rooms = Rooms::default();
        let rank = |own| rooms.bulk_rank(&key(), Millis(own), 2_000, Millis(own + 3_000)).0;
        assert_eq!([rank(0), rank(0)], [0, 2_000]);
        // Their turns come too late for them, and are the next one's.
        assert_eq!([rank(0), rank(10), rank(1_500), rank(9_000)], [4_000, 4_000, 4_000, 9_000]);
        drop(rooms.enter(&key(), &place(&rooms, 0, 1)));
        assert_eq!(rank(0), 0, "nobody is left");
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
