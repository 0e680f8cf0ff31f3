//! What a take, a finish or an extend makes of a hold and its accounts, apart from
//! where the engine keeps them.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Extend, Extended, Finish, Finished, How, Take};
use crate::domain::account::Account;
use crate::domain::hold::{Amounts, FinishedBy, Hold, HoldState, Receipt, Stage};
use crate::domain::plan::Scope;
use crate::domain::quantity::add_saturating;
use crate::domain::step::{self, Before, Projections, Shortfalls, Standings, Tally, Verdict};
use crate::domain::time::Millis;

/// Ids of extends remembered on a hold at most.
const EXTENDS_KEPT: usize = 64;

/// A hold that is taken at `now`. (Use that has happened has ended already, and its draft
/// says when it was.)
pub(super) fn begin(hold: &mut Hold, take: &Take, receipts: Vec<Receipt>, now: Millis) {
    hold.receipts = receipts;
    if !matches!(take.draft.stage, Stage::Held) {
        hold.stage = take.draft.stage.clone();
        hold.reserved = take.draft.reserved;
        return;
    }
    hold.created_at = now;
    hold.lives_until = now.plus_ms(take.max_hold_ms);
    hold.expires_at = now.plus_ms(take.lease_ms).min(hold.lives_until);
}

/// A hold after an extend, with what its accounts become.
pub(super) struct Stepped {
    pub hold: Hold,
    pub projections: Projections,
    pub standings: Standings,
    pub shortfalls: Shortfalls,
}

/// What an end does to the cells of the receipts.
pub(super) enum Ending<'a> {
    /// The lease is over, the amounts stay.
    Lapse,
    Finish {
        before: Before<'a>,
        tally: Tally<'a>,
    },
}

#[allow(clippy::result_large_err, reason = "an answer, not an error; taken apart at once")]
/// Decides how a hold ends: the hold as it will be; `Err` is the answer when
/// it does not end.
pub(super) fn end<'a>(
    finish: &'a Finish,
    before: &'a Arc<Hold>,
    now: Millis,
) -> Result<(Hold, Ending<'a>), Finished> {
    let state = before.state(now);
    let corrects = finish.ended_by_rule.is_some() && ended_by(before) == Some(FinishedBy::Rule);
    let correctable = corrects && !matches!(finish.how, How::Doubt);
    if before.is_finished() && !correctable {
        return Err(Finished::Already(before.clone()));
    }
    let late = state != HoldState::Held;
    if !late && finish.how.by() != FinishedBy::Caller {
        return Err(Finished::NotInDoubt(before.clone()));
    }
    let mut hold = Hold::clone(before);
    hold.admits_user = false;
    let (stage, tally) = match &finish.how {
        How::Doubt if late => return Err(Finished::Already(before.clone())),
        How::Doubt => {
            hold.stage = Stage::InDoubt { since: now };
            return Ok((hold, Ending::Lapse));
        }
        How::Release { by: FinishedBy::Caller, .. } if before.progress > 0 => {
            return Err(Finished::HasProgress(before.clone()));
        }
        How::Release { reason, by } => {
            let stage = Stage::Released { at: now, late, reason: *reason, by: *by };
            (stage, Tally { amounts: Amounts::default(), custom: &[] })
        }
        How::Settle(told) => {
            let mut settlement = told.clone();
            (settlement.at, settlement.late) = (now, late);
            (Stage::Settled(settlement), Tally { amounts: told.counted, custom: &told.amounts })
        }
    };
    let counted = match &before.stage {
        Stage::Settled(prior) => Before::Counted(Tally { amounts: prior.counted, custom: &prior.amounts }),
        Stage::Released { .. } => Before::Counted(Tally { amounts: Amounts::default(), custom: &[] }),
        Stage::Held | Stage::InDoubt { .. } => Before::Reserved { lease_runs: state == HoldState::Held },
    };
    hold.stage = stage;
    hold.extends = Vec::new();
    // Only what a rule ended is corrected ever after: nobody else needs to know
    // which cells gave, and most of what is kept of a hold would be that.
    if finish.how.by() != FinishedBy::Rule {
        hold.receipts = Vec::new();
    }
    Ok((hold, Ending::Finish { before: counted, tally }))
}

