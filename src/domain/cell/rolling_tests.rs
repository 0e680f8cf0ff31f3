use proptest::prelude::*;

use super::Rolling;
use crate::domain::time::Millis;

const W: i64 = 10_000;

fn at(ms: i64) -> Millis {
    Millis(1_770_000_000_000 + ms)
}

/// A cell with what was taken, as a caller would know it.
struct Life {
    cell: Rolling,
    limit: u64,
    /// When, how much counts, and how long its window is.
    taken: Vec<(i64, u64)>,
}

impl Life {
    fn new(limit: u64) -> Self {
        Self { cell: Rolling::new(limit, W), limit, taken: Vec::new() }
    }

    fn room(&mut self, now: i64) -> u64 {
        self.cell.advance(at(now));
        self.limit.saturating_sub(self.cell.used())
    }

    /// Takes if there is room.
    fn take(&mut self, amount: u64, now: i64) -> bool {
        let fits = self.room(now) >= amount;
        if fits {
            self.cell.take(amount, self.limit, at(now));
            self.taken.push((now, amount));
        }
        fits
    }

    /// What really was taken in `(now - W, now]`.
    fn truly_used(&self, now: i64) -> u64 {
        self.taken.iter().filter(|(then, _)| now - W < *then && *then <= now).map(|(_, amount)| amount).sum()
    }
}

#[test]
fn a_take_leaves_the_window_after_its_length_and_not_before() {
    let mut life = Life::new(100);
    assert!(life.take(60, 0) && life.take(40, 1));
    assert!(!life.take(1, W - 1));
    assert_eq!(life.room(W), 60, "the first has left: the window does not have its beginning");
    assert_eq!(life.room(W + 1), 100);
}

#[test]
fn the_wait_told_is_when_enough_has_left() {
    let mut life = Life::new(100);
    for (now, amount) in [(0, 50), (2_000, 30), (4_000, 20)] {
        assert!(life.take(amount, now));
    }
    let wait = |amount| life.cell.wait_ms(amount, 100, at(5_000));
    assert_eq!([wait(50), wait(51), wait(100)], [Some(5_000), Some(7_000), Some(9_000)]);
    assert_eq!(wait(101), None);
    assert_eq!(life.cell.wait_ms(50, 200, at(5_000)), Some(0));
}

#[test]
fn a_settle_gives_nothing_back_and_a_release_everything() {
    let mut cell = Rolling::new(100, W);
    let window = cell.take(60, 100, at(0));
    cell.settle(window, 60, 10, false, at(100));
    assert_eq!(cell.used(), 60, "it was counted when it was taken");
    cell.settle(window, 60, 70, false, at(200));
    assert_eq!(cell.used(), 70, "what goes beyond it counts from now on");
    let window = cell.take(30, 100, at(300));
    cell.settle(window, 30, 0, true, at(400));
    assert_eq!(cell.used(), 70);
    let late = cell.take(20, 100, at(500));
    cell.advance(at(500 + W));
    assert_eq!(cell.used(), 0);
    cell.take(5, 100, at(500 + W));
    cell.settle(late, 20, 0, true, at(500 + W));
    assert_eq!(cell.used(), 5, "what has left the window does not come back once more");
}

#[test]
fn the_log_stays_short_whatever_happens() {
    let mut cell = Rolling::new(10_000, W);
    let mut held = Vec::new();
    for n in 0..5_000i64 {
        cell.advance(at(n));
        let window = cell.take(7, 1_000_000, at(n));
        held.push(window);
        if n % 3 == 0 {
            cell.settle(held[n as usize / 2], 7, 0, true, at(n));
        }
        if n % 5 == 0 {
            cell.settle(held[n as usize], 7, 5_000, false, at(n));
        }
        assert!(cell.parts().1.len() <= 128, "{}", cell.parts().1.len());
        assert_eq!(cell.parts().1.iter().map(|(_, amount)| amount).sum::<u64>(), cell.used());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// What is admitted in any span of the window's length never exceeds the
    /// limit; and nothing is refused that more than a fiftieth less would allow.
    #[test]
    fn no_span_holds_more_than_the_limit(
        limit in 1u64..5_000,
        steps in prop::collection::vec((0i64..3_000, 1u64..400, prop::bool::weighted(0.1)), 1..200),
    ) {
        let mut life = Life::new(limit);
        let mut now = 0;
        for (pause, amount, releases) in steps {
            now += pause % if pause % 3 == 0 { 3_000 } else { 50 };
            let truly = life.truly_used(now);
            if !life.take(amount, now) {
                prop_assert!(truly + amount > limit - limit / 50, "refused more than 2 % too early");
            }
            prop_assert!(life.truly_used(now) <= limit);
            // Later spans hold no more than what is counted then.
            prop_assert!(life.truly_used(now) <= life.cell.used());
            if releases && let Some((then, amount)) = life.taken.pop() {
                life.cell.settle((at(then), at(then + W)), amount, 0, true, at(now));
            }
        }
        for end in 0..now + W {
            prop_assert!(end % 97 != 0 || life.truly_used(end) <= limit);
        }
    }

    #[test]
    fn the_wait_told_is_exact(
        takes in prop::collection::vec((0i64..4_000, 1u64..300), 1..20),
        amount in 1u64..1_000,
    ) {
        let mut life = Life::new(1_000);
        let mut now = 0;
        for (pause, amount) in takes {
            now += pause;
            life.take(amount, now);
        }
        life.cell.advance(at(now));
        let wait = life.cell.wait_ms(amount, 1_000, at(now)).expect("it comes") as i64;
        prop_assert!(life.clone_room(now + wait) >= amount);
        prop_assert!(wait == 0 || life.clone_room(now + wait - 1) < amount);
    }
}

impl Life {
    fn clone_room(&self, now: i64) -> u64 {
        let mut cell = self.cell.clone();
        cell.advance(at(now));
        self.limit.saturating_sub(cell.used())
    }
}
