//! How long answers were, and what to reserve for the next one.
//!
//! Counts by places on a logarithmic scale: sixteen to a doubling, so that a place
//! is at most 6.25 % wide however long the answers are.

use std::collections::BTreeMap;

use super::quantity::add_saturating;

/// Settles before a spread says anything about the next call.
pub const ENOUGH: u64 = 200;
/// Of this share of the calls the answer is within what is reserved, in percent,
/// before the slack.
const QUANTILE_PERCENT: u64 = 99;
/// What is reserved beyond the quantile: a quarter. A vendor cuts an answer off
/// there, which is worse than a reservation that is somewhat too large.
const SLACK_DIVISOR: u64 = 4;
/// Whatever was seen: no call is of use with less.
const LEAST: u64 = 16;
/// Places to a doubling, as a power of two.
const FINE: u32 = 4;
/// So many places further up stands an answer that may have been cut off: a
/// quarter of a doubling.
const BEYOND: u16 = 1 << (FINE - 2);

/// How the outputs of some calls are spread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Spread {
    places: BTreeMap<u16, Counted>,
    count: u64,
}

/// The calls of one place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    pub count: u64,
    /// Of these, what reached its reservation: nobody knows how much longer it
    /// would have become.
    pub cut: u64,
    /// Sums of output tokens.
    pub reserved: u64,
    pub used: u64,
    /// The longest output.
    pub most: u64,
}

impl Counted {
    fn add(&mut self, other: Self) {
        self.count = add_saturating(self.count, other.count);
        self.cut = add_saturating(self.cut, other.cut);
        self.reserved = add_saturating(self.reserved, other.reserved);
        self.used = add_saturating(self.used, other.used);
        self.most = self.most.max(other.most);
    }
}

impl Spread {
    /// Counts a call that was settled. What reaches its reservation counts as
    /// somewhat longer: else figures learned from it could only ever shrink.
    pub fn note(&mut self, reserved: u64, used: u64) {
        let is_cut = reserved > 0 && used >= reserved;
        let place = place_of(used) + if is_cut { BEYOND } else { 0 };
        self.add(place, Counted { count: 1, cut: u64::from(is_cut), reserved, used, most: used });
    }

    /// Adds what was counted at a place.
    pub fn add(&mut self, place: u16, counted: Counted) {
        self.places.entry(place).or_default().add(counted);
        self.count = add_saturating(self.count, counted.count);
    }

    pub fn merge(&mut self, other: &Self) {
        other.places().for_each(|(place, counted)| self.add(place, counted));
    }

