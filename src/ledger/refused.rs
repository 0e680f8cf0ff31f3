//! A user's last refusals as they are stored: one packed row, however many there were.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::LedgerError;
use super::tallies::{Failed, Grounds, RECENT_MAX, RefusedCall};
use crate::domain::ids::{InvalidId, Label, Name};
use crate::domain::plan::{Meter, Scope};
use crate::domain::step::Remedy;
use crate::domain::time::Millis;

/// A user's last refusals as stored.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Recent {
    /// Refusals ever kept, with those that made room since.
    seen: u64,
    /// Codes, limits, plans and the like, each once.
    words: Vec<String>,
    /// Oldest first.
    rows: Vec<Row>,
}

/// A word by its place plus 1; 0 is none.
type Place = u16;

#[derive(Debug, Serialize, Deserialize)]
struct Row {
    /// Milliseconds since the one before.
    since: i64,
    code: Place,
    limit: Place,
    grounds: Option<PackedGrounds>,
}

#[derive(Debug, Serialize, Deserialize)]
struct PackedGrounds {
    plan: Place,
    version: u32,
    model: Place,
    feature: Place,
    bulk: bool,
    input_tokens: u64,
    max_output_tokens: Option<u64>,
    min_output_tokens: Option<u64>,
    failed: Vec<PackedFailed>,
}

#[derive(Debug, Serialize, Deserialize)]
struct PackedFailed {
    name: Place,
    scope: Scope,
    kind: Place,
    meter: Place,
    limit: u64,
    remaining: u64,
    requested: u64,
    remedy: Remedy,
    would_fit: u64,
}

/// As they were stored before there were grounds: codes by their place, without 1.
#[derive(Deserialize)]
struct RecentOfBefore {
    seen: u64,
    words: Vec<String>,
    rows: Vec<(i64, u16, u16)>,
}

const FORMAT: u8 = 2;
/// Without grounds.
const FORMAT_OF_BEFORE: u8 = 1;

fn unreadable() -> LedgerError {
    LedgerError::Corrupt("a user's last refusals".into())
}

impl Recent {
    /// # Errors
    /// `Corrupt`.
    pub fn decode(bytes: &[u8]) -> Result<Self, LedgerError> {
        let (format, fields) = bytes.split_first().ok_or_else(unreadable)?;
        match *format {
            FORMAT => postcard::from_bytes(fields).map_err(|_| unreadable()),
            FORMAT_OF_BEFORE => {
                let RecentOfBefore { seen, words, rows } =
                    postcard::from_bytes(fields).map_err(|_| unreadable())?;
                let row = |(since, code, limit): (i64, u16, u16)| Row {
                    since,
                    code: code.saturating_add(1),
                    limit,
                    grounds: None,
                };
                Ok(Self { seen, words, rows: rows.into_iter().map(row).collect() })
            }
            _ => Err(unreadable()),
        }
    }

    pub fn encode(&self) -> Result<Vec<u8>, LedgerError> {
        postcard::to_extend(self, vec![FORMAT])
            .map_err(|error| LedgerError::Corrupt(format!("refusals cannot be packed: {error}")))
    }

