//! Webhooks: what is told to them, when it is told again, and which shares of a
//! limit are worth a word.

use super::quantity::Ppm;

/// What a webhook can be told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    QuotaWarned,
    QuotaExhausted,
    HoldInDoubt,
    PlanChanged,
    PoolPaused,
    PoolClosed,
    /// Asked for, to see whether it arrives.
    Test,
}

const TEST: &str = "webhook.test";

impl EventKind {
    /// Those that a webhook can ask for, by their names.
    pub const NAMED: [(&'static str, Self); 6] = [
        ("quota.warned", Self::QuotaWarned),
        ("quota.exhausted", Self::QuotaExhausted),
        ("hold.in_doubt", Self::HoldInDoubt),
        ("plan.changed", Self::PlanChanged),
        ("pool.paused", Self::PoolPaused),
        ("pool.closed", Self::PoolClosed),
    ];

    pub fn as_str(self) -> &'static str {
        let named = Self::NAMED.iter().find(|(_, kind)| *kind == self);
        named.map_or(TEST, |(name, _)| name)
    }

    pub fn parse(text: &str) -> Option<Self> {
        let named = Self::NAMED.iter().find(|(name, _)| *name == text).map(|(_, kind)| *kind);
        named.or_else(|| (text == TEST).then_some(Self::Test))
    }
}

/// Times that a message is sent before it is put aside.
pub const TRIES_MAX: u32 = 12;

/// Seconds between a try that failed and the next one: two days in all.
const PAUSES: [u64; TRIES_MAX as usize - 1] =
    [5, 30, 120, 600, 1_800, 3_600, 7_200, 14_400, 28_800, 43_200, 43_200];
/// A receiver may ask for more patience, up to here.
const PATIENCE_MAX_S: u64 = 86_400;

/// How long to wait after the `tries`-th try has failed, in ms; `None`: no
/// longer. `salt` spreads by a fifth either way what failed together.
/// `asked_s`: the wait that the receiver asks for, if it is longer.
pub fn pause_after(tries: u32, salt: u64, asked_s: Option<u64>) -> Option<i64> {
    let pause_ms = PAUSES.get(usize::try_from(tries.checked_sub(1)?).ok()?)? * 1_000;
    let spread = pause_ms * 4 / 5 + salt % (pause_ms * 2 / 5 + 1);
    let asked_ms = asked_s.unwrap_or(0).min(PATIENCE_MAX_S) * 1_000;
    i64::try_from(spread.max(asked_ms)).ok()
}

/// Whether so much of a limit is used that a threshold is reached. Of a limit
/// of 0 there is no share; whatever is used of it is all of it.
pub fn reaches(used: u64, threshold: Ppm, whole: u64) -> bool {
    used > 0 && u128::from(used) * 1_000_000 >= u128::from(threshold.0) * u128::from(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_name_of_its_own() {
        for (name, kind) in EventKind::NAMED.into_iter().chain([(TEST, EventKind::Test)]) {
            assert_eq!((kind.as_str(), EventKind::parse(name)), (name, Some(kind)));
        }
        assert_eq!(EventKind::parse("quota"), None);
    }

    #[test]
    fn the_first_retry_comes_within_ten_seconds_and_there_are_twelve_tries() {
        for salt in [0, 1, 999, 1_234_567_891, u64::MAX] {
            let pauses: Vec<i64> = (1..=20).map_while(|tries| pause_after(tries, salt, None)).collect();
            assert_eq!(pauses.len() as u32 + 1, TRIES_MAX);
            assert!((4_000..=6_000).contains(&pauses[0]), "{pauses:?}");
            assert!(pauses.windows(2).take(9).all(|pair| pair[0] < pair[1]), "{pauses:?}");
        }
        assert_eq!(pause_after(0, 0, None), None);
    }

    #[test]
    fn what_failed_together_is_not_sent_together() {
        let pauses: std::collections::HashSet<_> =
            (0..1000).map(|salt| pause_after(4, salt * 977, None)).collect();
        assert!(pauses.len() > 900, "{}", pauses.len());
    }

    #[test]
    fn a_receiver_may_ask_for_more_patience_but_not_for_less_nor_for_ever() {
        assert_eq!(pause_after(1, 0, Some(60)), Some(60_000));
        assert_eq!(pause_after(3, 0, Some(1)), Some(96_000));
        assert_eq!(pause_after(1, 0, Some(u64::MAX)), Some(86_400_000));
    }

    #[test]
    fn a_threshold_is_reached_exactly() {
        let share = Ppm(800_000);
        assert!(!reaches(799, share, 1000) && reaches(800, share, 1000));
        assert!(!reaches(2, Ppm(666_667), 3) && reaches(2, Ppm(666_666), 3));
        assert!(reaches(crate::domain::quantity::MAX_AMOUNT, Ppm::ONE, crate::domain::quantity::MAX_AMOUNT));
        assert!(!reaches(0, share, 0) && reaches(1, Ppm::ONE, 0));
    }
}
