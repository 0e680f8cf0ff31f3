//! How busy a pool's minutes were of late, and how busy the next may be.

use serde::{Deserialize, Serialize};

use crate::domain::cell::Rolling;
use crate::domain::plan::Ramp;
use crate::domain::time::Millis;

const MINUTE_MS: i64 = 60_000;
/// Enough for the slowest ramp.
const KEPT: usize = 128;
/// What is on record is put right where it is less by more than this part.
const CLOSE: u64 = 50;

/// By minute since 1970 the most that was taken within 60 seconds that ended in
/// it. Ascending; a minute in which nobody looked is missing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Peaks {
    minutes: Vec<(i64, u64)>,
}

impl Peaks {
    /// So much was taken in the 60 seconds until `at`.
    pub fn note(&mut self, amount: u64, at: Millis) {
        let minute = at.0.div_euclid(MINUTE_MS);
        // A test clock may have been set back.
        while self.minutes.last().is_some_and(|(last, _)| *last > minute) {
            self.minutes.pop();
        }
        match self.minutes.last_mut() {
            Some((last, peak)) if *last == minute => *peak = amount.max(*peak),
            _ => self.minutes.push((minute, amount)),
        }
        if self.minutes.len() > KEPT {
            self.minutes.remove(0);
        }
    }

    /// The most of the minutes that lie wholly within `[from, to)`.
    fn highest(&self, from: Millis, to: Millis) -> u64 {
        let first = -(-from.0).div_euclid(MINUTE_MS);
        let end = to.0.div_euclid(MINUTE_MS);
        let within = self.minutes.iter().filter(|(minute, _)| (first..end).contains(minute));
        within.map(|(_, peak)| *peak).max().unwrap_or(0)
    }

    /// With what `seen` has of minutes that are over and matter to the ramp;
    /// `None`: that is nothing new.
    pub(super) fn with(&self, seen: &Self, ramp: &Ramp, now: Millis) -> Option<Self> {
        let (from, _) = ramp.looks_at(now);
        let (oldest, this) = (from.0.div_euclid(MINUTE_MS), now.0.div_euclid(MINUTE_MS));
        let known = |minute: i64| self.minutes.iter().find(|(at, _)| *at == minute).map_or(0, |(_, it)| *it);
        let is_new = |(minute, peak): &&(i64, u64)| {
            let known = known(*minute);
            (oldest..this).contains(minute) && ramp.after(*peak) > ramp.floor && *peak > known + known / CLOSE
        };
        let new: Vec<(i64, u64)> = seen.minutes.iter().filter(is_new).copied().collect();
        if new.is_empty() {
            return None;
        }
        let stays = |(minute, _): &&(i64, u64)| {
            (oldest..this).contains(minute) && !new.iter().any(|(other, _)| other == minute)
        };
        let mut minutes: Vec<(i64, u64)> = self.minutes.iter().filter(stays).copied().collect();
        minutes.extend(&new);
        minutes.sort_unstable();
        Some(Self { minutes })
    }
}

impl Ramp {
    /// The time in which a minute is looked for that this one may outdo: far
    /// enough back, and as long.
    fn looks_at(&self, now: Millis) -> (Millis, Millis) {
        let ago = |minutes: i64| now.plus_ms(-minutes * MINUTE_MS);
        let minutes = i64::from(self.minutes);
        (ago(2 * minutes + 1), ago(minutes))
    }

    /// What may be taken in the 60 seconds until `now`, by what is known of
    /// those before. Whoever knows less allows less.
    pub fn allows(&self, known: &[&Peaks], now: Millis) -> u64 {
        let (from, to) = self.looks_at(now);
        self.after(known.iter().map(|peaks| peaks.highest(from, to)).max().unwrap_or(0))
    }

