//! A check, as one call of a script; what is told of it follows by the rules.

use std::sync::Arc;

use super::answers::{Answer, Found};
use super::calls;
use super::engine::{Place, RedisEngine, differs, refs, unreadable};
use super::line;
use super::record::Record;
use crate::domain::line::Ahead;
use crate::domain::plan::Scope;
use crate::domain::step::{self, Shortfalls, Standings, Verdict};
use crate::domain::time::Millis;
use crate::engine::{Answers, EngineError, Step, Take, Taken, finishing};

impl RedisEngine {
    pub(super) async fn take_now(&self, take: &Take, now: Millis) -> Result<Step<Taken>, EngineError> {
        let place = self.place(take.draft.tenant)?;
        let call = calls::take(&place.keys, self.head(&place, now), take);
        let answer = self.ask(&place, &self.scripts.take, &call).await?;
        Ok(Step::Done(match answer {
            Answer::Missing { places, seq } => {
                let keys = places.iter().filter_map(|index| take.accounts.get(*index));
                return Ok(Step::Missing(self.missing(&place, keys, seq)));
            }
            Answer::Known(hold) => Taken::Known(hold),
            Answer::Done(found) => self.taken(&place, take, found)?,
            Answer::Refused(found) => self.refused(&place, take, found).await?,
            Answer::Repeated(found) => {
                let hold = Arc::new(Record::read(&found.record).map_err(unreadable)?.hold);
                let standings = step::view(&refs(&found), &take.ask.charges, found.now);
                let ticket = self.ticket(&place, found.seq);
                Taken::Hold { hold, standings, shortfalls: Shortfalls::new(), ticket }
            }
            _ => return Err(EngineError::Unavailable),
        }))
    }

    fn taken(&self, place: &Place, take: &Take, mut found: Found) -> Result<Taken, EngineError> {
        let scopes = crate::engine::scopes(&take.accounts);
        let verdict = step::take(&refs(&found), &scopes, &take.ask, found.now);
        let Verdict::Fits { output, is_final, receipts, projections, standings, shortfalls } = verdict else {
            return Err(differs("a check"));
        };
        let now = found.now;
        let mut hold = take.draft.clone();
        step::reserve(&mut hold, output, is_final, take.credits);
        if take.dry_run {
            let standings = step::view(&refs(&found), &take.ask.charges, now);
            return Ok(Taken::Fits { draft: Box::new(hold), standings, shortfalls });
        }
        finishing::begin(&mut hold, take, receipts, now);
        self.compare(&mut found, projections, &hold)?;
        let ticket = self.ticket(place, found.seq);
        Ok(Taken::Hold { hold: Arc::new(hold), standings, shortfalls, ticket })
    }

    async fn refused(&self, place: &Place, take: &Take, mut found: Found) -> Result<Taken, EngineError> {
        let (mut shortfalls, mut standings, mut at_best_ms) = refusal_of(take, &found)?;
        let accounts = shortfalls.iter().map(|short| take.ask.charges[short.charge].account);
        if self.look_further(place, &take.accounts, accounts.collect(), &mut found).await? {
            (shortfalls, standings, at_best_ms) = refusal_of(take, &found)?;
        }
        if !take.dry_run && !take.quiet {
            self.spread(take, &found, &mut shortfalls);
        }
        let ticket = match self.options.answers {
            Answers::ByEngine => None,
            Answers::ByLedger => Some(self.ticket(place, found.seq)),
        };
        Ok(Taken::Refused { shortfalls, standings, at_best_ms, ticket })
    }

    /// See [`Promises`].
    fn spread(&self, take: &Take, found: &Found, shortfalls: &mut Shortfalls) {
        let pool = take.accounts.iter().position(|key| key.scope == Scope::Pool);
        let Some(pool) = pool.filter(|pool| {
            shortfalls.iter().any(|short| usize::from(take.ask.charges[short.charge].account) == *pool)
        }) else {
            return;
        };
        let mut promises = self.promises.lock();
        let promises = promises.entry(take.accounts[pool].clone()).or_default();
        let (account, user) = (&found.accounts[pool], &take.accounts[0].owner);
        promises.spread(pool as u8, account, user, &take.ask.charges, shortfalls, found.now);
    }
}

/// What a refused check is told: the rules, and who waits before it.
fn refusal_of(take: &Take, found: &Found) -> Result<(Shortfalls, Standings, u64), EngineError> {
    let scopes = crate::engine::scopes(&take.accounts);
    let accounts = refs(found);
    let verdict = step::take(&accounts, &scopes, &take.ask, found.now);
    let ahead = match &take.place {
        Some(place) => line::ahead(&found.record, place).map_err(unreadable)?,
        None => Ahead::default(),
    };
    let (verdict, at_best_ms) = crate::engine::lines::behind(take, verdict, &accounts, &ahead, found.now);
    match verdict {
        Verdict::Refused { shortfalls, standings } => Ok((shortfalls, standings, at_best_ms)),
        Verdict::Fits { .. } => Err(differs("a refusal")),
    }
}
