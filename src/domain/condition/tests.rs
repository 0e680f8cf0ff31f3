use super::*;
use crate::domain::charge::{CellId, FigureStep};

const NOW: Millis = Millis(1_773_144_000_000);

fn at(ms: i64) -> Millis {
    NOW.plus_ms(ms)
}

/// The vendor says to wait until `until`, at `now`.
fn refused(condition: Condition, until: i64, now: i64) -> Condition {
    condition.waits(at(until), Because::Rate, at(now)).unwrap_or(condition)
}

#[test]
fn a_pause_holds_everybody_until_it_ends() {
    let paused = refused(Condition::default(), 20_000, 0);
    for bulk in [false, true] {
        let pause = Pause { until: at(20_000), kind: PauseKind::Paused };
        assert_eq!(paused.paused(at(19_999), bulk), Some(pause));
        assert_eq!(paused.paused(at(20_000), bulk), None);
    }
    assert_eq!(paused.share(NOW), Ppm::ONE, "one refusal is no reason to slow down");
}

#[test]
fn refusals_within_a_pause_make_it_longer_and_never_shorter() {
    let paused = refused(Condition::default(), 10_000, 0);
    let longer = refused(paused.clone(), 30_000, 1000);
    assert_eq!(longer.paused_until(at(2000)), Some(at(30_000)));
    let same = refused(longer.clone(), 5000, 2000);
    assert_eq!(same.paused_until(at(2000)), Some(at(30_000)));
    // The rest of a burst says nothing new.
    assert_eq!(same.waits(at(30_050), Because::Rate, at(2001)), None);
}

#[test]
fn the_rate_falls_once_a_pause_when_refusals_repeat() {
    let mut condition = refused(Condition::default(), 1000, 0);
    let shares: Vec<u32> = (1..20)
        .map(|n| {
            condition = refused(condition.clone(), n * 3000 + 1000, n * 3000);
            condition = refused(condition.clone(), n * 3000 + 1000, n * 3000 + 1);
            condition = refused(condition.clone(), n * 3000 + 2000, n * 3000 + 2);
            condition.share(at(n * 3000 + 2)).0
        })
        .collect();
    assert_eq!(shares[..3], [800_000, 640_000, 512_000]);
    assert_eq!(*shares.last().unwrap(), 100_000, "and no further");
}

#[test]
fn a_refusal_long_after_the_last_pause_is_a_first_one() {
    let first = refused(Condition::default(), 1000, 0);
    assert_eq!(refused(first.clone(), 70_000, 61_000).share(at(61_000)), Ppm::ONE);
    assert_eq!(refused(first, 70_000, 60_999).share(at(60_999)), Ppm(800_000));
}

#[test]
fn what_is_no_matter_of_rate_lowers_none() {
    for because in [Because::Day, Because::Overload] {
        let first = Condition::default().waits(at(1000), because, NOW).unwrap();
        let second = first.waits(at(3000), because, at(2000)).unwrap();
        assert_eq!(second.share(at(2000)), Ppm::ONE);
        assert_eq!(second.paused_until(at(2000)), Some(at(3000)));
    }
}

#[test]
fn a_rate_comes_back_slowly_and_only_without_refusals() {
    let low = refused(refused(Condition::default(), 1000, 0), 10_000, 2000);
    assert_eq!(low.share(at(2000)), Ppm(800_000));
    // It rises from the end of the pause on.
    let shares = [69_999, 70_000, 129_999, 130_000, 190_000, 250_000].map(|ms| low.share(at(ms)).0);
    assert_eq!(shares, [800_000, 850_000, 850_000, 900_000, 950_000, 1_000_000]);
    assert!(low.rate().matters(at(250_000)) && !low.rate().matters(at(250_000 + 3_600_000)));
    // A refusal on the way, long after: the rate waits and then goes on.
    let held = refused(low, 140_000, 135_000);
    assert_eq!(held.share(at(190_000)), Ppm(900_000));
    assert_eq!(held.share(at(200_000)), Ppm(950_000));
}

#[test]
fn figures_follow_the_rate_and_the_versions_of_a_pool() {
    let rate = Rate::default().lowered(at(10_000), at(10_000));
    let step = |since: i64, most, refill| FigureStep { since: at(since), most, refill };
    let whole = [step(0, 100, 60), step(75_000, 1000, 600)];
    let figures = rate.figures(&whole);
    assert_eq!(
        figures,
        [
            step(0, 100, 60),
            step(10_000, 80, 48),
            step(70_000, 85, 51),
            step(75_000, 850, 510),
            step(130_000, 900, 540),
            step(190_000, 950, 570),
            step(250_000, 1000, 600),
        ]
    );
    let smallest = rate.figures(&[step(0, 1, 1)]);
    assert_eq!(smallest, [step(0, 1, 1)], "what is something stays something");
    assert_eq!(rate.figures(&[step(0, 0, 0)]), [step(0, 0, 0)]);
    assert_eq!(Rate::default().figures(&whole), whole);
}

#[test]
fn a_closed_pool_is_open_when_the_month_turns_or_an_admin_says_so() {
    let closed = Condition::default().closes("insufficient_quota", at(1_000_000), NOW).unwrap();
    let pause = closed.paused(at(999_999), false).unwrap();
    assert_eq!(pause, Pause { until: at(1_000_000), kind: PauseKind::Closed });
    assert_eq!((pause.wait_ms(NOW), pause.wait_ms(at(999_000))), (300_000, 1000));
    assert_eq!(closed.paused(at(1_000_000), false), None);
    assert_eq!(closed.closes("again", at(1_000_000), at(5)), None, "it is known");
    let opened = closed.opens(at(10)).unwrap();
    assert_eq!(opened.paused(at(10), true), None);
    assert_eq!(opened.opens(at(10)), None);
}

