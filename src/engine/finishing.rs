//! What a finish or an extend makes of a hold and its accounts, apart from
//! where the engine keeps them.

use smallvec::SmallVec;

use super::{Extend, Extended, Finish, Finished, How};
use crate::domain::account::Account;
use crate::domain::hold::{Amounts, FinishedBy, Hold, HoldState, Stage};
use crate::domain::plan::Scope;
use crate::domain::quantity::add_saturating;
use crate::domain::step::{self, Before, Projections, Shortfalls, Standings, Tally, Verdict};
use crate::domain::time::Millis;

/// Ids of extends remembered on a hold at most.
const EXTENDS_KEPT: usize = 64;

/// A hold after a step, with what its accounts become.
pub(super) struct Stepped {
    pub hold: Hold,
    pub projections: Projections,
    pub standings: Standings,
    pub shortfalls: Shortfalls,
}

#[allow(clippy::result_large_err, reason = "an answer, not an error; taken apart at once")]
/// Decides how a hold ends; `Err` is the answer when it does not.
pub(super) fn finish(
    accounts: &[(Scope, &Account)],
    finish: &Finish,
    before: &std::sync::Arc<Hold>,
    now: Millis,
) -> Result<Stepped, Finished> {
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
            let (projections, standings) = step::lapse(accounts, before, &finish.show, now);
            return Ok(Stepped { hold, projections, standings, shortfalls: Shortfalls::new() });
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
    let (projections, standings) = step::finish(accounts, before, counted, tally, &finish.show, now);
    hold.stage = stage;
    hold.extends = Vec::new();
    Ok(Stepped { hold, projections, standings, shortfalls: Shortfalls::new() })
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
/// Decides an extend; `Err` is the answer when nothing changes.
pub(super) fn extend(
    accounts: &SmallVec<[&Account; 3]>,
    extend: &Extend,
    before: &std::sync::Arc<Hold>,
    now: Millis,
) -> Result<Stepped, Extended> {
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
    let verdict = step::extend(accounts, before, &extend.charges, extend.taking, now);
    let (receipts, projections, standings, shortfalls) = match verdict {
        Verdict::Fits { receipts, projections, standings, shortfalls, .. } => {
            (receipts, projections, standings, shortfalls)
        }
        Verdict::Refused { shortfalls, standings } => {
            return Err(Extended::Refused { shortfalls, standings });
        }
    };
    let mut hold = Hold::clone(before);
    hold.admits_user = false;
    hold.receipts = receipts;
    hold.lease_seconds = extend.lease_seconds;
    let end = now.plus_ms(i64::from(extend.lease_seconds) * 1000).min(hold.lives_until);
    hold.expires_at = hold.expires_at.max(end);
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
    Ok(Stepped { hold, projections, standings, shortfalls })
}
