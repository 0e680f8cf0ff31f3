//! What is counted beside the decisions: refusals, how another limiter would
//! have decided, and how long answers were.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::LedgerError;
use crate::domain::charge::TenantRef;
use crate::domain::ids::{Label, Name, UserId};
use crate::domain::spread::Spread;
use crate::domain::time::Millis;

/// Refusals of a user that are kept one by one.
pub const RECENT_MAX: usize = 100;
/// Different words of another limiter that are counted, by tenant and day.
pub const THEIRS_MAX: usize = 64;
/// Slots for which active users stay counted: eight days of five minutes.
pub const ACTIVE_KEPT: i64 = 8 * 288;
/// The word under which all others are counted.
pub const OTHER: &str = "other";

/// A word of ours while it is counted, a text once it was read back.
pub type Word = Cow<'static, str>;

/// What was counted since the last time. On record wholly or not at all.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tally {
    pub refused: Vec<RefusedUser>,
    pub compared: Vec<(TenantRef, Comparison)>,
    /// By local day.
    pub outputs: Vec<(TenantRef, i32, Output)>,
    pub minutes: Vec<RefusedMinute>,
    pub active: Vec<ActiveUsers>,
}

/// Users of a plan with a call in one slot of time, by digests that lie anywhere
/// with equal likelihood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveUsers {
    pub tenant: TenantRef,
    pub slot: i64,
    pub plan: Name,
    pub digests: Vec<u64>,
}

/// How long the answers of one feature by one model were.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Empty: the calls named none. [`OTHERS`]: of several that are not counted
    /// one by one.
    pub feature: Arc<str>,
    /// The same.
    pub model: Arc<str>,
    pub spread: Spread,
}

/// The feature and the model of those that are not counted one by one; no name
/// can be this.
pub const OTHERS: &str = "*";

/// Both parts of a sum are within 2^53, so that it does not overflow before it
/// is cut.
pub(super) fn stored(count: u64) -> i64 {
    count.min(1 << 53).cast_signed()
}

/// The refusals of one user.
#[derive(Debug, Clone, PartialEq)]
pub struct RefusedUser {
    pub tenant: TenantRef,
    /// `None`: of users who were not counted one by one.
    pub user: Option<UserId>,
    pub counts: Vec<RefusalCount>,
    /// The newest ones, oldest first.
    pub recent: Vec<RefusedCall>,
}

/// Refusals of calls of one feature in a minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedMinute {
    pub tenant: TenantRef,
    /// Minutes since 1970.
    pub minute: i64,
    pub feature: Option<Label>,
    pub count: u64,
}

/// How many refusals of one code a local day has seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusalCount {
    /// Days since 1970-01-01 in the tenant's zone.
    pub day: i32,
    pub code: Word,
    pub count: u64,
}

/// One refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedCall {
    pub at: Millis,
    pub code: Word,
    /// The limit that decided, if one did.
    pub limit: Option<Arc<str>>,
}

/// Checks of a local day that we decided one way and another limiter one way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    pub day: i32,
    /// `allow` or our code.
    pub ours: Word,
    /// `allow`, or the cause that the other one gave.
    pub theirs: Arc<str>,
    pub checks: u64,
}

/// A user's last refusals as stored.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Recent {
    /// Refusals ever kept, with those that made room since.
    seen: u64,
    /// Codes and limits, each once.
    words: Vec<String>,
    /// Milliseconds since the one before, code, limit (0: none, else its place
    /// plus 1); oldest first.
    rows: Vec<(i64, u16, u16)>,
}

const FORMAT: u8 = 1;

impl Recent {
    /// # Errors
    /// `Corrupt`.
    pub fn decode(bytes: &[u8]) -> Result<Self, LedgerError> {
        let unreadable = || LedgerError::Corrupt("a user's last refusals".into());
        let (format, fields) = bytes.split_first().ok_or_else(unreadable)?;
        if *format != FORMAT {
            return Err(unreadable());
        }
        postcard::from_bytes(fields).map_err(|_| unreadable())
    }

    pub fn encode(&self) -> Result<Vec<u8>, LedgerError> {
        postcard::to_extend(self, vec![FORMAT])
            .map_err(|error| LedgerError::Corrupt(format!("refusals cannot be packed: {error}")))
    }

    /// With newer ones; at most [`RECENT_MAX`] stay.
    pub fn with(&self, newer: &[RefusedCall]) -> Self {
        let mut all: Vec<RefusedCall> = self.calls().into_iter().map(|(_, call)| call).collect();
        all.extend_from_slice(newer);
        let kept = &all[all.len().saturating_sub(RECENT_MAX)..];
        let mut packed = Self { seen: self.seen + newer.len() as u64, ..Self::default() };
        let mut before = 0;
        for call in kept {
            let code = packed.place(&call.code);
            let limit = call.limit.as_ref().map_or(0, |limit| packed.place(limit) + 1);
            packed.rows.push((call.at.0.wrapping_sub(before), code, limit));
            before = call.at.0;
        }
        packed
    }

    fn place(&mut self, word: &str) -> u16 {
        let known = self.words.iter().position(|known| known == word);
        let place = known.unwrap_or_else(|| {
            self.words.push(word.to_owned());
            self.words.len() - 1
        });
        // At most two words a row.
        place as u16
    }

    /// The refusals, oldest first, each with its number: the user's first one
    /// is 1.
    pub fn calls(&self) -> Vec<(u64, RefusedCall)> {
        let first = self.seen.saturating_sub(self.rows.len() as u64) + 1;
        let word = |place: u16| self.words.get(usize::from(place)).cloned();
        let mut at = 0_i64;
        let rows = self.rows.iter().zip(first..);
        rows.map(|(&(since, code, limit), number)| {
            at = at.wrapping_add(since);
            let code = Cow::Owned(word(code).unwrap_or_default());
            let limit = limit.checked_sub(1).and_then(word).map(Arc::from);
            (number, RefusedCall { at: Millis(at), code, limit })
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(at: i64, code: &'static str, limit: Option<&str>) -> RefusedCall {
        RefusedCall { at: Millis(at), code: Cow::Borrowed(code), limit: limit.map(Arc::from) }
    }

    #[test]
    fn the_last_hundred_stay_with_their_numbers() {
        let mut recent = Recent::default();
        let all: Vec<RefusedCall> = (0..250)
            .map(|n| match n % 3 {
                0 => call(n, "user_suspended", None),
                1 => call(n, "request_rate_exceeded", Some("requests_per_minute")),
                _ => call(n, "monthly_quota_exhausted", Some("tokens_per_month")),
            })
            .collect();
        for some in all.chunks(7) {
            recent = Recent::decode(&recent.with(some).encode().unwrap()).unwrap();
        }
        let kept = recent.calls();
        assert_eq!(kept.len(), RECENT_MAX);
        assert_eq!(
            kept.iter().map(|(number, _)| *number).collect::<Vec<_>>(),
            (151..=250).collect::<Vec<_>>()
        );
        assert_eq!(kept.into_iter().map(|(_, call)| call).collect::<Vec<_>>(), all[150..]);
        assert!(recent.encode().unwrap().len() < 1_000, "{}", recent.encode().unwrap().len());
    }

    #[test]
    fn what_is_no_list_of_refusals_is_told() {
        for bad in [&[][..], &[2, 0, 0, 0], &[1], &[1, 0, 9]] {
            assert!(matches!(Recent::decode(bad), Err(LedgerError::Corrupt(_))), "{bad:?}");
        }
    }
}