    /// With newer ones; at most [`RECENT_MAX`] stay.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn with(&self, newer: &[RefusedCall]) -> Result<Self, LedgerError> {
        let mut all: Vec<RefusedCall> = self.calls()?.into_iter().map(|(_, call)| call).collect();
        all.extend_from_slice(newer);
        let kept = &all[all.len().saturating_sub(RECENT_MAX)..];
        let mut packed = Self { seen: self.seen + newer.len() as u64, ..Self::default() };
        let mut before = 0;
        for call in kept {
            let since = call.at.0.wrapping_sub(before);
            let (code, limit) = (packed.place(Some(&*call.code)), packed.place(call.limit.as_deref()));
            let grounds = call.grounds.as_ref().map(|grounds| packed.pack(grounds));
            packed.rows.push(Row { since, code, limit, grounds });
            before = call.at.0;
        }
        Ok(packed)
    }

    fn pack(&mut self, grounds: &Grounds) -> PackedGrounds {
        let plan = grounds.plan.as_ref();
        PackedGrounds {
            plan: self.place(plan.map(|(plan, _)| plan.as_str())),
            version: plan.map_or(0, |(_, version)| *version),
            model: self.place(grounds.model.as_ref().map(Name::as_str)),
            feature: self.place(grounds.feature.as_ref().map(Label::as_str)),
            bulk: grounds.bulk,
            input_tokens: grounds.input_tokens,
            max_output_tokens: grounds.max_output_tokens,
            min_output_tokens: grounds.min_output_tokens,
            failed: grounds.failed.iter().map(|failed| self.pack_failed(failed)).collect(),
        }
    }

    fn pack_failed(&mut self, failed: &Failed) -> PackedFailed {
        PackedFailed {
            name: self.place(Some(failed.name.as_str())),
            scope: failed.scope,
            kind: self.place(Some(&*failed.kind)),
            meter: self.place(failed.meter.as_ref().map(Meter::as_str)),
            limit: failed.limit,
            remaining: failed.remaining,
            requested: failed.requested,
            remedy: failed.remedy,
            would_fit: failed.would_fit,
        }
    }

    fn place(&mut self, word: Option<&str>) -> Place {
        let Some(word) = word else { return 0 };
        let known = self.words.iter().position(|known| known == word);
        let place = known.unwrap_or_else(|| {
            self.words.push(word.to_owned());
            self.words.len() - 1
        });
        // At most a hundred rows of seventeen words.
        place as u16 + 1
    }

    /// The refusals, oldest first, each with its number: the user's first one
    /// is 1.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn calls(&self) -> Result<Vec<(u64, RefusedCall)>, LedgerError> {
        let first = self.seen.saturating_sub(self.rows.len() as u64) + 1;
        let mut at = 0_i64;
        let rows = self.rows.iter().zip(first..);
        rows.map(|(row, number)| {
            at = at.wrapping_add(row.since);
            let code = Cow::Owned(self.word(row.code).unwrap_or_default().to_owned());
            let limit = self.word(row.limit).map(Into::into);
            let grounds = row.grounds.as_ref().map(|packed| self.unpack(packed)).transpose();
            let grounds = grounds.map_err(|_| unreadable())?.map(Box::new);
            Ok((number, RefusedCall { at: Millis(at), code, limit, grounds }))
        })
        .collect()
    }

    fn word(&self, place: Place) -> Option<&str> {
        self.words.get(usize::from(place.checked_sub(1)?)).map(String::as_str)
    }

    fn unpack(&self, packed: &PackedGrounds) -> Result<Grounds, InvalidId> {
        let plan = self.word(packed.plan).map(Name::parse).transpose()?;
        let failed = packed.failed.iter().map(|failed| {
            Ok(Failed {
                name: Label::parse(self.word(failed.name).unwrap_or_default())?,
                scope: failed.scope,
                kind: Cow::Owned(self.word(failed.kind).unwrap_or_default().to_owned()),
                meter: self.word(failed.meter).map(Meter::parse).transpose()?,
                limit: failed.limit,
                remaining: failed.remaining,
                requested: failed.requested,
                remedy: failed.remedy,
                would_fit: failed.would_fit,
            })
        });
        Ok(Grounds {
            plan: plan.map(|plan| (plan, packed.version)),
            model: self.word(packed.model).map(Name::parse).transpose()?,
            feature: self.word(packed.feature).map(Label::parse).transpose()?,
            bulk: packed.bulk,
            input_tokens: packed.input_tokens,
            max_output_tokens: packed.max_output_tokens,
            min_output_tokens: packed.min_output_tokens,
            failed: failed.collect::<Result<_, InvalidId>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(at: i64, code: &'static str, limit: Option<&str>) -> RefusedCall {
        let grounds = limit.map(|limit| {
            Box::new(Grounds {
                plan: Some((Name::parse("free").unwrap(), 3)),
                model: Some(Name::parse("sonnet").unwrap()),
                feature: None,
                bulk: at % 2 == 0,
                input_tokens: 1_200,
                max_output_tokens: Some(4_096),
                min_output_tokens: None,
                failed: vec![Failed {
                    name: Label::parse(limit).unwrap(),
                    scope: Scope::User,
                    kind: Cow::Borrowed("window"),
                    meter: Some(Meter::TotalTokens),
                    limit: 300_000,
                    remaining: 17,
                    requested: 5_296,
                    remedy: Remedy::Reset { resets_at: Some(Millis(1_800_000_000_000)) },
                    would_fit: 17,
                }],
            })
        });
        RefusedCall { at: Millis(at), code: Cow::Borrowed(code), limit: limit.map(Into::into), grounds }
    }

    #[test]
    fn the_last_hundred_stay_with_their_numbers_and_figures() {
        let mut recent = Recent::default();
        let all: Vec<RefusedCall> = (0..250)
            .map(|n| match n % 3 {
                0 => call(n, "user_suspended", None),
                1 => call(n, "request_rate_exceeded", Some("requests_per_minute")),
                _ => call(n, "monthly_quota_exhausted", Some("tokens_per_month")),
            })
            .collect();
        for some in all.chunks(7) {
            recent = Recent::decode(&recent.with(some).unwrap().encode().unwrap()).unwrap();
        }
        let kept = recent.calls().unwrap();
        assert_eq!(kept.len(), RECENT_MAX);
        assert_eq!(
            kept.iter().map(|(number, _)| *number).collect::<Vec<_>>(),
            (151..=250).collect::<Vec<_>>()
        );
        assert_eq!(kept.into_iter().map(|(_, call)| call).collect::<Vec<_>>(), all[150..]);
        assert!(recent.encode().unwrap().len() < 4_000, "{}", recent.encode().unwrap().len());
    }

    #[test]
    fn what_was_stored_before_there_were_grounds_is_read() {
        let words = ["user_suspended", "quota_exhausted", "tokens"];
        let rows = [(1_000_i64, 0_u16, 0_u16), (5, 1, 3)];
        let stored = postcard::to_extend(&(7_u64, &words[..], &rows[..]), vec![FORMAT_OF_BEFORE]).unwrap();
        let calls = Recent::decode(&stored).unwrap().calls().unwrap();
        let bare = |at, code, limit| RefusedCall { grounds: None, ..call(at, code, limit) };
        let first = bare(1_000, "user_suspended", None);
        assert_eq!(calls, [(6, first), (7, bare(1_005, "quota_exhausted", Some("tokens")))]);
    }

    #[test]
    fn what_is_no_list_of_refusals_is_told() {
        for bad in [&[][..], &[3, 0, 0, 0], &[1], &[1, 0, 9], &[2, 0, 9]] {
            assert!(matches!(Recent::decode(bad), Err(LedgerError::Corrupt(_))), "{bad:?}");
        }
    }
}