    /// What was counted, by place, ascending.
    pub fn places(&self) -> impl Iterator<Item = (u16, Counted)> {
        self.places.iter().map(|(place, counted)| (*place, *counted))
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Everything together.
    pub fn total(&self) -> Counted {
        self.places.values().fold(Counted::default(), |mut total, counted| {
            total.add(*counted);
            total
        })
    }

    /// So many percent of the calls are not longer; rounded up to the end of a
    /// place. `None`: there were no calls.
    pub fn quantile(&self, percent: u64) -> Option<u64> {
        let rank = (u128::from(self.count) * u128::from(percent)).div_ceil(100);
        let mut passed = 0;
        let found = self.places.iter().find(|(_, counted)| {
            passed += u128::from(counted.count);
            passed >= rank
        });
        found.filter(|_| !self.is_empty()).map(|(place, _)| end_of(*place))
    }

    /// The cap that the spread suggests: a high quantile and some slack. `None`:
    /// too little is known.
    pub fn suggests(&self) -> Option<u64> {
        let quantile = self.quantile(QUANTILE_PERCENT).filter(|_| self.count >= ENOUGH)?;
        Some(add_saturating(quantile, quantile.div_ceil(SLACK_DIVISOR)).max(LEAST))
    }
}

/// Where an amount stands: exact below 16, then by octave and sixteenth.
fn place_of(amount: u64) -> u16 {
    let octave = (amount | 1).ilog2();
    if octave < FINE {
        return amount as u16;
    }
    let within = (amount >> (octave - FINE)) as u16 & ((1 << FINE) - 1);
    ((octave - FINE + 1) as u16) << FINE | within
}

/// The largest amount of a place.
fn end_of(place: u16) -> u64 {
    let (octaves, within) = (u32::from(place >> FINE), u128::from(place & ((1 << FINE) - 1)));
    if octaves == 0 {
        return within as u64;
    }
    let end = (((1 << FINE) + within + 1) << (octaves - 1)) - 1;
    u64::try_from(end).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::quantity::MAX_AMOUNT;

    fn spread(outputs: impl IntoIterator<Item = u64>) -> Spread {
        let mut spread = Spread::default();
        outputs.into_iter().for_each(|used| spread.note(100_000, used));
        spread
    }

    proptest! {
        #[test]
        fn a_place_has_its_amounts_and_is_narrow(amount in 0..=MAX_AMOUNT, shift in 0u32..53) {
            let amount = amount >> shift;
            let place = place_of(amount);
            let before = place.checked_sub(1).map(end_of);
            prop_assert!(amount <= end_of(place) && before.is_none_or(|end| end < amount));
            prop_assert!(end_of(place) - amount <= amount / 16);
        }

        #[test]
        fn quantiles_are_those_of_the_sorted_amounts_but_for_a_place(
            mut outputs in proptest::collection::vec(0u64..5_000, 1..300), percent in 1u64..=100,
        ) {
            let told = spread(outputs.clone()).quantile(percent).unwrap();
            outputs.sort_unstable();
            let rank = (outputs.len() as u64 * percent).div_ceil(100) as usize;
            prop_assert_eq!(told, end_of(place_of(outputs[rank - 1])));
        }

        #[test]
        fn it_does_not_matter_where_calls_are_counted(outputs in proptest::collection::vec(0u64..5_000, 0..100)) {
            let (here, there) = outputs.split_at(outputs.len() / 3);
            let mut both = spread(here.iter().copied());
            both.merge(&spread(there.iter().copied()));
            prop_assert_eq!(both, spread(outputs.clone()));
        }
    }

    #[test]
    fn nothing_is_suggested_before_enough_is_known() {
        assert_eq!(spread(vec![100; 199]).suggests(), None);
        // 103 is where the place of 100 ends.
        assert_eq!(spread(vec![100; 200]).suggests(), Some(103 + 26));
        assert_eq!(Spread::default().quantile(99), None);
    }

    #[test]
    fn one_in_a_hundred_is_left_to_the_slack() {
        let outputs = |long: usize| spread((0..1000).map(|n| if n < long { 1000 } else { 100 }));
        assert_eq!(outputs(10).suggests(), Some(129));
        assert_eq!(outputs(11).suggests(), Some(1023 + 256));
    }

    #[test]
    fn sums_and_cuts_are_kept() {
        let mut spread = Spread::default();
        [(512, 40), (512, 512), (512, 600), (0, 7)]
            .into_iter()
            .for_each(|(reserved, used)| spread.note(reserved, used));
        let total = Counted { count: 4, cut: 2, reserved: 1536, used: 1159, most: 600 };
        assert_eq!(spread.total(), total);
    }

    /// Calls of `length` at the figure that is learned from them, as a loop.
    fn reserved_after(spread: &mut Spread, calls: usize, mut length: impl FnMut(usize) -> u64) -> u64 {
        let mut reserved = spread.suggests().unwrap_or(4096);
        for n in 0..calls {
            spread.note(reserved, length(n).min(reserved));
            reserved = spread.suggests().unwrap_or(4096);
        }
        reserved
    }

    #[test]
    fn figures_learned_from_what_they_cut_do_not_shrink() {
        let length = |n: usize| [40, 60, 80, 100, 120, 160, 200, 240, 300, 800][n * 7 % 10];
        let mut spread = Spread::default();
        let early = reserved_after(&mut spread, 1_000, length);
        let late = reserved_after(&mut spread, 20_000, length);
        assert!(early >= 800 && late >= 800, "{early}, then {late}");
    }

    #[test]
    fn what_is_cut_off_makes_the_figure_grow_again() {
        let mut spread = Spread::default();
        assert_eq!(reserved_after(&mut spread, 1_000, |_| 100), 129);
        let grown = reserved_after(&mut spread, 1_000, |_| 2_000);
        assert!((2_000..3_000).contains(&grown), "{grown}");
    }
}
