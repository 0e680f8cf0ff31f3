//! The line before a pool: who waits for it, and who may go first.
//!
//! First come, first served; interactive calls before bulk ones, which are
//! ranked later by some seconds, and one some time after another, so that they
//! neither starve nor, once many of them have waited long, stand before
//! everybody who comes. A small call may overtake a large one that came not
//! long ago, for ever none may.

use super::charge::{AccountKey, Charge, MeterCode};
use super::plan::Scope;
use super::quantity::add_saturating;
use super::time::Millis;

/// For how long after its rank has come smaller calls may overtake a waiter.
pub const PATIENCE_MS: i64 = 5_000;
/// How much later than it came a bulk call is ranked, if it is the only one.
pub const BULK_AFTER_MS: i64 = 30_000;
/// What the pool can do while one bulk call's turn comes after another's, in
/// calls of that size: bulk that waited long has a tenth of it at least.
const TURNS_BETWEEN: u64 = 10;
/// How long a node is believed to be there after its last sign of life, in
/// real time.
pub const NODE_ALIVE_MS: i64 = 5_000;
/// The ticket of who does not wait: behind all that do.
pub const NO_TICKET: u64 = (1 << 53) - 1;

/// Where a call stands, in the line or come just now. Less goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    pub rank: Millis,
    /// Counts up on each node; below 2^53, as is the node.
    pub ticket: u64,
    pub node: u64,
}

/// A call as far as the line cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub turn: Turn,
    /// How large the call is against the pool, in powers of four.
    pub class: u8,
    pub bulk: bool,
    /// It stands in the line already.
    pub stands: bool,
}

/// One who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiter {
    pub place: Place,
    pub deadline: Millis,
    pub input: u64,
    pub output: u64,
}

/// What those in a lane of the line ask for together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    pub calls: u64,
    pub input: u64,
    pub output: u64,
}

/// Who waits for one pool. Its state is no record: whoever waits comes back by
/// itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line {
    /// In the order of their turns.
    pub(crate) waiters: Vec<Waiter>,
    /// Nodes, and until when each is believed to be there, in real time.
    pub(crate) nodes: Vec<(u64, Millis)>,
}

/// What a call finds before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ahead {
    /// Somebody goes first.
    pub blocked: bool,
    /// Those who go first together, about: all of them for who comes, nobody
    /// for who stands in the line.
    pub load: Load,
}

impl Turn {
    /// The turn of a call that waits for `wait_ms`, or not at all.
    pub fn new(since: Millis, bulk: bool, wait_ms: Option<i64>, ticket: u64, node: u64) -> Self {
        let later = match (bulk, wait_ms) {
            (false, _) => 0,
            (true, None) => BULK_AFTER_MS,
            (true, Some(wait_ms)) => (wait_ms / 2).min(BULK_AFTER_MS),
        };
        Self { rank: since.plus_ms(later), ticket, node }
    }
}

/// How much later than one bulk call's turn the next one's comes.
pub fn bulk_gap_ms(charges: &[Charge], accounts: &[AccountKey], output: u64) -> i64 {
    let of_pool =
        |charge: &&Charge| charge.asked && accounts[usize::from(charge.account)].scope == Scope::Pool;
    let time = |charge: &Charge| charge.figures.time_for(charge.demand.amount(output));
    let longest = charges.iter().filter(of_pool).map(time).max().unwrap_or(0);
    i64::try_from(longest.saturating_mul(TURNS_BETWEEN)).unwrap_or(i64::MAX)
}

impl Place {
    /// Whether it waits, or would.
    pub fn waits(&self) -> bool {
        self.turn.ticket != NO_TICKET
    }
}

impl Load {
    /// What of a meter they ask for, as far as it is known.
    pub fn of(&self, meter: MeterCode) -> u64 {
        match meter {
            MeterCode::REQUESTS => self.calls,
            MeterCode::INPUT | MeterCode::INPUT_AT_START => self.input,
            MeterCode::OUTPUT => self.output,
            MeterCode::TOTAL => add_saturating(self.input, self.output),
            _ => 0,
        }
    }

    pub fn with(&self, other: &Self) -> Self {
        Self {
            calls: self.calls + other.calls,
            input: add_saturating(self.input, other.input),
            output: add_saturating(self.output, other.output),
        }
    }
}

