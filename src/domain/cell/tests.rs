//! The cells by themselves: what must hold of every bucket and window.

use proptest::prelude::*;

use super::{Bucket, Reserved, Standing, UNIT, Window};
use crate::domain::charge::{FigureStep, Span};
use crate::domain::time::Millis;

const HOUR: i64 = 3_600_000;

fn at(ms: i64) -> Millis {
    Millis(1_770_000_000_000 + ms)
}

fn step(most: u64, refill: u64, since: Millis) -> FigureStep {
    FigureStep { most, refill, since }
}

fn refilled(bucket: &mut Bucket, now: Millis) {
    bucket.advance(&[], std::iter::empty(), now);
}

fn remaining(bucket: &Bucket, now: Millis) -> u64 {
    bucket.standing(now).remaining()
}

#[test]
fn a_retry_is_told_to_the_millisecond() {
    // One token each 1.5 s, emptied at 0.
    let mut bucket = Bucket::full(1, 40, at(0));
    bucket.take(1, false);
    refilled(&mut bucket, at(200));
    assert_eq!(bucket.wait_ms(1, std::iter::empty(), &[], at(200)), Some(1300));
    refilled(&mut bucket, at(1499));
    assert_eq!(bucket.available(), 0);
    refilled(&mut bucket, at(1500));
    assert_eq!(bucket.available(), 1);
}

#[test]
fn fractions_are_kept_between_calls() {
    let mut bucket = Bucket::full(5, 10, at(0));
    bucket.take(5, false);
    for (ms, left) in [(9_000, 1), (12_100, 1), (17_999, 0), (18_000, 1)] {
        refilled(&mut bucket, at(ms));
        assert_eq!(bucket.available(), left, "at {ms}");
        if left > 0 {
            bucket.take(1, false);
        }
    }
}

#[test]
fn a_reservation_keeps_its_place_from_refill_until_its_lease_ends() {
    let mut bucket = Bucket::full(5000, 5000, at(0));
    bucket.take(4000, true);
    refilled(&mut bucket, at(60_000));
    assert_eq!(bucket.available(), 1000, "refill stops at capacity - held");
    let ends = [(at(60_000), 4000)];
    bucket.advance(&[], ends.into_iter(), at(108_000));
    assert_eq!(bucket.available(), 5000, "48 s after the lease ended");
}

#[test]
fn an_overrun_is_a_debt_that_refill_repays() {
    let mut bucket = Bucket::full(2000, 60, at(0));
    bucket.take(1000, true);
    bucket.settle(1000, 3200, true, at(0));
    assert_eq!(bucket.standing(at(0)).remaining(), 0);
    assert!(bucket.standing(at(0)).is_over());
    assert_eq!(bucket.wait_ms(100, std::iter::empty(), &[], at(0)), Some(1_300_000));
}

#[test]
fn a_wait_counts_the_changes_of_figures_to_come() {
    // Empty, one a second; in 3 s ten a second, in 5 s one again, with room for 5 less.
    let mut bucket = Bucket::full(100, 60, at(0));
    bucket.take(100, false);
    let changes = [step(100, 600, at(3_000)), step(95, 60, at(5_000))];
    let wait = |amount| bucket.wait_ms(amount, std::iter::empty(), &changes, at(0));
    assert_eq!(wait(2), Some(2_000));
    assert_eq!(wait(3), Some(3_000), "the level carries over");
    assert_eq!(wait(10), Some(3_700));
    // 23 at 5 s, less the 5 of the smaller bucket.
    assert_eq!(wait(23), Some(10_000), "not at the instant of the change");
    for amount in [2, 3, 10, 22, 23, 40] {
        let told = wait(amount).expect("it comes") as i64;
        let level_at = |ms: i64| {
            let mut later = bucket.clone();
            let come: Vec<FigureStep> = changes.iter().filter(|c| c.since <= at(ms)).copied().collect();
            later.advance(&come, std::iter::empty(), at(ms));
            later.available()
        };
        assert!(level_at(told) >= amount && level_at(told - 1) < amount, "{amount} after {told}");
    }
}

#[test]
fn debt_saturates_instead_of_overflowing() {
    let mut bucket = Bucket::full(1, 1_000, at(0));
    for _ in 0..10 {
        bucket.settle(0, u64::MAX >> 11, false, at(0));
    }
    refilled(&mut bucket, Millis::MAX);
    assert_eq!(bucket.available(), 1, "no pause is too long");
}