    /// Of what a rolling limit of a minute counts, what was surely taken within
    /// the minute: it may count a little for too long, by the figures of then.
    pub fn surely(&self, counted: u64, known: &[&Peaks], now: Millis) -> u64 {
        let then = self.allows(known, now.plus_ms(-MINUTE_MS));
        counted.saturating_sub(Rolling::late_at_most(then.max(self.allows(known, now))))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::plan::Meter;
    use crate::domain::quantity::Ppm;

    const FLOOR: u64 = 1000;

    fn ramp() -> Ramp {
        Ramp { meter: Meter::InputTokens, floor: FLOOR, growth: Ppm(500_000), minutes: 15 }
    }

    /// What is admitted of random traffic, by ms.
    fn admitted(calls: &[(i64, u64)]) -> Vec<(i64, u64)> {
        let (ramp, mut peaks, mut cell) = (ramp(), Peaks::default(), Rolling::new(FLOOR, MINUTE_MS));
        let (mut now, mut admitted) = (Millis(1_790_000_000_000), Vec::new());
        for (pause, amount) in calls {
            now = now.plus_ms(*pause);
            cell.advance(now);
            let allowed = ramp.allows(&[&peaks], now);
            if cell.used() + amount <= allowed {
                cell.take(*amount, allowed, now);
                peaks.note(ramp.surely(cell.used(), &[&peaks], now), now);
                admitted.push((now.0, *amount));
            }
        }
        admitted
    }

    proptest! {
        #[test]
        fn no_minute_has_more_than_the_growth_over_one_that_is_a_quarter_of_an_hour_older(
            calls in prop::collection::vec((0i64..20_000, 1u64..900), 1..1500),
        ) {
            let admitted = admitted(&calls);
            // What a minute has is most when a call has just been admitted.
            let (mut minutes, mut from, mut taken) = (Vec::new(), 0, 0);
            for (at, amount) in &admitted {
                taken += amount;
                while admitted[from].0 <= at - MINUTE_MS {
                    taken -= admitted[from].1;
                    from += 1;
                }
                minutes.push((*at, taken));
            }
            for (index, (at, taken)) in minutes.iter().enumerate() {
                let before = minutes[..index].iter().rev().skip_while(|(other, _)| *other > at - 15 * MINUTE_MS);
                let before = before.take_while(|(other, _)| *other >= at - 31 * MINUTE_MS);
                let busiest = before.map(|(_, taken)| *taken).max().unwrap_or(0);
                prop_assert!(*taken <= FLOOR.max(busiest * 3 / 2), "{taken} after {busiest}");
            }
        }
    }

    #[test]
    fn it_grows_as_fast_as_it_may_and_falls_back_when_nothing_is_taken() {
        let (ramp, mut peaks) = (ramp(), Peaks::default());
        let mut now = Millis(0);
        for minute in 0..=60 {
            now = Millis(minute * MINUTE_MS);
            let allowed = ramp.allows(&[&peaks], now);
            assert_eq!(allowed, [1000, 1500, 2250, 3375][(minute / 16).min(3) as usize], "minute {minute}");
            peaks.note(allowed, now);
        }
        assert_eq!(ramp.allows(&[&peaks], now.plus_ms(16 * MINUTE_MS)), 5062);
        assert_eq!(ramp.allows(&[&peaks], now.plus_ms(32 * MINUTE_MS)), FLOOR);
    }

    #[test]
    fn only_minutes_that_are_over_and_matter_are_put_on_record() {
        let (ramp, mut seen) = (ramp(), Peaks::default());
        for (minute, amount) in [(1, 666), (2, 900), (3, 800), (4, 5000)] {
            seen.note(amount, Millis(minute * MINUTE_MS));
        }
        let now = Millis(4 * MINUTE_MS + 1);
        let recorded = Peaks::default().with(&seen, &ramp, now).unwrap();
        assert_eq!(recorded.minutes, [(2, 900), (3, 800)]);
        assert_eq!(recorded.with(&seen, &ramp, now), None, "that is known");
        let later = Millis(33 * MINUTE_MS);
        assert_eq!(recorded.with(&seen, &ramp, later).unwrap().minutes, [(2, 900), (3, 800), (4, 5000)]);
        let later = Millis(35 * MINUTE_MS + 1);
        seen.note(2000, Millis(34 * MINUTE_MS));
        assert_eq!(recorded.with(&seen, &ramp, later).unwrap().minutes, [(4, 5000), (34, 2000)]);
    }
}