impl Waiter {
    /// Whether it goes before a call at `place`.
    fn goes_before(&self, place: &Place, now: Millis) -> bool {
        let patient = now.0.saturating_sub(self.place.turn.rank.0) < PATIENCE_MS;
        self.deadline > now && (self.place.class <= place.class || !patient)
    }
}

impl Line {
    /// What a call at `place` finds before it.
    pub fn ahead(&self, place: &Place, now: Millis, real: Millis) -> Ahead {
        let before = self.waiters.iter().take_while(|waiter| waiter.place.turn < place.turn);
        let blocked = before
            .into_iter()
            .any(|waiter| self.is_there(waiter.place.turn.node, real) && waiter.goes_before(place, now));
        let load = if place.stands { Load::default() } else { self.load(place.bulk) };
        Ahead { blocked, load }
    }

    /// Everybody who goes before one who comes now: for bulk, both lanes.
    fn load(&self, bulk: bool) -> Load {
        let before = self.waiters.iter().filter(|waiter| bulk || !waiter.place.bulk);
        before.fold(Load::default(), |load, waiter| {
            load.with(&Load { calls: 1, input: waiter.input, output: waiter.output })
        })
    }

    fn is_there(&self, node: u64, real: Millis) -> bool {
        self.nodes.iter().any(|(known, until)| *known == node && *until > real)
    }

    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// How many of a node wait.
    pub fn of_node(&self, node: u64) -> usize {
        self.waiters.iter().filter(|waiter| waiter.place.turn.node == node).count()
    }

    /// A sign of life of a node; nodes that give none are forgotten, and who
    /// waited there.
    pub fn keep(&mut self, node: u64, real: Millis) {
        self.nodes.retain(|(known, until)| *known != node && *until > real);
        self.nodes.push((node, real.plus_ms(NODE_ALIVE_MS)));
        let nodes = &self.nodes;
        self.waiters.retain(|waiter| nodes.iter().any(|(known, _)| *known == waiter.place.turn.node));
    }

    /// Stands in the line, if fewer than `most` do.
    pub fn enter(&mut self, waiter: Waiter, most: usize, real: Millis) -> bool {
        if !self.nodes.iter().any(|(known, _)| *known == waiter.place.turn.node) {
            self.nodes.push((waiter.place.turn.node, real.plus_ms(NODE_ALIVE_MS)));
        }
        let turn = waiter.place.turn;
        match self.waiters.binary_search_by_key(&turn, |waiter| waiter.place.turn) {
            Ok(_) => true,
            Err(_) if self.waiters.len() >= most => false,
            Err(at) => {
                self.waiters.insert(at, waiter);
                true
            }
        }
    }

    /// Leaves the line.
    pub fn leave(&mut self, turn: Turn) {
        if let Ok(at) = self.waiters.binary_search_by_key(&turn, |waiter| waiter.place.turn) {
            self.waiters.remove(at);
        }
    }
}