#[test]
fn opening_ends_a_pause_and_leaves_the_rate() {
    let low = refused(refused(Condition::default(), 1000, 0), 10_000, 2000);
    let opened = low.opens(at(3000)).unwrap();
    assert_eq!((opened.paused(at(3000), true), opened.share(at(3000))), (None, Ppm(800_000)));
}

#[test]
fn a_brake_holds_bulk_calls_for_half_a_minute() {
    let braked = Condition::default().brakes(NOW).unwrap();
    let pause = Pause { until: at(30_000), kind: PauseKind::Braked };
    assert_eq!((braked.paused(at(29_999), true), braked.paused(at(29_999), false)), (Some(pause), None));
    assert_eq!((braked.brakes(at(29_999)), braked.paused(at(30_000), true)), (None, None));
    assert!(braked.brakes(at(30_000)).is_some());
    let paused = refused(braked, 40_000, 5000);
    assert_eq!(paused.paused(at(5000), true).unwrap().until, at(40_000), "what ends last");
}

#[test]
fn a_condition_reads_back_as_it_was_written() {
    let condition = refused(refused(Condition::default(), 1000, 0), 10_000, 2000);
    let condition = condition.closes("why", at(5_000_000), at(2000)).unwrap().brakes(at(3000)).unwrap();
    let text = serde_json::to_string(&condition).unwrap();
    assert_eq!(serde_json::from_str::<Condition>(&text).unwrap(), condition);
    assert_eq!(serde_json::from_str::<Condition>("{}").unwrap(), Condition::default());
}

fn outcome(rejected: bool, latency_ms: Option<u64>) -> Outcome {
    Outcome { rejected, latency_ms }
}

#[test]
fn the_brake_counts_refusals_of_the_last_minute() {
    let mut brake = Brake::default();
    (0..199).for_each(|n| brake.note(outcome(false, None), at(n * 100)));
    brake.note(outcome(true, None), at(20_000));
    assert!(!brake.trips(at(20_000)), "one of 200 is 0.5 %");
    brake.note(outcome(true, None), at(21_000));
    assert!(brake.trips(at(21_000)));
    assert!(!brake.trips(at(82_000)), "they are a minute old");
    brake.note(outcome(true, None), at(82_000));
    assert!(brake.trips(at(82_000)), "one of one");
}

#[test]
fn the_brake_counts_slow_calls_but_not_two_of_them() {
    let mut brake = Brake::default();
    brake.note(outcome(false, Some(60_000)), NOW);
    brake.note(outcome(false, Some(3501)), NOW);
    assert!(!brake.trips(NOW));
    brake.note(outcome(false, Some(3501)), NOW);
    assert!(brake.trips(NOW));
    (0..57).for_each(|_| brake.note(outcome(false, Some(3500)), NOW));
    assert!(!brake.trips(NOW), "three of sixty are 5 %");
}

fn turns(turns: &mut Turns, users: &[&str], amount: u64, until: i64, now: i64) -> Vec<i64> {
    // A stock of 20, and ten a second.
    let want = Want { cell: CellId(1), amount, stock: 20, refill: 600 };
    let turn = |user: &&str| turns.turn(&Arc::from(*user), &[want], at(until), at(now)).0 - NOW.0;
    users.iter().map(turn).collect()
}

use std::sync::Arc;

#[test]
fn turns_after_a_pause_are_in_step_with_the_refill() {
    let mut list = Turns::default();
    assert_eq!(turns(&mut list, &["a", "b", "c", "d"], 10, 5000, 0), [5000, 5000, 6000, 7000]);
    assert_eq!(turns(&mut list, &["c"], 10, 5000, 1000), [6000], "asking again keeps the turn");
    assert_eq!(turns(&mut list, &["e"], 10, 9000, 2000), [9000], "another pause begins anew");
}

#[test]
fn a_call_that_takes_nothing_of_a_bucket_waits_for_the_pause_alone() {
    let mut list = Turns::default();
    assert_eq!(list.turn(&Arc::from("a"), &[], at(5000), NOW), at(5000));
}

#[test]
fn what_held_callers_back_is_remembered_with_its_end() {
    let told = |condition: &Condition| -> Vec<(&str, i64, i64, u32)> {
        let of = |wait: &Waited| (wait.kind.as_str(), wait.from.0 - NOW.0, wait.until.0 - NOW.0, wait.times);
        condition.waited().latest_first().map(of).collect()
    };
    let condition = refused(Condition::default(), 10_000, 0);
    let condition = refused(condition, 20_000, 5_000);
    assert_eq!(told(&condition), [("pause", 0, 20_000, 1)]);
    let condition = refused(condition, 75_000, 70_000);
    assert_eq!(told(&condition), [("pause", 0, 75_000, 2)], "what is close together is one line");
    let condition = condition.brakes(at(80_000)).unwrap();
    let condition = condition.closes("spent", at(1_000_000), at(90_000)).unwrap();
    let opened = condition.opens(at(100_000)).unwrap();
    assert_eq!(
        told(&opened),
        [("closure", 90_000, 100_000, 1), ("brake", 80_000, 100_000, 1), ("pause", 0, 75_000, 2)]
    );
    let many = (0..100).fold(opened, |condition, n| refused(condition, n * 900_000 + 1000, n * 900_000));
    assert_eq!(told(&many).len(), 32);
    let again: Condition = serde_json::from_str(&serde_json::to_string(&many).unwrap()).unwrap();
    assert_eq!(again, many);
}