#[test]
fn new_figures_keep_the_deficit() {
    let mut bucket = Bucket::full(1000, 600, at(0));
    bucket.take(900, false);
    bucket.advance(&[step(5000, 3000, at(0))], std::iter::empty(), at(0));
    assert_eq!(bucket.available(), 4100);
    for _ in 0..10 {
        bucket.advance(&[step(1000, 600, at(0))], std::iter::empty(), at(0));
        bucket.advance(&[step(5000, 3000, at(0))], std::iter::empty(), at(0));
    }
    assert_eq!(bucket.available(), 4100, "toggling mints nothing");
    refilled(&mut bucket, at(10_000));
    assert_eq!(bucket.available(), 4600);
}

#[test]
fn new_figures_hold_from_their_own_instant_on() {
    let mut bucket = Bucket::full(100, 60, at(0));
    bucket.take(100, false);
    // 10 s at one a second, then 10 s at ten a second.
    bucket.advance(&[step(100, 600, at(10_000))], std::iter::empty(), at(20_000));
    assert_eq!(bucket.available(), 10 + 100 - 10);
}

#[test]
fn a_clock_that_steps_back_refills_nothing() {
    let mut bucket = Bucket::full(5, 300, at(0));
    bucket.take(5, false);
    refilled(&mut bucket, at(1_000));
    refilled(&mut bucket, at(-5_000));
    refilled(&mut bucket, at(1_000));
    assert_eq!(bucket.available(), 5);
}

fn day(start: i64) -> Span {
    let start = start * 24 * HOUR;
    Span::Calendar {
        start: at(start),
        end: at(start + 24 * HOUR),
        next_end: at(start + 48 * HOUR),
        min_len: 23 * HOUR,
    }
}

#[test]
fn a_window_turns_by_the_clock_and_keeps_what_belongs_to_the_last() {
    let mut window = Window::default();
    let bounds = window.take(5, true, day(0), at(23 * HOUR)).expect("opened");
    window.roll(day(1), at(24 * HOUR), true);
    assert_eq!(window.filling().taken(), 0);
    window.take(2, false, day(1), at(24 * HOUR));
    window.settle(bounds, Reserved::Held(5), 0, at(25 * HOUR));
    assert_eq!(window.filling().used, 2, "the running window is left alone");
    assert_eq!(window.filling_of(bounds.0).expect("kept while a hold is open").taken(), 0);
}

#[test]
fn a_change_of_zone_takes_effect_when_the_window_ends_and_shortens_none() {
    // Days of UTC, then of a zone nine hours ahead.
    let ahead = |start: i64| {
        let start = start * 24 * HOUR - 9 * HOUR;
        Span::Calendar {
            start: at(start),
            end: at(start + 24 * HOUR),
            next_end: at(start + 48 * HOUR),
            min_len: 23 * HOUR,
        }
    };
    let mut window = Window::default();
    window.take(1, false, day(0), at(HOUR));
    window.roll(ahead(1), at(20 * HOUR), false);
    assert_eq!(window.current(ahead(1)), Some((at(0), at(24 * HOUR))), "the running one ends as it began");
    window.roll(ahead(1), at(24 * HOUR), false);
    let expected = (at(24 * HOUR), at(2 * 24 * HOUR + 15 * HOUR));
    assert_eq!(window.current(ahead(1)), Some(expected), "the next one is longer, never shorter");
}

#[test]
fn tiles_go_on_for_ever_from_the_first_take() {
    let span = Span::Tiles { len: 5 * HOUR };
    let mut window = Window::default();
    assert_eq!(window.take(0, false, span, at(0)), None, "an empty take opens nothing");
    assert_eq!(window.take(1, false, span, at(7)), Some((at(7), at(7 + 5 * HOUR))));
    window.roll(span, at(7 + 17 * HOUR), false);
    assert_eq!(window.current(span), Some((at(7 + 15 * HOUR), at(7 + 20 * HOUR))));
}

#[test]
fn a_session_opens_at_the_first_take_after_the_last_one() {
    let span = Span::Session { len: HOUR };
    let mut window = Window::default();
    window.take(3, false, span, at(0));
    window.roll(span, at(HOUR), false);
    assert_eq!(window.current(span), None);
    assert_eq!(window.take(1, false, span, at(3 * HOUR)), Some((at(3 * HOUR), at(4 * HOUR))));
    assert_eq!(window.filling().used, 1);
}