/// How large a call is against a pool: 0 below a 256th of any limit of it, then
/// one more for each power of four.
pub fn size_class(charges: &[Charge], accounts: &[AccountKey], output: u64) -> u8 {
    let class = |charge: &Charge| {
        let (amount, most) = (u128::from(charge.demand.amount(output)), u128::from(charge.figures.ceiling()));
        [256, 64, 16, 4].into_iter().filter(|part| amount * part >= most).count() as u8
    };
    let of_pool =
        |charge: &&Charge| charge.asked && accounts[usize::from(charge.account)].scope == Scope::Pool;
    charges.iter().filter(of_pool).map(class).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: u64 = 7;

    fn turn(rank: i64, ticket: u64) -> Turn {
        Turn { rank: Millis(rank), ticket, node: NODE }
    }

    fn waiter(rank: i64, ticket: u64, class: u8) -> Waiter {
        let place = Place { turn: turn(rank, ticket), class, bulk: false, stands: true };
        Waiter { place, deadline: Millis(60_000), input: 10, output: 100 }
    }

    fn line(waiters: &[Waiter]) -> Line {
        let mut line = Line::default();
        waiters.iter().for_each(|waiter| assert!(line.enter(*waiter, 100, Millis(0))));
        line
    }

    fn blocked(line: &Line, me: &Waiter, now: i64) -> bool {
        line.ahead(&me.place, Millis(now), Millis(0)).blocked
    }

    #[test]
    fn who_came_first_goes_first() {
        let all = [waiter(10, 1, 0), waiter(10, 2, 0), waiter(20, 3, 0)];
        let line = line(&[all[2], all[1], all[0]]);
        assert_eq!(all.map(|me| blocked(&line, &me, 20)), [false, true, true]);
        assert!(blocked(&line, &waiter(20, NO_TICKET, 0), 20), "who comes now is behind all who wait");
    }

    #[test]
    fn a_small_call_overtakes_a_large_one_for_a_while() {
        let line = line(&[waiter(0, 1, 3)]);
        let (small, large) = (waiter(100, 2, 1), waiter(100, 3, 3));
        assert!(!blocked(&line, &small, 4_999));
        assert!(blocked(&line, &small, 5_000), "its patience is over");
        assert!(blocked(&line, &large, 100));
        let line = self::line(&[waiter(0, 1, 0)]);
        assert!(blocked(&line, &large, 100), "a large one never overtakes a small one");
    }

    #[test]
    fn bulk_is_ranked_later_but_not_for_ever() {
        let rank = |bulk, wait_ms| Turn::new(Millis(1_000), bulk, wait_ms, 1, NODE).rank.0;
        assert_eq!([rank(false, Some(60_000)), rank(true, Some(60_000))], [1_000, 31_000]);
        assert_eq!([rank(true, Some(4_000)), rank(true, None)], [3_000, 31_000]);
    }

    #[test]
    fn who_is_late_or_of_a_dead_node_blocks_nobody() {
        let late = Waiter { deadline: Millis(50), ..waiter(0, 1, 0) };
        let line = line(&[late]);
        let me = waiter(10, 2, 0);
        assert!(blocked(&line, &me, 49) && !blocked(&line, &me, 50));
        let line = self::line(&[waiter(0, 1, 0)]);
        let ahead = |real| line.ahead(&me.place, Millis(10), Millis(real)).blocked;
        assert!(ahead(NODE_ALIVE_MS - 1) && !ahead(NODE_ALIVE_MS));
    }

    #[test]
    fn the_line_is_bounded_and_nobody_stands_in_it_twice() {
        let mut line = Line::default();
        assert!(line.enter(waiter(0, 1, 0), 2, Millis(0)) && line.enter(waiter(0, 2, 0), 2, Millis(0)));
        assert!(line.enter(waiter(0, 1, 0), 2, Millis(0)), "it is in already");
        assert!(!line.enter(waiter(0, 3, 0), 2, Millis(0)));
        line.leave(turn(0, 1));
        line.leave(turn(0, 1));
        assert!(line.enter(waiter(0, 3, 0), 2, Millis(0)));
        assert_eq!(line.len(), 2);
    }

    #[test]
    fn who_waited_at_a_node_that_is_gone_is_forgotten() {
        let mut line = line(&[waiter(0, 1, 0)]);
        let other = Turn { node: 8, ..turn(5, 1) };
        let place = Place { turn: other, class: 0, bulk: false, stands: true };
        assert!(line.enter(Waiter { place, ..waiter(5, 1, 0) }, 100, Millis(3_000)));
        line.keep(8, Millis(4_999));
        assert_eq!((line.of_node(NODE), line.of_node(8)), (1, 1));
        line.keep(8, Millis(5_000));
        assert_eq!((line.of_node(NODE), line.of_node(8)), (0, 1));
    }

    #[test]
    fn who_comes_is_told_of_all_who_go_before_it() {
        let bulk = Waiter { place: Place { bulk: true, ..waiter(20_000, 2, 0).place }, ..waiter(0, 2, 0) };
        let line = line(&[waiter(0, 1, 0), bulk]);
        let come = |bulk| Place { turn: turn(10, NO_TICKET), class: 0, bulk, stands: false };
        let load = |place: &Place| line.ahead(place, Millis(10), Millis(0)).load;
        assert_eq!(load(&come(false)), Load { calls: 1, input: 10, output: 100 });
        assert_eq!(load(&come(true)).calls, 2);
        assert_eq!(load(&waiter(10, 3, 0).place).calls, 0);
    }
}
