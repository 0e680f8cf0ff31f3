//! Steps of a hold that exists: each is made from its record, and made again
//! when another step was faster.

use std::sync::Arc;

use smallvec::SmallVec;

use super::answers::Answer;
use super::calls;
use super::engine::{Place, RedisEngine, differs, refs, unreadable};
use super::reading::{Stands, stands};
use super::record::Record;
use crate::domain::charge::AccountKey;
use crate::domain::hold::Hold;
use crate::domain::step::{self, Shortfalls};
use crate::domain::time::Millis;
use crate::engine::{EngineError, Extend, Extended, Finish, Finished, Step, finishing};

/// How often a step is tried that others keep changing under its hands.
const TRIES: usize = 16;

impl RedisEngine {
    pub(super) async fn finish_now(
        &self,
        finish: &Finish,
        now: Millis,
    ) -> Result<Step<Finished>, EngineError> {
        let place = self.place(finish.accounts[0].tenant)?;
        let operation = operation_id();
        let mut now = now;
        for _ in 0..TRIES {
            let known = self.record_of(&place, finish.hold, finish.found.as_ref()).await?;
            let version = known.as_ref().map_or(0, |read| read.version);
            let before = known.map(|read| read.hold).or_else(|| finish.ended_by_rule.clone());
            let Some(before) = before.or_else(|| finish.found.clone()) else {
                return Ok(Step::Done(Finished::NotOpen));
            };
            let (hold, ending) = match finishing::end(finish, &before, now) {
                Ok(ended) => ended,
                Err(_) if version == 0 && finish.ended_by_rule.is_none() => {
                    return self.not_here(&place, &finish.accounts[0], &before, Finished::NotOpen).await;
                }
                Err(answer) => return Ok(Step::Done(answer)),
            };
            let from = calls::From { before: &before, version, operation };
            let head = self.head(&place, now);
            let call =
                calls::finish(&place.keys, head, &finish.accounts, &from, &hold, &ending, &finish.show);
            match self.ask(&place, &self.scripts.finish, &call).await? {
                Answer::Missing { places, seq } => {
                    let keys = places.iter().filter_map(|index| finish.accounts.get(*index));
                    return Ok(Step::Missing(self.missing(&place, keys, seq)));
                }
                Answer::Again(later) => now = later,
                Answer::Changed => {}
                Answer::NotOpen => return Ok(Step::Done(Finished::NotOpen)),
                Answer::Repeated(found) => {
                    let hold = Arc::new(Record::read(&found.record).map_err(unreadable)?.hold);
                    let standings = step::view(&refs(&found), &finish.show, found.now);
                    let ticket = self.ticket(&place, found.seq);
                    return Ok(Step::Done(Finished::Done { hold, standings, ticket }));
                }
                Answer::Done(mut found) => {
                    // Told for the instant at which it was decided.
                    let (hold, ending) = match finishing::end(finish, &before, found.now) {
                        Ok(ended) => ended,
                        Err(_) => return Err(differs("the end of a hold")),
                    };
                    let scoped: SmallVec<[_; 3]> =
                        finish.accounts.iter().map(|key| key.scope).zip(&found.accounts).collect();
                    let (projections, standings) = ending.step(&scoped, finish, &before, found.now);
                    drop(scoped);
                    self.compare(&mut found, projections, &hold)?;
                    let ticket = self.ticket(&place, found.seq);
                    return Ok(Step::Done(Finished::Done { hold: Arc::new(hold), standings, ticket }));
                }
                _ => return Err(EngineError::Unavailable),
            }
        }
        Err(EngineError::Overloaded)
    }

    /// Of a hold that has no record in Redis: what is not there is the ledger's to tell, once
    /// all that is open of its user is.
    async fn not_here<T>(
        &self,
        place: &Place,
        user: &AccountKey,
        before: &Hold,
        not_open: T,
    ) -> Result<Step<T>, EngineError> {
        if before.is_finished() {
            return Ok(Step::Done(not_open));
        }
        let (meta, mut values) = self.look(place, |pipeline| Self::ask_for(place, user, pipeline)).await?;
        Ok(match stands(&mut values)? {
            Stands::Absent => Step::Missing(self.missing(place, std::iter::once(user), meta.seq)),
            Stands::Moved => return Err(EngineError::Moved),
            Stands::Here { .. } => Step::Done(not_open),
        })
    }

    pub(super) async fn extend_now(
        &self,
        extend: &Extend,
        now: Millis,
    ) -> Result<Step<Extended>, EngineError> {
        let place = self.place(extend.accounts[0].tenant)?;
        let operation = extend.operation.to_le_bytes();
        let mut now = now;
        for _ in 0..TRIES {
            let known = self.record_of(&place, extend.hold, extend.found.as_ref()).await?;
            let version = known.as_ref().map_or(0, |read| read.version);
            let is_done = known.as_ref().is_some_and(|read| read.operation == operation);
            let before = known.map(|read| read.hold).or_else(|| extend.found.clone());
            let Some(before) = before else { return Ok(Step::Done(Extended::NotOpen)) };
            if !is_done && let Err(answer) = finishing::check_extend(extend, &before, now) {
                return match version {
                    0 => self.not_here(&place, &extend.accounts[0], &before, Extended::NotOpen).await,
                    _ => Ok(Step::Done(answer)),
                };
            }
            let from = calls::From { before: &before, version, operation };
            let after = finishing::extended(extend, &before);
            let call = calls::extend(&place.keys, self.head(&place, now), &from, &after, extend);
            match self.ask(&place, &self.scripts.extend, &call).await? {
                Answer::Missing { places, seq } => {
                    let keys = places.iter().filter_map(|index| extend.accounts.get(*index));
                    return Ok(Step::Missing(self.missing(&place, keys, seq)));
                }
                Answer::Again(later) => now = later,
                Answer::Changed => {}
                Answer::NotOpen => return Ok(Step::Done(Extended::NotOpen)),
                Answer::Repeated(found) => {
                    let hold = Arc::new(Record::read(&found.record).map_err(unreadable)?.hold);
                    let standings = step::view(&refs(&found), &extend.charges, found.now);
                    let ticket = self.ticket(&place, found.seq);
                    let shortfalls = Shortfalls::new();
                    return Ok(Step::Done(Extended::Done { hold, standings, shortfalls, ticket }));
                }
                Answer::Done(mut found) => {
                    let longer = match finishing::extend(&refs(&found), extend, &before, found.now) {
                        Ok(longer) => longer,
                        Err(_) => return Err(differs("an extend")),
                    };
                    self.compare(&mut found, longer.projections, &longer.hold)?;
                    let ticket = self.ticket(&place, found.seq);
                    let (standings, shortfalls) = (longer.standings, longer.shortfalls);
                    let hold = Arc::new(longer.hold);
                    return Ok(Step::Done(Extended::Done { hold, standings, shortfalls, ticket }));
                }
                Answer::Refused(mut found) => {
                    let all = (0..extend.accounts.len() as u8).collect();
                    self.look_further(&place, &extend.accounts, all, &mut found).await?;
                    let answer = finishing::extend(&refs(&found), extend, &before, found.now);
                    return Ok(Step::Done(answer.err().ok_or_else(|| differs("an extend"))?));
                }
                _ => return Err(EngineError::Unavailable),
            }
        }
        Err(EngineError::Overloaded)
    }
}

/// Names an operation, so that it is not done twice.
fn operation_id() -> [u8; 16] {
    let mut id = [0; 16];
    // Without randomness the time of the process has to do.
    if getrandom::fill(&mut id).is_err() {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        id = since.as_nanos().to_le_bytes();
    }
    id
}