#[test]
fn an_empty_take_settled_with_more_is_the_first_take() {
    let span = Span::Tiles { len: 5 * HOUR };
    let mut window = Window::default();
    assert_eq!(window.settle_first(at(0), 9, span, at(2 * HOUR)), Some((at(0), at(5 * HOUR))));
    assert_eq!(window.filling().used, 9);
    // A block begun since reaches back in whole tiles.
    let mut window = Window::default();
    window.take(1, false, span, at(12 * HOUR));
    assert_eq!(window.settle_first(at(0), 9, span, at(13 * HOUR)), Some((at(-3 * HOUR), at(2 * HOUR))));
    assert_eq!(window.filling().used, 1, "that block is over");
}

#[test]
fn over_by_and_remaining_are_never_negative() {
    let mut window = Window::default();
    window.take(100, true, day(0), at(0));
    window.settle((at(0), at(24 * HOUR)), Reserved::Held(100), 1234, at(0));
    let Standing::Window { remaining, over_by, used, .. } = window.standing(1000, 0, day(0)) else {
        panic!()
    };
    assert_eq!((remaining, over_by, used), (0, 234, 1234));
}

proptest! {
    /// In every span of t seconds: admitted <= C + R*t/60.
    #[test]
    fn no_span_lets_through_more_than_capacity_and_refill(
        capacity in 1u64..50,
        refill in 0u64..3_000,
        steps in prop::collection::vec((0i64..5_000, 1u64..20), 1..200),
    ) {
        let mut bucket = Bucket::full(capacity, refill, at(0));
        let mut now = 0;
        let mut taken: Vec<(i64, u64)> = Vec::new();
        for (pause, amount) in steps {
            now += pause;
            refilled(&mut bucket, at(now));
            if bucket.available() >= amount {
                bucket.take(amount, false);
                taken.push((now, amount));
            }
        }
        for (first, (start, _)) in taken.iter().enumerate() {
            let mut sum = 0;
            for (end, amount) in &taken[first..] {
                sum += amount;
                let allowed = capacity as i64 * UNIT + refill as i64 * (end - start);
                prop_assert!(sum as i64 * UNIT <= allowed);
            }
        }
    }

    /// A retry at the wait told passes, a millisecond earlier it does not.
    #[test]
    fn the_wait_told_is_exact_with_leases_ending_in_between(
        capacity in 1u64..1_000,
        refill in 1u64..10_000,
        held in prop::collection::vec((1i64..100_000, 0u64..400), 0..6),
        spent in 0u64..2_000,
        amount in 1u64..1_000,
    ) {
        let mut bucket = Bucket::full(capacity, refill, at(0));
        let mut ends: Vec<(Millis, u64)> = Vec::new();
        for (end, reserved) in held {
            if bucket.available() >= reserved {
                bucket.take(reserved, true);
                ends.push((at(end), reserved));
            }
        }
        ends.sort();
        bucket.settle(0, spent, false, at(0));
        let amount = amount.min(capacity);
        let wait = bucket.wait_ms(amount, ends.iter().copied(), &[], at(0)).expect("it comes") as i64;
        let level_at = |ms: i64| {
            let mut later = bucket.clone();
            let due = ends.iter().copied().filter(|(end, _)| *end <= at(ms));
            later.advance(&[], due, at(ms));
            later.available()
        };
        prop_assert!(level_at(wait) >= amount);
        prop_assert!(wait == 0 || level_at(wait - 1) < amount);
    }

    /// Whatever is taken and given back in full leaves the bucket as if
    /// nothing had been: no operation mints or burns.
    #[test]
    fn taking_and_giving_back_is_no_change(
        capacity in 1u64..1_000,
        refill in 0u64..1_000,
        steps in prop::collection::vec((0i64..1_000, 0u64..100), 0..50),
    ) {
        let mut bucket = Bucket::full(capacity, refill, at(0));
        let mut now = 0;
        for (pause, amount) in steps {
            now += pause;
            refilled(&mut bucket, at(now));
            if bucket.available() >= amount {
                bucket.take(amount, true);
                bucket.settle(amount, 0, true, at(now));
            }
            prop_assert_eq!(remaining(&bucket, at(now)), capacity);
        }
    }
}