impl Ending<'_> {
    /// What becomes of the accounts.
    pub(super) fn step(
        &self,
        accounts: &[(Scope, &Account)],
        finish: &Finish,
        before: &Hold,
        now: Millis,
    ) -> (Projections, Standings) {
        match self {
            Self::Lapse => step::lapse(accounts, before, &finish.show, now),
            Self::Finish { before: counted, tally } => {
                step::finish(accounts, before, *counted, *tally, &finish.show, now)
            }
        }
    }
}

impl How {
    /// Who ends the hold. Only callers know that a call is over while its
    /// lease runs.
    fn by(&self) -> FinishedBy {
        match self {
            Self::Settle(settlement) => settlement.by,
            Self::Release { by, .. } => *by,
            Self::Doubt => FinishedBy::Caller,
        }
    }
}

fn ended_by(hold: &Hold) -> Option<FinishedBy> {
    match &hold.stage {
        Stage::Settled(settlement) => Some(settlement.by),
        Stage::Released { by, .. } => Some(*by),
        Stage::Held | Stage::InDoubt { .. } => None,
    }
}

#[allow(clippy::result_large_err, reason = "an answer, not an error; taken apart at once")]
/// Whether a hold can be extended as asked; `Err` is the answer if not.
pub(super) fn check_extend(extend: &Extend, before: &Arc<Hold>, now: Millis) -> Result<(), Extended> {
    if let Some(mark) = &extend.mark
        && let Some(known) = before.extends.iter().find(|known| known.id == mark.id)
    {
        return Err(match known.fingerprint == mark.fingerprint {
            true => Extended::Replayed(before.clone()),
            false => Extended::MarkReused,
        });
    }
    match before.state(now) {
        HoldState::Held => {}
        HoldState::InDoubt => return Err(Extended::LeaseEnded(before.clone())),
        HoldState::Settled | HoldState::Released => return Err(Extended::Already(before.clone())),
    }
    if before.receipts.len() != extend.receipts || before.reserved.output_tokens != extend.reserved_before {
        return Err(Extended::Changed);
    }
    Ok(())
}

/// The extended hold, but for its receipts and the end of its lease.
pub(super) fn extended(extend: &Extend, before: &Hold) -> Hold {
    let mut hold = before.clone();
    hold.admits_user = false;
    hold.lease_seconds = extend.lease_seconds;
    hold.progress = hold.progress.max(extend.progress);
    let reserved = &mut hold.reserved;
    reserved.output_tokens = add_saturating(reserved.output_tokens, extend.add_output);
    reserved.total_tokens = add_saturating(reserved.total_tokens, extend.add_output);
    reserved.credits = add_saturating(reserved.credits, extend.add_credits);
    hold.granted.max_output_tokens = add_saturating(hold.granted.max_output_tokens, extend.add_output);
    if let Some(mark) = &extend.mark {
        if hold.extends.len() == EXTENDS_KEPT {
            hold.extends.remove(0);
        }
        hold.extends.push(mark.clone());
    }
    hold
}

#[allow(clippy::result_large_err, reason = "an answer, not an error; taken apart at once")]
/// Decides an extend; `Err` is the answer when nothing changes.
pub(super) fn extend(
    accounts: &SmallVec<[&Account; 3]>,
    extend: &Extend,
    before: &Arc<Hold>,
    now: Millis,
) -> Result<Stepped, Extended> {
    check_extend(extend, before, now)?;
    let verdict = step::extend(accounts, before, &extend.charges, extend.taking, now);
    let (receipts, projections, standings, shortfalls) = match verdict {
        Verdict::Fits { receipts, projections, standings, shortfalls, .. } => {
            (receipts, projections, standings, shortfalls)
        }
        Verdict::Refused { shortfalls, standings } => {
            return Err(Extended::Refused { shortfalls, standings });
        }
    };
    let mut hold = extended(extend, before);
    hold.receipts = receipts;
    let end = now.plus_ms(i64::from(extend.lease_seconds) * 1000).min(hold.lives_until);
    hold.expires_at = hold.expires_at.max(end);
    Ok(Stepped { hold, projections, standings, shortfalls })
}
